"""SIGKILL around the calls of adopted functions, and in the commits of memory tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.kit.place import Place, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

PIPELINE = Path(__file__).with_name("killed_sinks_pipeline.py")


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """A directory in which commands run; whatever they started is ended with the test."""
    made = Place(tmp_path)
    yield made
    made.clear()


def calls(place: Place, name: str) -> tuple[dict[int, Any], int]:
    """The rows of calls by their ids, which must count from 0, and how many came again.

    Fails if an id came again with other rows.
    """
    known: dict[int, Any] = {}
    lines = (place.directory / name).read_text().splitlines()
    for batch_id, rows in map(json.loads, lines):
        assert known.setdefault(batch_id, rows) == rows
    assert list(known) == list(range(len(known)))
    return known, len(lines) - len(known)


@pytest.mark.parametrize(
    ("point", "nth", "repeats"),
    [
        ("after-a-call", 1, "calls"),
        ("after-a-table", 1, "results"),
        ("within-one-commit", 2, ""),
    ],
)
def test_a_killed_driver_repeats_one_call_at_most_with_its_id(
    place: Place, point: str, nth: int, repeats: str
) -> None:
    """Each number is in one batch and in the memory table, and the last result has all sums."""
    place.land(6)
    place.die_at(point, nth, pipeline=PIPELINE)
    place.finish(pipeline=PIPELINE)
    expected = sorted(number for number, _ in place.rows().elements())
    batches, repeated = calls(place, "calls")
    assert (repeats == "calls") <= repeated <= 1
    assert sorted(number for rows in batches.values() for (number,) in rows) == expected
    results, repeated = calls(place, "results")
    assert (repeats == "results") <= repeated <= 1
    sums: Counter[int] = Counter()
    for number in expected:
        sums[number % 7] += number
    assert dict(max(results.items())[1]) == sums
    memory = files_rows(place.directory / "staged" / "memory")
    assert sorted(number for (number,) in memory.elements()) == expected
