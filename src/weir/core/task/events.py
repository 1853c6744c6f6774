"""``TaskEvents``: a task's operator events, in both directions (MISSION C6, C7; PROTOCOL P2, P41).

An event from a coordinator waits for the next batch, is carried by it, and is confirmed when that
batch is complete. An event to a coordinator is sent when the batch that produced it is complete,
and is part of the task's state until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.core.messages.coordination import DeliverEvent, EventsConfirmed, OperatorEventSent
from weir.core.types import SentEvent, VertexId


class TaskEvents:
    """The waiting, the carried and the unacknowledged events of one task."""

    def __init__(
        self, vertex: VertexId, attempt: int, unacknowledged: Iterable[SentEvent] = ()
    ) -> None:
        """``unacknowledged``: events that a restored task had sent; they are sent again."""
        self._vertex = vertex
        self._attempt = attempt
        self._waiting: list[DeliverEvent] = []
        #: Events that the running batch carries.
        self._carried: tuple[DeliverEvent, ...] = ()
        self._number = 0
        #: By number, ascending.
        self._unacknowledged: dict[int, SentEvent] = {}
        #: Sent in a batch that is not complete yet.
        self._staged: list[SentEvent] = list(unacknowledged)

    @property
    def any_waiting(self) -> bool:
        """Whether a batch is wanted, even one without records."""
        return bool(self._waiting)

    @property
    def unacknowledged(self) -> tuple[SentEvent, ...]:
        """The events that a snapshot taken now includes."""
        return tuple(self._unacknowledged.values())

    def deliver(self, event: DeliverEvent, *, may_run_batch: bool) -> list[EventsConfirmed]:
        """An event arrived: queue it for the next batch, or confirm it at once.

        Acknowledgements and events for finished operators (``may_run_batch`` is False) need none.
        """
        if event.acknowledges is not None:
            self._unacknowledged.pop(event.acknowledges, None)
            return [self._confirmed([event])]
        if not may_run_batch:
            return [self._confirmed([event])]
        self._waiting.append(event)
        return []

    def carry(self) -> tuple[DeliverEvent, ...]:
        """A batch may start: the events that it carries."""
        self._carried, self._waiting = tuple(self._waiting), []
        return self._carried

    def not_run(self) -> None:
        """No batch ran for the carried events: they wait for the next batch."""
        self._waiting = [*self._carried, *self._waiting]
        self._carried = ()

    def sent(self, events: Iterable[SentEvent]) -> None:
        """Operators sent these in the running batch."""
        self._staged += events

    def complete(self) -> list[EventsConfirmed | OperatorEventSent]:
        """The batch is complete: confirm the events it carried, send those its operators sent."""
        effects: list[EventsConfirmed | OperatorEventSent] = []
        if self._carried:
            effects.append(self._confirmed(self._carried))
            self._carried = ()
        for event in self._staged:
            self._number += 1
            self._unacknowledged[self._number] = event
            effects.append(
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
        return effects

    def end(self) -> list[EventsConfirmed]:
        """The operators have finished: confirm all events, delivered or not."""
        gone = [*self._carried, *self._waiting]
        self._carried, self._waiting = (), []
        return [self._confirmed(gone)] if gone else []

    def _confirmed(self, events: Iterable[DeliverEvent]) -> EventsConfirmed:
        return EventsConfirmed(
            vertex=self._vertex,
            attempt=self._attempt,
            events=tuple((event.operator, event.number) for event in events),
        )
