"""Which sink takes the rows of an adopted query.

====================  ==========================================================================
the script writes to  becomes
====================  ==========================================================================
delta                 ``DeltaTable``: exactly once; in complete mode by upsert
parquet, json, csv,   ``Files`` of that format: exactly once
orc, text
``toTable``           one of these, where the session's catalog has the table
console               printed at commit
memory                a temporary view of what was committed (``memory.py``)
``foreachBatch``      ``ForeachBatch``, with an interval as trigger ``JoinedBatches``, and in
                      complete mode ``WholeTable``
``foreach``           the same, row by row in Spark's workers
anything else         the format's batch writer in a ``ForeachBatch``: at least once
====================  ==========================================================================

What is not refused, but other than under Spark, is said with the query's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weir.adopt.console import printed
from weir.adopt.joined_batches import JoinedBatches
from weir.adopt.memory import MemoryRows, MemoryTable
from weir.adopt.request import Request
from weir.adopt.tables import CatalogDelta, CatalogFiles
from weir.adopt.whole_table import WholeTable
from weir.errors import PipelineError, WeirError
from weir.sinks.base import Sink
from weir.sinks.delta.sink import DeltaTable
from weir.sinks.files.sink import Files
from weir.sinks.foreach.batch import BatchFunction, ForeachBatch
from weir.storage.paths import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from weir.spark.adopt.catalog import Table
    from weir.spark.adopt.query import StartedQuery, Trigger

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
#: Options of Delta's writer that change files, but no rows.
_DELTA_WITHOUT_EFFECT = frozenset(
    ("maxrecordsperfile", "optimizewrite", "autocompact", "compression", "usermetadata")
)
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=\s|\d|$)")
_UNITS_MS = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}

_Chosen = tuple[Sink, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class AdoptedSink:
    """The sink of an adopted query."""

    sink: Sink
    min_commit_interval: str | None
    #: What differs from Spark, for the user.
    says: tuple[str, ...]


def sink_of(
    query: StartedQuery,
    *,
    uid: str,
    updates: bool,
    keys: tuple[str, ...] | None,
    directory: str,
) -> AdoptedSink:
    """Choose the sink of a query. Writes nothing.

    ``updates``: the step emits updates. ``keys``: the output columns that are the aggregation's
    keys; None if some are missing. ``directory``: a place of the job's own, which lasts. Raises
    ``PipelineError`` with the query's line.
    """
    request = Request(
        query=query, uid=uid, updates=updates, keys=keys, directory=join(directory, uid)
    )
    try:
        _check_columns(request)
        sink, says = _chosen(request)
    except PipelineError:
        raise
    except WeirError as error:
        raise request.refused(str(error)) from error
    return AdoptedSink(sink=sink, min_commit_interval=commit_interval(query.trigger), says=says)


def commit_interval(trigger: Trigger) -> str | None:
    """How seldom the sink of a query with this trigger commits; None: at each checkpoint."""
    if trigger.interval is None:
        return None
    parts = _INTERVAL.findall(trigger.interval.lower().replace("interval", ""))
    interval_ms = round(sum(float(number) * _UNITS_MS.get(unit, 0) for number, unit in parts))
    return f"{interval_ms} ms" if interval_ms else None


def _check_columns(request: Request) -> None:
    query = request.query
    if query.cluster_by:
        raise request.refused("clusterBy is not supported: remove it, or use partitionBy.")
    known = {name.lower() for name in query.frame.columns}
    for column in query.partition_by:
        if column.lower() not in known:
            raise request.refused(
                f"partitionBy names the column {column!r}, but the rows have only"
                f" {', '.join(map(repr, query.frame.columns))}."
            )


def _chosen(request: Request) -> _Chosen:
    query = request.query
    if query.each_batch is not None:
        return _foreach_batch(request, query.each_batch)
    if query.each_row is not None:
        return _foreach(request, query.each_row)
    if query.table is not None:
        return _table(request, query.table)
    from weir.spark.adopt.catalog import default_format

    given = query.format or default_format(query.frame.sparkSession)
    return _CHOICES.get(given, _written)(request, given)


def _path(request: Request, given: str) -> str:
    """Where the script writes files of a format."""
    from weir.spark.adopt.catalog import full_path

    path = request.query.options.get("path")
    if path is None:
        raise request.refused(f"format {given!r} needs a path: start('PATH').")
    return full_path(request.query.frame.sparkSession, path)


# -- functions of the script -----------------------------------------------------------------------


def _foreach_batch(request: Request, function: BatchFunction) -> _Chosen:
    request.check_not_partitioned("foreachBatch")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    said = request.said(
        f"{name} is called with a batch once its checkpoint is complete. If the process is killed"
        " within a call, that batch is passed again, so what the function appends may come twice:"
        " use batch_id, which is the same then, to skip what was written."
    )
    return _called(request, function, f"foreachBatch({name})"), (said,)


def _foreach(request: Request, writer: Any) -> _Chosen:
    from weir.spark.adopt.rows import row_by_row

    request.check_not_partitioned("foreach")
    if not callable(writer) and not callable(getattr(writer, "process", None)):
        raise request.refused("foreach takes a function, or an object with a method process(row).")
    said = request.said(
        "rows are passed once their checkpoint is complete. If the process is killed while rows"
        " of a batch are passed, they are passed again, with the same epoch_id."
    )
    name = getattr(writer, "__qualname__", type(writer).__qualname__)
    return _called(request, row_by_row(writer), f"foreach({name})"), (said,)


def _called(request: Request, function: BatchFunction, description: str) -> Sink:
    """A sink that calls the function with each batch, or in complete mode with the result."""
    if request.is_complete:
        return WholeTable(
            _sorted(request, function),
            keys=request.complete_keys(),
            staging=request.directory,
            describe=description,
        )
    return _passed(request, function, description)


def _passed(request: Request, function: BatchFunction, description: str) -> Sink:
    """A sink that calls the function with each batch, or with what came since its last commit.

    Spark makes a batch at each trigger; here an interval says how seldom the sink commits.
    """
    given: dict[str, Any] = {"staging": request.directory, "describe": description}
    joins = commit_interval(request.query.trigger) is not None
    if joins and (request.keys is not None or not request.updates):
        return JoinedBatches(function, keys=request.keys if request.updates else None, **given)
    return ForeachBatch(function, **given)


def _sorted(request: Request, function: BatchFunction) -> BatchFunction:
    """The function, called with rows in the order that the script asks for."""
    from weir.spark.adopt.frames import ordering

    order = ordering(request.query.frame)
    if not order:
        return function
    return lambda frame, batch_id: function(frame.sort(*order), batch_id)


# -- console and memory ----------------------------------------------------------------------------


def _console(request: Request, given: str) -> _Chosen:
    del given
    options = request.options
    says = request.without_effect(options.keys() - {"numrows", "truncate"})
    rows, truncate = options.get("numrows", "20"), options.get("truncate", "true").lower()
    if not rows.isdecimal() or truncate not in ("true", "false"):
        raise request.refused(
            "format 'console' takes the options numRows, a number, and truncate, true or false."
        )
    show = printed(int(rows), truncate=truncate == "true")
    if request.is_complete and request.keys is None:
        said = request.said(
            "the output lacks a column of groupBy, so the console shows the rows that changed, not"
            " the whole result."
        )
        return _passed(request, show, "the console"), (said, *says)
    return _called(request, show, "the console"), says


def _memory(request: Request, given: str) -> _Chosen:
    del given
    query = request.query
    request.check_not_partitioned("format 'memory'")
    if query.name is None:
        raise request.refused("format 'memory' needs a name for its table: queryName('NAME').")
    says = request.without_effect(request.options)
    schema = query.frame.schema
    if request.is_complete:
        keys = request.complete_keys()
        return MemoryTable(query.name, schema, keys=keys, directory=request.directory), says
    return MemoryRows(query.name, schema, directory=request.directory), says


# -- tables and files ------------------------------------------------------------------------------


def _delta(request: Request, given: str) -> _Chosen:
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


def _files(request: Request, given: str) -> _Chosen:
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


def _table(request: Request, name: str) -> _Chosen:
    """What ``toTable`` writes to."""
    from weir.spark.adopt import catalog

    query, session = request.query, request.query.frame.sparkSession
    table = catalog.find_table(session, name)
    if table is None:
        if not session.catalog.tableExists(name):
            raise request.refused(f"table {name} does not exist: create it first.")
        return _appended(request, f"table {name}", lambda frame: frame.writeTo(name).append())
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
    return _appended(
        request, f"table {name}", lambda frame: frame.write.mode("append").saveAsTable(name)
    )


def _delta_table(request: Request, table: Table) -> _Chosen:
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


# -- formats that Weir has no sink for -------------------------------------------------------------


def _written(request: Request, given: str) -> _Chosen:
    query = request.query
    options, path = request.options, query.options.get("path")

    def write(frame: DataFrame) -> None:
        writer = frame.write.format(given).options(**options).mode("append")
        if query.partition_by:
            writer = writer.partitionBy(*query.partition_by)
        writer.save(path)

    return _appended(request, f"format {given!r}", write)


def _noop(request: Request, given: str) -> _Chosen:
    sink = ForeachBatch(lambda *_: None, staging=request.directory, describe=given)
    return sink, request.without_effect(request.options)


def _appended(request: Request, target: str, write: Callable[[DataFrame], None]) -> _Chosen:
    """Writes each batch by Spark's own means."""
    said = [
        request.said(
            f"{target} is written by Spark's batch writer, at least once: if the process is killed"
            " while a batch is written, its rows come again."
        )
    ]
    if request.is_complete:
        said.append(request.said("the rows that changed are written, not the whole result."))
    return _passed(request, lambda frame, _: write(frame), target), tuple(said)


#: By format; all others go to ``_written``.
_CHOICES: dict[str, Callable[[Request, str], _Chosen]] = {
    "console": _console,
    "memory": _memory,
    "delta": _delta,
    "noop": _noop,
    **dict.fromkeys(FILE_FORMATS, _files),
}
