"""A source without rows holds back no union of chains on real Spark, if the user says so (P25)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kit.live_job import LiveJob, settings
from tests.kit.numbers_pipeline import by_minute
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import PATIENCE_S

import weir
from weir.demo.landing import write_atomically

pytestmark = pytest.mark.spark

SCHEMA = "id long, ts timestamp"
IDLE_MS = 500


def read_by_weir(job: weir.Job, directory: Path) -> weir.Stream:
    """Both are queries of their own: readers share none. Each batch reads a file, since one that
    reads several is as far as the slowest."""
    files = weir.sources.FileSource(
        str(directory),
        format="parquet",
        schema=SCHEMA,
        discovery_interval=0.2,
        max_bytes_per_split_batch=1,
    )
    watermarks = weir.sources.Watermarks(column="ts", idle_after_ms=IDLE_MS)
    return job.source(directory.name, files, parallelism=1, watermarks=watermarks)


def read_by_spark(job: weir.Job, directory: Path) -> weir.Stream:
    """The union begins a chain, so each source has a query of its own."""
    return job.source(
        directory.name,
        lambda spark: (
            spark.readStream.schema(SCHEMA).parquet(str(directory)).withWatermark("ts", "0 seconds")
        ),
        idle_after_ms=IDLE_MS,
    )


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("read", [read_by_weir, read_by_spark])
def test_windows_over_a_union_close_while_one_source_has_no_rows(
    place: Place, read: Callable[[weir.Job, Path], weir.Stream]
) -> None:
    """When it comes back, its rows count; in the end every row does."""
    quiet = place.directory / "quiet"
    quiet.mkdir()
    place.land(4)
    job = weir.Job("union")
    both = read(job, place.directory / "in").union(read(job, quiet)).start_new_chain()
    minutes = place.directory / "out" / "minutes"
    both.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files(str(minutes)))
    complete = Rows(sorted(place.minutes().elements())[:1])
    with LiveJob(job, settings(place, interval="200ms")) as live:
        live.wait_for(lambda _: files_rows(minutes) == complete, "a minute is complete")
        last = max(place.minutes())[0]
        table = pa.table({"id": [1_000], "ts": pa.array([last], pa.timestamp("us", tz="UTC"))})
        write_atomically(table, quiet / "late.parquet", mtime_s=1_800_000_000)
        live.wait_for(
            lambda view: any(v.vertex == "quiet" and v.records_in for v in view.vertices),
            "the late row is read",
        )
        live.checkpoint()
        live.gateway.stop_with_savepoint(None, drain=True).result(PATIENCE_S)
        live.result()
    expected = Rows({(start, n + (start == last)): 1 for start, n in place.minutes()})
    assert_same(files_rows(minutes), expected, "the minutes")
