"""A modelled query's channel state: it reads what was admitted, and notices wrong watermarks."""

from __future__ import annotations

import pytest

from weir.core.messages.channel import MAX_WATERMARK_MS, Admission, Segment
from weir.sim.engine.channel_offsets import BrokenWatermarkError, ChannelOffsets


def admission(channel: str, *positions: int) -> Admission:
    """An admission of segments of one channel."""
    segments = tuple(Segment(position=position, size=1, payload={}) for position in positions)
    return Admission(channel=channel, segments=segments)


def offsets() -> ChannelOffsets:
    """The offsets of two channels that are not read yet."""
    return ChannelOffsets(("a", "b"))


def test_a_batch_reads_what_was_admitted_and_its_offsets_are_those_of_the_next_call() -> None:
    """A batch reads the segments after each channel's last offset, and none of a channel that was
    not admitted (P7)."""
    channels = offsets()
    first = [admission("a", 0, 1), admission("b", 4)]
    assert {name: len(segments) for name, segments in channels.between(first).items()} == {
        "a": 2,
        "b": 1,
    }
    assert channels.committed == {}
    channels.commit(first)
    assert channels.committed == {"a": 1, "b": 4}
    assert [one.position for one in channels.between([admission("a", 2)])["a"]] == [2]


def test_a_restored_query_reads_nothing_at_or_below_its_offsets() -> None:
    """The offsets are in the query's offset log, so the snapshot holds them."""
    channels, restored = offsets(), offsets()
    channels.commit([admission("a", 3)])
    restored.load(channels.dump())
    assert restored.committed == {"a": 3}
    assert [one.position for one in restored.between([admission("a", 3, 4)])["a"]] == [4]


def test_its_watermark_is_the_least_of_its_channels_once_each_has_one() -> None:
    """A channel that has ended holds nothing back, and a snapshot keeps the watermarks (P25)."""
    channels = offsets()
    assert channels.tell({"a": 7}, {})
    assert channels.watermark_ms is None
    assert channels.tell({"a": 7, "b": 3}, {})
    assert channels.watermark_ms == 3
    assert channels.tell({"a": 7, "b": MAX_WATERMARK_MS}, {})
    assert not channels.tell({"a": 7}, {})
    restored = offsets()
    restored.load(channels.dump())
    assert restored.watermark_ms == 7


def test_a_record_below_the_watermark_of_its_channel_is_noticed() -> None:
    """A record at the watermark is in time, another channel's watermark does not matter, and a
    watermark received with a batch holds from the next batch on."""
    channels = offsets()
    channels.tell({"a": 7}, {})
    channels.check("a", [6])
    channels.tell({"a": 7}, {})
    channels.check("b", [1])
    channels.check("a", [7, 8])
    with pytest.raises(BrokenWatermarkError, match="6 of a is read below the watermark 7"):
        channels.check("a", [8, 6])


def test_a_watermark_that_falls_is_noticed() -> None:
    """A falling watermark is noticed even if the earlier one comes from a snapshot."""
    channels = offsets()
    channels.load('[{},{"a":7}]')
    with pytest.raises(BrokenWatermarkError, match="falls from 7 to 6"):
        channels.tell({"a": 6}, {})


def test_a_watermark_that_is_held_back_after_a_barrier_is_noticed() -> None:
    """The channel is empty at its barrier, so the producer's watermark from before it counts."""
    channels = offsets()
    channels.tell({"a": 7, "b": 2}, {"a": 7})
    with pytest.raises(
        BrokenWatermarkError, match="b was at 3 at the barrier, but 2 is reported after it"
    ):
        channels.tell({"a": 7, "b": 2}, {"a": 7, "b": 3})
