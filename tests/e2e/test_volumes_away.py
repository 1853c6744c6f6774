"""The volume of the checkpoints or the tables is unmounted for a while under a running job."""

from __future__ import annotations

import time

import pytest
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, delta_rows
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

AWAY_S = 3.0
PATIENT = {
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "100ms",
    "restart-strategy.exponential-delay.max-backoff": "500ms",
}


@pytest.mark.parametrize("volume", ["checkpoints", pytest.param("out", marks=pytest.mark.slow)])
def test_a_volume_that_is_away_for_a_while_costs_no_row(place: Place, volume: str) -> None:
    """Nothing is created in its place, which a mount would hide; once it is back, the job goes on
    (P17, P21)."""
    job = weir.Job("copies")
    read = job.source("numbers", numbers(place))
    read.sink("raw", weir.sinks.DeltaTable(str(place.directory / "out" / "raw")))
    read.sink("raw_files", weir.sinks.Files(str(place.directory / "out" / "raw_files")))
    place.land(3)
    there, away = place.directory / volume, place.directory / "away"
    with LiveJob(job, settings(place, PATIENT, interval="200ms")) as live:
        live.wait_for_records(3 * ROWS_PER_FILE)
        wait_until(
            lambda: live.gateway.view().checkpoints.counts.completed > 1, "checkpoints complete"
        )
        # Of a commit that is under way, delta-rs may write a file where the table was.
        wait_until(
            lambda: (
                sum(one.records_committed for one in live.gateway.view().vertices)
                == 2 * 3 * ROWS_PER_FILE
            ),
            "both sinks have committed",
        )
        there.rename(away)
        place.land(2)
        time.sleep(AWAY_S)
        made = sorted(there.rglob("*"))
        assert made == []
        away.rename(there)
        wait_until(lambda: live.gateway.view().status is JobStatus.RUNNING, "the job runs")
        wait_until(
            lambda: delta_rows(place.directory / "out" / "raw") == place.rows(), "all is committed"
        )
        live.gateway.stop_with_savepoint(None).result()
    place.assert_copies_exact()
