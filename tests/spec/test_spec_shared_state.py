"""Flink's shared state across a restore (``CheckpointCoordinatorTest``), by claim mode.

CP0 writes a shared file, CP1 is incremental and names it. The first half checks who keeps the file
while the job runs and after it is restored from its own checkpoint: pure core. The second half is a
new job that starts from CP1: the durable part decides who owns the file, so that half uses real
files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.durable_job import Driver
from tests.kit.job_master import JOB_ID, MasterWorld, checkpoint, of, running_job, task_state
from tests.spec.scenario import complete, take_over

from weir.config.values import RecoveryClaimMode
from weir.core.checkpoints.store import SharedStateRegistry
from weir.core.messages.job import DiscardCheckpoint
from weir.core.types import CompletedCheckpoint

ORIGIN = "f" * 32
CLAIM, NO_CLAIM = RecoveryClaimMode.CLAIM, RecoveryClaimMode.NO_CLAIM


def take(world: MasterWorld, *files: str) -> tuple[int, list[DiscardCheckpoint]]:
    """Complete a checkpoint that names these files; return its id and what is discarded for it."""
    n, effects = world.complete(world.ask(), task_state("a", files=files))
    return n, of(effects, DiscardCheckpoint)


# -- 20, first half: while the job runs ------------------------------------------------------------


def test_the_state_of_cp0_survives_its_subsumption_until_its_last_user_goes() -> None:
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore (MISSION A11): files that only
    CP0 uses go first."""
    world = running_job("a")
    cp0, _ = take(world, "shared", "only-cp0")
    cp1, discards = take(world, "shared", "of-cp1")
    assert [(d.checkpoint_id, d.files) for d in discards] == [(cp0, ("only-cp0",))]
    _, discards = take(world, "of-cp2")
    assert [(d.checkpoint_id, d.files) for d in discards] == [(cp1, ("of-cp1", "shared"))]


def test_a_registry_that_is_filled_again_after_a_restore_knows_every_user_of_a_shared_file() -> (
    None
):
    """SharedStateRegistry.registerAllAfterRestored (MISSION A11): the order of registration does
    not matter."""
    users = {1: ("shared", "only-1"), 2: ("shared", "only-2")}
    for order in ((1, 2), (2, 1)):
        registry = SharedStateRegistry()
        for user in order:
            registry.register(user, users[user])
        assert registry.unregister(1) == ("only-1",)
        assert registry.unregister(2) == ("shared", "only-2")
        registry.validate()


def test_a_restored_job_that_retains_cp0_and_cp1_deletes_shared_state_with_the_last() -> None:
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore (MISSION A11): the job owns
    its own checkpoints."""
    cp0 = checkpoint(1, task_state("a", files=("shared", "only-cp0")))
    cp1 = checkpoint(2, task_state("a", files=("shared", "of-cp1")))
    world = running_job("a", num_retained=2)
    world.next_id = 3
    world = take_over(world, attempt=2, restored=cp1, older=(cp0,))
    _, discards = take(world, "of-cp2")
    assert [(d.checkpoint_id, d.files) for d in discards] == [(1, ("only-cp0",))]
    _, discards = take(world, "of-cp2", "of-cp3")
    assert [(d.checkpoint_id, d.files) for d in discards] == [(2, ("of-cp1", "shared"))]


def test_the_coordinator_never_deletes_a_snapshot_of_another_job_that_it_was_restored_from() -> (
    None
):
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore (PROTOCOL P40): it is not in
    the store."""
    foreign = checkpoint(7, task_state("a", files=("shared",)), job_id=ORIGIN)
    world = running_job("a", restored=foreign)
    for _ in range(3):
        complete(world)
    assert 7 not in {d.checkpoint_id for d in of(world.effects, DiscardCheckpoint)}


# -- 20, second half: a new job begins from CP1 ----------------------------------------------------


def origin_with_cp1(
    directory: Path, *, num_retained: int = 1
) -> tuple[Driver, CompletedCheckpoint]:
    """The job that took CP0 and CP1; it retains one checkpoint, so CP0 is subsumed."""
    origin = Driver(directory, ORIGIN, num_retained=num_retained)
    origin.job.begin_attempt()
    origin.complete(("1/shared", "1/only-cp0"))
    cp1 = origin.complete(("1/shared", "2/of-cp1"))
    if num_retained == 1:
        origin.subsume(1, "1/only-cp0")
    return origin, cp1


