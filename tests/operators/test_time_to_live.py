"""Keyed state that expires (weir/operators/state/expiry.py; MISSION B7): Flink's StateTtlConfig."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.checkered import checkered
from tests.operators.layers import deal_with, next_layer
from tests.operators.test_keyed_state import KINDS, group_of, plain
from tests.operators.test_sent_events import context
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.errors import OperatorStateError
from weir.operators import Operator, TimeDomain, TtlUpdate
from weir.operators.state.expiry import TimeToLive
from weir.operators.state.keyed import KeyedState
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers
from weir.operators.state.types import Layer
from weir.spark.state.directory import SPARK_MAX_WATERMARK_MS
from weir.subtasks.worker import BatchRun

EVENT, PROCESSING = TimeDomain.EVENT, TimeDomain.PROCESSING
WRITE, READ = TtlUpdate.ON_CREATE_AND_WRITE, TtlUpdate.ON_READ_AND_WRITE


class Use:
    """A state with time to live, with what it should hold."""

    def __init__(self, kind: str, ttl: TimeToLive | None) -> None:
        self.kind, self.key_of = KINDS[kind]
        self.ttl = ttl
        self.now = 0
        self.layers: list[bytes] = []
        #: Key -> (value, time of its last use).
        self.expected: dict[Any, tuple[int, int]] = {}
        self.state = self.restored()

    def restored(self, groups: tuple[int, int] = (0, 128)) -> KeyedState:
        layers = [Layer(data, groups) for data in self.layers]
        state = KeyedState("s", pa.int64(), -1, layers, ttl=self.ttl)
        self.tell(state)
        return state

    def tell(self, state: KeyedState) -> None:
        state.set_time(PROCESSING, self.now)
        state.expire(PROCESSING)

    def at(self, now: int) -> None:
        self.now = now
        self.tell(self.state)
        if self.ttl is not None:
            end = now - self.ttl.ttl_ms
            self.expected = {key: one for key, one in self.expected.items() if one[1] > end}

    def put(self, numbers: list[int], value: int) -> None:
        keys = pa.array([self.key_of(number) for number in numbers], self.kind)
        self.state.begin_batch(keys, group_of(numbers))
        self.state.put(keys, pa.array([value] * len(numbers)))
        for key in plain(keys):
            self.expected[key] = value, max(self.expected.get(key, (0, 0))[1], self.now)

    def get(self, numbers: list[int]) -> None:
        keys = pa.array([self.key_of(number) for number in numbers], self.kind)
        found = self.state.get(keys).to_pylist()
        assert found == [self.expected.get(key, (-1, 0))[0] for key in plain(keys)]
        if self.ttl is not None and self.ttl.update is READ:
            for key in set(plain(keys)) & set(self.expected):
                value, used = self.expected[key]
                self.expected[key] = value, max(used, self.now)

    def delete(self, numbers: list[int]) -> None:
        keys = pa.array([self.key_of(number) for number in numbers], self.kind)
        self.state.delete(keys)
        self.expected = {key: one for key, one in self.expected.items() if key not in plain(keys)}

    def write(self) -> None:
        written = next_layer(self.state)
        if written is not None:
            self.layers = self.layers[: written[0]] + ([written[1]] if written[1] else [])

    def check(self, *states: KeyedState) -> None:
        rows = [row for state in states for batch in state.items() for row in batch.to_pylist()]
        expected = [{"key": key, "value": one[0]} for key, one in self.expected.items()]
        assert sorted(str(self.comparable(row)) for row in rows) == sorted(map(str, expected))
        assert sum(map(len, states)) == len(expected)

    @staticmethod
    def comparable(row: dict[str, Any]) -> dict[str, Any]:
        key = row["key"]
        return row | {"key": tuple(key.values()) if isinstance(key, dict) else key}


def ttl_of(ttl_ms: int, update: TtlUpdate = WRITE, domain: TimeDomain = PROCESSING) -> TimeToLive:
    return TimeToLive(ttl_ms=ttl_ms, update=update, domain=domain)


@pytest.mark.parametrize(
    ("kind", "update", "items"),
    checkered(["integers", "texts", "pairs", "with null"], TtlUpdate, [100_000, 5], colours=3),
)
def test_any_use_agrees_with_a_dictionary(
    kind: str, update: TtlUpdate, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over hand-overs, other parallelisms, renumbered places, and a clock that is set back."""
    deal_with(monkeypatch, items)
    random, use = Random(f"{kind} {update}"), Use(kind, ttl_of(20, update))
    for _ in range(50):
        use.at(max(0, use.now + random.choice([0, 1, 3, 9, 9, -2, 30])))
        use.put(random.sample(range(30), random.randrange(1, 8)), random.randrange(100))
        use.get(random.choices(range(30), k=6))
        if random.random() < 0.3:
            use.delete(random.sample(range(30), 4))
        use.check(use.state)
        if random.random() < 0.5:
            use.write()
            parallelism = random.randrange(1, 4)
            bounds = [16 * number // parallelism for number in range(parallelism + 1)]
            use.check(*[use.restored(groups) for groups in itertools.pairwise(bounds)])
            if random.random() < 0.5:
                use.state = use.restored()
    use.at(use.now + 1000)
    use.write()
    assert (len(use.state), use.layers) == (0, [])


def test_a_write_starts_the_time_anew_and_a_read_does_not() -> None:
    """OnCreateAndWrite."""
    use = Use("integers", ttl_of(10))
    use.put([1, 2], 5)
    use.at(9)
    use.put([1], 6)
    use.get([1, 2])
    use.at(10)
    assert use.state.contains(pa.array([-49, -48])).to_pylist() == [True, False]


def test_a_read_starts_the_time_anew_if_asked_to() -> None:
    """OnReadAndWrite; ``contains`` is a read as well, and what a read changed is written."""
    use = Use("integers", ttl_of(10, READ))
    use.put([1, 2, 3], 5)
    use.write()
    use.at(9)
    use.state.get(pa.array([-49]))
    use.state.contains(pa.array([-48]))
    use.write()
    use.now = 10
    restored = use.restored()
    assert restored.contains(pa.array([-49, -48, -47])).to_pylist() == [True, True, False]


def test_state_saved_without_a_time_to_live_gets_one_from_its_restore_on() -> None:
    """And state that was saved with one can lose it."""
    use = Use("integers", None)
    use.put([1], 5)
    use.write()
    use.ttl, use.now = ttl_of(10), 1_000
    use.state = use.restored()
    use.write()
    use.now = 1_009
    assert len(use.restored()) == 1
    use.now = 1_010
    assert len(use.restored()) == 0
    use.ttl = None
    assert len(use.restored()) == 1


def test_another_time_to_live_counts_from_the_last_use() -> None:
    """As in Flink, where the state has the time of its last use and not that of its end."""
    use = Use("integers", ttl_of(1_000))
    use.put([1], 5)
    use.write()
    use.ttl, use.now = ttl_of(10), 10
    assert len(use.restored()) == 0


def test_nothing_expires_before_there_is_a_watermark() -> None:
    """What was written by then counts from the first watermark."""
    state = KeyedState("s", pa.int64(), 0, ttl=ttl_of(10, domain=EVENT))
    keys = pa.array([1])
    state.begin_batch(keys, pa.array([1], pa.int32()))
    state.put(keys, pa.array([1]))
    state.expire(EVENT)
    for watermark_ms, left in [(5_000, 1), (5_009, 1), (5_010, 0)]:
        state.set_time(EVENT, watermark_ms)
        state.expire(EVENT)
        assert len(state) == left


def test_cleaning_up_looks_only_at_what_may_be_due() -> None:
    """A hundred thousand values that are not due are not touched, and writes queue nothing."""
    state = KeyedState("s", pa.int64(), 0, ttl=ttl_of(1_000))
    keys = pa.array(np.arange(100_000))
    for now in (0, 1, 2):
        state.set_time(PROCESSING, now)
        state.begin_batch(keys, pa.array(np.zeros(len(keys), np.int32)))
        state.put(keys, keys)
    expiry = state._expiry
    assert expiry is not None
    assert sum(len(run.places) for run in expiry._runs._runs) == len(keys)
    state.set_time(PROCESSING, 999)
    assert len(expiry.take_expired()) == 0
    state.set_time(PROCESSING, 1_002)
    state.expire(PROCESSING)
    assert len(state) == 0


def test_entries_of_a_map_expire_one_by_one() -> None:
    """Each has its own time."""
    store = StateStore()
    store.set_time(PROCESSING, 0)
    maps = store.map_state("m", pa.string(), pa.int64(), 0, ttl_ms=10)
    keys = pa.array([1])
    for now, entry in [(0, "a"), (5, "b")]:
        store.set_time(PROCESSING, now)
        store.begin_batch(keys, pa.array([3], pa.int32()))
        maps.put(keys, pa.array([entry]), pa.array([7]))
    store.set_time(PROCESSING, 10)
    store.expire(PROCESSING)
    assert [batch["map_key"].to_pylist() for batch in maps.items()] == [["b"]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ttl_ms": 0}, "ttl_ms is 0: give 1 to"),
        ({"ttl_ms": 1.5}, "whole milliseconds"),
        ({"ttl_ms": 2**62}, "or None if the state never expires"),
        ({"ttl_ms": 5, "ttl_domain": EVENT}, "put withWatermark before the step"),
    ],
)
def test_a_time_to_live_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    """Too short, too long, not a number, or by an event time that the input does not have."""
    store = StateStore(operator_id="one", has_event_time=False)
    with pytest.raises(OperatorStateError, match=says):
        store.keyed_state("s", pa.int64(), 0, **changes)


