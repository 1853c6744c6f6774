"""Timers of operators, compared with a set of pairs (weir/operators/state/timers.py)."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.kit.checkered import checkered
from tests.operators.layers import deal_with, next_layer
from tests.operators.test_keyed_state import KINDS, group_of, plain

from weir.errors import OperatorStateError
from weir.operators.state.timers import TimeDomain, Timers
from weir.operators.state.types import Layer

Pair = tuple[Any, int]


class Use:
    """Timers with what they should be."""

    def __init__(self, kind: str) -> None:
        self.kind, self.key_of = KINDS[kind]
        self.timers = Timers("t", TimeDomain.EVENT)
        self.expected: set[Pair] = set()
        self.layers: list[Layer] = []

    def keys(self, numbers: list[int]) -> pa.Array:
        return pa.array([self.key_of(number) for number in numbers], self.kind)

    def register(self, numbers: list[int], times: list[int]) -> None:
        keys = self.keys(numbers)
        self.timers.state.begin_batch(keys, group_of(numbers))
        self.timers.register(keys, pa.array(times, pa.int64()))
        self.expected |= set(zip(plain(keys), times, strict=True))

    def delete(self, numbers: list[int], times: list[int]) -> None:
        keys = self.keys(numbers)
        self.timers.delete(keys, pa.array(times, pa.int64()))
        self.expected -= set(zip(plain(keys), times, strict=True))

    def fire(self, until_ms: int) -> None:
        """Compare what is due with what should be, and in which order."""
        fired: list[Pair] = []
        for due in self.timers.due(until_ms):
            assert len(set(plain(due.keys))) == len(due.keys), "a key is due twice at once"
            fired += zip(plain(due.keys), due.times_ms.to_pylist(), strict=True)
        assert sorted(map(repr, fired)) == sorted(
            repr(pair) for pair in self.expected if pair[1] <= until_ms
        )
        for key in {key for key, _ in fired}:
            times = [time for one, time in fired if one == key]
            assert times == sorted(times)
        self.expected = {pair for pair in self.expected if pair[1] > until_ms}

    def hand_over(self) -> None:
        """Go on in another process, from what was written."""
        written = next_layer(self.timers.state)
        if written is not None:
            stay, data = written
            self.layers = self.layers[:stay] + ([Layer(data, (0, 128))] if data else [])
        self.timers = Timers("t", TimeDomain.EVENT, self.layers)


@pytest.mark.parametrize(("kind", "items"), checkered(KINDS, [100_000, 10], colours=3))
def test_any_use_agrees_with_a_set_of_pairs(
    kind: str, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Register, delete, due, earliest and hand-over; with few ``items`` places are renumbered."""
    deal_with(monkeypatch, items)
    random, use, now = Random(kind), Use(kind), 0
    for _ in range(30):
        numbers = random.choices(range(30), k=random.randrange(1, 40))
        times = [now + random.randrange(-5, 60) for _ in numbers]
        use.register(numbers, times)
        if random.random() < 0.5:
            chosen = random.sample(range(len(numbers)), random.randrange(len(numbers) + 1))
            use.delete([numbers[one] for one in chosen], [times[one] for one in chosen])
        assert len(use.timers) == len(use.expected)
        assert use.timers.earliest_ms() == min((time for _, time in use.expected), default=None)
        if random.random() < 0.6:
            now += random.randrange(20)
            use.fire(now)
        if random.random() < 0.3:
            use.hand_over()
    use.fire(10**6)
    assert (len(use.timers), use.timers.earliest_ms()) == (0, None)


def test_what_is_registered_while_timers_fire_is_due_in_its_turn() -> None:
    """The timer at 3 is registered by the one at 1, and comes before the one at 5."""
    use = Use("texts")
    use.register([1, 1, 2], [1, 5, 2])
    fired: list[Pair] = []
    for due in use.timers.due(10):
        use.timers.state.begin_batch(due.keys, due.groups)
        fired += zip(due.keys.to_pylist(), due.times_ms.to_pylist(), strict=True)
        if 1 in due.times_ms.to_pylist():
            use.timers.register(pa.array(["key 1"]), pa.array([3]))
            use.timers.register(pa.array(["key 1"]), pa.array([11]))
    assert fired == [("key 1", 1), ("key 2", 2), ("key 1", 3), ("key 1", 5)]
    assert use.timers.earliest_ms() == 11


def test_a_timer_that_is_deleted_while_others_fire_does_not_fire() -> None:
    """The first timer of a key deletes the second."""
    use = Use("texts")
    use.register([1, 1], [1, 5])
    times = []
    for due in use.timers.due(10):
        times += due.times_ms.to_pylist()
        use.timers.delete(due.keys, pa.array([5]))
    assert times == [1]


def test_times_can_be_timestamps_and_are_never_early() -> None:
    """A part of a millisecond counts as a whole one."""
    use = Use("texts")
    keys = use.keys([1, 2])
    use.timers.state.begin_batch(keys, group_of([1, 2]))
    at = dt.datetime(1970, 1, 1, 0, 0, 1, 500, dt.UTC)
    use.timers.register(keys, pa.array([at, at.replace(microsecond=0)], pa.timestamp("us", "UTC")))
    [due] = use.timers.due(5_000)
    assert due.times_ms.to_pylist() == [1_000, 1_001]


def test_a_timer_without_a_time_is_refused() -> None:
    """The error names the timers."""
    use = Use("texts")
    with pytest.raises(OperatorStateError, match="The timers 't' were given null as a time"):
        use.timers.register(pa.array(["key 1"]), pa.array([None], pa.int64()))


def test_a_timer_of_a_key_that_is_not_in_the_batch_is_refused() -> None:
    """It may belong to another subtask, which would never know of it."""
    use = Use("texts")
    use.timers.state.begin_batch(use.keys([1]), group_of([1]))
    with pytest.raises(OperatorStateError, match="a key that is not in the batch"):
        use.timers.register(use.keys([2]), pa.array([1]))
