"""``Operator``: Python code in the stream, with state and events (MISSION B7, C).

An operator runs in Spark's Python workers, as so many subtasks as its parallelism says. Each batch
of the query is handed to it as Arrow record batches. Spark may run the next batch of a subtask in
another process: what must not be lost belongs into state, which is handed over behind each batch
(``snapshot_state``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from weir.core.types import OperatorId, Payload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from weir.operators.state import StateStore

    Batches = Iterable[pa.RecordBatch] | None
    PandasFrames = Iterable[pd.DataFrame] | None

#: Into how many groups keys are divided. Fixed in the first batch of a job: a checkpoint has its
#: state by group.
KEY_GROUPS = 128


class OperatorContext(Protocol):
    """Where a subtask runs."""

    @property
    def operator_id(self) -> OperatorId:
        """The step's uid, or its name."""
        ...

    @property
    def subtask(self) -> int:
        """Which of the subtasks it is, from 0 on."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        ...

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of what goes downstream, as Arrow has it."""
        ...

    def send_event_to_coordinator(self, event: Payload) -> None:
        """Send an event, JSON values, to the operator's coordinator, which handles each exactly
        once in the history that counts, after the batch is complete."""
        ...

    def end_input(self) -> None:
        """Of a reader of a bounded source: nothing is left for this subtask to read. Once all
        subtasks have said so in this attempt, in whichever batches, the records end."""
        ...


class Operator:
    """Derive an operator from it, and hand an instance to ``Stream.process``. It travels to Spark's
    workers, so what it has been given must be of a kind that can (no open files, no locks): open
    such things in ``open``.

    The calls of one batch, in order: ``handle_operator_event`` for each event, ``process_batch``
    for each Arrow batch, then ``end_batch``, at the end of the input ``end_input`` and ``finish``,
    before a barrier ``prepare_snapshot_pre_barrier``, then ``snapshot_state``. Whatever a call
    returns or yields goes downstream.
    """

    #: The schema of what goes downstream, as Spark's DDL text; None: as what comes in. What is put
    #: out must have these columns, by name, and values that fit their types: else the job fails for
    #: good, and says which column it was.
    output_schema: str | None = None

    @property
    def prepares_for_barriers(self) -> bool:
        """Whether it has a ``prepare_snapshot_pre_barrier``: each checkpoint then has a batch
        before its barrier."""
        return type(self).prepare_snapshot_pre_barrier is not Operator.prepare_snapshot_pre_barrier

    def open(self, context: OperatorContext) -> None:
        """A process begins to run this subtask. Keep the context if it is needed later."""
        self.context = context

    def initialize_state(self, state: StateStore) -> None:
        """After ``open``: ask for the states, which have what was kept last."""

    def handle_operator_event(self, event: Payload) -> None:
        """An event of the coordinator's, before the records of the batch."""

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")

    def end_batch(self) -> Batches:
        """Once in every batch, behind its records, also if it has none."""

    def end_input(self) -> Batches:
        """No record comes any more: the input has ended, or the job is drained."""

    def finish(self) -> Batches:
        """After ``end_input``: put out what is held back."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Batches:
        """Before the snapshot of a checkpoint: what goes downstream now is still before its barrier
        (PROTOCOL P6). Called in a batch of its own, which is forced for each checkpoint if an
        operator has this method. An exception fails the job."""

    def snapshot_state(self, state: StateStore) -> None:
        """Bring the states up to date: behind every batch, since a checkpoint may follow it, and
        another process the next. ``state.checkpoint_id`` is set in a batch that prepares for a
        barrier: then an exception fails the checkpoint, else the job."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable. Told with the next batch, if there is one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will never complete, whether its barrier had come or not. Told with the next
        batch, if there is one."""

    def close(self) -> None:
        """The process ends its work for this subtask. Not called if it is killed."""


class PandasOperator(Operator):
    """An operator that is given pandas DataFrames."""

    def process_frame(self, frame: pd.DataFrame) -> PandasFrames:
        """Process some records."""
        raise NotImplementedError(f"{type(self).__name__} has no process_frame")

    def process_batch(self, batch: pa.RecordBatch) -> Batches:
        """The batch as a DataFrame."""
        import pyarrow as pa

        from weir.operators.output import to_pandas

        frames = self.process_frame(to_pandas(batch)) or ()
        return [
            one
            for frame in frames
            for one in pa.Table.from_pandas(frame, preserve_index=False).to_batches()
        ]


class ListCheckpointed:
    """A shorter way to list state: an ``Operator`` that is also one of these needs neither
    ``initialize_state`` nor ``snapshot_state``."""

    def snapshot_list(self, checkpoint_id: int | None) -> list[Any] | None:
        """The elements to keep, JSON values; None stands for no elements (PROTOCOL P43)."""
        raise NotImplementedError(f"{type(self).__name__} has no snapshot_list")

    def restore_list(self, elements: list[Any]) -> None:
        """The elements that were kept, dealt out anew if the parallelism has changed."""
        raise NotImplementedError(f"{type(self).__name__} has no restore_list")
