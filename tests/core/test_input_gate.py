"""What a task may read from its channels, and when it acts on their other entries.

Barriers, ends and watermarks: PROTOCOL P7, P28.
"""

from __future__ import annotations

import pytest
from tests.core.channel_task import barrier

from weir.core.messages.channel import (
    MAX_WATERMARK_MS,
    CancelCheckpointMarker,
    ChannelEntry,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    Watermark,
)
from weir.core.task.barrier_handler import Aligned
from weir.core.task.input_gate import InputGate
from weir.errors import InvariantError


def segment(position: int) -> Segment:
    """The output of one step, of 10 bytes."""
    return Segment(position=position, size=10, payload={})


def watermark(timestamp_ms: int) -> Watermark:
    """A watermark of the producer."""
    return Watermark(timestamp_ms=timestamp_ms)


def gate_of(channels: str = "a", *, batch: int = 100) -> InputGate:
    """A gate of channels with one-letter names; the next batch may read this many bytes of each."""
    gate = InputGate(channels)
    gate.batch.size = batch
    return gate


def append(gate: InputGate, channel: str, *entries: ChannelEntry) -> None:
    """Append entries to a channel."""
    for entry in entries:
        gate.append(channel, entry, 0)


def admitted(gate: InputGate) -> dict[str, list[int]]:
    """Positions that the next batch may read, by channel."""
    return {
        admission.channel: [s.position for s in admission.segments] for admission in gate.admit(0)
    }


def aligned(gate: InputGate) -> list[int]:
    """Checkpoints aligned by what the gate has reached."""
    return [
        outcome.barrier.checkpoint_id for outcome in gate.process(0) if isinstance(outcome, Aligned)
    ]


def test_several_segments_are_admitted_up_to_a_bound_of_bytes() -> None:
    """So that no barrier waits for a huge batch; the rest is left for the next batch."""
    gate = gate_of(batch=25)
    append(gate, "a", segment(0), segment(1), segment(2))
    assert admitted(gate) == {"a": [0, 1]}
    gate.consumed({"a": 1})
    assert admitted(gate) == {"a": [2]}
    gate.consumed({"a": 2})
    assert admitted(gate) == {}


def test_a_segment_above_the_bound_is_admitted_alone() -> None:
    """Otherwise it would never be read."""
    gate = gate_of(batch=5)
    append(gate, "a", segment(0), segment(1))
    assert admitted(gate) == {"a": [0]}


def test_nothing_after_a_barrier_is_admitted() -> None:
    """It belongs to the time after the checkpoint."""
    gate = gate_of()
    append(gate, "a", segment(0), barrier(1), segment(1))
    assert admitted(gate) == {"a": [0]}
    assert admitted(gate) == {}


def test_a_barrier_is_acted_on_when_all_before_it_is_in_a_committed_batch() -> None:
    """Not when it is admitted: the batch may fail (P7)."""
    gate = gate_of(batch=10)
    append(gate, "a", segment(0), segment(1), barrier(1))
    admitted(gate)
    assert aligned(gate) == []
    assert gate.consumed({"a": 0}) == [("a", 0)]
    assert aligned(gate) == []
    admitted(gate)
    assert gate.consumed({"a": 1}) == [("a", 1)]
    assert aligned(gate) == [1]


def test_a_held_channel_is_not_read_and_the_other_is() -> None:
    """The other is read up to its own barrier."""
    gate = gate_of("ab")
    append(gate, "a", barrier(1), segment(0))
    append(gate, "b", segment(0))
    assert aligned(gate) == []
    assert admitted(gate) == {"b": [0]}
    gate.consumed({"b": 0})
    append(gate, "b", barrier(1))
    assert aligned(gate) == [1]
    assert admitted(gate) == {"a": [0]}


def test_a_second_barrier_waits_until_the_first_snapshot_is_taken() -> None:
    """Each call aligns one checkpoint, even if the next one's barriers have all arrived."""
    gate = gate_of("ab")
    for channel in "ab":
        append(gate, channel, barrier(1), barrier(2))
    assert aligned(gate) == [1]
    assert aligned(gate) == [2]


def test_the_time_between_barriers_is_measured() -> None:
    """For the statistics (MISSION B5)."""
    gate = gate_of("ab")
    append(gate, "a", barrier(1))
    gate.process(100)
    append(gate, "b", barrier(1))
    (outcome,) = gate.process(130)
    assert isinstance(outcome, Aligned)
    assert outcome.alignment_ms == 30


def test_records_have_ended_when_every_channel_said_so_and_all_is_read() -> None:
    """EndOfUserRecords takes effect once it has arrived on every channel (P28)."""
    gate = gate_of("ab")
    append(gate, "a", segment(0), EndOfUserRecords())
    append(gate, "b", EndOfUserRecords())
    gate.process(0)
    assert not gate.records_ended
    admitted(gate)
    gate.process(0)
    assert not gate.records_ended
    gate.consumed({"a": 0})
    gate.process(0)
    assert gate.records_ended


def test_a_gate_without_channels_has_no_end_of_records() -> None:
    """A source's query reports the end of its records itself."""
    assert not gate_of("").records_ended


