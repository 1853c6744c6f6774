"""``weir plan`` and ``weir sim`` of ordinary scripts."""

from __future__ import annotations

import pytest
from tests.kit.adopted_script import SCRIPTS, land
from tests.kit.place import Place

_WRITES = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(3).write.parquet("out")
"""


@pytest.mark.spark
@pytest.mark.kill
def test_the_plan_of_a_script_shows_its_queries_and_runs_none(place: Place) -> None:
    """Queries with their lines, sinks and triggers, the steps that they become, what is said, and
    where the execution has ended; nothing is written."""
    world = place.directory / "world"
    land(world, 0)
    shown = place.weir("plan", str(SCRIPTS / "two_queries.py"), "--", str(world), "out")
    assert shown.returncode == 0, shown.stderr
    assert "executing" in shown.stderr
    assert shown.stdout.startswith("Job Multi Query Demo: 3 vertices, 2 channels")
    assert "query Notification Writer (" in shown.stdout
    assert "parquet[out/notifications]" in shown.stdout
    assert "json[out/flattened]" in shown.stdout
    assert "Not executed: what comes after" in shown.stdout
    assert "note: checkpoints are in" in shown.stdout
    assert not (place.directory / "out").exists()
    assert not (place.directory / ".weir").exists()


@pytest.mark.spark
@pytest.mark.kill
def test_a_plan_does_not_execute_what_the_script_writes(place: Place) -> None:
    """A write of the script's own is refused with its line."""
    path = place.write("script.py", _WRITES)
    shown = place.weir("plan", str(path))
    assert shown.returncode == 1
    assert "script.py, line 5: the write is not executed" in shown.stderr
    assert not (place.directory / "out").exists()


def test_a_script_is_not_simulated(place: Place) -> None:
    """Refused in a sentence, without executing it."""
    path = place.write("script.py", _WRITES)
    shown = place.weir("sim", str(path), "--seeds", "1")
    assert shown.returncode == 1
    assert "is an ordinary script" in shown.stderr
