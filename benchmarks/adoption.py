"""The cost of adopted queries: ``python -m benchmarks.adoption``.

Comparisons over files, each of two Weir jobs with a checkpoint every second:

* ``adopted``: the count and sum for each minute and key, written as a ``weir.Job`` and taken from a
  started query. It should cost the same.
* ``shared``: two queries, a copy of the rows and the aggregation, over one ``load()`` and over two.
  Two readings are two chains that read the files and share no cut; one reading is written to a
  channel that both queries read. Of Parquet, which costs little to read, and (``shared_json``) of
  JSON, which is parsed once or twice.

How the sides are kept comparable: input, batches, sinks and settings are the same. Each run is a
process, JVM and session of its own, which first runs the same work on a small input. The clock
starts when the job is submitted and stops when all sinks have committed a checkpoint that was
requested when all rows had been read from the files. The sides alternate, and so does their order
within a pair; the figure is the median of the pairs' ratios: the time of the first side over that
of the second. After each run the rows of the copy are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq

import weir
from benchmarks.inputs import InputSize, write_input
from benchmarks.machine import make_parser, working_directory
from benchmarks.measured_job import check_running, measure_job
from benchmarks.processes import RunFailedError, run_as_child, run_in_process
from benchmarks.query import read_input, revenue
from benchmarks.weir_side import job_options, weir_session
from weir.adopt.job import job_of
from weir.adopt.outputs.sinks import AdoptedSink
from weir.core.types import Payload
from weir.gateway.job_gateway import JobGateway
from weir.job import definition_of
from weir.spark.adopt.query import Place, StartedQuery, Trigger, TriggerKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCHES = 10
_WARM_UP_FILES = 12
_LOOK_S = 0.02

#: The comparisons: their sides, and the ratio to be reached.
_COMPARED = {
    "adopted": ("job", "query", 0.97),
    "shared": ("twice", "once", 1.0),
    "shared_json": ("json-twice", "json-once", 1.0),
}


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    side: str
    warm_up: str
    input: str
    #: Rows of the two inputs.
    warm_up_rows: int
    rows: int
    files_per_batch: int
    directory: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of one run."""

    elapsed_ms: float


class _Files(weir.sinks.Files):
    """A sink that knows the last epoch that it has committed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.epoch = 0

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit, and note it."""
        rows = super().commit(epoch, payloads)
        self.epoch = epoch
        return rows


class _Sinks:
    """Makes the sinks of a run, and keeps them."""

    def __init__(self) -> None:
        self.made: list[_Files] = []

    def __call__(
        self,
        query: StartedQuery,
        *,
        uid: str,
        updates: bool,
        keys: tuple[str, ...] | None,
        directory: str,
    ) -> AdoptedSink:
        """Files in the query's path."""
        self.made.append(_Files(query.options["path"]))
        return AdoptedSink(sink=self.made[-1])


def _no_socket(
    host: str, port: int, include_timestamp: bool, directory: str
) -> Callable[[SparkSession], DataFrame]:
    raise NotImplementedError


def _copy(frame: DataFrame) -> DataFrame:
    return frame.select("ts", "key", "amount")


def _job(session: SparkSession, spec: Spec, directory: str, output: str, sinks: _Sinks) -> weir.Job:
    """The job of one side."""

    def load(spark: SparkSession) -> DataFrame:
        if not spec.side.startswith("json"):
            return read_input(spark, directory, spec.files_per_batch)
        reader = spark.readStream.schema("ts timestamp, key int, amount long")
        return reader.option("maxFilesPerTrigger", spec.files_per_batch).json(directory)

    if spec.side == "job":
        job = weir.Job("adoption")
        sinks.made.append(_Files(f"{output}/revenue"))
        job.source("orders", load).transform("revenue", revenue).sink("table", sinks.made[0])
        return job
    shapes: dict[str, Callable[[DataFrame], DataFrame]] = {"copy": _copy, "revenue": revenue}
    if spec.side == "query":
        shapes = {"revenue": revenue}
    orders = load(session)
    queries = [
        StartedQuery(
            frame=shape(load(session) if spec.side.endswith("twice") else orders),
            place=Place("adoption.py", 1),
            name=name,
            format="parquet",
            output_mode="append",
            trigger=Trigger(kind=TriggerKind.DEFAULT),
            partition_by=(),
            cluster_by=(),
            options={"path": f"{output}/{name}"},
            table=None,
            each_batch=None,
            each_row=None,
        )
        for name, shape in shapes.items()
    ]
    return job_of(
        queries,
        name="adoption",
        conf={},
        sink_of=sinks,
        landed=_no_socket,
        directory=f"{output}/own",
    ).job


