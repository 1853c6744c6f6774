"""``OperatorCoordinators``: a job's operator coordinators, in the job master (MISSION C).

Under Spark a task is a whole query, whose subtasks start and fail together (PROTOCOL P39): what a
task reports about a checkpoint, its start or its end applies to every subtask of its operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder
from weir.core.messages.coordination import (
    AcknowledgeCheckpointEvent,
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorFailed,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    EventsConfirmed,
    FailJob,
    HandleOperatorEvent,
    HolderOutput,
    NotifyCoordinator,
    OperatorEventHandled,
    OperatorEventSent,
    ResetCoordinator,
    SubtasksFailed,
    SubtasksReady,
    TaskOperatorEvent,
)
from weir.core.types import (
    CompletedCheckpoint,
    OperatorId,
    SentEvent,
    TaskState,
    VertexId,
)


@dataclass(frozen=True, kw_only=True)
class CoordinatedOperator:
    """An operator that has a coordinator."""

    #: The task that runs it.
    vertex: VertexId
    #: How many subtasks it has.
    parallelism: int
    #: Readers of its task's source say when a checkpoint is due (MISSION B4).
    induces_checkpoints: bool = False


class OperatorCoordinators:
    """The coordinator holders by operator, and the task that runs each operator."""

    def __init__(self, operators: Mapping[OperatorId, CoordinatedOperator]) -> None:
        self._operators = dict(operators)
        self._holders = {
            name: OperatorCoordinatorHolder(name, operator.parallelism)
            for name, operator in self._operators.items()
        }

    @property
    def names(self) -> tuple[OperatorId, ...]:
        """The coordinated operators."""
        return tuple(self._holders)

    @property
    def inducing(self) -> tuple[VertexId, ...]:
        """The tasks that may know of a checkpoint before they are triggered (MISSION B4)."""
        operators = self._operators.values()
        return tuple(dict.fromkeys(op.vertex for op in operators if op.induces_checkpoints))

    # -- attempts

    def begin_attempt(
        self,
        attempt: int,
        restored: CompletedCheckpoint | None,
        states: Mapping[VertexId, TaskState],
        *,
        own: bool,
    ) -> list[CoordinatorEffect]:
        """Start all subtasks over and reset every coordinator to ``restored`` (MISSION C1).

        A task that is fully finished in ``states`` is not started and cannot send its unhandled
        events again, so these are handled right after the reset (P41). ``own``: ``restored``
        belongs to this job.
        """
        resets: list[CoordinatorEffect] = []
        for name, holder in self._holders.items():
            holder.reset()
            resets.append(
                ResetCoordinator(
                    operator=name,
                    attempt=attempt,
                    parallelism=holder.parallelism,
                    checkpoint_id=None if restored is None else restored.checkpoint_id,
                    state=None if restored is None else restored.coordinator_states.get(name),
                    own=own,
                )
            )
            state = states.get(self._operators[name].vertex)
            if state is not None and state.fully_finished:
                holder.finished()
                resets += [
                    self._handle(event, 0) for event in state.sent_events if event.operator == name
                ]
        return resets

    def ready(self, vertex: VertexId) -> list[CoordinatorEffect]:
        """The task is running."""
        return [SubtasksReady(operator=name) for name in self._of(vertex)]

    def finished(self, vertex: VertexId) -> list[HolderOutput]:
        """The task has finished: it handles no more events."""
        return [output for name in self._of(vertex) for output in self._holders[name].finished()]

    def failed(self, message: str) -> list[CoordinatorEffect]:
        """The attempt has failed, and with it every subtask (C5)."""
        return [SubtasksFailed(operator=name, message=message) for name in self._holders]

    # -- checkpoints

    def checkpoint(self, checkpoint_id: int) -> list[HolderOutput]:
        """Start a checkpoint by asking every coordinator first (C2)."""
        return self._all(lambda holder: holder.checkpoint(checkpoint_id))

    def over(
        self, checkpoint_id: int, *, completed: bool, notifies: bool = True
    ) -> list[HolderOutput]:
        """A checkpoint completed or was aborted: release its events, notify the coordinators.

        With ``notifies`` False they are not notified, as for a savepoint that commits nothing.
        """
        notifications: list[HolderOutput] = [
            NotifyCoordinator(operator=name, checkpoint_id=checkpoint_id, completed=completed)
            for name in (self._holders if notifies else ())
        ]
        return [*self._all(lambda holder: holder.over(checkpoint_id)), *notifications]

    # -- events

    def from_coordinator(self, event: CoordinatorEvent) -> list[HolderOutput]:
        """A coordinator sent or handled an event, answered for a checkpoint, or failed."""
        holder = self._holders[event.operator]
        match event:
            case CoordinatorSentEvent():
                return holder.send(event.subtask, event.payload, receipt=event.receipt)
            case CoordinatorSnapshotTaken():
                return holder.snapshot_taken(event.checkpoint_id, event.state)
            case CoordinatorSnapshotFailed():
                return holder.snapshot_failed(event.checkpoint_id, event.message)
            case OperatorEventHandled():
                return holder.send(event.subtask, {}, acknowledges=event.number)
            case CoordinatorFailed():
                message = f"The coordinator of {event.operator!r} failed: {event.message}"
                return [FailJob(message=message, fatal=event.fatal, cause=event.cause)]

    def from_task(self, event: TaskOperatorEvent) -> list[HolderOutput]:
        """A task confirmed events, sent an event, or has taken its snapshot."""
        match event:
            case EventsConfirmed():
                return [
                    output
                    for name, number in event.events
                    for output in self._holders[name].confirmed(number)
                ]
            case OperatorEventSent():
                # The operator may have had a coordinator when the event was checkpointed, but none
                # now.
                return (
                    [self._handle(event, event.number)] if event.operator in self._holders else []
                )
            case AcknowledgeCheckpointEvent():
                return [
                    output
                    for name in self._of(event.vertex)
                    for subtask in range(self._holders[name].parallelism)
                    for output in self._holders[name].acknowledged(subtask, event.checkpoint_id)
                ]

    def validate(self, pending: Collection[int]) -> None:
        """Check the laws of the fields; raises ``InvariantError``.

        ``pending`` are the checkpoints in progress.
        """
        for holder in self._holders.values():
            holder.validate(pending)

    # -- helpers

    def _handle(self, event: SentEvent | OperatorEventSent, number: int) -> HandleOperatorEvent:
        """Pass on an event; events from subtasks removed by rescaling get another subtask."""
        return HandleOperatorEvent(
            operator=event.operator,
            subtask=event.subtask % self._holders[event.operator].parallelism,
            number=number,
            payload=event.payload,
        )

    def _of(self, vertex: VertexId) -> list[OperatorId]:
        return [name for name, operator in self._operators.items() if operator.vertex == vertex]

    def _all(
        self, ask: Callable[[OperatorCoordinatorHolder], list[HolderOutput]]
    ) -> list[HolderOutput]:
        return [output for holder in self._holders.values() for output in ask(holder)]
