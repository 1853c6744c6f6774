"""A query that rests in its planning call, or is anywhere near it, is stopped without an error."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.rig import Collected, Landing, Rig

from weir.core.task_messages import TaskErrored
from weir.job import Job

pytestmark = pytest.mark.spark


def test_a_query_stopped_at_a_hundred_random_moments_never_fails(spark: SparkSession, tmp_path: Path) -> None:
    """Before the call comes, while it is held, and while its answer is under way."""
    landing = Landing(tmp_path / "in", rows_per_file=1)
    landing.land(1)
    chance = random.Random(13)
    moments = set()
    for number in range(100):
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
        assert rig.task._query is not None
        assert rig.task._query.exception() is None
    assert moments == {True, False}
