"""``Operator``: Python code in the stream, with state and events (MISSION B7, C).

An operator runs in Spark's Python workers, with one subtask per unit of parallelism. It gets each
batch of the query as Arrow record batches. Spark may run a subtask's next batch in another process,
so data that must survive belongs in state, which is handed over after each batch
(``snapshot_state``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from weir.core.types import OperatorId, Payload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from weir.operators.state import StateStore

    Batches = Iterable[pa.RecordBatch] | None
    PandasFrames = Iterable[pd.DataFrame] | None

#: The number of key groups. Fixed with a job's first batch, since checkpoints hold state by group.
KEY_GROUPS = 128


class OperatorContext(Protocol):
    """The environment of a subtask."""

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

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the output."""
        ...

    def send_event_to_coordinator(self, event: Payload) -> None:
        """Send an event, a map of JSON values, to the operator's coordinator.

        The coordinator handles it after the batch is complete, with exactly-once effect on its
        state.
        """
        ...

    def end_input(self) -> None:
        """For a reader of a bounded source: this subtask has nothing left to read.

        Once all subtasks have called this in the attempt, in any batches, the records end.
        """
        ...


class Operator:
    """Base class of operators; pass an instance to ``Stream.process``.

    The instance is pickled to Spark's workers, so its attributes must be picklable (no open files,
    no locks): acquire such resources in ``open``.

    The calls of one batch, in order: ``handle_operator_event`` for each event, ``process_batch``
    for each Arrow batch, then ``end_batch``; at the end of the input ``end_input`` and ``finish``;
    before a barrier ``prepare_snapshot_pre_barrier``; then ``snapshot_state``. Batches that a call
    returns or yields go downstream.
    """

    #: The schema of the output, as a Spark ``StructType`` or DDL; None: the same as the input.
    #: Output must have these columns, by name, with values that fit their types: otherwise the job
    #: fails for good, and the error names the column.
    output_schema: str | StructType | None = None

    @property
    def prepares_for_barriers(self) -> bool:
        """Whether it overrides ``prepare_snapshot_pre_barrier``.

        If so, each checkpoint has a batch before its barrier.
        """
        return type(self).prepare_snapshot_pre_barrier is not Operator.prepare_snapshot_pre_barrier

    def open(self, context: OperatorContext) -> None:
        """A process starts to run this subtask. An override must keep the context if needed."""
        self.context = context

    def initialize_state(self, state: StateStore) -> None:
        """Called after ``open``: get the states, which hold the values of the last snapshot."""

    def handle_operator_event(self, event: Payload) -> None:
        """Handle an event from the coordinator, before the records of the batch."""

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")

    def end_batch(self) -> Batches:
        """Called once per batch after its records, even if it has none."""

    def end_input(self) -> Batches:
        """No more records will come: the input has ended, or the job is drained."""

    def finish(self) -> Batches:
        """Called after ``end_input``: emit everything that was held back."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Batches:
        """Emit rows before a checkpoint's barrier (PROTOCOL P6).

        Called in a batch of its own, which is forced for each checkpoint if any operator overrides
        this method. An exception fails the job.
        """

    def snapshot_state(self, state: StateStore) -> None:
        """Bring the states up to date.

        Called after every batch, since a checkpoint may follow it, and the next batch may run in
        another process. ``state.checkpoint_id`` is set in a batch that prepares for a barrier: then
        an exception fails the checkpoint, otherwise the job.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable. Called with the next batch, if there is one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will never complete, whether or not its barrier had arrived.

        Called with the next batch, if there is one.
        """

    def close(self) -> None:
        """The process stops running this subtask. Not called if the process is killed."""


class PandasOperator(Operator):
    """An operator that processes pandas DataFrames."""

    def process_frame(self, frame: pd.DataFrame) -> PandasFrames:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_frame")

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """Pass the batch to ``process_frame`` as a DataFrame."""
        import pyarrow as pa

        from weir.operators.output import to_pandas

        frames = self.process_frame(to_pandas(batch)) or ()
        return [
            one
            for frame in frames
            for one in pa.Table.from_pandas(frame, preserve_index=False).to_batches()
        ]


class ListCheckpointed:
    """A mix-in for operators whose only state is one list.

    An ``Operator`` with it needs neither ``initialize_state`` nor ``snapshot_state``.
    """

    def snapshot_list(self, checkpoint_id: int | None) -> list[Any] | None:
        """Return the elements to keep, JSON values; None means no elements (PROTOCOL P43)."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshot_list")

    def restore_list(self, elements: list[Any]) -> None:
        """Take the kept elements, redistributed if the parallelism has changed."""
        raise NotImplementedError(f"{type(self).__name__} has no restore_list")
