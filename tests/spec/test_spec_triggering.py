"""Flink's ``CheckpointCoordinatorTriggeringTest``: when the timer triggers, and what is full.

NO_CLAIM: the snapshot that a job started from belongs to the user, who may delete it once a
checkpoint of the job's own is complete. So that checkpoint must be full: it must refer to no file
of any earlier snapshot (PROTOCOL P40).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.kit.durable_job import Driver
from tests.kit.job_master import (
    JOB_ID,
    RESTART_DELAY_MS,
    MasterWorld,
    checkpoint,
    of,
    only,
    running_job,
    task_state,
    with_interval,
)
from tests.spec.scenario import complete, take_over, tick

from weir.core.messages.job import AnswerRequest, RequestKind
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.types import CheckpointType, SnapshotKind, TaskStatus
from weir.rest.schema.checkpoints import (
    CheckpointRequest,
)

ORIGIN = "f" * 32
SAVEPOINT = checkpoint(7, task_state("a"), kind=SnapshotKind.SAVEPOINT, job_id=ORIGIN)
CONFIGURED, FULL, INCREMENTAL = (
    CheckpointType.CONFIGURED,
    CheckpointType.FULL,
    CheckpointType.INCREMENTAL,
)


def from_no_claim_savepoint() -> MasterWorld:
    """A job of one task that started from a savepoint of another job."""
    return running_job("a", restored=SAVEPOINT, max_concurrent_checkpoints=3)


def next_is_full(
    world: MasterWorld,
    kind: RequestKind = RequestKind.CHECKPOINT,
    checkpoint_type: CheckpointType = CONFIGURED,
) -> bool:
    """Trigger a snapshot, leave it pending, and return whether its task is asked for a full one."""
    _, effects = world.allocate(world.ask(kind, checkpoint_type=checkpoint_type))
    (effect,) = of(effects, TriggerCheckpoint)
    return effect.barrier.full


def complete_pending(world: MasterWorld) -> None:
    """Complete the newest pending snapshot."""
    world.record(world.acknowledge(world.master.coordinator.pending[-1].checkpoint_id))


# -- 24: testPeriodicTriggering --------------------------------------------------------------------


def run_periodically(world: MasterWorld, *, times: int) -> list[tuple[int, int]]:
    """Ids and timestamps of the checkpoints of the next ``times`` intervals of 10 ms.

    Each checkpoint completes.
    """
    known = len(world.effects)
    for _ in range(10 * times - 1):
        for n in tick(world, 1):
            world.record(world.acknowledge(n))
    triggers = of(world.effects[known:], TriggerCheckpoint)
    return [
        (effect.checkpoint_id, effect.barrier.timestamp_ms)
        for effect in triggers
        if effect.vertex == "a"
    ]


def test_periodic_checkpoints_come_at_a_fixed_rate_with_ids_and_timestamps_that_increase() -> None:
    """CheckpointCoordinatorTriggeringTest.testPeriodicTriggering (MISSION A2)."""
    world = running_job(interval_ms=10)
    begin_ms = world.wall_ms
    seen = run_periodically(world, times=6)
    assert seen == [(n, begin_ms + 10 * (n - 1)) for n in range(1, 7)]


def test_a_stopped_scheduler_triggers_nothing() -> None:
    """CheckpointCoordinatorTriggeringTest.testPeriodicTriggering (MISSION A1, A3): off while the
    job is not RUNNING."""
    world = running_job(interval_ms=10)
    run_periodically(world, times=3)
    world.fail()
    assert tick(world, 500) == []
    world.stopped()
    assert tick(world, RESTART_DELAY_MS + 500) == []
    world.begin(2, checkpoint(3, task_state("a"), task_state("b")))
    world.status(TaskStatus.RUNNING)
    assert tick(world, 0) == [4]


def test_a_restarted_scheduler_continues_at_its_rate_with_higher_ids_and_timestamps() -> None:
    """CheckpointCoordinatorTriggeringTest.testPeriodicTriggering (MISSION A1, A2)."""
    world = running_job(interval_ms=10)
    first = run_periodically(world, times=3)
    world.fail_over(checkpoint(3, task_state("a"), task_state("b")))
    second = run_periodically(world, times=3)
    assert [n for n, _ in (*first, *second)] == [1, 2, 3, 4, 5, 6]
    begin_ms = second[0][1]
    assert begin_ms >= first[-1][1] + RESTART_DELAY_MS
    assert [timestamp_ms for _, timestamp_ms in second] == [begin_ms, begin_ms + 10, begin_ms + 20]


# -- CheckpointCoordinatorDeActivator: periodic checkpoints wait until all tasks run ---------------


def test_no_periodic_checkpoint_is_tried_before_all_tasks_run() -> None:
    """CheckpointCoordinatorDeActivator (MISSION A1, A4): while tasks start, nothing is triggered
    and nothing fails."""
    world = MasterWorld("a", "b", config=with_interval(10))
    world.submit()
    assert tick(world, 100) == []
    world.status(TaskStatus.RUNNING, "a")
    assert tick(world, 100) == []
    assert not world.master.coordinator.trigger.scheduling
    world.status(TaskStatus.RUNNING, "b")
    assert tick(world, 0) == [1]
    assert world.master.stats(world.now_ms).counts.failed == 0


def test_the_initial_delay_counts_from_the_moment_when_all_tasks_run() -> None:
    """MISSION A2: uniformly in [min pause, interval], however long the tasks took to start."""
    world = MasterWorld("a", config=with_interval(100, min_pause_ms=20))
    world.submit(chance=0.5)
    world.pass_time(5_000)
    world.status(TaskStatus.RUNNING)
    assert world.master.next_deadline() == 5_000 + 20 + 40


def test_after_a_failover_too_periodic_checkpoints_start_only_when_all_tasks_run() -> None:
    """MISSION A1, A3: the failure stops the scheduler, and the new attempt's tasks start it."""
    world = running_job(interval_ms=10)
    attempt = world.master.attempt
    world.fail()
    world.stopped()
    world.pass_time(RESTART_DELAY_MS)
    world.begin(attempt + 1, None)
    world.status(TaskStatus.RUNNING, "b")
    assert tick(world, 500) == []
    world.status(TaskStatus.RUNNING, "a")
    assert tick(world, 0) == [1]


