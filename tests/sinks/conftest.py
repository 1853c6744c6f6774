"""A PostgreSQL server for all tests of a process, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.sinks.postgres_database import Database

from weir.demo.postgres_server import PostgresServer, running_server

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    name = f"d{next(_numbers)}"
    yield Database(server, server.create_database(name))


@pytest.fixture
def table(database: Database) -> Database:
    database.sql("CREATE TABLE t (id bigint, v text)")
    return database


@pytest.fixture
def keyed(database: Database) -> Database:
    database.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    return database
