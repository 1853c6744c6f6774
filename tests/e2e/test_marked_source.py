"""Readers that say when a checkpoint is due, on real Spark (MISSION B4).

The source is that of ``docs/MARKED_SOURCES.md``: an API puts a mark into each of its feeds when it
is asked for a checkpoint. More rows come to the feeds together with each mark, behind it: the
reader could read them at once, but none of them may be in the mark's checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.feeds import Feeds, assert_exact, loaded, written
from tests.kit.live_job import RESTARTED, LiveJob, settings
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus
from weir.errors import JobError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MARKED = "A source that reads up to a mark"


def out(place: Place) -> Rows:
    return files_rows(place.directory / "out")


@pytest.mark.usefixtures("spark")
def test_a_checkpoint_has_what_is_in_front_of_its_marks_and_nothing_else(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So has the savepoint of a stop."""
    feeds.behind_marks = 20
    feeds.grow(north=40, south=3, west=15)
    job = loaded(place, monkeypatch, written(place, MARKED))
    with LiveJob(job, settings(place)) as live:
        first = live.checkpoint().checkpoint_id
        wait_until(lambda: out(place).total() == 58, "what is in front of the marks is committed")
        assert_same(out(place), feeds.rows(first), "the first checkpoint")
        saved = live.gateway.stop_with_savepoint(None, drain=False).result()
        assert live.result().status is JobStatus.FINISHED
    assert_same(out(place), feeds.rows(saved.checkpoint_id), "the savepoint of the stop")


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_checkpoint_whose_point_a_reader_never_meets_expires(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers that are there go on, and so does the job."""
    feeds.behind_marks = 20
    feeds.grow(north=40, south=3, west=15)
    conf = settings(place, timeout="20s", tolerable_failed_checkpoints="3")
    with LiveJob(loaded(place, monkeypatch, written(place, MARKED)), conf) as live:
        live.wait_for_records(58)
        feeds.unmarked = "south"
        with pytest.raises(JobError, match="expired"):
            live.checkpoint()
        feeds.unmarked = ""
        second = live.checkpoint().checkpoint_id
        wait_until(lambda: out(place) == feeds.rows(second), "the second one is committed")
        assert live.gateway.view().attempt == 1
        live.cancel()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_every_row_is_read_once_over_failures_and_over_a_savepoint(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks of checkpoints that failed are read again, and mean nothing; a drain ends at the
    marks of its savepoint."""
    feeds.behind_marks = 3
    feeds.grow(north=40, south=3, west=15)
    mark = place.directory / "failed"
    fails = (
        'self.marks[split.split_id] = page["mark"]',
        f"""self.marks[split.split_id] = page["mark"]
        from pathlib import Path
        if split.after > 30 and not Path({str(mark)!r}).exists():
            Path({str(mark)!r}).touch()
            raise OSError("a reader fails")""",
    )
    conf = settings(place, RESTARTED, interval="300ms", tolerable_failed_checkpoints="3")
    with LiveJob(loaded(place, monkeypatch, written(place, MARKED, fails)), conf) as live:
        live.wait_for(lambda view: view.attempt == 2, "the job is restored")
        completed = len(live.history("COMPLETED"))
        live.wait_for(lambda _: len(live.history("COMPLETED")) > completed + 3, "checkpoints")
        live.savepoint()
        stopped = live.gateway.stop_with_savepoint(None, drain=False).result().external_path
    more = ("parallelism=2", "parallelism=3")
    job = loaded(place, monkeypatch, written(place, MARKED, more))
    with LiveJob(job, conf, from_savepoint=stopped) as live:
        live.checkpoint()
        drained = live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().status is JobStatus.FINISHED
    assert_same(out(place), feeds.rows(drained.checkpoint_id), "the drained job")


@pytest.mark.slow
@pytest.mark.kill
def test_no_row_is_lost_or_doubled_when_drivers_are_killed(place: Place, feeds: Feeds) -> None:
    """Three drivers die by SIGKILL; what the fourth has committed ends at its last marks."""
    feeds.behind_marks = 2
    feeds.grow(north=40, south=3)
    pipeline: Path = written(place, MARKED)
    for number in range(3):
        run = place.start(pipeline=pipeline)
        run.wait_for(r"checkpoint \d+ completed")
        feeds.grow(north=25, **{f"new{number}": 30})
        run.end()
    run = place.start(pipeline=pipeline)
    run.wait_for(r"checkpoint \d+ completed")
    feeds.behind_marks = 0
    wait_until(lambda: out(place) == feeds.rows(), "all rows are there")
    assert place.weir("stop", "--drain", "marked", "-m", run.address).returncode == 0
    assert_exact(place, feeds)
