"""``kafka``: a source function over Spark's Kafka connector, with safe defaults.

It returns what ``Job.source`` takes, and what can be written by hand as well::

    orders = job.source("orders", weir.sources.kafka("orders", servers="broker:9092", value="json",
                                                     schema="id long, amount decimal(12,2)"))

The rows have the columns of Spark's connector, with ``value`` decoded. Reads committed rows only,
which is not Spark's default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from weir.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Names as in Flink. In the formats of Confluent's serializers, the number of the schema comes
#: before the value.
Format: TypeAlias = Literal[
    "bytes",
    "text",
    "json",
    "json-confluent",
    "avro",
    "avro-confluent",
    "protobuf",
    "protobuf-confluent",
]
#: What a value that cannot be decoded does.
OnError: TypeAlias = Literal["fail", "null"]
#: Where the first start begins: offsets are by topic and partition (-2: earliest, -1: latest).
Start: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]

_FORMATS: tuple[str, ...] = get_args(Format)
_MODES = {"fail": "FAILFAST", "null": "PERMISSIVE"}
#: A zero, and the four bytes of the schema's number. Protobuf adds which message of the schema it
#: is: a zero for the first.
_FRAMES = {"json": 5, "avro": 5, "protobuf": 6}
#: The option that names the group to which the offsets of checkpoints are committed.
GROUP = "weir.kafka.group"


class KafkaSource:
    """Makes the streaming DataFrame of some topics."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        format: str,
        schema: str | StructType | None,
        descriptor: str | None,
        on_error: str,
    ) -> None:
        #: The options of Spark's reader.
        self.options = dict(options)
        self._format, _, framing = format.partition("-")
        self._is_framed = bool(framing)
        self._schema = (
            schema if schema is None or isinstance(schema, str) else schema.simpleString()
        )
        self._descriptor = descriptor
        self._mode = _MODES[on_error]

    def __repr__(self) -> str:
        topics = self.options.get("subscribe") or self.options["subscribePattern"]
        return f"kafka({self.options['kafka.bootstrap.servers']!r}, {topics!r})"

    @property
    def artifacts(self) -> tuple[str, ...]:
        """What it needs of Spark, besides the connector: names of artifacts."""
        return (f"spark-{self._format}",) if self._format in ("avro", "protobuf") else ()

    def __call__(self, spark: SparkSession) -> DataFrame:
        """Read the topics."""
        frame = spark.readStream.format("kafka").options(**self.options).load()
        if self._format == "bytes":
            return frame
        decoded = {"value": f"{self._decoded()} AS value"}
        return frame.selectExpr(*(decoded.get(name, f"`{name}`") for name in frame.columns))

    def _decoded(self) -> str:
        """The value as an expression of Spark's SQL."""
        value = self._unframed() if self._is_framed else "value"
        schema = _quoted(self._schema or "")
        mode = f"map('mode', '{self._mode}')"
        if self._format == "text":
            return "CAST(value AS STRING)"
        if self._format == "json":
            return f"from_json(CAST({value} AS STRING), {schema}, {mode})"
        if self._format == "avro":
            return f"from_avro({value}, {schema}, {mode})"
        return f"from_protobuf({value}, {schema}, {_quoted(self._descriptor or '')}, {mode})"

    def _unframed(self) -> str:
        """The value without what Confluent writes before it.

        A null value is a deletion. Cut off unseen, the bytes of another format would be decoded to
        wrong values.
        """
        length = _FRAMES[self._format]
        zeros = ["substring(value, 1, 1) = X'00'"]
        if length > _FRAMES["json"]:
            zeros.append(f"substring(value, {length}, 1) = X'00'")
        return (
            f"CASE WHEN value IS NULL THEN NULL WHEN {' AND '.join(zeros)} AND length(value) >="
            f" {length} THEN substring(value, {length + 1}) ELSE raise_error('A value does not"
            " begin as those of Confluent do, or is not the first message of its schema.') END"
        )


def _quoted(text: str) -> str:
    """A text as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def kafka(
    topics: str | Sequence[str] | None = None,
    *,
    servers: str,
    pattern: str | None = None,
    start: Start = "earliest",
    value: Format = "bytes",
    schema: str | StructType | None = None,
    descriptor: str | None = None,
    on_error: OnError = "fail",
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    max_offsets_per_batch: int | None = None,
    headers: bool = False,
    group: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> KafkaSource:
    """Read topics of Kafka with Spark's connector: pass the result to ``Job.source``.

    Args:
        topics: A topic or several; or ``pattern``, a Java regular expression of their names.
        servers: Kafka's ``bootstrap.servers``, ``host:port`` with commas between them.
        start: Where the first start begins; a job that is restored goes on at its checkpoint. A
            time: at the first rows from then on, or at the newest if there are none.
        value: The format of the values. ``bytes`` leaves all columns as Spark has them; of the
            others, the column ``value`` is text or a struct. ``avro-confluent`` and so on cut off
            what Confluent's serializers write before the value.
        schema: Of JSON as Spark writes it (``"id long"``), of Avro as JSON, of Protobuf the name of
            the message, which ``descriptor`` has: a file made by ``protoc --descriptor_set_out``.
        on_error: A value that cannot be decoded fails the job, or is null.
        isolation: ``read_uncommitted`` also reads what is aborted later.
        max_offsets_per_batch: Bounds a batch, and so how long a checkpoint waits for it.
        headers: Whether the rows have the column ``headers``.
        group: A consumer group without members: gets the offsets of each completed checkpoint, for
            tools that watch the lag. Weir itself never reads them.
        conf: Settings of Kafka's clients, without the prefix ``kafka.``.

    Raises ``PipelineError`` for arguments that contradict each other.
    """
    if (topics is None) == (pattern is None):
        raise PipelineError("kafka() needs topics, or a pattern of their names, and not both.")
    if value not in _FORMATS:
        raise PipelineError(
            f"kafka() has value={value!r}: use one of {', '.join(map(repr, _FORMATS))}."
        )
    is_plain = value in ("bytes", "text")
    if is_plain != (schema is None) or value.startswith("protobuf") != (descriptor is not None):
        raise PipelineError(
            f"kafka() has value={value!r}: 'bytes' and 'text' have no schema, every other format"
            " needs one, and Protobuf a descriptor too."
        )
    options: dict[str, Any] = {f"kafka.{key}": text for key, text in (conf or {}).items()}
    options |= {"kafka.bootstrap.servers": servers, "kafka.isolation.level": isolation}
    if topics is not None:
        options["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    else:
        options["subscribePattern"] = pattern
    if isinstance(start, datetime):
        options["startingTimestamp"] = int(start.timestamp() * 1000)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    else:
        options["startingOffsets"] = start if isinstance(start, str) else json.dumps(start)
    if max_offsets_per_batch is not None:
        options["maxOffsetsPerTrigger"] = max_offsets_per_batch
    if headers:
        options["includeHeaders"] = "true"
    if group is not None:
        options[GROUP] = group
    return KafkaSource(
        {key: str(text) for key, text in options.items()},
        format=value,
        schema=schema,
        descriptor=descriptor,
        on_error=on_error,
    )
