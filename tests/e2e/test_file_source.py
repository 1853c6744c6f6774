"""``FileSource`` on real Spark: a split enumerator and readers that request splits.

MISSION C; PROTOCOL P41.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType, TimestampType
from tests.kit.live_job import (
    RESTARTED,
    Gate,
    LiveJob,
    WatchedFiles,
    raw_rows,
    settings,
    wait_until_copied,
)
from tests.kit.place import ROWS_PER_FILE, Place, files_rows
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.operators import Operator
from weir.rest.client import JobClient, connect

pytestmark = pytest.mark.spark

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class FailsOnce(Operator):
    """Passes rows on, but fails at the first batch once the mark's directory exists."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if self._mark.exists():
            self._mark.rmdir()
            raise RuntimeError("fails once")
        return [batch]


def files_source(place: Place, **options: object) -> weir.sources.FileSource:
    """The place's numbers in small batches."""
    given = {"discovery_interval": 0.2, "max_bytes_per_split_batch": 1, **options}
    return weir.sources.FileSource(
        str(place.directory / "in"),
        format="parquet",
        schema=StructType([StructField("id", LongType()), StructField("ts", TimestampType())]),
        **given,  # type: ignore[arg-type]
    )


def files_job(place: Place, *, parallelism: int = 2, **options: object) -> weir.Job:
    """The numbers through a Python operator into ``out/raw``."""
    job = weir.Job("files")
    stream = job.source("in", files_source(place, **options), parallelism=parallelism)
    stream = stream.process("fails", FailsOnce(place.directory / "mark"), parallelism=1)
    stream.sink("raw", weir.sinks.Files(str(place.directory / "out" / "raw")))
    return job


def rejects(client: JobClient) -> Payload:
    """The source's report of files that it could not read."""
    answer = client.send("in", {"rejects": True})
    assert answer is not None
    return answer


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_drain_says_how_many_files_it_has_not_read(place: Place) -> None:
    """Those that no reader has, and those on their way to one: all but the one of the batch in
    which the drain was asked for."""
    place.land(5)
    job, gate = weir.Job("files"), Gate(1)
    held = WatchedFiles(place.directory / "out" / "raw", stage=gate)
    job.source("in", files_source(place), parallelism=1).sink("raw", held)
    with LiveJob(job, settings(place)) as live, gate:
        live.wait_until_it_runs()
        drained = live.gateway.stop_with_savepoint(None, drain=True)
        gate.open()
        drained.result(PATIENCE_S)
        assert live.result().drained
        said = [note for note in live.notes if note.startswith("not read")]
    left = 5 - raw_rows(place).total() // ROWS_PER_FILE
    assert left > 0
    assert said == [
        f"not read to the end: {left} splits of source in (FileSource at {place.directory / 'in'})"
    ]


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_bounded_job_emits_its_input_and_finishes(place: Place) -> None:
    """Each reader ends separately, and then the task's records; the rows read are counted."""
    place.land(5)
    with LiveJob(files_job(place, bounded=True), settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
        assert live.gateway.view().vertices[0].records_in == place.rows().total()
    assert raw_rows(place) == place.rows()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_files_that_come_while_a_job_fails_and_is_restored_are_read_once(place: Place) -> None:
    """Also by another driver with other readers that starts from a savepoint."""
    conf = settings(place, RESTARTED, interval="300ms")
    place.land(3)
    with LiveJob(files_job(place), conf) as live:
        wait_until_copied(place)
        (place.directory / "mark").mkdir()
        place.land(4)
        wait_until(lambda: bool(live.restored_ids), "the job is restored")
        place.land(1)
        wait_until_copied(place)
        place.land(2)
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
    with LiveJob(files_job(place, parallelism=1), conf, from_savepoint=savepoint) as live:
        place.land(2)
        wait_until_copied(place)
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    assert raw_rows(place) == place.rows()


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_files_that_come_while_drivers_are_killed_are_read_once(place: Place, seed: int) -> None:
    """Each driver dies at a different moment, between discovering, reading and committing new
    files."""
    drawn, pipeline = random.Random(seed), Path(__file__).with_name("files_pipeline.py")
    for _ in range(4):
        place.land(1)
        run = place.start(pipeline=pipeline)
        run.wait_for(r"checkpoint \d+ completed")
        for _ in range(drawn.randrange(2, 9)):
            place.land(1)
            time.sleep(drawn.uniform(0, 0.6))
        run.end()
    last = place.start(pipeline=pipeline)
    wait_until_copied(place)
    assert place.weir("stop", "--drain", "files", "-m", last.address).returncode == 0
    assert "recovered from checkpoint" in last.output
    assert raw_rows(place) == place.rows()


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_file_that_cannot_be_read_fails_the_job_by_name(place: Place) -> None:
    """Unless configured otherwise."""
    place.land(1)
    (place.directory / "in" / "broken").write_text("broken")
    with LiveJob(files_job(place, bounded=True), settings(place)) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    assert f"The file {place.directory}/in/broken cannot be read (ArrowInvalid: " in (
        result.failure or ""
    )


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_file_that_cannot_be_read_goes_to_the_rejects(place: Place) -> None:
    """If configured: all others are read, and the rejects can be queried, also after a restart."""
    conf = settings(place, RESTARTED, interval="300ms")
    place.land(1)
    (place.directory / "in" / "broken").write_text("broken")
    for _ in range(2):
        with LiveJob(files_job(place, on_error="reject"), conf) as live:
            place.land(1)
            wait_until_copied(place)
            with connect(live.job_id, live.address) as client:
                wait_until(lambda: rejects(client)["rejected"] > 0, "the file is rejected")
                answer = rejects(client)
        assert answer["rejected"] == 1
        assert [one["file"] for one in answer["rejects"]] == ["broken"]
        assert "ArrowInvalid" in answer["rejects"][0]["why"]
    assert raw_rows(place) == place.rows()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_two_file_sources_meet_and_the_job_ends_with_both(place: Place) -> None:
    """Each has a separate query; rows of both arrive."""
    place.land(2)
    job = weir.Job("two")
    one = job.source("one", files_source(place, bounded=True), parallelism=1)
    two = job.source("two", files_source(place, bounded=True), parallelism=2)
    one.union(two).sink("both", weir.sinks.Files(str(place.directory / "out" / "both")))
    with LiveJob(job, settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
    assert files_rows(place.directory / "out" / "both") == place.rows() + place.rows()
