"""From the command to the first committed row: ``python -m benchmarks.start``.

``start``: one query from files to files, once as a plain script
(``benchmarks/jobs/copy_plain.py``), once as a job (``copy_weir.py``). ``start_graph``: the four
tables of ``examples/flights.py``, once as four plain queries in one session (``flights_plain.py``),
once as the example's job of five queries. How the sides are kept comparable:

1. *The clock* starts just before the process: before ``python SCRIPT`` and before
   ``weir run PIPELINE``. It stops when a reader of the table sees a row: on the plain side, when
   the sink's log names a file with rows; on Weir's side, when the file has its final name, or the
   Delta log names it. The graph has one such time for each table. The figure is the time of the
   last table; ``start_graph_first`` is the time of the first one.
2. *Alike*: input, batches, the queries, ``local[2]``, memory, state partitions, state store. Weir
   takes a checkpoint every 200 ms, because a row is committed with a checkpoint; plain Spark
   commits each batch. The tables of the flights are Delta tables on Weir's side and Spark's own
   exactly-once files on the other.
3. *With a class archive*, which ``weir warmup`` makes once for a machine, Weir's JVM starts with
   parsed classes. The lines that end in ``_warm`` compare it with plain Spark, which has no
   archive. In the other runs of Weir the archive is disabled.
4. *Pairs*: the sides alternate, every other pair in reverse order. The figure is the median of the
   pairs' ratios. One run of each side before the first pair does not count: it brings the files of
   Java, Spark and Python into memory.
5. *Proof*: the rows that are committed when a run ends must be rows of the whole result, none of
   them twice. For the flights the whole result is the demo's own reference, which shares no code
   with either side.

``recovery``: the driver of ``copy_weir.py`` is killed while files land; see
``benchmarks/start_recovery.py``.
"""

from __future__ import annotations

import enum
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.commands import JOBS, make_class_archive, weir_run
from benchmarks.machine import make_parser, working_directory
from benchmarks.plain_side import ROCKSDB
from benchmarks.processes import check_alive, end_on_sigterm, started
from benchmarks.query import COMMON_SETTINGS, MASTER
from benchmarks.start_recovery import measure_recoveries
from benchmarks.tables import check_part, has_rows, read_committed
from weir.demo.landing import land
from weir.demo.reference import expected_tables

RATIO_TARGET = 1.0
WARM_RATIO_TARGET = 0.6
RECOVERY_MS_TARGET = 6_000

#: How long a process may take until its last table has a row.
_PATIENCE_S = 300.0
#: How often the tables are polled: short against the measured times, and rare enough to leave the
#: cores alone.
_LOOK_S = 0.02
_INTERVAL = "200 ms"
_ROWS = 10_000
_FLIGHTS = Path(__file__).parents[1] / "examples" / "flights.py"


class Side(enum.Enum):
    """The side that runs the queries."""

    PLAIN = "plain"
    WEIR = "Weir"
    #: With the archive of ``weir warmup``.
    WARM = "Weir with its class archive"


#: Milliseconds from the command to the first committed row of each table.
FirstRows = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A program that both sides start."""

    #: The name of the figure.
    name: str
    plain_script: Path
    pipeline: Path
    #: The tables' paths below a run's directory, by name.
    tables: Mapping[str, str]
    #: The rows of each table when the whole input is read.
    expected: Mapping[str, pa.Table]
    environment: Mapping[str, str]


def copy_subject(directory: Path) -> Subject:
    """The copy of one small file of rows."""
    rows = pa.table({"id": range(_ROWS), "amount": range(_ROWS)})
    landing = directory / "rows"
    landing.mkdir()
    pq.write_table(rows, landing / "0.parquet")
    return Subject(
        name="start",
        plain_script=JOBS / "copy_plain.py",
        pipeline=JOBS / "copy_weir.py",
        tables={"table": "table"},
        expected={"table": rows},
        environment={"WEIR_BENCH_LANDING": str(landing)},
    )


def flights_subject(directory: Path) -> Subject:
    """The flights example, with the demo's landing files of the whole year."""
    landing = directory / "landing"
    land(landing)
    expected = expected_tables(landing)
    return Subject(
        name="start_graph",
        plain_script=JOBS / "flights_plain.py",
        pipeline=_FLIGHTS,
        tables={name: f"out/{name}" for name in expected},
        expected=expected,
        environment={"WEIR_FLIGHTS_LANDING": str(landing), "WEIR_FLIGHTS_OUT": "out"},
    )


