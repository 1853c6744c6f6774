"""What an earlier Weir left is read: a checkpoint, a savepoint with pending commits, a history.

``record.py`` says what the archives in the directory of a day have in them, and makes those of
another day. They are unpacked for each test, and the job of ``pipeline.py`` goes on from there.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import ROWS_PER_FILE, Place, Rows, assert_same, delta_rows, files_rows
from tests.kit.postgres_server import running_server
from tests.recorded import pipeline
from tests.recorded.packing import unpack
from tests.recorded.record import asked, make_catalog

import weir
from weir.core.status import JobStatus

RECORDED = Path(__file__).with_name("2026-11-29")
#: How many files the snapshots have read.
READ = 4
SINKS = (
    "raw",
    "raw_files",
    "seldom",
    "journal",
    "minutes",
    "counted",
    "postgres",
    "iceberg",
    "calls",
)

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[pipeline.__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.clear()


def rows(place: Place) -> Rows:
    """The input with its keys."""
    return Rows((id, ts, id % 7) for id, ts in place.rows().elements())


def journaled(directory: Path) -> Rows:
    """The rows in the files of a sink of functions; repeated calls wrote the same file."""
    files = [path for path in directory.iterdir() if path.is_file()]
    return Rows(tuple(row) for path in files for row in json.loads(path.read_text()))


def seldom_rows(directory: Path) -> Rows:
    """The ids in files of JSON lines."""
    lines = [line for path in directory.glob("*.json") for line in path.read_text().splitlines()]
    return Rows((json.loads(line)["id"],) for line in lines)


def counted(place: Place, label: str) -> Rows:
    """What the operator emits of the input."""
    keys = Counter(id % 7 for id, _ in place.rows())
    odd = Counter(id % 7 for id, _ in place.rows() if id % 2)
    found = Rows((key, n, "place") for key in keys for n in range(1, keys[key] + 1))
    found.update((key, n, label) for key, n in keys.items())
    found.update((key, odd[key], "odd") for key in keys)
    return found


def assert_files_exact(place: Place, *, label: str) -> None:
    """Check the tables in files against the input, each row exactly once."""
    out = place.directory / "out"
    pairs = Rows((id, key) for id, _, key in rows(place))
    numbers = Rows((id,) for id, _, _ in rows(place))
    delta = Rows((id, ts, int(key)) for id, ts, key in delta_rows(out / "raw").elements())
    assert_same(delta, rows(place), "the Delta table")
    assert_same(files_rows(out / "raw_files"), rows(place), "the files")
    assert_same(seldom_rows(out / "seldom"), numbers, "the files that are seldom committed")
    assert_same(journaled(out / "journal"), pairs, "the journal")
    assert_same(files_rows(out / "minutes"), place.minutes(), "the minutes")
    found = files_rows(out / "counted")
    subtasks = [row for row in found.elements() if row[2] == "subtask"]
    assert sum(n for _, n, _ in subtasks) == place.rows().total()
    assert_same(found - Rows(subtasks), counted(place, label), "the counts")


def log_of(directory: Path) -> list[dict[str, Any]]:
    """The records of a job, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted((directory / "log").iterdir())]


def drain(live: LiveJob, *, files: int) -> None:
    """Let a restored job read this many files, and end it as its input's end would."""
    live.wait_for_records(files * ROWS_PER_FILE)
    live.gateway.stop_with_savepoint(None, drain=True).result(120)
    assert live.result().status is JobStatus.FINISHED


@pytest.mark.spark
def test_a_checkpoint_of_a_killed_driver_is_resumed_by_the_same_command(
    place: Place, spark: SparkSession
) -> None:
    """Its records, ids and names are read, a half-made commit is finished, state and rules go on,
    and each row is in every table once."""
    del spark
    unpack(RECORDED / "checkpoint.tar.gz", place.directory)
    checkpoints = place.directory / ".weir" / "checkpoints"
    (directory,) = (path for path in checkpoints.iterdir() if len(path.name) == 32)
    (newest,) = directory.glob("chk-*")
    number = int(newest.name.removeprefix("chk-"))
    last = log_of(directory)[-1]
    hook = pipeline.Ledger()
    job = pipeline.built(place.directory, hook=hook)
    with LiveJob(job, settings(place, dir=str(checkpoints))) as live:
        assert live.job_id == directory.name
        drain(live, files=2)
        assert live.gateway.view().attempt == 2
    assert live.restored_ids == [number] and hook.restored == {"checkpoint": number}
    assert_files_exact(place, label="changed")
    records = log_of(directory)
    began = next(one for one in records if one["attempt"] == 2)
    own = ("number", "kind", "attempt", "writer", "timestamp_ms", "version")
    assert_has(began, {name: last[name] for name in last if name not in own}, "the record")
    # The driver had begun one more checkpoint.
    assert records[-1]["completed"] > number + 1


