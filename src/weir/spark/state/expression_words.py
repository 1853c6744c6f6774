"""Literals, spans of time and time windows in words, and what else an expression is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from weir.spark.state.plan_tree import Tree, identity_of, object_name, parts_of, type_name

#: Expressions that only their first child matters of.
_TRANSPARENT = frozenset({"Alias", "KnownNullable", "KnownNotNull", "AliasWithMetadata"})
#: Arguments that say nothing about the result, or that are not the same in every session.
_NOISE = frozenset(
    {
        "class",
        "num-children",
        "exprId",
        "resultId",
        "qualifier",
        "metadata",
        "explicitMetadata",
        "nonInheritableMetadataKeys",
        "nullable",
        "evalContext",
        "evalMode",
        "failOnError",
        "ansiEnabled",
        "timeZoneId",
        "mutableAggBufferOffset",
        "inputAggBufferOffset",
        "udfDeterministic",
        "evalType",
    }
)
_UNITS = (
    (7 * 24 * 3600 * 10**6, "week"),
    (24 * 3600 * 10**6, "day"),
    (3600 * 10**6, "hour"),
    (60 * 10**6, "minute"),
    (10**6, "second"),
    (1000, "millisecond"),
    (1, "microsecond"),
)
_MICROSECONDS = {name: size for size, name in _UNITS} | {
    # As Spark counts them for a watermark.
    "month": 31 * 24 * 3600 * 10**6,
    "year": 12 * 31 * 24 * 3600 * 10**6,
}
_SPAN = re.compile(r"(-?[0-9.]+) ([a-z]+?)s?\b")


#: Expressions with a symbol between their two sides.
SYMBOLS = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "div",
    "Remainder": "%",
    "And": "and",
    "Or": "or",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "TimestampAddInterval": "+",
    "DateAddInterval": "+",
}
#: Expressions whose arguments are random for each session.
_RANDOM = frozenset({"Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform"})
#: Names of one time zone.
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu"})
#: Casts whose result depends on the time zone, by the type that they give.
_ZONED_TYPES = frozenset({"date", "timestamp", "timestamp_ntz"})


class Writer:
    """Writes expressions, for one reader of columns."""

    def __init__(self, column: Callable[[int], str | None], prefix: str) -> None:
        """``column`` gives the text of a column by its id; ``prefix`` is for unknown columns."""
        self._column_text = column
        self._prefix = prefix
        #: The names of lambda variables, in the order in which they appear.
        self._variables: dict[str, str] = {}

    def text(self, tree: Tree) -> str:
        """An expression in words."""
        if tree.kind in SYMBOLS and len(tree.children) == 2:
            first, second = map(self.text, tree.children)
            return f"({first} {SYMBOLS[tree.kind]} {second})"
        if tree.kind in _RANDOM:
            return f"{tree.kind.lower()}()"
        if tree.kind in _TRANSPARENT and tree.children:
            return self.text(tree.children[0])
        return _SAID.get(tree.kind, Writer._call)(self, tree)

    def _call(self, tree: Tree) -> str:
        arguments = [self.text(child) for child in tree.children]
        arguments += [
            f"{name}={text}"
            for name, value in sorted(tree.fields.items())
            if name not in _NOISE and (text := _scalar(name, value)) is not None
        ]
        if tree.children and tree.fields.get("timeZoneId"):
            arguments.append(_zone(tree))
        return f"{_snake(tree.kind)}({', '.join(arguments)})"

    def _column(self, tree: Tree) -> str:
        identity = identity_of(tree)
        text = None if identity is None else self._column_text(identity)
        return text or self._prefix + str(tree.fields.get("name"))

    def _literal(self, tree: Tree) -> str:
        return literal(tree)

    def _variable(self, tree: Tree) -> str:
        name = str(tree.fields.get("exprId") or tree.fields.get("name"))
        return self._variables.setdefault(name, f"${len(self._variables) + 1}")

    def _struct(self, tree: Tree) -> str:
        return self._window(tree) or self._call(tree)

    def _window(self, tree: Tree) -> str | None:
        """A time window in words; None if the struct is none."""
        if len(tree.children) != 4:
            return None
        names = [literal(child) for child in (tree.children[0], tree.children[2])]
        if names != ["'start'", "'end'"]:
            return None
        start, end = tree.children[1], tree.children[3]
        return _time_window(start, end, self.text) or _session_window(start, end, self.text)

    def _field(self, tree: Tree) -> str:
        [struct] = tree.children
        ordinal = tree.fields.get("ordinal")
        name = tree.fields.get("name") or _field_name(struct, ordinal) or ordinal
        return f"{self.text(struct)}.{name}"

    def _aggregate(self, tree: Tree) -> str:
        function, *filters = tree.children
        text = self.text(function)
        if tree.fields.get("isDistinct"):
            text = text.replace("(", "(distinct ", 1)
        return f"{text} where {self.text(filters[0])}" if filters else text

    def _function(self, tree: Tree) -> str:
        name = tree.fields.get("name") or tree.fields.get("udfName") or "udf"
        arguments = ", ".join(map(self.text, tree.children))
        return f"{name}({arguments}) -> {type_name(tree.fields.get('dataType'))}"

    def _cast(self, tree: Tree) -> str:
        kinds = {type_name(one.fields.get("dataType")) for one in (tree, *tree.children)}
        zone = f" {_zone(tree)}" if kinds & _ZONED_TYPES else ""
        given = type_name(tree.fields.get("dataType"))
        return f"cast({self.text(tree.children[0])} as {given}{zone})"


#: By the kind of an expression.
_SAID: Mapping[str, Callable[[Writer, Tree], str]] = {
    "AggregateExpression": Writer._aggregate,
    "AttributeReference": Writer._column,
    "Cast": Writer._cast,
    "CreateNamedStruct": Writer._struct,
    "GetStructField": Writer._field,
    "Literal": Writer._literal,
    "NamedLambdaVariable": Writer._variable,
    "PythonUDAF": Writer._function,
    "PythonUDF": Writer._function,
    "ScalaUDF": Writer._function,
    "UnresolvedNamedLambdaVariable": Writer._variable,
}


def literal(tree: Tree) -> str:
    """A literal in words."""
    value, kind = tree.fields.get("value"), tree.fields.get("dataType")
    if value is None:
        return "null"
    if kind == "string":
        return f"'{value}'"
    if isinstance(kind, str) and kind.startswith("interval"):
        number = _number(tree)
        return str(value) if number is None else in_words(number)
    return str(value)


def _number(tree: Tree) -> int | None:
    """The value of a whole number, a cast around it ignored."""
    tree = _core(tree)
    try:
        return int(str(tree.fields.get("value"))) if tree.kind == "Literal" else None
    except ValueError:
        return None


def _core(tree: Tree) -> Tree:
    """Without conversions around it."""
    while tree.kind in (*_TRANSPARENT, "PreciseTimestampConversion", "Cast") and tree.children:
        tree = tree.children[0]
    return tree


def _field_name(struct: Tree, ordinal: Any) -> str | None:
    kind = struct.fields.get("dataType")
    if isinstance(kind, dict) and isinstance(ordinal, int) and ordinal < len(kind["fields"]):
        return str(kind["fields"][ordinal]["name"])
    return None


def _scalar(name: str, value: Any) -> str | None:
    """An argument that is not an expression; None if it is, or if it says nothing."""
    if name == "dataType":
        return type_name(value)
    if isinstance(value, bool | str | float):
        return str(value)
    if isinstance(value, dict) and "object" in value:
        return object_name(value)
    # Whole numbers are places of children.
    return None


def _time_window(start: Tree, end: Tree, written: Callable[[Tree], str]) -> str | None:
    """``window(ts, 1 minute)``, from the arithmetic that Spark makes of it."""
    start, end = _core(start), _core(end)
    if (start.kind, end.kind) != ("Subtract", "Add"):
        return None
    size = _number(end.children[1])
    rests = [part for part in parts_of(start, "Remainder") if part.children[0].kind == "Subtract"]
    conversions = list(parts_of(start, "PreciseTimestampConversion"))
    if size is None or not rests or not conversions:
        return None
    slide, offset = _number(rests[0].children[1]), _number(rests[0].children[0].children[1])
    if slide is None or offset is None:
        return None
    text = f"window({written(conversions[0].children[0])}, {in_words(size)}"
    if slide != size:
        text += f", every {in_words(slide)}"
    if offset:
        text += f", from {in_words(offset)}"
    return f"{text})"


def _session_window(start: Tree, end: Tree, written: Callable[[Tree], str]) -> str | None:
    """``session_window(ts, 10 minutes)``."""
    time, gap = _core(start), _core(end)
    if gap.kind not in ("TimestampAddInterval", "TimeAdd", "Add") or len(gap.children) != 2:
        return None
    begin = written(time)
    if written(gap.children[0]) != begin:
        return None
    given = _core(gap.children[1])
    length = span(str(given.fields.get("value"))) if given.kind == "Literal" else written(given)
    return f"session_window({begin}, {length})"


def _zone(tree: Tree) -> str:
    zone = str(tree.fields.get("timeZoneId"))
    return f"in {'UTC' if zone in _UTC else zone}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def span(text: str) -> str:
    """An interval as Spark writes it, in one unit: ``1 minutes 30 seconds`` is ``90 seconds``."""
    parts = _SPAN.findall(text)
    if not parts or any(unit not in _MICROSECONDS for _, unit in parts):
        return text
    return in_words(round(sum(float(number) * _MICROSECONDS[unit] for number, unit in parts)))


def in_words(microseconds: int) -> str:
    """``5 minutes``: in the largest unit that gives a whole number."""
    for size, name in _UNITS:
        if microseconds and microseconds % size == 0:
            number = microseconds // size
            return f"{number} {name}{'' if number == 1 else 's'}"
    return "0 seconds"
