"""Deliberately broken variants of tasks with channels; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core.messages.channel import (
    ChannelAppended,
    CheckpointBarrier,
    EndOfUserRecords,
    Segment,
    SegmentsConsumed,
    Watermark,
)
from weir.core.messages.task import PlanningCalled
from weir.core.task import output_channels as output_channels_module
from weir.core.task.barrier_handler import Aligned, BarrierHandler
from weir.core.task.input_gate import InputGate
from weir.core.task.output_channels import OutputChannels
from weir.core.task.stream_task import StreamTask
from weir.core.task.triggers import WaitingTriggers
from weir.sim.engine.channel_offsets import ChannelOffsets


def a_channel_not_held() -> AbstractContextManager[None]:
    """A channel is read past its barrier while others are still awaited (P7)."""

    def barrier(
        self: BarrierHandler, channel: str, entry: CheckpointBarrier, now_ms: int
    ) -> list[Any]:
        self._held.pop(channel, None)
        return real(self, channel, entry, now_ms)

    real = BarrierHandler.barrier
    return _with(
        patch.object(BarrierHandler, "holds", lambda self, channel: False),
        patch.object(BarrierHandler, "barrier", barrier),
        patch.object(BarrierHandler, "validate", lambda self: None),
        patch.object(InputGate, "validate", lambda self: None),
        # Producers run far ahead, so there is more behind a barrier.
        patch.object(output_channels_module, "_BATCHES_AHEAD", 100),
    )


def aligned_at_the_first_barrier() -> AbstractContextManager[None]:
    """A snapshot is taken at the first barrier, without the barriers of the other channels (P7)."""

    def complete(self: BarrierHandler, now_ms: int) -> list[Any]:
        barrier = self._barrier
        if barrier is None:
            return []
        self._over(barrier.checkpoint_id)
        return [Aligned(barrier=barrier, alignment_ms=now_ms - self._since_ms)]

    return _with(patch.object(BarrierHandler, "_complete", complete))


def an_ended_channel_not_counted() -> AbstractContextManager[None]:
    """Alignment waits for a channel that has ended (P31)."""

    def ended(self: BarrierHandler, channel: str, now_ms: int) -> list[Any]:
        del channel, now_ms
        return []

    return _with(patch.object(BarrierHandler, "ended", ended))


def the_barrier_behind_the_next_segment() -> AbstractContextManager[None]:
    """The barrier is broadcast after the next segment (P3)."""
    broadcast = OutputChannels.broadcast
    late: dict[int, list[CheckpointBarrier]] = {}

    def delayed(self: OutputChannels, *entries: Any) -> list[ChannelAppended]:
        waiting = late.setdefault(id(self), [])
        if isinstance(entries[0], CheckpointBarrier):
            waiting += entries
            return []
        segments = [one for one in entries if isinstance(one, Segment)]
        sent = [*segments, *waiting, *entries[len(segments) :]]
        waiting.clear()
        return broadcast(self, *sent)

    return _with(patch.object(OutputChannels, "broadcast", delayed))


def a_watermark_that_overtakes() -> AbstractContextManager[None]:
    """A watermark counts when it is appended, before the segments ahead of it are read (P25)."""
    append = InputGate.append

    def counts_at_once(self: InputGate, channel: str, entry: Any, *rest: Any) -> None:
        if isinstance(entry, Watermark):
            self._channels[channel].watermark_ms = entry.timestamp_ms
        else:
            append(self, channel, entry, *rest)

    return _with(patch.object(InputGate, "append", counts_at_once))


def a_watermark_before_its_segment() -> AbstractContextManager[None]:
    """A producer appends the watermark of a batch before the batch's segment (P25)."""
    on_planning = StreamTask._on_planning

    def watermark_first(self: StreamTask, event: PlanningCalled) -> list[Any]:
        first = self.outputs.completed(self._position, event.watermark_ms)
        return [*first, *on_planning(self, event)]

    return _with(patch.object(StreamTask, "_on_planning", watermark_first))


