"""A file source's log over many restores, each with only its newest compacted entry (P3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import RESTARTED, LiveJob, numbers_job, settings
from tests.kit.place import ROWS_PER_FILE, Place, assert_same, files_rows

pytestmark = pytest.mark.spark

INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


@pytest.fixture
def compacted_every(spark: SparkSession) -> Iterator[Callable[[int], None]]:
    """Set the number of steps after which Spark compacts a new log."""
    yield lambda steps: spark.conf.set(INTERVAL, str(steps))
    spark.conf.unset(INTERVAL)


def live_until(place: Place, files: int, steps: int) -> None:
    """Land this many files, and take a checkpoint after this many steps in all."""
    place.land(files)
    with LiveJob(numbers_job(place, bounded=False), settings(place, RESTARTED)) as live:
        live.wait_for_steps(steps)
        live.checkpoint()


def assert_ends_exactly(place: Place) -> None:
    """Read one more file and check that every row is there once."""
    place.land(1)
    with LiveJob(numbers_job(place, bounded=False), settings(place, RESTARTED)) as live:
        live.wait_for_records(ROWS_PER_FILE)
        live.gateway.stop_with_savepoint(None).result()
    assert_same(files_rows(place.directory / "out" / "raw"), place.rows(), "the files")


def test_a_job_that_is_restored_between_any_two_compactions_continues(
    place: Place, compacted_every: Callable[[int], None]
) -> None:
    """From one compacted entry Spark may derive a distance that the log does not have, and miss
    another (P3)."""
    compacted_every(2)
    # From 3.compact alone it derives 4, so it would write no 5 and no 9; from 7.compact it derives
    # 2 and looks for 9.
    live_until(place, 4, steps=4)
    live_until(place, 6, steps=10)
    assert_ends_exactly(place)


@pytest.mark.slow
def test_a_job_continues_with_source_logs_that_were_compacted_less_often(
    place: Place, compacted_every: Callable[[int], None]
) -> None:
    """The setting was lowered between two runs; entries compacted with the old one are found
    (P3)."""
    compacted_every(6)
    # 5.compact to 8: with 2 Spark would look for 7.compact.
    live_until(place, 9, steps=9)
    compacted_every(2)
    live_until(place, 3, steps=12)
    assert_ends_exactly(place)
