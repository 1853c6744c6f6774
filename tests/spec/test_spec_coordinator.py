"""Flink's ``CheckpointCoordinatorTest``: acknowledging, declining, subsuming, and the limits.

Triggering by time and by type is in ``test_spec_triggering``, failures are in
``test_spec_coordinator_failures``, and the deletion of shared state is in
``test_spec_shared_state``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.job_master import MasterWorld, of, only, retained_files, running_job, task_state
from tests.spec.scenario import complete, pending_ids, tick

from weir.core.checkpoints.request_decider import Verdict
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    JobMasterEffect,
    RecordCheckpoint,
    RequestKind,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from weir.core.types import SnapshotKind, SnapshotMetrics, TaskStatus


def receivers(
    effects: list[JobMasterEffect],
    kind: type[TriggerCheckpoint] | type[NotifyCheckpointComplete] | type[NotifyCheckpointAborted],
) -> list[tuple[str, int]]:
    """The tasks and checkpoints of the effects of this kind."""
    return [(effect.vertex, effect.checkpoint_id) for effect in of(effects, kind)]


# -- 12: testTriggerAndDeclineCheckpointSimple, ...Complex -----------------------------------------


def test_one_decline_discards_the_checkpoint_and_an_earlier_duplicate_is_harmless() -> None:
    """CheckpointCoordinatorTest.testTriggerAndDeclineCheckpointSimple (MISSION A7)."""
    world = running_job()
    n = world.trigger()
    assert world.acknowledge(n, "b") == []
    assert world.acknowledge(n, "b") == []
    assert world.master.coordinator.pending[0].not_yet_acknowledged == ("a",)
    effects = world.decline(n, "a")
    assert pending_ids(world) == []
    assert world.master.coordinator.store.ids == ()
    assert receivers(effects, NotifyCheckpointAborted) == [("a", n), ("b", n)]
    assert only(effects, DiscardCheckpoint) == DiscardCheckpoint(
        checkpoint_id=n, target=None, files=(), subsumed=False
    )
    assert "Checkpoint was declined." in (only(effects, AnswerRequest).failure or "")


def test_repeated_declines_of_a_discarded_checkpoint_are_harmless() -> None:
    """CheckpointCoordinatorTest.testTriggerAndDeclineCheckpointSimple (MISSION A7): from the same
    task and from others."""
    world = running_job()
    n = world.trigger()
    world.decline(n, "a")
    before = world.master.stats(world.now_ms)
    assert world.decline(n, "a") == []
    assert world.decline(n, "b") == []
    assert world.master.stats(world.now_ms) == before


def test_declining_the_older_of_two_checkpoints_leaves_the_newer_one_pending() -> None:
    """CheckpointCoordinatorTest.testTriggerAndDeclineCheckpointComplex (MISSION A7)."""
    world = running_job(max_concurrent_checkpoints=2)
    older, newer = world.trigger(), world.trigger()
    world.acknowledge(older, "b")
    world.acknowledge(newer, "b")
    effects = world.decline(older, "a")
    assert receivers(effects, NotifyCheckpointAborted) == [("a", older), ("b", older)]
    assert pending_ids(world) == [newer]
    assert world.master.coordinator.pending[0].not_yet_acknowledged == ("a",)
    assert world.decline(older, "b") == []
    effects = world.record(world.acknowledge(newer, "a"))
    assert receivers(effects, NotifyCheckpointComplete) == [("a", newer), ("b", newer)]


# -- 13: testTriggerAndConfirmSimpleCheckpoint -----------------------------------------------------


def test_a_checkpoint_completes_with_its_last_acknowledgement_and_not_before() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleCheckpoint (MISSION A7): a duplicate is
    ignored, and tasks are notified once the record is durable (PROTOCOL P13)."""
    world = running_job()
    n, effects = world.allocate(world.ask())
    assert receivers(effects, TriggerCheckpoint) == [("a", n), ("b", n)]
    assert world.acknowledge(n, "b") == []
    assert world.acknowledge(n, "b") == []
    assert (pending_ids(world), world.master.coordinator.store.ids) == ([n], ())
    recording = world.acknowledge(n, "a")
    record = only(recording, RecordCheckpoint)
    assert ([task.vertex for task in record.tasks], record.retained) == (["a", "b"], (n,))
    assert receivers(recording, NotifyCheckpointComplete) == []
    effects = world.record(recording)
    assert only(effects, AnswerRequest).checkpoint is not None
    assert (pending_ids(world), world.master.coordinator.store.ids) == ([], (n,))
    assert receivers(effects, NotifyCheckpointComplete) == [("a", n), ("b", n)]


