"""``WaitingTriggers``: the checkpoints that a task has to take, in ascending order of their ids.

A trigger comes from the coordinator, or from barriers aligned in the task's channels. It waits
until the query is held in a planning call and, where operators emit rows before a barrier
(PROTOCOL P6), until a batch has carried the barrier to them.

Where the readers of the task's source say themselves when a checkpoint is due (MISSION B4), the
coordinator's trigger only says that a checkpoint is wanted. It waits until all readers have reached
its *point*, by the end of a batch; a reader without splits has nothing before any point. A reader
that has reached a point reads nothing more until the checkpoint is *over* for it: the snapshot is
being taken, or never will be, since

- it belongs to an earlier attempt;
- the checkpoint was aborted, even before the task was triggered: its coordinator knew of it;
- a newer checkpoint is triggered, and this one was not;
- another reader has gone on to the point of a newer checkpoint: the task declines it.

Readers may reach a point before the trigger comes. Once the records have ended, nothing more can
come after any point, and triggers are taken as ever.

The subtasks keep the point of such a checkpoint, and the core passes it on. A reader that has
reported a checkpoint's id keeps the id in its state, since its next batch may run in another
process. The answer to the planning call says when the checkpoint is over. An event of the
coordinator could not: a closed gateway would hold it back. Nor could a notification: it comes when
the checkpoint completes, long after the barrier.
"""

from __future__ import annotations

from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.messages.task import InducedCheckpoint
from weir.core.task.barrier_handler import Aligned
from weir.core.task.plan import TaskPlan
from weir.errors import invariant


class WaitingTriggers:
    """The triggers of one task that are waiting to be taken."""

    def __init__(self, plan: TaskPlan, allocated: int) -> None:
        """``allocated``: the newest checkpoint id of the job before the attempt."""
        self._vertex = plan.vertex
        self._induced = plan.externally_induced
        self._beside_batches = plan.may_snapshot_beside_batches
        #: Whether a batch of this attempt is complete.
        self._has_run = False
        #: Whether the query's state can be read beside a batch, as it last said.
        self.outlives_call = False
        #: By checkpoint id, with its alignment if it came from barriers. Law: ascending.
        self._waiting: dict[int, tuple[TriggerCheckpoint, Aligned | None]] = {}
        #: The newest checkpoint that the coordinator triggered. Ids only grow.
        self._newest = 0
        #: The newest checkpoint whose barrier a batch has carried.
        self.carried = 0
        #: How far readers that induce checkpoints are, after the running batch and before it.
        self._staged: InducedCheckpoint | None = None
        self._reached: InducedCheckpoint | None = None
        #: No checkpoint up to this id will be taken, except for those that wait.
        self._over = allocated

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> TriggerCheckpoint | None:
        """The trigger to be taken next; None if none is waiting."""
        return next((trigger for trigger, _ in self._waiting.values()), None)

    @property
    def is_first_aligned(self) -> bool:
        """Whether barriers brought the trigger to be taken next."""
        return next((aligned is not None for _, aligned in self._waiting.values()), False)

    def due(self, *, records_flow: bool) -> TriggerCheckpoint | None:
        """The trigger to be taken next; None if none waits, or until readers reach its point."""
        first, reached = self.first, self._reached
        if first is None or not (self._induced and records_flow):
            return first
        if reached is None or not reached.by_all:
            return None
        return first if reached.checkpoint_id in (0, first.checkpoint_id) else None

    @property
    def state_outlives_batch(self) -> bool:
        """Whether the state at the last complete batch can be read while the next one runs.

        Not before the attempt's first batch is complete: the state would hold nothing new.
        """
        return self._has_run and self._beside_batches and self.outlives_call

    @property
    def over(self) -> int | None:
        """The newest checkpoint that is over for readers that induce them; None if none do."""
        if not self._induced:
            return None
        first = self.first
        return self._over if first is None else min(self._over, first.checkpoint_id - 1)

    def staged(self, induced: InducedCheckpoint | None) -> None:
        """How far readers are once the running batch is complete."""
        self._staged = induced

    def completed(self, *, ran: bool) -> list[int]:
        """The last batch, if any ``ran``, is complete; return the checkpoints that readers skipped.

        They are removed, and the task must decline them.
        """
        self._has_run |= ran
        self._reached = self._staged
        newest = 0 if self._reached is None else self._reached.checkpoint_id
        skipped = [checkpoint_id for checkpoint_id in self._waiting if checkpoint_id < newest]
        for checkpoint_id in skipped:
            self.drop(checkpoint_id)
        return skipped

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
        self._over = max(self._over, checkpoint_id - 1)

    def add(self, trigger: TriggerCheckpoint) -> None:
        """Queue a trigger to be taken."""
        self._waiting[trigger.checkpoint_id] = trigger, None

    def add_aligned(self, aligned: Aligned) -> None:
        """Queue the trigger of a checkpoint whose barrier is aligned."""
        trigger = TriggerCheckpoint(vertex=self._vertex, barrier=aligned.barrier)
        self._waiting[trigger.checkpoint_id] = trigger, aligned

    def take(self, checkpoint_id: int) -> Aligned | None:
        """Remove a trigger that is taken now; return its alignment, if it came from barriers."""
        self._over = max(self._over, checkpoint_id)
        return self._waiting.pop(checkpoint_id)[1]

    def drop(self, checkpoint_id: int) -> None:
        """The checkpoint will not be taken; remove its trigger, if it waits."""
        self._over = max(self._over, checkpoint_id)
        self._waiting.pop(checkpoint_id, None)

    def clear(self) -> None:
        """Remove all triggers."""
        self._waiting.clear()

    def validate(self) -> None:
        """Check the law of the fields; raises ``InvariantError``."""
        invariant(list(self._waiting) == sorted(self._waiting), "waiting triggers are out of order")
