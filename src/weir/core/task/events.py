"""``TaskEvents``: the operator events of one task, in both directions (MISSION C6, C7; PROTOCOL P2,
P41).

An event from a coordinator waits for the next step, travels with it, and is confirmed when that
step is complete. An event to a coordinator is told when the step in which it was sent is complete,
and is state of the task until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.core.messages.operators import DeliverEvent, EventsConfirmed, OperatorEventSent
from weir.core.types import SentEvent, VertexId


class TaskEvents:
    """What waits, what is under way, and what is not acknowledged."""

    def __init__(
        self, vertex: VertexId, attempt: int, unacknowledged: Iterable[SentEvent] = ()
    ) -> None:
        """``unacknowledged``: what a restored task had sent."""
        self._vertex = vertex
        self._attempt = attempt
        self._waiting: list[DeliverEvent] = []
        #: What the step under way carries.
        self._carried: tuple[DeliverEvent, ...] = ()
        self._number = 0
        #: By their numbers, in their order.
        self._unacknowledged: dict[int, SentEvent] = {}
        #: Sent in a step that is not complete yet.
        self._staged: list[SentEvent] = list(unacknowledged)

    @property
    def any_waiting(self) -> bool:
        """Whether a step is wanted, be it without records."""
        return bool(self._waiting)

    @property
    def unacknowledged(self) -> tuple[SentEvent, ...]:
        """What a snapshot of now holds."""
        return tuple(self._unacknowledged.values())

    def deliver(self, event: DeliverEvent, *, may_step: bool) -> list[EventsConfirmed]:
        """An event has come. An acknowledgement needs no step; nor does an event for operators that
        have finished."""
        if event.acknowledges is not None:
            self._unacknowledged.pop(event.acknowledges, None)
            return [self._confirmed([event])]
        if not may_step:
            return [self._confirmed([event])]
        self._waiting.append(event)
        return []

    def carry(self) -> tuple[DeliverEvent, ...]:
        """A step may begin: what it carries."""
        self._carried, self._waiting = tuple(self._waiting), []
        return self._carried

    def not_run(self) -> None:
        """The step that was to carry events was none: they wait for the next."""
        self._waiting = [*self._carried, *self._waiting]
        self._carried = ()

    def sent(self, events: Iterable[SentEvent]) -> None:
        """Operators have sent these in the step under way."""
        self._staged += events

    def complete(self) -> list[EventsConfirmed | OperatorEventSent]:
        """The step under way is complete: what it carried is confirmed, what was sent in it is
        told."""
        told: list[EventsConfirmed | OperatorEventSent] = []
        if self._carried:
            told.append(self._confirmed(self._carried))
            self._carried = ()
        for event in self._staged:
            self._number += 1
            self._unacknowledged[self._number] = event
            told.append(
                OperatorEventSent(
                    vertex=self._vertex,
                    attempt=self._attempt,
                    operator=event.operator,
                    subtask=event.subtask,
                    number=self._number,
                    payload=event.payload,
                )
            )
        self._staged = []
        return told

    def end(self) -> list[EventsConfirmed]:
        """The records have ended, and the operators with them: what waits goes nowhere any more."""
        gone = [*self._carried, *self._waiting]
        self._carried, self._waiting = (), []
        return [self._confirmed(gone)] if gone else []

    def _confirmed(self, events: Iterable[DeliverEvent]) -> EventsConfirmed:
        return EventsConfirmed(
            vertex=self._vertex,
            attempt=self._attempt,
            events=tuple((event.operator, event.number) for event in events),
        )
