"""Deliberately broken variants of what tasks with channels do; see ``mutants.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core.barrier_handler import Aligned, BarrierHandler
from weir.core.channel import ChannelAppended, CheckpointBarrier, Segment
from weir.core.input_gate import InputGate
from weir.core.output_channels import OutputChannels


def a_channel_not_held() -> AbstractContextManager[None]:
    """A channel is read on behind its barrier while others are waited for (P7)."""

    def barrier(self: BarrierHandler, channel: str, entry: CheckpointBarrier, now_ms: int) -> list[Any]:
        self._held.pop(channel, None)
        return real(self, channel, entry, now_ms)

    real = BarrierHandler.barrier
    return _with(
        patch.object(BarrierHandler, "holds", lambda self, channel: False),
        patch.object(BarrierHandler, "barrier", barrier),
        patch.object(BarrierHandler, "validate", lambda self: None),
        patch.object(InputGate, "validate", lambda self: None),
    )


def aligned_at_the_first_barrier() -> AbstractContextManager[None]:
    """A snapshot is taken at the first barrier, whatever the other channels say (P7)."""

    def complete(self: BarrierHandler, now_ms: int) -> list[Any]:
        barrier = self._barrier
        if barrier is None:
            return []
        self._over(barrier.checkpoint_id)
        return [Aligned(barrier=barrier, alignment_ms=now_ms - self._since_ms)]

    return _with(patch.object(BarrierHandler, "_complete", complete))


def an_ended_channel_not_counted() -> AbstractContextManager[None]:
    """A channel that has ended is waited for (P31)."""

    def ended(self: BarrierHandler, channel: str, now_ms: int) -> list[Any]:
        del channel, now_ms
        return []

    return _with(patch.object(BarrierHandler, "ended", ended))


def the_barrier_behind_the_next_segment() -> AbstractContextManager[None]:
    """The barrier is broadcast with the next segment, behind it (P3)."""
    broadcast = OutputChannels.broadcast
    late: dict[int, list[CheckpointBarrier]] = {}

    def delayed(self: OutputChannels, entry: Any) -> list[ChannelAppended]:
        waiting = late.setdefault(id(self), [])
        if isinstance(entry, CheckpointBarrier):
            waiting.append(entry)
            return []
        sent = broadcast(self, entry) if isinstance(entry, Segment) else []
        for barrier in waiting:
            sent += broadcast(self, barrier)
        waiting.clear()
        return sent if isinstance(entry, Segment) else sent + broadcast(self, entry)

    return _with(patch.object(OutputChannels, "broadcast", delayed))


CHANNEL_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_channel_not_held, 735, "missing", "twice"),
        (aligned_at_the_first_barrier, 235, "missing", "twice"),
        (an_ended_channel_not_counted, 2, "did not finish"),
        (the_barrier_behind_the_next_segment, 1, "missing", "twice", "did not finish"),
    )
)