def test_times_of_use_that_are_none_are_damage() -> None:
    """A checkpoint is not trusted."""
    columns = {"key": [1], "value": [1], "live": [True], "used_event_ms": ["soon"]}
    table = pa.table(columns | {"group": pa.array([1], pa.int16())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(OperatorStateError, match="times of use are not integers"):
        KeyedState("s", pa.int64(), 0, [Layer(sink.getvalue().to_pybytes(), (0, 128))])


class Late(Operator):
    """At each timer and at the end, notes how many values there are."""

    transient = ("seen",)

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __deepcopy__(self, _: object) -> Late:
        return self

    def initialize_state(self, state: StateStore) -> None:
        self.values = state.keyed_state("s", pa.int64(), 0, ttl_ms=10, ttl_domain=EVENT)
        self.ends = state.event_timers("ends")

    def end_batch(self) -> None:
        self.seen.append(("end_batch", len(self.values)))

    def finish(self) -> None:
        self.seen.append(("finish", len(self.values)))

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> None:
        self.seen.append(("timer", self.values.get(due["key"]).to_pylist()))


@pytest.mark.parametrize("end", [2**63 - 1, SPARK_MAX_WATERMARK_MS])
def test_timers_find_what_their_watermark_makes_expire_and_a_drain_loses_nothing(
    tmp_path: Path, end: int
) -> None:
    """MISSION E1: the end of the input fires every timer, and no time passes for state."""
    seen: list[Any] = []
    operator, runs = Late(seen), dict[int, str]()

    process = new_process()

    def batch(number: int, key: int | None = None, **changes: Any) -> None:
        order = order_of(tmp_path, number, runs=dict(runs), **changes)
        run = BatchRun(order, context(), process)
        one = run.begin(operator)
        if key is not None:
            keys = pa.array([key])
            one.state.begin_batch(keys, pa.array([1], pa.int32()))
            operator.values.put(keys, pa.array([key]))
            operator.ends.register(keys, pa.array([110]))
        list(run.batches(one, []))
        runs[0] = run.handed_over(one).run

    batch(0, moves_to_ms=100)
    batch(1, 1, watermark_ms=100)
    batch(2, watermark_ms=100, moves_to_ms=5_000)
    batch(3, 2, watermark_ms=5_000, moves_to_ms=end, finish=True)
    assert seen == [
        ("end_batch", 0),
        ("end_batch", 1),
        ("timer", [1]),
        ("end_batch", 0),
        ("timer", [2]),
        ("end_batch", 1),
        ("finish", 1),
    ]
