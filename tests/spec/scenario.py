"""Shared by the scenarios of Flink's tests: a running job on a manual clock and short requests.

Everything goes through ``JobMaster`` as the kernel would drive it; effects are answered by hand, so
that a scenario can stop between any two steps. No thread, no file, no sleep.
"""

from __future__ import annotations

from tests.core.master_harness import World, of

from weir.core.config import CheckpointConfig
from weir.core.messages.job import (
    AllocateLocation,
    AttemptBegan,
    JobMasterEffect,
    JobSubmitted,
    RequestKind,
    SnapshotRequested,
    TasksStopped,
)
from weir.core.messages.protocol import TaskFailed
from weir.core.status import JobStatus
from weir.core.types import CheckpointType, CompletedCheckpoint, TaskStatus

#: The delay of the restart strategy of ``World``.
RESTART_DELAY_MS = 1_000


def job(
    *vertices: str,
    restored: CompletedCheckpoint | None = None,
    cleans: bool = True,
    interval_ms: int | None = None,
    timeout_ms: int = 600_000,
    min_pause_ms: int = 0,
    max_concurrent_checkpoints: int = 1,
    tolerable_failed_checkpoints: int = 100,
    num_retained: int = 1,
) -> World:
    """A running job of two tasks, or of those named.

    Without an interval only requests trigger a checkpoint.
    """
    config = CheckpointConfig(
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        min_pause_ms=min_pause_ms,
        max_concurrent_checkpoints=max_concurrent_checkpoints,
        tolerable_failed_checkpoints=tolerable_failed_checkpoints,
        num_retained=num_retained,
    )
    return World(*vertices, config=config, cleans=cleans).running(restored=restored)


def ask(
    world: World,
    kind: RequestKind = RequestKind.CHECKPOINT,
    *,
    name: str | None = None,
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED,
) -> list[JobMasterEffect]:
    """Request a snapshot as a user; return what followed at once."""
    request = name or f"request-{len(world.effects)}"
    event = SnapshotRequested(request=request, kind=kind, checkpoint_type=checkpoint_type)
    return world.handle(event)


def trigger(
    world: World, kind: RequestKind = RequestKind.CHECKPOINT, *, name: str | None = None
) -> int:
    """Request a snapshot as a user and trigger it; return its id."""
    return world.allocate(ask(world, kind, name=name))[0]


def complete(world: World, kind: RequestKind = RequestKind.CHECKPOINT) -> int:
    """Take a whole snapshot, from the user's request to its record; return its id."""
    return world.complete(ask(world, kind))[0]


def allocate_all(world: World, effects: list[JobMasterEffect]) -> list[int]:
    """Answer every ``AllocateLocation`` among ``effects`` and what follows; return the new ids."""
    ids = []
    while of(effects, AllocateLocation):
        checkpoint_id, effects = world.allocate(effects)
        ids.append(checkpoint_id)
    return ids


def tick(world: World, ms: int) -> list[int]:
    """Advance the clock and trigger every checkpoint that is due; return their ids."""
    end_ms, ids = world.now_ms + ms, list[int]()
    while (deadline := world.master.next_deadline()) is not None and deadline <= end_ms:
        ids += allocate_all(world, world.pass_time(max(0, deadline - world.now_ms)))
    world.pass_time(end_ms - world.now_ms)
    return ids


def pending_ids(world: World) -> list[int]:
    """The checkpoints in progress, oldest first."""
    return [pending.checkpoint_id for pending in world.master.coordinator.pending]


def status(world: World) -> JobStatus:
    """The job's status."""
    return world.master.status


def fail(world: World) -> list[JobMasterEffect]:
    """Fail the first task."""
    event = TaskFailed(
        vertex=world.vertices[0], attempt=world.master.attempt, message="out of memory"
    )
    return world.handle(event)


def fail_over(world: World, restored: CompletedCheckpoint | None) -> None:
    """Fail the first task and bring the job back to RUNNING in a new attempt of the same driver."""
    attempt = world.master.attempt
    fail(world)
    world.handle(TasksStopped(attempt=attempt, chance=0.0))
    world.pass_time(RESTART_DELAY_MS)
    world.begin(attempt + 1, restored)
    world.status(TaskStatus.RUNNING)


def take_over(
    world: World,
    *,
    attempt: int,
    restored: CompletedCheckpoint | None,
    older: tuple[CompletedCheckpoint, ...] = (),
) -> World:
    """Start the next attempt of ``world``'s job in a new ``JobMaster``: its driver has died."""
    successor = World(*world.vertices, config=world.config)
    successor.next_id = world.next_id
    successor.handle(JobSubmitted())
    successor.handle(
        AttemptBegan(
            attempt=attempt, restored=restored, chance=0.0, timestamp_ms=2_000_000, older=older
        )
    )
    successor.status(TaskStatus.RUNNING)
    return successor
