"""``TaskEnding``: how a task ends: its records, its operators, its final checkpoint (MISSION E).

The records of a task without channels end when its readers report the end of their input, or when
the job is stopped; those of a task with channels end when the records of all channels have ended
(PROTOCOL P28). What follows depends on how they ended::

    finished   ENDED, the drain runs (windows and timers fire), DRAINED, final checkpoint, commit,
               close
    stopped    STOPPED (windows and timers stay in the state), savepoint, commit, close

The final checkpoint is the first completed checkpoint that covers all of the task's output (P29). A
task that needs none (P36) is done after its drain. Operators are closed once, after everything
else.

A task that reads what is available now does not end by itself: its records go on, and it rests
until the job is stopped.

A natural end wins over a stop without a drain: if the input is used up when the stop arrives, the
task drains, as it would have a moment later, and its savepoint says finished.

A task that has ended takes part in checkpoints until its consumers have read everything. Otherwise
a task that only waits for its consumers would decline every checkpoint, and a stop would fail the
job over.
"""

from __future__ import annotations

from weir.core.status import OperatorStatus, Records, next_operator_status
from weir.core.task.input_gate import InputGate
from weir.core.types import SnapshotKind
from weir.errors import invariant


class TaskEnding:
    """The progress of one task towards its end. ``gate`` is only read."""

    def __init__(
        self, gate: InputGate, *, requires_final_checkpoint: bool, available_now: bool
    ) -> None:
        self._gate = gate
        self._requires_final_checkpoint = requires_final_checkpoint
        self._available_now = available_now
        self.records = Records.FLOWING
        self.operators = OperatorStatus.RUNNING
        #: The readers have reported the end of their input.
        self._input_ended = False
        #: The stop's snapshot, if the coordinator triggered this task for it.
        self._stop_trigger: int | None = None
        self._stop_kind = SnapshotKind.SYNC_SAVEPOINT
        #: The completed checkpoint whose commit lets the task finish (PROTOCOL P29).
        self._final: int | None = None
        self._final_committed = False
        #: The task takes no more triggers and finishes as soon as nothing is in progress.
        self.closing = False
        #: After the last records, the query was asked once whether their watermark releases rows.
        self.asked_again = False
        #: ``CloseOperators`` was emitted.
        self.closing_operators = False

    @property
    def stops_with(self) -> int | None:
        """The snapshot with which the job stops; None as long as the task knows of no stop."""
        return self._stop_trigger if self._stop_trigger is not None else self._gate.stops_with

    @property
    def stop_kind(self) -> SnapshotKind:
        """What the job stops with, if the task knows of a stop."""
        return self._stop_kind if self._stop_trigger is not None else self._gate.stop_kind

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether a checkpoint must follow the end of the records; after a stop, always (P36)."""
        return self._requires_final_checkpoint or self.stops_with is not None

    @property
    def is_done(self) -> bool:
        """Whether the task waits only for its consumers; before, it takes part in checkpoints."""
        if self._final_committed:
            return True
        return self.records is Records.DRAINED and not self.waits_for_checkpoint

    @property
    def input_end(self) -> Records | None:
        """How the input has ended: ENDED if it is exhausted, STOPPED if not; None if it goes on."""
        if self._input_ended and not self._available_now:
            return Records.ENDED
        if not self._gate.records_ended:
            return None
        return Records.ENDED if self._gate.all_finished else Records.STOPPED

    @property
    def has_caught_up(self) -> bool:
        """Whether the task has read what was available, as far as is known."""
        return self._input_ended and self._available_now

    def input_ended(self) -> None:
        """The readers report that nothing is left to read after the running batch."""
        self._input_ended = True

    def triggered_to_stop(self, checkpoint_id: int, kind: SnapshotKind) -> None:
        """The coordinator triggered the snapshot with which the job stops."""
        self._stop_trigger, self._stop_kind = checkpoint_id, kind

    def drained(self) -> None:
        """The drain is complete: the operators have finished."""
        self.records = Records.DRAINED
        self._move_operators(OperatorStatus.FINISHED)

    def checkpoint_completed(self, checkpoint_id: int, *, is_final: bool) -> None:
        """A checkpoint completed; ``is_final``: it covers everything the task will ever emit."""
        if self._final is None and is_final:
            self._final = checkpoint_id

    def committed(self, checkpoint_id: int) -> None:
        """The sinks have committed this epoch."""
        self._final_committed |= self._final == checkpoint_id

    def operators_closed(self) -> None:
        """``close`` of every operator is done."""
        self._move_operators(OperatorStatus.CLOSED)

    def failed(self) -> None:
        """The task failed before its operators were closed."""
        self._move_operators(OperatorStatus.FAILED)

    def validate(self, vertex: str, *, ended: bool, waits: bool) -> None:
        """Check the laws of the fields; raises ``InvariantError``.

        ``ended``: the task ended. ``waits``: it waits for its final checkpoint.
        """
        finished = self.operators is OperatorStatus.FINISHED
        invariant(
            finished == (self.records is Records.DRAINED) or ended or self.closing,
            f"operators of {vertex} are {self.operators.name} while its records are"
            f" {self.records.name}",
        )
        due = self.records is Records.DRAINED and self.waits_for_checkpoint
        invariant(
            not waits or self.records is Records.STOPPED or due,
            f"{vertex} waits for a final checkpoint that it does not need yet",
        )

    def _move_operators(self, status: OperatorStatus) -> None:
        self.operators = next_operator_status(self.operators, status)