def test_an_ended_channel_is_not_waited_for() -> None:
    """The order on a channel: end of records, barrier, end of channel (P28)."""
    gate = gate_of("ab")
    append(gate, "a", EndOfUserRecords(), barrier(1), EndOfPartition())
    append(gate, "b", barrier(1), barrier(2))
    assert aligned(gate) == [1]
    assert aligned(gate) == [2]


def test_a_cancelled_checkpoint_lets_the_channel_be_read_again() -> None:
    """No channel is held for it any longer (B3)."""
    gate = gate_of("ab")
    append(gate, "a", barrier(1), segment(0))
    append(gate, "b", CancelCheckpointMarker(checkpoint_id=1))
    assert aligned(gate) == []
    assert admitted(gate) == {"a": [0]}


def test_a_batch_reads_exactly_what_was_admitted() -> None:
    """Neither less nor more (P7): records would be lost, or enter the state before their barrier
    was checked."""
    gate = gate_of(batch=25)
    append(gate, "a", segment(0), segment(1), segment(2))
    assert gate.misread({}) is None
    gate.consumed({})
    admitted(gate)
    assert gate.misread({"a": 0}) == "read channel 'a' up to segment 0 instead of 1"
    assert gate.misread({"a": 2}) == "read channel 'a' up to segment 2 instead of 1"
    assert gate.misread({"a": 1}) is None
    gate.consumed({"a": 1})
    assert gate.misread({"a": 2}) == "read channel 'a' up to segment 2 instead of 1"


def test_a_restored_query_continues_from_the_positions_of_its_snapshot() -> None:
    """The first planning call reports them; the channel's entries follow them (P7)."""
    gate = gate_of("ab")
    assert gate.misread({"a": 7}) is None
    assert gate.consumed({"a": 7}) == [("a", 7)]
    append(gate, "a", segment(8))
    assert admitted(gate) == {"a": [8]}
    assert gate.misread({"a": 8}) is None
    other = gate_of()
    append(other, "a", segment(7))
    assert (
        other.misread({"a": 7})
        == "read channel 'a' up to segment 7, but segment 7 was not admitted"
    )


def test_an_entry_after_the_end_is_a_bug() -> None:
    """EndOfPartition is the last entry."""
    gate = gate_of()
    append(gate, "a", EndOfPartition())
    gate.process(0)
    with pytest.raises(InvariantError, match="after its end"):
        append(gate, "a", segment(0))


def test_a_watermark_comes_with_the_batch_that_reads_all_before_it() -> None:
    """It takes effect with the batch after that one, so no row is late by its own watermark and
    none waits longer (P25)."""
    gate = gate_of()
    append(gate, "a", segment(0), watermark(50), segment(1))
    assert gate.send_watermarks() == {}
    assert admitted(gate) == {"a": [0, 1]}
    assert gate.send_watermarks() == {"a": 50}
    gate.consumed({"a": 1})
    assert not gate.wants_batch


def test_a_watermark_after_a_segment_that_was_not_admitted_is_held_back() -> None:
    """The query would apply a watermark of rows that it has not read (P25)."""
    gate = gate_of()
    gate.batch.size = 1
    append(gate, "a", segment(0), watermark(50), segment(1), watermark(60))
    assert admitted(gate) == {"a": [0]}
    assert gate.send_watermarks() == {"a": 50}


def test_a_watermark_between_segments_does_not_end_the_batch() -> None:
    """A lagging consumer reads across it; the last watermark that the batch reached counts."""
    gate = gate_of()
    append(gate, "a", segment(0), watermark(50), segment(1), watermark(60), barrier(1), segment(2))
    assert admitted(gate) == {"a": [0, 1]}
    assert gate.send_watermarks() == {"a": 60}


def test_a_new_watermark_wants_a_batch_of_its_own() -> None:
    """Even with no row to read: it closes windows."""
    gate = gate_of()
    assert not gate.wants_batch
    append(gate, "a", watermark(50))
    gate.process(0)
    assert gate.wants_batch
    assert admitted(gate) == {}
    assert gate.send_watermarks() == {"a": 50}
    assert not gate.wants_batch


def test_a_channel_whose_records_have_ended_holds_no_watermark_back() -> None:
    """An ended channel counts as MAX_WATERMARK (P25)."""
    gate = gate_of("ab")
    append(gate, "a", watermark(50), EndOfUserRecords())
    append(gate, "b", watermark(10))
    gate.process(0)
    assert gate.send_watermarks() == {"a": MAX_WATERMARK_MS, "b": 10}


def test_a_watermark_after_a_barrier_is_held_back_while_the_channel_is_held() -> None:
    """It comes after the checkpoint and would otherwise be in its state."""
    gate = gate_of("ab")
    append(gate, "a", barrier(1), watermark(50))
    gate.process(0)
    assert gate.send_watermarks() == {}
    append(gate, "b", barrier(1))
    assert aligned(gate) == [1]
    gate.process(0)
    assert gate.send_watermarks() == {"a": 50}


def test_no_entry_behind_an_aligned_barrier_is_processed_with_it() -> None:
    """In whichever channel it is: the snapshot comes first."""
    gate = gate_of("ab")
    append(gate, "b", barrier(1), watermark(50))
    gate.process(0)
    append(gate, "a", barrier(1), watermark(60))
    assert aligned(gate) == [1]
    assert gate.send_watermarks() == {}
    gate.process(0)
    assert gate.send_watermarks() == {"a": 60, "b": 50}
