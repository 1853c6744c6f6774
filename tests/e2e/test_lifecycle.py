"""The commands on a live job.

Stop and resume, savepoint and restore elsewhere, cancel, finish and start over.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.e2e.test_killed_stop import dies_of_a_stop
from tests.kit.place import (
    Place,
    Run,
    assert_same,
    delta_rows,
    error_line,
    files_rows,
)
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.spark

UNBOUNDED = {"NUMBERS": "unbounded"}


def wait_for_copies(place: Place) -> None:
    """Wait until a checkpoint has committed every row that has landed."""
    wait_until(
        lambda: delta_rows(place.directory / "out" / "raw").total() == place.rows().total(),
        "every row is committed",
    )


def said(place: Place, run: Run, *arguments: str) -> str:
    """The output of a successful command on a live job."""
    done = place.weir(*arguments, "--address", run.address)
    assert done.returncode == 0, done.stderr + run.story()
    return done.stdout


@pytest.mark.slow
@pytest.mark.kill
def test_a_job_whose_driver_died_in_a_stop_goes_on_by_the_same_command(place: Place) -> None:
    """Every row is in the table once, and a second driver is refused while it lives; the JVM of the
    dead driver has ended without a stack trace."""
    place.land(2)
    dies_of_a_stop(place, "after-the-record", drain=False)

    resumed = place.start(environment=UNBOUNDED)
    resumed.wait_for("recovered from")
    place.runs[0].assert_no_stack_trace()
    place.land(1)
    wait_for_copies(place)
    assert f"REST server at {resumed.address}" in place.start().error()
    assert re.search(r"numbers .*RUNNING", said(place, resumed, "list"))
    assert_same(delta_rows(place.directory / "out" / "raw"), place.rows(), "the rows")


def test_a_stopped_job_goes_on_from_its_savepoint_only(place: Place) -> None:
    """The plain command is refused after a stop; the last run leaves its metrics in a file."""
    place.land(2)
    run = place.start(environment=UNBOUNDED)
    wait_for_copies(place)
    savepoint = re.search(r"Savepoint: (\S+)", said(place, run, "stop", "numbers"))
    assert savepoint is not None
    assert run.wait() == 0, run.story()
    assert f"Savepoint: {savepoint[1]}" in run.output
    refusal = place.start(environment=UNBOUNDED).error()
    assert f"--from-savepoint latest ({savepoint[1]})" in refusal

    place.land(2)
    metrics = place.directory / "last.prom"
    last = place.finish("--from-savepoint", savepoint[1], "--conf", f"weir.metrics.file={metrics}")
    assert f"recovered from savepoint {savepoint[1]}" in last.output
    assert 'status="FINISHED"} 1.0\n' in metrics.read_text()
    place.assert_exact()


@pytest.mark.slow
def test_checkpoints_on_request_and_a_savepoint_of_a_live_job(place: Place) -> None:
    """checkpoint, checkpoints, savepoint and inspect; the cancelled job's moved savepoint resumes
    in a new table."""
    place.land(4)
    run = place.start("--conf", "execution.checkpointing.interval=disabled", environment=UNBOUNDED)
    wait_until(lambda: staged_files(place) >= 4, "every file is staged")
    assert delta_rows(place.directory / "out" / "raw").total() == 0
    assert "Checkpoint 1 completed." in said(place, run, "checkpoint", "numbers")
    wait_for_copies(place)
    found = re.search(r"Path: (\S+)", said(place, run, "savepoint", "numbers", "kept"))
    assert found is not None
    savepoint = Path(found[1])
    assert savepoint.parent == place.directory / "kept"
    history = said(place, run, "checkpoints", "numbers")
    assert re.search(r"1 .*COMPLETED", history)
    assert str(savepoint) in history
    inspected = place.weir("inspect", str(savepoint), "--json")
    assert {task["vertex"] for task in json.loads(inspected.stdout)["tasks"]} == {
        "by_minute",
        "timed",
    }
    unknown = place.weir("cancel", "somebody", "--address", run.address)
    assert "'somebody'" in error_line(unknown.stdout, unknown.stderr)
    assert "CANCELED" in said(place, run, "cancel", "numbers")
    assert run.wait() == 1, run.story()
    assert "was cancelled" in run.output
    assert "--fresh" in place.start(environment=UNBOUNDED).error()

    before = place.rows()
    moved = savepoint.rename(place.directory / "moved")
    place.land(2)
    place.finish("--from-savepoint", str(moved), environment={"NUMBERS_RAW": "elsewhere"})
    old, new = place.directory / "out", place.directory / "elsewhere"
    assert_same(delta_rows(new / "raw"), place.rows() - before, "the new table")
    assert_same(
        files_rows(old / "minutes") + files_rows(new / "minutes"), place.minutes(), "the minutes"
    )


@pytest.mark.slow
def test_a_savepoint_restored_into_new_tables_has_the_rows_that_were_pending(place: Place) -> None:
    """All rows are staged and none is committed; the origin is killed, fails over and ends before
    the restore (P14)."""
    place.land(4)
    run = place.start("--conf", "execution.checkpointing.interval=disabled", environment=UNBOUNDED)
    wait_until(lambda: staged_files(place) >= 4, "every file is staged")
    found = re.search(r"Path: (\S+)", said(place, run, "savepoint", "numbers", "kept"))
    assert found is not None
    run.process.kill()
    run.wait()
    place.finish()
    place.assert_exact()
    place.finish("--from-savepoint", found[1], environment={"NUMBERS_RAW": "elsewhere"})
    place.assert_exact("elsewhere")


def staged_files(place: Place) -> int:
    """Data files of the Delta table's steps; Spark's unfinished ones are deeper."""
    return len(list((place.directory / "out" / "raw").glob("*/*/part-*.parquet")))


@pytest.mark.slow
def test_a_finished_job_is_left_alone_and_fresh_starts_over(place: Place) -> None:
    """Run again: reports that it has finished, exit code 0, nothing changes. --fresh: everything
    again."""
    place.land(2)
    place.finish()
    again = place.finish()
    assert "has already finished; nothing was run" in again.output
    place.assert_exact()
    fresh = place.finish("--fresh", environment={"NUMBERS_RAW": "again"})
    assert "recovered from" not in fresh.output
    assert_same(delta_rows(place.directory / "out" / "raw"), place.rows(), "the first table")
    place.assert_exact("again")
