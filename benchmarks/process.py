"""Python operators: ``python -m benchmarks.process``.

``process``: a keyed running count, for every row, of 10 million rows with 100,000 keys, in Arrow
batches, with a checkpoint every second. The clock runs from the task's status RUNNING until a
checkpoint, requested when the last row was read, is complete. The target,
1,250,000 rows/s, is 100 times the best that a keyed process function in Python reached under
PyFlink on such a machine. Proof: the counts of each key are 1, 2, 3 ... up to its number of input
rows.

``process_coordinator``: the time that a coordinator adds to a small batch when it sends an event to
a subtask for every batch. Files of 100 rows are read one a batch, in alternating pairs with the
same operator without a coordinator. Target: less than 20 ms.

``process_timers``: timers per second, each registered for one row, fired, and shown by a row. 4
million rows, each with a key of its own; the clock runs as above.

``process_small_batch``: the time of a batch of 100 rows through the running count, with its state.
Files are read one a batch. Target: 250 ms.

``process_event``: the time from sending an event until it is back, through an operator whose query
is at rest. An event must arrive within 300 ms; this figure is the round trip.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import weir
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.tables import TablesDifferError
from benchmarks.weir_side import job_options
from weir.coordinators import OperatorCoordinator
from weir.core.types import Payload, TaskStatus
from weir.gateway.job_gateway import JobGateway
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers

ROWS_PER_S_TARGET = 1_250_000
ADDED_MS_TARGET = 20.0
SMALL_BATCH_MS_TARGET = 250.0
EVENT_MS_TARGET = 300.0

_POLL_S = 0.05
_ROUND_TRIPS = 20


class RunningCount(Operator):
    """Counts, for each row, how often its key has occurred, this row included."""

    output_schema = "key long, n long"

    def initialize_state(self, state: StateStore) -> None:
        """Declare the state of the counts."""
        self._counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Rank the rows of each key within the batch, and add what was counted before."""
        encoded = batch.column("key").dictionary_encode()
        codes = encoded.indices.to_numpy()
        keys = encoded.dictionary
        order = np.argsort(codes, kind="stable")
        counted = np.bincount(codes, minlength=len(keys))
        first = np.cumsum(counted) - counted
        before = self._counts.get(keys).to_numpy()
        numbers = np.empty(len(codes), np.int64)
        numbers[order] = np.arange(len(codes)) - first[codes[order]] + before[codes[order]] + 1
        self._counts.put(keys, pa.array(before + counted))
        return [pa.RecordBatch.from_pydict({"key": batch.column("key"), "n": numbers})]


class Alarms(Operator):
    """Registers a timer for each row that is due at once, and emits the key when it fires."""

    def initialize_state(self, state: StateStore) -> None:
        """Declare the timers."""
        self._timers = state.processing_timers()

    def process_batch(self, batch: pa.RecordBatch) -> None:
        """Register the timers."""
        keys = batch.column("key")
        self._timers.register(keys, pa.repeat(pa.scalar(1, pa.int64()), len(keys)))

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Emit the keys."""
        return [due.select(["key"])]


class Echo(Operator):
    """Passes rows on, and sends events back."""

    def handle_operator_event(self, event: Payload) -> None:
        """Send the event back."""
        self.context.send_event_to_coordinator(event)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Pass the batch on unchanged."""
        return [batch]


