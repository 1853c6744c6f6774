"""A checkpoint of this release of Spark is restored by newer ones, and theirs is refused by it.

Newer are those of the environments beside this one: ``make test-spark`` has made them. Each run is
a process in its environment.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.e2e.test_draining import STEPS, expected
from tests.kit.place import SOURCES, Place, Rows, assert_same, files_rows
from tests.spark.every_state_pipeline import KEYS

from weir.spark.releases import Release, installed, release_of

pytestmark = pytest.mark.spark

PIPELINE = Path(__file__).with_name("every_state_pipeline.py")
ROOT = Path(__file__).resolve().parents[2]


def environments() -> dict[Release, Path]:
    """The Python of each environment of the project, by its release of Spark."""
    found = {}
    for notes in ROOT.glob(".venv*/lib/python3*/site-packages/pyspark-*.dist-info"):
        release = release_of(notes.name.removeprefix("pyspark-"))
        if release is not None:
            found[release] = notes.parents[3] / "bin" / "python"
    return found


NEWER = {release: python for release, python in environments().items() if release > installed()}
_NONE = pytest.mark.skip("no environment has a newer Spark than this one: see make test-spark")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.clear()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("newer", sorted(NEWER) or [pytest.param(None, marks=_NONE)], ids=str)
def test_a_newer_release_goes_on_from_a_checkpoint_and_there_is_no_way_back(
    place: Place, spark: SparkSession, newer: Release
) -> None:
    """Each kind of state goes over: all tables equal the batch computation."""
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(SOURCES)))}
    how = {"pipeline": PIPELINE, "environment": environment}
    place.land(3)
    place.finish("--until-idle", **how)
    place.land(2)
    place.finish("--until-idle", python=NEWER[newer], **how)

    back = place.start("--until-idle", **how).error()
    assert re.search(rf"was taken with Spark {newer}, but Spark {installed()}\.\d+ is", back), back

    place.land(1)
    place.finish("--until-idle", "--drain", python=NEWER[newer], **how)
    out = place.directory / "out"
    for name in STEPS:
        assert_same(files_rows(out / name), expected(spark, place, name), name)
    ids = Rows((id,) for id, _ in place.rows())
    assert_same(files_rows(out / "paired"), ids, "the pairs")
    totals = Counter(id % KEYS for id, _ in place.rows())
    assert_same(files_rows(out / "totals"), Rows(totals.items()), "the totals")
