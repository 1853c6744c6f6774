"""The small parts of the checkpoint coordinator, one test per sentence of their contract."""

from __future__ import annotations

import pytest
from master_harness import checkpoint, execution, task_state

from weir.core.checkpoints.epochs import CommitEpochs
from weir.core.checkpoints.failures import CheckpointFailureManager
from weir.core.checkpoints.pending import (
    PENDING_TRANSITIONS,
    PendingCheckpoint,
    PendingState,
    TaskAcknowledgeResult,
)
from weir.core.checkpoints.plan import CheckpointPlan, calculate_plan
from weir.core.checkpoints.requests import (
    MAX_QUEUED_REQUESTS,
    CheckpointRequest,
    CheckpointRequestDecider,
    RequestOrigin,
    Verdict,
)
from weir.core.checkpoints.store import CompletedCheckpointStore, Subsumed
from weir.core.job.stop_with_savepoint import STOP_TRANSITIONS, StopState, StopWithSavepoint
from weir.core.messages.protocol import AcknowledgeCheckpoint
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import Committable, SnapshotKind, SnapshotMetrics, TaskStatus
from weir.errors import InvariantError

COUNTED = {
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_DECLINED,
    Reason.CHECKPOINT_EXPIRED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
}

# -- reasons and their count -----------------------------------------------------------------------


def test_there_are_eighteen_reasons_of_which_five_count() -> None:
    """Two equal values would silently become one member, so the number is checked too."""
    assert len(Reason) == 18
    assert {reason for reason in Reason if reason.counts} == COUNTED


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_counts_exactly_if_it_is_one_of_the_five(reason: Reason) -> None:
    """The policy is an attribute of the member."""
    assert CheckpointFailureManager(tolerable_failures=0).handle_failure(reason, 1) == (
        reason in COUNTED
    )


def test_uncounted_reasons_keep_the_streak_and_the_third_counted_fails_at_tolerance_two() -> None:
    """Failures count as consecutive until a checkpoint succeeds."""
    manager = CheckpointFailureManager(tolerable_failures=2)
    assert not manager.handle_failure(Reason.IO_EXCEPTION, 1)
    assert not manager.handle_failure(Reason.CHECKPOINT_DECLINED, 2)
    assert not manager.handle_failure(Reason.TASK_FAILURE, 3)
    assert manager.handle_failure(Reason.CHECKPOINT_EXPIRED, 4)


def test_a_success_resets_the_count() -> None:
    """Only consecutive failures count."""
    manager = CheckpointFailureManager(tolerable_failures=1)
    manager.handle_failure(Reason.CHECKPOINT_DECLINED, 1)
    manager.handle_success(2)
    assert not manager.handle_failure(Reason.CHECKPOINT_DECLINED, 3)


def test_failures_at_or_below_the_last_success_are_ignored() -> None:
    """They come too late to matter."""
    manager = CheckpointFailureManager(tolerable_failures=0)
    manager.handle_success(5)
    assert not manager.handle_failure(Reason.CHECKPOINT_DECLINED, 4)
    assert not manager.handle_failure(Reason.CHECKPOINT_DECLINED, 5)
    assert manager.handle_failure(Reason.CHECKPOINT_DECLINED, 6)


# -- deciding --------------------------------------------------------------------------------------


def ask(origin: RequestOrigin, name: str | None = None) -> CheckpointRequest:
    return CheckpointRequest(origin=origin, request=name)


def decider(**changes: int) -> CheckpointRequestDecider:
    return CheckpointRequestDecider(
        **{"max_concurrent_checkpoints": 1, "min_pause_ms": 0} | changes
    )


def choose(subject: CheckpointRequestDecider, **changes: object) -> object:
    known = {"now_ms": 0, "triggering": False, "pending": 0, "cleaning": 0, "last_end_ms": None}
    return subject.choose(**known | changes)  # type: ignore[arg-type]


def test_requests_leave_the_queue_user_before_periodic_and_savepoint_before_checkpoint() -> None:
    """And older before newer."""
    subject = decider()
    order = [
        ask(RequestOrigin.STOP),
        ask(RequestOrigin.SAVEPOINT, "1"),
        ask(RequestOrigin.SAVEPOINT, "2"),
        ask(RequestOrigin.FINAL),
        ask(RequestOrigin.USER_CHECKPOINT),
        ask(RequestOrigin.PERIODIC),
    ]
    for request in (order[5], order[4], order[1], order[3], order[2], order[0]):
        subject.enqueue(request)
    assert [choose(subject).request for _ in order] == order


def test_a_forced_request_runs_although_too_many_are_pending_and_another_waits() -> None:
    """The waiting request is postponed, not dropped."""
    for origin in RequestOrigin:
        subject = decider()
        subject.enqueue(ask(origin))
        verdict = choose(subject, pending=1).verdict
        assert verdict is (
            Verdict.RUN if origin.forced else Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
        )
        assert origin.forced or choose(subject, pending=0).verdict is Verdict.RUN


