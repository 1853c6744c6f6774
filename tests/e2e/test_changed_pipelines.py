"""A pipeline changed between two runs on real Spark: its state fits or nothing is touched."""

from __future__ import annotations

import pytest
from tests.e2e.support import PIPELINE, Place, delta_rows, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.slow
def test_a_renamed_last_step_is_refused_and_under_its_old_name_the_job_continues(
    place: Place,
) -> None:
    """Killed with rows to commit. With a renamed step: refused, nothing committed; unchanged:
    exact."""
    place.land(8)
    place.die_at("after-the-record", 3)
    committed = tables(place)
    renamed = place.write(
        "pipeline.py", PIPELINE.read_text().replace('"by_minute"', '"per_minute"')
    )

    for arguments in ((), ("--allow-non-restored-state",)):
        message = place.start(*arguments, pipeline=renamed).error()
        assert "Cannot map checkpoint 3 (" in message
        assert (
            "the chain ending in 'by_minute', but the step is now in the chain ending in"
            " 'per_minute'" in message
        )
        assert "step 'by_minute' was removed, step 'per_minute' was added" in message
        assert tables(place) == committed

    assert "recovered from checkpoint 3" in place.finish().output
    place.assert_exact()


def tables(place: Place) -> list[object]:
    """The rows that readers of the three sinks see."""
    out = place.directory / "out"
    return [delta_rows(out / "raw"), files_rows(out / "raw_files"), files_rows(out / "minutes")]
