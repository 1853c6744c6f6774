"""``TaskEnding``: how a task comes to its end: its records, its operators, its final checkpoint
(MISSION E).

A task without channels ends its records when its readers say so, or when the job is stopped; one
with channels when the records of all of them have ended (PROTOCOL P28). What follows depends on how
they ended::

    finished   ENDED, the drain runs (windows and timers fire), DRAINED, final checkpoint, commit, close
    stopped    STOPPED (windows and timers stay in the state), savepoint, commit, close

The final checkpoint is the first completed one that covers all of the task's output (P29). A task
that needs none (P36) is done with its drain. Operators are closed once, after everything else.
"""

from __future__ import annotations

from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.status import OperatorStatus, Records, next_operator_status
from weir.core.task.input_gate import InputGate
from weir.errors import invariant


class TaskEnding:
    """Where one task stands on the way to its end. ``gate`` is read only."""

    def __init__(self, gate: InputGate, *, requires_final_checkpoint: bool) -> None:
        self._gate = gate
        self._requires_final_checkpoint = requires_final_checkpoint
        self.records = Records.FLOWING
        self.operators = OperatorStatus.RUNNING
        #: The readers have said that nothing is left to be read.
        self._input_ended = False
        #: The savepoint of a stop for which the coordinator triggered the task itself.
        self._stop_trigger: int | None = None
        #: The completed checkpoint after whose commit the task is finished (PROTOCOL P29).
        self._final: int | None = None
        self._final_committed = False
        #: The task takes no trigger any more and is finished as soon as nothing is under way.
        self.closing = False
        #: ``CloseOperators`` is under way, or done.
        self.closing_operators = False

    @property
    def stops_with(self) -> int | None:
        """The savepoint with which the job stops, as far as the task knows; None if it does not."""
        return self._stop_trigger if self._stop_trigger is not None else self._gate.stops_with

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether a checkpoint follows the end of the records: after a stop one always does
        (P36)."""
        return self._requires_final_checkpoint or self.stops_with is not None

    @property
    def is_done(self) -> bool:
        """Whether only the consumers are left to wait for; until then the task takes part in
        checkpoints."""
        if self._final_committed:
            return True
        return self.records is Records.DRAINED and not self.waits_for_checkpoint

    def input_ended(self) -> None:
        """The readers say that with the running step the records end."""
        self._input_ended = True

    def triggered_to_stop(self, checkpoint_id: int) -> None:
        """The coordinator triggered the savepoint with which the job stops."""
        self._stop_trigger = checkpoint_id

    def how_records_end(self, first: TriggerCheckpoint | None, *, prepares: bool) -> bool | None:
        """Whether the records end now, with ``first`` the trigger that waits (MISSION E2): True,
        with a drain; False, without one; None, not yet. ``prepares``: operators emit rows before a
        barrier."""
        if self._input_ended:
            return True
        if self._gate.channels:
            if not self._gate.records_ended:
                return None
            finished = self._gate.all_finished
            # What operators emit before the barrier comes before the end of the records (P6, P28).
            waits_for_barrier = not finished and first is None and prepares
            return None if waits_for_barrier else finished
        if first is not None and first.kind.is_synchronous:
            return first.drain
        return None

    def drains_with(self, trigger: TriggerCheckpoint) -> bool:
        """Whether it is the savepoint of a stop that drains: what operators still emit comes with
        the drain."""
        channels_end = self._gate.records_ended and self._gate.all_finished
        ends = trigger.drain or self._input_ended or channels_end
        return trigger.kind.is_synchronous and ends

    def drains_before(self, trigger: TriggerCheckpoint) -> bool:
        """Whether the drain comes first: a savepoint that ends the job has everything its windows
        emit."""
        return trigger.kind.is_synchronous and self.records in (Records.ENDED, Records.DRAINING)

    def drained(self) -> None:
        """The drain is over: the operators have finished."""
        self.records = Records.DRAINED
        self._move_operators(OperatorStatus.FINISHED)

    def checkpoint_completed(self, checkpoint_id: int, *, is_final: bool) -> None:
        """A checkpoint of this task completed; ``is_final``: it covers all that the task will
        emit."""
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

    def validate(self, vertex: str, *, ended: bool) -> None:
        """Check the laws of the fields; raises ``InvariantError``. ``ended``: the task has."""
        finished = self.operators is OperatorStatus.FINISHED
        invariant(
            finished == (self.records is Records.DRAINED) or ended or self.closing,
            f"the operators of {vertex} are {self.operators.name}, its records {self.records.name}",
        )

    def _move_operators(self, status: OperatorStatus) -> None:
        self.operators = next_operator_status(self.operators, status)
