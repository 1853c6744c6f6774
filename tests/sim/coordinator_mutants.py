"""Deliberately broken variants of operator events and their gateways; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _jobs_with, _with

from weir.coordinators.runner import _Coordinated
from weir.core.checkpoints.coordinator import CheckpointCoordinator
from weir.core.checkpoints.pending import PendingCheckpoint, PendingCheckpoints, PendingState
from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder, SubtaskGateway
from weir.core.coordination.coordinators import OperatorCoordinators
from weir.core.job.master import JobMaster
from weir.core.messages.coordination import AcknowledgeCheckpointEvent, DeliverEvent
from weir.core.task.events import TaskEvents

_UNCHECKED = patch.object(OperatorCoordinatorHolder, "validate", lambda self, pending: None)


def reopened_at_the_trigger() -> AbstractContextManager[None]:
    """The gateways open when the tasks are triggered, not when their snapshots are taken (C4)."""
    trigger_tasks = CheckpointCoordinator._trigger_tasks

    def opened(self: CheckpointCoordinator, pending: PendingCheckpoint, now_ms: int) -> None:
        trigger_tasks(self, pending, now_ms)
        for holder in self._coordinators._holders.values():
            for subtask in range(holder.parallelism):
                self._act_on(holder.acknowledged(subtask, pending.checkpoint_id), now_ms)

    return _with(patch.object(CheckpointCoordinator, "_trigger_tasks", opened))


def reopened_for_all_at_once() -> AbstractContextManager[None]:
    """The first task that has taken its snapshot opens the gateways of all tasks (C4)."""
    from_task = OperatorCoordinators.from_task

    def all_opened(self: OperatorCoordinators, event: Any) -> Any:
        if not isinstance(event, AcknowledgeCheckpointEvent):
            return from_task(self, event)
        return [
            output
            for holder in self._holders.values()
            for subtask in range(holder.parallelism)
            for output in holder.acknowledged(subtask, event.checkpoint_id)
        ]

    return _with(
        patch.object(OperatorCoordinators, "from_task", all_opened),
        # Readers of channels take their snapshots long after the sources.
        _jobs_with(reader_us=150_000),
    )


def reopened_by_another_checkpoint() -> AbstractContextManager[None]:
    """A subtask's acknowledgement of any checkpoint releases all events held for it (C9)."""

    def open_all(self: SubtaskGateway, checkpoint_id: int) -> list[DeliverEvent]:
        self._marked.discard(checkpoint_id)
        held = [one for one in self._queue if isinstance(one, DeliverEvent)]
        self._queue = [one for one in self._queue if isinstance(one, int) and one != checkpoint_id]
        return held

    return _with(patch.object(SubtaskGateway, "open", open_all))


def events_not_dropped_on_failure() -> AbstractContextManager[None]:
    """Events that a coordinator sent before a failure reach the next attempt (C5)."""
    return _with(patch.object(JobMaster, "_is_current", lambda self, attempt: self._execution.live))


def closed_before_the_snapshot() -> AbstractContextManager[None]:
    """The gateways close when the coordinator is asked, not when it has answered (C3)."""
    checkpoint = OperatorCoordinatorHolder.checkpoint

    def closed(self: OperatorCoordinatorHolder, checkpoint_id: int) -> Any:
        outputs = checkpoint(self, checkpoint_id)
        for gateway in self._gateways:
            gateway._queue.append(checkpoint_id)
        return outputs

    def taken(self: OperatorCoordinatorHolder, checkpoint_id: int, state: Any) -> Any:
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None:
            return []
        snapshot.taken, snapshot.state = True, state
        held = {e.number for g in self._gateways for e in g._queue if isinstance(e, DeliverEvent)}
        snapshot.awaited = set(self._unconfirmed) - held
        return self._completed_snapshots()

    return _with(
        _UNCHECKED,
        patch.object(OperatorCoordinatorHolder, "checkpoint", closed),
        patch.object(OperatorCoordinatorHolder, "snapshot_taken", taken),
    )


def never_closed() -> AbstractContextManager[None]:
    """An event that is sent after the coordinator's snapshot arrives before the barrier (C3)."""
    return _with(patch.object(SubtaskGateway, "close", lambda self, checkpoint_id: True))


def closed_by_a_late_snapshot() -> AbstractContextManager[None]:
    """A late snapshot of an ended checkpoint closes the gateways, and they are never reopened."""
    taken = OperatorCoordinatorHolder.snapshot_taken

    def late(self: OperatorCoordinatorHolder, checkpoint_id: int, state: Any) -> Any:
        if checkpoint_id not in self._snapshots:
            for gateway in self._gateways:
                gateway._queue.append(checkpoint_id)
        return taken(self, checkpoint_id, state)

    return _with(patch.object(OperatorCoordinatorHolder, "snapshot_taken", late))


def complete_before_events_are_confirmed() -> AbstractContextManager[None]:
    """A coordinator's part counts as complete with its snapshot, despite events in flight (P2)."""
    completed = OperatorCoordinatorHolder._completed_snapshots

    def at_once(self: OperatorCoordinatorHolder) -> Any:
        for snapshot in self._snapshots.values():
            snapshot.awaited.clear()
        return completed(self)

    return _with(
        _UNCHECKED, patch.object(OperatorCoordinatorHolder, "_completed_snapshots", at_once)
    )


