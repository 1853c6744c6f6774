"""A query that rests in its planning call runs a batch when a timer of its operators is due."""

from __future__ import annotations

from tests.core.channel_task import BATCH_SIZE, Task, kinds, segment, trigger

from weir.core.messages.channel import SegmentsConsumed
from weir.core.messages.task import BatchStaged
from weir.core.task.output_channels import ChannelBound


def resting(*, timer_in_ms: int | None) -> Task:
    """A task at time 100 whose channel has nothing to read."""
    task = Task(inputs=("a",))
    # The query may run a batch for the watermark, so it is asked twice at each position.
    assert kinds(task.plan(0, 100)) == ["AnswerPlanning"]
    assert task.plan(0, 100, timer_in_ms) == []
    return task


def test_a_query_that_rests_is_let_run_when_a_timer_is_due() -> None:
    """Nothing else would let it run, since its channel may stay empty."""
    task = resting(timer_in_ms=50)
    assert task.machine.next_deadline() == 150
    assert kinds(task.machine.on_deadline(150)) == ["AnswerPlanning"]
    task.machine.validate()
    assert task.machine.next_deadline() is None


def test_a_query_without_timers_rests_on() -> None:
    """It has no deadline."""
    assert resting(timer_in_ms=None).machine.next_deadline() is None


def test_a_timer_that_is_due_at_once_is_not_waited_for() -> None:
    """It was due while the last batch ran."""
    task = Task(inputs=("a",))
    task.plan(0, 100)
    assert kinds(task.plan(0, 100, 0)) == ["AnswerPlanning"]


def test_a_timer_is_forgotten_with_its_planning_call() -> None:
    """The next call says which timer is next then."""
    task = resting(timer_in_ms=50)
    task.get("a", segment(0), 120)
    assert task.machine.next_deadline() is None
    task.plan(1, 130, None, a=0)
    assert task.machine.next_deadline() is None


def test_a_snapshot_is_taken_before_the_batch_of_a_timer() -> None:
    """The query stays held until the synchronous part is over, and then runs the batch."""
    task = Task()
    task.machine.handle(trigger(1), 100)
    assert kinds(task.plan(0, 100, 20)) == ["TakeSnapshot"]
    assert task.machine.next_deadline() is None
    assert "AnswerPlanning" in kinds(task.snapshot(1, 0))


def test_a_timer_waits_while_a_consumer_lags_too_far() -> None:
    """Its batch may emit rows, for which there is no room (P2); there is no deadline meanwhile."""
    task = Task(consumers=("x",))
    bound = ChannelBound().segments
    for position in range(bound - 1):
        assert kinds(task.step(position))[-1] == "AnswerPlanning"
    staged = BatchStaged(position=bound - 1, committables=(), segment=segment(bound - 1))
    task.do(staged, 100)
    assert kinds(task.plan(bound - 1, 100, 20)) == ["Segment"]
    assert task.machine.next_deadline() is None
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    assert kinds(task.do(consumed, 130)) == ["AnswerPlanning", "ReleaseSegments"]
