"""Idle sources hold back no union of chains (PROTOCOL P25; Flink: ``StatusWatermarkValve``)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.core.channel_task import Task, segment

from weir.core.messages.channel import (
    MAX_WATERMARK_MS,
    ChannelAppended,
    ChannelEntry,
    EndOfUserRecords,
    Watermark,
    WatermarkStatus,
)
from weir.core.messages.task import AnswerPlanning, BatchStaged
from weir.core.task.input_gate import InputGate

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def mark(timestamp_ms: int) -> Watermark:
    return Watermark(timestamp_ms=timestamp_ms)


def sent(gate: InputGate, channel: str = "", *entries: ChannelEntry) -> dict[str, int]:
    """What a query gets after these entries of a channel."""
    for entry in entries:
        gate.append(channel, entry, 0)
    gate.process(0)
    gate.admit(0)
    found = gate.send_watermarks()
    assert not gate.has_unsent_watermark
    return found


def test_an_idle_channel_has_the_least_watermark_of_the_active_ones() -> None:
    """Whether it had one itself or not."""
    gate = InputGate("abc")
    assert sent(gate, "a", mark(10)) == {"a": 10}
    assert sent(gate, "b", mark(70)) == {"a": 10, "b": 70}
    assert sent(gate, "a", IDLE) == {"a": 10, "b": 70}, "c has none yet"
    assert sent(gate, "c", IDLE) == {"a": 70, "b": 70, "c": 70}
    assert sent(gate, "b", mark(80)) == {"a": 80, "b": 80, "c": 80}


def test_a_channel_that_comes_back_stands_until_it_has_caught_up() -> None:
    """No watermark falls; from then on the channel holds back the others again."""
    gate = InputGate("ab")
    sent(gate, "a", mark(10), IDLE)
    assert sent(gate, "b", mark(70)) == {"a": 70, "b": 70}
    assert sent(gate, "a", ACTIVE, mark(20)) == {"a": 70, "b": 70}
    assert sent(gate, "b", mark(90)) == {"a": 70, "b": 90}
    assert sent(gate, "a", mark(75)) == {"a": 75, "b": 90}


def test_if_all_channels_are_idle_they_are_as_far_as_the_first() -> None:
    """Two sources that have no more rows at the same time wait for each other no more than one."""
    gate = InputGate("ab")
    sent(gate, "a", mark(10))
    assert sent(gate, "b", mark(70)) == {"a": 10, "b": 70}
    assert sent(gate, "b", IDLE) == {"a": 10, "b": 70}
    assert not gate.is_idle
    assert sent(gate, "a", IDLE) == {"a": 70, "b": 70}
    assert gate.is_idle


def test_an_ended_channel_says_nothing_about_idle_ones() -> None:
    """Their rows are not over."""
    gate = InputGate("ab")
    sent(gate, "b", mark(70), IDLE)
    assert sent(gate, "a", EndOfUserRecords()) == {"a": MAX_WATERMARK_MS, "b": 70}
    assert gate.is_idle


ENTRIES = st.sampled_from([IDLE, ACTIVE]) | st.builds(mark, st.integers(1, 9))


@given(st.lists(st.tuples(st.sampled_from("abc"), ENTRIES)))
def test_no_watermark_falls_and_no_idle_one_passes_the_active_ones(
    entries: list[tuple[str, ChannelEntry]],
) -> None:
    """Whatever comes in which order: 0 is no watermark."""
    gate, reached, idle = InputGate("abc"), dict.fromkeys("abc", 0), set[str]()
    for channel, entry in entries:
        if isinstance(entry, WatermarkStatus):
            (idle.add if entry.idle else idle.discard)(channel)
        elif isinstance(entry, Watermark):
            reached[channel] = max(reached[channel], entry.timestamp_ms)
        active = [reached[name] for name in set("abc") - idle]
        far = min(active) if active else max(reached.values())
        reached |= {name: max(reached[name], far) for name in idle}
        now = sent(gate, channel, entry)
        assert {name: now.get(name, 0) for name in "abc"} == reached


def said(effects: list[Any]) -> list[ChannelEntry]:
    """What the consumers get, in order."""
    return [entry for one in effects if isinstance(one, ChannelAppended) for entry in one.entries]


def test_a_source_is_idle_after_a_time_without_rows_and_active_before_the_next() -> None:
    """Batches in which its readers read nothing do not count."""
    task = Task(consumers=("c",), idle_after_ms=100, has_own_readers=True)
    empty = BatchStaged(position=0, committables=(), read_source=False)
    assert said(task.plan(-1, now_ms=99)) == []
    task.do(empty, now_ms=100)
    assert said(task.plan(0, now_ms=100)) == [IDLE]
    task.do(BatchStaged(position=1, committables=(), segment=segment(1)), now_ms=150)
    assert said(task.plan(1, now_ms=150)) == [ACTIVE, segment(1)]
    assert said(task.plan(1, now_ms=249)) == []
    assert said(task.plan(1, now_ms=250)) == [IDLE]


def test_a_source_that_nobody_declared_so_is_never_idle() -> None:
    """However long it has no rows."""
    task = Task(consumers=("c",))
    assert said(task.plan(-1, now_ms=10**9)) == []


def test_a_task_between_channels_is_idle_with_all_of_them_once_it_rests() -> None:
    """What the last watermark has released comes before, and what follows comes after."""
    task = Task(inputs=("a", "b"), consumers=("c",))
    task.plan(-1)
    task.get("a", IDLE)
    answered = task.get("b", mark(70))
    assert [one.watermarks_ms for one in answered if isinstance(one, AnswerPlanning)] == [
        {"a": 70, "b": 70}
    ]
    assert said(task.get("b", IDLE)) == [], "a batch with the new watermark runs"
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    assert said(task.plan(0)) == [segment(0)]
    assert said(task.plan(0)) == [IDLE]
    task.get("a", ACTIVE)
    assert said(task.effects) == [segment(0), IDLE, ACTIVE]