def confirmed_before_the_step_is_complete() -> AbstractContextManager[None]:
    """An event counts as handled when it has reached the task (P2)."""
    deliver = TaskEvents.deliver

    def confirmed(self: TaskEvents, event: DeliverEvent, *, may_run_batch: bool) -> Any:
        return deliver(self, event, may_run_batch=may_run_batch) or [self._confirmed([event])]

    return _with(
        patch.object(TaskEvents, "deliver", confirmed),
        patch.object(TaskEvents, "complete", _without_confirmation(TaskEvents.complete)),
    )


def _without_confirmation(complete: Any) -> Any:
    def told(self: TaskEvents) -> Any:
        self._carried = ()
        return complete(self)

    return told


def an_acknowledgement_past_the_gateway() -> AbstractContextManager[None]:
    """A task forgets an event as soon as the coordinator has handled it, in any epoch (C7)."""

    send = OperatorCoordinatorHolder.send

    def at_once(
        self: OperatorCoordinatorHolder,
        subtask: int,
        payload: Any,
        *,
        acknowledges: int | None = None,
        receipt: int | None = None,
    ) -> Any:
        if acknowledges is None:
            return send(self, subtask, payload, receipt=receipt)
        self._number += 1
        event = DeliverEvent(
            operator=self._operator,
            subtask=subtask,
            number=self._number,
            payload=payload,
            acknowledges=acknowledges,
        )
        return [] if self._finished else [event]

    return _with(patch.object(OperatorCoordinatorHolder, "send", at_once))


def unacknowledged_events_not_in_the_snapshot() -> AbstractContextManager[None]:
    """A snapshot leaves out an operator's events that its coordinator has not handled (P41)."""
    return _with(patch.object(TaskEvents, "unacknowledged", property(lambda self: ())))


def unacknowledged_events_not_sent_again() -> AbstractContextManager[None]:
    """A restored task forgets the events that its snapshot had kept (P41)."""
    init = TaskEvents.__init__

    def forgetful(self: TaskEvents, vertex: str, attempt: int, unacknowledged: Any = ()) -> None:
        del unacknowledged
        init(self, vertex, attempt)

    return _with(patch.object(TaskEvents, "__init__", forgetful))


def taken_in_its_turn() -> AbstractContextManager[None]:
    """A late snapshot counts from its turn in the coordinator's queue, not its completion (C3)."""
    answered = _Coordinated._answered

    def queued(self: _Coordinated, checkpoint_id: int, attempt: int, done: Any) -> None:
        self._enqueue(lambda: answered(self, checkpoint_id, attempt, done))

    return _with(patch.object(_Coordinated, "_answered", queued))


def handled_after_the_snapshot_that_contains_it() -> AbstractContextManager[None]:
    """A snapshot completed while an event is handled leaves the event to the next one (C7)."""
    answered = _Coordinated._answered

    def before(self: _Coordinated, checkpoint_id: int, attempt: int, done: Any) -> None:
        handling, self._handling = self._handling, None
        answered(self, checkpoint_id, attempt, done)
        self._handling = handling

    return _with(patch.object(_Coordinated, "_answered", before))


def a_failed_snapshot_is_empty() -> AbstractContextManager[None]:
    """A coordinator whose snapshot fails is left out of the checkpoint (P9)."""

    def empty(self: _Coordinated, checkpoint_id: int, attempt: int, message: str) -> None:
        self._taken(checkpoint_id, attempt, {"sent": [], "back": []})

    return _with(patch.object(_Coordinated, "_refused", empty))


def a_checkpoint_waits_for_its_coordinators_for_ever() -> AbstractContextManager[None]:
    """A checkpoint whose coordinator never answers does not expire (A7)."""

    def expires_at(self: PendingCheckpoint, now_ms: int) -> bool:
        return self.state is PendingState.WAITING and self.deadline_ms <= now_ms

    def of_waiting(self: PendingCheckpoints) -> int | None:
        due = [one.deadline_ms for one in self.values() if one.state is PendingState.WAITING]
        return min(due, default=None)

    return _with(
        patch.object(PendingCheckpoint, "expires_at", expires_at),
        patch.object(PendingCheckpoints, "next_deadline", of_waiting),
    )


#: The variants, each with a seed that is known to catch it and the words of its violation.
COORDINATOR_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (reopened_at_the_trigger, 5, "subtasks have received"),
        (reopened_for_all_at_once, 28, "subtasks have received"),
        (reopened_by_another_checkpoint, 173, "subtasks have received", "kept"),
        (events_not_dropped_on_failure, 12, "receives", "did not finish", "subtasks have received"),
        (closed_before_the_snapshot, 28, "subtasks have received"),
        (never_closed, 5, "subtasks have received", "kept"),
        (closed_by_a_late_snapshot, 8, "still closes the gateway"),
        (complete_before_events_are_confirmed, 69, "subtasks have received", "kept"),
        (confirmed_before_the_step_is_complete, 69, "subtasks have received"),
        (an_acknowledgement_past_the_gateway, 5, "kept"),
        (unacknowledged_events_not_in_the_snapshot, 5, "kept"),
        (unacknowledged_events_not_sent_again, 5, "back after", "kept"),
        (taken_in_its_turn, 69, "subtasks have received"),
        (handled_after_the_snapshot_that_contains_it, 5, "kept", "back after"),
        (a_failed_snapshot_is_empty, 22, "subtasks have received"),
        (a_checkpoint_waits_for_its_coordinators_for_ever, 52, "did not finish"),
    )
)
