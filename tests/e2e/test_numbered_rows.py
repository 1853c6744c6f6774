"""A PostgreSQL table with a history shows at each checkpoint what the Delta table shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.place import Place, Rows, Run, assert_same
from tests.kit.postgres_server import PostgresServer, running_server
from tests.kit.waiting import wait_until

import weir

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

PIPELINE = Path(__file__).with_name("numbered_pipeline.py")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


def start(place: Place, server: PostgresServer, column: str, *arguments: str, numbers: str) -> Run:
    environment = {"WEIR_TEST_DSN": server.dsn, "COLUMN": column, "NUMBERS": numbers}
    conf = ("--conf", "execution.checkpointing.interval=300ms")
    return place.start(*conf, *arguments, pipeline=PIPELINE, environment=environment)


def compare(place: Place, server: PostgresServer, column: str) -> None:
    """Each checkpoint in the history, in both tables; the newest has every row."""
    tables = {
        "delta": str(place.directory / "out" / "delta"),
        "postgres": weir.sinks.PostgresTable(server.dsn, "numbers", epoch_column=column),
    }
    found = server.rows(
        "SELECT epoch FROM weir.history WHERE column_name = %s ORDER BY epoch", column
    )
    assert len(found) > 2
    rows = Rows()
    for (epoch,) in found:
        cut = weir.read_consistent(tables, checkpoint_id=epoch)
        delta = cut.table("delta").to_pyarrow_table().to_pylist()
        rows = Rows(server.rows(cut.query("postgres")))
        assert_same(rows, Rows((row["id"], row["ts"]) for row in delta), f"checkpoint {epoch}")
    assert_same(rows, place.rows(), "the newest checkpoint")


def is_whole(place: Place, server: PostgresServer) -> bool:
    """Whether the table has every row of the input."""
    if server.rows("SELECT to_regclass('numbers')::text") == [(None,)]:
        return False
    return server.rows("SELECT count(*) FROM numbers") == [(place.rows().total(),)]


def test_both_tables_show_the_same_rows_at_each_checkpoint_of_each_job(place, server):
    """Through a kill of the driver; a job that goes on from the savepoint has a column of its own,
    in which all that was there is older than its first checkpoint."""
    place.land(6)
    run = start(place, server, "weir_epoch", numbers="unbounded")
    run.wait_for("checkpoint 2 completed")
    run.end()
    place.land(6)
    run = start(place, server, "weir_epoch", numbers="unbounded")
    wait_until(lambda: is_whole(place, server), "every row is committed")
    stopped = place.weir("stop", "numbered", "--address", run.address)
    savepoint = re.search(r"Savepoint: (\S+)", stopped.stdout)
    assert savepoint is not None, stopped.stderr
    assert run.wait() == 0, run.story()
    compare(place, server, "weir_epoch")

    place.land(6)
    resume = ("--from-savepoint", savepoint[1])
    refused = start(place, server, "weir_epoch", *resume, numbers="bounded").error()
    way = re.search(r"run (ALTER TABLE .*); (ALTER TABLE .*), and give .*'(\w+)'", refused)
    assert way is not None, refused
    for statement in way.groups()[:2]:
        server.rows(statement)
    assert start(place, server, way[3], *resume, numbers="bounded").wait() == 0
    compare(place, server, way[3])
