"""Which checkpoints are full (PROTOCOL P40).

Scenarios of Flink's ``CheckpointCoordinatorTriggeringTest``.
"""

from __future__ import annotations

import pytest
from master_harness import World, checkpoint, of, task_state

from weir.core.config import CheckpointConfig
from weir.core.messages.job import (
    RequestKind,
    SnapshotRequested,
    TasksStopped,
)
from weir.core.messages.protocol import TaskFailed, TriggerCheckpoint
from weir.core.types import CheckpointType, CompletedCheckpoint, SnapshotKind, TaskStatus

FOREIGN = checkpoint(7, task_state("a"), job_id="f" * 32)
OWN = checkpoint(7, task_state("a"))
OWN_SAVEPOINT = checkpoint(7, task_state("a"), kind=SnapshotKind.SAVEPOINT)
CONFIGURED, FULL, INCREMENTAL = (
    CheckpointType.CONFIGURED,
    CheckpointType.FULL,
    CheckpointType.INCREMENTAL,
)


def world(restored: CompletedCheckpoint | None = None) -> World:
    config = CheckpointConfig(
        interval_ms=None, max_concurrent_checkpoints=3, tolerable_failed_checkpoints=9
    )
    subject = World("a", config=config)
    subject.next_id = 8
    return subject.running(restored=restored)


def trigger(
    subject: World, kind: RequestKind = RequestKind.CHECKPOINT, type_: CheckpointType = CONFIGURED
) -> tuple[int, bool]:
    """Trigger a checkpoint; return its id and whether its task was asked for a full snapshot."""
    name = f"r{len(subject.effects)}"
    asked = subject.handle(SnapshotRequested(request=name, kind=kind, checkpoint_type=type_))
    n, effects = subject.allocate(asked)
    (full,) = {effect.barrier.full for effect in of(effects, TriggerCheckpoint)}
    return n, full


def complete(subject: World, n: int) -> None:
    subject.record(subject.acknowledge(n))


def next_attempt(subject: World, restored: CompletedCheckpoint | None) -> None:
    attempt = subject.master.attempt
    subject.handle(TaskFailed(vertex="a", attempt=attempt, message="boom"))
    subject.handle(TasksStopped(attempt=attempt, chance=0.0))
    subject.pass_time(1_000)
    subject.begin(attempt + 1, restored)
    subject.status(TaskStatus.RUNNING)


@pytest.mark.parametrize("restored", [None, FOREIGN, OWN_SAVEPOINT])
def test_checkpoints_are_full_until_the_first_one_completed(
    restored: CompletedCheckpoint | None,
) -> None:
    """After a fresh start, a start from another job's snapshot and a start from a savepoint."""
    subject = world(restored)
    first, full = trigger(subject)
    assert full
    subject.decline(first, "a")
    second, full = trigger(subject)
    assert full
    complete(subject, second)
    assert trigger(subject)[1] is False


def test_a_job_that_continues_from_its_own_checkpoint_owes_no_full_one() -> None:
    """The job owns that checkpoint's files."""
    assert trigger(world(OWN))[1] is False


@pytest.mark.parametrize("type_", list(CheckpointType))
def test_the_type_that_a_user_asks_for_is_overridden_by_the_duty(type_: CheckpointType) -> None:
    """INCREMENTAL is overridden to FULL."""
    assert trigger(world(FOREIGN), type_=type_)[1]


@pytest.mark.parametrize(
    ("type_", "full"), [(CONFIGURED, False), (INCREMENTAL, False), (FULL, True)]
)
def test_without_the_duty_a_checkpoint_is_what_the_user_asks_for(
    type_: CheckpointType, full: bool
) -> None:
    """CONFIGURED means incremental."""
    assert trigger(world(OWN), type_=type_)[1] is full


def test_an_intermediate_savepoint_does_not_discharge_the_duty() -> None:
    """It is full itself, but no checkpoint may build on it."""
    subject = world(FOREIGN)
    savepoint, full = trigger(subject, RequestKind.SAVEPOINT)
    assert full
    complete(subject, savepoint)
    assert trigger(subject)[1]


def test_savepoints_are_always_full() -> None:
    """They are self-contained."""
    assert trigger(world(OWN), RequestKind.SAVEPOINT, INCREMENTAL)[1]
    assert trigger(world(OWN), RequestKind.STOP)[1]


def test_the_duty_survives_a_new_attempt() -> None:
    """The attempt is restored from the same savepoint again."""
    subject = world(FOREIGN)
    trigger(subject)
    next_attempt(subject, FOREIGN)
    assert trigger(subject, type_=INCREMENTAL)[1]


def test_a_new_attempt_from_the_full_checkpoint_owes_none() -> None:
    """The duty is discharged permanently."""
    subject = world(FOREIGN)
    n, _ = trigger(subject)
    complete(subject, n)
    next_attempt(subject, checkpoint(n, task_state("a")))
    assert trigger(subject)[1] is False


def test_the_duty_is_back_when_an_attempt_falls_back_to_the_savepoint() -> None:
    """The checkpoints after the savepoint could not be used."""
    subject = world(OWN_SAVEPOINT)
    n, _ = trigger(subject)
    complete(subject, n)
    next_attempt(subject, OWN_SAVEPOINT)
    assert trigger(subject)[1]


def test_a_checkpoint_triggered_while_a_full_one_is_pending_is_full_too() -> None:
    """It may complete first and subsume the full one."""
    subject = world(OWN)
    first, _ = trigger(subject, type_=FULL)
    second, full = trigger(subject)
    assert full
    complete(subject, second)
    assert first not in {p.checkpoint_id for p in subject.master.coordinator.pending}
    assert trigger(subject)[1] is False


def test_a_pending_savepoint_does_not_make_checkpoints_full() -> None:
    """Nothing ever builds on a savepoint."""
    subject = world(OWN)
    trigger(subject, RequestKind.SAVEPOINT)
    assert trigger(subject)[1] is False
