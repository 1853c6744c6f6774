"""``KafkaTopic``: Kafka's topics, found by a split enumerator and read by subtasks.

::

    orders = weir.sources.KafkaTopic(
        "orders", servers="broker:9092", value="json", schema="id long, ts timestamp"
    )
    job.source("in", orders, parallelism=2, watermarks=weir.sources.Watermarks(column="ts"))

``enumerator.py`` finds partitions, ``reader.py`` reads them. A split is a partition of a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from re import Pattern
from typing import TYPE_CHECKING

from weir.core.types import Payload
from weir.errors import PipelineError
from weir.lineage.datasets import Dataset, kafka_datasets
from weir.sources.base import (
    Source,
    SourceReaderContext,
    SplitEnumeratorContext,
    SplitSerializer,
)
from weir.sources.topics.client import RESERVED, Cluster, Conf, ConfluentCluster, check_installed
from weir.sources.topics.enumerator import KafkaEnumerator, Start, Topics
from weir.sources.topics.reader import KafkaReader
from weir.sources.topics.rows import COLUMNS, SPARK_COLUMNS, RecordRows, with_columns
from weir.sources.topics.splits import KafkaSplit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_VALUES = ("bytes", "json")
_STARTS = ("earliest", "latest")


class KafkaTopic(Source[KafkaSplit]):
    """Reads topics with a position and, with ``watermarks=``, a watermark for each partition.

    Positions are in checkpoints only: no consumer group is joined, and no offset is committed to
    one. Partitions that are added are found and read from their beginning. A topic that was deleted
    and made again under its name is refused, and so are positions that retention has passed.

    Args:
        topics: The name of a topic, several names, or a compiled pattern that matches whole names.
        servers: Kafka's ``bootstrap.servers``.
        value: ``bytes``: the rows are Kafka's columns, as Spark's connector has them. ``json``: the
            rows are the fields of the values, which are JSON objects; a value that is none fails
            the job by its offset, and a tombstone (a null value) is a row of nulls.
        schema: With ``json``: the fields of the values, as a Spark ``StructType`` or DDL.
            ``docs/FILES.md`` says what is made of each type.
        columns: Kafka's columns in the rows, after the fields of the values: of ``key``, ``value``,
            ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType`` and ``headers``.
            The default is all but the headers with ``bytes``, and none with ``json``.
        start: Where a job without a checkpoint starts: ``earliest``, ``latest``, the first record
            at a time (a ``datetime`` with a zone) or later, or offsets of all partitions,
            ``{"orders": {0: 17, 1: 4}}``.
        bounded: The ends of the partitions at the start are the end of the input, at which the job
            finishes: their stable ends, before which no transaction is open.
        discovery_interval: Seconds between two looks for new partitions and topics.
        max_rows_per_batch: How many rows a subtask is asked for in a batch.
        conf: Options of librdkafka, such as ``security.protocol``; also ``isolation.level``, which
            is ``read_committed`` otherwise.
    """

    supports_available_now = True

    def __init__(
        self,
        topics: str | Sequence[str] | Pattern[str],
        *,
        servers: str,
        value: str = "bytes",
        schema: str | StructType | None = None,
        columns: Sequence[str] | None = None,
        start: Start = "earliest",
        bounded: bool = False,
        discovery_interval: float = 10.0,
        max_rows_per_batch: int = 100_000,
        conf: Conf | None = None,
    ) -> None:
        """Raises ``PipelineError`` for invalid arguments. The cluster is not asked anything yet.

        Raises ``UnsupportedEnvironmentError`` without confluent-kafka.
        """
        check_installed()
        self._topics = _checked_topics(topics)
        self._servers = servers
        if value not in _VALUES:
            raise PipelineError(f"KafkaTopic has value={value!r}: choose one of bytes, json.")
        if (value == "json") != (schema is not None):
            raise PipelineError(
                "KafkaTopic needs a schema, such as schema='id long, ts timestamp', with"
                " value='json', and only then."
            )
        self._parses = value == "json"
        self._columns = _checked_columns(columns, parses=self._parses)
        self.schema = with_columns(schema, self._columns)
        self._start = _checked_start(start)
        self.bounded = bounded
        if not 0 < discovery_interval < float("inf"):
            raise PipelineError(
                f"KafkaTopic has discovery_interval={discovery_interval!r}: set it to a number"
                " above 0."
            )
        self._interval_ms = max(1, round(discovery_interval * 1000))
        if max_rows_per_batch < 1:
            raise PipelineError(
                f"KafkaTopic has max_rows_per_batch={max_rows_per_batch!r}: set it to 1 or more."
            )
        self.max_rows_per_batch = max_rows_per_batch
        taken = sorted(RESERVED & (conf or {}).keys())
        if taken:
            raise PipelineError(
                f"KafkaTopic sets {', '.join(taken)} itself: leave it out of conf"
                " (bootstrap.servers is servers=)."
            )
        #: The cluster; tests pass another.
        self.cluster: Cluster = ConfluentCluster(servers, conf or {})

    def dataset(self) -> Dataset | None:
        """The topic, if it is one."""
        if isinstance(self._topics, tuple) and len(self._topics) == 1:
            return kafka_datasets(self._servers, self._topics[0])[0]
        return None

    def identity(self) -> str:
        """The topics, and the first of the servers."""
        named = self._topics if isinstance(self._topics, tuple) else (self._topics.pattern,)
        where = kafka_datasets(self._servers, "-")[0].namespace
        return f"KafkaTopic at {where}/{','.join(named)}"

    def split_serializer(self) -> SplitSerializer[KafkaSplit]:
        """Partitions by topic and number."""
        return SplitSerializer(KafkaSplit)

    def create_enumerator(self, context: SplitEnumeratorContext) -> KafkaEnumerator:
        """An enumerator that knows no partition."""
        return self.restore_enumerator(context, {})

    def restore_enumerator(
        self, context: SplitEnumeratorContext, state: Payload
    ) -> KafkaEnumerator:
        """An enumerator with the partitions of a checkpoint."""
        return KafkaEnumerator(
            context,
            state,
            self.cluster,
            self._topics,
            start=self._start,
            interval_ms=self._interval_ms,
            bounded=self.bounded,
        )

    def create_reader(self, context: SourceReaderContext) -> KafkaReader:
        """The reader of a subtask."""
        rows = RecordRows(context.schema, parses=self._parses, columns=self._columns)
        return KafkaReader(context, self.cluster, rows, accepts_lost_rows=self.accepts_lost_rows)


def _checked_topics(topics: str | Sequence[str] | Pattern[str]) -> Topics:
    if isinstance(topics, Pattern):
        return topics
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(names) or len(set(names)) < len(names):
        raise PipelineError(
            f"KafkaTopic has the topics {names!r}: name each once, and at least one."
        )
    return names


def _checked_columns(columns: Sequence[str] | None, *, parses: bool) -> tuple[str, ...]:
    if columns is None:
        return () if parses else SPARK_COLUMNS
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) < len(columns) or not (columns or parses):
        raise PipelineError(
            f"KafkaTopic has columns={list(columns)!r}: name each once, of {', '.join(COLUMNS)}."
        )
    return tuple(columns)


def _checked_start(start: Start) -> Start:
    if isinstance(start, datetime):
        is_valid = start.tzinfo is not None
    elif isinstance(start, str):
        is_valid = start in _STARTS
    else:
        is_valid = all(offset >= 0 for given in start.values() for offset in given.values())
    if not is_valid:
        raise PipelineError(
            f"KafkaTopic has start={start!r}: choose 'earliest', 'latest', a datetime with a zone,"
            " or offsets of 0 or more by topic and partition."
        )
    return start
