"""The contract of ``CheckpointStatsTracker``, one test per sentence."""

from __future__ import annotations

import pytest

from weir.core.checkpoints import stats
from weir.core.checkpoints.stats import (
    CheckpointCounts,
    CheckpointStatsTracker,
    TaskCheckpointStats,
)
from weir.core.types import (
    CompletedCheckpoint,
    SnapshotKind,
    SnapshotMetrics,
    StateHandle,
    TaskState,
)
from weir.errors import InvariantError

WALL_MS = 1_700_000_000_000
METRICS = SnapshotMetrics(sync_duration_ms=3, async_duration_ms=40, checkpointed_size=10)


def pending(
    tracker: CheckpointStatsTracker,
    checkpoint_id: int,
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
) -> None:
    tracker.report_pending(checkpoint_id, kind, WALL_MS + checkpoint_id, ("a", "b"), now_ms=1_000)
    tracker.validate()


def completed(
    checkpoint_id: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT
) -> CompletedCheckpoint:
    handle = StateHandle(key="k", path="shared/k", size=70, checksum="crc32:00000000")
    return CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=checkpoint_id,
        kind=kind,
        timestamp_ms=WALL_MS,
        completion_timestamp_ms=WALL_MS + 500,
        attempt=1,
        tasks=(
            TaskState(vertex="a", position=1, operators=(), files=(handle,)),
            TaskState(vertex="b", position=1, operators=(), entries={"offsets/1": "xyz"}),
        ),
        external_path=f"/checkpoints/chk-{checkpoint_id}",
    )


def complete(
    tracker: CheckpointStatsTracker,
    checkpoint_id: int,
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
) -> None:
    pending(tracker, checkpoint_id, kind)
    tracker.report_completed(completed(checkpoint_id, kind), now_ms=1_500)
    tracker.validate()


def test_a_new_tracker_knows_nothing() -> None:
    """All counts are zero and there are no entries."""
    found = CheckpointStatsTracker(10).snapshot(0)
    assert found.counts == CheckpointCounts()
    assert found.history == ()
    assert found.latest_completed is found.latest_savepoint is found.latest_failed is None
    assert found.latest_restored is None


def test_a_pending_checkpoint_is_shown_with_its_tasks_and_its_duration_up_to_now() -> None:
    """An entry in progress lists each task that has to acknowledge."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    (entry,) = tracker.snapshot(1_250).history
    assert (entry.checkpoint_id, entry.status, entry.trigger_timestamp_ms) == (
        7,
        "IN_PROGRESS",
        WALL_MS + 7,
    )
    assert entry.end_to_end_duration_ms == 250
    assert [(task.vertex, task.ack_timestamp_ms) for task in entry.tasks] == [
        ("a", None),
        ("b", None),
    ]
    assert tracker.snapshot(0).counts == CheckpointCounts(total=1, in_progress=1)


def test_an_acknowledgement_adds_its_figures_to_the_task_and_to_the_checkpoint() -> None:
    """Sizes add up over tasks; the time shown is the newest acknowledgement's."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    tracker.report_acknowledged(7, "b", 100, METRICS, WALL_MS + 20)
    tracker.report_acknowledged(7, "a", 200, METRICS, WALL_MS + 10)
    (entry,) = tracker.snapshot(0).history
    assert (entry.state_size, entry.checkpointed_size) == (300, 20)
    assert entry.latest_ack_timestamp_ms == WALL_MS + 20
    assert [(t.vertex, t.ack_timestamp_ms, t.state_size) for t in entry.tasks] == [
        ("a", WALL_MS + 10, 200),
        ("b", WALL_MS + 20, 100),
    ]
    assert entry.tasks[0].metrics == METRICS


def test_a_second_acknowledgement_of_a_task_is_ignored() -> None:
    """Its size must not count twice."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    tracker.report_acknowledged(7, "a", 100, METRICS, WALL_MS)
    tracker.report_acknowledged(7, "a", 100, METRICS, WALL_MS + 1)
    assert tracker.snapshot(0).history[0].state_size == 100


def test_a_completed_checkpoint_has_path_duration_and_the_size_of_its_whole_state() -> None:
    """The full size comes from the checkpoint, since finished tasks acknowledge nothing."""
    tracker = CheckpointStatsTracker(10)
    complete(tracker, 7)
    found = tracker.snapshot(99_999)
    (entry,) = found.history
    assert (entry.status, entry.external_path, entry.end_to_end_duration_ms) == (
        "COMPLETED",
        "/checkpoints/chk-7",
        500,
    )
    assert entry.state_size == 73
    assert found.latest_completed == entry
    assert found.counts == CheckpointCounts(total=1, completed=1)
    assert found.durations_ms == (500,)


def test_a_savepoint_is_the_latest_savepoint_and_not_the_latest_checkpoint() -> None:
    """Flink shows the two separately."""
    tracker = CheckpointStatsTracker(10)
    complete(tracker, 1)
    complete(tracker, 2, SnapshotKind.SAVEPOINT)
    complete(tracker, 3, SnapshotKind.SYNC_SAVEPOINT)
    found = tracker.snapshot(0)
    assert found.latest_completed is not None
    assert found.latest_completed.checkpoint_id == 1
    assert found.latest_savepoint is not None
    assert found.latest_savepoint.checkpoint_id == 3


def test_a_failed_checkpoint_says_when_and_why() -> None:
    """It is the latest failed one; its duration ends with the failure."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    tracker.report_failed(7, "Checkpoint expired before completing.", WALL_MS + 9, now_ms=1_900)
    tracker.validate()
    found = tracker.snapshot(99_999)
    (entry,) = found.history
    assert (entry.status, entry.failure_timestamp_ms) == ("FAILED", WALL_MS + 9)
    assert entry.failure_message == "Checkpoint expired before completing."
    assert entry.end_to_end_duration_ms == 900
    assert found.latest_failed == entry
    assert found.counts == CheckpointCounts(total=1, failed=1)
    assert found.durations_ms == ()


