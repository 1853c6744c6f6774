"""User code that never returns: the job is cancelled and its process ends, whatever hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.core.types import Payload

pytestmark = [pytest.mark.spark]

SINKS = 18
LITTLE_PATIENCE = {"task.cancellation.timeout": "1 s"}

PIPELINE = """
import threading
import weir

def hang(frame):
    print("now it hangs", flush=True)
    threading.Event().wait()

job = weir.Job("hanging")
rows = job.source("rows", lambda spark: spark.readStream.format("rate").load())
rows.transform("stuck", hang).sink("out", weir.sinks.DeltaTable("out"))
"""


class Hanging:
    """Blocks its callers until the test ends."""

    def __init__(self) -> None:
        self.come = 0
        self._gate = threading.Event()

    def __call__(self) -> None:
        self.come += 1
        self._gate.wait()

    def end(self) -> None:
        """Release all callers."""
        self._gate.set()


@pytest.fixture
def hang() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.end()


class HangingTable(weir.sinks.DeltaTable):
    """Hangs in its first commit with rows."""

    def __init__(self, path: Path, hang: Callable[[], None]) -> None:
        super().__init__(str(path))
        self._hang = hang

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        if payloads:
            self._hang()
        return super().commit(epoch, payloads)


def numbers(spark: SparkSession, place: Place) -> DataFrame:
    """The landed numbers."""
    return spark.readStream.schema("id long, ts timestamp").parquet(str(place.directory / "in"))


def cancelled(live: LiveJob) -> None:
    """Cancel the job; what hangs does so until the test ends."""
    live.gateway.cancel().result()
    assert live.result().status is JobStatus.CANCELED


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_job_is_cancelled_while_more_sinks_than_once_had_threads_hang(
    place: Place, hang: Hanging
) -> None:
    """Each query has a sink that never returns from its commit."""
    place.land(1)
    job = weir.Job("hanging")
    for number in range(SINKS):
        rows = job.source(f"rows{number}", lambda spark: numbers(spark, place))
        rows.sink(f"out{number}", HangingTable(place.directory / f"out{number}", hang))
    with LiveJob(job, settings(place, LITTLE_PATIENCE, interval="1s")) as live:
        live.wait_for(lambda _: hang.come == SINKS, "all sinks hang")
        cancelled(live)


@pytest.mark.usefixtures("spark")
def test_a_job_is_cancelled_while_the_function_of_a_source_hangs(
    place: Place, hang: Hanging
) -> None:
    """Its query never starts, and those after it wait for their turn."""
    place.land(1)

    def stuck(spark: SparkSession) -> DataFrame:
        hang()
        return numbers(spark, place)

    job = weir.Job("hanging")
    for number in range(3):
        job.source(f"rows{number}", stuck).sink(
            f"out{number}", weir.sinks.DeltaTable(str(place.directory / f"out{number}"))
        )
    with LiveJob(job, settings(place, LITTLE_PATIENCE)) as live:
        wait_until(lambda: hang.come > 0, "the function hangs")
        cancelled(live)


@pytest.mark.slow
def test_a_process_whose_pipeline_hangs_ends_when_its_job_is_cancelled(place: Place) -> None:
    """Neither the hanging thread nor Spark's JVM keeps it alive."""
    pipeline = place.write("hanging.py", PIPELINE)
    run = place.start("--conf", "task.cancellation.timeout=1s", pipeline=pipeline)
    run.wait_for("now it hangs")
    cancelled = place.weir("cancel", "hanging", "--address", run.address)
    assert cancelled.returncode == 0, cancelled.stderr
    assert run.wait(60) == 1
    run.wait_for_no_processes(30)
