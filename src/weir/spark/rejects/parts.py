"""Expressions of Spark's plans: made of PySpark's columns, and looked into."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import _parse_datatype_json_string

from weir.spark.java import Jvm

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Spark's packages of expressions and of the nodes of plans.
EXPRESSIONS = "catalyst.expressions."
LOGICAL = "catalyst.plans.logical."


class PlanParts:
    """Makes expressions of Spark's plans from PySpark's columns, and columns from expressions."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._utils = jvm.sql_class("classic.ExpressionUtils")

    def expression(self, name: str) -> Any:
        """The class of an expression."""
        return self._jvm.sql_class(EXPRESSIONS + name)

    def java(self, column: Column) -> Any:
        """The expression of a column."""
        classic: Any = column
        return self._jvm.java_session.converter().apply(classic._jc.node())

    def column(self, expression: Any) -> Column:
        """An expression as a column."""
        return ClassicColumn(self._utils.column(expression))

    def task(self) -> Column:
        """The id of the Spark task that evaluates it, which another attempt does not share.

        Null if the driver does. It has the same generated code in each batch of a stream; ``rand``
        has not, since Spark changes its seed, and would make Spark compile each batch.
        """
        java, none = self._jvm, self._jvm.seq(())
        name = "org.apache.spark.TaskContext"
        context = java.java_class("java.lang.Class").forName(name)
        kind = java.sql_class("types.ObjectType")(context)
        long = java.sql_class("types.DataType").fromJson('"long"')
        # Neither has arguments; both may be null; and no value is the one of another row.
        flags = (True, True, False)
        running = self.expression("objects.StaticInvoke")(
            context, kind, "get", none, none, *flags, java.none
        )
        return self.column(
            self.expression("objects.Invoke")(running, "taskAttemptId", long, none, none, *flags)
        )

    def tried(self, expression: Any, good: Column | None = None) -> Column:
        """The value of an expression; null if it raises, and if ``good`` is false.

        Below a condition that it cannot know, Spark evaluates no part of the expression elsewhere,
        as it else does with what occurs twice.
        """
        always = F.spark_partition_id() >= 0
        tried = self.column(self.expression("TryEval")(expression))
        return F.when(always if good is None else good, tried)


def listed(seq: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [seq.apply(number) for number in range(seq.size())]


def id_of(named: Any) -> str:
    """What identifies a named expression within a plan."""
    return str(named.exprId().id())


def kind_of(expression: Any) -> str:
    """The name of an expression's class."""
    return str(expression.getClass().getSimpleName())


def is_alias(expression: Any) -> bool:
    """Whether an expression names another."""
    return kind_of(expression) == "Alias"


def classes_of(expression: Any) -> set[str]:
    """The classes of an expression and all that it is made of."""
    nodes = json.loads(str(expression.toJSON()))
    return {str(node["class"]).rpartition(".")[2] for node in nodes}


def casts(expression: Any) -> Iterator[Any]:
    """The casts in an expression."""
    if kind_of(expression) == "Cast":
        yield expression
    for child in listed(expression.children()):
        yield from casts(child)


def innermost_udfs(expressions: Iterable[Any]) -> list[Any]:
    """The Python UDFs in the expressions that have none below them, each once."""
    found: dict[str, Any] = {}

    def search(expression: Any) -> bool:
        if "PythonUDF" not in classes_of(expression):
            return False
        below = [search(child) for child in listed(expression.children())]
        if kind_of(expression) == "PythonUDF" and not any(below):
            found.setdefault(str(expression.resultId().id()), expression)
        return True

    for one in expressions:
        search(one)
    return list(found.values())


def type_of(java_type: Any) -> Any:
    """A type of PySpark's."""
    return _parse_datatype_json_string(str(java_type.json()))
