"""A change that no schema shows, between two runs on real Spark: refused by name, or accepted.

``tests/spark/test_fingerprints.py`` has a test for each line of the table in STOPPING.md; these
run whole jobs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.place import PIPELINE, Place, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]

WINDOW = ('F.window("ts", "1 minute")', 'F.window("ts", "2 minutes")')


def changed(place: Place, *replaced: tuple[str, str]) -> Path:
    """The pipeline with other text in it."""
    text = PIPELINE.read_text()
    for before, now in replaced:
        assert before in text
        text = text.replace(before, now)
    return place.write("pipeline.py", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (*WINDOW, ("step 'by_minute'", "window(ts, 1 minute)", "window(ts, 2 minutes)")),
        ('"10 seconds"', '"1 hour"', ("step 'timed'", "ts, 10 seconds", "ts, 1 hour")),
        ('/raw_files"', '/other"', ("sink 'raw_files'", "out/raw_files", "out/other")),
        ('parquet("in")', 'parquet("moved")', ("source 'numbers'", "/in, and", "/moved")),
    ],
)
def test_a_change_is_refused_once_and_the_pipeline_as_it_was_goes_on_exactly(
    before: str, now: str, words: tuple[str, ...], place: Place
) -> None:
    """Killed with rows to commit; the message names the step, what it was and what it is."""
    place.land(8)
    (place.directory / "moved").mkdir()
    place.die_at("after-the-record", 3)

    refused = place.start(pipeline=changed(place, (before, now)))
    message = refused.error()
    for word in (*words, "--accept-changed-state"):
        assert word in message
    assert refused.output.count("FAILING") < 2

    assert "recovered from checkpoint 3" in place.finish().output
    place.assert_exact()


@pytest.mark.slow
def test_an_accepted_change_goes_on_with_the_old_state(place: Place) -> None:
    """The open window stays as it was, and those that begin from then on are of the new size."""
    place.land(8)
    place.die_at("after-the-record", 3)
    run = place.finish("--accept-changed-state", "by_minute", pipeline=changed(place, WINDOW))
    assert "accepted: step 'by_minute' has changed" in run.output
    assert "recovered from checkpoint 3" in run.output
    place.assert_copies_exact()


@pytest.mark.slow
def test_another_uid_in_a_query_of_its_own_starts_without_state(place: Place) -> None:
    """It counts what comes from then on; everything else goes on exactly."""
    place.land(8)
    place.die_at("after-the-record", 3)
    fresh = changed(
        place,
        WINDOW,
        ('"by_minute", by_minute)', '"by_minute", by_minute, uid="by_2").start_new_chain()'),
    )
    run = place.finish("--allow-non-restored-state", pipeline=fresh)
    assert "recovered from checkpoint 3" in run.output
    place.assert_copies_exact()
    counted = sum(count for _, count in files_rows(place.directory / "out" / "minutes").elements())
    assert 0 < counted < sum(place.rows().values())


@pytest.mark.slow
def test_a_finished_job_that_would_read_or_write_something_else_is_not_finished(
    place: Place,
) -> None:
    """Not even with exit code 0, which a scheduler believes; unless the user says so."""
    place.land(2)
    (place.directory / "moved").mkdir()
    place.finish()
    assert "already finished" in place.finish().output

    other = changed(place, ('/raw_files"', '/other"'))
    assert "sink 'raw_files' wrote" in place.start(pipeline=other).error()
    accepted = place.finish("--accept-changed-state", "raw_files", pipeline=other)
    assert "already finished" in accepted.output

    moved = changed(place, ('parquet("in")', 'parquet("moved")'))
    assert "source 'numbers' read" in place.start(pipeline=moved).error()
    assert not (place.directory / "out" / "other").exists()
