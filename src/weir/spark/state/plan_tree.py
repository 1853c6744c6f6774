"""Spark's plans and expressions as trees, read from the JSON that Spark makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OUTPUTS = ("output", "outputAttrs", "outputAttributes")


@dataclass(frozen=True, eq=False)
class Tree:
    """A node of the plan, or of an expression."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Tree, ...]
    #: Its number in the plan, each before those that it reads, from left to right.
    number: int


def tree_of(flat: Sequence[Any]) -> Tree:
    """The tree that Spark wrote as a list, each node before its children."""
    position = 0

    def take() -> Tree:
        nonlocal position
        number, fields = position, flat[position]
        position += 1
        children = tuple(take() for _ in range(fields["num-children"]))
        kind = str(fields["class"]).rpartition(".")[2].rpartition("$")[2]
        return Tree(kind, fields, children, number)

    return take()


def parts_of(tree: Tree, kind: str) -> Iterator[Tree]:
    """The nodes of an expression of this kind, outermost first."""
    if tree.kind == kind:
        yield tree
    for child in tree.children:
        yield from parts_of(child, kind)


def conjuncts(tree: Tree) -> list[Tree]:
    """The parts of a condition that all must hold."""
    if tree.kind != "And":
        return [tree]
    return [part for child in tree.children for part in conjuncts(child)]


def references(tree: Tree) -> set[int]:
    """The ids of the columns that an expression reads."""
    return {
        i for part in parts_of(tree, "AttributeReference") if (i := identity_of(part)) is not None
    }


def identity_of(expression: Tree) -> int | None:
    """The id of a column, or of an expression that has a name."""
    found = expression.fields.get("exprId")
    return int(found["id"]) if isinstance(found, dict) else None


def named_expressions(node: Tree) -> list[Tree] | None:
    """The expressions that make a node's output; None if it has no such list."""
    for name in ("projectList", "aggregateExpressions"):
        if name in node.fields:
            return [tree_of(flat) for flat in node.fields[name]]
    return None


def definition_of(node: Tree, identity: int) -> Tree | None:
    """The expression that gives a column in this node; None if it is not made here."""
    listed = named_expressions(node) or []
    listed += [tree_of(flat) for flat in node.fields.get("windowExpressions") or ()]
    return next((e for e in listed if identity_of(e) == identity), None)


def output_names(node: Tree) -> dict[int, str]:
    """The columns that a node makes without saying of what, by id."""
    for name in (*_OUTPUTS, "generatorOutput"):
        flat = node.fields.get(name)
        if isinstance(flat, list) and node.kind not in ("Project", "Aggregate"):
            columns = [tree_of(one) for one in flat if isinstance(one, list)]
            return {
                i: str(c.fields.get("name")) for c in columns if (i := identity_of(c)) is not None
            }
    return {}


def object_name(value: Any) -> str:
    """The name of a Scala object."""
    if isinstance(value, dict):
        return str(value.get("object", "")).rstrip("$").rpartition(".")[2].rpartition("$")[2]
    return str(value)


def type_name(value: Any) -> str:
    """A type as Spark's DDL has it."""
    if not isinstance(value, dict):
        return str(value)
    kind = value.get("type")
    if kind == "struct":
        inside = ", ".join(f"{one['name']} {type_name(one['type'])}" for one in value["fields"])
        return f"({inside})"
    if kind == "array":
        return f"array<{type_name(value['elementType'])}>"
    if kind == "map":
        return f"map<{type_name(value['keyType'])}, {type_name(value['valueType'])}>"
    return str(kind)
