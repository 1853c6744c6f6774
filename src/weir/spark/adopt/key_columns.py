"""Which columns of a query are the keys of its aggregation.

The keys pass through the projections above the aggregation: as they are, under another name, or in
parts (``window.start``). A time window is known by either of its ends, since all have one length;
any other struct by all of its fields together.

Expressions come as Spark writes them: a list of nodes, each before its children.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from weir.spark.state.plan_tree import Tree, identity_of, tree_of

Expression = list[dict[str, Any]]


@dataclass(frozen=True)
class _Carried:
    """What a column has of a key."""

    key: int
    #: The number of its field; None if the column is the whole key.
    field: int | None


def key_columns(
    *,
    grouping: Sequence[Expression],
    aggregates: Sequence[Expression],
    projections: Sequence[Sequence[Expression]],
    time_windows: Set[int],
) -> tuple[str, ...] | None:
    """The names of the output columns that are the keys; None if some are not in the output.

    ``grouping`` and ``aggregates`` are those of the aggregation, and ``projections`` the columns of
    each projection above it, from the lowest. ``time_windows`` are the numbers of the keys that are
    time windows.
    """
    keys = [tree_of(flat) for flat in grouping]
    carried: dict[int, _Carried] = {}
    columns = [tree_of(flat) for flat in aggregates]
    for column in columns:
        same = next((n for n, key in enumerate(keys) if _is_same(key, column)), None)
        identity = identity_of(column)
        if same is not None and identity is not None:
            carried[identity] = _Carried(same, None)
    for listed in projections:
        columns = [tree_of(flat) for flat in listed]
        carried = _through(columns, carried)
    names: list[str] = []
    for number, key in enumerate(keys):
        of_key = {
            str(column.fields["name"]): carried[identity].field
            for column in columns
            if (identity := identity_of(column)) in carried and carried[identity].key == number
        }
        found = _identifying(key, of_key, is_time_window=number in time_windows)
        if not found:
            return None
        names += found
    return tuple(dict.fromkeys(names))


def _is_same(key: Tree, column: Tree) -> bool:
    """Whether a column of the aggregation is this key."""
    expression = column.children[0] if column.kind == "Alias" else column
    return bool(_plain(key) == _plain(expression))


def _plain(tree: Tree) -> Any:
    """An expression in a form that is equal for equal expressions."""
    if tree.kind == "AttributeReference":
        return identity_of(tree)
    fields = {name: value for name, value in tree.fields.items() if name != "exprId"}
    return tree.kind, fields, [_plain(child) for child in tree.children]


def _through(columns: Sequence[Tree], carried: Mapping[int, _Carried]) -> dict[int, _Carried]:
    """What the columns of a projection have of the keys."""
    found = {}
    for column in columns:
        identity = identity_of(column)
        expression = column.children[0] if column.kind == "Alias" else column
        field = None
        if expression.kind == "GetStructField":
            field, expression = int(expression.fields["ordinal"]), expression.children[0]
        read = identity_of(expression) if expression.kind == "AttributeReference" else None
        below = None if read is None else carried.get(read)
        if below is None or identity is None:
            continue
        if field is None or below.field is None:
            found[identity] = _Carried(below.key, below.field if field is None else field)
    return found


def _identifying(key: Tree, of_key: Mapping[str, int | None], *, is_time_window: bool) -> list[str]:
    """The columns that together are the key; none if a part is missing."""
    whole = [name for name, field in of_key.items() if field is None]
    if whole:
        return whole[:1]
    parts = {field: name for name, field in of_key.items() if field is not None}
    if not is_time_window and len(parts) != _field_count(key):
        return []
    return [parts[field] for field in sorted(parts)]


def _field_count(key: Tree) -> int:
    """The number of fields of a struct; -1 for any other column."""
    if key.kind == "CreateNamedStruct":
        return len(key.children) // 2
    kind = key.fields.get("dataType")
    return len(kind["fields"]) if isinstance(kind, dict) and kind.get("type") == "struct" else -1
