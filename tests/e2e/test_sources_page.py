"""The source in ``docs/SOURCES.md`` works: it is run as it stands on the page, on real Spark.

A server in this process has the feeds, and all of their rows: what the jobs wrote is compared with
them, row by row.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from tests.e2e.feeds import FIRST, FROM_NOTHING, Feeds, assert_exact, loaded, written
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_bounded_source_is_read_to_its_end(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each feed by pages; the job finishes when both readers have."""
    feeds.grow(north=40, south=3, west=15)
    bounded = ("Readings(url)", "Readings(url, bounded=True)")
    job = loaded(place, monkeypatch, written(place, FROM_NOTHING, bounded))
    with LiveJob(job, settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
        assert live.gateway.view().vertices[0].records_in == 58
    assert_exact(place, feeds)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_reader_that_raises_fails_the_job_by_its_split(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its position, the subtask, the source's step, and the line of the pipeline."""
    feeds.grow(north=10)
    broken = (
        "if not rows:",
        'if split.after:\n            raise KeyError("ts")\n        if not rows:',
    )
    pipeline = written(place, FROM_NOTHING, broken)
    with LiveJob(loaded(place, monkeypatch, pipeline), settings(place)) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    said = result.failure or ""
    assert "KeyError: 'ts' (in fetch, " in said
    assert (
        "reading split 'north' at Feed(split_id='north', after=7); subtask 0 of 'readings'" in said
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_split_that_is_ahead_makes_no_row_of_another_late(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows over both feeds: one lags by an hour of event time, and counts when it comes."""
    feeds.page = 300
    feeds.grow(north=3_600, south=5)
    timed = (
        "Readings(url), parallelism=2)",
        "Readings(url), parallelism=2, watermarks=weir.sources.Watermarks(column='ts'))"
        ".transform('minutes', lambda df: df.groupBy(F.window('ts', '1 minute'))"
        ".agg(F.count('*').alias('n')).select('window.start', 'n'))",
    )
    imported = ("import weir\n", "import weir\nfrom pyspark.sql import functions as F\n")
    pipeline = written(place, FROM_NOTHING, timed, imported)
    with LiveJob(loaded(place, monkeypatch, pipeline), settings(place)) as live:
        live.wait_for(lambda view: view.vertices[0].records_in >= 3_605, "north is ahead")
        # What has been read has taken effect a few batches later.
        feeds.wait_for_requests("south", 4)
        feeds.grow(south=70)
        feeds.wait_for_requests("south", 4)
        feeds.grow(south=3_700)
        closed = Rows(
            Counter(
                ts.replace(second=0)
                for _, _, ts, _ in feeds.rows().elements()
                if ts < FIRST + timedelta(seconds=3_600)
            ).items()
        )

        def all_are_there() -> bool:
            live.checkpoint()
            return files_rows(place.directory / "out").total() == closed.total()

        wait_until(all_are_there, "every minute up to the slower feed's newest row is there")
    assert_same(files_rows(place.directory / "out"), closed, "the counts")


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_no_row_is_lost_or_doubled_when_drivers_are_killed_and_readers_become_more(
    place: Place, feeds: Feeds
) -> None:
    """Two drivers die by SIGKILL while feeds grow and new ones come; the third stops with a
    savepoint, from which three readers go on."""
    pipeline = written(place, FROM_NOTHING)
    feeds.grow(north=40, south=3)
    for number in range(2):
        run = place.start(pipeline=pipeline)
        wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "rows come")
        feeds.grow(north=25, **{f"new{number}": 30})
        run.wait_for(r"checkpoint \d+ completed")
        run.end()
    run = place.start(pipeline=pipeline)
    wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "all rows are there")
    assert place.weir("stop", "readings", "-m", run.address).returncode == 0
    assert run.wait() == 0, run.story()
    [savepoint] = place.directory.glob(".weir/savepoints/savepoint-*")
    feeds.grow(north=10, south=10, new0=10, last=10)
    more = written(place, FROM_NOTHING, ("parallelism=2", "parallelism=3"))
    run = place.start("--from-savepoint", str(savepoint), pipeline=more)
    wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "all rows are there")
    assert place.weir("stop", "--drain", "readings", "-m", run.address).returncode == 0
    assert_exact(place, feeds)
