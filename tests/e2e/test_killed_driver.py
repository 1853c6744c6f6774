"""SIGKILL at each point of checkpoint, restore and end where rows could be lost or duplicated.

The driver dies exactly at the named point (``killing_driver.py``); then the plain command is run
again until it ends, and every sink must have exactly its rows. A test fails if its point was never
reached. Most run with ``make test-slow``: the test of a stop (``test_killed_stop.py``) passes the
same points.
"""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet
from tests.e2e.support import Place

pytestmark = [pytest.mark.spark, pytest.mark.kill]

FILES = 8


def rarely(point: str, nth: int) -> ParameterSet:
    """A point near another one that is always tested."""
    return pytest.param(point, nth, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        rarely("after-the-synchronous-part", 4),
        rarely("before-the-acknowledgement", 5),
        rarely("before-the-metadata", 3),
        rarely("before-the-record", 3),
        rarely("after-the-record", 3),
        rarely("within-one-commit", 4),
        rarely("between-two-sinks", 2),
        rarely("before-the-end-is-recorded", 1),
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
    [rarely("within-the-restore", 5), ("before-a-recommit", 1), rarely("after-a-recommit", 1)],
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
