"""The cost of one cut through two queries: ``python -m benchmarks.graph``.

One source of Parquet files goes to a table of its raw rows and to a windowed aggregate (count and
sum for each minute and key). Weir: one job that reads the source once,
``source -> [raw sink + channel] -> aggregate -> sink``, with a checkpoint over both queries every
second. Plain Structured Streaming: two concurrent queries in one session, which read the source
twice and share no cut. How the two are kept comparable:

1. *Alike*: input, batches of the source, schema, ``local[2]``, memory, state partitions, RocksDB
   with changelog checkpointing, and Parquet. Everything else is each side's own. The raw table is a
   Delta table on Weir's side; plain Spark has no such sink without another library, so both its
   tables are written by its exactly-once file sink, which is less work.
2. *The clock* runs from the first row to the last. It starts when a query first knows what to read:
   when the planning of the first batch has returned. So the start of a query or a job is not
   measured on either side; ``graph_from_start`` is the figure with the start included. The clock
   stops when both queries have committed the last row: plain, when both have committed the last
   batch that read rows; Weir, when both sinks have committed a checkpoint that was requested as
   soon as the first query had read everything, and whose barrier follows all rows through the
   channel.
3. *The end*: all queries are unbounded and none drains. The last input file, a row one day later,
   closes every window before it. Its batch is measured, but the closed windows are not: the next
   batch emits them, which another row triggers after the clock has stopped. Then the job is
   cancelled and the queries are stopped.
4. *Warm-up*: each run is a process, JVM and session of its own, which first runs the same work on a
   small input.
5. *Pairs*: the sides alternate, and so does their order within a pair. The figure is the median of
   the pairs' ratios.
6. *Proof*: after each run both tables are read with pyarrow and compared with what pyarrow computes
   from the input.

``graph_checkpoint`` is the median duration, from trigger to completion, of the aligned periodic
checkpoints that were triggered while rows flowed, over the median duration of a batch that read
rows. It covers both of Weir's queries and all runs, and leaves out planning, in which a query may
wait. A barrier waits for the current batch of the first query, then for the rows that the second
query has yet to read and for its current batch.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.graph_tables import check_tables, expect
from benchmarks.inputs import InputSize, write_input
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import run_as_child, run_in_process
from benchmarks.runs import Batch, GraphResult, RunSpec, Side

RATIO_TARGET = 1.1
CHECKPOINT_TARGET = 2.0

_BATCHES = 10
_WARM_UP_FILES = 12
_WARM_UP_ROWS = 10_000
_SIDES = (Side.PLAIN, Side.WEIR)
#: The module that runs one side, and its option.
_RUN = ("benchmarks.graph", "--run")


class GraphBench:
    """Runs pairs over one input, each run in a process of its own, below one directory."""

    def __init__(self, directory: Path, size: InputSize, *, files_per_batch: int) -> None:
        """Write the input, and compute the expected tables."""
        self._directory = directory
        self._files_per_batch = files_per_batch
        warm_up = InputSize(
            files=_WARM_UP_FILES * self._files_per_batch,
            rows_per_file=min(size.rows_per_file, _WARM_UP_ROWS),
            keys=size.keys,
            seconds_per_file=size.seconds_per_file,
        )
        write_input(directory / "input", size)
        write_input(directory / "warm-up", warm_up)
        self._expected = expect(directory / "input")

    def pair(self, number: int, *, profile: bool) -> dict[Side, GraphResult]:
        """Run both sides, every other pair in reverse order, and check what they wrote."""
        order = _SIDES if number % 2 == 0 else tuple(reversed(_SIDES))
        results = {side: self._run(f"{number + 1}-{side.value}", side) for side in order}
        for side in _SIDES:
            print(f"pair {number + 1}: {side.value} {self._figures(results[side])}", flush=True)
            if profile:
                print("\n".join(profile_lines(results[side])), flush=True)
        return results

    def _run(self, name: str, side: Side) -> GraphResult:
        directory = self._directory / name
        spec = RunSpec(
            side=side,
            warm_up=str(self._directory / "warm-up"),
            input=str(self._directory / "input"),
            files_per_batch=self._files_per_batch,
            directory=str(directory),
        )
        result = run_in_process(_RUN, spec, directory, GraphResult)
        check_tables(directory, side, self._expected)
        shutil.rmtree(directory)
        return result

    def _figures(self, result: GraphResult) -> str:
        rows_per_s = self._expected.rows / result.elapsed_ms * 1000
        batches = ", ".join(
            f"{query} {len(result.batches_with_rows(query))} of"
            f" {_batch_ms(result.batches_with_rows(query)):.0f} ms"
            for query in result.batches
        )
        line = (
            f"{rows_per_s:,.0f} rows/s ({result.elapsed_ms / 1000:.1f} s,"
            f" {result.elapsed_from_start_ms / 1000:.1f} s from the start); median batches:"
            f" {batches}"
        )
        if result.checkpoints:
            checkpoint_ms = _median(one.duration_ms for one in result.checkpoints_under_way)
            line += (
                f"; {len(result.checkpoints_under_way)} checkpoints, median {checkpoint_ms:.0f} ms"
            )
        return line


def verdict(pairs: Sequence[dict[Side, GraphResult]]) -> tuple[list[str], bool]:
    """The last lines, and whether both targets are met."""
    ratio = _median(pair[Side.PLAIN].elapsed_ms / pair[Side.WEIR].elapsed_ms for pair in pairs)
    from_start = _median(
        pair[Side.PLAIN].elapsed_from_start_ms / pair[Side.WEIR].elapsed_from_start_ms
        for pair in pairs
    )
    runs = [pair[Side.WEIR] for pair in pairs]
    checkpoint_ms = _median(one.duration_ms for run in runs for one in run.checkpoints_under_way)
    batch_ms = _batch_ms(batch for run in runs for batch in run.batches_with_rows())
    checkpoint_ratio = checkpoint_ms / batch_ms
    lines = [
        f"graph_from_start ratio={from_start:.3f}",
        f"graph_checkpoint_times median_ms={checkpoint_ms:.0f} batch_median_ms={batch_ms:.0f}",
        f"graph_checkpoint ratio={checkpoint_ratio:.3f} target={CHECKPOINT_TARGET}",
        f"graph ratio={ratio:.3f} target={RATIO_TARGET}",
    ]
    return lines, checkpoint_ratio <= CHECKPOINT_TARGET and ratio >= RATIO_TARGET


def profile_lines(result: GraphResult) -> list[str]:
    """Where the time of a run went: Spark's phases of a batch, and the parts of checkpoints."""
    lines = []
    for query, batches in result.batches.items():
        phases = sorted(
            {phase for batch in batches for phase in batch.duration_ms} - {"triggerExecution"}
        )
        first, last = batches[0], batches[-1]
        span_ms = last.end_ms - first.planned_ms
        lines.append(
            f"  {query}: from {first.planned_ms - result.begun_ms:.0f} to"
            f" {last.end_ms - result.begun_ms:.0f} ms, busy"
            f" {sum(batch.busy_ms for batch in batches):.0f} of {span_ms:.0f} ms in {len(batches)}"
            f" batches, {sum(1 for batch in batches if not batch.rows)} of them empty"
        )
        lines += [
            f"    {phase}: {_spread(batch.duration_ms.get(phase, 0) for batch in batches)}"
            for phase in phases
        ]
        lines.append(f"    rows: {' '.join(f'{batch.rows:,}' for batch in batches)}")
    lines += [
        f"  stage {sink}: {_spread(found)}" for sink, found in result.stage_ms.items() if found
    ]
    for part in ("delay", "sync", "async"):
        for query in result.batches if result.checkpoints_under_way else ():
            found = [one.tasks[query][part] for one in result.checkpoints_under_way]
            lines.append(f"  checkpoint {part} {query}: {_spread(found)}")
    return lines


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    return f"sum {sum(found):.0f}, median {_median(found):.0f}, max {max(found):.0f} ms"


