"""SIGKILL at each point of checkpoint, restore and end where rows could be lost or duplicated.

The driver dies exactly at the named point (``killing_driver.py``); then the plain command is run
again until it ends, and every sink must have exactly its rows. A test fails if its point was never
reached. All run with ``make test-slow``; with every change, a driver that is being stopped dies at
one of the points (``test_lifecycle.py``).
"""

from __future__ import annotations

import pytest
from tests.kit.place import Place

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

FILES = 8


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("after-the-synchronous-part", 4),
        ("before-the-acknowledgement", 5),
        ("before-the-metadata", 3),
        ("before-the-record", 3),
        ("after-the-record", 3),
        ("within-one-commit", 4),
        ("between-two-sinks", 2),
        ("before-the-end-is-recorded", 1),
    ],
)
def test_a_driver_that_is_killed_loses_and_doubles_no_row(
    place: Place, point: str, nth: int
) -> None:
    """Killed at the point and run again: every sink is exact."""
    place.land(FILES)
    place.die_at(point, nth)
    assert "recovered from checkpoint" in place.finish().output
    place.assert_exact()


@pytest.mark.parametrize(
    ("point", "nth"),
    [("within-the-restore", 5), ("before-a-recommit", 1), ("after-a-recommit", 1)],
)
def test_a_driver_that_is_killed_while_it_recovers_loses_and_doubles_no_row(
    place: Place, point: str, nth: int
) -> None:
    """Killed before it committed a checkpoint, killed again at the point, run again: every sink is
    exact."""
    place.land(FILES)
    place.die_at("after-the-record", 3)
    place.die_at(point, nth)
    assert "recovered from checkpoint" in place.finish().output
    place.assert_exact()
