"""Operator events in a ``StreamTask``.

Steps carry them, complete steps confirm them, and they are kept until acknowledged.
"""

from __future__ import annotations

from tests.core.channel_task import kinds, segment
from tests.kit.stream_task import VERTEX, TaskHarness, async_part_done

from weir.core.messages.coordination import (
    AcknowledgeCheckpointEvent,
    DeliverEvent,
    EventsConfirmed,
    OperatorEventSent,
)
from weir.core.messages.protocol import AcknowledgeCheckpoint, DeclineCheckpoint
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    SnapshotFailed,
    StartDrain,
    TakeSnapshot,
)
from weir.core.types import SentEvent, SnapshotKind

SENT = SentEvent(operator="o", subtask=1, payload={"ask": "more"})


def event(number: int, acknowledges: int | None = None) -> DeliverEvent:
    return DeliverEvent(
        operator="o", subtask=0, number=number, payload={"n": number}, acknowledges=acknowledges
    )


def confirmed(*numbers: int) -> EventsConfirmed:
    return EventsConfirmed(
        vertex=VERTEX, attempt=3, events=tuple(("o", number) for number in numbers)
    )


def sent(number: int) -> OperatorEventSent:
    return OperatorEventSent(
        vertex=VERTEX, attempt=3, operator="o", subtask=1, number=number, payload=SENT.payload
    )


def with_operators(**options: object) -> TaskHarness:
    return TaskHarness(takes_barriers=True, **options)  # type: ignore[arg-type]


def step(task: TaskHarness, position: int, *sent: SentEvent) -> None:
    task.send(BatchStaged(position=position, committables=(), sent_events=sent))


def test_an_event_waits_for_the_next_batch_and_is_confirmed_when_that_is_complete() -> None:
    """P2: reaching the task does not confirm it."""
    task = with_operators()
    assert task.plan(1, -1) == [AnswerPlanning(call=1)]
    assert task.send(event(1)) == []
    step(task, 0)
    assert task.plan(2, 0) == [AnswerPlanning(call=2, events=(event(1),))]
    step(task, 1)
    assert task.plan(3, 1) == [confirmed(1), AnswerPlanning(call=3)]


def test_events_that_a_batch_was_to_carry_travel_again_if_there_was_none() -> None:
    """In their order, ahead of later ones (C6)."""
    task = with_operators()
    task.send(event(1))
    assert task.plan(1, -1) == [AnswerPlanning(call=1, events=(event(1),))]
    task.send(event(2))
    assert task.plan(2, -1) == [AnswerPlanning(call=2, events=(event(1), event(2)))]


def test_an_event_of_an_operator_is_sent_when_its_batch_is_complete() -> None:
    """A failed step's events count as never sent."""
    task = with_operators()
    task.plan(1, -1)
    step(task, 0, SENT)
    assert task.plan(2, 0) == [sent(1), AnswerPlanning(call=2)]


def snapshot_of(task: TaskHarness, checkpoint_id: int, position: int) -> AcknowledgeCheckpoint:
    """Take a checkpoint: a step for the operators, then the snapshot."""
    task.trigger(checkpoint_id)
    call = position * 10
    assert task.plan(call, position)[-1] == AnswerPlanning(call=call, barrier=checkpoint_id)
    step(task, position + 1)
    assert isinstance(task.plan(call + 1, position + 1)[-1], TakeSnapshot)
    task.sync_done(checkpoint_id)
    [acknowledged] = task.send(async_part_done(task.taken[checkpoint_id]))
    assert isinstance(acknowledged, AcknowledgeCheckpoint)
    return acknowledged


def test_an_event_is_part_of_snapshots_until_it_is_acknowledged() -> None:
    """C7 and P41: the task keeps what the coordinator has not handled by then."""
    task = with_operators()
    task.plan(1, -1)
    step(task, 0, SENT)
    assert snapshot_of(task, 1, 0).state.sent_events == (SENT,)
    assert task.send(event(9, acknowledges=1)) == [confirmed(9)]
    step(task, 2)
    assert snapshot_of(task, 2, 2).state.sent_events == ()


