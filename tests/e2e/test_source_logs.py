"""The log of a file source over many restores: it has only its newest compacted entry then (PROTOCOL P3)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.e2e.live_job import RESTARTED, LiveJob, numbers_job, settings
from tests.e2e.support import ROWS_PER_FILE, Place, assert_same, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


@pytest.mark.timeout(300)
def test_a_job_that_is_restored_between_any_two_compactions_goes_on(place: Place) -> None:
    """From one compacted entry Spark may derive a distance that the log does not have, and then miss another one (P3)."""
    conf = settings(place, RESTARTED)
    # Steps after which the job is restored: between the compactions of steps 19, 29, 39 and 49.
    for files, steps in ((22, 22), (31, 53), (3, 56)):
        place.land(files)
        with LiveJob(numbers_job(place, bounded=False), conf) as live:
            live.wait_for_steps(steps)
            live.checkpoint()
    with LiveJob(numbers_job(place, bounded=False), conf) as live:
        place.land(1)
        live.wait_for_records(ROWS_PER_FILE)
        live.gateway.stop_with_savepoint(None).result(120)
    assert_same(files_rows(place.directory / "out" / "raw"), place.rows(), "the files")


def test_a_job_goes_on_with_source_logs_that_were_compacted_less_often(
    place: Place, spark: SparkSession
) -> None:
    """The setting was lowered between two runs; what was compacted with the old one is found (P3)."""
    conf = settings(place, RESTARTED)
    place.land(18)
    try:
        for interval, steps in (("12", 18), ("5", 25)):
            spark.conf.set(INTERVAL, interval)
            with LiveJob(numbers_job(place, bounded=False), conf) as live:
                live.wait_for_steps(steps)
                live.checkpoint()
            place.land(7)
        with LiveJob(numbers_job(place, bounded=False), conf) as live:
            live.wait_for_records(7 * ROWS_PER_FILE)
            live.gateway.stop_with_savepoint(None).result(120)
    finally:
        spark.conf.unset(INTERVAL)
    assert_same(files_rows(place.directory / "out" / "raw"), place.rows(), "the files")
