"""Stop with checkpoint on real Spark: by request, and by jobs that read what is available now."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.kit.live_job import (
    RESTARTED,
    LiveJob,
    RaiseOnce,
    assert_copied,
    both_jobs,
    numbers,
    numbers_job,
    raw_rows,
    retained,
    settings,
)
from tests.kit.numbers_pipeline import by_minute
from tests.kit.place import ROWS_PER_FILE, Place, Rows, assert_same, files_rows
from tests.kit.waiting import PATIENCE_S

import weir
from weir.coordinators import OperatorCoordinator
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.operators import Operator
from weir.operators.state.store import StateStore

pytestmark = pytest.mark.spark

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def test_a_job_that_was_stopped_with_a_checkpoint_goes_on_by_the_same_command(
    place: Place,
) -> None:
    """What it had read is committed; the next run resumes from that checkpoint."""
    place.land(3)
    with LiveJob(both_jobs(place, bounded=False), settings(place)) as first:
        first.wait_for_records(3 * ROWS_PER_FILE)
        stopped = first.gateway.stop_with_checkpoint().result(PATIENCE_S)
        result = first.result()
    assert (result.status, result.savepoint) == (JobStatus.SUSPENDED, None)
    assert result.checkpoint_id == stopped.checkpoint_id
    assert_copied(place)
    [kept] = retained(place.directory / "checkpoints" / result.job_id)
    assert str(kept) == stopped.external_path
    place.land(2)
    with LiveJob(both_jobs(place, bounded=False), settings(place), until_idle=True) as second:
        assert second.result().status is JobStatus.SUSPENDED
    assert second.job_id == first.job_id
    assert second.restored_ids == [stopped.checkpoint_id]
    assert_copied(place)


def test_a_run_that_fails_in_the_middle_is_restarted_and_reads_to_its_end(place: Place) -> None:
    """What is there is then what is there for that attempt."""
    place.land(3)
    fails = RaiseOnce(OSError("fails once"))
    job = numbers_job(place, bounded=False, stage=fails)
    with LiveJob(job, settings(place, RESTARTED), until_idle=True) as live:
        result = live.result()
    assert (result.status, result.checkpoint_id) == (JobStatus.SUSPENDED, 1)
    assert any("fails once" in note for note in live.notes)
    assert_copied(place)


def test_windows_in_the_query_of_a_file_source_close_before_a_run_ends(place: Place) -> None:
    """Its last watermark takes effect in batches without rows, before the task has caught up."""
    for files in (4, 3):
        place.land(files)
        job = weir.Job("minutes")
        source = weir.sources.FileSource(
            str(place.directory / "in"),
            format="parquet",
            schema="id long, ts timestamp",
            # File by file: of the files of one batch, the oldest makes the watermark.
            max_bytes_per_split_batch=1,
        )
        times = weir.sources.Watermarks(column="ts", delay_ms=10_000)
        minutes = job.source(
            "rows", source, available_now=True, parallelism=1, watermarks=times
        ).transform("by_minute", by_minute)
        minutes.sink("minutes", weir.sinks.Files(str(place.directory / "out" / "minutes")))
        with LiveJob(job, settings(place)) as live:
            assert live.result().status is JobStatus.SUSPENDED, live.notes
        shown = files_rows(place.directory / "out" / "minutes")
        assert_same(shown, place.closed_minutes(), "the minutes that have closed")


class Asks(OperatorCoordinator):
    """Sends every subtask an event for each checkpoint, right before it."""

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """It has no state."""

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """It gets none."""

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        for subtask in range(self.context.current_parallelism):
            self.context.send_event(subtask, {"checkpoint": checkpoint_id})
        return {}


class Held(Operator):
    """Holds rows back until its coordinator asks for them."""

    output_schema = "id long"

    def initialize_state(self, state: StateStore) -> None:
        self._held = state.list_state("held")
        self._asked = state.list_state("asked")

    def handle_operator_event(self, event: Payload) -> None:
        self._asked.add(event["checkpoint"])

    def process_batch(self, batch: pa.RecordBatch) -> None:
        for number in batch.column("id").to_pylist():
            self._held.add(number)

    def end_batch(self) -> list[pa.RecordBatch]:
        held = list(self._held.get())
        if not (self._asked.get() and held):
            return []
        self._asked.clear()
        self._held.clear()
        return [pa.RecordBatch.from_pydict({"id": pa.array(held, pa.int64())})]


def test_events_reach_operators_though_spark_has_read_everything(place: Place) -> None:
    """The query has ended by itself: another one carries the events of the last checkpoint (P2)."""
    for files in (2, 1):
        place.land(files)
        job = weir.Job("held")
        out = weir.sinks.Files(str(place.directory / "out" / "raw"))
        read = job.source("rows", numbers(place), available_now=True)
        read.process("held", Held(), coordinator=Asks(), parallelism=2).sink("out", out)
        with LiveJob(job, settings(place)) as live:
            assert live.result().status is JobStatus.SUSPENDED, live.notes
        expected = Rows({(number,): 1 for number, _ in place.rows()})
        assert_same(raw_rows(place), expected, "the rows that were asked for")
