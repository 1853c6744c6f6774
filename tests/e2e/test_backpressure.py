"""A slow consumer: its backlog is bounded, and a checkpoint restores exactly.

The consumer's sink holds its second batch until the channel is full: before it has reported its
first one, the producer rests after two segments. An aligned checkpoint waits until the consumer has
read what precedes the barrier; an unaligned one stores it (PROTOCOL P27).
"""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import Gate, LiveJob, WatchedFiles, numbers, settings
from tests.kit.place import Place, assert_same, files_rows
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.status import JobStatus
from weir.core.task.output_channels import ChannelBound
from weir.monitoring.views import JobView

pytestmark = pytest.mark.spark

BOUND = ChannelBound().segments


def two_queries(place: Place, gate: Gate) -> weir.Job:
    """The numbers, copied directly and through a channel by a sink that waits at the gate."""
    out = place.directory / "out"
    job = weir.Job("slow")
    read = job.source("numbers", numbers(place), bounded=True)
    read.sink("raw", WatchedFiles(out / "raw"))
    read.transform("behind", lambda frame: frame.filter("id >= 0")).sink(
        "copy", WatchedFiles(out / "copy", stage=gate)
    )
    return job


def segments(place: Place) -> list[int]:
    """The positions in the channel. What the consumer has read is deleted."""
    found = place.directory.glob("work/*/*/_channels/numbers/*")
    return sorted(int(path.name) for path in found if path.is_dir())


def is_full(view: JobView) -> bool:
    """Whether the producer has completed as many segments as the channel may hold."""
    return any(channel.segments == BOUND for vertex in view.vertices for channel in vertex.outputs)


def producer_has_acknowledged(view: JobView) -> bool:
    """Whether the producer has taken its snapshot, and so emitted its barrier."""
    return any(
        task.vertex == "numbers" and task.ack_timestamp_ms is not None
        for checkpoint in view.checkpoints.history
        for task in checkpoint.tasks
    )


@pytest.mark.parametrize(
    "unaligned", [pytest.param(False, marks=pytest.mark.slow), True], ids=["aligned", "unaligned"]
)
def test_a_full_channel_holds_its_producer_and_a_checkpoint_restores_exactly(
    place: Place, spark: SparkSession, unaligned: bool
) -> None:
    """The producer stops at the bound; then the checkpoint is triggered, and the job is left and
    run again."""
    del spark
    place.land(BOUND * 2)
    changes = {"execution.checkpointing.unaligned.enabled": str(unaligned).lower()}
    conf = settings(place, changes)
    with LiveJob(two_queries(place, gate := Gate(2)), conf) as live, gate:
        # A checkpoint in the middle of a batch would not have that batch's segment.
        live.wait_for(is_full, "the channel is full, and no batch runs that fills it")
        wait_until(lambda: len(segments(place)) == BOUND, "what was read is deleted")
        time.sleep(1.0)
        waiting = segments(place)
        assert len(waiting) == BOUND
        asked = live.gateway.trigger_checkpoint()
        live.wait_for(producer_has_acknowledged, "the producer's barrier is in the channel")
        gate.open()
        taken = asked.result(PATIENCE_S)
    behind = taken.task("behind")
    assert behind is not None
    # The held batch has the first of them: one, or all that existed when it was planned.
    overtaken = [segment.position for segment in behind.in_flight]
    assert overtaken == (waiting[-len(overtaken) :] if unaligned else [])
    assert len(overtaken) >= (BOUND // 2 if unaligned else 0)

    with LiveJob(two_queries(place, Gate(0)), conf) as again:
        assert again.result().status is JobStatus.FINISHED, again.notes
    assert again.restored_ids[0] == taken.checkpoint_id
    for name in ("raw", "copy"):
        assert_same(files_rows(place.directory / "out" / name), place.rows(), name)
