"""SIGKILL at every step of a stop with savepoint: the job is resumable or finished, and exact.

A driver is asked to stop, with or without drain, and dies exactly at the named step
(``killing_driver.py``). The plain command is run again: it resumes from the newest record, is asked
to stop again and dies at the next step, and so on. More input lands between two runs. Finally the
job runs to the end of its input, or turns out to be there already, and every sink must have exactly
its rows. A test fails if a step was never reached.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time

import httpx
import pytest
from tests.kit.place import Place, Run, delta_rows

from weir.errors import WeirError
from weir.rest.client import connect

pytestmark = [pytest.mark.spark, pytest.mark.kill]

UNBOUNDED = {"NUMBERS": "unbounded"}
#: So that the stop's savepoint is the first snapshot of the rows read in a run.
NO_CHECKPOINTS = ("--conf", "execution.checkpointing.interval=disabled")

_POLL_S = 0.5

#: Steps after which the stop is not durable: the job goes on as if it had not been requested.
BEFORE_THE_RECORD = (
    "before-the-barrier",
    "after-the-barrier",
    "after-the-synchronous-part",
    "before-the-acknowledgement",
    "before-the-metadata",
    "before-the-record",
)
#: Steps of a drain, of the two queries.
OF_A_DRAIN = ("before-the-drain", "after-the-drain")
#: Steps at which the savepoint counts: a drained job has ended.
AFTER_THE_RECORD = ("after-the-record", "between-two-sinks", "before-the-end-is-recorded")


def dies_of_a_stop(place: Place, point: str, *, nth: int = 1, drain: bool) -> None:
    """Land another file, run until everything is read, request a stop, die at the step."""
    place.land(1)
    run = place.start_until(
        f"stop/{point}", nth, *NO_CHECKPOINTS, environment=UNBOUNDED, number=signal.SIGKILL
    )
    asked = threading.Thread(target=_ask, args=(place, run, drain))
    asked.start()
    assert run.wait() == -signal.SIGKILL, run.story()
    asked.join()
    assert place.mark() == f"stop/{point}"


def _ask(place: Place, run: Run, drain: bool) -> None:
    """Request the stop once everything landed is read; the driver dies before it can answer."""
    address = run.address
    while not _is_read(place, address) and run.process.poll() is None:
        # Not more often: two cores have enough to do.
        time.sleep(_POLL_S)
    while run.process.poll() is None:
        # As ``weir stop`` does, without a separate process. Refused while the second query
        # starts: asked again.
        with contextlib.suppress(WeirError):
            connect("numbers", address).stop(drain=drain)
        time.sleep(_POLL_S)


def _is_read(place: Place, address: str) -> bool:
    """Whether every landed row is committed or was read in this run."""
    committed = delta_rows(place.directory / "out" / "raw").total()
    return committed + _rows_read(address) == place.rows().total()


def _rows_read(address: str) -> int:
    """The rows that the job's first query has read in this run; none without an answer."""
    try:
        (job,) = httpx.get(f"{address}/jobs/overview").json()["jobs"]
        path = f"{address}/jobs/{job['jid']}"
        vertex = httpx.get(path).json()["vertices"][0]
    except httpx.HTTPError:
        return 0
    return int(vertex["metrics"]["read-records"])


#: A step and whether the stop drains, one run for each: when a stop counts, and when a drained
#: savepoint does. Any others are for the test below.
LIVES = (
    ("after-the-record", False),
    ("between-two-sinks", True),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_dies_of_a_stop_leaves_a_job_that_continues_and_is_exact(
    place: Place,
) -> None:
    """One run after the other; a drained savepoint that counts ends the job."""
    place.land(2)
    for point, drain in LIVES:
        dies_of_a_stop(place, point, drain=drain)
    assert "has finished" in place.finish().output
    place.assert_exact()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_a_driver_that_dies_at_random_steps_of_stops_leaves_a_job_that_is_exact(
    place: Place, seed: int
) -> None:
    """Ten runs per seed: any step, at its first or a later passage, with and without drain."""
    draws = random.Random(seed)
    place.land(2)
    for life in range(10):
        drain = draws.random() < 0.5
        # A drain that counts makes this the last run.
        counts = AFTER_THE_RECORD if not drain or life == 9 else ()
        point = draws.choice((*BEFORE_THE_RECORD, *counts, *(OF_A_DRAIN if drain else ())))
        # Both queries pass these, one after the other.
        twice = point in ("after-the-barrier", "after-the-synchronous-part", *OF_A_DRAIN)
        nth = draws.choice((1, 2)) if twice else 1
        dies_of_a_stop(place, point, nth=nth, drain=drain)
    place.finish()
    place.assert_exact()
