"""A checkpoint in progress (Flink's ``PendingCheckpoint``) as a state machine.

::

    TRIGGERING ──> WAITING ──> FINALIZING ──> COMPLETED
        └─────────────┴─ ─ ─ ─ ─ ─ ┴─ ─ ─ ─> ABORTED

In TRIGGERING the parties before the tasks are asked, one party after the other, in the order of
``Party``; the tasks are the last party and are triggered on the transition to WAITING. No task
knows of a checkpoint that is TRIGGERING.

Only one event takes the dashed arrow from FINALIZING: the outcome of the checkpoint's own record
(PROTOCOL P11). Nothing else aborts a checkpoint whose record is being written, since the record may
already be durable.
"""

from __future__ import annotations

import enum

from weir.core.checkpoints.plan import CheckpointPlan
from weir.core.checkpoints.request_decider import CheckpointRequest
from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.job import RecordCheckpoint
from weir.core.messages.protocol import AcknowledgeCheckpoint, TriggerCheckpoint
from weir.core.status import next_state
from weir.core.types import OperatorId, Payload, SnapshotKind, TaskState, VertexId
from weir.errors import invariant


class PendingState(enum.Enum):
    """The state of a pending checkpoint (PROTOCOL P11)."""

    TRIGGERING = "TRIGGERING"
    WAITING = "WAITING"
    FINALIZING = "FINALIZING"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


PENDING_TRANSITIONS: dict[PendingState, frozenset[PendingState]] = {
    PendingState.TRIGGERING: frozenset({PendingState.WAITING, PendingState.ABORTED}),
    PendingState.WAITING: frozenset({PendingState.FINALIZING, PendingState.ABORTED}),
    PendingState.FINALIZING: frozenset({PendingState.COMPLETED, PendingState.ABORTED}),
    PendingState.COMPLETED: frozenset(),
    PendingState.ABORTED: frozenset(),
}


class Party(enum.Enum):
    """The parties of a checkpoint, in the order they are asked; the values are shown to users.

    A party is asked once all before it have answered (MISSION C2, A8); the tasks come last.
    """

    OPERATOR_COORDINATOR = "operator coordinators"
    MASTER_HOOK = "master hooks"
    TASK = "tasks"


class TaskAcknowledgeResult(enum.Enum):
    """The result of an acknowledgement. Lateness is a result, not an exception."""

    #: It was awaited.
    SUCCESS = "SUCCESS"
    #: The task has already acknowledged this checkpoint, or the checkpoint is completed; nothing
    #: changes.
    DUPLICATE = "DUPLICATE"
    #: The checkpoint does not wait for this task or is not known any more; nothing changes.
    UNKNOWN = "UNKNOWN"
    #: The checkpoint was aborted; what the task wrote for it is deleted.
    DISCARDED = "DISCARDED"


#: States in which a checkpoint expires at its deadline.
_CAN_EXPIRE = (PendingState.TRIGGERING, PendingState.WAITING)