def test_a_duplicate_acknowledgement_neither_replaces_the_state_nor_registers_files() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleCheckpoint (MISSION A7, A11)."""
    world = running_job("a", "b")
    n = world.trigger()
    world.acknowledge(n, task_state("a", position=3, files=("first",)))
    world.acknowledge(n, task_state("a", position=4, files=("second",)))
    recording = world.acknowledge(n, "b")
    state = only(recording, RecordCheckpoint).tasks[0]
    assert (state.position, [handle.path for handle in state.files]) == (3, ["first"])
    world.record(recording)
    _, effects = world.complete(world.ask())
    assert only(effects, DiscardCheckpoint).files == ("first",)


def test_the_canceller_of_a_completed_checkpoint_is_gone() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleCheckpoint (MISSION A7): no timeout
    applies to it any more."""
    world = running_job(timeout_ms=1_000)
    n = world.trigger()
    assert world.master.next_deadline() == world.now_ms + 1_000
    world.record(world.acknowledge(n))
    assert world.master.next_deadline() is None
    assert world.pass_time(10_000) == []
    assert world.master.coordinator.store.ids == (n,)


def test_the_shared_state_of_a_checkpoint_is_registered_when_its_tasks_acknowledge_it() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleCheckpoint (MISSION A11): a newer one
    keeps the files it names."""
    world = running_job("a")
    world.complete(world.ask(), task_state("a", files=("old", "shared")))
    assert retained_files(world.master.coordinator.store) == {"old", "shared"}
    _, effects = world.complete(world.ask(), task_state("a", files=("shared", "new")))
    assert only(effects, DiscardCheckpoint) == DiscardCheckpoint(
        checkpoint_id=1, target=None, files=("old",), subsumed=True
    )
    assert retained_files(world.master.coordinator.store) == {"shared", "new"}


def test_the_next_checkpoint_runs_like_the_first_under_a_higher_id_and_subsumes_it() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleCheckpoint (MISSION A11): one checkpoint
    is retained."""
    world = running_job()
    first = complete(world)
    second, effects = world.complete(world.ask())
    assert second > first
    assert receivers(effects, NotifyCheckpointComplete) == [("a", second), ("b", second)]
    assert world.master.coordinator.store.ids == (second,)
    assert only(effects, DiscardCheckpoint).checkpoint_id == first


# -- 14: testSuccessfulCheckpointSubsumesUnsuccessful ----------------------------------------------


def test_a_completed_checkpoint_subsumes_an_older_checkpoint_that_is_only_partly_acknowledged() -> (
    None
):
    """CheckpointCoordinatorTest.testSuccessfulCheckpointSubsumesUnsuccessful (MISSION A11): it
    fails as subsumed."""
    world = running_job("a", "b", "c", max_concurrent_checkpoints=2)
    older, newer = world.trigger(name="older"), world.trigger(name="newer")
    world.acknowledge(older, "a")
    effects = world.record(world.acknowledge(newer))
    assert pending_ids(world) == []
    assert world.master.coordinator.store.ids == (newer,)
    assert only(effects, DiscardCheckpoint).checkpoint_id == older
    answers = {answer.request: answer.failure for answer in of(effects, AnswerRequest)}
    assert answers["newer"] is None
    assert "Checkpoint has been subsumed." in (answers["older"] or "")
    assert world.master.stats(world.now_ms).unsuccessful_triggers == 0


def test_a_late_acknowledgement_of_a_subsumed_checkpoint_has_its_state_discarded() -> None:
    """CheckpointCoordinatorTest.testSuccessfulCheckpointSubsumesUnsuccessful (PROTOCOL P12)."""
    world = running_job(max_concurrent_checkpoints=2)
    older, newer = world.trigger(), world.trigger()
    world.acknowledge(older, "a")
    world.record(world.acknowledge(newer))
    effects = world.acknowledge(older, task_state("b", files=("late",)))
    assert only(effects, DiscardCheckpoint).checkpoint_id == older
    assert world.master.coordinator.store.ids == (newer,)