class Pings(OperatorCoordinator):
    """Sends one event at a time, each ``pause_ms`` after the previous one came back."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._sent_s = 0.0
        #: The round-trip time of each event.
        self.round_trips_ms: list[float] = []

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Schedule the first event."""
        self.context.schedule(self._pause_ms, self._send)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Record the round trip, and schedule the next event."""
        self.round_trips_ms.append((time.perf_counter() - self._sent_s) * 1000)
        self.context.schedule(self._pause_ms, self._send)

    def checkpoint_coordinator(self, checkpoint_id: int) -> None:
        """Return no state: there is nothing to keep."""

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self.context.send_event(0, {"ping": len(self.round_trips_ms)})


def write_keys(directory: Path, *, files: int, rows: int, keys: int) -> None:
    """Write files of random keys; the same numbers give the same rows."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(11)
    for number in range(files):
        path = directory / f"{number:06}.parquet"
        pq.write_table(pa.table({"key": random.integers(0, keys, rows)}), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def make_job(
    directory: Path,
    source: Path,
    operator: Operator,
    coordinator: OperatorCoordinator | None,
    key_by: str | None,
) -> weir.Job:
    """A job that passes keys through the operator, in two subtasks, into files."""
    job = weir.Job("process")
    keys = job.source(
        "keys",
        lambda spark: (
            spark.readStream.schema("key long").option("maxFilesPerTrigger", 1).parquet(str(source))
        ),
    )
    stream = keys.process(
        "operator", operator, coordinator=coordinator, parallelism=2, key_by=key_by
    )
    stream.sink("out", weir.sinks.Files(str(directory / "out")))
    return job


def all_completed(rows: int, gateway: JobGateway, over: threading.Event) -> float:
    """Seconds from the task's status RUNNING until a completed checkpoint holds every row."""
    while gateway.view().vertices[0].status is not TaskStatus.RUNNING:
        check_running(over)
        time.sleep(_POLL_S)
    begun = time.perf_counter()
    while gateway.view().vertices[0].records_in < rows:
        check_running(over)
        time.sleep(_POLL_S)
    gateway.trigger_checkpoint().result()
    return time.perf_counter() - begun


def measure_throughput(directory: Path, *, files: int, rows: int, keys: int) -> float:
    """Rows per second of one run, whose counts are checked."""
    source, target = directory / "keys", directory / f"count-{time.monotonic_ns()}"
    if not source.exists():
        write_keys(source, files=files, rows=rows // files, keys=keys)
    job = make_job(target, source, RunningCount(), None, "key")
    seconds = measure_job(
        job, job_options(str(target)), lambda g, over: all_completed(rows, g, over)
    )
    check_counts(source, target / "out")
    print(
        f"process: {rows:,} rows, {keys:,} keys in {seconds:.1f} s: {rows / seconds:,.0f} rows/s",
        flush=True,
    )
    return rows / seconds


def measure_timers(directory: Path, *, files: int, rows: int) -> float:
    """Timers per second of one run in which each fires exactly once."""
    source, target = directory / "alarms", directory / f"alarms-{time.monotonic_ns()}"
    if not source.exists():
        source.mkdir()
        for number in range(files):
            first = number * rows
            keys = pa.table({"key": np.arange(first, first + rows)})
            pq.write_table(keys, source / f"{number:06}.parquet")
    job = make_job(target, source, Alarms(), None, "key")
    count = files * rows
    seconds = measure_job(
        job, job_options(str(target)), lambda g, over: all_completed(count, g, over)
    )
    fired = np.sort(ds.dataset(target / "out", format="parquet").to_table()["key"].to_numpy())
    if not np.array_equal(fired, np.arange(count)):
        raise TablesDifferError("A timer did not fire, or fired twice.")
    return count / seconds


def check_counts(source: Path, out: Path) -> None:
    """Check that each key was counted from 1 to its number of rows.

    Raises ``TablesDifferError``.
    """
    found = (
        ds.dataset(out, format="parquet")
        .to_table()
        .sort_by([("key", "ascending"), ("n", "ascending")])
    )
    keys = np.sort(ds.dataset(source, format="parquet").to_table()["key"].to_numpy())
    if not np.array_equal(found["key"].to_numpy(), keys):
        raise TablesDifferError("The rows differ from the input.")
    first = np.searchsorted(keys, keys, "left")
    if not np.array_equal(found["n"].to_numpy(), np.arange(len(keys)) - first + 1):
        raise TablesDifferError("A count is wrong.")


def measure_batches(
    directory: Path,
    name: str,
    operator: Operator,
    *,
    files: int,
    coordinator: OperatorCoordinator | None = None,
    key_by: str | None = None,
) -> float:
    """Milliseconds for a batch of 100 rows."""
    source, target = directory / f"small-{files}", directory / name
    if not source.exists():
        write_keys(source, files=files, rows=100, keys=10)
    job = make_job(target, source, operator, coordinator, key_by)
    seconds = measure_job(
        job,
        job_options(str(target), interval="10 s"),
        lambda g, over: all_completed(files * 100, g, over),
    )
    return seconds / files * 1000


def measure_round_trips(directory: Path) -> list[float]:
    """Round-trip times of events to a query at rest."""
    source, pings = directory / "none", Pings(pause_ms=200)
    write_keys(source, files=1, rows=1, keys=1)

    def wait(gateway: JobGateway, over: threading.Event) -> list[float]:
        while len(pings.round_trips_ms) < _ROUND_TRIPS + 1:
            check_running(over)
            time.sleep(_POLL_S)
        # The first event waits for the query to start.
        return pings.round_trips_ms[1:]

    job = make_job(directory / "rest", source, Echo(), pings, None)
    return measure_job(job, job_options(str(directory / "rest"), interval="10 s"), wait)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("benchmarks.process", __doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the running count")
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the running count")
    parser.add_argument(
        "--files", type=int, default=5, help="files of the running count, one per batch"
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of the running count, after a warm-up"
    )
    parser.add_argument("--pairs", type=int, default=5, help="pairs with and without a coordinator")
    parser.add_argument(
        "--small-files", type=int, default=100, help="files of 100 rows, one per batch"
    )
    parser.add_argument("--timers", type=int, default=4_000_000, help="timers to be fired")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    chosen = _parser().parse_args(arguments)
    with working_directory(chosen) as directory:
        size = {"files": chosen.files, "rows": chosen.rows, "keys": chosen.keys}
        rates = [measure_throughput(directory, **size) for _ in range(chosen.runs + 1)][1:]
        added = []
        for pair in range(chosen.pairs):
            sides = {"without": None, "with": Pings(pause_ms=1)}
            order = list(sides) if pair % 2 == 0 else list(reversed(sides))
            ms = {
                side: measure_batches(
                    directory,
                    f"{side}-{pair}",
                    Echo(),
                    files=chosen.small_files,
                    coordinator=sides[side],
                )
                for side in order
            }
            added.append(ms["with"] - ms["without"])
            print(
                f"pair {pair + 1}: without {ms['without']:.1f} ms, with {ms['with']:.1f} ms per"
                " batch",
                flush=True,
            )
        small = [
            measure_batches(
                directory, f"small-{run}", RunningCount(), files=chosen.small_files, key_by="key"
            )
            for run in range(chosen.runs)
        ]
        print(f"small batches: {', '.join(f'{ms:.0f} ms' for ms in small)}", flush=True)
        timers = [
            measure_timers(directory, files=4, rows=chosen.timers // 4) for _ in range(chosen.runs)
        ]
        print(f"timers: {', '.join(f'{rate:,.0f}/s' for rate in timers)}", flush=True)
        trips = measure_round_trips(directory)
    rate, added_ms, event_ms = (
        statistics.median(rates),
        statistics.median(added),
        statistics.median(trips),
    )
    small_ms = statistics.median(small)
    print(f"process_timers per_s={statistics.median(timers):.0f}")
    print(f"process_small_batch ms={small_ms:.0f} target={SMALL_BATCH_MS_TARGET:.0f}")
    print(f"process_coordinator added_ms={added_ms:.1f} target={ADDED_MS_TARGET:.0f}")
    print(f"process_event ms={event_ms:.0f} max_ms={max(trips):.0f} target={EVENT_MS_TARGET:.0f}")
    print(f"process rows_per_s={rate:.0f} target={ROWS_PER_S_TARGET}")
    met = (
        rate >= ROWS_PER_S_TARGET
        and added_ms < ADDED_MS_TARGET
        and small_ms <= SMALL_BATCH_MS_TARGET
        and event_ms <= EVENT_MS_TARGET
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
