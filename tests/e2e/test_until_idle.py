"""Runs that read what is there and go on next time: ``--until-idle``, and ``available_now``.

A scheduler runs the same command again and again. Each run reads what has come since the last, ends
with exit code 0, and leaves windows open; a run that is killed is made good by the next.
"""

from __future__ import annotations

import signal

import pytest
from tests.kit.place import Place, Rows, assert_same, delta_rows, files_rows
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

UNBOUNDED = {"NUMBERS": "unbounded"}


def assert_rests_exactly(place: Place) -> None:
    """Every row is there once, and every window that the watermark has passed."""
    place.assert_copies_exact()
    shown = files_rows(place.directory / "out" / "minutes")
    assert_same(shown, place.closed_minutes(), "the minutes that have closed")


@pytest.mark.kill
def test_runs_of_a_scheduler_are_exact_through_kills_and_a_drain(place: Place) -> None:
    """Five runs with new files between them, two of which die at the worst moments: every row is
    there once after each, windows close as in one long run, and a drain ends them all."""
    place.land(4)
    first = place.finish("--until-idle", environment=UNBOUNDED)
    assert "run the same command again to go on" in first.output + first.errors
    assert_rests_exactly(place)

    place.land(3)
    place.die_at("between-two-sinks", 1, "--until-idle", environment=UNBOUNDED)
    place.land(2)
    place.finish("--until-idle", environment=UNBOUNDED)
    assert_rests_exactly(place)

    place.land(3)
    place.die_at("before-the-record", 1, "--until-idle", environment=UNBOUNDED)
    place.finish("--until-idle", environment=UNBOUNDED)
    assert_rests_exactly(place)
    # Nothing has come: nothing changes, and the run ends all the same.
    place.finish("--until-idle", environment=UNBOUNDED)
    assert_rests_exactly(place)

    place.land(1)
    last = place.finish("--until-idle", "--drain", environment=UNBOUNDED)
    assert "was drained and has finished" in last.output + last.errors
    place.assert_exact()
    again = place.finish("--until-idle", environment=UNBOUNDED)
    assert "has already finished" in again.output + again.errors


FILES = """
import weir

files = weir.sources.FileSource("in", format="parquet", schema="id long, ts timestamp")
job = weir.Job("files")
rows = job.source("rows", files, available_now=True, parallelism=2)
rows.sink("often", weir.sinks.DeltaTable("often"))
rows.sink("seldom", weir.sinks.Files("seldom"), min_commit_interval="1 h")
"""


def test_a_file_source_reads_what_its_listing_finds_in_each_run(place: Place) -> None:
    """Also the first run, which finds nothing; a sink that commits seldom commits at the end."""
    pipeline = place.write("files.py", FILES)
    (place.directory / "in").mkdir()
    for files in (0, 2, 0, 3):
        place.land(files)
        place.finish(pipeline=pipeline)
        assert_same(delta_rows(place.directory / "often"), place.rows(), "the Delta table")
        assert_same(files_rows(place.directory / "seldom"), place.rows(), "the files")


OPERATORS = """
import pyarrow as pa

import weir
from weir.operators import Operator


class Held(Operator):
    \"\"\"Emits rows right before a barrier, and a processing-time timer's row on time.\"\"\"

    def initialize_state(self, state):
        self.held = state.list_state("held")

    def process_batch(self, batch):
        self.held.update([*self.held.get(), *batch.column("id").to_pylist()])
        return []

    def prepare_snapshot_pre_barrier(self, checkpoint_id):
        ids = self.held.get()
        self.held.update([])
        return [pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})] if ids else []


Held.output_schema = "id long"


def numbers(spark):
    return spark.readStream.schema("id long, ts timestamp").parquet("in").select("id")


job = weir.Job("held")
held = job.source("rows", numbers).process("held", Held(), parallelism=2)
held.sink("out", weir.sinks.DeltaTable("out"))
"""


def test_operators_that_emit_before_a_barrier_do_so_after_spark_has_read_everything(
    place: Place,
) -> None:
    """The query has ended by itself, and is started again for the batch before the barrier."""
    pipeline = place.write("held.py", OPERATORS)
    for files in (2, 1):
        place.land(files)
        place.finish("--until-idle", pipeline=pipeline)
        expected = Rows({(number,): 1 for number, _ in place.rows()})
        assert_same(delta_rows(place.directory / "out"), expected, "the table")


@pytest.mark.kill
def test_a_unit_file_with_the_latest_savepoint_survives_stops_and_crashes(place: Place) -> None:
    """One command for every start: without a savepoint, from it, and past it."""
    command = ("--from-savepoint", "latest")
    raw = place.directory / "out" / "raw"

    def runs(*, stops: bool) -> None:
        run = place.start(*command, environment=UNBOUNDED)
        wait_until(lambda: delta_rows(raw) == place.rows(), "the rows")
        if stops:
            assert place.weir("stop", "numbers").returncode == 0
            assert run.wait() == 0, run.story()
        else:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait()

    for stops in (True, False, False, True):
        place.land(1)
        runs(stops=stops)
    place.finish(*command, "--until-idle", "--drain", environment=UNBOUNDED)
    place.assert_exact()


LATE_WATERMARK = """
import weir
from pyspark.sql import functions as F

def by_minute(df):
    windows = df.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"))
    return windows.agg(F.count("*").alias("n")).select(F.col("window.start").alias("start"), "n")

job = weir.Job("numbers")
numbers = job.source(
    "numbers", lambda spark: spark.readStream.schema("id long, ts timestamp").parquet("in")
)
numbers.sink("raw", weir.sinks.DeltaTable("out/raw"))
numbers.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files("out/minutes"))
"""


def test_windows_close_in_the_run_that_passes_them_whatever_step_has_the_watermark(
    place: Place,
) -> None:
    """A watermark of a step behind a channel moves with the last rows, too."""
    pipeline = place.write("late.py", LATE_WATERMARK)
    for files in (3, 2):
        place.land(files)
        place.finish("--until-idle", pipeline=pipeline)
        shown = files_rows(place.directory / "out" / "minutes")
        assert_same(shown, place.closed_minutes(), "the minutes that have closed")
