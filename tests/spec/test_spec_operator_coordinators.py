"""Flink's ``OperatorCoordinatorHolderTest``: one coordinator's events and snapshots.

Each test is one exactly-once scenario (MISSION C2 to C9) with one holder; what Flink's coordinator
context receives are the holder's outputs here.
"""

from __future__ import annotations

import pytest

from weir.core.coordination.coordinator_holder import OperatorCoordinatorHolder
from weir.core.messages.coordination import (
    CoordinatorAcknowledged,
    CoordinatorDeclined,
    DeliverEvent,
    FailSubtask,
    HolderOutput,
    SnapshotCoordinator,
)
from weir.core.types import Payload
from weir.errors import InvariantError


class Bench:
    """A holder and all its outputs."""

    def __init__(self, parallelism: int = 2) -> None:
        self.holder = OperatorCoordinatorHolder("op", parallelism)
        self.outputs: list[HolderOutput] = []
        self._sent = 0

    def do(self, outputs: list[HolderOutput]) -> list[HolderOutput]:
        """Validate the holder and record what a call returned."""
        # The checkpoint coordinator knows which checkpoints are pending; here any may be.
        self.holder.validate(pending=range(100))
        self.outputs += outputs
        return outputs

    def send(self, *subtasks: int) -> None:
        """Send the next values, one to each of these subtasks."""
        for subtask in subtasks:
            self.do(self.holder.send(subtask, {"value": self._sent}))
            self._sent += 1

    def snapshot(self, checkpoint_id: int, state: Payload | None = None) -> list[HolderOutput]:
        """Start a checkpoint whose coordinator takes its snapshot at once."""
        self.do(self.holder.checkpoint(checkpoint_id))
        return self.do(self.holder.snapshot_taken(checkpoint_id, state))

    def confirm(self, *values: int) -> list[HolderOutput]:
        """Report the events with these values as handled by the subtasks."""
        numbers = {
            event.payload["value"]: event.number
            for event in self.outputs
            if isinstance(event, DeliverEvent)
        }
        return [
            output for value in values for output in self.do(self.holder.confirmed(numbers[value]))
        ]

    def delivered(self, subtask: int) -> list[int]:
        """The values sent to a subtask, in order."""
        events = [event for event in self.outputs if isinstance(event, DeliverEvent)]
        return [event.payload["value"] for event in events if event.subtask == subtask]


def acknowledged(checkpoint_id: int, state: Payload | None = None) -> CoordinatorAcknowledged:
    """The output of a coordinator whose part is complete."""
    return CoordinatorAcknowledged(operator="op", checkpoint_id=checkpoint_id, state=state)


def test_a_checkpoint_asks_the_coordinator_and_waits_for_its_answer() -> None:
    """29: ``checkpointFutureInitiallyNotDone``."""
    bench = Bench()
    assert bench.do(bench.holder.checkpoint(1)) == [
        SnapshotCoordinator(operator="op", checkpoint_id=1)
    ]


def test_the_answer_completes_the_coordinators_part() -> None:
    """29: ``completedCheckpointFuture``: its state goes into the checkpoint."""
    assert Bench().snapshot(1, {"splits": 3}) == [acknowledged(1, {"splits": 3})]


def test_events_pass_until_the_snapshot_is_taken() -> None:
    """30: ``eventsBeforeCheckpointFutureCompletionPassThrough``."""
    bench = Bench()
    bench.do(bench.holder.checkpoint(1))
    bench.send(1)
    assert bench.delivered(1) == [0]


def test_events_are_held_once_the_snapshot_is_taken() -> None:
    """30: ``eventsAreBlockedAfterCheckpointFutureCompletes``: they belong to the next epoch
    (C3)."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0, 1)
    assert bench.delivered(0) == bench.delivered(1) == []


def test_an_abort_releases_what_is_held() -> None:
    """31: ``abortedCheckpointReleasesBlockedEvents``."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0)
    bench.do(bench.holder.over(1))
    assert bench.delivered(0) == [0]


