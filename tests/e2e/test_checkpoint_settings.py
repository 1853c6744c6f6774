"""Checkpoint settings on real Spark: timeout, tolerated failures, concurrency, pause, retention.

The jobs run in this process (``live_job.py``); their results are compared with an independent
computation.
"""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.kit.live_job import (
    Gate,
    LiveJob,
    RaiseOnce,
    assert_copied,
    assert_counted,
    checkpoint_files,
    files_of,
    minutes_job,
    numbers_job,
    raw_rows,
    retained,
    retained_files,
    settings,
    wait_until_copied,
)
from tests.kit.place import Place
from tests.kit.rig import hashes
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.status import JobStatus
from weir.errors import SinkError, StorageError
from weir.rest.client import JobClient
from weir.spark.state.directory import QueryDirectory

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EXPIRED = "Checkpoint expired before completing."
SUBSUMED = "Checkpoint has been subsumed."
NUM_RETAINED = "execution.checkpointing.num-retained"
CLAIM_MODE = "execution.state-recovery.claim-mode"


# -- timeout, tolerable-failed-checkpoints ---------------------------------------------------------


def test_a_checkpoint_expires_in_a_slow_batch_and_the_next_one_completes(place: Place) -> None:
    """The first batch exceeds the timeout: a checkpoint fails, the job goes on, and the result is
    exact."""
    place.land(5)
    gate = Gate(nth=1)
    job = numbers_job(place, bounded=True, stage=gate)
    conf = settings(place, interval="200ms", timeout="1s", tolerable_failed_checkpoints="1000")
    with LiveJob(job, conf) as live, gate:
        live.wait_for(
            lambda view: view.checkpoints.latest_failed is not None, "a checkpoint expires"
        )
        # Later ones may be declined, since the task ends.
        failed = live.history("FAILED")
        gate.open()
        assert live.result().status is JobStatus.FINISHED
    assert failed
    for checkpoint in failed:
        assert str(checkpoint.failure_message).startswith(EXPIRED)
        assert checkpoint.end_to_end_duration_ms >= 1000
    assert live.history("COMPLETED")[-1].checkpoint_id > failed[-1].checkpoint_id
    assert live.gateway.view().attempt == 1
    assert_copied(place)


def test_checkpoints_complete_while_a_batch_of_a_source_takes_long(place: Place) -> None:
    """They hold what the batches before it have read."""
    place.land(5)
    gate = Gate(nth=3)
    job = numbers_job(place, bounded=True, stage=gate)
    with LiveJob(job, settings(place, interval="200ms")) as live, gate:
        live.wait_for(lambda view: view.vertices[0].position == 1, "two batches are complete")
        known = live.gateway.view().checkpoints.counts.completed
        live.wait_for(
            lambda view: view.checkpoints.counts.completed >= known + 2,
            "checkpoints complete beside the third batch",
        )
        # Later ones may be declined, since the task ends.
        assert not live.history("FAILED")
        gate.open()
        assert live.result().status is JobStatus.FINISHED
    assert_copied(place)


