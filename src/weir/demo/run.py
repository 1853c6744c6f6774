"""``weir demo``: lands a year of data, runs the example, kills it N times, and counts every row.

After each kill, while no driver runs, it reads all tables at one checkpoint and checks that they
agree (``verify.look``).
"""

from __future__ import annotations

import random
import secrets
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from rich import box
from rich.console import Console
from rich.table import Table

import weir
from weir.demo.driver import Chaos, Driver, Outcome
from weir.demo.landing import Landing, land
from weir.demo.postgres import DemoDatabase
from weir.demo.reference import AFTER_MINUTES, RuleChange, anomalies_of, expected_tables
from weir.demo.verify import Cut, TableReport, look, verify_tables
from weir.errors import ConfigurationError

PIPELINE = Path(__file__).with_name("flights.py")


def run_demo(
    *,
    kill: int,
    seed: int | None,
    directory: Path | None,
    master: str | None,
    postgres: str | None = None,
    flights: int | None = None,
    console: Console | None = None,
) -> int:
    """Run the demo and print its summary. Returns the exit code: 0 only if every table is exact.

    Args:
        kill: How many times the driver is killed (SIGKILL) before it may finish.
        seed: Seed of the random moments; None draws a seed and prints it.
        directory: Where all files of the run are kept (must be empty or not exist). None: a new
            directory below ``.weir/demo``, removed on success.
        master: Spark's master; None leaves it to the configuration.
        postgres: Connection string, without a password, of a PostgreSQL database that gets two of
            the tables as well, in a schema of its own, removed on success.
        flights: Process only this many flights, the first in event time; None: all.
        console: Where to print; standard output by default.

    Raises ``ConfigurationError`` if the directory is not empty or ``kill`` is negative, and
    ``UnsupportedEnvironmentError`` if the demo's data is not installed.
    """
    console = console or (Console() if sys.stdout.isatty() else Console(width=120))
    if kill < 0:
        raise ConfigurationError(f"The number of kills must be at least 0, not {kill}.")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    place = _place(directory)
    landing = land(place / "landing", flights=flights)
    expected = expected_tables(landing.directory)
    _say(
        console,
        f"landed {landing.flights.rows:,} flights as {landing.flights.files} Parquet files and"
        f" {landing.weather.rows:,} hours of weather as {landing.weather.files} in"
        f" {landing.directory}",
    )
    _say(console, f"kills: {kill}, seed {seed}")
    tables = place / "out"
    database = None if postgres is None else DemoDatabase(postgres)
    outcome, cuts, change = _run(
        console,
        kill,
        seed,
        place=place,
        expected=expected,
        master=master,
        environment=_environment(landing, tables, database),
        database=database,
    )
    anomalies = _found(tables / "anomalies")
    expected["anomalies"] = anomalies_of(expected["flights_clean"], anomalies)
    reports = verify_tables(tables, expected)
    if database is not None:
        reports += database.verify(expected)
    _summarize(console, outcome, reports)
    found = [outcome.problem, _unchanged(change, anomalies), *(cut.problem for cut in cuts)]
    found += [report.problem for report in reports]
    problems = [problem for problem in found if problem is not None]
    exact = not problems and all(report.exact for report in reports)
    if exact:
        _say(console, "Every row is in its table exactly once.", style="bold green")
    for problem in problems:
        _say(console, problem, style="bold red")
    if exact and database is not None:
        database.drop()
    elif database is not None:
        _say(console, f"The run's tables in PostgreSQL are in the schema {database.schema}.")
    if exact and directory is None:
        shutil.rmtree(place)
    else:
        _say(console, f"All files of the run are in {place}; the driver's log is driver.log there.")
    return 0 if exact else 1


