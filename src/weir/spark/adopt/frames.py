"""What sinks of adopted queries do with DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Names the frame that a row comes from, while frames are joined.
_AGE = "__weir_age"


def newest_rows(frames: Sequence[DataFrame], keys: Sequence[str]) -> DataFrame:
    """The newest row of each key; ``frames`` from the oldest to the newest, keys once in each.

    Without keys, the newest row of all. Nulls are keys like any other.
    """
    aged = [frame.withColumn(_AGE, F.lit(age)) for age, frame in enumerate(frames)]
    rows = reduce(lambda old, new: old.unionByName(new, allowMissingColumns=True), aged)
    columns = [_column(name) for name in rows.columns if name != _AGE]
    newest = F.max_by(F.struct(*columns), F.col(_AGE)).alias("row")
    return rows.groupBy(*map(_column, keys)).agg(newest).select("row.*")


def ordering(frame: DataFrame) -> list[Column]:
    """By what the script sorts a frame at last, so that rows can be shown so.

    Empty if it does not, or by what is not one of its columns.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    while plan.nodeName() == "Repartition" and not plan.shuffle():
        # ``coalesce`` keeps the order.
        plan = plan.child()
    if plan.nodeName() != "Sort":
        return []
    names = {attribute.exprId().id(): attribute.name() for attribute in _each(plan.output())}
    found = []
    for order in _each(plan.order()):
        child = order.child()
        name = names.get(child.exprId().id()) if child.nodeName() == "AttributeReference" else None
        if name is None:
            return []
        direction = "asc" if order.direction().sql() == "ASC" else "desc"
        nulls = "nulls_first" if order.nullOrdering().sql() == "NULLS FIRST" else "nulls_last"
        found.append(getattr(_column(name), f"{direction}_{nulls}")())
    return found


def _column(name: str) -> Column:
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _each(values: Any) -> list[Any]:
    """The values of a Scala sequence."""
    return [values.apply(place) for place in range(values.size())]
