"""Refuses, by name, sources and plans that cannot work, before or in the first batch.

Spark calls a source's ``commit`` one batch later, long before a Weir checkpoint completes. A source
that then deletes or acknowledges upstream cannot be read again from the last completed checkpoint,
so it could lose or duplicate rows (PROTOCOL P24).

A changed plan may not fit the state that the chain was restored with (``misfit``). Weir matches
steps by their ids; only Spark knows what a step does with its state. It compares plan and state
when it plans the query and in the first batch, and refuses in several places, each with its own
error class. Trying again cannot help.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weir.core.graph import Vertex
from weir.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


#: Sources that cannot be read again, by Spark's short names, and why.
_NOT_REPLAYABLE = {
    "textsocket": "the socket source cannot read anything twice",
    "socket": "the socket source cannot read anything twice",
}


def check_source(name: str, frame: object) -> DataFrame:
    """The frame, if it is a streaming DataFrame whose sources can be replayed.

    Raises ``PipelineError`` otherwise.
    """
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise PipelineError(
            f"Source {name!r} returned a {type(frame).__name__}, not a streaming DataFrame:"
            " let its function return spark.readStream...load()."
        )
    if not frame.isStreaming:
        raise PipelineError(
            f"Source {name!r} returned a DataFrame that is not streaming: use spark.readStream"
            " instead of spark.read (a static DataFrame can be joined inside a transformation)."
        )
    for leaf in _leaves(frame._jdf.queryExecution().analyzed()):
        _check_leaf(name, leaf)
    return frame


def check_result(name: str, frame: object) -> DataFrame:
    """The frame that a transformation returned. Raises ``PipelineError`` unless it streams."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        kind = (
            "DataFrame that is not streaming"
            if isinstance(frame, DataFrame)
            else type(frame).__name__
        )
        raise PipelineError(
            f"Step {name!r} returned a {kind}: a transformation returns a DataFrame made from its"
            " inputs (collect and foreachBatch belong to sinks)."
        )
    return frame


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(index) for index in range(leaves.size())]


def _option(options: Any, lower_name: str) -> str | None:
    """The value of an option, ignoring the case of its name; None if it is not set."""
    pairs = options.toList()
    for pair in (pairs.apply(index) for index in range(pairs.size())):
        if str(pair._1()).lower() == lower_name:
            return str(pair._2())
    return None


def check_cleaning(source: str, leaf: Any) -> None:
    """Raise ``PipelineError`` for a leaf whose files Spark would remove.

    ``source`` begins the message: ``Source 'orders'``.
    """
    if leaf.getClass().getSimpleName() != "StreamingRelation":
        return
    clean = _option(leaf.dataSource().options(), "cleansource")
    if clean is not None and clean.lower() != "off":
        raise PipelineError(
            f"{source} has cleanSource={clean!r}: Spark would remove files that a restore from the"
            " last completed checkpoint must read again. Remove the option, and clean the"
            " directory with a retention longer than the checkpoint interval."
        )


def _check_leaf(name: str, leaf: Any) -> None:
    check_cleaning(f"Source {name!r}", leaf)
    if leaf.getClass().getSimpleName() in ("StreamingRelation", "StreamingRelationV2"):
        source = str(leaf.sourceName()).lower()
        if source in _NOT_REPLAYABLE:
            raise PipelineError(
                f"Source {name!r} reads {source!r}, but {_NOT_REPLAYABLE[source]}: after a failure"
                " its rows would be lost. Put a durable log (Kafka, files) in between."
            )


def check_bounded(vertex: str, query: StreamingQuery) -> None:
    """Check that all sources of a running ``availableNow`` query can be bounded (PROTOCOL P33).

    Raises ``PipelineError`` if some cannot: Spark would fall back to one huge batch for the whole
    query, and only log it.
    """
    execution = query._jsq.streamingQuery()
    executor = execution.triggerExecutor().getClass().getSimpleName()
    sources = [execution.sources().apply(index) for index in range(execution.sources().size())]
    unable = [source for source in sources if "Wrapper" in source.getClass().getSimpleName()]
    if executor == "SingleBatchExecutor" or unable:
        names = ", ".join(str(source.toString()) for source in unable) or "a source"
        raise PipelineError(
            f"The chain ending in {vertex!r} is to be read up to what there is now, but reads"
            f" {names}, which does not support Trigger.AvailableNow: Spark would read all of it in"
            " one batch. Remove bounded=True, available_now=True or --until-idle, or land the data"
            " as files."
        )


#: Spark's errors for a plan that does not fit its state: the operators, the schemas of their state,
#: the number of sources.
_MISFIT = re.compile(
    r"\[(?:STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)"
    r"|STATE_STORE_(?:(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    r"|INVALID_VALUE_SCHEMA_EVOLUTION|INVALID_VARIABLE_TYPE_CHANGE|INVALID_CONFIG_AFTER_RESTART))\]"
    r"|There are \[\d+\] sources in the checkpoint offsets"
)

#: What follows Spark's message: a stack, or the advice to switch off this very comparison.
_END = re.compile(r"JVM stacktrace|\sat org\.apache\.spark|If you want to force|SQLSTATE")


def misfit(vertex: Vertex, error: BaseException) -> str | None:
    """The sentence for a plan that does not fit its state; None for any other error."""
    text = " ".join(str(error).split())
    begin = _MISFIT.search(text)
    if begin is None:
        return None
    end = _END.search(text, begin.start())
    said = text[begin.start() : end.start() if end else None].strip().removesuffix(".")
    steps = ", ".join(repr(step.name) for step in vertex.steps)
    return (
        f"The plan of the chain ending in {vertex.steps[-1].name!r} (its steps: {steps}) no longer"
        f" fits its state. Spark says: {said[:1000]}. Restore the steps that use the state, or"
        " start from scratch with --fresh and new tables."
    )