class PendingCheckpoint:
    """One pending checkpoint: who has yet to acknowledge, and what was acknowledged (A7)."""

    def __init__(
        self,
        *,
        checkpoint_id: int,
        request: CheckpointRequest,
        plan: CheckpointPlan,
        target: str | None,
        timestamp_ms: int,
        deadline_ms: int,
        full: bool = False,
        hooks: tuple[str, ...] = (),
        coordinators: tuple[OperatorId, ...] = (),
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.request = request
        #: Which tasks take part. ``waiting_tasks`` is final from WAITING on.
        self.plan = plan
        #: Directory of a savepoint; None for a checkpoint.
        self.target = target
        #: When it was triggered, in milliseconds since the Unix epoch.
        self.timestamp_ms = timestamp_ms
        #: When it expires, on the monotonic clock.
        self.deadline_ms = deadline_ms
        #: It refers to no file of an earlier checkpoint (PROTOCOL P40).
        self.full = full
        self._state = PendingState.TRIGGERING
        #: Who has not answered yet, in the order asked. Law: the plan's tasks without those that
        #: have answered.
        self._awaited: dict[Party, dict[str, None]] = {
            Party.OPERATOR_COORDINATOR: dict.fromkeys(coordinators),
            Party.MASTER_HOOK: dict.fromkeys(hooks),
            Party.TASK: dict.fromkeys(plan.tasks_to_wait_for),
        }
        #: What each task acknowledged.
        self._acknowledged: dict[VertexId, TaskState] = {}
        #: What each party before the tasks returned, by name; a None has no entry.
        self._states: dict[Party, dict[str, Payload]] = {party: {} for party in Party}

    @property
    def state(self) -> PendingState:
        """The state it is in."""
        return self._state

    @property
    def kind(self) -> SnapshotKind:
        """The kind of snapshot."""
        return self.request.kind

    @property
    def next_party(self) -> Party | None:
        """The first party with a member that has not answered; None if all have."""
        return next((party for party in Party if self._awaited[party]), None)

    @property
    def not_yet_acknowledged(self) -> tuple[VertexId, ...]:
        """The tasks that it waits for, or will."""
        return tuple(self._awaited[Party.TASK])

    @property
    def not_yet_acknowledged_hooks(self) -> tuple[str, ...]:
        """The master hooks that it waits for."""
        return tuple(self._awaited[Party.MASTER_HOOK])

    @property
    def fully_acknowledged(self) -> bool:
        """Whether every party has answered."""
        return not any(self._awaited.values())

    @property
    def acknowledged_states(self) -> tuple[TaskState, ...]:
        """What the tasks have acknowledged so far, in the order of the plan."""
        return tuple(
            self._acknowledged[v] for v in self.plan.tasks_to_wait_for if v in self._acknowledged
        )

    @property
    def finished_in_it(self) -> frozenset[VertexId]:
        """Tasks whose records had ended when they took their snapshot."""
        return frozenset(v for v, state in self._acknowledged.items() if state.fully_finished)

    def states(self, party: Party) -> dict[str, Payload]:
        """What a party before the tasks has returned so far, sorted by name."""
        return dict(sorted(self._states[party].items()))

    def awaits(self, party: Party, name: str) -> bool:
        """Whether this member of the party has not answered yet."""
        return name in self._awaited[party]

    def describe_missing(self) -> str:
        """Who holds it up, for messages."""
        party = self.next_party
        if party is None:
            return "all acknowledged, but an older checkpoint was still being recorded"
        return f"{party.value} that did not acknowledge: {', '.join(self._awaited[party])}"

    def answered(self, party: Party, name: str, state: Payload | None) -> bool:
        """Take an answer of a party before the tasks; returns whether all of it has answered."""
        invariant(
            name in self._awaited[party],
            f"{self} does not wait for {party.value.removesuffix('s')} {name!r}",
        )
        invariant(
            self._state is PendingState.TRIGGERING,
            f"{self} cannot accept answers from {party.value}",
        )
        del self._awaited[party][name]
        if state is not None:
            self._states[party][name] = state
        return not self._awaited[party]

    def tasks_triggered(self, plan: CheckpointPlan) -> None:
        """Move from TRIGGERING to WAITING; ``plan`` is the current plan, with the same tasks."""
        invariant(
            self.next_party in (Party.TASK, None),
            f"{self} triggers tasks before all coordinators and hooks answered",
        )
        invariant(plan.has_tasks_of(self.plan), f"{self} triggers unplanned tasks")
        self._move(PendingState.WAITING)
        self.plan = plan

    def triggers(self) -> list[TriggerCheckpoint]:
        """The triggers for its tasks."""
        barrier = CheckpointBarrier(
            checkpoint_id=self.checkpoint_id,
            kind=self.kind,
            timestamp_ms=self.timestamp_ms,
            target=self.target,
            full=self.full,
        )
        return [
            TriggerCheckpoint(vertex=vertex, barrier=barrier, drain=self.request.drain)
            for vertex in self.plan.tasks_to_trigger
        ]

    def record(
        self, *, attempt: int, tasks: tuple[TaskState, ...], retained: tuple[int, ...]
    ) -> RecordCheckpoint:
        """The effect that records it with the states of ``tasks``."""
        return RecordCheckpoint(
            checkpoint_id=self.checkpoint_id,
            kind=self.kind,
            target=self.target,
            timestamp_ms=self.timestamp_ms,
            attempt=attempt,
            tasks=tasks,
            retained=retained,
            hook_states=self.states(Party.MASTER_HOOK),
            coordinator_states=self.states(Party.OPERATOR_COORDINATOR),
        )

    def expires_at(self, now_ms: int) -> bool:
        """Whether it can still expire and its deadline has come."""
        return self._state in _CAN_EXPIRE and self.deadline_ms <= now_ms

    def acknowledge(self, event: AcknowledgeCheckpoint) -> TaskAcknowledgeResult:
        """Take a task's acknowledgement and return its result."""
        if event.vertex in self._acknowledged:
            return TaskAcknowledgeResult.DUPLICATE
        if event.vertex not in self._awaited[Party.TASK]:
            return TaskAcknowledgeResult.UNKNOWN
        invariant(self._state is PendingState.WAITING, f"{self} cannot accept an acknowledgement")
        del self._awaited[Party.TASK][event.vertex]
        self._acknowledged[event.vertex] = event.state
        return TaskAcknowledgeResult.SUCCESS

    def begin_finalizing(self) -> None:
        """Its record is being written: WAITING -> FINALIZING.

        Raises ``InvariantError`` if a task has not acknowledged.
        """
        invariant(
            self.fully_acknowledged, f"{self} is finalized without {self.not_yet_acknowledged}"
        )
        self._move(PendingState.FINALIZING)

    def record_won(self) -> None:
        """Its record is durable: FINALIZING -> COMPLETED."""
        self._move(PendingState.COMPLETED)

    def record_lost(self) -> None:
        """Nothing was recorded, for certain: FINALIZING -> ABORTED."""
        invariant(self._state is PendingState.FINALIZING, f"{self} has no record to lose")
        self._move(PendingState.ABORTED)

    def abort(self) -> None:
        """Abort it.

        Raises ``InvariantError`` in FINALIZING, where only the record's outcome decides (P11).
        """
        invariant(
            self._state is not PendingState.FINALIZING,
            f"{self} is aborted while its record is being written",
        )
        self._move(PendingState.ABORTED)

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        awaited, answered = self._awaited[Party.TASK].keys(), self._acknowledged.keys()
        invariant(not awaited & answered, f"{self} waits for a task that has acknowledged")
        invariant(
            awaited | answered == set(self.plan.tasks_to_wait_for),
            f"{self} does not cover exactly the tasks of its plan",
        )
        if self._state in (PendingState.FINALIZING, PendingState.COMPLETED):
            invariant(
                self.fully_acknowledged,
                f"{self} lacks acknowledgements of {self.not_yet_acknowledged}",
            )
        if self._state is PendingState.TRIGGERING:
            invariant(not answered, f"{self} was acknowledged before its tasks were triggered")
        elif self._state is PendingState.WAITING:
            before = [party for party in Party if party is not Party.TASK and self._awaited[party]]
            invariant(not before, f"{self} triggered its tasks before {before} answered")

    def __str__(self) -> str:
        return f"pending checkpoint {self.checkpoint_id} ({self._state.name})"

    def _move(self, target: PendingState) -> None:
        what = f"checkpoint {self.checkpoint_id}"
        self._state = next_state(PENDING_TRANSITIONS, what, self._state, target)


class PendingCheckpoints(dict[int, PendingCheckpoint]):
    """The checkpoints in progress, by id.

    Laws: ids ascend; at most one is FINALIZING; none is COMPLETED or ABORTED; only the newest may
    be TRIGGERING.
    """

    @property
    def finalizing(self) -> PendingCheckpoint | None:
        """The checkpoint whose record is being written."""
        return next((p for p in self.values() if p.state is PendingState.FINALIZING), None)

    @property
    def triggering(self) -> PendingCheckpoint | None:
        """The checkpoint whose tasks are not triggered yet."""
        newest = next(reversed(self.values()), None)
        if newest is None or newest.state is not PendingState.TRIGGERING:
            return None
        return newest

    @property
    def ready(self) -> PendingCheckpoint | None:
        """The oldest fully acknowledged checkpoint; None while a record is being written."""
        if self.finalizing is not None:
            return None
        return next((p for p in self.values() if p.fully_acknowledged), None)

    def next_deadline(self) -> int | None:
        """When the next checkpoint expires, in monotonic ms."""
        return min((p.deadline_ms for p in self.values() if p.state in _CAN_EXPIRE), default=None)

    def covers(self, vertex: VertexId) -> bool:
        """Whether a committing checkpoint comes after the end of ``vertex``'s records."""
        pending = (p for p in self.values() if p.kind.commits_side_effects)
        return any(
            p.state is PendingState.TRIGGERING or vertex in p.plan.waiting_tasks for p in pending
        )

    def validate(self) -> None:
        """Check the laws; raises ``InvariantError``."""
        invariant(list(self) == sorted(self), "pending checkpoints are out of order")
        finalizing = [p for p in self.values() if p.state is PendingState.FINALIZING]
        invariant(len(finalizing) <= 1, "two checkpoints are being recorded at once")
        triggering = [p for p in self.values() if p.state is PendingState.TRIGGERING]
        newest = [] if self.triggering is None else [self.triggering]
        invariant(
            triggering == newest, "a checkpoint was triggered while another one was being triggered"
        )
        for checkpoint_id, pending in self.items():
            under_way = (*_CAN_EXPIRE, PendingState.FINALIZING)
            invariant(
                pending.checkpoint_id == checkpoint_id,
                "a pending checkpoint is stored under another id",
            )
            invariant(pending.state in under_way, f"{pending} is over but still pending")
            pending.validate()
