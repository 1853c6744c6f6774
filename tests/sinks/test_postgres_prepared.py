"""Transactions that an older Weir prepared, on a real server: a start refuses until they end."""

from __future__ import annotations

import re
from collections.abc import Iterable

import psycopg
import pytest
from tests.kit.postgres_server import PostgresServer
from tests.sinks.postgres_database import Database, flushed, rows

from weir.core.types import Payload
from weir.errors import LostRowsError, SinkMismatchError
from weir.sinks import PostgresTable


@pytest.fixture(scope="module", autouse=True)
def _prepares(server: PostgresServer) -> None:
    # It stays on, which no other test notices.
    server.rows("ALTER SYSTEM SET max_prepared_transactions = 8")
    server.restart()


def prepared(database: Database, sink: PostgresTable, batch: int, ids: Iterable[int]) -> Payload:
    """The payload of a batch of attempt 1, with a prepared transaction for each row."""
    database.sql(
        "CREATE TABLE IF NOT EXISTS weir.prepared"
        " (name text PRIMARY KEY, target text NOT NULL, rows bigint NOT NULL)"
    )
    names = [f"weir_{sink._ledger.digest}_1_{batch}_{number:016x}" for number in ids]
    for number, name in zip(ids, names, strict=True):
        with psycopg.connect(database.dsn) as connection:
            connection.execute("INSERT INTO t VALUES (%s, '')", [number])
            connection.execute("INSERT INTO weir.prepared VALUES (%s, 'public.t', 1)", [name])
            connection.execute(f"PREPARE TRANSACTION '{name}'")
    return {
        "target": "public.t",
        "position": batch,
        "flushed": True,
        "after": 0,
        "rows": len(names),
        "transactions": [[name, 1] for name in names],
    }


def run_statements(database: Database, message: str) -> list[str]:
    """Run what the message says; return what kinds of statements these were."""
    statements = re.findall(r"(\w+ PREPARED) ('\w+');", message)
    for how, name in statements:
        database.sql(f"{how} {name}")
    return [how for how, _ in statements]


def test_a_start_refuses_until_the_rows_of_a_completed_checkpoint_are_committed(table):
    """It names the statements; then the checkpoint's other rows follow, each once (P18)."""
    sink = table.opened(attempt=2)
    pending = [prepared(table, sink, 0, [1, 2]), flushed(sink, 1, rows((3, "")))]
    later = prepared(table, sink, 2, [4])
    with pytest.raises(SinkMismatchError, match="Checkpoint 7 is complete") as refused:
        sink.commit(7, pending)
    assert table.shown() == []
    assert run_statements(table, str(refused.value)) == ["COMMIT PREPARED"] * 2
    assert sink.commit(7, pending) == 3
    assert sink.commit(7, pending) == 0
    assert (table.shown(), sink.newest_committed()) == ([(1, ""), (2, ""), (3, "")], 7)
    assert table.prepared() == [later["transactions"][0][0]]


def test_a_start_refuses_until_rows_of_no_completed_checkpoint_are_rolled_back(table):
    """It names those of its own job, sink and target only (P22)."""
    prepared(table, table.opened(job="f" * 32), 0, [9])
    sink = table.opened(attempt=2)
    prepared(table, sink, 3, [1, 2])
    with pytest.raises(SinkMismatchError, match="have rows of no completed checkpoint") as refused:
        sink.clean(2)
    assert run_statements(table, str(refused.value)) == ["ROLLBACK PREPARED"] * 2
    sink.clean(2)
    assert (table.shown(), len(table.prepared())) == ([], 1)


def test_rows_of_a_completed_checkpoint_that_were_rolled_back_are_missed(table):
    """Their records went with them, and the job does not go on without."""
    sink = table.opened(attempt=2)
    payload = prepared(table, sink, 0, [1, 2])
    (first, _), (second, _) = payload["transactions"]
    table.sql(f"COMMIT PREPARED '{first}'")
    table.sql(f"ROLLBACK PREPARED '{second}'")
    with pytest.raises(LostRowsError, match=f"{second} was rolled back"):
        sink.commit(7, [payload])


def test_prepared_rows_count_for_no_other_target(table):
    """They are in their own table already."""
    payload = prepared(table, table.opened(), 0, [1])
    table.sql("CREATE TABLE u (id bigint, v text)")
    with pytest.raises(SinkMismatchError, match="of this job did not make"):
        table.opened("u").commit(7, [payload])
