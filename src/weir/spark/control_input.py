"""The control input, a tiny source that Weir adds to every query, and its planning calls.

**Planning calls** (``PlanningRounds``). Before each batch Spark asks every source of a query once
for its latest offset, in no guaranteed order. The first of Weir's sources asked in a *round* passes
the question to the driver and waits; the others use the same answer. So all of them agree, whatever
the order: a query that reads channels reads exactly what the answer admits (PROTOCOL P7). A source
that is asked again starts the next round.

While the call waits the query rests. Spark does not interrupt it, so stopping the query includes
releasing the call: first ``query.stop()`` on a thread of its own; then, once the query is no longer
active and Spark takes an interruption for its own, ``release`` (``weir/spark/query/runs.py``). A
released call raises: if it returned, Spark would go on planning and run a batch without data if a
watermark has moved.

**The control input** (``ControlInput``). A streaming query is a loop: ask each source for its
latest offset, run a batch, commit it, repeat. The driver implements this source itself
(``spark/java.py``), so Spark's question arrives as a method call, and the query rests until the
call returns. Meanwhile no batch runs and the query's directory does not change: this is when
checkpoints are taken.

In a query that reads sources it yields no rows and comes before the first source in a union. It
carries that source's column metadata, since ``Union`` keeps its first child's (PROTOCOL P26). In a
query that reads channels (``weir/spark/channels.py``) its rows are (watermark, channel), and only
they advance the query's watermark (P25):

1. The driver's answer to a planning call carries the watermark of each channel. Watermarks that
   have risen go into the offset, so a batch that Spark replays has the same watermarks.
2. The batch gets a row for each channel whose watermark rose. It takes effect in the next batch, as
   it would if producer and consumer were one query. The reader of Spark's rate source makes the
   rows, so no Python worker is involved.
3. The first batch of a run gets a row for every channel: a restarted query knows its own watermark,
   but counts each branch as 0 until the branch gets its watermark again. If nothing else calls for
   that batch, the offset moves to force it: windows and timers that were due at the stop fire only
   once a batch has run.

One object is Spark's table, scan and stream at once. A py4j proxy has no default methods, so every
method of these interfaces is defined here. Method names are Java's.

Nothing but watermarks moves the control input's offset: a barrier is a point in the driver's order
of events, and a drain does not plan.

It is a source of Spark's second interface (V2), since bounded queries can end with such a source.
As an object of the driver it answers a planning call in 0.3 ms, and the query needs no Python
process. The price is that it depends on Spark's internal classes, as channels do:
``tests/spark/test_channel_input.py`` and ``tests/spark/test_spark_facts.py`` (slow) fail by name
where a release of Spark differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from weir.spark.java import JavaStream, Jvm
from weir.spark.offsets import ControlOffset
from weir.spark.releases import source_relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class QueryInterruptedError(Exception):
    """The query was stopped. By its text, Spark takes it for an interruption of its own."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1.stop.\n:"
            " java.lang.InterruptedException"
        )


@dataclass(frozen=True, kw_only=True)
class PlanningAnswer:
    """What the next batch may do."""

    #: The watermarks of the query's channels in milliseconds, by channel number.
    watermarks_ms: Mapping[int, int] = field(default_factory=dict)
    #: Run a batch even without rows.
    force: bool = False


class PlanningRounds:
    """Lets one query wait for the driver, once for each batch."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """``ask`` notifies the driver; ``reply`` answers it, perhaps before ``ask`` returns."""
        self._ask = ask
        self._changed = threading.Condition()
        #: The sources asked in this round, and the round's answer.
        self._asked: set[int] = set()
        self._answer = PlanningAnswer()
        #: The answer to the waiting call; None until it arrives.
        self._reply: PlanningAnswer | None = None
        self._released = False

    def start_run(self) -> None:
        """Prepare for a start of the query."""
        with self._changed:
            self._asked.clear()
            self._released = False

    def answer(self, source: object) -> PlanningAnswer:
        """The round's answer for a source. Called on the query's own thread; may block for long.

        Raises ``QueryInterruptedError`` if the query is being stopped.
        """
        if not self._asked or id(source) in self._asked:
            self._asked = {id(source)}
            self._answer = self._wait()
        self._asked.add(id(source))
        return self._answer

    def reply(self, answer: PlanningAnswer) -> None:
        """Answer the waiting call."""
        with self._changed:
            self._reply = answer
            self._changed.notify_all()

    def release(self) -> None:
        """End the waiting call and any later one: the query is no longer active."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def _wait(self) -> PlanningAnswer:
        with self._changed:
            self._reply = None
            released = self._released
        if not released:
            self._ask()
        with self._changed:
            self._changed.wait_for(lambda: self._reply is not None or self._released)
            if self._reply is None or self._released:
                raise QueryInterruptedError
            return self._reply


#: The name by which Spark shows it.
CONTROL_INPUT = "weir-control-input"

#: The schema of the control input in a query that reads channels: that of Spark's rate source.
CHANNEL_SCHEMA = StructType(
    [StructField("watermark", TimestampType()), StructField("channel", LongType())]
)

_INTERFACES = (
    "catalog.SupportsRead",
    "read.ScanBuilder",
    "read.Scan",
    "read.streaming.MicroBatchStream",
    "read.streaming.SupportsTriggerAvailableNow",
)


