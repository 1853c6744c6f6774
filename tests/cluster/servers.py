"""``Servers``: PostgreSQL and Kafka for the sinks of ``on_servers.py``, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.kafka import server as kafka_server
from tests.kafka.reading import records
from tests.kafka.server import KafkaServer
from tests.kit import postgres_server
from tests.kit.place import Place, Rows, assert_same, delta_rows
from tests.kit.postgres_server import PostgresServer

_PARTITIONS = 2
_TABLES = (
    "numbers (id bigint, ts timestamptz)",
    "by_epoch (id bigint)",
    "by_commit (id bigint)",
    "by_batch (digit bigint, rank bigint)",
    "seen (key text PRIMARY KEY)",
)


class Servers:
    """A broker with a topic, and a database with tables, which nobody kills."""

    def __init__(self, broker: KafkaServer, database: PostgresServer) -> None:
        self._broker = broker
        self._database = database
        broker.create_topic("numbers", _PARTITIONS)
        for table in _TABLES:
            database.rows(f"CREATE TABLE {table}")

    def arguments(self) -> tuple[str, ...]:
        """Those of the pipeline, after its directories."""
        return (self._broker.address, self._database.loopback_dsn)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to log in."""
        return {"PGPASSWORD": postgres_server.PASSWORD}

    def settings(self) -> dict[str, str]:
        """What a job on YARN needs to log in."""
        kinds = ("spark.yarn.appMasterEnv", "spark.executorEnv")
        return {
            f"{kind}.{name}": value for kind in kinds for name, value in self.environment.items()
        }

    def assert_exact(self, place: Place, out: Path) -> int:
        """Compare each sink with a computation over the input; return the rows compared.

        ``out``: what this machine sees of the directory of the merged table.
        """
        numbers = place.rows()
        ids = Rows((number,) for number, _ in numbers)
        digits = Rows(number % 10 for number, _ in numbers)
        compared = (
            ("the topic", self._published(), numbers),
            ("the table", self._table("numbers"), numbers),
            ("ForeachEpoch's table", self._table("by_epoch"), ids),
            ("Foreach's table", self._table("by_commit"), ids),
            ("ForeachBatch's table", self._table("by_batch"), place.ranks()),
            ("the merged table", delta_rows(out / "totals"), Rows(digits.items())),
        )
        for what, found, expected in compared:
            assert_same(found, expected, what)
        return sum(found.total() for _, found, _ in compared)

    def _table(self, name: str) -> Rows:
        return Rows(self._database.rows(f"SELECT * FROM {name}"))

    def _published(self) -> Rows:
        values = (json.loads(each.value() or b"") for each in records(self._broker, "numbers"))
        return Rows((value["id"], datetime.fromisoformat(value["ts"])) for value in values)


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Running servers; they and their files are gone afterwards. Skips the test without jars."""
    with kafka_server.running_server() as broker, postgres_server.running_server() as database:
        yield Servers(broker, database)
