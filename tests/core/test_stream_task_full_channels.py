"""Operator events and full channels: P2 makes a checkpoint wait for events, never for consumers."""

from __future__ import annotations

from dataclasses import replace

from tests.core.channel_task import BATCH_SIZE, Task, kinds, segment

from weir.core.messages.channel import SegmentsConsumed, Watermark
from weir.core.messages.coordination import DeliverEvent, EventsConfirmed
from weir.core.messages.task import AnswerPlanning, BatchStaged
from weir.core.task.output_channels import ChannelBound

BOUND = ChannelBound().segments
EVENT = DeliverEvent(operator="v", subtask=0, number=1, payload={"splits": []})


def full(*, has_own_readers: bool = False, inputs: tuple[str, ...] = ()) -> Task:
    """A task whose consumer has as many segments to read as it may."""
    task = Task(inputs=inputs, consumers=("x",), has_own_readers=has_own_readers)
    task.plan(-1)
    for channel in inputs:
        task.get(channel, segment(0))
    for position in range(BOUND):
        task.do(BatchStaged(position=position, committables=(), segment=segment(position)))
        for channel in inputs:
            task.get(channel, segment(position + 1))
        last = task.plan(position, **dict.fromkeys(inputs, position))
    assert "AnswerPlanning" not in kinds(last)
    return task


def test_readers_get_events_while_a_consumer_lags_and_read_nothing_for_them() -> None:
    """P2: the checkpoint that waits for the event does not wait for the consumer."""
    task = full(has_own_readers=True)
    [answer] = task.do(EVENT)
    assert isinstance(answer, AnswerPlanning)
    assert (answer.only_events, answer.events) == (True, (EVENT,))
    [confirmed] = task.plan(BOUND)
    assert confirmed == EventsConfirmed(vertex="v", attempt=1, events=(("v", 1),))
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    [answer, _] = task.do(consumed)
    assert isinstance(answer, AnswerPlanning)
    assert not answer.only_events


def test_operators_behind_a_channel_get_events_while_a_consumer_lags() -> None:
    """P2: the batch for them reads no segment and gets no watermark, though there are some."""
    task = full(inputs=("a",))
    task.get("a", Watermark(timestamp_ms=7))
    [answer] = task.do(EVENT)
    assert isinstance(answer, AnswerPlanning)
    assert (answer.only_events, answer.events) == (True, (EVENT,))
    assert (answer.admitted, answer.watermarks_ms) == ((), {})
    [confirmed] = task.plan(BOUND)
    assert confirmed == EventsConfirmed(vertex="v", attempt=1, events=(("v", 1),))
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    [answer, _] = task.do(consumed)
    assert isinstance(answer, AnswerPlanning)
    assert [admission.channel for admission in answer.admitted] == ["a"]


def test_a_query_whose_source_spark_reads_gets_events_while_a_consumer_lags() -> None:
    """P2: any batch of it reads, so it may be beyond the bound, and as far again at most."""
    task = full()
    for number in range(BOUND):
        [answer] = task.do(replace(EVENT, number=number))
        assert isinstance(answer, AnswerPlanning)
        assert (answer.only_events, [event.number for event in answer.events]) == (False, [number])
        position = BOUND + number
        task.do(BatchStaged(position=position, committables=(), segment=segment(position)))
        confirmed = task.plan(position)
        assert kinds(confirmed) == ["Segment", "EventsConfirmed"]
    # No event runs away from the consumer for ever.
    assert task.do(replace(EVENT, number=BOUND)) == []
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    [answer, _] = task.do(consumed)
    assert isinstance(answer, AnswerPlanning)
    assert [event.number for event in answer.events] == [BOUND]


def test_a_query_whose_source_spark_reads_rests_while_a_consumer_lags_and_no_event_waits() -> None:
    """The room beyond the bound is for events alone."""
    task = full()
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    assert "AnswerPlanning" in kinds(task.do(consumed))
