"""Records that an operator sets aside leave nothing behind (weir/subtasks/worker.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.errors import PipelineError, WeirError
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers
from weir.subtasks.messages import BatchResult
from weir.subtasks.worker import SubtaskFunction

KEYS = 20
#: A bad record has this amount.
BAD = -1


class Everything(Operator):
    """Changes state of every kind, emits and sends, and raises at the end if a record is bad."""

    output_schema = "key long, total long"
    side_outputs = {"seen": "key long"}  # noqa: RUF012

    def initialize_state(self, state: StateStore) -> None:
        self._totals = state.keyed_state("totals", pa.int64(), 0)
        self._brief = state.keyed_state("brief", pa.string(), ttl_ms=1000)
        self._map = state.map_state("map", pa.int64(), pa.int64(), 0)
        self._list = state.keyed_list_state("list", pa.int64())
        self._raw = state.raw_keyed_state("raw")
        self._names = state.list_state("names")
        self._timers = state.processing_timers()

    transient = ("_totals", "_brief", "_map", "_list", "_raw", "_names", "_timers")

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        summed = pa.table(batch).group_by("key").aggregate([("amount", "sum")])
        keys = summed["key"].combine_chunks()
        totals = pc.add(self._totals.get(keys), summed["amount_sum"].combine_chunks())
        odd = pc.equal(pc.bit_wise_and(totals, 1), 1)
        self._totals.put(keys.filter(odd), totals.filter(odd))
        self._totals.delete(keys.filter(pc.invert(odd)))
        self._brief.put(keys, totals.cast(pa.string()))
        self._map.put(keys, totals, totals)
        self._map.clear(keys.filter(pc.equal(pc.bit_wise_and(totals, 7), 3)))
        self._list.append(batch["key"], batch["amount"])
        self._list.clear(keys.filter(pc.equal(pc.bit_wise_and(totals, 7), 5)))
        for group in set(self._raw.record_groups.to_pylist()):
            self._raw.put(group, bytes([len(self._raw.get(group) or b"")]))
        self._names.add({"of": self._names.get()[-1:], "rows": len(batch)})
        self._timers.delete(keys, pa.array([10**14] * len(keys)))
        self._timers.register(keys, pa.array([10**14 + len(batch) % 2] * len(keys)))
        self.context.output("seen", batch.select(["key"]))
        self.context.send_event_to_coordinator({"rows": len(batch)})
        yield pa.record_batch({"key": keys, "total": totals})
        if pc.any(pc.equal(batch["amount"], BAD)).as_py():
            raise ValueError("a bad amount")

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> None:
        raise AssertionError("no timer is due")


def function(operator: Operator, rows_max: int | None) -> SubtaskFunction:
    return SubtaskFunction(
        "op",
        operator,
        output_schema=pa.schema({"key": pa.int64(), "total": pa.int64()}),
        side_outputs={"seen": pa.schema({"key": pa.int64()})},
        parallelism=1,
        keys={"key": "key"},
        rejects_max=rows_max,
    )


def records(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    keys = [key for key, _ in rows]
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.int64()),
            "amount": pa.array([amount for _, amount in rows], pa.int64()),
            "group": pa.array(keys, pa.int32()),
        }
    )


def run(
    tmp_path: Path, batches: list[list[pa.RecordBatch]], *, rows_max: int | None = 1000
) -> tuple[dict[str, Any], list[Any], list[BatchResult]]:
    """All state at the end, what was emitted, and the results."""
    tmp_path.mkdir(exist_ok=True)
    one, process, results = function(Everything(), rows_max), new_process(), list[BatchResult]()
    emitted: list[Any] = []
    for number, batch in enumerate(batches):
        runs = {} if not results else {0: results[-1].state.run}
        order = order_of(tmp_path, number, runs=runs)
        for rows in one.batch(process, order, 0, batch, results.append):
            emitted += rows.to_pylist()
    state = process.state("op", 0)
    assert state is not None
    found: dict[str, Any] = {
        name: sorted(map(repr, (row for part in keyed.items() for row in part.to_pylist())))
        for name, keyed in state.keyed.items()
    }
    found["raw"] = {group: state.raw["raw"].get(group) for group in state.raw["raw"].groups}
    found["names"] = state.list_state("names").get()
    found["earliest"] = [timers.earliest_ms() for timers in state.timers]
    return found, emitted, results


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_are_set_aside_leave_nothing_behind(tmp_path: Path, seed: int) -> None:
    """State of every kind, timers, output, side output and events are those of an operator that got
    the same parts without the bad records."""
    random = Random(seed)
    batches, parts = [], []
    for _ in range(5):
        rows = [(random.randrange(KEYS), random.randrange(100)) for _ in range(16)]
        for place in random.sample(range(16), random.randrange(4)):
            rows[place] = (rows[place][0], BAD)
        batches.append([records(rows)])
        parts.append([records(part) for part in good_parts(rows)])
    found = run(tmp_path / "with", batches)
    expected = run(tmp_path / "without", parts, rows_max=None)
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    assert [one.sent for one in found[2]] == [one.sent for one in expected[2]]
    rejects = [json.loads(row.row) for one in found[2] for row in one.rejects]
    bad = [row for [batch] in batches for row in batch.to_pylist() if row["amount"] == BAD]
    assert rejects == [{"key": row["key"], "amount": BAD} for row in bad]
    assert all("a bad amount" in row.error for one in found[2] for row in one.rejects)


def good_parts(rows: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The parts of a batch that the operator gets in the end: halves of halves without bad rows."""
    if all(amount != BAD for _, amount in rows):
        yield rows
    elif len(rows) > 1:
        yield from good_parts(rows[: len(rows) // 2])
        yield from good_parts(rows[len(rows) // 2 :])


def test_too_many_rows_fail_the_batch(tmp_path: Path) -> None:
    """If each row raises, something else is wrong; the error says what to do."""
    with pytest.raises(PipelineError, match="more than 3 rows of one batch"):
        run(tmp_path, [[records([(1, BAD)] * 5)]], rows_max=3)


class Misused(Operator):
    """Emits to a side output that it does not declare."""

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self.context.output("undeclared", batch)


def test_misuse_of_weir_is_not_a_rows_fault(tmp_path: Path) -> None:
    """An error that Weir raises for the operator's code fails the job."""
    one = function(Misused(), 10)
    with pytest.raises(WeirError, match="undeclared"):
        list(
            one.batch(new_process(), order_of(tmp_path, 0), 0, [records([(1, 1)])], lambda _: None)
        )
