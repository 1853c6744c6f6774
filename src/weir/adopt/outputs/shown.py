"""Sinks that only show rows: the console, memory tables, and none."""

from __future__ import annotations

from weir.adopt.outputs.calls import Kinds, called, passed
from weir.adopt.outputs.console import ShownBatches, ShownJoined, ShownTable, printed
from weir.adopt.outputs.memory import MemoryRows, MemoryTable
from weir.adopt.outputs.request import Chosen, Request

_SHOWN = Kinds(ShownBatches, ShownJoined, ShownTable)


def console(request: Request, given: str) -> Chosen:
    """Prints what is committed."""
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
        return passed(request, show, "the console", _SHOWN), (said, *says)
    return called(request, show, "the console", _SHOWN), says


def memory(request: Request, given: str) -> Chosen:
    """A temporary view of what is committed."""
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


def noop(request: Request, given: str) -> Chosen:
    """Shows nothing: for benchmarks."""
    sink = ShownBatches(lambda *_: None, staging=request.directory, describe=given)
    return sink, request.without_effect(request.options)
