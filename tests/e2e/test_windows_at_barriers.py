"""A checkpoint has the windows that watermarks before its barrier close, on real Spark (P25)."""

from __future__ import annotations

import pytest
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.numbers_pipeline import by_minute, timed
from tests.kit.place import ROWS_PER_FILE, Place, Rows, files_rows
from tests.kit.waiting import wait_until

import weir

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]


def test_a_window_that_the_last_rows_close_is_visible_with_the_next_checkpoint(
    place: Place,
) -> None:
    """Spark closes it a batch later; the barrier arrives in between. The sink commits after the
    checkpoint is complete, and no later checkpoint can bring the row."""
    place.land(4)  # the fourth file closes the first minute
    job = weir.Job("minutes")
    copied = job.source("numbers", numbers(place)).transform("timed", timed)
    counted = copied.transform("by_minute", by_minute).start_new_chain()
    counted.sink("minutes", weir.sinks.Files(str(place.directory / "minutes")))
    with LiveJob(job, settings(place)) as live:
        read = 4 * ROWS_PER_FILE
        live.wait_for(lambda view: view.vertices[0].records_in >= read, "all numbers are read")
        live.checkpoint()
        first = Rows(sorted(place.minutes())[:1])
        minutes = place.directory / "minutes"
        wait_until(lambda: files_rows(minutes) == first, "the closed window is visible")
        live.cancel()
