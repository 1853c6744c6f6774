"""Says in one sentence that the plan of a chain no longer fits the state that it was restored with.

Weir matches steps by their ids; what a step does with its state only Spark knows. It compares the two when the query is
planned and in the first batch, and refuses in several places, each with an error class of its own. Trying again cannot help.
"""

from __future__ import annotations

import re

from weir.core.graph import Vertex

#: What Spark says where a plan does not fit: the operators, the schemas of their state, the number of sources.
_MISFIT = re.compile(
    r"\[(?:STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)"
    r"|STATE_STORE_(?:(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    r"|INVALID_VALUE_SCHEMA_EVOLUTION|INVALID_VARIABLE_TYPE_CHANGE|INVALID_CONFIG_AFTER_RESTART))\]"
    r"|There are \[\d+\] sources in the checkpoint offsets"
)

#: Where what Spark says ends: a stack, or the advice to switch off the very comparison.
_END = re.compile(r"JVM stacktrace|\sat org\.apache\.spark|If you want to force|SQLSTATE")


def misfit(vertex: Vertex, error: BaseException) -> str | None:
    """The sentence, if that is what the query of the vertex failed of; else None."""
    text = " ".join(str(error).split())
    begin = _MISFIT.search(text)
    if begin is None:
        return None
    end = _END.search(text, begin.start())
    said = text[begin.start() : end.start() if end else None].strip().removesuffix(".")
    steps = ", ".join(repr(step.name) for step in vertex.steps)
    return (
        f"The plan of the chain that ends in {vertex.steps[-1].name!r} (its steps: {steps}) no longer fits its state, Spark"
        f" says: {said[:1000]}. Let the steps work on their state as they did, or start from scratch with --fresh into new"
        " tables."
    )
