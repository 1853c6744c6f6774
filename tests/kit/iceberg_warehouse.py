"""A warehouse of a test's own: pyiceberg's SQL catalog in PostgreSQL, data files on disk."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.kit.postgres_server import PostgresServer
from tests.kit.sink import JOB, sink_context
from tests.kit.written_rows import WrittenRows

from weir.core.types import Payload
from weir.sinks import Batch, IcebergTable, SinkContext
from weir.sinks.staging import encoded
from weir.storage.local import LocalFileSystem

NAME = "shop.orders"
_FILES = LocalFileSystem()
_numbers = count(1)


def catalog_uri(server: PostgresServer, database: str) -> str:
    """SQLAlchemy's address of a database, through the server's socket."""
    parameters = dict(word.split("=", 1) for word in server.dsn.split())
    return (
        f"postgresql+psycopg2://{server.role}@/{database}"
        f"?host={parameters['host']}&port={parameters['port']}"
    )


def context(**changes: Any) -> SinkContext:
    return sink_context(**{"job_directory": f"/checkpoints/{JOB}", **changes})


class Warehouse:
    """A catalog of one test, with the namespace ``shop``; all catalogs are in one database.

    Without a server, it is in a file beside the directory.
    """

    def __init__(self, server: PostgresServer | None, directory: Path) -> None:
        self.directory = directory
        file = f"sqlite:///{directory.parent / 'catalog.db'}"
        self.properties = {
            "name": f"catalog{next(_numbers)}",
            "type": "sql",
            "uri": file if server is None else catalog_uri(server, "postgres"),
            "warehouse": str(directory),
        }
        catalog = load_catalog(**self.properties)
        assert isinstance(catalog, SqlCatalog)
        self.catalog = catalog
        self.catalog.create_namespace("shop")

    def sink(self, **options: Any) -> IcebergTable:
        return IcebergTable(self.properties, NAME, **options)

    def opened(self, *, partition_by: tuple[str, ...] = (), **changes: Any) -> IcebergTable:
        """A sink that has checked its table and begun an attempt."""
        sink = self.sink(partition_by=partition_by)
        sink.check(context(**changes))
        sink.open(context(**changes))
        return sink

    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def ids(self, row_filter: str = "true") -> list[Any]:
        """The ids of the rows that pass a filter, by which pyiceberg also skips files."""
        if not self.catalog.table_exists(NAME):
            return []
        chosen = {} if row_filter == "true" else {"row_filter": row_filter}
        return sorted(self.table().scan(**chosen).to_arrow()["id"].to_pylist())

    def snapshots(self) -> int:
        return len(self.table().metadata.snapshots)

    def attempts(self) -> list[str]:
        """Batches that lie below the table, by attempt and position."""
        found = self.directory.glob("shop/orders/data/weir-*/[0-9]*")
        return sorted(f"{path.parent.name.rpartition('-')[2]}/{path.name}" for path in found)


def staged(sink: IcebergTable, frame: Any, position: int) -> Payload:
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    return json.loads(json.dumps(payload))


def flushed(sink: IcebergTable, frame: Any, position: int) -> Payload:
    (payload,) = sink.flush([staged(sink, frame, position)])
    return json.loads(json.dumps(payload))


def stage_by_hand(sink: IcebergTable, position: int, *rows: int) -> Payload:
    """Stage each row in a file of its own, as Spark would write it."""
    frame: Any = WrittenRows()
    sink._accept(frame.json())
    sink._target.check(_FILES)
    directory = f"{sink._attempts_prefix}-{sink._context.attempt}"
    place = Path(sink._root, directory, str(position))
    field_id = sink._accepted_rows.rows.find_field("id").field_id
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": f"{field_id}"})
    files = []
    for row in rows:
        path = place / f"part-{row}-c000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table([pa.array([row], pa.int64())], pa.schema([field])), path)
        files.append({"path": path.name, "size": path.stat().st_size})
    return {**encoded(sink._new_payload(frame, directory, position)), "files": files}