def _command(subject: Subject, side: Side) -> list[str]:
    if side is Side.PLAIN:
        settings = {**COMMON_SETTINGS, **ROCKSDB, "spark.master": MASTER}
        return [
            sys.executable,
            str(subject.plain_script),
            *(f"{key}={value}" for key, value in settings.items()),
        ]
    return weir_run(subject.pipeline, interval=_INTERVAL, archive=side is Side.WARM)


def first_rows(subject: Subject, side: Side, directory: Path) -> FirstRows:
    """Start one side, wait until each table has a row, end it, and check its committed rows."""
    directory.mkdir()
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **subject.environment,
    }
    found: dict[str, float] = {}
    deadline_s, begun = time.monotonic() + _PATIENCE_S, time.perf_counter()
    with started(_command(subject, side), directory, environment) as process:
        while len(found) < len(subject.tables):
            for name in subject.tables.keys() - found.keys():
                if has_rows(directory / subject.tables[name]):
                    found[name] = (time.perf_counter() - begun) * 1000
            check_alive(process, directory, deadline_s)
            time.sleep(_LOOK_S)
    for name, table in subject.tables.items():
        expected = subject.expected[name]
        check_part(
            f"{name} of {side.value}", read_committed(directory / table, expected.schema), expected
        )
    shutil.rmtree(directory)
    return found


def measure(subject: Subject, directory: Path, pairs: int) -> list[dict[Side, FirstRows]]:
    """Run each side once without counting it, then run the pairs."""
    sides = list(Side)
    found = []
    for number in range(pairs + 1):
        order = sides if number % 2 == 0 else list(reversed(sides))
        runs = {
            side: first_rows(subject, side, directory / f"{subject.name}-{number}-{side.name}")
            for side in order
        }
        found.append(runs)
        name = f"pair {number}" if number else "warm-up"
        print(
            f"{subject.name} {name}: {'; '.join(_figures(side, runs[side]) for side in sides)}",
            flush=True,
        )
    return found[1:]


def _figures(side: Side, run: FirstRows) -> str:
    ordered = sorted(run.items(), key=lambda item: item[1])
    return f"{side.value} " + ", ".join(
        f"{ms:.0f} ms" if len(ordered) == 1 else f"{table} {ms:.0f} ms" for table, ms in ordered
    )


def verdict(name: str, pairs: Sequence[Mapping[Side, FirstRows]]) -> tuple[list[str], bool]:
    """The last lines of one subject, and whether its targets are met."""
    lines = []
    met = True
    targets = {Side.WEIR: (name, RATIO_TARGET), Side.WARM: (f"{name}_warm", WARM_RATIO_TARGET)}
    for side, (figure, target) in targets.items():
        if len(pairs[0][side]) > 1:
            lines.append(f"{figure}_first ratio={_ratio(pairs, side, min):.3f}")
        ratio = _ratio(pairs, side, max)
        lines.append(f"{figure} ratio={ratio:.3f} target={target}")
        met = met and ratio <= target
    return lines, met


def _ratio(
    pairs: Sequence[Mapping[Side, FirstRows]], side: Side, of: Callable[[Iterable[float]], float]
) -> float:
    return statistics.median(
        of(pair[side].values()) / of(pair[Side.PLAIN].values()) for pair in pairs
    )


def recovery_verdict(recoveries_ms: Sequence[float]) -> tuple[str, bool]:
    """The last line, and whether the target is met."""
    median_ms = statistics.median(recoveries_ms)
    return (
        f"recovery ms={median_ms:.0f} target={RECOVERY_MS_TARGET}",
        median_ms <= RECOVERY_MS_TARGET,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the targets are met: the exit code."""
    parser = make_parser("benchmarks.start", __doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of a plain run and Weir runs")
    parser.add_argument(
        "--recoveries", type=int, default=10, help="number of times to kill the driver"
    )
    parser.add_argument(
        "--only", choices=("start", "graph", "recovery"), help="run only this comparison"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    lines: list[str] = []
    all_met = True
    with working_directory(options) as directory:
        make_class_archive(directory)
        for figure, subject_of in (("start", copy_subject), ("graph", flights_subject)):
            if options.only in (None, figure):
                subject = subject_of(directory)
                pairs = measure(subject, directory, options.pairs)
                found, met = verdict(subject.name, pairs)
                lines += found
                all_met = all_met and met
        if options.only in (None, "recovery"):
            line, met = recovery_verdict(
                measure_recoveries(directory / "recovery", options.recoveries)
            )
            lines.append(line)
            all_met = all_met and met
    print("\n".join(lines))
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
