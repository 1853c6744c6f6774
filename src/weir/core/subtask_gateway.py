"""``SubtaskGateway``: the way of events from a coordinator to one subtask, across checkpoints (MISSION C3 to C6, C9).

An event that was sent before the coordinator's snapshot for checkpoint n belongs to n: the subtask handles it before its own
snapshot. One that was sent after it belongs to the epoch behind n, and must not come before the barrier. So the gateway is
closed with the coordinator's snapshot, and opened by the subtask's acknowledgement::

    mark(n)    the coordinator is asked for its snapshot ..... events pass
    close(n)   the snapshot is taken ......................... events are held, in the order in which they were sent
    open(n)    the subtask acknowledges n, or n is over ...... what was held behind n alone goes out

With several checkpoints in flight an event is held until each one that it follows is open. What is held is therefore one
queue of events and of the checkpoints that close it; what stands before the first of these is free.
"""

from __future__ import annotations

from weir.core.operator_events import DeliverEvent
from weir.errors import invariant


class SubtaskGateway:
    """Which events may go to one subtask, and which are held."""

    def __init__(self) -> None:
        self._newest_marked = 0
        #: Checkpoints that are marked and not open yet.
        self._marked: set[int] = set()
        #: The ids of closed checkpoints, in their order, and behind each the events that were sent since. Law: it is
        #: empty or begins with an id.
        self._queue: list[int | DeliverEvent] = []

    @property
    def closed_by(self) -> list[int]:
        """The checkpoints that close it; an event that is sent while there is one is held."""
        return [one for one in self._queue if isinstance(one, int)]

    def send(self, event: DeliverEvent) -> bool:
        """Whether the event may go out at once; else it is held."""
        if self._queue:
            self._queue.append(event)
        return not self._queue

    def mark(self, checkpoint_id: int) -> None:
        """The coordinator is asked for its snapshot. Ids grow."""
        invariant(
            checkpoint_id > self._newest_marked,
            f"checkpoint {checkpoint_id} is marked after checkpoint {self._newest_marked}",
        )
        self._newest_marked = checkpoint_id
        self._marked.add(checkpoint_id)

    def close(self, checkpoint_id: int) -> bool:
        """The coordinator's snapshot is taken. False if the checkpoint is not marked any more, and nothing closes."""
        self._check_seen(checkpoint_id)
        if checkpoint_id not in self._marked:
            return False
        self._queue.append(checkpoint_id)
        return True

    def open(self, checkpoint_id: int) -> list[DeliverEvent]:
        """The subtask has acknowledged the checkpoint, or it is over: the events that may go out now, in order."""
        self._check_seen(checkpoint_id)
        self._marked.discard(checkpoint_id)
        if checkpoint_id in self._queue:
            self._queue.remove(checkpoint_id)
        free: list[DeliverEvent] = []
        while self._queue and isinstance(first := self._queue[0], DeliverEvent):
            free.append(first)
            del self._queue[0]
        return free

    def reset(self) -> None:
        """The subtask failed, or is restored: what was held is dropped, and no checkpoint is under way for it (C5)."""
        self._marked.clear()
        self._queue.clear()

    def _check_seen(self, checkpoint_id: int) -> None:
        invariant(checkpoint_id <= self._newest_marked, f"checkpoint {checkpoint_id} was never marked")
