"""Aggregates without a watermark: each batch emits what changed (``output_mode="update"``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from tests.kit.live_job import RESTARTED, LiveJob, RaiseOnce, numbers, settings
from tests.kit.place import Place

import weir
from weir.core.status import JobStatus
from weir.sinks import Batch, DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

KEYS = 7


class FailingTable(DeltaTable):
    """Calls a function of the test before a batch is staged."""

    def __init__(self, path: Path, before: Callable[[], None], **given: Any) -> None:
        super().__init__(str(path), **given)
        self._before = before

    def stage(self, frame: DataFrame, batch: Batch) -> dict[str, Any] | None:
        if batch.batch_id == 4:
            self._before()
        return super().stage(frame, batch)


def doubled() -> weir.operators.Operator:
    """An operator that passes updates on, twice as large; workers cannot import this module."""

    class Doubled(weir.operators.Operator):
        output_schema = "key long, total long"

        def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            totals = [2 * total for total in batch.column("total").to_pylist()]
            return [pa.RecordBatch.from_pydict({"key": batch.column("key"), "total": totals})]

    return Doubled()


def per_key(frame: DataFrame) -> DataFrame:
    return (
        frame.selectExpr(f"id % {KEYS} AS key", "id")
        .groupBy("key")
        .agg({"id": "sum"})
        .toDF("key", "total")
    )


def totals(path: Path) -> dict[int, int]:
    """The table's rows; fails if a key is there twice."""
    rows = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    found = {row["key"]: row["total"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_newest_row_of_each_key_is_in_the_table_over_a_failure_and_behind_channels(
    place: Place,
) -> None:
    """Compared with sums over the input. A filter and a Python operator read the updates too."""
    place.land(8)
    out = place.directory / "out"
    job = weir.Job("totals")
    summed = job.source("numbers", numbers(place), bounded=True).transform(
        "summed", per_key, output_mode="update"
    )
    fails_once = RaiseOnce(OSError("the disk is away"))
    summed.sink("all", FailingTable(out / "all", fails_once, mode="upsert", key=["key"]))
    summed.transform("few", lambda frame: frame.where("key < 3")).sink(
        "few_rows", DeltaTable(str(out / "few"), mode="upsert", key=["key"])
    )
    summed.process("doubled", doubled()).sink("changes", weir.sinks.Files(str(out / "changes")))
    conf = settings(place, {**RESTARTED}, interval="200ms")
    with LiveJob(job, conf) as live:
        assert live.result().status is JobStatus.FINISHED
        assert live.gateway.view().attempt == 2
    expected: dict[int, int] = {}
    for number, _ in place.rows():
        expected[number % KEYS] = expected.get(number % KEYS, 0) + number
    assert totals(out / "all") == expected
    assert totals(out / "few") == {key: total for key, total in expected.items() if key < 3}
    changes = pa.dataset.dataset(str(out / "changes"), exclude_invalid_files=False).to_table()
    assert changes.num_rows > KEYS
    newest: dict[int, int] = {}
    for row in changes.to_pylist():
        newest[row["key"]] = max(row["total"], newest.get(row["key"], 0))
    assert newest == {key: 2 * total for key, total in expected.items()}


def test_a_stateful_step_that_reads_updates_is_refused(place: Place) -> None:
    """It would count each change of a row as a new row."""
    place.land(1)
    job = weir.Job("totals")
    summed = job.source("numbers", numbers(place)).transform(
        "summed", per_key, output_mode="update"
    )
    table = DeltaTable(str(place.directory / "out"), mode="upsert", key=["key"])
    summed.transform("again", lambda frame: frame.groupBy("key").count()).start_new_chain().sink(
        "out", table
    )
    with LiveJob(job, settings(place)) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    assert "'again' keeps state in Spark (Aggregate) and reads updates" in str(result.failure)


def test_an_aggregation_without_a_watermark_says_what_to_do(place: Place) -> None:
    """Spark names its output modes only."""
    place.land(1)
    job = weir.Job("totals")
    job.source("numbers", numbers(place)).transform("summed", per_key).sink(
        "out", weir.sinks.Files(str(place.directory / "out"))
    )
    with LiveJob(job, settings(place)) as live:
        failure = str(live.result().failure)
    assert "withWatermark" in failure and "output_mode='update'" in failure