def an_ended_channel_that_holds_the_watermark_back() -> AbstractContextManager[None]:
    """The end of a channel's records does not raise its watermark (P25)."""
    control = InputGate._control

    def end_without_watermark(
        self: InputGate, name: str, channel: Any, entry: Any, now_ms: int
    ) -> list[Any]:
        before_ms = channel.watermark_ms
        outcomes = control(self, name, channel, entry, now_ms)
        if isinstance(entry, EndOfUserRecords):
            channel.watermark_ms = before_ms
        return outcomes

    return _with(patch.object(InputGate, "_control", end_without_watermark))


def a_watermark_behind_a_barrier_that_waits() -> AbstractContextManager[None]:
    """What follows a barrier takes effect in the batch for the watermarks before it (P25)."""
    read_control = StreamTask._read_control

    def read_on(self: StreamTask) -> list[Any]:
        with patch.object(WaitingTriggers, "is_first_aligned", new=False):
            return read_control(self)

    return _with(
        patch.object(StreamTask, "_read_control", read_on),
        # Producers run far ahead, so there is more behind a barrier.
        patch.object(output_channels_module, "_BATCHES_AHEAD", 100),
    )


def a_batch_that_reads_less_than_its_offsets_say() -> AbstractContextManager[None]:
    """A batch reads one segment of each channel, but its offsets cover all admitted ones (P7)."""
    between = ChannelOffsets.between

    def first_only(self: ChannelOffsets, admitted: Any) -> dict[str, list[Segment]]:
        return {name: segments[:1] for name, segments in between(self, admitted).items()}

    return _with(patch.object(ChannelOffsets, "between", first_only))


def a_batch_that_reads_less_unnoticed() -> AbstractContextManager[None]:
    """A batch reads and reports one segment of each channel, unchecked against the answer (P7)."""

    def commit_first(self: ChannelOffsets, admitted: Any) -> None:
        self._committed |= {one.channel: one.segments[0].position for one in admitted}

    return _with(
        a_batch_that_reads_less_than_its_offsets_say(),
        patch.object(ChannelOffsets, "commit", commit_first),
        patch.object(InputGate, "misread", lambda self, positions: None),
    )


def a_segment_deleted_after_its_first_reader() -> AbstractContextManager[None]:
    """A segment is deleted when one consumer has read it, though another has not (P30)."""
    consumed = OutputChannels.consumed

    def free_at_once(
        self: OutputChannels, consumer: str, position: int, batch_size: int
    ) -> int | None:
        consumed(self, consumer, position, batch_size)
        return position

    return _with(patch.object(OutputChannels, "consumed", free_at_once))


def a_producer_not_woken_when_its_channel_has_room() -> AbstractContextManager[None]:
    """A read segment is noted, but the producer that waits for room is not woken (P30)."""

    def note_only(self: StreamTask, event: SegmentsConsumed) -> list[Any]:
        self.outputs.consumed(event.consumer, event.position, event.batch_size)
        return []

    return _with(
        patch.object(StreamTask, "_on_consumed", note_only),
        patch.object(StreamTask, "validate", lambda self: None),
    )


CHANNEL_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_channel_not_held, 140, "missing", "too often", "falls"),
        (aligned_at_the_first_barrier, 25, "missing", "too often", "at the barrier"),
        (an_ended_channel_not_counted, 112, "did not finish"),
        (the_barrier_behind_the_next_segment, 7, "missing", "too often", "did not finish"),
        (a_watermark_that_overtakes, 3, "below the watermark"),
        (a_watermark_before_its_segment, 1, "below the watermark"),
        (an_ended_channel_that_holds_the_watermark_back, 2, "at the barrier"),
        (a_watermark_behind_a_barrier_that_waits, 4_760, "falls"),
        (a_batch_that_reads_less_than_its_offsets_say, 3, "missing"),
        (a_batch_that_reads_less_unnoticed, 3, "missing"),
        (a_segment_deleted_after_its_first_reader, 1, "is gone"),
        (a_producer_not_woken_when_its_channel_has_room, 7, "did not finish"),
    )
)
