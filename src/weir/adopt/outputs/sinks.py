"""Which sink takes the rows of an adopted query.

====================  ==========================================================================
the script writes to  becomes
====================  ==========================================================================
delta                 ``DeltaTable``: exactly once; in complete mode by upsert
parquet, json, csv,   ``Files`` of that format: exactly once
orc, text
kafka                 ``KafkaTopic``: exactly once, where confluent-kafka is installed
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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.adopt.outputs import shown, targets, topics
from weir.adopt.outputs.calls import commit_interval, foreach, foreach_batch, written
from weir.adopt.outputs.request import Chosen, Request
from weir.errors import PipelineError, WeirError
from weir.sinks.base import Sink
from weir.storage.paths import join

if TYPE_CHECKING:
    from weir.spark.adopt.query import StartedQuery


@dataclass(frozen=True, kw_only=True)
class AdoptedSink:
    """The sink of an adopted query."""

    sink: Sink
    #: As in ``Stream.sink``.
    min_commit_interval: str | None = None
    #: What differs from Spark, for the user.
    says: tuple[str, ...] = ()


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


def _chosen(request: Request) -> Chosen:
    query = request.query
    if query.each_batch is not None:
        return foreach_batch(request, query.each_batch)
    if query.each_row is not None:
        return foreach(request, query.each_row)
    if query.table is not None:
        return targets.table_of(request, query.table)
    from weir.spark.adopt.catalog import default_format

    given = query.format or default_format(query.frame.sparkSession)
    return _CHOICES.get(given, written)(request, given)


#: By format; all others go to ``written``.
_CHOICES: dict[str, Callable[[Request, str], Chosen]] = {
    "console": shown.console,
    "memory": shown.memory,
    "delta": targets.delta,
    "noop": shown.noop,
    "kafka": topics.topic,
    **dict.fromkeys(targets.FILE_FORMATS, targets.files),
}
