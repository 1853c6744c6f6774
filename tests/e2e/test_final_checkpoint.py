"""Checkpoint listeners on real Spark: a bounded job's end waits for them.

MISSION E6, PROTOCOL P36.
"""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import Place

import weir
from weir.core.status import JobStatus

pytestmark = pytest.mark.spark


class Even(weir.CheckpointListener):
    """Keeps even numbers, and records the completed checkpoints that it is notified of."""

    def __init__(self, *, needs_the_final_checkpoint: bool) -> None:
        self.requires_final_checkpoint = needs_the_final_checkpoint
        self.completed: list[int] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """The function of the step."""
        return frame.filter("id % 2 = 0")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Record one more."""
        self.completed.append(checkpoint_id)


@pytest.mark.parametrize("needs", [True, False], ids=["one part needs it", "all parts decline"])
def test_a_bounded_job_waits_for_a_final_checkpoint_only_if_a_part_of_it_needs_one(
    place: Place, spark: SparkSession, needs: bool
) -> None:
    """The sink commits nothing and so needs none, and there are no periodic checkpoints."""
    del spark
    place.land(2)
    seen: list[int] = []
    even = Even(needs_the_final_checkpoint=needs)
    job = weir.Job("even")
    kept = job.source("numbers", numbers(place), bounded=True).transform("even", even.keep)
    kept.sink(
        "seen", weir.sinks.Foreach(lambda frame, _: seen.extend(row.id for row in frame.collect()))
    )
    with LiveJob(job, settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
        completed = [checkpoint.checkpoint_id for checkpoint in live.history("COMPLETED")]
    assert sorted(seen) == list(range(0, place.rows().total(), 2))
    assert completed == ([1] if needs else [])
    assert even.completed == completed
