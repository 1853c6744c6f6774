"""A pipeline changed between two runs on real Spark: its state fits or nothing is touched."""

from __future__ import annotations

import pytest
from tests.kit.place import PIPELINE, Place, delta_rows, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.slow
def test_a_renamed_last_step_needs_its_uid_and_under_it_the_job_continues(place: Place) -> None:
    """Killed with rows to commit. Renamed without a uid: refused, nothing committed; with it:
    exact."""
    place.land(8)
    place.die_at("after-the-record", 3)
    committed = tables(place)
    text = PIPELINE.read_text()
    renamed = place.write("pipeline.py", text.replace('"by_minute"', '"per_minute"'))

    message = place.start(pipeline=renamed).error()
    assert "Cannot map checkpoint 3 (" in message
    assert "state of step 'by_minute', which is not in the pipeline" in message
    assert "uid='by_minute'" in message
    assert tables(place) == committed

    kept = place.write(
        "pipeline.py",
        text.replace('"by_minute", by_minute', '"per_minute", by_minute, uid="by_minute"'),
    )
    assert "recovered from checkpoint 3" in place.finish(pipeline=kept).output
    place.assert_exact()


@pytest.mark.slow
def test_a_renamed_last_step_starts_empty_if_its_state_may_be_left_behind(place: Place) -> None:
    """As in Flink: it counts what comes from then on, into the same table; nothing else changes."""
    place.land(30)
    place.die_at("after-the-record", 8)
    renamed = place.write(
        "pipeline.py", PIPELINE.read_text().replace('"by_minute"', '"per_minute"')
    )
    run = place.finish("--allow-non-restored-state", pipeline=renamed)
    assert "recovered from checkpoint 8" in run.output
    place.assert_copies_exact()
    expected = dict(place.minutes().keys())
    rows = files_rows(place.directory / "out" / "minutes")
    found = dict(rows.keys())
    assert len(found) == rows.total()
    assert all(count <= expected[start] for start, count in found.items())
    assert 0 < sum(found.values()) < sum(expected.values())


def tables(place: Place) -> list[object]:
    """The rows that readers of the three sinks see."""
    out = place.directory / "out"
    return [delta_rows(out / "raw"), files_rows(out / "raw_files"), files_rows(out / "minutes")]
