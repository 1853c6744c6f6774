"""``guarded``: the plan of a step that sets aside the rows on which it raises.

The user's function is called as ever. Then the plan that it made is built again above the step's
input, node by node (``_Rebuilt``). Rows carry the columns of the input and, once something could
have raised, an error:

1. *Expressions*, such as an ANSI cast. Those of a projection that can raise become the fields of a
   struct below ``TryEval``, which is null exactly if one of them has raised. Rows that have an
   error already are not evaluated. Spark's message is gone then: the error has the values that the
   expressions had, and the driver evaluates them again (``messages.py``).
2. *Python UDFs* return their value or an error (``udfs.py``). Their arguments, and what is made
   of their values, are expressions in projections of their own.
3. *Filters* let rows with an error pass.
4. ``mapInPandas`` and ``mapInArrow`` emit the rows on which they raise with the error
   (``maps.py``). What they emit is no longer a row of the step's input, so nothing that follows in
   the step may raise.

At the end, a row with an error becomes a struct, which an observation collects
(``observation.py``); rows without an error cost one projection. A filter drops the others.
Whatever works on several rows at once is refused by name.

An observation is also a barrier: Spark pushes no later filter below it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType
from pyspark.util import PythonEvalType

from weir.core.graph import GraphStep
from weir.errors import PipelineError
from weir.spark.channels import event_time
from weir.spark.java import Jvm
from weir.spark.rejects.conversion import RowConversion
from weir.spark.rejects.maps import ERROR, ROW, ArrowMap, PandasMap
from weir.spark.rejects.observation import (
    JSON_OPTIONS,
    UNSAID,
    Guard,
    GuardedStep,
    collected,
    observation_of,
    reject_of,
)
from weir.spark.rejects.parts import (
    EXPRESSIONS,
    LOGICAL,
    PlanParts,
    casts,
    classes_of,
    id_of,
    innermost_udfs,
    is_alias,
    kind_of,
    listed,
    type_of,
)
from weir.spark.rejects.udfs import ArrowRowUdf, ArrowUdf, PandasUdf, RowUdf
from weir.spark.rejects.wrapper import Wrapper, pickler

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Expressions that never raise, whatever the values are.
_SAFE = frozenset(
    {
        *("Alias", "AttributeReference", "CreateNamedStruct", "GetStructField", "Literal"),
        *("And", "CaseWhen", "Coalesce", "If", "IsNaN", "IsNotNull", "IsNull", "Not", "Or"),
        *("EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "In", "InSet"),
        *("LessThan", "LessThanOrEqual", "Contains", "EndsWith", "Length", "Lower", "StartsWith"),
        *("StringTrim", "StringTrimLeft", "StringTrimRight", "TryEval", "Upper"),
    }
)
#: A type of which Spark's workers convert no values.
_AS_IT_IS = LongType()
_MAPS = {"MapInPandas": PandasMap, "MapInArrow": ArrowMap}
#: Nodes that pass each row on as it is.
_PASSING = frozenset({"EventTimeWatermark", "Repartition", "ResolvedHint"})
#: How users call what is refused; other nodes have Spark's name.
_WORDS = {
    "Aggregate": "aggregates (groupBy)",
    "Deduplicate": "drops duplicates (dropDuplicates)",
    "DeduplicateWithinWatermark": "drops duplicates (dropDuplicatesWithinWatermark)",
    "Distinct": "drops duplicates (distinct)",
    "Expand": "has sliding windows (window)",
    "FlatMapGroupsInPandasWithState": "keeps state (applyInPandasWithState)",
    "Generate": "makes several rows of one (explode)",
    "GlobalLimit": "takes the first rows (limit)",
    "Join": "joins",
    "LocalLimit": "takes the first rows (limit)",
    "Sort": "sorts",
    "TransformWithStateInPySpark": "keeps state (transformWithState)",
    "Union": "unites (union)",
    "Window": "looks at several rows (window functions)",
}

_numbers = itertools.count(1)


class Guarding:
    """Guards one step. Make it before the user's function is called."""

    def __init__(self, jvm: Jvm, step: GraphStep, given: DataFrame, rows_max: int) -> None:
        """``rows_max``: how many rows of a batch it sets aside; if there are more, it fails."""
        self._jvm = jvm
        self._step = step
        self._rows_max = rows_max
        self._event_time = event_time(given.schema)
        # Marks where the plan of the step begins.
        tag = jvm.sql_class("catalyst.trees.TreeNodeTag")
        self._tag = tag(f"weir-guarded-{next(_numbers)}")
        given._jdf.queryExecution().analyzed().setTagValue(self._tag, "")

    def guarded(self, frame: DataFrame) -> tuple[DataFrame, GuardedStep | None]:
        """The step's frame with rows set aside; None if nothing in it can raise.

        Raises ``PipelineError`` if it does not make its rows one by one.
        """
        nodes = []
        node = frame._jdf.queryExecution().analyzed()
        output = listed(node.output())
        while node.getTagValue(self._tag).isEmpty():
            children = listed(node.children())
            kind = str(node.nodeName())
            if len(children) != 1 or kind in _WORDS:
                raise self._refused(_WORDS.get(kind, f"has {kind}"))
            nodes.append((kind, node))
            [node] = children
        rebuilt = _Rebuilt(self._jvm, node, self._refused)
        for kind, user in reversed(nodes):
            rebuilt.add(kind, user)
        if rebuilt.error is None:
            return frame, None
        name = observation_of(self._step)
        guarded = GuardedStep(
            step=self._step,
            event_time=self._event_time,
            observation=name,
            guards=tuple(rebuilt.guards),
        )
        return rebuilt.observed(name, output, self._rows_max), guarded

    def _refused(self, what: str) -> PipelineError:
        return PipelineError(
            f"Step {self._step.name!r} has on_error, but {what}: put what it does row by row into a"
            " step of its own."
        )