def test_nothing_runs_during_a_trigger_in_progress() -> None:
    """Not even a forced one."""
    subject = decider()
    subject.enqueue(ask(RequestOrigin.STOP))
    assert choose(subject, triggering=True).verdict is Verdict.TRIGGER_IN_PROGRESS


@pytest.mark.parametrize("origin", list(RequestOrigin))
def test_only_a_periodic_request_is_dropped_inside_the_minimum_pause(origin: RequestOrigin) -> None:
    """It may be made again after exactly the remaining pause."""
    subject = decider(min_pause_ms=100)
    subject.enqueue(ask(origin))
    decision = choose(subject, now_ms=130, last_end_ms=50)
    periodic = origin is RequestOrigin.PERIODIC
    assert decision.retry_ms == (150 if periodic else None)
    assert (decision.verdict is Verdict.RUN) != periodic


def test_a_second_periodic_request_is_declined() -> None:
    """PROTOCOL P38: one may wait."""
    subject = decider()
    assert subject.enqueue(ask(RequestOrigin.PERIODIC)) is None
    assert subject.enqueue(ask(RequestOrigin.PERIODIC)) == ask(RequestOrigin.PERIODIC)
    assert [choose(subject).verdict for _ in range(2)] == [Verdict.RUN, Verdict.NOTHING_QUEUED]


def test_a_full_queue_drops_the_request_of_the_lowest_priority() -> None:
    """Which may be a waiting request rather than the new one."""
    subject = decider()
    for number in range(MAX_QUEUED_REQUESTS):
        subject.enqueue(ask(RequestOrigin.USER_CHECKPOINT, str(number)))
    dropped = subject.enqueue(ask(RequestOrigin.SAVEPOINT, "s"))
    assert dropped == ask(RequestOrigin.USER_CHECKPOINT, str(MAX_QUEUED_REQUESTS - 1))
    new = ask(RequestOrigin.PERIODIC)
    assert subject.enqueue(new) == new
    subject.validate()


# -- plan ------------------------------------------------------------------------------------------


def test_the_plan_triggers_running_and_waiting_tasks_and_leaves_out_finished_ones() -> None:
    """PROTOCOL P31."""
    running, waiting, finished = (
        TaskStatus.RUNNING,
        TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
        TaskStatus.FINISHED,
    )
    plan = calculate_plan(execution({"a": running, "b": waiting, "c": finished}))
    assert plan == CheckpointPlan(
        tasks_to_trigger=("a", "b"),
        tasks_to_wait_for=("a", "b"),
        finished_tasks=("c",),
        waiting_tasks=frozenset({"b"}),
    )


# -- pending ---------------------------------------------------------------------------------------


def pending(*tasks: str) -> PendingCheckpoint:
    plan = CheckpointPlan(
        tasks_to_trigger=tasks or ("a",),
        tasks_to_wait_for=tasks or ("a",),
        finished_tasks=(),
        waiting_tasks=frozenset(),
    )
    subject = PendingCheckpoint(
        checkpoint_id=1,
        request=ask(RequestOrigin.PERIODIC),
        plan=plan,
        target=None,
        timestamp_ms=1,
        deadline_ms=1,
    )
    subject.tasks_triggered(plan)
    return subject


def ack(vertex: str) -> AcknowledgeCheckpoint:
    state, metrics = task_state(vertex), SnapshotMetrics()
    return AcknowledgeCheckpoint(
        vertex=vertex, attempt=1, checkpoint_id=1, state=state, metrics=metrics
    )


def test_an_acknowledgement_is_answered_with_success_then_duplicate_and_unknown_for_strangers() -> (
    None
):
    """Lateness is a result, not an exception."""
    subject = pending("a", "b")
    assert subject.acknowledge(ack("a")) is TaskAcknowledgeResult.SUCCESS
    assert subject.acknowledge(ack("a")) is TaskAcknowledgeResult.DUPLICATE
    assert subject.acknowledge(ack("x")) is TaskAcknowledgeResult.UNKNOWN
    assert subject.not_yet_acknowledged == ("b",)


def test_a_finalizing_checkpoint_cannot_be_aborted_and_stays_as_it_is() -> None:
    """PROTOCOL P11."""
    subject = pending("a")
    subject.acknowledge(ack("a"))
    subject.begin_finalizing()
    with pytest.raises(InvariantError, match="while its record is being written"):
        subject.abort()
    assert subject.state is PendingState.FINALIZING
    subject.record_lost()
    assert subject.state is PendingState.ABORTED