def declining_job(place: Place, how: str, monkeypatch: pytest.MonkeyPatch) -> weir.Job:
    """A job whose first snapshot with rows fails, in its synchronous or its asynchronous part."""
    if how == "asynchronous":
        return numbers_job(place, bounded=True, flush=RaiseOnce(SinkError("the press has jammed")))
    fail_once, log_entries = (
        RaiseOnce(StorageError("the press has jammed")),
        QueryDirectory.log_entries,
    )

    def failing(directory: QueryDirectory, position: int) -> dict[str, str]:
        fail_once()
        return log_entries(directory, position)

    monkeypatch.setattr(QueryDirectory, "log_entries", failing)
    return numbers_job(place, bounded=True)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("synchronous", "Checkpoint was declined."),
        ("asynchronous", "Asynchronous task checkpoint failed."),
    ],
)
def test_a_declined_checkpoint_is_counted_with_its_reason_and_the_next_one_completes(
    place: Place, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    """One failure is tolerated: it has reason, checkpoint and cause, and the next one commits its
    staged output."""
    place.land(4)
    job = declining_job(place, how, monkeypatch)
    conf = settings(place, interval="100ms", tolerable_failed_checkpoints="1")
    with LiveJob(job, conf) as live:
        assert live.result().status is JobStatus.FINISHED
    declined, *_ = live.history("FAILED")
    assert str(declined.failure_message).startswith(reason)
    assert f"Could not complete snapshot {declined.checkpoint_id} for operator" in str(
        declined.failure_message
    )
    assert "the press has jammed" in str(declined.failure_message)
    assert live.gateway.view().checkpoints.counts.failed >= 1
    assert live.history("COMPLETED")[-1].checkpoint_id > declined.checkpoint_id
    assert live.gateway.view().attempt == 1
    assert_copied(place)


def test_one_declined_checkpoint_more_than_is_tolerated_restarts_the_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is tolerated: the job fails over, starts a second attempt, and the result is exact."""
    place.land(4)
    job = declining_job(place, "asynchronous", monkeypatch)
    restart = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10ms"}
    with LiveJob(job, settings(place, restart, interval="100ms")) as live:
        assert live.result().status is JobStatus.FINISHED
    view = live.gateway.view()
    assert view.attempt == 2
    (why,) = view.exceptions
    assert why.message.startswith("Exceeded checkpoint tolerable failure threshold.")
    assert "the press has jammed" in why.message
    assert_copied(place)


# -- max-concurrent-checkpoints, min-pause ---------------------------------------------------------


def test_two_checkpoints_are_in_flight_at_once_and_never_three(place: Place) -> None:
    """While a sink's flush is held a second one starts and records flow; a third waits, as REST
    shows."""
    place.land(2)
    gate = Gate(nth=1)
    job = numbers_job(place, bounded=False, flush=gate)
    with (
        LiveJob(job, settings(place, interval="100ms", max_concurrent_checkpoints="2")) as live,
        gate,
    ):
        live.wait_for(lambda view: view.checkpoints.counts.in_progress == 2, "two are in flight")
        in_flight = [checkpoint.checkpoint_id for checkpoint in live.history("IN_PROGRESS")]
        place.land(2)
        live.wait_for_steps(4)
        time.sleep(1.0)
        assert [checkpoint.checkpoint_id for checkpoint in live.history("IN_PROGRESS")] == in_flight
        assert (
            max(known.checkpoint_id for known in live.gateway.view().checkpoints.history)
            == in_flight[1]
        )
        with JobClient(live.address, live.job_id) as client:
            assert client.checkpoints().counts.in_progress == 2
        assert raw_rows(place).total() == 0
        gate.open()
        wait_until_copied(place)
        # A view may be older than what the sinks have committed. The newer of two in flight may be
        # faster: then it subsumes the older.
        live.wait_for(lambda view: view.checkpoints.counts.completed > 1, "two completed")
        still = {checkpoint.checkpoint_id for checkpoint in live.history("IN_PROGRESS")}
        assert still.isdisjoint(in_flight)
        for failed in live.history("FAILED"):
            assert str(failed.failure_message).startswith(SUBSUMED)
        live.cancel()
    assert_copied(place)


@pytest.mark.slow
def test_the_pause_between_two_periodic_checkpoints_is_never_below_min_pause(place: Place) -> None:
    """Each takes 300 ms of the 500 ms interval: without the pause of 400 ms the next would come
    after 200."""
    place.land(1)

    def slow_flush() -> None:
        # The next checkpoint also has something to flush.
        if len(list(place.directory.glob("in/*"))) < 6:
            place.land(1)
        time.sleep(0.3)

    job = numbers_job(place, bounded=False, flush=slow_flush)
    with LiveJob(job, settings(place, interval="500ms", min_pause="400ms")) as live:
        wait_until(lambda: raw_rows(place).total() == 6 * 40, "six files are committed")
        live.cancel()
    triggered = [*live.history("COMPLETED"), *live.history("FAILED")]
    pauses = [
        (after.trigger_timestamp_ms - before.trigger_timestamp_ms - before.end_to_end_duration_ms)
        for before, after in pairwise(sorted(triggered, key=lambda known: known.checkpoint_id))
        if before.end_to_end_duration_ms >= 300
    ]
    assert len(pauses) >= 5
    # Both clocks have millisecond resolution.
    assert min(pauses) >= 400 - 2
    assert_copied(place)


# -- num-retained ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_fifty_checkpoints_the_directory_holds_the_retained_ones_and_nothing_else(
    place: Place,
) -> None:
    """Two are retained: each is complete, no other file is left, and the newest restores
    exactly."""
    conf = settings(place, num_retained="2")
    place.land(1)
    with LiveJob(minutes_job(place, bounded=False), conf) as live:
        live.wait_until_it_runs()
        for _ in range(10):
            place.land(2)
            requests = [live.gateway.trigger_checkpoint() for _ in range(5)]
            newest = max(request.result(PATIENCE_S).checkpoint_id for request in requests)
        directory = place.directory / "checkpoints" / live.job_id
        wait_until(
            lambda: checkpoint_files(directory) == retained_files(directory),
            "what nobody needs is deleted",
        )
    assert newest == 50
    assert [path.name for path in retained(directory)] == ["chk-49", "chk-50"]
    kept = retained_files(directory)
    assert checkpoint_files(directory) == kept
    assert {path.name for path in directory.iterdir()} == {
        "log",
        "ids",
        "shared",
        "chk-49",
        "chk-50",
    }
    writers = {path.split("/")[1] for path in kept if path.startswith("shared/")}
    assert len(writers - {"49", "50"}) > 1, "they share files with checkpoints that are long gone"

    with LiveJob(minutes_job(place, bounded=True), conf) as live:
        assert live.result().status is JobStatus.FINISHED
    assert live.restored_ids == [50]
    assert_counted(place)


# -- claim mode ------------------------------------------------------------------------------------


def a_snapshot(place: Place, kind: str, conf: dict[str, str]) -> Path:
    """A savepoint, or the newer of two retained checkpoints, of a cancelled job."""
    place.land(1)
    with LiveJob(minutes_job(place, bounded=False), conf) as live:
        live.checkpoint()
        place.land(1)
        live.wait_for_steps(2)
        path = live.savepoint() if kind == "savepoint" else Path(live.checkpoint().external_path)
        live.cancel()
    return path


def assert_goes_on_exactly(place: Place, conf: dict[str, str], newest: int) -> None:
    """Check that the job ``next`` continues from its own newest checkpoint to its end."""
    with LiveJob(minutes_job(place, bounded=True, name="next"), conf) as live:
        assert live.result().status is JobStatus.FINISHED
    assert live.restored_ids == [newest]
    assert_counted(place)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_a_snapshot_that_is_not_claimed_is_left_alone_and_soon_not_needed(
    place: Place, kind: str
) -> None:
    """NO_CLAIM: after several checkpoints it is unchanged byte for byte, and the job goes on
    without it."""
    conf = settings(place)
    snapshot = a_snapshot(place, kind, conf | {NUM_RETAINED: "2"})
    owned = snapshot if kind == "savepoint" else snapshot.parent
    before = hashes(owned)
    conf |= {CLAIM_MODE: "NO_CLAIM"}
    job = minutes_job(place, bounded=False, name="next")
    with LiveJob(job, conf, from_savepoint=str(snapshot)) as live:
        for _ in range(3):
            place.land(1)
            newest = live.checkpoint().checkpoint_id
    assert hashes(owned) == before
    shutil.rmtree(owned)
    assert_goes_on_exactly(place, conf, newest)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_a_claimed_snapshot_is_deleted_once_the_job_retains_its_own(
    place: Place, kind: str
) -> None:
    """CLAIM with num-retained 2: it exists after one checkpoint, not after two, and the job goes on
    without it."""
    conf = settings(place) | {NUM_RETAINED: "2"}
    snapshot = a_snapshot(place, kind, conf)
    conf |= {CLAIM_MODE: "CLAIM"}
    job = minutes_job(place, bounded=False, name="next")
    with LiveJob(job, conf, from_savepoint=str(snapshot)) as live:
        place.land(1)
        live.checkpoint()
        assert (snapshot / "_metadata").exists()
        place.land(1)
        newest = live.checkpoint().checkpoint_id
        assert not snapshot.exists()
    if kind == "checkpoint":
        # The previous one was not claimed: it is complete, and nothing else is left.
        assert checkpoint_files(snapshot.parent) == files_of(snapshot.with_name("chk-1"))
    assert_goes_on_exactly(place, conf, newest)