class _Rebuilt:
    """A plan that is built again, from the step's input upwards."""

    def __init__(self, jvm: Jvm, given: Any, refused: Callable[[str], PipelineError]) -> None:
        self._jvm = jvm
        self._parts = PlanParts(jvm)
        self._conversion = RowConversion.of(jvm.session)
        self._refused = refused
        self._plan = given
        #: The columns of the step's input, which all rows keep.
        self._row = listed(given.output())
        #: The columns that the user's plan has here.
        self._visible = list(self._row)
        #: Columns that only the node which is being built needs.
        self._between: list[Any] = []
        #: The column with the error; None as long as nothing could raise.
        self.error: Any = None
        #: The column with the input row as JSON, after ``mapInPandas``.
        self._row_json: Any = None
        self.guards: list[Guard] = []

    # -- the user's nodes

    def add(self, kind: str, node: Any) -> None:
        """Add a node of the user's plan. Raises ``PipelineError`` if it is not row by row."""
        if kind == "Project":
            self._add_projection(listed(node.projectList()))
        elif kind == "Filter":
            self._add_filter(node.condition())
        elif kind in _MAPS:
            self._add_map(kind, node)
        elif kind in _PASSING:
            self._plan = node.withNewChildren(self._jvm.seq([self._plan]))
            self._visible = listed(node.output())
        elif kind != "SubqueryAlias":
            raise self._refused(_WORDS.get(kind, f"has {kind}"))

    def _add_projection(self, named: Sequence[Any]) -> None:
        bodies = [one.child() if is_alias(one) else one for one in named]
        bodies = self._guarded(self._without_udfs(bodies))
        columns = [
            self._alias(body, one.name(), like=one) if is_alias(one) else body
            for one, body in zip(named, bodies, strict=True)
        ]
        self._between = []
        self._visible = self._project(columns, ends=True)[: len(named)]

    def _add_filter(self, condition: Any) -> None:
        [condition] = self._guarded(self._without_udfs([condition]))
        if self.error is not None:
            has_error = self._parts.expression("IsNotNull")(self.error)
            condition = self._parts.expression("Or")(has_error, condition)
        self._between = []
        node = self._jvm.sql_class(LOGICAL + "Filter")(condition, self._plan)
        self._plan = self._analyzed(node)

    def _add_map(self, kind: str, node: Any) -> None:
        """``mapInPandas`` and ``mapInArrow``: rows that raise come with an error, and as JSON."""
        if self._row_json is not None:
            raise self._refused(f"has a second function of many rows ({kind})")
        columns = self._project(self._visible, ends=True)
        ids = [id_of(one) for one in columns]
        given = json.loads(node.functionExpr().dataType().json())
        schema = StructType.fromJson(given)
        returned = StructType(
            [StructField(one.name, one.dataType, True) for one in schema.fields]
            + [StructField(ERROR, StringType()), StructField(ROW, StringType())]
        )
        names = [str(one.name()) for one in self._row]
        function = _MAPS[kind](
            visible=len(self._visible),
            row=tuple(zip(names, (ids.index(id_of(one)) for one in self._row), strict=True)),
            row_types=tuple(type_of(one.dataType()) for one in self._row),
            error=None if self.error is None else ids.index(id_of(self.error)),
            returned=returned,
        )
        mapped = node.functionExpr()
        udf = self._wrapped(mapped, function, returned, columns, int(mapped.evalType()))
        extra = [self._attribute(name, StringType()) for name in (ERROR, ROW)]
        own = [one.withNullability(True) for one in listed(node.output())]
        self._plan = self._analyzed(
            node.copy(
                udf,
                self._jvm.seq([*own, *extra]),
                self._plan,
                node.isBarrier(),
                node.profile(),
            )
        )
        *self._visible, self.error, self._row_json = listed(self._plan.output())
        self._row = []

    # -- what can raise

    def _without_udfs(self, bodies: Sequence[Any]) -> list[Any]:
        """The expressions with the values of Python UDFs in their places, innermost first."""
        found = list(bodies)
        while udfs := innermost_udfs(found):
            if self._row_json is not None:
                raise self._refused("calls a UDF after a function of many rows (mapInPandas)")
            arguments = [listed(udf.children()) for udf in udfs]
            guarded = iter(self._arguments([one for given in arguments for one in given]))
            flags = [] if self.error is None else [self._parts.expression("IsNull")(self.error)]
            columns = []
            for udf, given in zip(udfs, arguments, strict=True):
                wrapped = self._udf(udf, flags, [next(guarded) for _ in given])
                columns.append(self._alias(wrapped, "__weir_udf"))
            results = self._project(columns)[: len(columns)]
            self._between += results
            self._set_error([self._field(one, 1, "error") for one in results])
            values = {
                str(udf.resultId().id()): self._field(one, 0, "value")
                for udf, one in zip(udfs, results, strict=True)
            }
            found = [self._replaced(one, values) for one in found]
        return found

    def _arguments(self, given: Sequence[Any]) -> list[Any]:
        """The arguments of UDFs, guarded; those with a name keep it."""
        named = [kind_of(one) == "NamedArgumentExpression" for one in given]
        values = [
            listed(one.children())[0] if has_name else one
            for one, has_name in zip(given, named, strict=True)
        ]
        return [
            one.withNewChildren(self._jvm.seq([value])) if has_name else value
            for one, has_name, value in zip(given, named, self._guarded(values), strict=True)
        ]

    def _udf(self, udf: Any, flags: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """A UDF that returns its value and an error."""
        value_type = type_of(udf.dataType())
        returned = StructType(
            [StructField("value", value_type), StructField("error", StringType())]
        )
        common = {"flagged": bool(flags), "value_type": value_type}
        eval_type = int(udf.evalType())
        conversion = self._conversion if arguments else None
        function: Wrapper
        if eval_type == PythonEvalType.SQL_ARROW_BATCHED_UDF and conversion is not None:
            eval_type = PythonEvalType.SQL_SCALAR_ARROW_UDF
            types = tuple(type_of(one.dataType()) for one in arguments)
            function = ArrowRowUdf(argument_types=types, conversion=conversion, **common)
        elif eval_type == PythonEvalType.SQL_ARROW_BATCHED_UDF:
            function = RowUdf(as_it_is=False, **common)
        elif eval_type == PythonEvalType.SQL_BATCHED_UDF:
            function = RowUdf(as_it_is=True, **common)
        elif eval_type == PythonEvalType.SQL_SCALAR_PANDAS_UDF:
            function = PandasUdf(**common)
        elif eval_type == PythonEvalType.SQL_SCALAR_ARROW_UDF:
            function = ArrowUdf(**common)
        else:
            raise self._refused(f"calls {udf.name()!r}, a function of iterators")
        return self._wrapped(udf, function, returned, [*flags, *arguments], eval_type)

    def _guarded(self, bodies: Sequence[Any]) -> list[Any]:
        """The expressions, those that can raise as fields of a struct that is null if one did."""
        failing = [number for number, one in enumerate(bodies) if self._can_raise(one)]
        if not failing:
            return list(bodies)
        if self._row_json is not None:
            raise self._refused("has an expression that can raise after mapInPandas or mapInArrow")
        parts = []
        for number in failing:
            parts += [self._parts.java(F.lit(f"f{number}")), bodies[number]]
        struct = self._parts.expression("CreateNamedStruct")(self._jvm.seq(parts))
        attributes = tuple(listed(struct.references().toSeq()))
        good = None if self.error is None else self._parts.column(self.error).isNull()
        tried = self._parts.tried(struct, good)
        columns = [self._alias(self._parts.java(tried), "__weir_guard")]
        result = self._project(columns)[0]
        self._between.append(result)
        known = F.to_json(
            F.struct(*[self._parts.column(one).alias(f"c{n}") for n, one in enumerate(attributes)])
            if attributes
            else F.struct(F.lit(1).alias("c")),
            JSON_OPTIONS,
        )
        text = F.concat(F.lit(f"{UNSAID}{len(self.guards)}:"), known)
        self.guards.append(Guard(struct, attributes))
        self._set_error([self._parts.java(F.when(self._parts.column(result).isNull(), text))])
        made = dict(zip(failing, range(len(failing)), strict=True))
        return [
            self._field(result, made[number], f"f{number}") if number in made else one
            for number, one in enumerate(bodies)
        ]

    def _set_error(self, errors: Sequence[Any]) -> None:
        """A row's first error stays."""
        known = [] if self.error is None else [self._parts.column(self.error)]
        column = F.coalesce(*known, *map(self._parts.column, errors))
        self.error = None
        self.error = self._project([self._alias(self._parts.java(column), "__weir_error")])[0]

    def _can_raise(self, expression: Any) -> bool:
        names = classes_of(expression)
        asked = next((one for one in names if "Subquery" in one), None)
        if asked is not None:
            raise self._refused(f"has a subquery ({asked})")
        if "Cast" not in names:
            return not names <= _SAFE
        return not names <= _SAFE | {"Cast"} or any(map(self._may_fail, casts(expression)))

    def _may_fail(self, cast: Any) -> bool:
        """Whether a cast fails for some values."""
        given, wanted = cast.child().dataType(), cast.dataType()
        return not self._parts.expression("Cast").canUpCast(given, wanted)

    # -- Java

    def observed(self, name: str, output: Sequence[Any], rows_max: int) -> DataFrame:
        """The rows without an error, and an observation of the others."""
        error = self._parts.column(self.error)
        row: Column = (
            F.to_json(F.struct(*self._named_row()), JSON_OPTIONS)
            if self._row_json is None
            else self._parts.column(self._row_json)
        )
        reject = F.when(error.isNotNull(), reject_of(self._parts, error, row))
        columns = self._project(
            [*self._visible, self._alias(self._parts.java(reject), "__weir_reject")],
            ends=True,
            bare=True,
        )
        rejects = collected(self._parts, columns[-1], rows_max)
        frame = self._jvm.frame(self._plan).observe(name, rejects)
        good = frame.filter(self._parts.column(columns[-1]).isNull())
        ids = {id_of(one): one for one in columns}
        return good.select(*[self._parts.column(ids[id_of(one)]) for one in output])

    def _named_row(self) -> list[Column]:
        return [self._parts.column(one).alias(str(one.name())) for one in self._row]

    def _project(
        self, columns: Sequence[Any], *, ends: bool = False, bare: bool = False
    ) -> list[Any]:
        """Add a projection with these columns and all that are still needed; return its output.

        ``ends``: the user's columns so far are not, unless they are named. ``bare``: neither are
        the hidden ones.
        """
        hidden = [] if bare else [*self._row, *filter(None, [self.error, self._row_json])]
        named = list(columns)
        have = {id_of(one) for one in named}
        for one in (*([] if ends else [*self._visible, *self._between]), *hidden):
            if id_of(one) not in have:
                have.add(id_of(one))
                named.append(one)
        node = self._jvm.sql_class(LOGICAL + "Project")(self._jvm.seq(named), self._plan)
        self._plan = self._analyzed(node)
        return listed(self._plan.output())

    def _analyzed(self, node: Any) -> Any:
        return self._jvm.rows(node).queryExecution().analyzed()

    def _alias(self, body: Any, name: str, *, like: Any = None) -> Any:
        """A named expression; ``like`` is one whose identity it takes over."""
        jvm = self._jvm
        if like is None:
            ids = jvm.sql_class(EXPRESSIONS + "NamedExpression").newExprId()
            parts = (ids, jvm.seq(()), jvm.none, jvm.seq(()))
        else:
            parts = (
                like.exprId(),
                like.qualifier(),
                jvm.some(like.metadata()),
                like.nonInheritableMetadataKeys(),
            )
        return self._parts.expression("Alias")(body, name, *parts)

    def _attribute(self, name: str, kind: StringType) -> Any:
        [made] = listed(
            self._jvm.attributes(self._jvm.schema(StructType([StructField(name, kind)])))
        )
        return made

    def _field(self, struct: Any, number: int, name: str) -> Any:
        return self._parts.expression("GetStructField")(struct, number, self._jvm.some(name))

    def _replaced(self, expression: Any, values: dict[str, Any]) -> Any:
        """The expression with the values of UDFs in their places."""
        if kind_of(expression) == "PythonUDF":
            found = values.get(str(expression.resultId().id()))
            if found is not None:
                return found
        if "PythonUDF" not in classes_of(expression):
            return expression
        children = [self._replaced(one, values) for one in listed(expression.children())]
        return expression.withNewChildren(self._jvm.seq(children))

    def _wrapped(
        self,
        udf: Any,
        function: Wrapper,
        returned: StructType,
        arguments: Sequence[Any],
        eval_type: int,
    ) -> Any:
        """The Python function in a wrapper, which gets it as Spark's workers get it."""
        # By this one, Spark's worker converts what the function returns, for pickled rows alone.
        converted = _AS_IT_IS if eval_type == PythonEvalType.SQL_BATCHED_UDF else returned
        given = udf.func()
        tag = self._jvm.scala_object("scala.reflect.ClassTag").Byte()
        around = function.around(bytes(given.command().toArray(tag)))
        made = self._jvm.java_class("org.apache.spark.api.python.SimplePythonFunction")(
            bytearray(pickler().dumps((around, converted))),
            given.envVars(),
            given.pythonIncludes(),
            given.pythonExec(),
            given.pythonVer(),
            given.broadcastVars(),
            given.accumulator(),
        )
        return udf.copy(
            udf.name(),
            made,
            self._jvm.schema(returned),
            self._jvm.seq(arguments),
            eval_type,
            # Its value and its error come from one call.
            False,
            udf.resultId(),
        )