def test_a_restored_task_sends_again_what_was_not_acknowledged() -> None:
    """P41: as soon as it is running."""
    task = with_operators(sent_events=(SENT,))
    assert sent(1) in task.effects


def test_operators_prepare_for_a_barrier_in_a_batch_before_it() -> None:
    """P6: the barrier follows the operators' output for it."""
    task = with_operators()
    task.trigger(1)
    assert task.plan(1, -1) == [AnswerPlanning(call=1, barrier=1)]
    step(task, 0)
    [taken] = task.plan(2, 0)
    assert isinstance(taken, TakeSnapshot)
    assert taken.position == 0


def test_the_gateway_may_open_at_the_end_of_the_synchronous_part() -> None:
    """P10: it does not wait for the upload."""
    task = with_operators()
    task.trigger(1)
    task.plan(1, -1)
    step(task, 0)
    task.plan(2, 0)
    first = task.sync_done(1)[0]
    assert first == AcknowledgeCheckpointEvent(vertex=VERTEX, attempt=3, checkpoint_id=1)


def test_an_operator_that_takes_no_snapshot_declines_the_checkpoint_and_runs_on() -> None:
    """P9: the reason names the operator (B6)."""
    task = with_operators()
    task.trigger(1)
    task.plan(1, -1)
    step(task, 0)
    task.plan(2, 0)
    failed = SnapshotFailed(checkpoint_id=1, message="no space", operator="o")
    declined, *rest = task.send(failed)
    assert isinstance(declined, DeclineCheckpoint)
    assert declined.message == "Could not complete snapshot 1 for operator o. no space"
    assert AnswerPlanning(call=2) in rest


def test_operators_with_code_for_snapshots_take_none_while_they_finish() -> None:
    """The checkpoint waits for the drain, and covers what finish emits."""
    task = with_operators(operators_take_part=True)
    task.plan(1, -1)
    task.records_end(-1)
    assert task.trigger(1) == []
    [taken] = [effect for effect in task.drained(0) if isinstance(effect, TakeSnapshot)]
    assert (taken.position, taken.finished) == (0, True)


def test_a_barrier_whose_checkpoint_is_over_is_not_waited_for() -> None:
    """It was aborted during the step; the next checkpoint gets a step of its own."""
    task = with_operators()
    task.trigger(1)
    task.plan(1, -1)
    step(task, 0)
    task.abort(1)
    assert task.plan(2, 0) == [AnswerPlanning(call=2)]
    step(task, 1)
    task.trigger(2)
    assert task.plan(3, 1) == [AnswerPlanning(call=3, barrier=2)]


def test_the_drain_carries_what_waits_and_confirms_the_rest() -> None:
    """Finished operators handle no events, so a checkpoint must not wait for them."""
    task = with_operators()
    task.plan(1, -1)
    task.send(event(1))
    [drain] = task.records_end(-1)
    assert drain == StartDrain(vertex=VERTEX, position=-1, events=(event(1),))
    task.send(event(2))
    assert confirmed(1) in (effects := task.drained(0))
    assert confirmed(2) in effects
    assert task.send(event(3)) == [confirmed(3)]


def test_a_stop_without_drain_prepares_before_it_ends_the_records() -> None:
    """P28: the operators' output for the barrier comes before the end of the records."""
    task = with_operators(consumers=("d",))
    task.trigger(1, SnapshotKind.SYNC_SAVEPOINT)
    assert task.plan(1, -1) == [AnswerPlanning(call=1, barrier=1)]
    task.send(BatchStaged(position=0, committables=(), segment=segment(0)))
    order = [kind for kind in kinds(task.plan(2, 0)) if kind != "TaskStatusChanged"]
    assert order == ["Segment", "EndOfUserRecords", "CheckpointBarrier", "TakeSnapshot"]
    assert task.taken[1].position == 0