def test_tasks_that_were_restored_as_finished_are_not_waited_for() -> None:
    """MISSION D5: a task that the checkpoint records as finished never runs again."""
    restored = checkpoint(7, task_state("a", finished=True), task_state("b"))
    world = MasterWorld("a", "b", config=with_interval(10))
    world.next_id = 8
    world.submit(restored)
    assert tick(world, 100) == []
    world.status(TaskStatus.RUNNING, "b")
    assert tick(world, 0) == [8]


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.STOP])
def test_what_a_user_asks_for_before_all_tasks_run_is_declined_and_shown_as_no_failed_checkpoint(
    kind: RequestKind,
) -> None:
    """MISSION A4: the answer names the task that is not running; the job and its periodic
    checkpoints go on."""
    world = MasterWorld("a", "b", config=with_interval(10))
    world.submit()
    world.status(TaskStatus.RUNNING, "a")
    answer = only(world.ask(kind), AnswerRequest)
    assert "Not all required tasks are currently running. Task 'b' is INITIALIZING." in (
        answer.failure or ""
    )
    assert world.master.stats(world.now_ms).counts.total == 0
    world.status(TaskStatus.RUNNING, "b")
    assert tick(world, 0) == [1]


def test_requests_that_the_queue_has_no_place_for_are_shown_as_no_failed_checkpoints() -> None:
    """MISSION A4, PROTOCOL P38: a pre-check declined them, so no checkpoint was attempted."""
    world = running_job(interval_ms=10)
    assert tick(world, 0) == [1]
    for number in range(1_002):
        world.ask(name=f"user-{number}")
    assert len(of(world.effects, AnswerRequest)) == 2
    assert world.master.stats(world.now_ms).counts.failed == 0


# -- 25: testTriggeringFullSnapshotAfterJobmasterFailover ------------------------------------------


def test_the_first_checkpoint_after_a_coordinator_failover_is_full_until_one_completed() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullSnapshotAfterJobmasterFailover
    (PROTOCOL P40)."""
    world = from_no_claim_savepoint()
    assert next_is_full(world)
    successor = take_over(world, attempt=2, restored=SAVEPOINT)
    assert next_is_full(successor)
    complete_pending(successor)
    assert not next_is_full(successor)


def test_a_failover_of_the_coordinator_after_the_full_checkpoint_brings_no_new_duty() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullSnapshotAfterJobmasterFailover
    (PROTOCOL P40): for good."""
    world = from_no_claim_savepoint()
    n = complete(world)
    successor = take_over(world, attempt=2, restored=checkpoint(n, task_state("a")))
    assert not next_is_full(successor)


