"""Functions of batches that raise, without Spark (weir/spark/rejects/maps.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from weir.spark.rejects.maps import each_batch

Batches = Iterable[list[int]]


def doubled(batches: Batches) -> Iterator[int]:
    """Emits row by row, and raises at a negative one."""
    for batch in batches:
        for number in batch:
            if number < 0:
                raise ValueError(f"no {number}")
            yield 2 * number


def found(function: object, batches: Batches) -> list[object]:
    made = each_batch(function, batches)  # type: ignore[arg-type]
    return [(one[0], str(one[1])) if isinstance(one, tuple) else one for one in made]


def test_what_was_emitted_for_a_batch_that_fails_is_dropped() -> None:
    """A new generator goes on with the next batch; what came before stays."""
    assert found(doubled, [[1, 2], [3, -1, 4], [5], [-2]]) == [
        *(2, 4),
        ([3, -1, 4], "no -1"),
        10,
        ([-2], "no -2"),
    ]


def test_a_generator_keeps_its_state_as_long_as_it_does_not_raise() -> None:
    """It is called once for all batches, as without Weir."""

    def running(batches: Batches) -> Iterator[int]:
        total = 0
        for batch in batches:
            if -1 in batch:
                raise ValueError("no")
            total += sum(batch)
            yield total

    assert found(running, [[1], [2], [-1], [3], [4]]) == [1, 3, ([-1], "no"), 3, 7]


def test_several_batches_may_be_pulled_before_rows_are_emitted() -> None:
    """What is emitted belongs to the batch pulled last."""

    def in_pairs(batches: Iterator[list[int]]) -> Iterator[int]:
        for batch in batches:
            other = next(batches, [])
            yield sum(batch) + sum(other)

    assert found(in_pairs, [[1], [2], [3]]) == [3, 3]


def test_errors_that_no_batch_has_caused_fail_the_job() -> None:
    """At the start, at the end, and of the batches themselves."""

    def at_start(batches: Batches) -> Iterator[int]:
        raise RuntimeError("at the start")
        yield from doubled(batches)

    def at_end(batches: Batches) -> Iterator[int]:
        yield from doubled(batches)
        raise RuntimeError("at the end")

    def broken() -> Iterator[list[int]]:
        yield [1]
        raise RuntimeError("of the batches")

    with pytest.raises(RuntimeError, match="at the start"):
        found(at_start, [[1]])
    with pytest.raises(RuntimeError, match="at the end"):
        found(at_end, [[1]])
    with pytest.raises(RuntimeError, match="of the batches"):
        found(doubled, broken())


def test_a_function_may_return_its_rows() -> None:
    """It need not be a generator."""
    assert found(lambda batches: [sum(one) for one in batches], [[1, 2], [3]]) == [3, 3]
