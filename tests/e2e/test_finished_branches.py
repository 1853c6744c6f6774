"""One branch of a job has finished and another runs on (MISSION D5, E; PROTOCOL P30).

Flink's scenarios of ``CheckpointAfterAllTasksFinishedITCase``: what a finished branch has read is
read again neither after a failure nor after a restore by another driver.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.live_job import (
    RESTARTED,
    LiveJob,
    RaiseOnce,
    WatchedFiles,
    metadata_of,
    numbers,
    pass_by,
    settings,
)
from tests.kit.place import Place, Rows, assert_same, files_rows

import weir
from weir.core.status import JobStatus
from weir.core.types import TaskStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SHORT_FILES, LONG_FILES = 1, 5


class Branches:
    """A job with a short branch, which is bounded, and a long one; they share nothing."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.short_batches = 0
        #: Called before a batch of the long branch is staged.
        self.on_long: Callable[[], None] = pass_by
        place.land(SHORT_FILES)
        self.short_rows = place.rows()

    def job(self, *, bounded: bool) -> weir.Job:
        """The job; its long branch reads what lands, and ends if ``bounded``."""
        job = weir.Job("branches")
        short = WatchedFiles(self._out("short"), stage=self._count)
        job.source("short_in", numbers(self.place), bounded=True).sink("short", short)
        long = WatchedFiles(self._out("long"), stage=self._stage_long)
        job.source("long_in", numbers(self.place), bounded=bounded).sink("long", long)
        return job

    def rows(self, name: str) -> Rows:
        """The rows that a branch has committed."""
        return files_rows(self._out(name))

    def assert_exact(self) -> None:
        """The short branch has read what was there at first, the long one everything."""
        assert_same(self.rows("short"), self.short_rows, "the finished branch")
        assert_same(self.rows("long"), self.place.rows(), "the other branch")

    def _out(self, name: str) -> Path:
        return self.place.directory / "out" / name

    def _count(self) -> None:
        self.short_batches += 1

    def _stage_long(self) -> None:
        self.on_long()


def finish_the_short_branch(live: LiveJob) -> None:
    """Wait until the short branch has finished; the final checkpoint comes at once."""
    live.wait_for(
        lambda view: TaskStatus.FINISHED in [v.status for v in view.vertices], "a branch finishes"
    )


def test_a_checkpoint_records_a_branch_as_finished_while_another_runs(place: Place) -> None:
    """D5: its operators are fully finished, those of the other branch are not."""
    branches = Branches(place)
    with LiveJob(branches.job(bounded=False), settings(place)) as live:
        finish_the_short_branch(live)
        checkpoint = live.gateway.trigger_checkpoint().result()
        tasks = {
            task["vertex"]: [one["fully_finished"] for one in task["operators"]]
            for task in metadata_of(Path(checkpoint.external_path))["tasks"]
        }
        live.cancel()
    assert tasks == {"short_in": [True, True], "long_in": [False, False]}


def test_a_finished_branch_is_not_replayed_after_a_failure_of_the_other(place: Place) -> None:
    """P30: the attempt after the failure starts the other branch only."""
    branches = Branches(place)
    with LiveJob(branches.job(bounded=False), settings(place, RESTARTED, interval="200ms")) as live:
        finish_the_short_branch(live)
        batches = branches.short_batches
        branches.on_long = RaiseOnce(OSError("the long branch fails"))
        place.land(LONG_FILES)
        live.wait_for(lambda view: view.attempt == 2, "the job is restarted")
        live.wait_for(lambda _: branches.rows("long") == place.rows(), "all rows are committed")
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    assert branches.short_batches == batches
    branches.assert_exact()


@pytest.mark.slow
def test_a_finished_branch_is_not_replayed_by_another_driver(place: Place) -> None:
    """D5: the other branch continues where it was, to the end of its input."""
    branches = Branches(place)
    with LiveJob(branches.job(bounded=False), settings(place)) as live:
        finish_the_short_branch(live)
        savepoint = live.gateway.stop_with_savepoint(None, drain=False).result().external_path
    batches = branches.short_batches
    place.land(LONG_FILES)
    with LiveJob(branches.job(bounded=True), settings(place), from_savepoint=savepoint) as live:
        assert live.result().status is JobStatus.FINISHED
    assert branches.short_batches == batches
    branches.assert_exact()