def test_a_subtasks_acknowledgement_releases_what_is_held_for_it_and_for_no_other() -> None:
    """31: ``sourceBarrierInjectionReleasesBlockedEvents``, today by AcknowledgeCheckpointEvent
    (C4)."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0, 1, 0)
    bench.do(bench.holder.acknowledged(0, 1))
    assert (bench.delivered(0), bench.delivered(1)) == ([0, 2], [])
    bench.do(bench.holder.acknowledged(1, 1))
    assert bench.delivered(1) == [1]


def test_a_restore_drops_what_is_held_and_lets_new_events_pass() -> None:
    """31: ``restoreOpensValveEvents``: held events were sent after the restored checkpoint (C5)."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0)
    bench.holder.reset()
    bench.send(0)
    assert bench.delivered(0) == [1]


def test_a_restore_forgets_the_checkpoints_that_were_under_way() -> None:
    """An answer for one of them comes too late."""
    bench = Bench()
    bench.do(bench.holder.checkpoint(1))
    bench.holder.reset()
    assert bench.do(bench.holder.snapshot_taken(1, None)) == []


def test_an_answer_after_the_abort_holds_nothing() -> None:
    """32: ``lateCompleteCheckpointFutureDoesNotBlockEvents``."""
    bench = Bench()
    bench.do(bench.holder.checkpoint(1))
    bench.do(bench.holder.over(1))
    assert bench.do(bench.holder.snapshot_taken(1, None)) == []
    bench.send(0)
    assert bench.delivered(0) == [0]


def test_a_second_checkpoint_may_start_while_the_first_one_is_under_way() -> None:
    """33: ``triggeringFailsIfOtherTriggeringInProgress`` is outdated: an event waits for each
    checkpoint that it follows (C9)."""
    bench = Bench()
    bench.snapshot(1)
    bench.snapshot(2)
    bench.send(0)
    bench.do(bench.holder.acknowledged(0, 1))
    assert bench.delivered(0) == []
    bench.do(bench.holder.acknowledged(0, 2))
    assert bench.delivered(0) == [0]


def test_checkpoint_ids_never_go_back() -> None:
    """33: a lower id is a bug and raises."""
    bench = Bench()
    bench.snapshot(2)
    with pytest.raises(InvariantError, match="checkpoint 1 marked after checkpoint 2"):
        bench.holder.checkpoint(1)


@pytest.mark.parametrize("completes", [True, False], ids=["successful", "aborted"])
def test_a_checkpoint_after_another_one_keeps_the_order_of_events(*, completes: bool) -> None:
    """34: ``takeCheckpointAfterSuccessfulCheckpoint`` and ``...AbortedCheckpoint``: 0, 1, 2, 3."""
    bench = Bench()
    bench.send(0)
    bench.confirm(0)
    for checkpoint_id in (1, 2):
        bench.snapshot(checkpoint_id)
        bench.send(0)
        if completes:
            bench.do(bench.holder.acknowledged(0, checkpoint_id))
        bench.do(bench.holder.over(checkpoint_id))
        bench.confirm(checkpoint_id)
    bench.send(0)
    assert bench.delivered(0) == [0, 1, 2, 3]


def test_a_coordinator_that_fails_its_snapshot_many_times_declines_once_for_each() -> None:
    """35: ``testFailingJobMultipleTimesNotCauseCascadingJobFailure``: later failures change
    nothing."""
    bench = Bench()
    bench.do(bench.holder.checkpoint(1))
    declined = CoordinatorDeclined(operator="op", checkpoint_id=1, message="it is away")
    assert bench.do(bench.holder.snapshot_failed(1, "it is away")) == [declined]
    assert bench.do(bench.holder.snapshot_failed(1, "it is away")) == []


def test_the_coordinators_part_waits_until_every_event_before_it_is_confirmed() -> None:
    """36: ``checkpointCompletionWaitsForEventFutures`` (PROTOCOL P2)."""
    bench = Bench()
    bench.send(0, 1)
    assert bench.snapshot(1) == []
    assert bench.confirm(1) == []
    assert bench.confirm(0) == [acknowledged(1)]


def test_confirmed_events_do_not_stand_in_for_the_coordinators_answer() -> None:
    """36: the coordinator's part has both."""
    bench = Bench()
    bench.send(0)
    bench.do(bench.holder.checkpoint(1))
    assert bench.confirm(0) == []
    assert bench.do(bench.holder.snapshot_taken(1, None)) == [acknowledged(1)]


