"""Sinks for tables and files: exactly once, wherever the script has its path or its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weir.adopt.outputs.calls import appended
from weir.adopt.outputs.request import Chosen, Request
from weir.adopt.outputs.tables import CatalogDelta, CatalogFiles
from weir.sinks.delta.sink import DeltaTable
from weir.sinks.files.sink import Files

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from weir.spark.adopt.catalog import Table

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
#: Options of Delta's writer that change files, but no rows.
_DELTA_WITHOUT_EFFECT = frozenset(
    ("maxrecordsperfile", "optimizewrite", "autocompact", "compression", "usermetadata")
)


def delta(request: Request, given: str) -> Chosen:
    """A Delta table at a path."""
    path = _path(request, given)
    options, says = _delta_options(request)
    return DeltaTable(path, partition_by=request.query.partition_by, **options), says


def _delta_options(request: Request) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keywords of ``DeltaTable``, and what is said."""
    options = request.options
    evolves = options.pop("mergeschema", "false").lower() == "true"
    ignored = options.keys() & _DELTA_WITHOUT_EFFECT
    if refused := sorted(options.keys() - ignored):
        raise request.refused(
            f"Weir's Delta table does not support the option {refused[0]!r}: remove it, or write"
            " the table in foreachBatch."
        )
    given: dict[str, Any] = {"schema_evolution": "add"} if evolves else {}
    if request.query.output_mode == "update":
        raise request.refused(
            "format 'delta' takes the output modes 'append' and 'complete': merge updates in"
            " foreachBatch."
        )
    if request.is_complete:
        given |= {"mode": "upsert", "key": _upsert_key(request)}
    return given, request.without_effect(ignored)


def _upsert_key(request: Request) -> tuple[str, ...]:
    keys = request.complete_keys()
    if not keys:
        raise request.refused(
            "format 'delta' in complete mode needs groupBy with a column: a table finds a row by"
            " its key."
        )
    types: dict[str, DataType] = {
        field.name: field.dataType for field in request.query.frame.schema
    }
    for key in keys:
        kind = types[key].typeName()
        if kind in ("struct", "array", "map", "float", "double", "variant"):
            hint = f": select {key}.start and {key}.end in its place" if key == "window" else ""
            raise request.refused(
                f"format 'delta' in complete mode cannot find rows by {key!r}, a {kind}{hint}."
            )
    return keys


def files(request: Request, given: str) -> Chosen:
    """Files of a format in a directory."""
    path = _path(request, given)
    options, says = _file_options(request, given)
    by = request.query.partition_by
    return Files(path, format=given, partition_by=by, options=options), says  # type: ignore[arg-type]


def _file_options(request: Request, given: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Spark's options for files of a format, and what is said."""
    if request.query.output_mode != "append":
        raise request.refused(
            f"format {given!r} takes only the output mode 'append', not"
            f" {request.query.output_mode!r}."
        )
    options = request.options
    ignored = {"retention"} & options.keys()
    return (
        {name: value for name, value in options.items() if name not in ignored},
        request.without_effect(ignored),
    )


def table_of(request: Request, name: str) -> Chosen:
    """What ``toTable`` writes to."""
    from weir.spark.adopt import catalog

    query, session = request.query, request.query.frame.sparkSession
    table = catalog.find_table(session, name)
    if table is None:
        if not session.catalog.tableExists(name):
            raise request.refused(f"table {name} does not exist: create it first.")
        return appended(request, f"table {name}", lambda frame: frame.writeTo(name).append())
    if table.is_view:
        raise request.refused(f"toTable cannot write to the view {name}.")
    provider = table.provider or query.format or catalog.default_format(session)
    if query.format not in (None, provider):
        raise request.refused(f"table {name} has the format {provider!r}, not {query.format!r}.")
    if not table.exists:
        table = replace(table, partition_by=query.partition_by)
    elif query.partition_by and query.partition_by != table.partition_by:
        raise request.refused(
            f"table {name} is partitioned by {', '.join(table.partition_by) or 'nothing'}: remove"
            " partitionBy."
        )
    if provider == "delta":
        return _delta_table(request, table)
    if provider in FILE_FORMATS:
        options, says = _file_options(request, provider)
        sink = CatalogFiles(
            table.location,
            register=_registration(request, table, provider),
            refresh=lambda: catalog.refresh_table(session, table),
            format=provider,
            partition_by=table.partition_by,
            options=options,
        )
        return sink, says
    return appended(
        request, f"table {name}", lambda frame: frame.write.mode("append").saveAsTable(name)
    )


def _delta_table(request: Request, table: Table) -> Chosen:
    from weir.spark.adopt.catalog import has_format

    given, says = _delta_options(request)
    given["partition_by"] = table.partition_by
    if table.exists or has_format(request.query.frame.sparkSession, "delta"):
        register = _registration(request, table, "delta")
        return CatalogDelta(table.location, register=register, **given), says
    said = request.said(
        f"Spark has no Delta connector here, so {table.name} is not in its catalog: the table is at"
        f" {table.location}."
    )
    return DeltaTable(table.location, **given), (said, *says)


def _registration(request: Request, table: Table, provider: str) -> Callable[[bool], None]:
    """Creates a table in the session's catalog, unless it is there."""
    from weir.spark.adopt.catalog import create_table, ddl_of

    frame = request.query.frame

    def register(has_files: bool) -> None:
        session = frame.sparkSession
        columns = ddl_of(frame.schema, session)
        create_table(session, table, provider=provider, columns=columns, at_location=has_files)

    return register


def _path(request: Request, given: str) -> str:
    """Where the script writes files of a format."""
    from weir.spark.adopt.catalog import full_path

    path = request.query.options.get("path")
    if path is None:
        raise request.refused(f"format {given!r} needs a path: start('PATH').")
    return full_path(request.query.frame.sparkSession, path)
