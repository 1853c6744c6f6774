"""A query stopped while it rests in its planning call, or close to it, ends without an error."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kit.rig import Collected, Landing, Rig
from tests.spark.queries import QUERIES

from weir.core.messages.task import TaskErrored
from weir.job import Job

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("stops", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_a_query_stopped_at_random_moments_never_fails(
    spark: SparkSession, tmp_path: Path, stops: int
) -> None:
    """Before the call comes, while it is held, and while its answer is on its way."""
    landing = Landing(tmp_path / "in", rows_per_file=1)
    landing.land(1)
    chance = random.Random(13)
    moments = set()
    for number in range(stops):
        job = Job("stopped")
        job.source("rows", landing.source).sink("kept", Collected())
        rig = Rig(spark, job, tmp_path / str(number), on_plan=lambda position: position < 0)
        with rig:
            held_at = chance.choice([-1, 0])
            if held_at == 0:
                rig.wait_held(0)
            time.sleep(chance.uniform(0, 0.05))
            moments.add(rig.held is not None)
            if rig.held is not None and chance.random() < 0.3:
                rig.answer()
        assert [event for event in rig.events if isinstance(event, TaskErrored)] == []
        assert rig.task._runs.running is not None
        assert rig.task._runs.running.exception() is None
    assert moments == {True, False}


def test_a_stopped_query_plans_nothing_more_though_its_watermark_has_moved(
    spark: SparkSession, tmp_path: Path
) -> None:
    """If the call returned, Spark would run a batch without data, which closes windows after a
    savepoint."""
    landing = Landing(tmp_path / "in")
    landing.land(3)
    for number in range(3):
        job, sink = QUERIES["windows"].job(landing, bounded=False)
        with Rig(spark, job, tmp_path / str(number), on_plan=lambda position: position < 1) as rig:
            rig.wait_held(1)
        assert rig.newest("offsets") == rig.newest("commits") == 1
        assert max(sink.steps) == 1