def restored_from(
    cp1: CompletedCheckpoint, directory: Path, mode: RecoveryClaimMode, *, num_retained: int = 1
) -> Driver:
    """A new job whose first attempt was restored from CP1."""
    driver = Driver(
        directory,
        JOB_ID,
        from_savepoint=cp1.external_path,
        claims_snapshot=mode is CLAIM,
        num_retained=num_retained,
    )
    assert driver.job.begin_attempt().restored == cp1
    return driver


def exists(snapshot: CompletedCheckpoint) -> bool:
    return Path(snapshot.external_path, "_metadata").exists()


def test_a_job_can_be_restored_from_cp1_after_cp0_was_subsumed(tmp_path: Path) -> None:
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore (MISSION A11): the files of
    CP0 that CP1 uses still exist."""
    origin, cp1 = origin_with_cp1(tmp_path)
    assert origin.has("1/shared")
    assert not origin.has("1/only-cp0")
    assert Driver(tmp_path, ORIGIN).job.begin_attempt().restored == cp1


@pytest.mark.parametrize("mode", list(RecoveryClaimMode))
def test_after_a_restore_only_claim_deletes_cp1_and_the_state_of_cp0_that_it_uses(
    tmp_path: Path, mode: RecoveryClaimMode
) -> None:
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore by RecoveryClaimMode
    (MISSION A11, PROTOCOL P40)."""
    origin, cp1 = origin_with_cp1(tmp_path)
    driver = restored_from(cp1, tmp_path, mode)
    assert exists(cp1)
    assert origin.has("1/shared")
    own = driver.complete(("1/own",))
    kept = mode is NO_CLAIM
    assert (exists(cp1), origin.has("2/of-cp1"), origin.has("1/shared")) == (kept, kept, kept)
    assert exists(own)
    assert driver.has("1/own")


def test_a_claimed_snapshot_stays_until_as_many_own_checkpoints_are_retained_as_may_be(
    tmp_path: Path,
) -> None:
    """RecoveryClaimMode.CLAIM (MISSION A11): until then it counts as a retained checkpoint."""
    _, cp1 = origin_with_cp1(tmp_path)
    driver = restored_from(cp1, tmp_path, CLAIM, num_retained=2)
    driver.complete(("1/own",))
    assert exists(cp1)
    driver.complete(("2/own",))
    assert not exists(cp1)


def test_an_intermediate_savepoint_does_not_delete_the_claimed_snapshot(tmp_path: Path) -> None:
    """RecoveryClaimMode.CLAIM (PROTOCOL P14, P40): a savepoint subsumes nothing, and the snapshot
    is still needed."""
    _, cp1 = origin_with_cp1(tmp_path)
    driver = restored_from(cp1, tmp_path, CLAIM)
    driver.savepoint()
    assert exists(cp1)
    assert (
        Driver(tmp_path, JOB_ID, from_savepoint=cp1.external_path).job.begin_attempt().restored
        == cp1
    )


def test_claiming_cp1_leaves_the_state_that_the_retained_cp0_needs(tmp_path: Path) -> None:
    """RecoveryClaimMode.CLAIM (MISSION A11): shared state is never deleted before its last user, in
    either job."""
    origin, cp1 = origin_with_cp1(tmp_path, num_retained=2)
    restored_from(cp1, tmp_path, CLAIM).complete(("1/own",))
    assert not exists(cp1)
    assert (origin.has("1/shared"), origin.has("1/only-cp0"), origin.has("2/of-cp1")) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize("mode", list(RecoveryClaimMode))
def test_a_savepoint_is_deleted_after_the_restore_only_if_it_was_claimed(
    tmp_path: Path, mode: RecoveryClaimMode
) -> None:
    """CheckpointCoordinatorTest.testSharedStateRegistrationOnRestore by RecoveryClaimMode
    (PROTOCOL P40): a savepoint."""
    origin = Driver(tmp_path, ORIGIN)
    origin.job.begin_attempt()
    savepoint = origin.savepoint()
    restored_from(savepoint, tmp_path, mode).complete(("1/own",))
    assert Path(savepoint.external_path).exists() == (mode is NO_CLAIM)
