"""Iceberg tables are exact after kills of the driver and of the catalog's database."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from tests.kit.place import Place, Rows, Run, assert_same
from tests.kit.postgres_server import PASSWORD, PostgresServer, running_server
from tests.kit.waiting import wait_until

import weir

pytestmark = [pytest.mark.spark, pytest.mark.kill]

PIPELINE = Path(__file__).with_name("iceberg_pipeline.py")
#: A catalog that is killed every second fails more attempts than a job is usually allowed.
CONFS = (
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=100ms",
    "weir.sink.commit.initial-backoff=50ms",
    "execution.checkpointing.interval=300ms",
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


class Lake:
    """The job's directory, its catalog, and how it is run."""

    def __init__(self, place: Place, server: PostgresServer) -> None:
        self.place = place
        self.server = server
        # Through loopback, which asks for the password; only the environment has it.
        uri = f"postgresql+psycopg2://{server.role}:{PASSWORD}@127.0.0.1:{server.port}/postgres"
        self._properties = {
            "type": "sql",
            "uri": uri,
            "warehouse": str(place.directory / "warehouse"),
        }
        self.catalog.create_namespace("sales")

    @property
    def catalog(self) -> Catalog:
        return load_catalog("shop", **self._properties)

    def how(self, **environment: str) -> dict[str, Any]:
        """The arguments with which ``Place`` starts this pipeline."""
        for key, value in self._properties.items():
            environment[f"PYICEBERG_CATALOG__SHOP__{key.upper()}"] = value
        return {"pipeline": PIPELINE, "environment": environment}

    def start(self, *arguments: str, **environment: str) -> Run:
        confs = [word for conf in CONFS for word in ("--conf", conf)]
        return self.place.start(*confs, *arguments, **self.how(**environment))

    def rows(self, table: str, row_filter: str | None = None) -> Rows:
        """Ids and times of the rows that pass a filter, by which files are skipped."""
        chosen = {} if row_filter is None else {"row_filter": row_filter}
        scan = self.catalog.load_table(f"sales.{table}").scan(**chosen)
        found = scan.to_arrow().to_pylist()
        if table == "keyed":
            assert all(one["key"] == f"k{one['id'] % 3}" for one in found)
            assert all(one["ids"] == [one["id"]] for one in found)
        return Rows((one["id"], one["ts"]) for one in found)

    def assert_exact(self) -> None:
        """Both tables have the input, whole and by filters; nothing else has the password."""
        expected = self.place.rows()
        for table in ("raw", "keyed"):
            assert_same(self.rows(table), expected, table)
            middle = sorted(expected)[len(expected) // 2]
            upper = Rows({row: 1 for row in expected if row[0] > middle[0]})
            assert_same(self.rows(table, f"id > {middle[0]}"), upper, f"{table} by id")
            later = f"ts > '{middle[1].isoformat()}'"
            assert_same(self.rows(table, later), upper, f"{table} by time")
        ones = Rows({row: 1 for row in expected if row[0] % 3 == 1})
        assert_same(self.rows("keyed", "key = 'k1'"), ones, "a partition")
        for file in self.place.directory.rglob("*"):
            assert not file.is_file() or PASSWORD.encode() not in file.read_bytes(), file

    def assert_one_cut(self) -> None:
        """At one checkpoint both tables have the same rows."""
        server = dict(word.split("=", 1) for word in self.server.dsn.split())
        # Through the socket, which asks for no password.
        uri = f"postgresql+psycopg2://{self.server.role}@/postgres?host={server['host']}"
        properties = {**self._properties, "name": "shop", "uri": f"{uri}&port={server['port']}"}
        cut = weir.read_consistent(
            {
                name: weir.sinks.IcebergTable(properties, f"sales.{name}")
                for name in ("raw", "keyed")
            }
        )
        found = {name: cut.scan(name).to_arrow()["id"].to_pylist() for name in ("raw", "keyed")}
        assert sorted(found["raw"]) == sorted(found["keyed"]) != []

    def assert_nothing_else_is_staged(self) -> None:
        """Every data file below the tables is named by a snapshot."""
        for table in ("raw", "keyed"):
            loaded = self.catalog.load_table(f"sales.{table}")
            named = {task.file.file_path for task in loaded.scan().plan_files()}
            found = (self.place.directory / "warehouse/sales" / table / "data").rglob("*.parquet")
            assert {str(path) for path in found} == named


@pytest.fixture
def lake(place: Place, server: PostgresServer) -> Lake:
    return Lake(place, server)


@pytest.mark.slow
def test_a_driver_that_dies_before_it_hears_of_its_commit_doubles_no_row(lake, place):
    """The catalog has the snapshot; the next driver finds the epoch in the table."""
    place.land(6)
    place.die_at("after-a-catalog-commit", 3, **lake.how())
    lake.assert_one_cut()
    assert lake.start().wait() == 0
    lake.assert_exact()
    lake.assert_nothing_else_is_staged()


def survive(lake: Lake, *, seed: int, files: int, kills: int, **environment: str) -> None:
    """Kill the database ``kills`` times, and the driver after every second; check the tables."""
    draws = random.Random(seed)
    lake.place.land(files)
    run = lake.start(**environment)
    run.wait_for("completed in")
    for kill in range(1, kills + 1):
        time.sleep(draws.uniform(0.1, 1.0))
        if run.process.poll() is not None:  # a fast machine is through before the last kill
            break
        lake.server.kill()
        time.sleep(draws.choice([0, 0, 0.3]))
        lake.server.start()
        if kill % 2 == 0:
            time.sleep(draws.uniform(0, 1))
            run.end()
            lake.assert_one_cut()
            run = lake.start(**environment)
            run.wait_for("recovered from")
    assert run.wait() == 0, run.story()
    lake.assert_exact()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_of_driver_and_catalog_at_random_moments_lose_and_double_no_row(lake, seed):
    """Whatever was being staged, committed or recovered."""
    survive(lake, seed=seed, files=100, kills=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_while_files_are_merged_lose_and_double_no_row(lake):
    """Whatever was being merged, committed or recovered."""
    survive(lake, seed=3, files=60, kills=10, TARGET_FILE_SIZE=str(64 << 20))
    for table in ("raw", "keyed"):
        tasks = lake.catalog.load_table(f"sales.{table}").scan().plan_files()
        names = [task.file.file_path.split("/data/")[1].split("/")[1] for task in tasks]
        assert any(name.startswith("m") for name in names), table


@pytest.mark.slow
def test_a_pipeline_whose_rows_change_between_two_runs_loses_and_doubles_no_row(lake, place):
    """What the older one had staged is committed by the newer one, into one table."""
    place.land(6)
    place.die_at("before-a-catalog-commit", 3, **lake.how())
    assert lake.start(EVOLVED="1").wait() == 0
    lake.assert_exact()
    table = lake.catalog.load_table("sales.keyed")
    assert str(table.schema().find_type("n")) == "long"
    found = table.scan().to_arrow().to_pylist()
    assert all(row["n"] == row["id"] and row["twice"] in (None, 2 * row["id"]) for row in found)
    assert {row["twice"] is None for row in found} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("target_file_size", [0, 64 << 20])
@pytest.mark.parametrize("point", ["before-a-catalog-commit", "after-a-catalog-commit"])
def test_a_driver_that_hangs_in_its_commit_doubles_no_row(lake, place, point, target_file_size):
    """When it wakes up, a newer driver has committed its epoch (PROTOCOL P18)."""
    place.land(12)
    size = {"TARGET_FILE_SIZE": str(target_file_size)}
    old = place.start_until(point, 3, number=signal.SIGSTOP, **lake.how(**size))
    mark = Path(place.directory / "mark")
    wait_until(mark.exists, "the driver hangs")
    assert lake.start("--takeover", **size).wait() == 0
    lake.assert_exact()
    old.process.send_signal(signal.SIGCONT)
    assert old.wait() != 0
    lake.assert_exact()


@pytest.mark.slow
def test_a_stopped_job_continues_from_its_savepoint_and_no_other_start_is_allowed(lake, place):
    """Starting over would double rows."""
    place.land(4)
    run = lake.start(NUMBERS="unbounded")

    def everything() -> bool:
        exists = lake.catalog.table_exists("sales.keyed")
        return exists and lake.rows("keyed") == place.rows()

    wait_until(everything, "every row is committed")
    stopped = place.weir("stop", "iceberg", "--address", run.address)
    savepoint = re.search(r"Savepoint: (\S+)", stopped.stdout)
    assert savepoint is not None, stopped.stderr
    assert run.wait() == 0, run.story()
    lake.assert_exact()
    assert "rows" in lake.start("--fresh").error()
    place.land(3)
    assert lake.start("--from-savepoint", savepoint[1]).wait() == 0
    lake.assert_exact()


@pytest.mark.slow
def test_a_table_that_is_dropped_meanwhile_is_waited_for(lake, place):
    """It is not created again, since the rows up to then would be missing."""
    place.land(4)
    run = lake.start(NUMBERS="unbounded")
    run.wait_for("checkpoint 3 completed")
    run.end()
    table = lake.catalog.load_table("sales.raw")
    lake.catalog.drop_table("sales.raw")
    again = lake.start()
    again.wait_for("is gone, with the rows that were committed to it")
    lake.catalog.register_table("sales.raw", table.metadata_location)
    assert again.wait() == 0, again.story()
    lake.assert_exact()