# -- 15: savepoints and checkpoints (testSavepointsAreNotSubsumed,
# testTriggerAndConfirmSimpleSavepoint)


def test_a_checkpoint_subsumes_older_pending_checkpoints_but_no_pending_savepoint() -> None:
    """CheckpointCoordinatorTest.testSavepointsAreNotSubsumed (PROTOCOL P14): the savepoint still
    completes."""
    world = running_job(max_concurrent_checkpoints=3)
    savepoint = world.trigger(RequestKind.SAVEPOINT)
    older, newer = world.trigger(), world.trigger()
    world.record(world.acknowledge(newer))
    assert pending_ids(world) == [savepoint]
    effects = world.record(world.acknowledge(savepoint))
    answer = only(effects, AnswerRequest).checkpoint
    assert answer is not None
    assert (answer.checkpoint_id, answer.kind) == (savepoint, SnapshotKind.SAVEPOINT)
    assert older not in world.master.coordinator.store.ids


def test_a_savepoint_subsumes_nothing_pending_and_no_completed_checkpoint() -> None:
    """CheckpointCoordinatorTest.testSavepointsAreNotSubsumed (PROTOCOL P14)."""
    world = running_job(max_concurrent_checkpoints=3)
    completed = complete(world)
    older_savepoint, older_checkpoint = world.trigger(RequestKind.SAVEPOINT), world.trigger()
    newest_savepoint = world.trigger(RequestKind.SAVEPOINT)
    effects = world.record(world.acknowledge(newest_savepoint))
    assert pending_ids(world) == [older_savepoint, older_checkpoint]
    assert world.master.coordinator.store.ids == (completed,)
    assert not of(effects, DiscardCheckpoint)


def test_a_completed_savepoint_notifies_no_task_and_enters_no_store() -> None:
    """CheckpointCoordinatorTest.testTriggerAndConfirmSimpleSavepoint (PROTOCOL P14): it commits
    nothing."""
    world = running_job()
    first = complete(world)
    recording = world.acknowledge(world.trigger(RequestKind.SAVEPOINT))
    assert only(recording, RecordCheckpoint).retained == (first,)
    assert [type(effect) for effect in world.record(recording)] == [AnswerRequest]
    assert world.master.coordinator.store.ids == (first,)


def test_the_checkpoint_after_a_savepoint_is_notified_and_subsumes_the_last_checkpoint_only() -> (
    None
):
    """CheckpointCoordinatorTest.testSavepointsAreNotSubsumed (MISSION A11): savepoints are never
    subsumed."""
    world = running_job()
    first = complete(world)
    complete(world, RequestKind.SAVEPOINT)
    last, effects = world.complete(world.ask())
    assert receivers(effects, NotifyCheckpointComplete) == [("a", last), ("b", last)]
    subsumed = only(effects, DiscardCheckpoint)
    assert (subsumed.checkpoint_id, subsumed.subsumed) == (first, True)


# -- 16: testMaxConcurrentAttempts -----------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_timer_triggers_no_more_checkpoints_than_may_be_pending_and_one_more_for_each_that_ends(
    limit: int,
) -> None:
    """CheckpointCoordinatorTest.testMaxConcurrentAttempts1, 2 and 5 (MISSION A4, A5)."""
    world = running_job(interval_ms=10, max_concurrent_checkpoints=limit)
    assert tick(world, 10 * limit) == list(range(1, limit + 1))
    assert tick(world, 1_000) == []
    effects = world.record(world.acknowledge(1))
    n, _ = world.allocate(effects)
    assert n == limit + 1
    assert pending_ids(world) == list(range(2, limit + 2))
    assert tick(world, 1_000) == []


