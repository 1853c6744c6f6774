"""``OperatorCoordinatorHolder``: an operator coordinator, with exactly-once events (C2 to C9).

Rules:

1. For a checkpoint, all gateways are marked, then the coordinator is asked for its snapshot. When
   it answers, they close.
2. The coordinator's part is complete when every event that it sent before its snapshot, held or
   not, is confirmed (PROTOCOL P2). So if an earlier checkpoint holds events back, a later
   checkpoint waits for the acknowledgements of the earlier.
3. A subtask's acknowledgement opens the gateway of that subtask and no other; an abort, a
   completion or a restore opens all.
4. When a subtask fails, its gateway is reset: held events are dropped, unconfirmed events are lost.
   Checkpoints whose coordinator part is not complete are declined, at the latest when the
   coordinator's snapshot is taken: it includes events that the restored subtask will not have
   handled. For the coordinator these events were sent to a failed subtask (C5).
5. An answer for a checkpoint that has completed or aborted changes nothing.
6. Events sent to an operator that has finished are dropped, and no checkpoint waits for them.

``SubtaskGateway``: passes or holds the events from a coordinator to one subtask, across checkpoints
(MISSION C3 to C6, C9).

An event sent before the coordinator's snapshot for checkpoint n belongs to n: the subtask handles
it before its own snapshot. One sent after it belongs to the next epoch and must not arrive before
the barrier. So the gateway closes with the coordinator's snapshot and opens with the subtask's
acknowledgement::

    mark(n)    the coordinator is asked for its snapshot .... events pass
    close(n)   the snapshot is taken ........................ events are held in the order sent
    open(n)    n is acknowledged, completed or aborted ...... events held by n alone are released

With several checkpoints in flight an event is held until every checkpoint before it is open. The
held events are therefore one queue, in which checkpoints that close the gateway are entries as
well; events before the first of these are free to go.

An operator's coordinator may go on after the operator has finished (rule 6); no checkpoint waits
for events that nobody will handle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from weir.core.messages.coordination import (
    CoordinatorAcknowledged,
    CoordinatorDeclined,
    DeliverEvent,
    EventReceipt,
    FailSubtask,
    HolderOutput,
    SnapshotCoordinator,
)
from weir.core.types import OperatorId, Payload
from weir.errors import invariant


@dataclass
class _Snapshot:
    """The coordinator's part of one checkpoint, until it is complete."""

    #: The coordinator has taken its snapshot.
    taken: bool = False
    state: Payload | None = None
    #: Numbers of the events sent before the snapshot that are not confirmed.
    awaited: set[int] = field(default_factory=set)


