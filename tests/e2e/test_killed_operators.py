"""Drivers die while operators commit by themselves and emit rows in front of barriers.

Each driver gets more input and dies, at a named point or at any moment; then the plain command is
run again, and at last to the end of the input (MISSION B7, E3; PROTOCOL P6).
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.kit.place import ROWS_PER_FILE, Place, assert_same, files_rows
from tests.kit.waiting import wait_until

PIPELINE = Path(__file__).resolve().parent / "operators_pipeline.py"

pytestmark = [pytest.mark.spark, pytest.mark.kill]

UNBOUNDED = {"NUMBERS": "unbounded"}
BOUNDED = {"NUMBERS": "bounded"}


def published(place: Place) -> Counter[int]:
    """The numbers that the operator has published."""
    files = place.directory.glob("out/published/published-*")
    return Counter(int(line) for file in files for line in file.read_text().splitlines())


def staged(place: Place) -> int:
    """How many files the operator has ever written."""
    return len(list(place.directory.glob("out/published/*")))


def sums_by_commit(place: Place) -> dict[int, list[dict[str, int]]]:
    """The rows of ``sums`` by the checkpoint that committed them."""
    path = str(place.directory / "out" / "sums")
    table = DeltaTable(path)
    found: dict[int, list[dict[str, int]]] = {}
    before: list[dict[str, int]] = []
    for commit in sorted(table.history(), key=lambda one: one["version"]):
        table.load_as_version(commit["version"])
        rows = table.to_pyarrow_table().to_pylist()
        found[int(commit["weir.checkpoint.id"])] = [one for one in rows if one not in before]
        before = rows
    return found


def assert_exact(place: Place) -> None:
    """Check everything that the operators did over all lives of the job."""
    assert_same(files_rows(place.directory / "out" / "copy"), place.rows(), "the copy")
    odd = Counter(row for row in place.rows().elements() if row[0] % 2 == 1)
    assert_same(files_rows(place.directory / "out" / "odd"), odd, "the side output")
    landed = Counter(row[0] for row in place.rows().elements())
    assert published(place) == landed
    commits = sums_by_commit(place)
    rows = [row for rows in commits.values() for row in rows]
    assert sum(row["n"] for row in rows) == landed.total()
    assert sum(row["total"] for row in rows) == sum(landed.elements())
    for checkpoint_id, of_one in commits.items():
        final = [row for row in of_one if row["checkpoint"] == 0]
        before_barrier = [row for row in of_one if row["checkpoint"] != 0]
        # In front of the barrier, from each subtask once; after ``finish`` there is nothing.
        assert {row["checkpoint"] for row in before_barrier} <= {checkpoint_id}
        assert sorted(row["subtask"] for row in before_barrier) in ([], [0, 1])
        assert final == [] or checkpoint_id == max(commits)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-the-record", "after-the-record"])
def test_rows_of_operators_are_exact_though_the_driver_dies(place: Place, point: str) -> None:
    """Before the record nothing counts; after it the next driver publishes what was staged."""
    place.land(4)
    place.die_at(point, 2, pipeline=PIPELINE, environment=UNBOUNDED)
    place.land(1)
    assert "has finished" in place.finish(pipeline=PIPELINE, environment=BOUNDED).output
    assert_exact(place)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_operators_are_exact_over_twenty_drivers_that_die(place: Place, seed: int) -> None:
    """Each dies at a random moment after it has written something."""
    draws = random.Random(seed)
    for _ in range(20):
        place.land(2)
        before = staged(place)
        run = place.start(pipeline=PIPELINE, environment=UNBOUNDED)
        wait_until(lambda before=before: staged(place) > before, "the operator stages rows")
        time.sleep(draws.uniform(0, 3))
        run.process.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.story()
    assert "has finished" in place.finish(pipeline=PIPELINE, environment=BOUNDED).output
    assert staged(place) > 20
    assert place.rows().total() == 40 * ROWS_PER_FILE
    assert_exact(place)
