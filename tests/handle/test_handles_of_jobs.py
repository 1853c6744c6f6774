"""``Job.start`` with Spark, in the tests' session: rows, resumption, and what is left behind."""

from __future__ import annotations

import threading
from collections import Counter
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


def sockets() -> Counter[tuple[str, int]]:
    """This process's TCP sockets: ports that listen, and how many connections there are to each."""
    found = psutil.Process().net_connections("tcp")
    return Counter(
        (one.status, one.laddr.port if one.status == "LISTEN" else 0)
        for one in found
        if one.status in ("LISTEN", "ESTABLISHED")
    )


def own_threads() -> list[threading.Thread]:
    """The threads that Weir has started, but for the one that belongs to the JVM."""
    names = (one for one in threading.enumerate() if one.name != "weir-jvm-errors")
    return [one for one in names if one.name.startswith("weir-")]


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
    assert progress.of("raw").rows_in >= 80
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
    wait_until(lambda: not own_threads(), "no thread is left")
    threads, before = set(threading.enumerate()), sockets()
    with started(place) as handle:
        wait_until(
            lambda: (found := handle.progress()) is not None and found.checkpoint is not None,
            "a checkpoint",
        )
        assert set(threading.enumerate()) > threads
    assert handle.status is JobStatus.SUSPENDED
    assert not list(tmp_path.glob("checkpoints/*/lease"))
    wait_until(lambda: set(threading.enumerate()) <= threads, "no thread is left")
    wait_until(lambda: sockets() <= before, "no socket is left")
