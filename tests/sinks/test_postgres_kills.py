"""The PostgreSQL server dies at random steps of staging and commit, and every row is there once.

A small job plays the protocol around the sink: batches, a checkpoint after every second one, a
commit that is repeated, and after a failure a new attempt from the newest checkpoint. Any statement
of the sink, any write of a ``COPY`` and any end of a transaction may be where the server is killed:
right before it, or right after, so that nobody hears of its success.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.kit.postgres_server import PostgresServer, running_server
from tests.sinks.postgres_database import Database, rows, staged

from weir.errors import LostWriteError, StorageError
from weir.sinks import PostgresTable

BATCHES = 30
#: Steps between two kills, at most: an epoch has about eighty.
_STEPS = 90


class Killer:
    """Kills the server at steps of the sink that it draws."""

    def __init__(self, server: PostgresServer, draws: random.Random, kills: int) -> None:
        self._server = server
        self._draws = draws
        self.left = kills
        self._steps = draws.randrange(_STEPS)

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        """Count calls of a method as steps."""
        original: Callable[..., Any] = getattr(owner, name)

        def step(*arguments: Any, **named: Any) -> Any:
            if not self._is_due():
                return original(*arguments, **named)
            if self._draws.random() < 0.5:
                self._server.restart()
                return original(*arguments, **named)
            original(*arguments, **named)
            self._server.restart()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(owner, name, step)

    def _is_due(self) -> bool:
        self._steps -= 1
        if self.left == 0 or self._steps > 0:
            return False
        self._steps = self._draws.randrange(1, _STEPS)
        self.left -= 1
        return True


class Job:
    """The protocol around one sink."""

    def __init__(self, database: Database, options: dict[str, Any]) -> None:
        self._database = database
        self._options = options
        self._attempt = 0
        #: The newest checkpoint: its id, the next batch, and what it has to commit.
        self._checkpoint: tuple[int, int, list[Any]] = (0, 0, [])

    def run(self) -> None:
        """Run attempt after attempt until every batch is committed."""
        while True:
            self._attempt += 1
            try:
                self._run_attempt()
                return
            except (StorageError, LostWriteError):
                continue

    def _run_attempt(self) -> None:
        sink = self._database.opened_again("t", attempt=self._attempt, **self._options)
        epoch, position, payloads = self._checkpoint
        self._commit(sink, epoch, payloads)
        sink.clean(self._attempt)
        while position < BATCHES:
            staged_rows = [staged(sink, one, *batch(one)) for one in (position, position + 1)]
            payloads = sink.flush(staged_rows)
            position += 2
            epoch += 1
            self._checkpoint = (epoch, position, payloads)
            self._commit(sink, epoch, payloads)
            sink.clean(self._attempt)
        sink.close()

    def _commit(self, sink: PostgresTable, epoch: int, payloads: list[Any]) -> None:
        for left in reversed(range(3)):
            try:
                sink.commit(epoch, payloads)
                return
            except StorageError:
                if not left:
                    raise


def batch(number: int) -> list[list[dict[str, Any]]]:
    """Two partitions of a batch: ids that are new, and for each a key that returns."""
    ids = range(number * 10, number * 10 + 10)
    return [rows(*((one, f"{one}") for one in half)) for half in (ids[:5], ids[5:])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="append"),
        pytest.param({"mode": "upsert", "key": ["id"]}, id="upsert"),
        pytest.param({"schema_evolution": "add", "epoch_column": "weir_epoch"}, id="history"),
    ],
)
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_server_that_dies_at_random_steps_loses_and_doubles_no_row(monkeypatch, options, seed):
    """Ten times in one job; nothing staged is left at its end. In a table with a history, whose
    columns the first commit changes, each row has the number of its checkpoint."""
    has_history = "epoch_column" in options
    with running_server() as server:
        database = Database(server, server.create_database("kills"))
        columns = "id int, weir_epoch bigint" if has_history else "id bigint, v text"
        database.sql(f"CREATE TABLE t ({columns}, PRIMARY KEY (id))")
        database.sql("CREATE TABLE log (id bigint)")
        database.sql(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO log VALUES (NEW.id); RETURN NULL; END'"
        )
        # An upsert that lands twice changes no row of its table: the log shows it.
        database.sql(
            "CREATE TRIGGER noted AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note()"
        )
        killer = Killer(server, random.Random(seed), kills=10)
        with monkeypatch.context() as patched:
            killer.watch(patched, psycopg.Connection, "execute")
            killer.watch(patched, psycopg.Connection, "commit")
            killer.watch(patched, psycopg.Copy, "write")
            Job(database, options).run()
        assert killer.left == 0
        expected = [(one, f"{one}") for one in range(BATCHES * 10)]
        assert database.shown() == expected
        assert database.sql("SELECT id FROM log ORDER BY id") == [(one,) for one, _ in expected]
        if not has_history:
            assert database.staging() == []
        else:
            # With one of the seeds, the last kill strikes while the last table is dropped.
            wrong = "SELECT id FROM t WHERE weir_epoch IS DISTINCT FROM id / 20 + 1"
            assert database.sql(wrong) == []
