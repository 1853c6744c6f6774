"""The demo's tables in PostgreSQL: a schema for each run, compared like the other tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.kit.place import Place
from tests.kit.postgres_server import PASSWORD, PostgresServer, running_server

from weir.demo.postgres import DemoDatabase
from weir.errors import ConfigurationError, SinkError

FLIGHTS = pa.table(
    {
        "event_time": pa.array([datetime(2013, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
        "carrier": ["AA", None],
    }
)
DELAYS = pa.table({"carrier": ["AA"], "flights": [7]})
EXPECTED = {"flights_clean": FLIGHTS, "carrier_delays": DELAYS, "anomalies": DELAYS}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


def test_tables_of_a_run_are_compared_and_removed(server: PostgresServer) -> None:
    """A table that is missing counts as empty, and a doubled row is found."""
    database = DemoDatabase(server.dsn)
    assert [report.missing for report in database.verify(EXPECTED)] == [2, 1]
    with psycopg.connect(database.dsn) as connection:
        connection.execute("CREATE TABLE flights_clean (carrier text, event_time timestamptz)")
        connection.execute(
            "INSERT INTO flights_clean VALUES ('AA', '2013-01-01Z'), (NULL, '2013-01-01Z')"
        )
        connection.execute("CREATE TABLE carrier_delays AS SELECT 'AA' AS carrier, 7 AS flights")
    assert all(report.exact for report in database.verify(EXPECTED))
    with psycopg.connect(database.dsn) as connection:
        connection.execute("INSERT INTO carrier_delays VALUES ('AA', 7)")
        connection.execute("CREATE SCHEMA weir")
        connection.execute("CREATE TABLE weir.commits (target text)")
        connection.execute(
            "INSERT INTO weir.commits VALUES (%s), ('public.other')", [f"{database.schema}.t"]
        )
    assert [report.duplicates for report in database.verify(EXPECTED)] == [0, 1]
    database.drop()
    assert server.rows("SELECT * FROM weir.commits") == [("public.other",)]
    assert server.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'weir_demo%'") == []


def test_a_connection_string_that_the_demo_cannot_extend_is_refused(server: PostgresServer) -> None:
    """It sets the search path in the options; a password is refused as by the sink."""
    with pytest.raises(ConfigurationError, match="cannot be used with options"):
        DemoDatabase(f"{server.dsn} options='-c work_mem=1MB'")
    with pytest.raises(SinkError, match="holds a password"):
        DemoDatabase(f"{server.dsn} password={PASSWORD}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.spark
@pytest.mark.kill
def test_the_demo_finds_each_row_once_in_postgresql_too(
    server: PostgresServer, tmp_path: Path
) -> None:
    """``weir demo --postgres-dsn``, killed once."""
    place = Place(tmp_path)
    command = [sys.executable, "-m", "weir", "demo", "--kill", "1", "--postgres-dsn"]
    try:
        demo = place.launch([*command, server.loopback_dsn], {"PGPASSWORD": PASSWORD})
        assert demo.wait(500) == 0, demo.story()
    finally:
        place.clear()
    assert "carrier_delays (PostgreSQL)" in demo.output
    assert "Every row is in its table exactly once." in demo.output
