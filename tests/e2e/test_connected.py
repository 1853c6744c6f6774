"""Operators over two connected streams on real Spark (MISSION B7, C, E1; PROTOCOL P25, P28)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.monitoring.views import JobView
from weir.operators import CoOperator
from weir.operators.state.keyed import KeyedState
from weir.operators.state.store import StateStore

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Matched(CoOperator):
    """Counts the numbers of a key until the key's label has come; then emits all with it.

    Fails once, with some state. At each end it emits a row, and on a watermark that it has seen.
    """

    output_schema = "what string, key long, n long"

    def __init__(self, mark: Path | None = None) -> None:
        self._mark = mark

    def initialize_state(self, state: StateStore) -> None:
        self._label = state.keyed_state("label", pa.string(), "")
        self._counted = state.keyed_state("counted", pa.int64(), 0)

    def process_batch1(self, batch: pa.RecordBatch) -> None:
        if self._mark is not None and self._mark.exists():
            self._mark.unlink()
            raise RuntimeError("fails once")
        for key in batch["key"].to_pylist():
            keys = pa.array([key])
            self._counted.put(keys, pa.array([self._counted.get(keys)[0].as_py() + 1]))

    def process_batch2(self, batch: pa.RecordBatch) -> None:
        self._label.put(batch["of"], batch["label"])

    def on_watermark(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        yield self._row("watermark", n=watermark_ms)

    def end_input_of(self, number: int) -> Iterator[pa.RecordBatch]:
        yield self._row("end", key=number)

    def finish(self) -> Iterator[pa.RecordBatch]:
        counted = dict(self._pairs(self._counted))
        for key, label in self._pairs(self._label):
            yield self._row(label, key=key, n=counted[key])

    @staticmethod
    def _pairs(state: KeyedState) -> Iterator[tuple[Any, Any]]:
        for batch in state.items():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    @staticmethod
    def _row(what: str, key: int = -1, n: int = -1) -> pa.RecordBatch:
        return pa.record_batch({"what": [what], "key": [key], "n": [n]})


def labels(place: Place) -> Callable[[SparkSession], DataFrame]:
    """A source function: labels of keys, one file per batch."""

    def read(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("of long, label string, at timestamp")
        return reader.option("maxFilesPerTrigger", 1).parquet(str(place.directory / "labels"))

    return read


def land_labels(place: Place, file: str, at: datetime, *keys: int) -> None:
    """Write a file of labels."""
    (place.directory / "labels").mkdir(exist_ok=True)
    columns: dict[str, Any] = {"of": keys, "label": [f"label {key}" for key in keys]}
    times = pa.array([at] * len(keys), pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table(columns | {"at": times}), place.directory / f"labels/{file}.parquet")


def matching(place: Place, *, bounded: tuple[bool, bool], mark: Path | None = None) -> weir.Job:
    job = weir.Job("matching")
    read = job.source("numbers", numbers(place), bounded=bounded[0])
    keyed = read.transform(
        "keyed",
        lambda frame: frame.withWatermark("ts", "0 seconds").selectExpr("ts", "id % 7 AS key"),
    )
    named = job.source("labels", labels(place), bounded=bounded[1]).transform(
        "named", lambda frame: frame.withWatermark("at", "0 seconds")
    )
    matched = keyed.connect(named).process(
        "matched", Matched(mark), key_by=("key", "of"), parallelism=2
    )
    matched.sink("out", weir.sinks.Files(str(place.directory / "out")))
    return job


def records_in(view: JobView, vertex: str) -> int:
    [found] = [one.records_in for one in view.vertices if one.vertex == vertex]
    return found


def emitted(place: Place) -> Counter[Any]:
    return files_rows(place.directory / "out")


@pytest.mark.slow
def test_two_streams_share_the_state_of_their_keys_over_a_failure(place: Place) -> None:
    """Each number is counted once, and its key finds the label that the other stream brought."""
    place.land(3)
    land_labels(place, "0", datetime(2024, 1, 1, tzinfo=UTC), 0, 1, 2)
    land_labels(place, "1", datetime(2024, 1, 1, tzinfo=UTC), 3, 4, 5, 6)
    mark = place.directory / "fails"
    job = matching(place, bounded=(False, False), mark=mark)
    with LiveJob(job, settings(place, RESTARTED, interval="300ms")) as live:
        read = 3 * ROWS_PER_FILE + 7
        live.wait_for(lambda view: records_in(view, "matched") >= read, "everything is read")
        live.checkpoint()
        mark.touch()
        place.land(1)
        live.wait_for(lambda view: view.attempt == 2, "the operator has failed")
        live.checkpoint()
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    found = {(what, key): n for what, key, n in emitted(place) if what.startswith("label")}
    counted = Counter(number % 7 for number, _ in place.rows().elements())
    assert found == {(f"label {key}", key): n for key, n in counted.items()}


@pytest.mark.slow
def test_the_end_of_one_input_is_told_while_the_other_goes_on(place: Place) -> None:
    """Each subtask hears it once, and the watermark is never beyond the input that lags (P25)."""
    place.land(2)
    lags = datetime(2000, 1, 1, tzinfo=UTC)
    land_labels(place, "0", lags, 0)
    job = matching(place, bounded=(True, False))
    with LiveJob(job, settings(place, interval="300ms")) as live:
        wait_until(lambda: ("end", 1, -1) in emitted(place), "the end of the first input")
        assert live.gateway.view().status is JobStatus.RUNNING
        assert ("end", 2, -1) not in emitted(place)
        land_labels(place, "1", lags, 1)
        watermark = ("watermark", -1, int(lags.timestamp() * 1000))
        wait_until(lambda: watermark in emitted(place), "the watermark of the second input")
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    found = emitted(place)
    assert (found["end", 1, -1], found["end", 2, -1]) == (2, 2)
    watermarks = {n for what, _, n in found if what == "watermark"}
    assert watermarks == {watermark[2], 2**63 - 1}