def test_the_duty_survives_attempts_and_coordinators_that_complete_only_savepoints() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullSnapshotAfterJobmasterFailover
    (PROTOCOL P40)."""
    world = from_no_claim_savepoint()
    for attempt in (2, 4, 6):
        complete(world, RequestKind.SAVEPOINT)
        world.fail_over(SAVEPOINT)
        assert next_is_full(world, checkpoint_type=INCREMENTAL)
        world = take_over(world, attempt=attempt + 1, restored=SAVEPOINT)
        assert next_is_full(world, checkpoint_type=INCREMENTAL)


def test_a_new_driver_finds_the_same_savepoint_and_with_it_the_same_duty(tmp_path: Path) -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullSnapshotAfterJobmasterFailover
    (PROTOCOL P40), on real files."""
    origin = Driver(tmp_path, ORIGIN)
    origin.job.begin_attempt()
    savepoint = origin.savepoint()
    for attempt in (1, 2):
        driver = Driver(tmp_path, JOB_ID, from_savepoint=savepoint.external_path)
        start = driver.job.begin_attempt()
        assert (start.attempt, start.restored) == (attempt, savepoint)
        driver.savepoint()
        successor = take_over(
            MasterWorld("a"), attempt=start.attempt, restored=start.restored, older=start.older
        )
        assert next_is_full(successor, checkpoint_type=INCREMENTAL)
    own = driver.complete(("3/own",))
    start = Driver(tmp_path, JOB_ID, from_savepoint=savepoint.external_path).job.begin_attempt()
    assert (start.attempt, start.restored) == (3, own)
    successor = take_over(MasterWorld("a"), attempt=3, restored=start.restored, older=start.older)
    successor.next_id = own.checkpoint_id + 1
    assert not next_is_full(successor)


# -- 26: testTriggeringFullCheckpoints -------------------------------------------------------------


def test_a_savepoint_between_the_restore_and_the_first_checkpoint_does_not_discharge_the_duty() -> (
    None
):
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullCheckpoints (PROTOCOL P14, P40)."""
    world = from_no_claim_savepoint()
    assert next_is_full(world, RequestKind.SAVEPOINT)
    complete_pending(world)
    assert next_is_full(world)
    complete_pending(world)
    assert not next_is_full(world)


def test_checkpoints_triggered_while_the_first_full_one_is_pending_are_full_as_well() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringFullCheckpoints (PROTOCOL P40): any of them
    may complete first."""
    world = from_no_claim_savepoint()
    assert [next_is_full(world) for _ in range(3)] == [True, True, True]
    complete_pending(world)
    assert not next_is_full(world)


# -- 27: testTriggeringCheckpointsWith...CheckpointType --------------------------------------------


def with_own_checkpoint() -> MasterWorld:
    """A job of one task that owes no full checkpoint."""
    world = running_job("a")
    complete(world)
    return world


def test_a_user_gets_an_incremental_checkpoint_for_the_asking() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringCheckpointsWithIncrementalCheckpointType
    (MISSION A4)."""
    assert not next_is_full(with_own_checkpoint(), checkpoint_type=INCREMENTAL)


def test_a_user_gets_a_full_checkpoint_for_the_asking_and_only_that_one_is_full() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringCheckpointsWithFullCheckpointType
    (MISSION A4)."""
    world = with_own_checkpoint()
    assert next_is_full(world, checkpoint_type=FULL)
    complete_pending(world)
    assert not next_is_full(world)


def test_a_checkpoint_triggered_while_a_full_one_is_pending_is_full_too() -> None:
    """CheckpointCoordinatorTriggeringTest, where Weir is stricter (PROTOCOL P4): it may subsume the
    full one."""
    world = running_job("a", restored=checkpoint(7, task_state("a")), max_concurrent_checkpoints=2)
    world.next_id = 8
    assert next_is_full(world, checkpoint_type=FULL)
    assert next_is_full(world)
    complete_pending(world)
    assert not next_is_full(world)


def test_a_checkpoint_of_the_configured_type_is_incremental() -> None:
    """CheckpointType.CONFIGURED (PROTOCOL P4): it refers to files of the last completed
    checkpoint."""
    assert not next_is_full(with_own_checkpoint(), checkpoint_type=CONFIGURED)


@pytest.mark.parametrize("checkpoint_type", list(CheckpointType))
def test_after_a_no_claim_savepoint_the_first_checkpoint_is_full_whatever_type_is_requested(
    checkpoint_type: CheckpointType,
) -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggering...WithCheckpointTypeAfterNoClaimSavepoint
    (PROTOCOL P40)."""
    world = from_no_claim_savepoint()
    assert next_is_full(world, checkpoint_type=checkpoint_type)
    complete_pending(world)
    assert next_is_full(world, checkpoint_type=checkpoint_type) == (checkpoint_type is FULL)


def test_a_checkpoint_type_of_null_is_refused_where_a_request_comes_in() -> None:
    """CheckpointCoordinatorTriggeringTest.testTriggeringCheckpointsWithNullCheckpointType: refused
    by the REST API; the core has no null."""
    with pytest.raises(msgspec.ValidationError, match="checkpointType"):
        msgspec.json.decode(b'{"checkpointType": null}', type=CheckpointRequest)
    absent = msgspec.json.decode(b"{}", type=CheckpointRequest)
    assert absent.checkpoint_type is CONFIGURED
