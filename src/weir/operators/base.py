"""``Operator``: Python code in the stream, with state and events (MISSION B7, C).

An operator runs in Spark's Python workers, with one subtask per unit of parallelism. It gets each
batch of the query as Arrow record batches. Spark may run a subtask's next batch in another process,
so data that must survive a batch belongs in state, which the runtime hands over after each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from weir.core.types import OperatorId, Payload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from weir.operators.state.store import StateStore
    from weir.operators.state.timers import Timers

    Batches = Iterable[pa.RecordBatch] | None
    PandasFrames = Iterable[pd.DataFrame] | None


@dataclass(frozen=True, kw_only=True)
class SnapshotContext:
    """The checkpoint or savepoint for which an operator takes its snapshot."""

    checkpoint_id: int
    #: When it was triggered, in milliseconds since the epoch.
    timestamp_ms: int


class SubtaskContext(Protocol):
    """Which subtask this is."""

    @property
    def operator_id(self) -> OperatorId:
        """The step's uid, or its name."""
        ...

    @property
    def subtask(self) -> int:
        """The index of this subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        ...


class OperatorContext(SubtaskContext, Protocol):
    """The environment of a subtask."""

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the output."""
        ...

    @property
    def watermark_ms(self) -> int | None:
        """The watermark, in milliseconds since the epoch.

        None before the first watermark, and if the operator's input has no event time. In
        ``finish``, at the end of the input or of a drain, it is always ``2**63 - 1``, as in Flink.
        """
        ...

    @property
    def processing_time_ms(self) -> int:
        """The driver's clock when the batch began, in milliseconds since the epoch."""
        ...

    def output(self, tag: str, batch: pa.RecordBatch) -> None:
        """Emit rows to the side output ``tag``, in any call of a batch.

        Raises ``PipelineError`` if the operator does not declare it in ``side_outputs``, and
        ``OperatorStateError`` in ``snapshot_state``, ``open``, ``initialize_state`` or ``close``.
        """
        ...

    def send_event_to_coordinator(self, event: Payload) -> None:
        """Send an event, a map of JSON values, to the operator's coordinator.

        The coordinator handles it after the batch is complete, with exactly-once effect on its
        state.
        """
        ...


