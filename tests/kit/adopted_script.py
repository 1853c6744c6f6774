"""Runs a script under Weir through kills, and compares it with itself as a batch computation.

The inputs of all scripts are one *world*: folders of Parquet files with Kafka's columns, or with
lines, and JSON files. It lands in two halves; the driver is killed after each. What the script
has written is then compared with what ``batch_script`` makes of the whole world:

- directories by their rows;
- the console by what it showed: all rows, the newest of each key, or the last whole table.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tests.kit.place import Place, Run, environment_of
from tests.kit.waiting import wait_until

from weir.rest import client
from weir.rest.client import JobClient

SCRIPTS = Path(__file__).parents[1] / "adopt" / "scripts"
#: A script has read everything once so many checkpoints have completed without a further row: each
#: query plans a batch of what is there between two of them.
_CHECKPOINTS = 4
FILES_PER_HALF = 4
ROWS_PER_FILE = 50
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_TIMES = pa.timestamp("us", "UTC")
_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]

#: Rows as text, as they are compared.
Rows = Counter[str]
#: A table that was shown: its columns, and its rows.
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


# -- the world -------------------------------------------------------------------------------------


def land(world: Path, half: int) -> None:
    """Write half of all inputs; each file appears whole."""
    for number in range(half * FILES_PER_HALF, (half + 1) * FILES_PER_HALF):
        chance = random.Random(number)
        times = [
            _FIRST + timedelta(minutes=20 * number, seconds=20 * row)
            for row in range(ROWS_PER_FILE)
        ]
        lines = [" ".join(chance.choices(_WORDS, k=4)) for _ in times]
        _write(
            world / "lines" / f"{number:03}.parquet",
            pa.table({"value": lines, "timestamp": pa.array(times, _TIMES)}),
        )
        for topic, value in _TOPICS.items():
            values = [
                text
                for row, (time, line) in enumerate(zip(times, lines, strict=True))
                for text in value(number * ROWS_PER_FILE + row, time, line, chance)
            ]
            _write(world / topic / f"{number:03}.parquet", _as_kafka(topic, number, values))
        _write_text(world / "invoices" / f"{number:03}.json", _invoices(number))
    if half == 0:
        users = [f"user{one}" for one in range(7)]
        pq.write_table(pa.table({"user": users, "name": users}), world / "users.parquet")


def _json(**fields: Any) -> list[str]:
    return [json.dumps(fields)]


def _at(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


_TOPICS: dict[str, Callable[[int, datetime, str, random.Random], list[str]]] = {
    "words": lambda _, __, line, ___: [line],
    "trades": lambda row, time, _, chance: _json(
        id=f"t{row}",
        at=_at(time),
        type=chance.choice(["BUY", "SELL"]),
        amount=chance.randint(1, 500),
    ),
    # Each login comes twice.
    "logins": lambda row, time, _, __: _json(login=f"user{row % 7}", at=_at(time), number=row) * 2,
    "impressions": lambda row, time, _, __: _json(id=f"i{row}", at=_at(time)),
    "clicks": lambda row, time, _, chance: (
        _json(id=f"i{row}", at=_at(time + timedelta(seconds=chance.randint(0, 1200))))
        if row % 3
        else []
    ),
    "votes": lambda row, time, _, __: _json(
        voter=f"v{row}", candidate=f"c{row % 3}", state=f"s{row % 5}", at=_at(time), vote=1
    ),
    "users_created": lambda row, _, __, ___: _json(id=f"u{row}", first_name=f"name {row}"),
    "rides": lambda row, time, _, __: [f"{1 + row % 2}, {_at(time)}, 10.5, ride{row}"],
    "devices": lambda row, _, __, ___: _json(
        event=f"e{row}",
        data={"devices": [{"device": f"{row}-{n}", "temperature": n} for n in range(row % 3)]},
    ),
    **{
        topic: lambda row, time, _, __: _json(song=f"s{row}", ts=_at(time), page="p")
        for topic in ("listen_events", "page_view_events", "auth_events")
    },
}


def _as_kafka(topic: str, number: int, values: Sequence[str]) -> pa.Table:
    offsets = range(number * 10_000, number * 10_000 + len(values))
    return pa.table(
        {
            "key": pa.array([None] * len(values), pa.binary()),
            "value": pa.array([one.encode() for one in values], pa.binary()),
            "topic": [topic] * len(values),
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([_FIRST] * len(values), _TIMES),
        }
    )


def _invoices(number: int) -> str:
    return "\n".join(
        json.dumps(
            {
                "InvoiceNumber": f"{number}-{row}",
                "DeliveryAddress": {"City": "b", "PinCode": "1"},
                "InvoiceLineItems": [
                    {"ItemCode": f"{row}-{item}", "ItemQty": item} for item in range(3)
                ],
            }
        )
        for row in range(ROWS_PER_FILE)
    )


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    hidden.rename(path)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(text)
    hidden.rename(path)


# -- what is compared ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Files:
    """A directory with all rows of a query; ``doubled``: rows may come twice after a kill."""

    path: str
    doubled: bool = False

    def check(self, made: Output, expected: Output) -> None:
        """Compare the rows."""
        found, wanted = made.files(self.path), expected.files(self.path)
        assert wanted, f"nothing is expected in {self.path}"
        if self.doubled:
            assert set(found) == set(wanted), _difference(self.path, found, wanted)
        else:
            assert found == wanted, _difference(self.path, found, wanted)


@dataclass(frozen=True, kw_only=True)
class Console:
    """The tables of a console that have this column.

    ``keys``: the newest row of each key is compared; without them all rows, each once, or with
    ``complete`` the last table.
    """

    column: str
    keys: tuple[str, ...] = ()
    complete: bool = False

    def check(self, made: Output, expected: Output) -> None:
        """Compare what was shown last, or in all."""
        found, wanted = self._rows(made), self._rows(expected)
        assert wanted, f"nothing with the column {self.column} is expected"
        assert found == wanted, _difference(self.column, Rows(found), Rows(wanted))

    def _rows(self, output: Output) -> set[str]:
        shown = [table for table in output.shown if self.column in table[0]]
        if self.complete:
            shown = shown[-1:]
        newest: dict[tuple[str, ...], str] = {}
        for columns, rows in shown:
            places = [columns.index(key) for key in self.keys] or range(len(columns))
            for row in rows:
                newest[tuple(row[place] for place in places)] = " | ".join(row)
        return set(newest.values())


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a script has written."""

    directory: Path
    printed: str

    def files(self, path: str) -> Rows:
        """The rows that readers of a directory see, with the columns of its partitions."""
        files = [
            file
            for file in (self.directory / path).rglob("*")
            if file.is_file()
            and not any(part[0] in "._" for part in file.relative_to(self.directory / path).parts)
        ]
        return Rows(row for file in files for row in _rows_of(file, self.directory / path))

    @property
    def shown(self) -> list[Table]:
        """The tables on the console."""
        return list(_tables(self.printed.splitlines()))