def test_late_metrics_still_land_in_a_failed_entry() -> None:
    """They show which task was slow; status and duration stay, in the history and in the latest
    failed one."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    tracker.report_failed(7, "expired", WALL_MS, now_ms=1_900)
    tracker.report_acknowledged(7, "a", 100, METRICS, WALL_MS + 50)
    found = tracker.snapshot(0)
    (entry,) = found.history
    assert (entry.status, entry.end_to_end_duration_ms) == ("FAILED", 900)
    assert entry.tasks[0].metrics == METRICS
    assert found.latest_failed == entry


def test_a_late_acknowledgement_of_an_unknown_checkpoint_changes_nothing() -> None:
    """Its entry has been dropped from the history."""
    tracker = CheckpointStatsTracker(10)
    before = tracker.snapshot(0)
    tracker.report_acknowledged(3, "a", 100, METRICS, WALL_MS)
    assert tracker.snapshot(0) == before


def test_a_failure_without_an_attempt_in_progress_is_counted_without_an_entry() -> None:
    """Without an id it cannot be listed; its message is kept."""
    tracker = CheckpointStatsTracker(10)
    tracker.report_failed_without_in_progress("No location: disk full.")
    tracker.validate()
    found = tracker.snapshot(0)
    assert found.counts == CheckpointCounts(total=1, failed=1)
    assert found.history == ()
    assert found.newest_failure == found.latest_trigger_failure == "No location: disk full."


def test_the_newest_failure_came_last_with_an_id_or_without() -> None:
    """It is shown next to the count of failed checkpoints."""
    tracker = CheckpointStatsTracker(10)
    assert tracker.snapshot(0).newest_failure is None
    tracker.report_failed_without_in_progress("disk full")
    tracker.report_pending(1, SnapshotKind.CHECKPOINT, WALL_MS, ["a"], 0)
    tracker.report_failed(1, "expired", WALL_MS, 5)
    assert tracker.snapshot(5).newest_failure == "expired"
    tracker.report_failed_without_in_progress("disk full again")
    assert tracker.snapshot(5).newest_failure == "disk full again"


def test_a_restore_is_shown_and_counted() -> None:
    """``latest.restored`` of the REST API."""
    tracker = CheckpointStatsTracker(10)
    tracker.report_restored(completed(4, SnapshotKind.SAVEPOINT), WALL_MS + 3)
    found = tracker.snapshot(0)
    assert found.counts.restored == 1
    assert found.latest_restored is not None
    assert found.latest_restored.checkpoint_id == 4
    assert found.latest_restored.is_savepoint
    assert found.latest_restored.restore_timestamp_ms == WALL_MS + 3


def test_a_subsumed_checkpoint_is_marked_as_discarded() -> None:
    """In the history, and as the latest completed one if it still is."""
    tracker = CheckpointStatsTracker(10)
    complete(tracker, 7)
    tracker.report_subsumed(7)
    found = tracker.snapshot(0)
    assert found.history[0].discarded
    assert found.latest_completed is not None
    assert found.latest_completed.discarded


def test_a_subsumed_checkpoint_that_left_the_history_changes_nothing() -> None:
    """No entry is left to mark."""
    tracker = CheckpointStatsTracker(1)
    complete(tracker, 1)
    complete(tracker, 2)
    before = tracker.snapshot(0)
    tracker.report_subsumed(1)
    assert tracker.snapshot(0) == before


def test_a_failed_checkpoint_cannot_be_subsumed() -> None:
    """Only completed checkpoints can be."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 1)
    with pytest.raises(InvariantError, match="checkpoint 1 is IN_PROGRESS and cannot be subsumed"):
        tracker.report_subsumed(1)


def test_the_history_is_bounded_and_newest_first() -> None:
    """It holds ``web.checkpoints.history`` entries; the counts are not bounded."""
    tracker = CheckpointStatsTracker(3)
    for checkpoint_id in range(1, 6):
        complete(tracker, checkpoint_id)
    found = tracker.snapshot(0)
    assert [entry.checkpoint_id for entry in found.history] == [5, 4, 3]
    assert found.counts.completed == 5