class OperatorCoordinatorHolder:
    """The gateways, unconfirmed events and pending snapshots of one coordinator."""

    def __init__(self, operator: OperatorId, parallelism: int) -> None:
        invariant(parallelism > 0, f"{operator} has no subtasks")
        self._operator = operator
        self._gateways = [SubtaskGateway() for _ in range(parallelism)]
        self._number = 0
        #: The operator has finished: events sent to it are dropped.
        self._finished = False
        #: Number -> subtask, for events that are held or in flight.
        self._unconfirmed: dict[int, int] = {}
        #: Number -> receipt, for the unconfirmed events whose coordinator wants a receipt.
        self._receipts: dict[int, int] = {}
        self._snapshots: dict[int, _Snapshot] = {}

    @property
    def parallelism(self) -> int:
        """How many subtasks the operator has."""
        return len(self._gateways)

    # -- the coordinator

    def send(
        self,
        subtask: int,
        payload: Payload,
        *,
        acknowledges: int | None = None,
        receipt: int | None = None,
    ) -> list[HolderOutput]:
        """Send the coordinator's event: it passes, or is held for the next epoch (C3).

        ``acknowledges`` is the number of the subtask's event that it acknowledges, if any;
        ``receipt`` is returned once the event is confirmed.
        """
        invariant(0 <= subtask < self.parallelism, f"{self._operator} has no subtask {subtask}")
        self._number += 1
        if receipt is not None:
            self._receipts[self._number] = receipt
        if self._finished:
            return self._receipt(self._number, handled=False)
        self._unconfirmed[self._number] = subtask
        event = DeliverEvent(
            operator=self._operator,
            subtask=subtask,
            number=self._number,
            payload=payload,
            acknowledges=acknowledges,
        )
        return [event] if self._gateways[subtask].send(event) else []

    def snapshot_taken(self, checkpoint_id: int, state: Payload | None) -> list[HolderOutput]:
        """The coordinator has taken its snapshot: close the gateways."""
        snapshot = self._snapshots.get(checkpoint_id)
        if snapshot is None:
            return []
        invariant(not snapshot.taken, f"{self._operator} took snapshot {checkpoint_id} twice")
        snapshot.taken, snapshot.state = True, state
        snapshot.awaited = set(self._unconfirmed)
        for gateway in self._gateways:
            if not gateway.close(checkpoint_id):
                # A subtask failed since the checkpoint began: events sent to it before are lost.
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
        """The checkpoint was aborted or has completed: no event waits for it any more."""
        self._snapshots.pop(checkpoint_id, None)
        return self._opened(checkpoint_id, range(self.parallelism))

    def reset(self) -> None:
        """The job is restored: every subtask starts over, and no checkpoint is in progress."""
        self._finished = False
        for gateway in self._gateways:
            gateway.reset()
        self._unconfirmed.clear()
        self._receipts.clear()
        self._snapshots.clear()

    def finished(self) -> list[HolderOutput]:
        """The operator has finished: treat all events sent to it as confirmed."""
        self._finished = True
        self._unconfirmed.clear()
        dropped = [r for n in list(self._receipts) for r in self._receipt(n, handled=False)]
        for snapshot in self._snapshots.values():
            snapshot.awaited.clear()
        return [*dropped, *self._completed_snapshots()]

    # -- subtasks

    def acknowledged(self, subtask: int, checkpoint_id: int) -> list[HolderOutput]:
        """The subtask has taken its snapshot: release the events held for it (C4)."""
        return self._opened(checkpoint_id, [subtask])

    def confirmed(self, number: int) -> list[HolderOutput]:
        """A subtask has handled an event for good; an unknown event was sent before a failure."""
        if self._unconfirmed.pop(number, None) is None:
            return []
        for snapshot in self._snapshots.values():
            snapshot.awaited.discard(number)
        received = self._receipt(number, handled=True)
        return [*received, *self._completed_snapshots()]

    def lost(self, number: int, message: str) -> list[HolderOutput]:
        """An event did not reach its subtask, which must fail over.

        Otherwise it would have only a part of the epoch's events.
        """
        subtask = self._unconfirmed.get(number)
        if subtask is None:
            return []
        return [
            *self.subtask_failed(subtask),
            FailSubtask(
                operator=self._operator,
                subtask=subtask,
                message=(
                    f"An event from the coordinator of {self._operator!r} to subtask {subtask}"
                    f" was lost ({message}): failing the subtask over to keep its state"
                    " consistent with the coordinator's."
                ),
            ),
        ]

    def subtask_failed(self, subtask: int) -> list[HolderOutput]:
        """A subtask failed: events on their way to it are lost (C5).

        It has also lost what it handled since the newest completed checkpoint. Coordinator
        snapshots already taken include both, so their checkpoints are declined.
        """
        self._gateways[subtask].reset()
        lost: list[HolderOutput] = []
        for number in [n for n, receiver in self._unconfirmed.items() if receiver == subtask]:
            del self._unconfirmed[number]
            lost += self._receipt(number, handled=False)
        message = f"subtask {subtask} failed before it received the checkpoint's barrier"
        declined = [n for n, snapshot in self._snapshots.items() if snapshot.taken]
        return [*lost, *(output for n in declined for output in self._decline(n, message))]

    def validate(self, pending: Collection[int]) -> None:
        """Check the laws of the fields; raises ``InvariantError``.

        ``pending`` are the checkpoints in progress.
        """
        for subtask, gateway in enumerate(self._gateways):
            late = [n for n in gateway.closed_by if n not in pending]
            invariant(
                not late,
                f"finished checkpoint {late} still closes the gateway to"
                f" {self._operator}/{subtask}",
            )
        for checkpoint_id, snapshot in self._snapshots.items():
            invariant(
                snapshot.taken or not snapshot.awaited,
                f"checkpoint {checkpoint_id} awaits events before its snapshot is taken",
            )
            invariant(
                snapshot.awaited <= self._unconfirmed.keys(),
                f"checkpoint {checkpoint_id} awaits an event that is already confirmed",
            )
            invariant(
                not snapshot.taken or bool(snapshot.awaited),
                f"checkpoint {checkpoint_id} is complete but not reported",
            )

    # -- helpers

    def _receipt(self, number: int, *, handled: bool) -> list[HolderOutput]:
        """The receipt that the coordinator wants for an event, if it does."""
        receipt = self._receipts.pop(number, None)
        if receipt is None:
            return []
        return [EventReceipt(operator=self._operator, receipt=receipt, handled=handled)]

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
        """Decline the checkpoint; when it is aborted, ``over`` opens the gateways."""
        del self._snapshots[checkpoint_id]
        return [
            CoordinatorDeclined(
                operator=self._operator, checkpoint_id=checkpoint_id, message=message
            )
        ]


class SubtaskGateway:
    """Decides which events may go to one subtask and which are held."""

    def __init__(self) -> None:
        self._newest_marked = 0
        #: Checkpoints that are marked and not open yet.
        self._marked: set[int] = set()
        #: The ids of the checkpoints that close the gateway, in order, each followed by the events
        #: sent since. Law: empty, or begins with an id.
        self._queue: list[int | DeliverEvent] = []

    @property
    def closed_by(self) -> list[int]:
        """The checkpoints that close it; while there are any, new events are held."""
        return [entry for entry in self._queue if isinstance(entry, int)]

    def send(self, event: DeliverEvent) -> bool:
        """Whether the event may be sent at once; if not, it is held."""
        if self._queue:
            self._queue.append(event)
        return not self._queue

    def mark(self, checkpoint_id: int) -> None:
        """The coordinator is asked for its snapshot. Ids increase."""
        invariant(
            checkpoint_id > self._newest_marked,
            f"checkpoint {checkpoint_id} marked after checkpoint {self._newest_marked}",
        )
        self._newest_marked = checkpoint_id
        self._marked.add(checkpoint_id)

    def close(self, checkpoint_id: int) -> bool:
        """Close for the coordinator's snapshot; False if the checkpoint is no longer marked."""
        self._check_seen(checkpoint_id)
        if checkpoint_id not in self._marked:
            return False
        self._queue.append(checkpoint_id)
        return True

    def open(self, checkpoint_id: int) -> list[DeliverEvent]:
        """Open for a checkpoint that was acknowledged, completed or aborted.

        Returns the events that may be sent now, in order.
        """
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
        """The subtask failed or is restored: drop held events and forget all checkpoints (C5)."""
        self._marked.clear()
        self._queue.clear()

    def _check_seen(self, checkpoint_id: int) -> None:
        invariant(
            checkpoint_id <= self._newest_marked, f"checkpoint {checkpoint_id} was never marked"
        )
