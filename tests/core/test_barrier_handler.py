"""Alignment over several channels (MISSION B3, D).

Held, cancelled and ended channels, and newer barriers.
"""

from __future__ import annotations

import random

import pytest
from tests.core.channel_task import barrier

from weir.core.task.barrier_handler import Aligned, BarrierHandler, Misaligned
from weir.core.types import CheckpointFailureReason as Reason
from weir.errors import InvariantError


def test_one_channel_is_aligned_at_once() -> None:
    """Nothing is held and the alignment takes no time."""
    handler = BarrierHandler("a")
    assert handler.barrier("a", barrier(1), 5) == [Aligned(barrier=barrier(1), alignment_ms=0)]
    assert not handler.holds("a")


def test_a_channel_is_held_from_its_barrier_until_all_have_theirs() -> None:
    """The other is read meanwhile; alignment lasts from the first barrier to the last."""
    handler = BarrierHandler("ab")
    assert handler.barrier("a", barrier(1), 5) == []
    assert (handler.holds("a"), handler.holds("b"), handler.aligning) == (True, False, 1)
    assert handler.barrier("b", barrier(1), 17) == [Aligned(barrier=barrier(1), alignment_ms=12)]
    assert (handler.holds("a"), handler.holds("b"), handler.aligning) == (False, False, None)


def test_a_channel_that_has_ended_counts_as_aligned() -> None:
    """Also when it ends while the others are held for it."""
    handler = BarrierHandler("abc")
    handler.ended("c", 0)
    handler.barrier("a", barrier(1), 5)
    assert handler.ended("b", 9) == [Aligned(barrier=barrier(1), alignment_ms=4)]


def test_a_newer_barrier_ends_an_older_alignment() -> None:
    """The older is declined as subsumed; its held channel is read again up to the newer barrier."""
    handler = BarrierHandler("ab")
    handler.barrier("a", barrier(1), 0)
    assert handler.barrier("b", barrier(2), 3) == [
        Misaligned(checkpoint_id=1, reason=Reason.CHECKPOINT_DECLINED_SUBSUMED)
    ]
    assert (handler.holds("a"), handler.holds("b")) == (False, True)
    assert handler.barrier("a", barrier(2), 8) == [Aligned(barrier=barrier(2), alignment_ms=5)]


def test_an_older_barrier_does_not_disturb_a_newer_alignment() -> None:
    """Its checkpoint was given up elsewhere, so it is skipped, and its channel is not held."""
    handler = BarrierHandler("ab")
    handler.barrier("a", barrier(2), 0)
    assert handler.barrier("b", barrier(1), 3) == []
    assert (handler.holds("a"), handler.holds("b"), handler.aligning) == (True, False, 2)
    assert handler.barrier("b", barrier(2), 8) == [Aligned(barrier=barrier(2), alignment_ms=8)]


def test_a_cancelled_checkpoint_is_waited_for_no_more() -> None:
    """The marker on one channel frees the others and is reported once."""
    handler = BarrierHandler("ab")
    handler.barrier("a", barrier(1), 0)
    cancelled = Misaligned(
        checkpoint_id=1, reason=Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
    )
    assert handler.cancelled(1) == [cancelled]
    assert not handler.holds("a")
    assert handler.cancelled(1) == []


def test_barriers_of_a_cancelled_checkpoint_are_skipped() -> None:
    """Whether they arrive before or after the next checkpoint's alignment."""
    handler = BarrierHandler("ab")
    handler.cancelled(1)
    assert handler.barrier("a", barrier(1), 0) == []
    assert not handler.holds("a")
    handler.barrier("a", barrier(2), 0)
    assert handler.barrier("b", barrier(1), 0) == []
    assert not handler.holds("b")
    assert handler.barrier("b", barrier(2), 0) == [Aligned(barrier=barrier(2), alignment_ms=0)]


def test_an_abort_by_the_coordinator_frees_the_channels_without_a_word() -> None:
    """The coordinator already knows; late barriers of that checkpoint are ignored."""
    handler = BarrierHandler("ab")
    handler.barrier("a", barrier(1), 0)
    handler.aborted(1)
    assert not handler.holds("a")
    assert handler.barrier("b", barrier(1), 0) == []
    handler.aborted(1)


def test_an_abort_of_a_checkpoint_that_is_over_changes_nothing() -> None:
    """All its barriers had arrived."""
    handler = BarrierHandler("ab")
    for channel in "ab":
        handler.barrier(channel, barrier(1), 0)
    handler.barrier("a", barrier(2), 0)
    handler.aborted(1)
    assert (handler.aligning, handler.holds("a")) == (2, True)


def test_a_task_without_channels_remembers_no_aborted_checkpoint() -> None:
    """No barrier of it can arrive, and a job may abort checkpoints for years."""
    handler = BarrierHandler("")
    for checkpoint_id in range(1, 100):
        handler.aborted(checkpoint_id)
    assert not handler._given_up


def test_a_held_channel_that_is_read_is_a_bug() -> None:
    """Its records would be in the state of a checkpoint whose barrier precedes them."""
    handler = BarrierHandler("ab")
    handler.barrier("a", barrier(1), 0)
    with pytest.raises(InvariantError, match="held channel"):
        handler.barrier("a", barrier(2), 0)
    with pytest.raises(InvariantError, match="held channel"):
        handler.ended("a", 0)


@pytest.mark.parametrize("seed", range(200))
def test_every_checkpoint_is_aligned_or_declined_once_whatever_the_order(seed: int) -> None:
    """Channels with the same barriers, some cancelled, read in any order the handler allows."""
    chance = random.Random(seed)
    names = "abcd"[: chance.randint(1, 4)]
    ids = range(1, chance.randint(2, 8))
    channels = {
        name: [("cancel" if chance.random() < 0.15 else "barrier", n) for n in ids] + [("end", 0)]
        for name in names
    }
    handler, ended = BarrierHandler(names), []
    while any(channels.values()):
        ready = [name for name in names if channels[name] and not handler.holds(name)]
        assert ready, "every channel is held"
        name = chance.choice(ready)
        what, n = channels[name].pop(0)
        match what:
            case "barrier":
                outcomes = handler.barrier(name, barrier(n), 0)
            case "cancel":
                outcomes = handler.cancelled(n)
            case _:
                outcomes = handler.ended(name, 0)
        handler.validate()
        ended += [
            outcome.barrier.checkpoint_id if isinstance(outcome, Aligned) else outcome.checkpoint_id
            for outcome in outcomes
        ]
    assert sorted(ended) == list(ids)
