"""A consumer that is much slower than its producer: what lies between them is bounded, and a checkpoint restores exactly.

The consumer's sink takes its time over every batch. An aligned checkpoint waits until the consumer has read what came before
its barrier; an unaligned one takes that with it (PROTOCOL P27).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.e2e.live_job import LiveJob, WatchedFiles, numbers, settings
from tests.e2e.support import Place, assert_same, files_rows

import weir
from weir.core.job_status import JobStatus
from weir.core.output_channels import ChannelBound

pytestmark = pytest.mark.spark

FILES = 30


def slow_job(place: Place, *, seconds: float) -> weir.Job:
    """Numbers as they are, and again behind a channel, by a sink that takes so long over each batch."""
    out = place.directory / "out"
    job = weir.Job("slow")
    read = job.source("numbers", numbers(place), bounded=True)
    read.sink("raw", WatchedFiles(out / "raw"))
    slow = WatchedFiles(out / "slow", stage=lambda: time.sleep(seconds))
    read.transform("behind", lambda frame: frame.filter("id >= 0")).sink("copy", slow)
    return job


def segments(place: Place) -> int:
    """How many segments lie in the channel."""
    return len([path for path in place.directory.glob("work/*/*/_channels/numbers/*") if path.is_dir()])


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
def test_a_slow_consumer_bounds_its_producer_and_a_checkpoint_restores_exactly(
    place: Place, spark: SparkSession, unaligned: bool
) -> None:
    """Never more segments than the bound and the one being written; then the job is left and run again."""
    del spark
    place.land(FILES)
    conf = settings(place, {"execution.checkpointing.unaligned.enabled": str(unaligned).lower()})
    most = 0
    with LiveJob(slow_job(place, seconds=2.0), conf) as live:
        live.wait_for_steps(1)
        asked = live.gateway.trigger_checkpoint()
        while not asked.done():
            most = max(most, segments(place))
            time.sleep(0.02)
        taken = asked.result()
        for _ in range(50):
            most = max(most, segments(place))
            time.sleep(0.02)
    assert 2 <= most <= ChannelBound().segments + 1
    behind = taken.task("behind")
    assert behind is not None
    assert bool(behind.in_flight) is unaligned

    with LiveJob(slow_job(place, seconds=0.0), conf) as again:
        assert again.result().status is JobStatus.FINISHED, again.notes
    assert again.restored_ids == [taken.checkpoint_id]
    for name in ("raw", "slow"):
        assert_same(files_rows(Path(place.directory / "out" / name)), place.rows(), name)
