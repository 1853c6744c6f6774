"""Flink's ``CheckpointRequestDeciderTest``: which request runs now, waits or is dropped.

Each scenario runs against ``CheckpointRequestDecider`` itself; where a job is affected, also
against ``JobMaster``. In Flink a request carries a flag "forced"; in Weir the requester decides:
``RequestOrigin.forced``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kit.job_master import MasterWorld, of, only, running_job
from tests.spec.scenario import allocate_all, complete, pending_ids, tick

from weir.core.checkpoints.request_decider import (
    MAX_QUEUED_REQUESTS,
    CheckpointRequest,
    CheckpointRequestDecider,
    Decision,
    RequestOrigin,
    Verdict,
)
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    CheckpointDiscarded,
    JobMasterEffect,
    RequestKind,
)
from weir.core.types import SnapshotKind

FORCED = [origin for origin in RequestOrigin if origin.forced]
NOT_FORCED = [origin for origin in RequestOrigin if not origin.forced]
#: (first out, second out)
USER_BEFORE_PERIODIC = [
    (RequestOrigin.USER_CHECKPOINT, RequestOrigin.PERIODIC),
    (RequestOrigin.SAVEPOINT, RequestOrigin.PERIODIC),
    (RequestOrigin.STOP, RequestOrigin.PERIODIC),
]
SAVEPOINT_BEFORE_CHECKPOINT = [
    (savepoint, checkpoint)
    for savepoint in (RequestOrigin.STOP, RequestOrigin.SAVEPOINT)
    for checkpoint in (RequestOrigin.FINAL, RequestOrigin.USER_CHECKPOINT, RequestOrigin.PERIODIC)
]


def decider(
    *, max_concurrent_checkpoints: int = 1, min_pause_ms: int = 0
) -> CheckpointRequestDecider:
    return CheckpointRequestDecider(
        max_concurrent_checkpoints=max_concurrent_checkpoints, min_pause_ms=min_pause_ms
    )


def request(origin: RequestOrigin, name: str | None = None) -> CheckpointRequest:
    return CheckpointRequest(origin=origin, request=name)


def choose(
    subject: CheckpointRequestDecider,
    *,
    now_ms: int = 0,
    triggering: bool = False,
    pending: int = 0,
    cleaning: int = 0,
    last_end_ms: int | None = None,
) -> Decision:
    decision = subject.choose(
        now_ms=now_ms,
        triggering=triggering,
        closing=False,
        pending=pending,
        cleaning=cleaning,
        last_end_ms=last_end_ms,
    )
    subject.validate()
    return decision


# -- 1: testForce ----------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", FORCED)
def test_a_forced_request_runs_although_as_many_checkpoints_are_pending_as_may_be(
    origin: RequestOrigin,
) -> None:
    """CheckpointRequestDeciderTest.testForce (MISSION A4): neither the limit nor the pause delays
    it."""
    subject = decider(max_concurrent_checkpoints=1, min_pause_ms=10**9)
    subject.enqueue(request(origin))
    decision = choose(subject, pending=1, now_ms=123, last_end_ms=122)
    assert decision == Decision(verdict=Verdict.RUN, request=request(origin))


def test_a_savepoint_is_triggered_beside_the_one_checkpoint_that_may_be_pending() -> None:
    """CheckpointRequestDeciderTest.testForce (MISSION A4): in the coordinator, also with a request
    queued before it."""
    world = running_job(max_concurrent_checkpoints=1)
    checkpoint = world.trigger()
    assert not of(world.ask(), AllocateLocation)
    savepoint = world.trigger(RequestKind.SAVEPOINT)
    assert pending_ids(world) == [checkpoint, savepoint]


# -- 2: testEnqueueOnTooManyPending, testNonForcedEnqueueOnTooManyPending --------------------------


@pytest.mark.parametrize("origin", NOT_FORCED)
def test_a_request_that_is_not_forced_is_queued_while_too_many_are_pending_and_runs_when_that_drops(
    origin: RequestOrigin,
) -> None:
    """CheckpointRequestDeciderTest.testEnqueueOnTooManyPending,
    testNonForcedEnqueueOnTooManyPending (MISSION A5)."""
    subject = decider(max_concurrent_checkpoints=1)
    assert subject.enqueue(request(origin)) is None
    assert choose(subject, pending=1) == Decision(verdict=Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS)
    assert choose(subject, pending=0) == Decision(verdict=Verdict.RUN, request=request(origin))
    assert choose(subject) == Decision(verdict=Verdict.NOTHING_QUEUED)


def completes(world: MasterWorld, checkpoint_id: int) -> list[JobMasterEffect]:
    return world.record(world.acknowledge(checkpoint_id))


def is_declined(world: MasterWorld, checkpoint_id: int) -> list[JobMasterEffect]:
    return world.decline(checkpoint_id, "a")


def expires(world: MasterWorld, checkpoint_id: int) -> list[JobMasterEffect]:
    assert world.pass_time(999) == []
    return world.pass_time(1)


@pytest.mark.parametrize("end", [completes, is_declined, expires])
def test_a_queued_request_runs_as_soon_as_the_pending_checkpoint_completes_expires_or_is_aborted(
    end: Callable[[MasterWorld, int], list[JobMasterEffect]],
) -> None:
    """CheckpointRequestDeciderTest.testEnqueueOnTooManyPending (MISSION A5), in the coordinator."""
    world = running_job(timeout_ms=1_000)
    first = world.trigger()
    assert world.ask() == []
    waits = world.master.stats(world.now_ms).waits_because
    assert waits is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert allocate_all(world, end(world, first)) == [first + 1]


# -- 3: testEnqueueOnTooManyCleaning ---------------------------------------------------------------


@pytest.mark.parametrize("origin", list(RequestOrigin))
def test_nothing_runs_while_more_checkpoints_are_cleaned_up_than_may_be_pending_until_one_is_done(
    origin: RequestOrigin,
) -> None:
    """CheckpointRequestDeciderTest.testEnqueueOnTooManyCleaning (PROTOCOL P38): a forced request
    waits as well."""
    subject = decider(max_concurrent_checkpoints=5)
    subject.enqueue(request(origin))
    assert choose(subject, cleaning=6) == Decision(
        verdict=Verdict.TOO_MANY_CHECKPOINTS_BEING_CLEANED
    )
    assert choose(subject, cleaning=5).request == request(origin)


def test_one_finished_deletion_releases_the_savepoint_that_waited_for_the_cleaning() -> None:
    """CheckpointRequestDeciderTest.testEnqueueOnTooManyCleaning (MISSION A5): nobody has to ask
    again."""
    world = running_job(cleans=False, max_concurrent_checkpoints=1)
    aborted = [world.trigger(), 0]
    world.decline(aborted[0], "a")
    aborted[1] = world.trigger()
    world.decline(aborted[1], "a")
    assert world.ask(RequestKind.SAVEPOINT) == []
    released = world.handle(CheckpointDiscarded(checkpoint_id=aborted[0]))
    assert only(released, AllocateLocation).kind is SnapshotKind.SAVEPOINT


# -- 4: testUserSubmittedPrioritized, testSavepointPrioritized -------------------------------------


def assert_order(high: RequestOrigin, low: RequestOrigin) -> None:
    """``high`` leaves the queue first, whichever of the two was queued first."""
    for enqueued in ((high, low), (low, high)):
        subject = decider()
        for origin in enqueued:
            subject.enqueue(request(origin))
            assert choose(subject, triggering=True).verdict is Verdict.TRIGGER_IN_PROGRESS
        assert [choose(subject).request, choose(subject).request] == [request(high), request(low)]


@pytest.mark.parametrize(("user", "periodic"), USER_BEFORE_PERIODIC)
def test_what_a_user_submitted_runs_before_a_periodic_request(
    user: RequestOrigin, periodic: RequestOrigin
) -> None:
    """CheckpointRequestDeciderTest.testUserSubmittedPrioritized, also not forced (PROTOCOL P38)."""
    assert_order(user, periodic)


@pytest.mark.parametrize(("savepoint", "checkpoint"), SAVEPOINT_BEFORE_CHECKPOINT)
def test_a_savepoint_runs_before_a_checkpoint(
    savepoint: RequestOrigin, checkpoint: RequestOrigin
) -> None:
    """CheckpointRequestDeciderTest.testSavepointPrioritized, also not forced (PROTOCOL P38)."""
    assert_order(savepoint, checkpoint)


@pytest.mark.parametrize("origin", [RequestOrigin.SAVEPOINT, RequestOrigin.USER_CHECKPOINT])
def test_of_two_equal_requests_the_older_one_runs_first(origin: RequestOrigin) -> None:
    """CheckpointRequestDecider orders equal requests by their time (PROTOCOL P38)."""
    subject = decider()
    for name in ("older", "newer"):
        subject.enqueue(request(origin, name))
    names = [choose(subject).request, choose(subject).request]
    assert names == [request(origin, "older"), request(origin, "newer")]


def test_requests_that_waited_for_a_trigger_in_progress_are_triggered_by_their_rank() -> None:
    """CheckpointRequestDeciderTest.testSavepointPrioritized (MISSION A5), in the coordinator."""
    world = running_job(max_concurrent_checkpoints=3)
    in_progress = world.ask()
    assert world.ask(RequestKind.CHECKPOINT, name="manual") == []
    assert world.ask(RequestKind.SAVEPOINT, name="savepoint") == []
    allocate_all(world, in_progress)
    asked = [pending.request.request for pending in world.master.coordinator.pending]
    assert asked[1:] == ["savepoint", "manual"]


# -- 5: testQueueSizeLimit, testQueueSizeLimitPriority ---------------------------------------------


def full_queue(origin: RequestOrigin) -> CheckpointRequestDecider:
    subject = decider()
    for number in range(MAX_QUEUED_REQUESTS):
        assert subject.enqueue(request(origin, f"{number}")) is None
    return subject


@pytest.mark.parametrize("origin", [RequestOrigin.USER_CHECKPOINT, RequestOrigin.SAVEPOINT])
def test_a_request_beyond_the_size_of_the_queue_is_dropped_as_one_too_many(
    origin: RequestOrigin,
) -> None:
    """CheckpointRequestDeciderTest.testQueueSizeLimit (PROTOCOL P38): among equals the newest is
    dropped."""
    subject = full_queue(origin)
    assert subject.enqueue(request(origin, "last")) == request(origin, "last")


def test_a_full_queue_drops_the_newest_of_the_lowest_rank_for_a_higher_request() -> None:
    """CheckpointRequestDeciderTest.testQueueSizeLimitPriority (PROTOCOL P38)."""
    subject = full_queue(RequestOrigin.USER_CHECKPOINT)
    dropped = subject.enqueue(request(RequestOrigin.SAVEPOINT, "high"))
    assert dropped == request(RequestOrigin.USER_CHECKPOINT, f"{MAX_QUEUED_REQUESTS - 1}")
    assert choose(subject).request == request(RequestOrigin.SAVEPOINT, "high")


def test_a_full_queue_has_no_place_for_a_request_of_the_lowest_rank() -> None:
    """CheckpointRequestDeciderTest.testQueueSizeLimitPriority (PROTOCOL P38): the new request
    itself is dropped."""
    subject = full_queue(RequestOrigin.SAVEPOINT)
    low = request(RequestOrigin.PERIODIC)
    assert subject.enqueue(low) == low


def test_a_request_dropped_from_the_full_queue_is_refused_at_once() -> None:
    """CheckpointRequestDeciderTest.testQueueSizeLimit (PROTOCOL P38): TOO_MANY_CHECKPOINT_REQUESTS,
    in the coordinator."""
    world = running_job()
    world.trigger()
    for number in range(MAX_QUEUED_REQUESTS):
        assert world.ask(name=f"{number}") == []
    answer = only(world.ask(name="last"), AnswerRequest)
    assert answer.request == "last"
    assert "The maximum number of queued checkpoint requests exceeded." in (answer.failure or "")
    assert len(of(world.effects, AnswerRequest)) == 1


def test_the_timer_is_set_again_when_users_push_the_waiting_periodic_request_out_of_the_queue() -> (
    None
):
    """PROTOCOL P38: the timer was off while that request waited, and nobody else sets it again."""
    world = running_job(interval_ms=10)
    assert tick(world, 10) == [1]
    trigger_of = world.master.coordinator.trigger
    assert trigger_of.waits_because is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert trigger_of.next_trigger_ms is None
    for number in range(MAX_QUEUED_REQUESTS):
        assert world.ask(name=f"{number}") == []
    assert trigger_of.next_trigger_ms == world.now_ms + 10
    assert tick(world, 10) == []
    assert trigger_of.next_trigger_ms == world.now_ms + 10


# -- 6: testSavepointTiming, testCheckpointTiming --------------------------------------------------


@pytest.mark.parametrize("origin", [RequestOrigin.SAVEPOINT, RequestOrigin.STOP])
def test_a_savepoint_runs_at_once_inside_the_minimum_pause(origin: RequestOrigin) -> None:
    """CheckpointRequestDeciderTest.testSavepointTiming (MISSION A4)."""
    subject = decider(min_pause_ms=100)
    subject.enqueue(request(origin))
    assert choose(subject, now_ms=51, last_end_ms=50).verdict is Verdict.RUN


def test_a_manual_checkpoint_runs_at_once_inside_the_minimum_pause() -> None:
    """CheckpointRequestDeciderTest.testCheckpointTiming (MISSION A4): the pause applies to periodic
    requests."""
    subject = decider(min_pause_ms=100)
    subject.enqueue(request(RequestOrigin.USER_CHECKPOINT))
    assert choose(subject, now_ms=51, last_end_ms=50).verdict is Verdict.RUN


def test_a_periodic_checkpoint_is_dropped_until_the_minimum_pause_has_passed() -> None:
    """CheckpointRequestDeciderTest.testCheckpointTiming (MISSION A4):
    MINIMUM_TIME_BETWEEN_CHECKPOINTS."""
    subject = decider(min_pause_ms=100)
    periodic = request(RequestOrigin.PERIODIC)
    subject.enqueue(periodic)
    assert choose(subject, now_ms=149, last_end_ms=50) == Decision(
        verdict=Verdict.MINIMUM_TIME_BETWEEN_CHECKPOINTS, request=periodic, retry_ms=150
    )
    assert choose(subject) == Decision(verdict=Verdict.NOTHING_QUEUED)
    subject.enqueue(periodic)
    assert choose(subject, now_ms=150, last_end_ms=50).verdict is Verdict.RUN


def test_savepoints_and_manual_checkpoints_are_triggered_in_the_pause_that_holds_the_timer() -> (
    None
):
    """CheckpointRequestDeciderTest.testSavepointTiming, testCheckpointTiming (MISSION A4), in the
    coordinator."""
    world = running_job(interval_ms=1_000, min_pause_ms=1_000)
    complete(world)
    complete(world, RequestKind.SAVEPOINT)
    assert complete(world) == 3
    assert tick(world, 999) == []
    assert tick(world, 1) == [4]
