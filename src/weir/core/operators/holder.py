"""``OperatorCoordinatorHolder``: one operator coordinator in the protocol, with exactly-once events
(MISSION C2 to C9).

The rules of this file:

1. For a checkpoint all gateways are marked, then the coordinator is asked for its snapshot. With
   the answer they close.
2. The coordinator's part is complete when every event that it sent before its snapshot, held ones
   included, is confirmed (PROTOCOL P2). So a later checkpoint waits for the acknowledgements of an
   earlier one, if events are held behind that.
3. A subtask's acknowledgement opens the gateway of that subtask and no other; an abort, a
   completion or a restore opens all.
4. A subtask that fails has its gateway reset: what was held for it is dropped, what was not
   confirmed is lost, and checkpoints of which the coordinator's part is not complete are declined:
   it has been told too much for what the subtask will be. To the coordinator these events were sent
   to a failed subtask (C5).
5. An answer that comes after its checkpoint is over changes nothing.
6. What is sent to an operator that has finished is dropped, and no checkpoint waits for it.

``SubtaskGateway``: the way of events from a coordinator to one subtask, across checkpoints
(MISSION C3 to C6, C9).

An event that was sent before the coordinator's snapshot for checkpoint n belongs to n: the subtask
handles it before its own snapshot. One that was sent after it belongs to the epoch behind n, and
must not come before the barrier. So the gateway is closed with the coordinator's snapshot, and
opened by the subtask's acknowledgement::

    mark(n)    the coordinator is asked for its snapshot ..... events pass
    close(n)   the snapshot is taken ......................... events are held, in the order in which they were sent
    open(n)    the subtask acknowledges n, or n is over ...... what was held behind n alone goes out

With several checkpoints in flight an event is held until each one that it follows is open. What is
held is therefore one queue of events and of the checkpoints that close it; what stands before the
first of these is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from weir.core.messages.operators import (
    CoordinatorAcknowledged,
    CoordinatorDeclined,
    DeliverEvent,
    FailSubtask,
    HolderOutput,
    SnapshotCoordinator,
)
from weir.core.types import OperatorId, Payload
from weir.errors import invariant


@dataclass
class _Snapshot:
    """The coordinator's part of one checkpoint, until it is complete."""

    #: Its snapshot is taken.
    taken: bool = False
    state: Payload | None = None
    #: Numbers of the events that were sent before it and are not confirmed.
    awaited: set[int] = field(default_factory=set)


