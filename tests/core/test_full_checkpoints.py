"""Which checkpoints are full (PROTOCOL P40).

Scenarios of Flink's ``CheckpointCoordinatorTriggeringTest``.
"""

from __future__ import annotations

import pytest
from tests.kit.job_master import MasterWorld, checkpoint, of, running_job, task_state

from weir.core.messages.job import RequestKind
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.types import CheckpointType, CompletedCheckpoint, SnapshotKind

FOREIGN = checkpoint(7, task_state("a"), job_id="f" * 32)
OWN = checkpoint(7, task_state("a"))
OWN_SAVEPOINT = checkpoint(7, task_state("a"), kind=SnapshotKind.SAVEPOINT)
CONFIGURED, FULL, INCREMENTAL = (
    CheckpointType.CONFIGURED,
    CheckpointType.FULL,
    CheckpointType.INCREMENTAL,
)


def world(restored: CompletedCheckpoint | None = None) -> MasterWorld:
    subject = running_job(
        "a", restored=restored, max_concurrent_checkpoints=3, tolerable_failed_checkpoints=9
    )
    subject.next_id = 8
    return subject


def trigger(
    subject: MasterWorld,
    kind: RequestKind = RequestKind.CHECKPOINT,
    type_: CheckpointType = CONFIGURED,
) -> tuple[int, bool]:
    """Trigger a checkpoint; return its id and whether its task was asked for a full snapshot."""
    n, effects = subject.allocate(subject.ask(kind, checkpoint_type=type_))
    (full,) = {effect.barrier.full for effect in of(effects, TriggerCheckpoint)}
    return n, full


def complete(subject: MasterWorld, n: int) -> None:
    subject.record(subject.acknowledge(n))


@pytest.mark.parametrize("restored", [None, FOREIGN, OWN_SAVEPOINT])
def test_checkpoints_are_full_until_the_first_one_completed(
    restored: CompletedCheckpoint | None,
) -> None:
    """After a fresh start, a start from another job's snapshot and a start from a savepoint: one
    that fails does not discharge the duty (testTriggeringFullCheckpoints)."""
    subject = world(restored)
    first, full = trigger(subject)
    assert full
    subject.decline(first, "a")
    second, full = trigger(subject)
    assert full
    complete(subject, second)
    assert trigger(subject)[1] is False


def test_a_job_that_continues_from_its_own_checkpoint_owes_no_full_checkpoint() -> None:
    """The job owns that checkpoint's files."""
    assert trigger(world(OWN))[1] is False


def test_savepoints_are_always_full() -> None:
    """They are self-contained."""
    assert trigger(world(OWN), RequestKind.SAVEPOINT, INCREMENTAL)[1]
    assert trigger(world(OWN), RequestKind.STOP)[1]


def test_a_new_attempt_from_the_full_checkpoint_owes_none() -> None:
    """The duty is discharged permanently."""
    subject = world(FOREIGN)
    n, _ = trigger(subject)
    complete(subject, n)
    subject.fail_over(checkpoint(n, task_state("a")))
    assert trigger(subject)[1] is False


def test_the_duty_is_back_when_an_attempt_falls_back_to_the_savepoint() -> None:
    """The checkpoints after the savepoint could not be used."""
    subject = world(OWN_SAVEPOINT)
    n, _ = trigger(subject)
    complete(subject, n)
    subject.fail_over(OWN_SAVEPOINT)
    assert trigger(subject)[1]


def test_a_pending_savepoint_does_not_make_checkpoints_full() -> None:
    """Nothing ever builds on a savepoint."""
    subject = world(OWN)
    trigger(subject, RequestKind.SAVEPOINT)
    assert trigger(subject)[1] is False
