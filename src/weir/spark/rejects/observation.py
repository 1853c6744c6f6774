"""What a step that sets rows aside sends to the driver: an observation in its plan.

``CollectMetrics``, as in ``DataFrame.observe``: what it has found comes with the batch that wrote
the other rows, so nothing is computed twice. Each row to set aside is a struct (``reject_of``);
rows that break a rule are counted (``rule_count``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from weir.core.graph import GraphStep
from weir.spark.rejects.parts import PlanParts

if TYPE_CHECKING:
    from pyspark.sql import Column

#: What begins an error whose message the driver finds: the number of a guard and values follow.
UNSAID = "\x01"
#: The rejects in an observation.
REJECTS = "rejects"
#: Options of JSON texts: all fields, and times to the microsecond.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS" + 3 * "X",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True)
class Guard:
    """Expressions of which some raised, for the message."""

    #: They in Java, as the fields of a struct, and the columns that they are made of.
    struct: Any
    columns: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class GuardedStep:
    """What the driver must know about a step that sets rows aside, or counts them."""

    step: GraphStep
    #: The column with the event time of its input; None if it has none.
    event_time: str | None
    #: The name of its observation; None for a Python operator, whose rejects come with its result.
    observation: str | None = None
    guards: tuple[Guard, ...] = ()
    #: The names of its expectations, in the order of their counts in the observation.
    rules: tuple[str, ...] = ()


def observation_of(step: GraphStep) -> str:
    """The name of a step's observation."""
    return f"weir-rejects-{step.operator_id}"


def reject_of(parts: PlanParts, error: Column, row: Column) -> Column:
    """A row to set aside. ``row`` is its JSON.

    It says which task has computed it: rows of a partition that two tasks computed come twice.
    """
    partition = F.spark_partition_id().alias("partition")
    return F.struct(partition, parts.task().alias("task"), error.alias("error"), row.alias("row"))


def rule_count(number: int) -> str:
    """The name of the count of a rule in an observation."""
    return f"rule {number}"


def collected(parts: PlanParts, reject: Any, rows_max: int) -> Column:
    """All rejects, to be observed, and one more than allowed if there are more.

    ``reject`` is the expression of their column.
    """
    newest = parts.expression("aggregate.CollectTopK")(reject, rows_max + 1, True, 0, 0)
    return parts.column(newest.toAggregateExpression()).alias(REJECTS)