def _run(
    console: Console,
    kill: int,
    seed: int,
    *,
    place: Path,
    expected: Mapping[str, pa.Table],
    master: str | None,
    environment: dict[str, str],
    database: DemoDatabase | None,
) -> tuple[Outcome, list[Cut], RuleChange]:
    """Kill the job ``kill`` times while its rule is changed, and wait until it finishes.

    The tables are checked after each kill.
    """
    tables = place / "out"
    cuts: list[Cut] = []

    def report_kill(line: str) -> None:
        _say(console, line, style="bold red")
        cuts.append(look(tables, expected))
        _say(console, f"  {cuts[-1].text}", style="bold")
        if database is not None:
            cuts.append(database.look(tables))
            _say(console, f"  {cuts[-1].text}", style="bold")

    lives: list[Driver] = []

    def start() -> Driver:
        lives.append(
            Driver(
                _command(master),
                directory=place,
                environment=environment,
                show=lambda line: _say(console, f"  | {line}", style="dim"),
            )
        )
        return lives[-1]

    def done() -> float:
        return _rows(tables / "flights_clean") / int(expected["flights_clean"].num_rows)

    chaos = Chaos(start=start, done=done, report=report_kill, generator=random.Random(seed))
    change = RuleChange(
        address=lambda: lives[-1].phase.address if lives else None,
        done=done,
        report=lambda line: _say(console, line, style="bold cyan"),
    )
    with change:
        return chaos.run(kill), cuts, change


def _place(directory: Path | None) -> Path:
    if directory is None:
        parent = Path(".weir", "demo").absolute()
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    directory = directory.absolute()
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigurationError(
            f"{directory} is not empty: choose a new directory for the run's files."
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _command(master: str | None) -> Sequence[str]:
    """The command of every life: recovery means running the same command again (PROTOCOL P20)."""
    command = [sys.executable, "-m", "weir", "run", str(PIPELINE), "--rest-port", "0"]
    settings = (
        "execution.checkpointing.interval=1s",
        # A line for each checkpoint, by which a kill is described.
        "weir.progress-interval=0",
        "parallelism.default=2",
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=5",
        # A life lasts only seconds, so the optimizing compiler would cost more than it saves, and
        # so would verifying the bytecode of Spark's jars.
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions"
        " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    )
    for setting in settings:
        command += ["--conf", setting]
    return command if master is None else [*command, "--master", master]


def _environment(landing: Landing, tables: Path, database: DemoDatabase | None) -> dict[str, str]:
    return {
        **({} if database is None else {"WEIR_FLIGHTS_POSTGRES": database.dsn}),
        "WEIR_FLIGHTS_LANDING": str(landing.directory),
        "WEIR_FLIGHTS_OUT": str(tables),
        # The driver runs in the run's directory and must import this same Weir there, installed or
        # not.
        "PYTHONPATH": str(Path(weir.__file__).absolute().parents[1]),
        "PYTHONUNBUFFERED": "1",
    }


def _found(table: Path) -> pa.Table | None:
    try:
        return DeltaTable(table).to_pyarrow_table()
    except TableNotFoundError:
        return None


def _unchanged(change: RuleChange, anomalies: pa.Table | None) -> str | None:
    """The problem if the driver answered a rule change that no anomaly shows; None otherwise."""
    held = [] if anomalies is None else anomalies["limit_minutes"].unique().to_pylist()
    if not change.answered or AFTER_MINUTES in held:
        return None
    return f"The rule was changed to {AFTER_MINUTES} minutes, but it found no anomaly."


def _rows(table: Path) -> int:
    try:
        return int(DeltaTable(table).count())
    except TableNotFoundError:
        return 0


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _summarize(console: Console, outcome: Outcome, reports: Sequence[TableReport]) -> None:
    table = Table(
        title="Tables, read back without Weir and Spark", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("table", no_wrap=True)
    for column in ("expected", "committed", "duplicates", "missing", "unexpected"):
        table.add_column(column, justify="right", no_wrap=True)
    for report in reports:
        counts = (report.rows_expected, report.rows_committed)
        errors = (report.duplicates, report.missing, report.unexpected)
        table.add_row(report.table, *(f"{count:,}" for count in (*counts, *errors)))
    durations = list(outcome.completed_ms.values()) or [0]
    console.print(table)
    _say(
        console,
        f"checkpoints completed: {len(outcome.completed_ms)}"
        f" (median {statistics.median(durations):.0f} ms, max {max(durations)} ms),"
        f" kills: {outcome.kills}, restarts: {outcome.lives - 1}, wall time:"
        f" {outcome.wall_s:.1f} s",
    )
    first, *later = ("none" if took is None else f"{took:.1f} s" for took in outcome.recovery_s)
    recovery = f", after each kill: {', '.join(later)}" if later else ""
    _say(console, f"from the command to the first completed checkpoint: {first}{recovery}")
