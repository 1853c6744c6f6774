"""The small parts of the checkpoint coordinator, one test per sentence of their contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kit.job_master import checkpoint, execution, task_state

from weir.core.checkpoints.epochs import CommitEpochs
from weir.core.checkpoints.pending import (
    PendingCheckpoint,
    PendingState,
    TaskAcknowledgeResult,
)
from weir.core.checkpoints.plan import CheckpointPlan, calculate_plan
from weir.core.checkpoints.request_decider import (
    CheckpointRequest,
    CheckpointRequestDecider,
    Decision,
    RequestOrigin,
    Verdict,
)
from weir.core.checkpoints.store import CompletedCheckpointStore, Subsumed
from weir.core.job.stop_with_savepoint import StopWithSavepoint
from weir.core.messages.protocol import AcknowledgeCheckpoint
from weir.core.types import Committable, SnapshotKind, SnapshotMetrics, TaskStatus
from weir.errors import InvariantError

# -- deciding --------------------------------------------------------------------------------------


def ask(origin: RequestOrigin, name: str | None = None) -> CheckpointRequest:
    return CheckpointRequest(origin=origin, request=name)


def decider() -> CheckpointRequestDecider:
    return CheckpointRequestDecider(max_concurrent_checkpoints=1, min_pause_ms=100)


def choose(subject: CheckpointRequestDecider, *, triggering: bool = False) -> Decision:
    """The decision a millisecond after the last checkpoint ended, with none pending."""
    return subject.choose(
        now_ms=51, triggering=triggering, closing=False, pending=0, cleaning=0, last_end_ms=50
    )


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


def test_a_final_checkpoint_runs_at_once_inside_the_minimum_pause() -> None:
    """PROTOCOL P29: the pause holds only the timer, and tasks wait for this checkpoint."""
    subject = decider()
    subject.enqueue(ask(RequestOrigin.FINAL))
    assert choose(subject).verdict is Verdict.RUN


def test_nothing_runs_during_a_trigger_in_progress() -> None:
    """Not even a forced request."""
    subject = decider()
    subject.enqueue(ask(RequestOrigin.STOP))
    assert choose(subject, triggering=True).verdict is Verdict.TRIGGER_IN_PROGRESS


def test_a_second_periodic_request_is_declined() -> None:
    """PROTOCOL P38: one may wait."""
    subject = decider()
    assert subject.enqueue(ask(RequestOrigin.PERIODIC)) is None
    assert subject.enqueue(ask(RequestOrigin.PERIODIC)) == ask(RequestOrigin.PERIODIC)
    assert choose(subject).request == ask(RequestOrigin.PERIODIC)
    assert choose(subject).verdict is Verdict.NOTHING_QUEUED


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


PENDING_MOVES: dict[str, Callable[[PendingCheckpoint], object]] = {
    "finalize": PendingCheckpoint.begin_finalizing,
    "record won": PendingCheckpoint.record_won,
    "record lost": PendingCheckpoint.record_lost,
    "abort": PendingCheckpoint.abort,
}
PENDING_STORIES = {
    (): {"finalize", "abort"},
    ("finalize",): {"record won", "record lost"},
    ("finalize", "record won"): set(),
    ("finalize", "record lost"): set(),
    ("abort",): set(),
}


@pytest.mark.parametrize("move", PENDING_MOVES)
@pytest.mark.parametrize("story", PENDING_STORIES, ids=", ".join)
def test_an_acknowledged_checkpoint_is_finalized_or_aborted_and_its_end_is_final(
    story: tuple[str, ...], move: str
) -> None:
    """PROTOCOL P11: any other move raises and leaves the state as it is."""
    subject = pending("a")
    subject.acknowledge(ack("a"))
    for earlier in story:
        PENDING_MOVES[earlier](subject)
    before = subject.state
    if move in PENDING_STORIES[story]:
        PENDING_MOVES[move](subject)
        assert subject.state is not before
    else:
        with pytest.raises(InvariantError, match=rf"checkpoint 1 .*{before.name}"):
            PENDING_MOVES[move](subject)
        assert subject.state is before


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
    """A pending checkpoint may refer to them through the deferred checkpoint."""
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


STOP = StopWithSavepoint(requests=("r",), target="/s", drain=False)
STOP_MOVES: dict[str, Callable[[StopWithSavepoint], StopWithSavepoint]] = {
    "request": StopWithSavepoint.savepoint_requested,
    "create": lambda stop: stop.savepoint_created(checkpoint(1, task_state("a")), 1),
    "finish": StopWithSavepoint.tasks_finished,
    "end": StopWithSavepoint.ended,
    "fail": StopWithSavepoint.failed,
}
STOP_ORDER = ("request", "create", "finish", "end")


@pytest.mark.parametrize("move", STOP_MOVES)
@pytest.mark.parametrize("done", range(len(STOP_ORDER) + 1))
def test_a_stop_goes_through_its_states_in_order_and_may_fail_in_each_but_the_last(
    done: int, move: str
) -> None:
    """PROTOCOL P34: any other move raises."""
    stop = STOP
    for earlier in STOP_ORDER[:done]:
        stop = STOP_MOVES[earlier](stop)
    is_over = done == len(STOP_ORDER)
    if not is_over and move in (STOP_ORDER[done], "fail"):
        moved = STOP_MOVES[move](stop)
        assert moved.state is not stop.state
        moved.validate()
    else:
        with pytest.raises(InvariantError, match=f"cannot go from {stop.state.name} to"):
            STOP_MOVES[move](stop)


def test_only_a_stop_that_waits_for_its_tasks_has_a_deadline() -> None:
    """Recording the end may take as long as it does."""
    stop = STOP
    deadlines = [stop.deadline_ms]
    for move in STOP_ORDER:
        stop = STOP_MOVES[move](stop)
        deadlines.append(stop.deadline_ms)
    assert deadlines == [None, None, 1, None, None]


def test_a_stop_that_has_failed_stays_failed() -> None:
    """Its requests were answered, and no request is answered twice."""
    failed = STOP.failed()
    for move in STOP_MOVES.values():
        with pytest.raises(InvariantError, match="cannot go from FAILED to"):
            move(failed)
