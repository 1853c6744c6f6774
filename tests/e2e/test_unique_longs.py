"""Flink's job of unique increasing longs: every value once, in order, over five failures.

A source of unique longs, an order-keeping shuffle, a map that fails, another shuffle, a sink that
is verified. The map fails at a quarter of the input, in a snapshot at half, at three quarters, in
the recovery from that, and when it is closed. Nothing may be lost, doubled, or out of order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.place import Place, assert_same, files_rows

import weir
from weir.core.status import JobStatus
from weir.operators import Operator, SnapshotContext
from weir.operators.state.store import StateStore

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

FILES = 16
#: Rows of one lane are to stay in order.
LANES = 12

SCHEMA = "id long, ts timestamp, lane long"


class Shift(Operator):
    """Passes every row on."""

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch]


class FailingMap(Shift):
    """Fails once in each way, and leaves a mark."""

    def __init__(self, marks: Path, rows: int) -> None:
        self._marks = marks
        self._rows = rows

    def initialize_state(self, state: StateStore) -> None:
        self._seen = state.list_state("seen")
        if (self._marks / "map-2").exists():
            self._fail_once("recovery")

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        for number, place in enumerate((self._rows // 4, self._rows * 3 // 4), 1):
            if pc.any(pc.equal(batch["id"], place)).as_py():
                self._fail_once(f"map-{number}")
        self._seen.update([max([*self._seen.get(), *batch["id"].to_pylist()])])
        return [batch]

    def snapshot_state(self, context: SnapshotContext) -> None:
        if max(self._seen.get(), default=0) >= self._rows // 2:
            self._fail_once("snapshot")

    def close(self) -> None:
        if max(self._seen.get(), default=0) >= self._rows - LANES:
            self._fail_once("close")

    def _fail_once(self, name: str) -> None:
        try:
            (self._marks / name).touch(exist_ok=False)
        except FileExistsError:
            return
        raise ValueError(f"fails in {name}")


class Verify(Operator):
    """Leaves a mark if the rows of a lane are not in order, or one comes again."""

    output_schema = "id long, ts timestamp"

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def initialize_state(self, state: StateStore) -> None:
        self._last = state.keyed_state("last", pa.int64(), -1)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        lanes = pc.unique(batch["lane"])
        for lane, last in zip(lanes.to_pylist(), self._last.get(lanes).to_pylist(), strict=True):
            ids = batch.filter(pc.equal(batch["lane"], lane))["id"].to_pylist()
            if [last, *ids] != sorted({last, *ids}):
                (self._marks / "disorder").write_text(f"lane {lane}: {ids} after {last}")
            self._last.put(pa.array([lane]), pa.array([ids[-1]]))
        return [batch.select(["id", "ts"])]


def longs_job(place: Place, marks: Path, *, parallelism: int) -> weir.Job:
    """Source -> shuffle -> failing map -> shuffle -> sink, as four queries."""

    def with_lane(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("id", "ts", f"id % {LANES} AS lane")

    job = weir.Job("longs")
    longs = job.source("longs", numbers(place), bounded=True).transform("lanes", with_lane)
    mapping = FailingMap(marks, place.rows().total())
    stream = longs.process("shift", Shift(), key_by="lane", parallelism=parallelism)
    stream = stream.process("map", mapping, key_by="lane", parallelism=parallelism)
    stream = stream.start_new_chain()
    stream = stream.process("verify", Verify(marks), key_by="lane", parallelism=parallelism)
    stream = stream.start_new_chain()
    stream.sink("sink", weir.sinks.Files(str(place.directory / "out" / "longs")))
    return job


@pytest.mark.parametrize(
    ("parallelism", "unaligned"),
    [
        pytest.param(1, False, id="1 subtask, aligned", marks=pytest.mark.slow),
        pytest.param(1, True, id="1 subtask, unaligned", marks=pytest.mark.slow),
        pytest.param(3, False, id="3 subtasks, aligned", marks=pytest.mark.slow),
        pytest.param(3, True, id="3 subtasks, unaligned", marks=pytest.mark.slow),
    ],
)
def test_failures_in_the_middle_of_a_graph_lose_double_and_reorder_nothing(
    place: Place, parallelism: int, *, unaligned: bool
) -> None:
    """Lost 0, doubled 0, out of order 0, after failures of the map, a snapshot and a close."""
    place.land(FILES)
    marks = place.directory / "marks"
    marks.mkdir()
    changes = {
        **RESTARTED,
        "restart-strategy.fixed-delay.attempts": "20",
        "execution.checkpointing.unaligned.enabled": str(unaligned).lower(),
        "execution.checkpointing.tolerable-failed-checkpoints": "1",
    }
    job = longs_job(place, marks, parallelism=parallelism)
    with LiveJob(job, settings(place, changes, interval="200ms")) as live:
        assert live.result().status is JobStatus.FINISHED, live.notes
    failed = sorted(mark.name for mark in marks.iterdir())
    assert failed == ["close", "map-1", "map-2", "recovery", "snapshot"]
    assert_same(files_rows(place.directory / "out" / "longs"), place.rows(), "the longs")