def _rows_of(file: Path, root: Path) -> Iterable[str]:
    parts = dict(re.findall(r"([^/=]+)=([^/]+)", str(file.parent.relative_to(root))))
    if file.suffix == ".json":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        form = "csv" if file.suffix == ".csv" else "parquet"
        rows = ds.dataset(file, format=form).to_table().to_pylist()
    for row in rows:
        yield json.dumps({**row, **parts}, sort_keys=True, default=_text)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        # Spark's own files may have times without their zone, which is UTC.
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    return str(value)


def _tables(lines: Sequence[str]) -> Iterable[Table]:
    table: list[tuple[str, ...]] = []
    rules = 0
    for line in lines:
        if re.fullmatch(r"\+(-+\+)+", line):
            rules += 1
            if rules == 3:
                yield table[0], table[1:]
                table, rules = [], 0
        elif rules and line.startswith("|"):
            table.append(tuple(cell.strip() for cell in line.strip("|").split("|")))


def _difference(what: str, found: Rows, wanted: Rows) -> str:
    missing, surplus = wanted - found, found - wanted
    return (
        f"{what}: {missing.total()} of {wanted.total()} rows are missing, such as"
        f" {missing.most_common(2)}; {surplus.total()} are too many, such as"
        f" {surplus.most_common(2)}"
    )


def run_without_weir(how: str, script: Path, *arguments: str, directory: Path) -> str:
    """Run a script by ``tests.kit.batch_script`` or ``plain_script``; return what it prints."""
    environment = environment_of({"WAREHOUSE": str(directory / "warehouse")})
    # Workers find the modules beside the script, as under spark-submit.
    paths = [str(Path(__file__).parents[2]), str(script.parent), environment["PYTHONPATH"]]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["PYSPARK_PYTHON"] = sys.executable
    done = subprocess.run(
        [sys.executable, "-m", f"tests.kit.{how}", str(script), *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- runs ------------------------------------------------------------------------------------------


class AdoptedScript:
    """One script in a directory of its own."""

    def __init__(self, place: Place, script: str, *arguments: str) -> None:
        self.place = place
        self.path = SCRIPTS / script
        self.world = place.directory / "world"
        self.out = place.directory / "out"
        self.arguments = (str(self.world), str(self.out), *arguments)
        self.world.mkdir(exist_ok=True)

    def start(self, *options: str) -> Run:
        """Start ``weir run``."""
        return self.place.start(*options, "--", *self.arguments, pipeline=self.path)

    def kill(self, *, after_checkpoints: int, later_s: float) -> None:
        """Run until so many checkpoints have completed, and kill the driver so much later."""
        run = self.start()
        with self._job(run) as job:
            wait_until(
                lambda: job.overview().completed_checkpoints >= after_checkpoints,
                "checkpoints complete",
            )
        time.sleep(later_s)
        run.process.send_signal(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.story()

    def drain(self) -> Run:
        """Run until nothing more is read, and drain the job; returns the run."""
        run = self.start()
        with self._job(run) as job:
            self._wait_until_read(job)
            job.stop(None, drain=True)
        assert run.wait() == 0, run.story()
        return run

    def output(self) -> Output:
        """What all runs have written."""
        printed = "\n".join(run.printed for run in self.place.runs)
        return Output(directory=self.out, printed=printed)

    def expected(self) -> Output:
        """What the script writes as a batch computation."""
        directory = self.place.directory / "expected"
        directory.mkdir()
        arguments = [str(directory) if one == str(self.out) else one for one in self.arguments]
        printed = run_without_weir("batch_script", self.path, *arguments, directory=directory)
        return Output(directory=directory, printed=printed)

    @staticmethod
    def _job(run: Run) -> JobClient:
        address = run.address
        found: list[client.FoundJob] = []

        def is_submitted() -> bool:
            found[:] = client.find_jobs(address)
            return bool(found)

        wait_until(is_submitted, "the job is submitted")
        return JobClient(found[0].address, found[0].job.job_id)

    def _wait_until_read(self, job: JobClient) -> None:
        """Wait until checkpoints complete between which no vertex reads a row."""
        rows, since = -1, 0

        def is_read() -> bool:
            nonlocal rows, since
            state = job.overview()
            now = sum(one.live.records_in for one in state.vertices if one.live is not None)
            if now != rows or state.status != "RUNNING":
                rows, since = now, state.completed_checkpoints
            return state.completed_checkpoints >= since + _CHECKPOINTS

        wait_until(is_read, "everything is read")
