"""Snapshots restored into other tables, or into tables that have moved on (PROTOCOL P14, P21)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import (
    ROWS_PER_FILE,
    Place,
    Rows,
    assert_same,
    delta_rows,
    files_rows,
)
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.errors import DuplicatesError

pytestmark = pytest.mark.spark


def copies(place: Place, out: str = "out") -> weir.Job:
    """The numbers, one file per batch, into a Delta table and into files."""
    job = weir.Job("copies")
    read = job.source("numbers", numbers(place))
    read.sink("table", weir.sinks.DeltaTable(str(place.directory / out / "table")))
    read.sink("files", weir.sinks.Files(str(place.directory / out / "files")))
    return job


def table(place: Place, out: str = "out") -> Rows:
    """The rows that readers of the Delta table see."""
    return delta_rows(place.directory / out / "table")


def commit(live: LiveJob, place: Place) -> None:
    """Take a checkpoint, and wait until everything landed is committed."""
    live.checkpoint()
    wait_until(lambda: table(place).total() == place.rows().total(), "the checkpoint is committed")


@pytest.fixture
def origin(place: Place, spark: SparkSession) -> LiveJob:
    """A job without periodic checkpoints that reads three files."""
    del spark
    place.land(3)
    return LiveJob(copies(place), settings(place))


@pytest.mark.parametrize(
    "stops",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["of a stop", "of a job that goes on"],
)
def test_a_savepoint_restored_into_new_tables_has_the_rows_that_were_committed_into_the_old_ones(
    place: Place, origin: LiveJob, *, stops: bool
) -> None:
    """It is self-contained: it has copies of the staged files, whose originals are in other tables
    by then (G2, P14)."""
    with origin as live:
        live.wait_for_records(3 * ROWS_PER_FILE)
        if stops:
            savepoint = live.gateway.stop_with_savepoint(None).result().external_path
        else:
            savepoint = str(live.savepoint())
            commit(live, place)
            live.cancel()
    assert_same(table(place), place.rows(), "the old table")
    place.land(1)
    with LiveJob(copies(place, "new"), settings(place), from_savepoint=savepoint) as again:
        again.wait_for_records(ROWS_PER_FILE)
        again.gateway.stop_with_savepoint(None).result()
    assert_same(table(place, "new"), place.rows(), "the new table")
    assert_same(files_rows(place.directory / "new" / "files"), place.rows(), "the new files")


def test_a_checkpoint_is_not_restored_into_new_tables_while_it_has_rows_to_commit(
    place: Place, origin: LiveJob
) -> None:
    """It has no copies of the staged files: the error says so, and no table shows a missing
    file."""
    with origin as live:
        live.wait_for_records(3 * ROWS_PER_FILE)
        checkpoint = live.checkpoint().external_path
        live.cancel()
    with LiveJob(copies(place, "new"), settings(place), from_savepoint=checkpoint) as again:
        result = again.result()
    assert result.status is JobStatus.FAILED
    assert "where they were staged" in (result.failure or "")
    assert table(place, "new") == Rows()


@pytest.mark.parametrize("accepted", [False, True], ids=["refused", "accepted"])
def test_a_savepoint_is_not_restored_into_tables_that_have_moved_on_without_it(
    place: Place, origin: LiveJob, *, accepted: bool
) -> None:
    """Rows committed since would be read again: refused unless duplicates are accepted (P21)."""
    with origin as live:
        live.wait_for_records(3 * ROWS_PER_FILE)
        savepoint = str(live.savepoint())
        place.land(1)
        live.wait_for_records(4 * ROWS_PER_FILE)
        commit(live, place)
        live.cancel()
    options = {"from_savepoint": savepoint, "accept_duplicates": accepted}
    if accepted:
        with LiveJob(copies(place), settings(place), **options) as again:
            again.wait_for_records(ROWS_PER_FILE)
            again.gateway.stop_with_savepoint(None).result()
        assert table(place).total() == 5 * ROWS_PER_FILE
        return
    with (
        pytest.raises(DuplicatesError, match="has since committed checkpoint 2"),
        LiveJob(copies(place), settings(place), **options) as again,
    ):
        again.result()
    assert Path(savepoint).exists()
    assert_same(table(place), place.rows(), "the table")
