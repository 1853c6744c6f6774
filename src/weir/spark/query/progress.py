"""What Spark reports of a query's newest batch: rows, watermark, and how its tasks were loaded."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from weir.core.types import Counted
from weir.runtime.ports import RowsOf, StateView, SubtaskView
from weir.spark.control_input import CONTROL_INPUT
from weir.storage.records import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How many of a stage's Spark tasks are shown.
MAX_SUBTASKS = 512


class StateProgress(msgspec.Struct, frozen=True, rename="camel"):
    """One stateful operator in a batch."""

    operator_name: str = ""
    num_rows_total: int = 0
    memory_used_bytes: int = 0
    num_rows_dropped_by_watermark: int = 0


class SourceProgress(msgspec.Struct, frozen=True, rename="camel"):
    """One source in a batch. Each source has its own form of offsets."""

    description: str = ""
    num_input_rows: int = 0
    end_offset: Any = None
    #: The newest offset when the batch was planned; None if the source does not report it.
    latest_offset: Any = None

    @property
    def lags(self) -> dict[str, dict[str, int]] | None:
        """Records that the source had beyond the batch, by topic and partition.

        None unless its offsets number the records of each partition of each topic, as Kafka's do.
        """
        try:
            end = msgspec.convert(self.end_offset, dict[str, dict[str, int]])
            latest = msgspec.convert(self.latest_offset, dict[str, dict[str, int]])
        except msgspec.ValidationError:
            return None
        partitions = {topic: set(offsets) for topic, offsets in end.items()}
        if not partitions or partitions != {
            topic: set(offsets) for topic, offsets in latest.items()
        }:
            return None
        # A topic that was deleted and made again begins at 0.
        return {
            topic: {
                partition: max(0, newest - end[topic][partition])
                for partition, newest in offsets.items()
            }
            for topic, offsets in latest.items()
        }


class BatchProgress(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of Spark's ``StreamingQueryProgress`` that Weir reads."""

    batch_id: int
    processed_rows_per_second: float = 0.0
    event_time: dict[str, str] = {}
    state_operators: tuple[StateProgress, ...] = ()
    sources: tuple[SourceProgress, ...] = ()

    @property
    def state(self) -> tuple[StateView, ...]:
        """What the stateful operators hold after the batch."""
        return tuple(
            StateView(
                name=operator.operator_name,
                rows=operator.num_rows_total,
                size=operator.memory_used_bytes,
            )
            for operator in self.state_operators
        )

    @property
    def late(self) -> Counter[RowsOf]:
        """Rows that the stateful operators have dropped as late in the batch."""
        return Counter(
            {
                RowsOf(
                    Counted.LATE, f"{number} {one.operator_name}"
                ): one.num_rows_dropped_by_watermark
                for number, one in enumerate(self.state_operators)
            }
        )

    @property
    def lags(self) -> dict[str, dict[str, int]] | None:
        """Records that wait in the sources that say so, by topic and partition; None if none does.

        A topic that several sources read counts once for each.
        """
        known = [lags for source in self.sources if (lags := source.lags) is not None]
        summed: dict[str, Counter[str]] = defaultdict(Counter)
        for topic, partitions in (item for lags in known for item in lags.items()):
            summed[topic].update(partitions)
        return {topic: dict(lags) for topic, lags in summed.items()} if known else None

    @property
    def rows_read(self) -> int:
        """Rows that the batch has read, without those of Weir's own input, which are watermarks."""
        # Spark puts the number of a column behind the name.
        return sum(
            source.num_input_rows
            for source in self.sources
            if source.description.partition("#")[0] != CONTROL_INPUT
        )

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that the batch ran with.

        None if the query has none yet, or Python has no date for it: one row with a time in
        microseconds instead of milliseconds takes it beyond the year 9999.
        """
        text = self.event_time.get("watermark")
        if text is None:
            return None
        try:
            reached = int(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            return None
        return reached if reached > 0 else None


def decoded(progress: Any) -> BatchProgress:
    """A progress object of the JVM, fetched in one call."""
    prepare(BatchProgress)
    return msgspec.json.decode(str(progress.json()), type=BatchProgress)


def newest_subtasks(session: SparkSession, run_id: str) -> tuple[SubtaskView, ...]:
    """The Spark tasks of the longest stage of the query's newest batch, by partition.

    ``run_id`` is the query's, which groups its Spark jobs. Empty if Spark knows none. Several calls
    of the JVM: for people who look, not for every batch.
    """
    context = session.sparkContext
    status = context.statusTracker()
    store = context._jsc.sc().statusStore()
    jobs = sorted(status.getJobIdsForGroup(run_id))[-3:]
    longest: list[SubtaskView] = []
    for job in jobs:
        info = status.getJobInfo(job)
        for stage in () if info is None else info.stageIds:
            found = _tasks_of(store, stage)
            if sum(task.duration_ms for task in found) > sum(task.duration_ms for task in longest):
                longest = found
    return tuple(sorted(longest, key=lambda task: task.index))


def _tasks_of(store: Any, stage: int) -> list[SubtaskView]:
    try:
        attempt = store.lastStageAttempt(stage)
    except Exception:
        # Spark has forgotten the stage, or skipped it.
        return []
    tasks = store.taskList(stage, attempt.attemptId(), MAX_SUBTASKS)
    return [_subtask(tasks.apply(number), stage) for number in range(tasks.size())]


def _subtask(task: Any, stage: int) -> SubtaskView:
    duration, metrics = task.duration(), task.taskMetrics()
    rows = size = 0
    if metrics.isDefined():
        figures = metrics.get()
        shuffle = figures.shuffleReadMetrics()
        rows = int(figures.inputMetrics().recordsRead()) + int(shuffle.recordsRead())
        size = int(shuffle.localBytesRead()) + int(shuffle.remoteBytesRead())
        size += int(figures.inputMetrics().bytesRead())
    return SubtaskView(
        stage=stage,
        index=int(task.index()),
        host=str(task.host()),
        status=str(task.status()),
        duration_ms=int(duration.get()) if duration.isDefined() else 0,
        rows=rows,
        size=size,
    )
