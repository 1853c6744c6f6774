"""Flink's job of unique increasing longs: three queries with failures at 1/4, 1/2 and 3/4.

A source of unique longs, a shuffle, a map that fails, another shuffle, a sink that is verified. The
map fails at a quarter of the input and twice at three quarters, the second time right after the
recovery; a snapshot fails at half. Nothing may be lost or doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.e2e.live_job import RESTARTED, LiveJob, WatchedFiles, numbers, settings
from tests.e2e.support import Place, assert_same, files_rows

import weir
from weir.core.checkpoints.stats import CheckpointStats
from weir.core.status import JobStatus

pytestmark = pytest.mark.spark

FILES = 16


def failing_map(
    marks: Path, fails: dict[int, int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pass every row on; raise ``fails`` times at an id and leave a mark each time.

    An id with 0 failures only leaves the mark ``half``: half of the input has been reached.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in fails.keys() & set(batch.column("id").to_pylist()):
                failed = len(list(marks.glob(f"{one}-*")))
                if fails[one] == 0:
                    (marks / "half").touch()
                elif failed < fails[one]:
                    (marks / f"{one}-{failed}").touch()
                    raise ValueError(f"failure {failed + 1} at {one}")
            yield batch

    return run


def longs_job(place: Place, marks: Path, rows: int) -> weir.Job:
    """Source -> shuffle -> failing map -> shuffle -> sink, as three queries."""
    fails = {rows // 4: 1, rows // 2: 0, rows * 3 // 4: 2}

    def fail_the_snapshot_once() -> None:
        mark = marks / "snapshot"
        if (marks / "half").exists() and not mark.exists():
            mark.touch()
            raise OSError("the snapshot fails")

    def mapped(frame: DataFrame) -> DataFrame:
        return frame.repartition(2).mapInArrow(failing_map(marks, fails), "id long, ts timestamp")

    job = weir.Job("longs")
    read = job.source("longs", numbers(place), bounded=True)
    mapping = read.transform("mapped", mapped).start_new_chain()
    verified = mapping.transform(
        "verified", lambda frame: frame.repartition(2, "id")
    ).start_new_chain()
    verified.sink(
        "sink", WatchedFiles(place.directory / "out" / "longs", flush=fail_the_snapshot_once)
    )
    return job


@pytest.mark.slow
def test_failures_in_the_middle_of_a_graph_lose_and_double_nothing(
    place: Place, spark: SparkSession
) -> None:
    """Lost 0, duplicated 0, after three failures of the map and one of a snapshot."""
    del spark
    place.land(FILES)
    rows = place.rows().total()
    marks = place.directory / "marks"
    marks.mkdir()
    conf = settings(
        place, {**RESTARTED, "restart-strategy.fixed-delay.attempts": "20"}, interval="200ms"
    )
    with LiveJob(longs_job(place, marks, rows), conf) as live:
        assert live.result().status is JobStatus.FINISHED, live.notes
    assert sorted(mark.name for mark in marks.iterdir()) == sorted(
        [f"{rows // 4}-0", f"{rows * 3 // 4}-0", f"{rows * 3 // 4}-1", "half", "snapshot"]
    )
    failed: list[CheckpointStats] = live.history("FAILED")
    assert failed, "the failed snapshot is in no history"
    assert_same(files_rows(place.directory / "out" / "longs"), place.rows(), "the longs")