@pytest.mark.spark
def test_a_savepoint_with_pending_commits_of_every_sink_is_restored_into_new_tables(
    place: Place, spark: SparkSession
) -> None:
    """The rows that were staged when it was taken are committed, once, wherever it lies by now."""
    del spark
    unpack(RECORDED / "savepoint.tar.gz", place.directory)
    make_catalog(place.directory)
    savepoint = place.directory / "savepoint"
    with running_server() as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute((place.directory / "database.sql").read_bytes())
        job = pipeline.built(place.directory, hook=pipeline.Ledger(), dsn=server.dsn)
        with LiveJob(job, settings(place), from_savepoint=str(savepoint)) as live:
            drain(live, files=1)
        in_database = Rows(server.rows("SELECT id, ts, key FROM numbers"))
    assert_files_exact(place, label="initial")
    assert_same(in_database, rows(place), "the table in PostgreSQL")
    pairs = Rows((id, key) for id, _, key in rows(place))
    assert_same(journaled(place.directory / "out" / "calls"), pairs, "the calls")
    assert_same(iceberg_rows(place.directory), rows(place), "the Iceberg table")


@pytest.mark.spark
def test_the_state_in_a_savepoint_is_shown(place: Place, spark: SparkSession) -> None:
    """Each kind of Python state, the state of a window, a coordinator's, and what sinks have to
    commit."""
    unpack(RECORDED / "savepoint.tar.gz", place.directory)
    (place.directory / "in" / f"{READ:03}.parquet").unlink()
    path = str(place.directory / "savepoint")
    keys = Counter(id % 7 for id, _ in place.rows())
    with weir.read_savepoint(path, spark) as savepoint:
        assert savepoint.checkpoint_id == 1 and savepoint.kind.value == "SAVEPOINT"
        assert {one.uid: one.position >= 0 for one in savepoint.operators} == dict.fromkeys(
            ("numbers", "with_key", *SINKS, "by_minute", "counts"), True
        )
        state = savepoint.operator_state("counts")
        windows = savepoint.keyed_state("by_minute")["state"].collect()
    assert state.coordinator == {"rules": {"label": "initial"}}
    assert sum(rows for (rows,) in state.lists["rows"]) == place.rows().total()
    assert state.lists["rules"] == [[["label", "initial"]]] * 2
    assert {one["key"]: one["value"] for one in state.keyed["counts"].to_pylist()} == keys
    assert state.keyed["event timers/ends"].num_rows == state.keyed["map/odd"].num_rows == len(keys)
    counts = {(row.key.window.start.replace(tzinfo=UTC), row.value["count"]) for row in windows}
    assert counts <= {(start, n) for start, n in place.minutes()} and counts
    shown = place.weir("inspect", path).stdout
    assert all(sink in shown for sink in SINKS)
    assert "initial" in place.weir("inspect", path, "--operator", "counts").stdout


def test_a_job_that_has_ended_looks_as_it_did_to_the_weir_that_ran_it(place: Place) -> None:
    """What the history server answers has everything that it had in its answers then, but for
    settings that are gone."""
    unpack(RECORDED / "history.tar.gz", place.directory)
    then = json.loads((place.directory / "answers.json").read_text())
    now = asked(place.directory / ".weir" / "checkpoints")
    del then["/jobs/JOB"]["now"]
    settings = then["/jobs/JOB/config"]["execution-config"]["user-config"]
    gone = [key for key in settings if key.startswith("weir.metrics.otlp.")]
    assert gone
    for key in gone:
        del settings[key]
    for question, answer in then.items():
        assert_has(now[question], answer, question)
    assert then["/jobs/JOB/exceptions"]["exceptionHistory"]["entries"]


def assert_has(found: Any, expected: Any, place: str) -> None:
    """Check that an answer has all of another one; it may have more fields."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), place
        for name, value in expected.items():
            assert_has(found[name], value, f"{place} {name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_has(one, other, f"{place} {number}")
    else:
        assert found == expected, place


def iceberg_rows(directory: Path) -> Rows:
    """The rows of the Iceberg table."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**pipeline.catalog(directory)).load_table(pipeline.TABLE)
    return Rows((row["id"], row["ts"], row["key"]) for row in table.scan().to_arrow().to_pylist())