def _batch_ms(batches: Iterable[Batch]) -> float:
    return _median(batch.busy_ms for batch in batches)


def _median(values: Iterable[float]) -> float:
    """The median; infinite without values, which meets no target."""
    found = list(values)
    return statistics.median(found) if found else float("inf")


def _run(spec: RunSpec) -> GraphResult:
    from benchmarks.graph_sides import run_plain, run_weir

    return run_weir(spec) if spec.side is Side.WEIR else run_plain(spec)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.graph", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of a plain run and a Weir run")
    parser.add_argument("--rows", type=int, default=10_000_000, help="input rows")
    parser.add_argument("--files", type=int, default=40, help="input files, in 10 batches")
    parser.add_argument(
        "--profile", action="store_true", help="print where each run spends its time"
    )
    parser.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        run_as_child(options.run, RunSpec, _run)
        return 0
    size = InputSize(
        files=options.files,
        rows_per_file=options.rows // options.files,
        keys=1_000,
        seconds_per_file=60,
    )
    with working_directory(options) as directory:
        bench = GraphBench(directory, size, files_per_batch=max(1, options.files // _BATCHES))
        pairs = [bench.pair(number, profile=options.profile) for number in range(options.pairs)]
    lines, met = verdict(pairs)
    print("\n".join(lines))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
