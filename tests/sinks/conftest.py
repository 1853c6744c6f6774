"""A PostgreSQL server with one database for all tests of a process; each test finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal
from tests.kit.postgres_server import PostgresServer, running_server
from tests.sinks.postgres_database import Database


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="session")
def _dsn(server: PostgresServer) -> str:
    return server.create_database("tests")


@pytest.fixture
def database(server: PostgresServer, _dsn: str) -> Iterator[Database]:
    """An empty database. A new one for each test would be 300 new files."""
    yield Database(server, _dsn)
    with psycopg.connect(_dsn, autocommit=True) as connection:
        empty(connection)


def empty(connection: psycopg.Connection) -> None:
    """Remove what a test has left: sessions, prepared transactions, schemas, settings, roles."""
    run = connection.execute
    run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for (gid,) in run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        run(SQL("ROLLBACK PREPARED {}").format(Literal(gid)))
    for (schema,) in run(
        "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'"
        " AND nspname <> 'information_schema'"
    ):
        run(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))
    run("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    run("GRANT USAGE ON SCHEMA public TO PUBLIC")
    run("GRANT TEMPORARY ON DATABASE tests TO PUBLIC")
    run("ALTER DATABASE tests RESET ALL")
    for (role,) in run(
        "SELECT rolname FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%' AND rolname <> current_user"
    ):
        run(SQL("DROP OWNED BY {} CASCADE").format(Identifier(role)))
        run(SQL("DROP ROLE {}").format(Identifier(role)))


@pytest.fixture
def table(database: Database) -> Database:
    database.sql("CREATE TABLE t (id bigint, v text)")
    return database


@pytest.fixture
def keyed(database: Database) -> Database:
    database.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    return database