def test_a_checkpoint_is_not_finalized_without_all_acknowledgements() -> None:
    """The record needs the state of every task."""
    with pytest.raises(InvariantError, match="without"):
        pending("a").begin_finalizing()


def test_completed_and_aborted_are_the_ends_of_the_pending_states() -> None:
    """The table lists every state."""
    assert PENDING_TRANSITIONS.keys() == set(PendingState)
    ends = {state for state, targets in PENDING_TRANSITIONS.items() if not targets}
    assert ends == {PendingState.COMPLETED, PendingState.ABORTED}


# -- completed store -------------------------------------------------------------------------------


def test_the_store_keeps_the_newest_num_retained_checkpoints() -> None:
    """The oldest is subsumed."""
    store = CompletedCheckpointStore(num_retained=2)
    for checkpoint_id in (1, 2, 3):
        assert store.ids_with(checkpoint_id) == (*store.ids, checkpoint_id)[-2:]
        store.add(checkpoint(checkpoint_id), pending=())
    assert store.ids == (2, 3)
    assert store.release({}) == [Subsumed(checkpoint_id=1, files=())]
    assert store.release({}) == []


def test_the_store_refuses_savepoints_and_checkpoints_out_of_order() -> None:
    """Savepoints are never subsumed, so they stay outside the store."""
    store = CompletedCheckpointStore(num_retained=1)
    with pytest.raises(InvariantError, match="savepoint"):
        store.add(checkpoint(1, kind=SnapshotKind.SYNC_SAVEPOINT), pending=())
    store.add(checkpoint(2), pending=())
    with pytest.raises(InvariantError, match="out of order"):
        store.add(checkpoint(1), pending=())


def test_a_released_checkpoint_keeps_files_that_a_deferred_one_shares() -> None:
    """A pending checkpoint may refer to them through the deferred one."""
    store = CompletedCheckpointStore(num_retained=1)
    store.add(checkpoint(1, task_state("a", files=("x", "old"))), pending=())
    store.add(checkpoint(2, task_state("a", files=("x", "y"))), pending=())
    store.add(checkpoint(3, task_state("a", files=("z",))), pending={4})
    assert store.release({4}) == [Subsumed(checkpoint_id=1, files=("old",))]
    assert store.release({}) == [Subsumed(checkpoint_id=2, files=("x", "y"))]


def test_restoring_an_older_checkpoint_drops_newer_ones_from_the_store_without_deleting_them() -> (
    None
):
    """The attempt could not use them."""
    store = CompletedCheckpointStore(num_retained=3)
    for checkpoint_id in (1, 2, 3):
        store.add(checkpoint(checkpoint_id), pending=())
    store.seed(checkpoint(2))
    assert store.ids == (1, 2)
    assert store.release({}) == []


# -- epochs ----------------------------------------------------------------------------------------


def test_an_epoch_is_the_smallest_completed_checkpoint_at_or_above_the_barrier() -> None:
    """PROTOCOL P19: every committer uses the same id."""
    epochs = CommitEpochs()
    for checkpoint_id in (3, 5):
        epochs.completed(checkpoint_id)
    staged = tuple(
        Committable(sink="s", position=i, payload={}, barrier=b) for i, b in enumerate((2, 3, 4, 6))
    )
    state = task_state("a", committables=staged)
    resolved = epochs.resolve(state, checkpoint_id=7, kind=SnapshotKind.CHECKPOINT)
    assert [c.epoch for c in resolved.committables] == [3, 3, 5, 7]
    savepoint = epochs.resolve(state, checkpoint_id=7, kind=SnapshotKind.SAVEPOINT)
    assert [c.epoch for c in savepoint.committables] == [3, 3, 5, None]
    epochs.forget((resolved,), checkpoint_id=7)
    again = epochs.resolve(state, checkpoint_id=8, kind=SnapshotKind.CHECKPOINT)
    assert [c.epoch for c in again.committables] == [3, 3, 5, 8]


def test_epochs_that_no_snapshot_can_name_are_forgotten() -> None:
    """The list does not grow over the life of the job."""
    epochs = CommitEpochs()
    for checkpoint_id in range(1, 100):
        epochs.completed(checkpoint_id)
        epochs.forget((), checkpoint_id=checkpoint_id)
    assert epochs._completed == [99]


# -- stop with savepoint ---------------------------------------------------------------------------


def test_each_move_that_the_stop_table_does_not_list_raises_and_leaves_the_state() -> None:
    """The table defines the machine."""
    stop = StopWithSavepoint(request="r", target="/s", drain=False)
    with pytest.raises(InvariantError, match="cannot go from WAITING_FOR_RECORD to ENDING"):
        stop.tasks_finished()
    assert stop.state is StopState.WAITING_FOR_RECORD
    assert STOP_TRANSITIONS.keys() == set(StopState)
