"""Sinks that call a function: of the script, of the console, or Spark's batch writer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.adopt.outputs.joined_batches import JoinedBatches
from weir.adopt.outputs.request import Chosen, Request
from weir.adopt.outputs.whole_table import WholeTable
from weir.sinks.base import Sink
from weir.sinks.foreach.batch import BatchFunction, ForeachBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.adopt.query import Trigger

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


def commit_interval(trigger: Trigger) -> str | None:
    """How seldom the sink of a query with this trigger commits; None: at each checkpoint."""
    if trigger.interval is None:
        return None
    parts = _INTERVAL.findall(trigger.interval.lower().replace("interval", ""))
    interval_ms = round(sum(float(number) * _UNITS_MS.get(unit, 0) for number, unit in parts))
    return f"{interval_ms} ms" if interval_ms else None


def foreach_batch(request: Request, function: BatchFunction) -> Chosen:
    """A function that the script gave to ``foreachBatch``."""
    request.check_not_partitioned("foreachBatch")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    said = request.said(
        f"{name} is called with a batch once its checkpoint is complete. If the process is killed"
        " within a call, that batch is passed again, so what the function appends may come twice:"
        " use batch_id, which is the same then, to skip what was written."
    )
    return called(request, function, f"foreachBatch({name})"), (said,)


def foreach(request: Request, writer: Any) -> Chosen:
    """What the script gave to ``foreach``."""
    from weir.spark.adopt.rows import row_by_row

    request.check_not_partitioned("foreach")
    if not callable(writer) and not callable(getattr(writer, "process", None)):
        raise request.refused("foreach takes a function, or an object with a method process(row).")
    said = request.said(
        "rows are passed once their checkpoint is complete. If the process is killed while rows"
        " of a batch are passed, they are passed again, with the same epoch_id."
    )
    name = getattr(writer, "__qualname__", type(writer).__qualname__)
    return called(request, row_by_row(writer), f"foreach({name})"), (said,)


@dataclass(frozen=True)
class Kinds:
    """The sinks that call a function."""

    each: type[ForeachBatch] = ForeachBatch
    joined: type[JoinedBatches] = JoinedBatches
    whole: type[WholeTable] = WholeTable


_OF_SCRIPT = Kinds()


def called(
    request: Request, function: BatchFunction, description: str, kinds: Kinds = _OF_SCRIPT
) -> Sink:
    """A sink that calls the function with each batch, or in complete mode with the result."""
    if not request.is_complete:
        return passed(request, function, description, kinds)
    return kinds.whole(
        _sorted(request, function),
        keys=request.complete_keys(),
        staging=request.directory,
        describe=description,
    )


def passed(
    request: Request, function: BatchFunction, description: str, kinds: Kinds = _OF_SCRIPT
) -> Sink:
    """A sink that calls the function with each batch, or with what came since its last commit.

    Spark makes a batch at each trigger; here an interval says how seldom the sink commits.
    """
    given: dict[str, Any] = {"staging": request.directory, "describe": description}
    joins = commit_interval(request.query.trigger) is not None
    if joins and (request.keys is not None or not request.updates):
        return kinds.joined(function, keys=request.keys if request.updates else None, **given)
    return kinds.each(function, **given)


def _sorted(request: Request, function: BatchFunction) -> BatchFunction:
    """The function, called with rows in the order that the script asks for."""
    from weir.spark.adopt.frames import ordering

    order = ordering(request.query.frame)
    if not order:
        return function
    return lambda frame, batch_id: function(frame.sort(*order), batch_id)


def written(request: Request, given: str) -> Chosen:
    """A format that Weir has no sink for."""
    query = request.query
    options, path = request.options, query.options.get("path")

    def write(frame: DataFrame) -> None:
        writer = frame.write.format(given).options(**options).mode("append")
        if query.partition_by:
            writer = writer.partitionBy(*query.partition_by)
        writer.save(path)

    return appended(request, f"format {given!r}", write)


def appended(request: Request, target: str, write: Callable[[DataFrame], None]) -> Chosen:
    """Writes each batch by Spark's own means."""
    said = [
        request.said(
            f"{target} is written by Spark's batch writer, at least once: if the process is killed"
            " while a batch is written, its rows come again."
        )
    ]
    if request.is_complete:
        said.append(request.said("the rows that changed are written, not the whole result."))
    return passed(request, lambda frame, _: write(frame), target), tuple(said)