class OperatorCoordinatorHolder:
    """The gateways, unconfirmed events and pending snapshots of one coordinator."""

    def __init__(self, operator: OperatorId, parallelism: int) -> None:
        invariant(parallelism > 0, f"{operator} has no subtasks")
        self._operator = operator
        self._gateways = [SubtaskGateway() for _ in range(parallelism)]
        self._number = 0
        #: The operator has finished: what it is sent goes nowhere.
        self._finished = False
        #: Number -> subtask, of events that are held or under way.
        self._unconfirmed: dict[int, int] = {}
        self._snapshots: dict[int, _Snapshot] = {}

    @property
    def parallelism(self) -> int:
        """How many subtasks the operator has."""
        return len(self._gateways)

    # -- the coordinator

    def send(self, subtask: int, payload: Payload) -> list[HolderOutput]:
        """The coordinator sends an event: it passes, or is held for the next epoch (C3)."""
        return self._send(subtask, payload)

    def acknowledge(self, subtask: int, number: int) -> list[HolderOutput]:
        """The coordinator has handled an event of the subtask's: the word of it keeps to the epochs
        as every event does."""
        return self._send(subtask, {}, acknowledges=number)

    def snapshot_taken(self, checkpoint_id: int, state: Payload | None) -> list[HolderOutput]:
        """The coordinator has taken its snapshot: close the gateways."""
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None:
            return []
        invariant(not snapshot.taken, f"{self._operator} has taken snapshot {checkpoint_id} twice")
        snapshot.taken, snapshot.state = True, state
        snapshot.awaited = set(self._unconfirmed)
        for gateway in self._gateways:
            if not gateway.close(checkpoint_id):
                # A subtask failed since the checkpoint began: what it was sent before is lost.
                return self._decline(
                    checkpoint_id, "a subtask failed while the coordinator took its snapshot"
                )
        return self._completed_snapshots()

    def snapshot_failed(self, checkpoint_id: int, message: str) -> list[HolderOutput]:
        """The coordinator takes no snapshot."""
        return self._decline(checkpoint_id, message) if checkpoint_id in self._snapshots else []

    # -- the checkpoint coordinator

    def checkpoint(self, checkpoint_id: int) -> list[HolderOutput]:
        """A checkpoint begins."""
        for gateway in self._gateways:
            gateway.mark(checkpoint_id)
        self._snapshots[checkpoint_id] = _Snapshot()
        return [SnapshotCoordinator(operator=self._operator, checkpoint_id=checkpoint_id)]

    def over(self, checkpoint_id: int) -> list[HolderOutput]:
        """The checkpoint was aborted, or has completed: no event waits for it any more."""
        self._snapshots.pop(checkpoint_id, None)
        return self._opened(checkpoint_id, range(self.parallelism))

    def reset(self) -> None:
        """The job is restored: every subtask begins anew, and no checkpoint is under way."""
        self._finished = False
        for gateway in self._gateways:
            gateway.reset()
        self._unconfirmed.clear()
        self._snapshots.clear()

    def finished(self) -> list[HolderOutput]:
        """No subtask will ever handle an event again: all are done with those that they were
        sent."""
        self._finished = True
        self._unconfirmed.clear()
        for snapshot in self._snapshots.values():
            snapshot.awaited.clear()
        return self._completed_snapshots()

    # -- subtasks

    def acknowledged(self, subtask: int, checkpoint_id: int) -> list[HolderOutput]:
        """The subtask has taken its snapshot: what was held for it may come (C4)."""
        return self._opened(checkpoint_id, [subtask])

    def confirmed(self, number: int) -> list[HolderOutput]:
        """A subtask has handled an event for good. One that is not known was sent before a
        failure."""
        if self._unconfirmed.pop(number, None) is None:
            return []
        for snapshot in self._snapshots.values():
            snapshot.awaited.discard(number)
        return self._completed_snapshots()

    def lost(self, number: int, message: str) -> list[HolderOutput]:
        """An event did not reach its subtask, which must fail over to have all or nothing of its
        epoch."""
        subtask = self._unconfirmed.get(number)
        if subtask is None:
            return []
        return [
            *self.subtask_failed(subtask),
            FailSubtask(
                operator=self._operator,
                subtask=subtask,
                message=(
                    f"An event of the coordinator of {self._operator!r} to subtask {subtask} was"
                    f" lost ({message}): the subtask fails over, so that its state and the"
                    " coordinator's agree."
                ),
            ),
        ]

    def subtask_failed(self, subtask: int) -> list[HolderOutput]:
        """A subtask failed: events that it was to get are gone (C5), and it has forgotten what it
        handled since the newest completed checkpoint. The coordinator's snapshots of before know of
        both."""
        self._gateways[subtask].reset()
        for number in [n for n, receiver in self._unconfirmed.items() if receiver == subtask]:
            del self._unconfirmed[number]
        message = f"subtask {subtask} failed before it had the checkpoint's barrier"
        declined = [n for n, snapshot in self._snapshots.items() if snapshot.taken]
        return [output for n in declined for output in self._decline(n, message)]

    def validate(self, pending: Collection[int]) -> None:
        """Check the laws of the fields; raises ``InvariantError``. ``pending`` are the checkpoints
        under way."""
        for subtask, gateway in enumerate(self._gateways):
            late = [n for n in gateway.closed_by if n not in pending]
            invariant(
                not late,
                f"checkpoint {late} is over, and closes the gateway to {self._operator}/{subtask}",
            )
        for checkpoint_id, snapshot in self._snapshots.items():
            invariant(
                snapshot.taken or not snapshot.awaited, f"{checkpoint_id} awaits events too early"
            )
            invariant(
                snapshot.awaited <= self._unconfirmed.keys(),
                f"{checkpoint_id} awaits an event that is gone",
            )
            invariant(
                not snapshot.taken or bool(snapshot.awaited),
                f"{checkpoint_id} is complete but not told",
            )

    # -- inside

    def _send(
        self, subtask: int, payload: Payload, acknowledges: int | None = None
    ) -> list[HolderOutput]:
        invariant(0 <= subtask < self.parallelism, f"{self._operator} has no subtask {subtask}")
        if self._finished:
            return []
        self._number += 1
        self._unconfirmed[self._number] = subtask
        event = DeliverEvent(
            operator=self._operator,
            subtask=subtask,
            number=self._number,
            payload=payload,
            acknowledges=acknowledges,
        )
        return [event] if self._gateways[subtask].send(event) else []

    def _opened(self, checkpoint_id: int, subtasks: Iterable[int]) -> list[HolderOutput]:
        opened = [
            event for subtask in subtasks for event in self._gateways[subtask].open(checkpoint_id)
        ]
        return [] if self._finished else [*opened]

    def _completed_snapshots(self) -> list[HolderOutput]:
        done = [
            n for n, snapshot in self._snapshots.items() if snapshot.taken and not snapshot.awaited
        ]
        return [
            CoordinatorAcknowledged(
                operator=self._operator, checkpoint_id=n, state=self._snapshots.pop(n).state
            )
            for n in done
        ]

    def _decline(self, checkpoint_id: int, message: str) -> list[HolderOutput]:
        """The checkpoint will be aborted, and ``over`` opens the gateways."""
        del self._snapshots[checkpoint_id]
        return [
            CoordinatorDeclined(
                operator=self._operator, checkpoint_id=checkpoint_id, message=message
            )
        ]


class SubtaskGateway:
    """Which events may go to one subtask, and which are held."""

    def __init__(self) -> None:
        self._newest_marked = 0
        #: Checkpoints that are marked and not open yet.
        self._marked: set[int] = set()
        #: The ids of closed checkpoints, in their order, and behind each the events that were sent
        #: since. Law: it is empty or begins with an id.
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
        """The coordinator's snapshot is taken. False if the checkpoint is not marked any more, and
        nothing closes."""
        self._check_seen(checkpoint_id)
        if checkpoint_id not in self._marked:
            return False
        self._queue.append(checkpoint_id)
        return True

    def open(self, checkpoint_id: int) -> list[DeliverEvent]:
        """The subtask has acknowledged the checkpoint, or it is over: the events that may go out
        now, in order."""
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
        """The subtask failed, or is restored: what was held is dropped, and no checkpoint is under
        way for it (C5)."""
        self._marked.clear()
        self._queue.clear()

    def _check_seen(self, checkpoint_id: int) -> None:
        invariant(
            checkpoint_id <= self._newest_marked, f"checkpoint {checkpoint_id} was never marked"
        )
