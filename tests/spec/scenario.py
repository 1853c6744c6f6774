"""Shared by the scenarios of Flink's tests: a running job on a manual clock and short requests.

Everything goes through ``JobMaster`` as the kernel would drive it; effects are answered by hand, so
that a scenario can stop between any two steps. No thread, no file, no sleep.
"""

from __future__ import annotations

from tests.kit.job_master import MasterWorld, of

from weir.core.messages.job import (
    AllocateLocation,
    AttemptBegan,
    JobMasterEffect,
    JobSubmitted,
    RequestKind,
)
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, TaskStatus


def complete(world: MasterWorld, kind: RequestKind = RequestKind.CHECKPOINT) -> int:
    """Take a whole snapshot, from the user's request to its record; return its id."""
    return world.complete(world.ask(kind))[0]


def allocate_all(world: MasterWorld, effects: list[JobMasterEffect]) -> list[int]:
    """Answer every ``AllocateLocation`` among ``effects`` and what follows; return the new ids."""
    ids = []
    while of(effects, AllocateLocation):
        checkpoint_id, effects = world.allocate(effects)
        ids.append(checkpoint_id)
    return ids


def tick(world: MasterWorld, ms: int) -> list[int]:
    """Advance the clock and trigger every checkpoint that is due; return their ids."""
    end_ms, ids = world.now_ms + ms, list[int]()
    while (deadline := world.master.next_deadline()) is not None and deadline <= end_ms:
        ids += allocate_all(world, world.pass_time(max(0, deadline - world.now_ms)))
    world.pass_time(end_ms - world.now_ms)
    return ids


def pending_ids(world: MasterWorld) -> list[int]:
    """The checkpoints in progress, oldest first."""
    return [pending.checkpoint_id for pending in world.master.coordinator.pending]


def status(world: MasterWorld) -> JobStatus:
    """The job's status."""
    return world.master.status


def take_over(
    world: MasterWorld,
    *,
    attempt: int,
    restored: CompletedCheckpoint | None,
    older: tuple[CompletedCheckpoint, ...] = (),
) -> MasterWorld:
    """Start the next attempt of ``world``'s job in a new ``JobMaster``: its driver has died."""
    successor = MasterWorld(*world.vertices, config=world.config)
    successor.next_id = world.next_id
    successor.handle(JobSubmitted())
    successor.handle(
        AttemptBegan(
            attempt=attempt,
            restored=restored,
            states={} if restored is None else restored.states,
            chance=0.0,
            timestamp_ms=2_000_000,
            older=older,
        )
    )
    successor.status(TaskStatus.RUNNING)
    return successor
