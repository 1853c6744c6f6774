"""A modelled query's view of its channels: what was admitted is not what was read, and no watermark is wrong unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weir.core.channel import MAX_WATERMARK_MS, Segment
from weir.core.input_gate import Admission
from weir.sim.inbox import BrokenWatermarkError, SimInbox


def admission(channel: str, *positions: int) -> Admission:
    """Segments of one channel."""
    segments = tuple(Segment(position=position, size=1, payload={}) for position in positions)
    return Admission(channel=channel, segments=segments)


def inbox(*early: bool) -> SimInbox:
    """Two channels; ``early`` says of one listing after the other whether Spark does it before the control input asks."""
    order: Iterator[bool] = iter(early)
    return SimInbox(("a", "b"), lambda: next(order))


def test_a_channel_that_was_listed_before_the_call_is_read_one_batch_later() -> None:
    """P7: the answer admits segments of both, the batch reads those of one, and says so."""
    box = inbox(True, False, True, False)
    box.list_early()
    first = box.admit([admission("a", 0), admission("b", 0)])
    assert list(first) == ["b"]
    box.committed(first)
    assert box.consumed == {"b": 0}
    box.list_early()
    second = box.admit([admission("a", 1)])
    assert [one.position for one in second["a"]] == [0]
    box.committed(second)
    assert box.consumed == {"a": 0, "b": 0}


def test_its_watermark_is_the_least_of_its_channels_once_each_has_one() -> None:
    """P25: a channel that has ended holds nothing back, and a snapshot keeps them."""
    box = inbox()
    assert box.tell({"a": 7}, {})
    assert box.watermark_ms is None
    assert box.tell({"a": 7, "b": 3}, {})
    assert box.watermark_ms == 3
    assert box.tell({"a": 7, "b": MAX_WATERMARK_MS}, {})
    assert not box.tell({"a": 7}, {})
    restored = inbox()
    restored.load(box.dump())
    assert restored.watermark_ms == 7


def test_a_record_below_the_watermark_of_its_channel_is_noticed() -> None:
    """One at the watermark is in time, and another channel's watermark says nothing about it."""
    box = inbox()
    box.tell({"a": 7}, {})
    box.check("b", [1])
    box.check("a", [7, 8])
    with pytest.raises(BrokenWatermarkError, match="6 of a is read below the watermark 7"):
        box.check("a", [8, 6])


def test_a_watermark_that_falls_is_noticed() -> None:
    """Also when the channel's earlier one comes from a snapshot."""
    box = inbox()
    box.load('{"a":7}')
    with pytest.raises(BrokenWatermarkError, match="falls from 7 to 6"):
        box.tell({"a": 6}, {})


def test_a_watermark_that_is_held_back_behind_a_barrier_is_noticed() -> None:
    """A channel is empty at its barrier, so what the producer had said before it counts."""
    box = inbox()
    box.tell({"a": 7, "b": 2}, {"a": 7})
    with pytest.raises(BrokenWatermarkError, match="b was at 3 at the barrier, and behind it 2 is told"):
        box.tell({"a": 7, "b": 2}, {"a": 7, "b": 3})
