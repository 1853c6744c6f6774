"""``TaskReports``: builds a task's messages to the job master, with uniform ids and wording."""

from __future__ import annotations

from dataclasses import replace

from weir.core.messages.coordination import AcknowledgeCheckpointEvent
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    CaughtUp,
    DeclineCheckpoint,
    TaskClosing,
    TaskFailed,
    TaskStatusChanged,
)
from weir.core.messages.task import AsyncPartDone, SnapshotFailed, TaskErrored
from weir.core.task.snapshots import SnapshotPart, TaskSnapshot
from weir.core.types import Cause, Committable, OperatorState, TaskStatus, VertexId
from weir.core.types import CheckpointFailureReason as Reason


class TaskReports:
    """Builds the messages of one task in one attempt."""

    def __init__(
        self, *, vertex: VertexId, attempt: int, operators: tuple[OperatorState, ...]
    ) -> None:
        self._vertex = vertex
        self._attempt = attempt
        self._operators = operators

    def status(self, status: TaskStatus) -> TaskStatusChanged:
        """The task is now ``status``."""
        return TaskStatusChanged(vertex=self._vertex, attempt=self._attempt, status=status)

    def closes(self) -> TaskClosing:
        """The task takes no more checkpoints."""
        return TaskClosing(vertex=self._vertex, attempt=self._attempt)

    def caught_up(self) -> CaughtUp:
        """The task has read what was available."""
        return CaughtUp(vertex=self._vertex, attempt=self._attempt)

    def failed(self, message: str, *, fatal: bool, cause: Cause) -> TaskFailed:
        """The task failed; ``fatal`` if a restart cannot help."""
        return TaskFailed(
            vertex=self._vertex, attempt=self._attempt, message=message, fatal=fatal, cause=cause
        )

    def misread(self, position: int, how: str) -> TaskErrored:
        """A batch read something else than what was admitted (PROTOCOL P7)."""
        return TaskErrored(
            message=f"Batch {position} of {self._vertex!r} did not read exactly the admitted"
            f" segments: {how}"
        )

    def acknowledged(
        self, snapshot: TaskSnapshot, event: AsyncPartDone, committables: tuple[Committable, ...]
    ) -> AcknowledgeCheckpoint:
        """The snapshot is durable; its operator states carry the finished flags (PROTOCOL P43)."""
        metrics = replace(
            event.metrics,
            alignment_duration_ms=snapshot.alignment_ms,
            unaligned=bool(snapshot.effect.in_flight),
            persisted_size=sum(segment.size for segment in snapshot.effect.in_flight),
        )
        # What is only known once the plan is built, the port has added.
        known = {operator.operator_id: operator.fingerprint for operator in event.state.operators}
        operators = tuple(
            replace(
                operator,
                fully_finished=operator.fully_finished or snapshot.effect.finished,
                fingerprint=known.get(operator.operator_id) or operator.fingerprint,
            )
            for operator in self._operators
        )
        return AcknowledgeCheckpoint(
            vertex=self._vertex,
            attempt=self._attempt,
            checkpoint_id=event.checkpoint_id,
            state=replace(
                event.state,
                operators=operators,
                committables=committables,
                sent_events=snapshot.sent_events,
            ),
            metrics=metrics,
        )

    def snapshot_failed(self, event: SnapshotFailed, part: SnapshotPart) -> DeclineCheckpoint:
        """A part of the snapshot failed; the message names the operator (MISSION B6)."""
        operator = event.operator or self._operators[-1].operator_id
        return self._declined(
            event.checkpoint_id,
            Reason.CHECKPOINT_DECLINED
            if part is SnapshotPart.SYNC
            else Reason.CHECKPOINT_ASYNC_EXCEPTION,
            f"Could not complete snapshot {event.checkpoint_id} for operator {operator}."
            f" {event.message}",
        )

    def synchronous_part_over(self, checkpoint_id: int) -> AcknowledgeCheckpointEvent:
        """The synchronous part is done: coordinators may send events of the next epoch."""
        return AcknowledgeCheckpointEvent(
            vertex=self._vertex, attempt=self._attempt, checkpoint_id=checkpoint_id
        )

    def not_ready(self, checkpoint_id: int, status: TaskStatus) -> DeclineCheckpoint:
        """The task is not running, so it cannot be triggered (MISSION B1)."""
        return self._declined(
            checkpoint_id,
            Reason.CHECKPOINT_DECLINED_TASK_NOT_READY,
            f"Task {self._vertex} is {status.name} and not ready for checkpoint {checkpoint_id}.",
        )

    def closing(self, checkpoint_id: int) -> DeclineCheckpoint:
        """The task is ending and takes no more snapshots (PROTOCOL P32)."""
        return self._declined(
            checkpoint_id,
            Reason.CHECKPOINT_DECLINED_TASK_CLOSING,
            f"Task {self._vertex} is ending and cannot take part in checkpoint {checkpoint_id}.",
        )

    def misaligned(self, checkpoint_id: int, reason: Reason) -> DeclineCheckpoint:
        """Not every channel will deliver this checkpoint's barrier."""
        return self._declined(
            checkpoint_id,
            reason,
            f"Task {self._vertex} will not receive the barrier of checkpoint {checkpoint_id} on"
            " every channel.",
        )

    def skipped(self, checkpoint_id: int) -> DeclineCheckpoint:
        """Readers that induce checkpoints have gone on to a newer checkpoint (MISSION B4)."""
        return self._declined(
            checkpoint_id,
            Reason.CHECKPOINT_DECLINED_SUBSUMED,
            f"A reader of task {self._vertex} has induced a checkpoint that is newer than"
            f" {checkpoint_id}, before this one.",
        )

    def _declined(self, checkpoint_id: int, reason: Reason, message: str) -> DeclineCheckpoint:
        return DeclineCheckpoint(
            vertex=self._vertex,
            attempt=self._attempt,
            checkpoint_id=checkpoint_id,
            reason=reason,
            message=message,
        )