def _run_job(session: SparkSession, spec: Spec, directory: str, output: str, rows: int) -> Result:
    sinks = _Sinks()
    job = _job(session, spec, directory, output, sinks)
    readers = {vertex.name for vertex in definition_of(job).vertices() if not vertex.inputs}

    def measure(gateway: JobGateway, over: threading.Event) -> Result:
        begun = time.perf_counter()
        while any(
            one.records_in < rows for one in gateway.view().vertices if one.vertex in readers
        ):
            check_running(over)
            time.sleep(_LOOK_S)
        requested = gateway.trigger_checkpoint().result().checkpoint_id
        while any(one.epoch < requested for one in sinks.made):
            check_running(over)
            time.sleep(_LOOK_S)
        return Result(elapsed_ms=(time.perf_counter() - begun) * 1000)

    result = measure_job(job, job_options(output), measure)
    copied = Path(output, "copy")
    if copied.exists():
        found = sum(pq.read_metadata(path).num_rows for path in copied.glob("*.parquet"))
        if found != rows:
            raise RunFailedError(f"The copy has {found:,} rows of {rows:,}.")
    return result


def _run(spec: Spec) -> Result:
    session = weir_session(spec.directory)
    try:
        _run_job(session, spec, spec.warm_up, f"{spec.directory}/warm-up", spec.warm_up_rows)
        return _run_job(session, spec, spec.input, spec.directory, spec.rows)
    finally:
        session.stop()


def _write_json(source: Path, target: Path) -> None:
    """Write the rows of Parquet files as lines of JSON, with the same modification times."""
    target.mkdir()
    for path in sorted(source.glob("*.parquet")):
        rows = pq.read_table(path).to_pylist()
        lines = (json.dumps({**row, "ts": row["ts"].isoformat()}) for row in rows)
        written = target / f"{path.stem}.json"
        written.write_text("\n".join(lines))
        modified_s = path.stat().st_mtime
        os.utime(written, (modified_s, modified_s))


class Bench:
    """Runs sides over one input, each in a process of its own, below one directory."""

    def __init__(self, directory: Path, size: InputSize, *, files_per_batch: int) -> None:
        """Write the input."""
        self._directory = directory
        self._size = size
        self._files_per_batch = files_per_batch
        self._warm_up = InputSize(
            files=_WARM_UP_FILES * files_per_batch,
            rows_per_file=min(size.rows_per_file, 10_000),
            keys=size.keys,
            seconds_per_file=size.seconds_per_file,
        )
        for name, written in (("input", size), ("warm-up", self._warm_up)):
            write_input(directory / name, written)
            _write_json(directory / name, directory / f"{name}-json")

    def ratio(self, name: str, pairs: int) -> float:
        """The median of the pairs' ratios."""
        first, second, _ = _COMPARED[name]
        ratios = []
        for number in range(pairs):
            order = (first, second) if number % 2 == 0 else (second, first)
            took = {side: self._run(f"{name}-{number}-{side}", side) for side in order}
            ratios.append(took[first] / took[second])
            figures = "  ".join(f"{side} {took[side] / 1000:.2f} s" for side in (first, second))
            print(f"{name} pair {number + 1}: {figures}", flush=True)
        return statistics.median(ratios)

    def _run(self, name: str, side: str) -> float:
        directory, kind = self._directory / name, "-json" if side.startswith("json") else ""
        spec = Spec(
            side=side,
            warm_up=str(self._directory / f"warm-up{kind}"),
            input=str(self._directory / f"input{kind}"),
            # With the closing row.
            warm_up_rows=self._warm_up.rows + 1,
            rows=self._size.rows + 1,
            files_per_batch=self._files_per_batch,
            directory=str(directory),
        )
        result = run_in_process(("benchmarks.adoption", "--run"), spec, directory, Result)
        shutil.rmtree(directory)
        return result.elapsed_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.adoption", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each comparison")
    parser.add_argument("--rows", type=int, default=4_000_000, help="input rows")
    parser.add_argument("--files", type=int, default=40, help="input files, in 10 batches")
    parser.add_argument("--only", choices=_COMPARED, help="one of the comparisons")
    parser.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        run_as_child(options.run, Spec, _run)
        return 0
    size = InputSize(
        files=options.files,
        rows_per_file=options.rows // options.files,
        keys=1_000,
        seconds_per_file=60,
    )
    met, lines = True, []
    with working_directory(options) as directory:
        bench = Bench(directory, size, files_per_batch=max(1, options.files // _BATCHES))
        for name, (_, _, target) in _COMPARED.items():
            if options.only in (None, name):
                ratio = bench.ratio(name, options.pairs)
                met = met and ratio >= target
                lines.append(f"{name} ratio={ratio:.3f} target={target}")
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
