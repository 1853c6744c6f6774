"""A JVM with its flight recorder on, as profilers use it: a stopped query ends as usual.

The recorder instruments the JVM's reads from files and sockets. An interrupted read then raises
exceptions that Spark does not know, so nothing may be read where a query is stopped.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.e2e.test_failing_query import failing_pipeline
from tests.kit.place import Place, Run, delta_rows
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RESTARTS = ("restart-strategy.type=fixed-delay", "restart-strategy.fixed-delay.delay=100ms")


def recorded(place: Place, pipeline: Path, *arguments: str, unbounded: bool = True) -> Run:
    """Start the job in a JVM that records."""
    recording = (
        f"-XX:StartFlightRecording=settings=profile,filename={place.directory}/recording.jfr"
    )
    confs = (f"spark.driver.extraJavaOptions={recording}", *RESTARTS)
    words = (word for one in confs for word in ("--conf", one))
    environment = {"NUMBERS": "unbounded"} if unbounded else {}
    return place.start(*words, *arguments, pipeline=pipeline, environment=environment)


def failed_tasks(run: Run) -> list[str]:
    """The task of each failure, in order."""
    return re.findall(r"^FAILING: Task '(\w+)' failed", run.output, re.MULTILINE)


def test_a_recorded_job_fails_over_stops_continues_and_drains(place: Place) -> None:
    """The pipeline makes one failure; a stop and a drain add none, and every sink is exact."""
    place.land(9)
    pipeline = failing_pipeline(place, once=True)
    run = recorded(place, pipeline)
    wait_until(
        lambda: delta_rows(place.directory / "out" / "raw").total() == place.rows().total(),
        "all is there",
    )
    stopped = place.weir("stop", "numbers", "--address", run.address)
    savepoint = re.search(r"Savepoint: (\S+)", stopped.stdout)
    assert savepoint is not None, stopped.stderr + run.story()
    assert run.wait() == 0, run.story()
    assert failed_tasks(run) == ["picky"], run.story()

    resumed = recorded(place, pipeline, "--from-savepoint", savepoint[1])
    resumed.wait_for(r"checkpoint \d+ completed")
    drained = place.weir("stop", "numbers", "--drain", "--address", resumed.address)
    assert "Savepoint: " in drained.stdout, drained.stderr + resumed.story()
    assert resumed.wait() == 0, resumed.story()
    assert failed_tasks(resumed) == [], resumed.story()
    assert (place.directory / "recording.jfr").exists(), "nothing was recorded"
    place.assert_exact()