def test_once_the_second_checkpoint_subsumed_the_first_the_third_and_fourth_become_pending() -> (
    None
):
    """CheckpointCoordinatorTest.testMaxConcurrentAttemptsWithSubsumption (MISSION A5): subsumption
    frees a slot too."""
    world = running_job(interval_ms=10, max_concurrent_checkpoints=2)
    assert tick(world, 10) == [1, 2]
    assert tick(world, 1_000) == []
    effects = world.record(world.acknowledge(2))
    assert receivers(effects, NotifyCheckpointAborted) == [("a", 1), ("b", 1)]
    world.allocate(effects)
    assert tick(world, 10) == [4]
    assert pending_ids(world) == [3, 4]


# -- 17: testMinCheckpointPause --------------------------------------------------------------------


def test_a_periodic_request_that_waited_for_a_checkpoint_also_waits_for_the_pause() -> None:
    """CheckpointCoordinatorTest.testMinCheckpointPause (MISSION A4): the timer is armed for exactly
    the remaining pause."""
    world = running_job(interval_ms=1_000, min_pause_ms=1_000)
    assert tick(world, 1_000) == [1]
    assert tick(world, 1_500) == []
    waits = world.master.stats(world.now_ms).waits_because
    assert waits is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    completed_at_ms = world.now_ms
    assert not of(world.record(world.acknowledge(1)), AllocateLocation)
    assert world.master.next_deadline() == completed_at_ms + 1_000
    assert tick(world, 999) == []
    assert tick(world, 1) == [2]
    assert world.master.stats(world.now_ms).counts.failed == 0


# -- 18: testCheckpointTriggeredAfterSomeTasksFinished... ------------------------------------------


def test_a_checkpoint_is_triggered_at_the_running_tasks_after_others_have_finished() -> None:
    """CheckpointCoordinatorTest.testCheckpointTriggeredAfterSomeTasksFinishedIfAllowed (MISSION D1,
    D4): the others are recorded with the channels that they read, by which a restore knows them."""
    world = MasterWorld("a", "b", "c", producers={"c": ("a",)}).running()
    world.status(TaskStatus.FINISHED, "a", "c")
    n, effects = world.allocate(world.ask())
    assert receivers(effects, TriggerCheckpoint) == [("b", n)]
    recording = world.acknowledge(n, "b")
    states = {task.vertex: task for task in only(recording, RecordCheckpoint).tasks}
    assert not states["b"].fully_finished
    for vertex, inputs in (("a", ()), ("c", ("a",))):
        assert states[vertex] == replace(
            task_state(vertex, position=-1, finished=True), inputs=inputs
        )
    assert receivers(world.record(recording), NotifyCheckpointComplete) == [("b", n)]


# -- 19: testAbortedCheckpointStatsUpdatedAfterFailure, testCheckpointStatsUpdatedAfterFailure -----


METRICS = SnapshotMetrics(
    sync_duration_ms=1,
    async_duration_ms=2,
    alignment_duration_ms=3,
    start_delay_ms=4,
    checkpointed_size=5,
)


@pytest.mark.parametrize("end", ["declined", "expired"])
def test_figures_that_come_after_a_checkpoint_failed_land_in_its_failed_entry_of_the_history(
    end: str,
) -> None:
    """CheckpointCoordinatorTest.testCheckpointStatsUpdatedAfterFailure, testAborted...AfterFailure
    (MISSION A10): the files that come with them are deleted."""
    world = running_job(timeout_ms=1_000)
    n = world.trigger()
    if end == "declined":
        world.decline(n, "a")
    else:
        world.pass_time(1_000)
    before = world.master.stats(world.now_ms)
    world.pass_time(7)
    state = task_state("b", files=("x", "y"))
    late_effects = world.handle(
        AcknowledgeCheckpoint(vertex="b", attempt=1, checkpoint_id=n, state=state, metrics=METRICS)
    )
    assert only(late_effects, DiscardCheckpoint).checkpoint_id == n
    after = world.master.stats(world.now_ms)
    (entry,) = after.history
    late = {task.vertex: task for task in entry.tasks}["b"]
    assert (late.metrics, late.state_size) == (METRICS, 2)
    assert late.ack_timestamp_ms == world.wall_ms + world.now_ms
    assert (entry.status, entry.state_size, entry.checkpointed_size) == ("FAILED", 2, 5)
    assert entry.end_to_end_duration_ms == before.history[0].end_to_end_duration_ms
    assert (after.counts, after.latest_failed) == (before.counts, entry)
