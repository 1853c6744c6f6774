"""The two sides between which ``sim/subtasks.py`` stands: a coordinator that counts, and the attempts of its subtasks.

Each works off what it is told, one thing after the other, and leaves in ``out`` what the master has not heard yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from weir.core.messages.operators import (
    AcknowledgeCheckpointEvent,
    CoordinatorSentEvent,
    CoordinatorSnapshotTaken,
    DeliverEvent,
    EventsConfirmed,
    HandleOperatorEvent,
    OperatorEventHandled,
    OperatorEventSent,
    SnapshotCoordinator,
)
from weir.core.task.events import TaskEvents
from weir.core.types import Payload, SentEvent

OPERATOR = "op"

#: What each subtask has in a checkpoint: how many numbers it got, and what it sent that is not acknowledged.
SubtaskState: TypeAlias = tuple[int, tuple[SentEvent, ...]]


class BrokenLawError(Exception):
    """A law of the protocol does not hold."""


@dataclass(frozen=True, kw_only=True)
class SubtaskReset:
    """The coordinator is told that a subtask began anew, with what the newest completed checkpoint has of it."""

    subtask: int
    attempt: int
    sent: int
    back: int


@dataclass(frozen=True, kw_only=True)
class SubtaskAcknowledged:
    """The whole snapshot of a subtask is there."""

    attempt: int
    checkpoint_id: int
    state: SubtaskState


class MailboxCoordinator:
    """Sends numbers, and counts those that come back."""

    def __init__(self, subtasks: int) -> None:
        self.told: deque[SnapshotCoordinator | HandleOperatorEvent | SubtaskReset] = deque()
        self.out: deque[CoordinatorSentEvent | CoordinatorSnapshotTaken | OperatorEventHandled] = deque()
        self.sent = [0] * subtasks
        self._back = [0] * subtasks
        #: Of each subtask, the attempt that it knows.
        self._attempts = [0] * subtasks

    def send(self, subtask: int) -> None:
        """The next number."""
        self.out.append(
            CoordinatorSentEvent(
                operator=OPERATOR,
                attempt=self._attempts[subtask],
                subtask=subtask,
                payload={"number": self.sent[subtask]},
            )
        )
        self.sent[subtask] += 1

    def turn(self) -> None:
        """Take the next thing that it was told."""
        match self.told.popleft():
            case SnapshotCoordinator(checkpoint_id=n):
                state: Payload = {"sent": list(self.sent), "back": list(self._back)}
                self.out.append(
                    CoordinatorSnapshotTaken(operator=OPERATOR, attempt=0, checkpoint_id=n, state=state)
                )
            case HandleOperatorEvent(subtask=subtask, number=number, payload=payload):
                if payload["back"] != self._back[subtask]:
                    raise BrokenLawError(
                        f"subtask {subtask} sends {payload} back after {self._back[subtask]}"
                    )
                self._back[subtask] += 1
                attempt = self._attempts[subtask]
                self.out.append(
                    OperatorEventHandled(operator=OPERATOR, attempt=attempt, subtask=subtask, number=number)
                )
            case SubtaskReset(subtask=subtask, attempt=attempt, sent=sent, back=back):
                self._attempts[subtask] = attempt
                self.sent[subtask], self._back[subtask] = sent, back


class SubtaskAttempt:
    """One attempt of a subtask: gets numbers, and sends them back."""

    def __init__(self, subtask: int, attempt: int, state: SubtaskState) -> None:
        self.attempt = attempt
        self.told: deque[DeliverEvent] = deque()
        #: Checkpoints whose barriers are on their way to it, which is not that of the events.
        self.barriers: deque[int] = deque()
        self.out: deque[
            EventsConfirmed | OperatorEventSent | AcknowledgeCheckpointEvent | SubtaskAcknowledged
        ] = deque()
        #: Snapshots whose asynchronous part runs.
        self.uploads: list[SubtaskAcknowledged] = []
        self._subtask = subtask
        self._received, unacknowledged = state
        self._events = TaskEvents(OPERATOR, attempt, unacknowledged)
        self._in_step = False
        self.out += self._events.complete()

    @property
    def may_step(self) -> bool:
        """Whether a step is under way, or due."""
        return self._in_step or self._events.any_waiting

    def receive(self) -> None:
        """The next event comes."""
        self.out += self._events.deliver(self.told.popleft(), may_step=True)

    def snapshot(self) -> None:
        """The next barrier comes, between two steps."""
        if self._in_step:
            self.step()
        checkpoint_id, state = self.barriers.popleft(), (self._received, self._events.unacknowledged)
        self.uploads.append(
            SubtaskAcknowledged(attempt=self.attempt, checkpoint_id=checkpoint_id, state=state)
        )
        self.out.append(
            AcknowledgeCheckpointEvent(vertex=OPERATOR, attempt=self.attempt, checkpoint_id=checkpoint_id)
        )

    def step(self) -> None:
        """Begin a step with the events that wait, or complete the one under way."""
        self._in_step = not self._in_step
        if not self._in_step:
            self.out += self._events.complete()
            return
        for event in self._events.carry():
            if event.payload["number"] != self._received:
                raise BrokenLawError(f"subtask {self._subtask} gets {event.payload} after {self._received}")
            self._received += 1
            back = {"back": event.payload["number"]}
            self._events.sent([SentEvent(operator=OPERATOR, subtask=self._subtask, payload=back)])
