"""A database of a test's own, and rows for the PostgreSQL sink without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
from tests.kit.postgres_server import PostgresServer
from tests.kit.sink import sink_context

from weir.core.types import Payload
from weir.sinks import Batch, PostgresTable

JOB = "0123456789abcdef0123456789abcdef"


class Frame:
    """Stands for a DataFrame: its partitions are Arrow batches, and ``mapInArrow`` runs here."""

    def __init__(self, *partitions: list[dict[str, Any]], **types: str) -> None:
        self._types = types or {"id": "long", "v": "string"}
        kinds = {
            "long": pa.int64(),
            "string": pa.string(),
            "integer": pa.int32(),
            "short": pa.int16(),
            "double": pa.float64(),
            "decimal(12,4)": pa.decimal128(12, 4),
            "array<long>": pa.list_(pa.int64()),
            "array<string>": pa.list_(pa.string()),
        }
        arrow = pa.schema([(name, kinds[kind]) for name, kind in self._types.items()])
        self._partitions = [
            [pa.RecordBatch.from_pylist([row], schema=arrow) for row in rows] for rows in partitions
        ]
        self._found: list[Any] = []

    @property
    def schema(self) -> Any:
        lists = {
            f"array<{kind}>": {"type": "array", "elementType": kind} for kind in ("long", "string")
        }
        fields = [
            {"name": name, "type": lists.get(kind, kind)} for name, kind in self._types.items()
        ]
        return SimpleNamespace(json=lambda: json.dumps({"fields": fields}))

    def selectExpr(self, *expressions: str) -> Frame:
        assert len(expressions) == len(self._types)
        return self

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> Frame:
        for batches in self._partitions:
            for report in function(iter(batches)):
                self._found += [SimpleNamespace(**row) for row in report.to_pylist()]
        return self

    def collect(self) -> list[Any]:
        return self._found


def rows(*pairs: tuple[int | None, str | None]) -> list[dict[str, Any]]:
    return [{"id": key, "v": value} for key, value in pairs]


class Database:
    """A database of one test."""

    def __init__(self, server: PostgresServer, dsn: str) -> None:
        self.server = server
        self.dsn = dsn

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def opened(self, table: str = "t", *arguments: Any, **options: Any) -> PostgresTable:
        """A sink that has checked its target; see ``opened_again``."""
        return self._opened(table, *arguments, checks=True, **options)

    def opened_again(self, table: str = "t", *arguments: Any, **options: Any) -> PostgresTable:
        """A sink of a later attempt: the target was checked when the driver started."""
        return self._opened(table, *arguments, checks=False, **options)

    def _opened(
        self,
        table: str,
        *arguments: Any,
        checks: bool,
        attempt: int = 1,
        job: str = JOB,
        sink_name: str = "out",
        **options: Any,
    ) -> PostgresTable:
        context = sink_context(
            job_id=job, sink=sink_name, attempt=attempt, job_directory=f"/checkpoints/{job}"
        )
        sink = PostgresTable(self.dsn, table, *arguments, **options)
        if checks:
            sink.check(context)
        sink.open(context)
        return sink

    def shown(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT id, v FROM t ORDER BY id, v")

    def staging(self) -> list[str]:
        return [
            name
            for (name,) in self.sql(
                "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace('weir')"
                " AND relname LIKE 's\\_%' AND relkind = 'r' ORDER BY relname"
            )
        ]

    def prepared(self) -> list[str]:
        return [
            name
            for (name,) in self.sql(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
            )
        ]


def staged(sink: PostgresTable, position: int, *partitions: list[dict[str, Any]]) -> Payload:
    frame: Any = Frame(*partitions)
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    return json.loads(json.dumps(payload))


def flushed(sink: PostgresTable, position: int, *partitions: list[dict[str, Any]]) -> Payload:
    (payload,) = sink.flush([staged(sink, position, *partitions)])
    return json.loads(json.dumps(payload))
