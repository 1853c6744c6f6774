"""A step with ``on_error`` and no bad row, beside the same step: ``python -m benchmarks.rejects``.

Both sides are a bounded job in one session: files, one step, ``weir.sinks.Files``. With
``on_error``, a second query reads the rejects, which never come. The clock starts when the sink
stages its first batch and stops when it has staged the last, so it has the batches and what is
between them, but not the start of the job. The sides alternate, and so does their order within a
pair. The figure is the median of the pairs' ratios; a first pair is not counted. Proof: each run
writes as many rows as the input has.

The steps: ``expressions``, an ANSI cast and a division; ``udf``, ``arrow_udf`` and ``pandas_udf``,
a sum; ``map_in_pandas`` and ``map_in_arrow``; ``operator``, with a counter for each key.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

import weir
from benchmarks.inputs import InputSize, write_input
from benchmarks.machine import make_parser, working_directory
from benchmarks.query import read_input
from benchmarks.tables import TablesDifferError
from benchmarks.weir_side import job_options, weir_session
from weir.core.status import JobStatus
from weir.core.types import Payload
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.sinks.base import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATIO_TARGET = 1.1
_BATCHES = 10


class Counting(Operator):
    """Counts the rows of each key."""

    transient = ("_counts",)

    def initialize_state(self, state: StateStore) -> None:
        """Get the state."""
        self._counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Count, and pass the rows on."""
        counted = batch["key"].value_counts()
        keys = counted.field("values")
        self._counts.put(keys, pc.add(self._counts.get(keys), counted.field("counts")))
        return [batch]


def _expressions(frame: DataFrame) -> DataFrame:
    cents = F.col("amount").cast("int")
    return frame.select("ts", "key", cents.alias("cents"), (cents / (F.col("key") + 1)).alias("x"))


def _summed(udf: Callable[[], Any]) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withColumn("x", udf()("key", "amount"))


def _map_in_pandas(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield batch.assign(amount=batch["amount"] + 1)


def _map_in_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.set_column(2, "amount", pc.add(batch["amount"], 1))


def _pandas_sum(left: pd.Series, right: pd.Series) -> pd.Series:
    return left + right


#: Its types are of another kind of function.
_PANDAS_UDF: Any = pandas_udf
_SCHEMA = "ts timestamp, key int, amount long"
#: An operator, or the function of a step.
_STEPS: dict[str, Operator | Callable[[DataFrame], DataFrame]] = {
    "expressions": _expressions,
    "udf": _summed(lambda: F.udf(lambda left, right: left + right, "long")),
    "arrow_udf": _summed(lambda: F.udf(lambda left, right: left + right, "long", useArrow=True)),
    "pandas_udf": _summed(lambda: _PANDAS_UDF(_pandas_sum, "long")),
    "map_in_pandas": lambda frame: frame.mapInPandas(_map_in_pandas, _SCHEMA),
    "map_in_arrow": lambda frame: frame.mapInArrow(_map_in_arrow, _SCHEMA),
    "operator": Counting(),
}


class _TimedFiles(weir.sinks.Files):
    """A sink that knows when it has staged its first and its last batch, and how many rows."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.begun = 0.0
        self.ended = 0.0
        self.rows = 0

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Stage."""
        self.begun = self.begun or time.perf_counter()
        staged = super().stage(frame, batch)
        self.ended = time.perf_counter()
        return staged

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Commit."""
        rows = super().commit(epoch, payloads)
        self.rows += rows
        return rows


class Bench:
    """Runs jobs over one input, in one session."""

    def __init__(self, directory: Path, size: InputSize) -> None:
        """Write the input."""
        self._directory = directory
        self._size = size
        self._files_per_batch = max(1, size.files // _BATCHES)
        self._runs = 0
        write_input(directory / "input", size)

    def ratio(self, name: str, pairs: int) -> float:
        """The median of the ratios of the time with ``on_error`` to that without."""
        ratios = []
        for pair in range(pairs + 1):
            sides = (False, True) if pair % 2 == 0 else (True, False)
            found = {guarded: self._seconds(name, guarded=guarded) for guarded in sides}
            ratios.append(found[True] / found[False])
            print(
                f"{name} pair {pair}: {found[False]:.2f} s, with on_error {found[True]:.2f} s,"
                f" ratio {ratios[-1]:.3f}{'' if pair else ' (not counted)'}",
                flush=True,
            )
        return statistics.median(ratios[1:])

    def _seconds(self, name: str, *, guarded: bool) -> float:
        self._runs += 1
        output = str(self._directory / str(self._runs))
        job = weir.Job(f"rejects-{self._runs}")

        def read(spark: SparkSession) -> DataFrame:
            return read_input(spark, str(self._directory / "input"), self._files_per_batch)

        source = job.source("read", read, bounded=True)
        bad = job.rejects("bad") if guarded else None
        step = _STEPS[name]
        made = (
            source.process(name, step, key_by="key", parallelism=2, on_error=bad)
            if isinstance(step, Operator)
            else source.transform(name, step, on_error=bad)
        )
        sink = _TimedFiles(f"{output}/table")
        made.sink("table", sink)
        if bad is not None:
            bad.sink("bad_table", weir.sinks.Files(f"{output}/bad"))
        options = job_options(output)
        result = job.run(conf=options.conf)
        if result.status is not JobStatus.FINISHED or sink.rows != self._size.rows + 1:
            raise TablesDifferError(
                f"{name} ended as {result.status.name} with {sink.rows} rows: {result.failure}"
            )
        return sink.ended - sink.begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.rejects", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each comparison")
    parser.add_argument("--rows", type=int, default=4_000_000, help="input rows")
    parser.add_argument("--only", choices=_STEPS, nargs="+", default=[*_STEPS], help="some steps")
    options = parser.parse_args(arguments)
    size = InputSize(files=20, rows_per_file=options.rows // 20, keys=1_000, seconds_per_file=60)
    met, lines = True, []
    with working_directory(options) as directory:
        session = weir_session(str(directory))
        bench = Bench(directory, size)
        for name in options.only:
            ratio = bench.ratio(name, options.pairs)
            met = met and ratio <= RATIO_TARGET
            lines.append(f"rejects {name} ratio={ratio:.3f} target={RATIO_TARGET}")
        session.stop()
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