def test_a_checkpoint_that_left_the_history_in_progress_is_followed_to_its_end() -> None:
    """Many checkpoints can overtake a slow savepoint."""
    tracker = CheckpointStatsTracker(1)
    pending(tracker, 1, SnapshotKind.SAVEPOINT)
    complete(tracker, 2)
    tracker.report_acknowledged(1, "a", 100, METRICS, WALL_MS)
    tracker.report_completed(completed(1, SnapshotKind.SAVEPOINT), now_ms=4_000)
    tracker.validate()
    found = tracker.snapshot(0)
    assert [entry.checkpoint_id for entry in found.history] == [2]
    assert found.latest_savepoint is not None
    assert found.latest_savepoint.tasks[0].state_size == 100
    assert found.counts == CheckpointCounts(total=2, completed=2)


def test_durations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are kept, in order of completion."""
    monkeypatch.setattr(stats, "MAX_SUMMARIZED", 3)
    tracker = CheckpointStatsTracker(2)
    for checkpoint_id in range(1, 6):
        pending(tracker, checkpoint_id)
        tracker.report_completed(completed(checkpoint_id), now_ms=1_000 + checkpoint_id)
    assert tracker.snapshot(0).durations_ms == (3, 4, 5)


def test_sizes_and_durations_of_completed_checkpoints_and_savepoints_are_kept_for_the_summary() -> (
    None
):
    """Flink's summary covers everything that completed, not only what the history still shows."""
    tracker = CheckpointStatsTracker(1)
    for checkpoint_id, kind in ((1, SnapshotKind.CHECKPOINT), (2, SnapshotKind.SAVEPOINT)):
        pending(tracker, checkpoint_id, kind)
        tracker.report_acknowledged(checkpoint_id, "a", 5, METRICS, WALL_MS)
        tracker.report_completed(completed(checkpoint_id, kind), now_ms=1_000 + checkpoint_id)
    pending(tracker, 3)
    tracker.report_failed(3, "expired", WALL_MS, now_ms=2_000)
    found = tracker.snapshot(0)
    assert (found.durations_ms, found.state_sizes, found.checkpointed_sizes) == (
        (1, 2),
        (73, 73),
        (10, 10),
    )


def test_each_task_shows_when_it_acknowledged_what_it_cost_and_both_sizes() -> None:
    """MISSION A10, B5: also alignment and start delay."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 7)
    metrics = SnapshotMetrics(
        sync_duration_ms=1,
        async_duration_ms=2,
        alignment_duration_ms=3,
        start_delay_ms=4,
        checkpointed_size=5,
    )
    tracker.report_acknowledged(7, "b", 6, metrics, WALL_MS + 8)
    tracker.report_acknowledged(7, "stranger", 6, metrics, WALL_MS + 9)
    waiting, acknowledged = tracker.snapshot(0).history[0].tasks
    assert acknowledged == TaskCheckpointStats(
        vertex="b", ack_timestamp_ms=WALL_MS + 8, state_size=6, metrics=metrics
    )
    assert waiting == TaskCheckpointStats(vertex="a")


def test_late_metrics_land_in_the_latest_failed_entry_after_it_left_the_history() -> None:
    """It is still displayed."""
    tracker = CheckpointStatsTracker(1)
    pending(tracker, 1)
    tracker.report_failed(1, "expired", WALL_MS, now_ms=2_000)
    complete(tracker, 2)
    tracker.report_acknowledged(1, "a", 100, METRICS, WALL_MS)
    found = tracker.snapshot(0)
    assert [entry.checkpoint_id for entry in found.history] == [2]
    assert found.latest_failed is not None
    assert found.latest_failed.state_size == 100


def test_a_checkpoint_cannot_end_twice() -> None:
    """COMPLETED is final: anything else is a bug of the caller and an invariant error."""
    tracker = CheckpointStatsTracker(10)
    complete(tracker, 1)
    with pytest.raises(InvariantError, match="checkpoint 1 is not in progress"):
        tracker.report_failed(1, "too late", WALL_MS, now_ms=2_000)


def test_a_checkpoint_cannot_start_twice() -> None:
    """Ids never repeat (PROTOCOL P19)."""
    tracker = CheckpointStatsTracker(10)
    complete(tracker, 1)
    with pytest.raises(InvariantError, match="checkpoint 1 reported as pending twice"):
        pending(tracker, 1)


def test_a_snapshot_does_not_change_afterwards() -> None:
    """Other threads read it without a lock."""
    tracker = CheckpointStatsTracker(10)
    pending(tracker, 1)
    before = tracker.snapshot(1_100)
    tracker.report_acknowledged(1, "a", 5, METRICS, WALL_MS)
    tracker.report_failed(1, "expired", WALL_MS, now_ms=2_000)
    (entry,) = before.history
    assert (entry.status, entry.end_to_end_duration_ms, entry.state_size) == ("IN_PROGRESS", 100, 0)
    assert before.counts == CheckpointCounts(total=1, in_progress=1)
