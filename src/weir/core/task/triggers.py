"""``WaitingTriggers``: the checkpoints that a task has to take, in ascending order of their ids.

A trigger comes from the coordinator, or from barriers aligned in the task's channels. It waits
until the query is held in a planning call and, where operators emit rows before a barrier
(PROTOCOL P6), until a batch has carried the barrier to them.
"""

from __future__ import annotations

from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.task.barrier_handler import Aligned
from weir.core.types import VertexId
from weir.errors import invariant


class WaitingTriggers:
    """The triggers of one task that are waiting to be taken."""

    def __init__(self, vertex: VertexId, *, prepares: bool) -> None:
        """``prepares``: operators take part in the batch before each barrier."""
        self._vertex = vertex
        self._prepares = prepares
        #: By checkpoint id, with its alignment if it came from barriers. Law: ascending.
        self._waiting: dict[int, tuple[TriggerCheckpoint, Aligned | None]] = {}
        #: The newest checkpoint that the coordinator triggered. Ids only grow.
        self._newest = 0
        #: The newest checkpoint whose barrier a batch has carried.
        self.carried = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> TriggerCheckpoint | None:
        """The trigger to be taken next; None if none is waiting."""
        return next((trigger for trigger, _ in self._waiting.values()), None)

    def announced(self, trigger: TriggerCheckpoint) -> None:
        """The coordinator triggers the task.

        Raises ``InvariantError`` if the trigger is for another task or its id is not the newest.
        """
        checkpoint_id = trigger.checkpoint_id
        invariant(
            trigger.vertex == self._vertex,
            f"{self._vertex} received a trigger for {trigger.vertex}",
        )
        invariant(
            checkpoint_id > self._newest,
            f"checkpoint {checkpoint_id} triggered after checkpoint {self._newest}",
        )
        self._newest = checkpoint_id

    def add(self, trigger: TriggerCheckpoint) -> None:
        """Queue a trigger to be taken."""
        self._waiting[trigger.checkpoint_id] = trigger, None

    def add_aligned(self, aligned: Aligned) -> None:
        """Queue the trigger of a checkpoint whose barrier is aligned."""
        trigger = TriggerCheckpoint(vertex=self._vertex, barrier=aligned.barrier)
        self._waiting[trigger.checkpoint_id] = trigger, aligned

    def wants_batch(self, checkpoint_id: int) -> bool:
        """Whether a batch must still carry this checkpoint's barrier to operators (PROTOCOL P6)."""
        return self._prepares and self.carried < checkpoint_id

    def take(self, checkpoint_id: int) -> Aligned | None:
        """Remove a trigger that is taken now; return its alignment, if it came from barriers."""
        return self._waiting.pop(checkpoint_id)[1]

    def drop(self, checkpoint_id: int) -> None:
        """Remove the trigger of an aborted checkpoint, if it waits."""
        self._waiting.pop(checkpoint_id, None)

    def clear(self) -> None:
        """Remove all triggers."""
        self._waiting.clear()

    def validate(self) -> None:
        """Check the law of the fields; raises ``InvariantError``."""
        invariant(list(self._waiting) == sorted(self._waiting), "waiting triggers are out of order")
