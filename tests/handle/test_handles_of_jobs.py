"""``Job.start`` with Spark, in the tests' session: rows, resumption, and what is left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import assert_copied, numbers_job, settings, wait_until_copied
from tests.kit.place import Place
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus

pytestmark = pytest.mark.spark


def started(place: Place) -> weir.JobHandle:
    """The place's numbers, as a cell of a notebook starts them: with a new job of the same name."""
    return numbers_job(place, bounded=False).start(conf=settings(place, interval="200ms"))


def ports() -> set[int]:
    """The ports on which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


def threads() -> set[threading.Thread]:
    """This process's threads, but for one that belongs to the JVM."""
    return {one for one in threading.enumerate() if one.name != "weir-jvm-errors"}


def rows_in(handle: weir.JobHandle) -> int:
    """How many rows the query of the copy has read."""
    progress = handle.progress()
    assert progress is not None
    return progress.of("raw").rows_in


def test_a_job_that_is_started_again_goes_on_and_has_each_row_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the same id; the handle answers from the job's own figures; the session stays."""
    place = Place(tmp_path)
    place.land(2)
    first = started(place)
    wait_until_copied(place)
    place.land(2)
    second = started(place)
    assert (first.status, first.job_id) == (JobStatus.SUSPENDED, second.job_id)
    wait_until_copied(place)
    said = capsys.readouterr().err
    assert "Job 'numbers' still runs in this process: suspending it first\n" in said
    assert "recovered from checkpoint " in said
    number = second.checkpoint()
    progress = second.progress()
    assert progress is not None and progress.checkpoint is not None
    assert progress.checkpoint >= number
    # Counters are read at most once a second.
    wait_until(lambda: rows_in(second) == 80, "its rows are counted")
    assert Path(second.savepoint(str(tmp_path / "here"))).parent == tmp_path / "here"
    result = second.stop(drain=True)
    assert (result.status, result.drained) == (JobStatus.FINISHED, True)
    assert_copied(place)
    assert spark.range(3).count() == 3


def test_a_job_leaves_no_thread_no_port_and_no_lease(spark: SparkSession, tmp_path: Path) -> None:
    """What PySpark itself keeps is there before: the first job of the process has made it."""
    place = Place(tmp_path)
    place.land(1)
    with started(place):
        wait_until_copied(place)
    wait_until(lambda: not [one for one in threads() if one.name.startswith("weir-")], "the end")
    threads_before, ports_before = threads(), ports()
    with started(place) as handle:
        wait_until(
            lambda: (found := handle.progress()) is not None and found.checkpoint is not None,
            "a checkpoint",
        )
        assert threads() > threads_before
        assert len(ports() - ports_before) == 1
    assert handle.status is JobStatus.SUSPENDED
    assert not list(tmp_path.glob("checkpoints/*/lease"))
    assert ports() == ports_before
    # One may be that of Java's finalizer, which calls Python when it likes.
    wait_until(lambda: len(threads() - threads_before) <= 1, "no thread is left")
    assert not [one for one in threads() - threads_before if one.name.startswith("weir-")]