class Operator:
    """Base class of operators; pass an instance to ``Stream.process``.

    The instance is pickled to Spark's workers, so its attributes must be picklable (no open files,
    no locks): acquire such resources in ``open``.

    The calls of one batch, in order: ``notify_checkpoint_complete`` and ``_aborted`` for what ended
    since the last batch, ``handle_operator_event`` for each event, ``process_batch`` for each Arrow
    batch, ``on_timer`` for timers that are due, ``on_watermark`` if it has moved, then
    ``end_batch``; before a barrier ``prepare_snapshot_pre_barrier``. Batches that a call returns or
    yields go downstream. ``snapshot_state`` is called once for each checkpoint, between two
    batches.

    The watermark moves after the records of a batch: it is that of Spark's batch, and says that all
    older records have come. What timers emit is not late for what follows. The event time of the
    output is the column that has the name and type of the input's.

    At the end of the input, or of a job that is drained, the last batch calls ``end_input`` and
    ``finish``. Then follow ``snapshot_state`` for the final checkpoint or savepoint,
    ``notify_checkpoint_complete`` for it, and ``close`` (MISSION E). A stop without a drain omits
    the first two.

    Between two calls of a batch an operator can use its attributes as it likes, but a batch that
    changes the value of an attribute fails: only state survives. ``transient`` names the
    exceptions.
    """

    #: The schema of the output, as a Spark ``StructType`` or DDL; None: the same as the input.
    #: Output must have these columns, by name, with values that fit their types: otherwise the job
    #: fails for good, and the error names the column.
    output_schema: str | StructType | None = None

    #: The schemas of the side outputs by tag, each as ``output_schema``. ``context.output`` emits
    #: rows to a side output, and ``Stream.side_output`` is its stream.
    side_outputs: Mapping[str, str | StructType] = {}

    #: Names of attributes that may be lost between two batches, since ``open`` or the operator's
    #: methods make them again: connections, caches. Those of base classes are added.
    transient: tuple[str, ...] = ()

    #: Whether the task waits for a checkpoint after ``finish`` (MISSION E6). False if the operator
    #: neither keeps anything in that checkpoint's state nor commits with its completion.
    requires_final_checkpoint: bool = True

    def open(self, context: OperatorContext) -> None:
        """A process starts to run this subtask. An override must keep the context if needed."""
        self.context = context

    def initialize_state(self, state: StateStore) -> None:
        """Called after ``open``: get the states.

        They hold the values after the last batch or, in the first batch of an attempt, those of the
        checkpoint that it started from.
        """

    def handle_operator_event(self, event: Payload) -> None:
        """Handle an event from the coordinator, before the records of the batch."""

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> Batches:
        """Timers are due: their keys and times, as the columns ``key`` and ``time_ms``.

        ``timers`` is the object from ``state.event_timers`` or ``state.processing_timers``. Each
        key comes once in a call, so a key with two timers takes two, in the order of the times. New
        timers may be registered and states used for the keys of ``due``, as in ``process_batch``;
        a timer in the past is due at once. A batch runs as soon as a timer is due. At the end of
        the input, or of a drain, all event-time timers are due (MISSION E1).
        """

    def on_watermark(self, watermark_ms: int) -> Batches:
        """The watermark has moved, and every timer up to it has been handled.

        At the end of the input, or of a drain, it is ``2**63 - 1``, also without an event time.
        """

    def end_batch(self) -> Batches:
        """Called once per batch after its records and timers, even if there are none."""

    def end_input(self) -> Batches:
        """No more records will come: the input has ended, or the job is drained."""

    def finish(self) -> Batches:
        """Called after ``end_input``: emit everything that was held back."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Batches:
        """Emit rows before a checkpoint's barrier (PROTOCOL P6).

        Called in a batch of its own, which is forced for each checkpoint if any operator overrides
        this method. An exception fails the job.
        """

    def snapshot_state(self, context: SnapshotContext) -> None:
        """Bring the states up to date for a checkpoint or savepoint, and pre-commit what it covers.

        Called once for each, between two batches, unless Spark repeats the call after a failure of
        its own. An exception fails the checkpoint, not the job (PROTOCOL P9).
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable: what was pre-committed for it can be committed.

        Called with the next batch, which is forced for an operator that overrides this method, or
        before ``close``. After a failure the call may never come: ``initialize_state`` commits
        what was pre-committed up to ``StateStore.restored_checkpoint_id``, and nothing later, since
        it is also called when a subtask moves to another process. Of the checkpoints that complete
        between two batches, at least the newest is reported. It may come after ``snapshot_state``
        for a later checkpoint. Before ``close`` no batch follows: rows are refused there (emit them
        in ``end_batch``), and events are dropped with a warning.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will never complete, whether or not its snapshot had been taken.

        Called as ``notify_checkpoint_complete``.
        """

    def close(self) -> None:
        """The process stops running this subtask.

        Called at the end of the job, however it ends, after a call of this subtask has failed
        (``open`` and ``initialize_state`` too), and when another process has taken the subtask
        over. Not called if the process is killed.
        """


class PandasOperator(Operator):
    """An operator that processes pandas DataFrames."""

    def process_frame(self, frame: pd.DataFrame) -> PandasFrames:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_frame")

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """Pass the batch to ``process_frame`` as a DataFrame."""
        import pandas as pd
        import pyarrow as pa

        from weir.operators.output import emitted, to_pandas

        where = f"{type(self).__name__}.process_frame"
        frames = self.process_frame(to_pandas(batch))
        return [
            records
            for frame in emitted(frames, pd.DataFrame, "DataFrames", where)
            for records in pa.Table.from_pandas(frame, preserve_index=False).to_batches()
        ]


class ListCheckpointed:
    """A mix-in for operators whose only state is one list.

    An ``Operator`` with it needs neither ``initialize_state`` nor ``snapshot_state``, and its
    attributes may hold the elements.
    """

    def snapshot_list(self, context: SnapshotContext | None) -> list[Any] | None:
        """Return the elements to keep, JSON values; None means no elements (PROTOCOL P43).

        Called once for each checkpoint, and after each batch with None, since the next batch may
        run in another process. If it raises or an element cannot be stored, the list in the state
        is empty and the checkpoint fails.
        """
        raise NotImplementedError(f"{type(self).__name__} has no snapshot_list")

    def restore_list(self, elements: list[Any]) -> None:
        """Take the kept elements, redistributed if the parallelism has changed."""
        raise NotImplementedError(f"{type(self).__name__} has no restore_list")


def overrides(operator: Operator, method: str) -> bool:
    """Whether an operator has its own version of one of ``Operator``'s methods."""
    return getattr(type(operator), method) is not getattr(Operator, method)


def transient_attributes(operator: Operator) -> frozenset[str]:
    """The names in ``transient``, of the operator's class and of its bases."""
    of_bases = (vars(cls).get("transient", ()) for cls in type(operator).__mro__)
    return frozenset(operator.transient).union(*of_bases)


def takes_snapshots(operator: Operator) -> bool:
    """Whether an operator has code of its own for snapshots."""
    return isinstance(operator, ListCheckpointed) or overrides(operator, "snapshot_state")


def takes_part(operator: Operator) -> bool:
    """Whether an operator has code of its own for snapshots, or for the end of checkpoints."""
    return (
        takes_snapshots(operator)
        or overrides(operator, "notify_checkpoint_complete")
        or overrides(operator, "notify_checkpoint_aborted")
    )
