"""Two live drivers of one job: the older one sleeps, the newer one takes over, the older one wakes.

PROTOCOL P17. The older driver is stopped by SIGSTOP with every process that it started, like on a
machine that hangs. When it continues it still believes that it runs the job, and is in the middle
of its work.
"""

from __future__ import annotations

import contextlib
import json
import re

import psutil
import pytest
from tests.kit.place import Place, Rows, Run, delta_rows, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]

#: How long the older driver may take to notice that it has been replaced.
NOTICES_S = 60.0


@pytest.mark.slow
def test_a_second_driver_is_refused_while_the_first_one_lives_and_else_takes_over(
    place: Place,
) -> None:
    """Refused with the first one's address; with --takeover it finishes, and the woken sleeper ends
    on its own."""
    place.land(4)
    # It is still at work when the second command has been refused.
    older = place.start(environment={"NUMBERS": "unbounded"})
    older.wait_for(r"checkpoint 2 completed")
    assert f"REST server at {older.address}" in place.start().error()
    assert older.process.poll() is None, older.story()
    take_over_while_it_sleeps(place, older)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-the-record", "after-the-record"])
def test_a_driver_that_slept_within_a_checkpoint_completes_and_commits_nothing(
    place: Place, point: str
) -> None:
    """It wakes right before it records a checkpoint, or between the record and commits that the
    newer one made."""
    place.land(6)
    take_over_while_it_sleeps(place, place.sleep_at(point, 3))


@pytest.mark.slow
def test_a_driver_that_slept_while_its_name_got_a_new_id_completes_and_commits_nothing(
    place: Place,
) -> None:
    """Taken over from scratch, into other tables: the woken sleeper is fenced and leaves its own
    unchanged."""
    place.land(6)
    older = place.sleep_at("before-the-record", 3)
    sleeping = put_to_sleep(older)
    (log,) = {record.parent for record in place.log_records()}
    committed = tables(place)

    newer = place.finish("--fresh", "--takeover", environment={"NUMBERS_RAW": "again"})
    assert "recovered from checkpoint" not in newer.output
    place.assert_exact("again")
    newest = max(log.iterdir())
    ended = newest.read_bytes()
    assert json.loads(ended)["status"] == "superseded"

    for process in sleeping:
        wake(process)
    assert older.wait(NOTICES_S) == 1, older.story()
    assert "has finished" not in older.output
    older.wait_for_no_processes(NOTICES_S)
    assert max(log.iterdir()) == newest
    assert newest.read_bytes() == ended
    assert tables(place) == committed
    place.assert_exact("again")


def tables(place: Place) -> list[Rows]:
    """The rows that readers of the older driver's sinks see."""
    out = place.directory / "out"
    return [delta_rows(out / "raw"), files_rows(out / "raw_files"), files_rows(out / "minutes")]


def take_over_while_it_sleeps(place: Place, older: Run) -> None:
    """Stop the older driver, let a newer one finish, wake the older one: it must change nothing."""
    sleeping = put_to_sleep(older)
    told = older.output
    recorded = {json.loads(record.read_bytes())["completed"] for record in place.log_records()}

    newer = place.finish("--takeover")
    assert "recovered from checkpoint" in newer.output
    place.assert_exact()
    newest = place.log_records()[-1]
    ended = newest.read_bytes()

    for process in sleeping:
        wake(process)
    assert older.wait(NOTICES_S) == 1, older.story()
    assert "has finished" not in older.output
    completed = re.findall(r"checkpoint (\d+) completed", older.output.removeprefix(told))
    assert {int(one) for one in completed} <= recorded, older.story()
    older.wait_for_no_processes(NOTICES_S)
    assert place.log_records()[-1] == newest
    assert newest.read_bytes() == ended
    place.assert_exact()


def put_to_sleep(run: Run) -> list[psutil.Process]:
    """Stop every process of a run, the driver first so that it starts no more.

    One that ends meanwhile is skipped.
    """
    sleeping: list[psutil.Process] = []
    while awake := [process for process in run.processes() if process not in sleeping]:
        for process in awake:
            # A Spark worker may end between the listing and the signal.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                sleeping.append(process)
    return sleeping


def wake(process: psutil.Process) -> None:
    """Let a process continue; one that died with another needs no waking."""
    try:
        process.resume()
    except psutil.NoSuchProcess:
        return
