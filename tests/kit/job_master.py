"""A small world around ``JobMaster``: it carries out no effect, but answers as a kernel would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from weir.core.checkpoints.store import CompletedCheckpointStore
from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.execution import Execution
from weir.core.job.master import JobMaster
from weir.core.messages.job import (
    AllocateLocation,
    AttemptBegan,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    JobMasterEffect,
    JobMasterEvent,
    JobSubmitted,
    LocationAllocated,
    RecordCheckpoint,
    RequestKind,
    SnapshotRequested,
    TasksStopped,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    CaughtUp,
    DeclineCheckpoint,
    TaskFailed,
    TaskStatusChanged,
)
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType, UntilIdle
from weir.core.types import (
    UNKNOWN,
    Cause,
    CheckpointType,
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotKind,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    TaskStatus,
)
from weir.core.types import CheckpointFailureReason as Reason

E = TypeVar("E")
JOB_ID = "0" * 32
RESTART_DELAY_MS = 1_000
RESTART = RestartConfig(
    type=RestartStrategyType.FIXED_DELAY, fixed_delay_attempts=3, fixed_delay_ms=RESTART_DELAY_MS
)


def operators(vertex: str, *, finished: bool = False) -> tuple[OperatorState, ...]:
    """The one operator of a vertex."""
    return (
        OperatorState(operator_id=f"{vertex}-op", name=f"{vertex}-op", fully_finished=finished),
    )


def task_state(
    vertex: str,
    *,
    position: int = 0,
    files: tuple[str, ...] = (),
    committables: tuple[Committable, ...] = (),
    finished: bool = False,
) -> TaskState:
    """What a task acknowledges."""
    return TaskState(
        vertex=vertex,
        position=position,
        operators=operators(vertex, finished=finished),
        files=tuple(
            StateHandle(key=path, path=path, size=1, checksum="crc32:00000000") for path in files
        ),
        committables=committables,
    )


def completed(record: RecordCheckpoint) -> CompletedCheckpoint:
    """The checkpoint that a won record creates."""
    return CompletedCheckpoint(
        job_id=JOB_ID,
        checkpoint_id=record.checkpoint_id,
        kind=record.kind,
        timestamp_ms=record.timestamp_ms,
        completion_timestamp_ms=record.timestamp_ms + 1,
        attempt=record.attempt,
        tasks=record.tasks,
        external_path=record.target or f"/checkpoints/{JOB_ID}/chk-{record.checkpoint_id}",
        drained=all(task.fully_finished for task in record.tasks),
        coordinator_states=record.coordinator_states,
    )


def checkpoint(
    checkpoint_id: int,
    *tasks: TaskState,
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
    job_id: str = JOB_ID,
) -> CompletedCheckpoint:
    """A completed checkpoint."""
    return CompletedCheckpoint(
        job_id=job_id,
        checkpoint_id=checkpoint_id,
        kind=kind,
        timestamp_ms=checkpoint_id,
        completion_timestamp_ms=checkpoint_id,
        attempt=1,
        tasks=tasks,
        external_path=f"/checkpoints/{checkpoint_id}",
    )


class MasterWorld:
    """A job master, its clock, and every effect it has produced."""

    def __init__(
        self,
        *vertices: str,
        config: CheckpointConfig | None = None,
        restart: RestartConfig = RESTART,
        savepoint_directory: str | None = "/savepoints",
        hooks: tuple[str, ...] = (),
        cleans: bool = True,
        producers: dict[str, tuple[str, ...]] | None = None,
        coordinated: dict[str, CoordinatedOperator] | None = None,
        until_idle: UntilIdle | None = None,
    ) -> None:
        #: Whether every deletion finishes at once.
        self.cleans = cleans
        self.vertices = vertices or ("a", "b")
        self.now_ms = 0
        self.wall_ms = 1_000_000
        self.next_id = 1
        self.config = config or CheckpointConfig(interval_ms=None)
        self.effects: list[JobMasterEffect] = []
        self.master = JobMaster(
            job_id=JOB_ID,
            vertices={vertex: operators(vertex) for vertex in self.vertices},
            config=self.config,
            restart=restart,
            savepoint_directory=savepoint_directory,
            hooks=hooks,
            producers=producers,
            coordinated=coordinated,
            until_idle=until_idle,
        )

    def handle(self, event: JobMasterEvent) -> list[JobMasterEffect]:
        """Hand one event in, check all laws, and record the effects."""
        effects = self.master.handle(event, self.now_ms)
        self.master.validate()
        self.effects.extend(effects)
        return effects + self.clean(effects)

    def clean(self, effects: list[JobMasterEffect]) -> list[JobMasterEffect]:
        """Finish the deletions among ``effects`` if they finish at once; return what followed."""
        discards = of(effects, DiscardCheckpoint) if self.cleans else []
        return [
            e
            for d in discards
            for e in self.handle(CheckpointDiscarded(checkpoint_id=d.checkpoint_id))
        ]

    def pass_time(self, ms: int) -> list[JobMasterEffect]:
        """Advance the clock, firing every deadline on the way."""
        end_ms, out = self.now_ms + ms, []
        while (deadline := self.master.next_deadline()) is not None and deadline <= end_ms:
            self.now_ms = max(deadline, self.now_ms)
            effects = self.master.on_deadline(self.now_ms)
            self.master.validate()
            self.effects.extend(effects)
            out += effects + self.clean(effects)
        self.now_ms = end_ms
        return out

    def submit(self, restored: CompletedCheckpoint | None = None, *, chance: float = 0.0) -> None:
        """Submit the job and let its first attempt start."""
        self.handle(JobSubmitted())
        self.begin(1, restored, chance=chance)

    def begin(
        self, attempt: int, restored: CompletedCheckpoint | None = None, *, chance: float = 0.0
    ) -> None:
        """Let an attempt start."""
        self.handle(
            AttemptBegan(
                attempt=attempt,
                restored=restored,
                states={} if restored is None else restored.states,
                chance=chance,
                timestamp_ms=self.wall_ms + self.now_ms,
            )
        )

    def ask(
        self,
        kind: RequestKind = RequestKind.CHECKPOINT,
        name: str | None = None,
        *,
        checkpoint_type: CheckpointType = CheckpointType.CONFIGURED,
    ) -> list[JobMasterEffect]:
        """Request a snapshot as a user; return what followed at once."""
        request = name or f"request-{len(self.effects)}"
        event = SnapshotRequested(request=request, kind=kind, checkpoint_type=checkpoint_type)
        return self.handle(event)

    def trigger(self, kind: RequestKind = RequestKind.CHECKPOINT, name: str | None = None) -> int:
        """Request a snapshot as a user and trigger it; return its id."""
        return self.allocate(self.ask(kind, name))[0]

    def fail(self, vertex: str | None = None, cause: Cause = UNKNOWN) -> list[JobMasterEffect]:
        """Fail a task; the first one if none is named."""
        event = TaskFailed(
            vertex=vertex or self.vertices[0],
            attempt=self.master.attempt,
            message="out of memory",
            cause=cause,
        )
        return self.handle(event)

    def stopped(self) -> list[JobMasterEffect]:
        """Report the tasks of the attempt as stopped."""
        return self.handle(TasksStopped(attempt=self.master.attempt, chance=0.0))

    def fail_over(self, restored: CompletedCheckpoint | None = None) -> None:
        """Fail the first task and bring the job back to RUNNING in a new attempt."""
        self.fail()
        self.stopped()
        self.pass_time(RESTART_DELAY_MS)
        self.begin(self.master.attempt + 1, restored)
        self.status(TaskStatus.RUNNING)

    def status(self, status: TaskStatus, *vertices: str) -> list[JobMasterEffect]:
        """Report a status for these tasks; for all tasks if none is named."""
        out = []
        for vertex in vertices or self.vertices:
            attempt = self.master.attempt
            out += self.handle(TaskStatusChanged(vertex=vertex, attempt=attempt, status=status))
        return out

    def caught_up(self, *vertices: str) -> list[JobMasterEffect]:
        """These tasks have read what was available; all tasks if none is named."""
        attempt = self.master.attempt
        told = [CaughtUp(vertex=vertex, attempt=attempt) for vertex in vertices or self.vertices]
        return [effect for event in told for effect in self.handle(event)]

    def running(self, **kwargs: CompletedCheckpoint | None) -> MasterWorld:
        """Submit the job and bring all its tasks to RUNNING."""
        self.submit(**kwargs)
        self.status(TaskStatus.RUNNING)
        return self

    def allocate(self, effects: list[JobMasterEffect]) -> tuple[int, list[JobMasterEffect]]:
        """Answer the one AllocateLocation among ``effects``; return the id and what followed."""
        allocation = only(effects, AllocateLocation)
        checkpoint_id, self.next_id = self.next_id, self.next_id + 1
        is_savepoint = allocation.kind.is_savepoint
        out = self.handle(
            LocationAllocated(
                allocation=allocation.allocation,
                checkpoint_id=checkpoint_id,
                target=f"{allocation.target}/savepoint-{checkpoint_id}" if is_savepoint else None,
                timestamp_ms=self.wall_ms + self.now_ms,
            )
        )
        return checkpoint_id, out

    def acknowledge(self, checkpoint_id: int, *states: TaskState | str) -> list[JobMasterEffect]:
        """Acknowledge for these tasks; for all of them if none is named."""
        out = []
        for state in states or self.vertices:
            value = task_state(state) if isinstance(state, str) else state
            out += self.handle(
                AcknowledgeCheckpoint(
                    vertex=value.vertex,
                    attempt=self.master.attempt,
                    checkpoint_id=checkpoint_id,
                    state=value,
                    metrics=SnapshotMetrics(),
                )
            )
        return out

    def decline(
        self, checkpoint_id: int, vertex: str, reason: Reason = Reason.CHECKPOINT_DECLINED
    ) -> list[JobMasterEffect]:
        """Decline for one task."""
        return self.handle(
            DeclineCheckpoint(
                vertex=vertex,
                attempt=self.master.attempt,
                checkpoint_id=checkpoint_id,
                reason=reason,
                message="the disk is full",
            )
        )

    def record(
        self, effects: list[JobMasterEffect], outcome: Recorded = Recorded.WON
    ) -> list[JobMasterEffect]:
        """Answer the one RecordCheckpoint among ``effects``."""
        record = only(effects, RecordCheckpoint)
        won = completed(record) if outcome is Recorded.WON else None
        return self.handle(
            CheckpointRecorded(
                checkpoint_id=record.checkpoint_id, outcome=outcome, checkpoint=won, message="disk"
            )
        )

    def complete(
        self, effects: list[JobMasterEffect], *states: TaskState
    ) -> tuple[int, list[JobMasterEffect]]:
        """Take a whole checkpoint from its AllocateLocation to its won record."""
        checkpoint_id, _ = self.allocate(effects)
        return checkpoint_id, self.record(self.acknowledge(checkpoint_id, *states))


def running_job(
    *vertices: str,
    restored: CompletedCheckpoint | None = None,
    hooks: tuple[str, ...] = (),
    cleans: bool = True,
    **checkpointing: Any,
) -> MasterWorld:
    """A running job of two tasks, or of those named, that tolerates a hundred failed checkpoints.

    Without an interval only requests trigger a checkpoint.
    """
    settings = {"interval_ms": None, "tolerable_failed_checkpoints": 100, **checkpointing}
    world = MasterWorld(*vertices, config=CheckpointConfig(**settings), hooks=hooks, cleans=cleans)
    return world.running(restored=restored)


def retained_files(store: CompletedCheckpointStore) -> frozenset[str]:
    """Paths of all files that a retained checkpoint needs."""
    return frozenset(path for checkpoint in store._retained for path in checkpoint.files)


def execution(
    statuses: Mapping[str, TaskStatus], producers: dict[str, tuple[str, ...]] | None = None
) -> Execution:
    """An attempt whose tasks have these statuses."""
    subject = Execution({vertex: operators(vertex) for vertex in statuses}, producers or {})
    for vertex, status in statuses.items():
        subject.set_status(vertex, status)
    return subject


def of(effects: list[JobMasterEffect], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def only(effects: list[JobMasterEffect], kind: type[E]) -> E:
    """The one effect of its kind."""
    found = of(effects, kind)
    assert len(found) == 1, f"expected one {kind.__name__} in {effects}"
    return found[0]


def with_interval(interval_ms: int = 100, **changes: int) -> CheckpointConfig:
    """Periodic checkpoints, with some settings changed."""
    return replace(
        CheckpointConfig(interval_ms=interval_ms, tolerable_failed_checkpoints=100), **changes
    )