def test_a_later_checkpoint_waits_for_events_that_an_earlier_one_holds() -> None:
    """36 with two in flight: held events also precede its snapshot (PROTOCOL P2)."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0)
    assert bench.snapshot(2) == []
    bench.do(bench.holder.acknowledged(0, 1))
    assert bench.confirm(0) == [acknowledged(2)]


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after a flush"])
def test_the_order_of_events_around_a_checkpoint_is_kept(*, at_once: bool) -> None:
    """37: ``verifyCheckpointEventOrder...``: with the snapshot at once, or after many events were
    sent."""
    bench = Bench(parallelism=1)
    bench.do(bench.holder.checkpoint(1))
    before = 0 if at_once else 10
    bench.send(*[0] * before)
    bench.do(bench.holder.snapshot_taken(1, None))
    bench.send(*[0] * 10)
    assert bench.delivered(0) == list(range(before))
    bench.confirm(*range(before))
    bench.do(bench.holder.acknowledged(0, 1))
    bench.send(0)
    assert bench.delivered(0) == list(range(before + 11))


def test_events_of_a_failed_subtask_are_dropped_and_its_checkpoint_is_declined() -> None:
    """C5: the coordinator sees them as sent to a failed subtask after its last complete
    checkpoint."""
    bench = Bench()
    bench.send(0, 1)
    bench.snapshot(1)
    bench.send(0)
    (declined,) = bench.do(bench.holder.subtask_failed(0))
    assert isinstance(declined, CoordinatorDeclined)
    assert bench.do(bench.holder.over(1)) == []
    bench.send(0)
    assert bench.delivered(0) == [0, 3]


def test_events_to_the_other_subtasks_outlive_the_failure_of_one() -> None:
    """A later checkpoint still waits for them."""
    bench = Bench()
    bench.send(0, 1)
    bench.do(bench.holder.subtask_failed(0))
    assert bench.snapshot(1) == []
    assert bench.confirm(1) == [acknowledged(1)]


def test_a_failed_subtask_ends_checkpoints_that_wait_for_the_events_of_others() -> None:
    """The subtask lost what it had handled, and the coordinator's snapshot assumes it was
    handled."""
    bench = Bench()
    bench.send(0, 1)
    bench.confirm(0)
    bench.snapshot(1)
    (declined,) = bench.do(bench.holder.subtask_failed(0))
    assert isinstance(declined, CoordinatorDeclined)
    assert bench.confirm(1) == []


def test_a_snapshot_taken_while_a_subtask_failed_is_declined() -> None:
    """Its gateway is no longer marked: events sent to it before the snapshot are lost."""
    bench = Bench()
    bench.do(bench.holder.checkpoint(1))
    bench.do(bench.holder.subtask_failed(1))
    (declined,) = bench.do(bench.holder.snapshot_taken(1, None))
    assert isinstance(declined, CoordinatorDeclined)
    bench.do(bench.holder.over(1))
    bench.send(0, 1)
    assert (bench.delivered(0), bench.delivered(1)) == ([0], [1])


def test_a_lost_event_fails_its_subtask_once() -> None:
    """Its state and the coordinator's would disagree; later reports on the event change nothing."""
    bench = Bench()
    bench.send(0, 0)
    first, second = (event.number for event in bench.outputs if isinstance(event, DeliverEvent))
    (failed,) = bench.do(bench.holder.lost(first, "no answer"))
    assert isinstance(failed, FailSubtask)
    assert (failed.subtask, "no answer" in failed.message) == (0, True)
    assert bench.do(bench.holder.lost(second, "no answer")) == []
    assert bench.do(bench.holder.confirmed(second)) == []


def test_no_checkpoint_waits_for_events_to_an_operator_that_finishes() -> None:
    """No one will ever confirm them."""
    bench = Bench()
    bench.send(0)
    assert bench.snapshot(1) == []
    assert bench.do(bench.holder.finished()) == [acknowledged(1)]


def test_what_is_held_for_an_operator_that_finishes_is_dropped() -> None:
    """Like what is sent to it from then on."""
    bench = Bench()
    bench.snapshot(1)
    bench.send(0)
    bench.do(bench.holder.finished())
    bench.do(bench.holder.acknowledged(0, 1))
    bench.send(0)
    assert bench.delivered(0) == []


def test_an_operator_that_had_finished_gets_events_again_after_a_restore() -> None:
    """It runs again, unless it had finished in the restored checkpoint too."""
    bench = Bench()
    bench.do(bench.holder.finished())
    bench.holder.reset()
    bench.send(0)
    assert bench.delivered(0) == [0]
