"""Inputs that cannot be read or processed, on real Spark: each fails the job by name in the end.

Each job reads a good file first, and completes checkpoints all the time.
"""

from __future__ import annotations

import os
import re
import signal
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.kit import ranges
from tests.kit.live_job import RESTARTED, LiveJob, settings, wait_until_copied
from tests.kit.place import ROWS_PER_FILE, Place
from tests.kit.ranges import Range, Ranges, RangesReader

import weir
from weir.core.job.restart import GIVEN_UP_FROM
from weir.core.status import JobStatus
from weir.errors import StorageError
from weir.operators import Operator
from weir.sources import Fetched, SourceReaderContext

pytestmark = pytest.mark.spark

# Spark's workers do not have these modules.
for module in (ranges, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

#: The first row of the second file.
BAD = ROWS_PER_FILE + 1


class Raises(Operator):
    """Raises for one row what an outage of Weir's own storage raises."""

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if BAD in batch["id"].to_pylist():
            raise StorageError("The store is away.")
        return [batch]


class Killing(Ranges):
    """Numbers, one of which kills the process that reads it, as a broken native library does."""

    def create_reader(self, context: SourceReaderContext) -> RangesReader:
        return KillingReader(context, self)


class KillingReader(RangesReader):
    """Reads two numbers at a time."""

    def fetch(self, split: Range, max_rows: int) -> Fetched[Range]:
        if split.position == 8:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().fetch(split, max_rows)


def job_with(place: Place, failing: str) -> weir.Job:
    """A job that fails at a file, in a reader or in an operator."""
    job = weir.Job("failing")
    files = weir.sources.FileSource(
        str(place.directory / "in"),
        format="parquet",
        schema="id long, ts timestamp",
        discovery_interval=0.1,
        max_bytes_per_split_batch=1,
    )
    if failing == "reader":
        stream = job.source("numbers", Killing(Range("r0", 0, 99), bounded=False), parallelism=1)
    else:
        stream = job.source("in", files, parallelism=2)
    if failing == "operator":
        stream = stream.process("strict", Raises(), parallelism=1)
    stream.sink("raw", weir.sinks.Files(str(place.directory / "out" / "raw")))
    return job


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("failing", "names"),
    [
        (
            "file",
            r"Task 'in' failed: The file .*/in/broken cannot be read \(ArrowInvalid: .*"
            r" \(reading split 'broken' at FileSplit\(",
        ),
        (
            "reader",
            r"Task 'numbers' failed: Python worker crashed: Segmentation fault \(in fetch, .*"
            r"; reading split 'r0' at Range\(split_id='r0', position=8, end=99\);"
            r" subtask 0 of 'numbers'; batch \d+",
        ),
        pytest.param(
            "operator",
            r"Task 'strict' failed: The store is away\. \(in process_batch, .*"
            r"; subtask 0 of 'strict', its record batch 0 .*; batch \d+",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_input_that_fails_again_and_again_fails_the_job_though_checkpoints_complete(
    place: Place, failing: str, names: str
) -> None:
    """Whatever it raises, also where that is a connection or a storage, or nothing because the
    process dies: the message has the step, the split or file, and how often it failed."""
    conf = settings(
        place,
        {
            **RESTARTED,
            "restart-strategy.fixed-delay.attempts": "100",
            "restart-strategy.fixed-delay.delay": "300ms",
            "weir.restart.give-up-after": "1 s",
        },
        interval="50ms",
    )
    place.land(1)
    with LiveJob(job_with(place, failing), conf) as live:
        if failing == "file":
            wait_until_copied(place)
            (place.directory / "in" / "broken").write_text("broken")
        elif failing == "operator":
            wait_until_copied(place)
            place.land(1)
        result = live.result()
        view = live.gateway.view()
    assert result.status is JobStatus.FAILED
    assert re.search(names, result.failure or ""), result.failure
    counted = re.search(
        r"\(failure (\d+) with the same cause in \d+ s at the same input, which no completed"
        r" checkpoint contains; the job is given up after 1 s",
        result.failure or "",
    )
    assert counted is not None, result.failure
    assert GIVEN_UP_FROM <= int(counted[1]) <= view.attempt < GIVEN_UP_FROM + 5
    assert view.checkpoints.counts.completed > 1