class ControlInput(JavaStream):
    """The control input of one query. Call ``start_run`` before each start of the query."""

    def __init__(self, jvm: Jvm, schema: StructType, rounds: PlanningRounds) -> None:
        super().__init__(jvm, CONTROL_INPUT)
        self._schema = jvm.schema(schema)
        self._rounds = rounds
        #: Start and end offset, as JSON, of the run's first batch that this source takes part in.
        self._first: tuple[str, str] | None = None

    def start_run(self) -> None:
        """Prepare for a start of the query."""
        self._first = None

    def frame(self) -> DataFrame:
        """The streaming DataFrame; one query may use it in several places."""
        jvm = self._jvm
        columns = jvm.attributes(self._schema)
        return jvm.frame(source_relation(jvm, name=self.name(), table=self.proxy, columns=columns))

    # -- the stream

    def latestOffset(self, start: Any = None, limit: Any = None) -> Any:  # noqa: N802
        """Wait until the driver lets the next batch start."""
        answer = self._rounds.answer(self)
        offset = ControlOffset.decode(str(start.json()))
        known = offset.watermarks
        risen = _risen(known, {str(channel): ms for channel, ms in answer.watermarks_ms.items()})
        starts_without = known and self._first is None
        if not risen and not starts_without and not answer.force:
            return start
        moved = ControlOffset(control=offset.control + 1, watermarks=known | risen)
        return self._jvm.offset(moved.encode())

    def planInputPartitions(self, start: Any, end: Any) -> Any:  # noqa: N802
        """One partition per row of the batch; none without rows, so that it adds no Spark task.

        Spark asks once for each branch that reads the source: the same batch, the same rows.
        """
        batch = (str(start.json()), str(end.json()))
        if self._first is None:
            self._first = batch
        before, after = (ControlOffset.decode(text).watermarks for text in batch)
        rows = _risen({} if self._first == batch else before, after)
        partition = self._jvm.sql_class(
            "execution.streaming.sources.RateStreamMicroBatchInputPartition"
        )
        return self._jvm.array(
            self._jvm.sql_class("connector.read.InputPartition"),
            [
                # Values from the channel's number up to the next: one row with this timestamp.
                partition(0, 1, int(channel), int(channel) + 1, ms, 0.0)
                for channel, ms in sorted(rows.items())
            ],
        )

    def createReaderFactory(self) -> Any:  # noqa: N802
        """The factory of readers that make the rows in the executors' JVMs."""
        name = "org.apache.spark.sql.execution.streaming.sources.RateStreamMicroBatchReaderFactory"
        return self._jvm.scala_object(name)

    def initialOffset(self) -> Any:  # noqa: N802
        """The offset before the first batch: no channel has a watermark."""
        return self._jvm.offset(ControlOffset(control=0).encode())

    # -- the table and its scan

    def newScanBuilder(self, options: Any) -> Any:  # noqa: N802
        """The scan builder: this object too."""
        return self.proxy

    def build(self) -> Any:
        """The scan."""
        return self.proxy

    def toMicroBatchStream(self, location: str) -> Any:  # noqa: N802
        """The stream."""
        return self.proxy

    def name(self) -> str:
        """The name in plans."""
        return self.toString()

    description = name

    def schema(self) -> Any:
        """The columns."""
        return self._schema

    readSchema = schema  # noqa: N815

    def columns(self) -> Any:
        """The columns, as a table has them."""
        return self._jvm.sql_class("connector.catalog.CatalogV2Util").structTypeToV2Columns(
            self._schema
        )

    def capabilities(self) -> Any:
        """The table supports only micro-batch reads."""
        found = self._jvm.java_class("java.util.HashSet")()
        found.add(self._jvm.sql_class("connector.catalog.TableCapability").MICRO_BATCH_READ)
        return found

    def properties(self) -> Any:
        """None."""
        return self._jvm.java_class("java.util.HashMap")()

    def partitioning(self) -> Any:
        """None."""
        return self._jvm.array(self._jvm.sql_class("connector.expressions.Transform"), [])

    def constraints(self) -> Any:
        """None."""
        return self._jvm.array(self._jvm.sql_class("connector.catalog.constraints.Constraint"), [])

    def supportedCustomMetrics(self) -> Any:  # noqa: N802
        """None."""
        return self._jvm.array(self._jvm.sql_class("connector.metric.CustomMetric"), [])

    def reportDriverMetrics(self) -> Any:  # noqa: N802
        """None."""
        return self._jvm.array(self._jvm.sql_class("connector.metric.CustomTaskMetric"), [])

    def columnarSupportMode(self) -> Any:  # noqa: N802
        """Rows, not columnar batches."""
        return self._jvm.sql_class("connector.read.Scan$ColumnarSupportMode").UNSUPPORTED

    def id(self) -> None:
        """None."""

    version = id

    class Java:
        """The Java interfaces that the proxy implements."""

        implements = tuple(f"org.apache.spark.sql.connector.{name}" for name in _INTERFACES)


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """The watermarks of ``after`` that are new or higher."""
    return {
        channel: ms
        for channel, ms in after.items()
        if channel not in before or ms > before[channel]
    }
