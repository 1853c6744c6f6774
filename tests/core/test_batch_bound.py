"""The bound on what one batch reads of a channel follows from how long batches take."""

from __future__ import annotations

from weir.core.task.batch_bound import TARGET_MS, BatchBound


def bound_of(size: int) -> BatchBound:
    """A bound that currently allows this many bytes."""
    bound = BatchBound()
    bound.size = size
    return bound


def run(bound: BatchBound, size: int, duration_ms: int) -> int:
    """The bound after one batch."""
    bound.begun(size, 500)
    bound.ended(500 + duration_ms)
    return bound.size


def test_a_batch_that_lasts_too_long_shrinks_the_bound_in_proportion() -> None:
    """So that the next batch lasts about as long as intended."""
    assert run(bound_of(400 << 20), 400 << 20, 4 * TARGET_MS) == 100 << 20


def test_a_full_batch_in_time_doubles_the_bound() -> None:
    """A consumer that lags catches up in larger batches."""
    assert run(bound_of(64 << 20), 60 << 20, TARGET_MS // 2) == 128 << 20


def test_a_batch_that_is_just_in_time_changes_nothing() -> None:
    """Twice as much would take too long, and the bound would oscillate forever."""
    assert run(bound_of(64 << 20), 60 << 20, TARGET_MS * 3 // 4) == 64 << 20


def test_a_small_batch_in_time_changes_nothing() -> None:
    """It does not show how long a large one would take."""
    assert run(bound_of(64 << 20), 1 << 20, 100) == 64 << 20


def test_the_bound_never_falls_so_low_that_only_fixed_costs_are_paid() -> None:
    """A batch that is slow although it reads little does not get faster by reading less."""
    bound = bound_of(8 << 20)
    for _ in range(20):
        run(bound, 1000, 10 * TARGET_MS)
    assert bound.size == 2 << 20


def test_a_batch_that_read_nothing_changes_nothing() -> None:
    """Such as a step that only advances the watermark."""
    assert run(bound_of(64 << 20), 0, 10 * TARGET_MS) == 64 << 20
