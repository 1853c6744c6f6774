"""``NeededColumns``: which columns of each node of a plan are read downstream.

Spark's optimizer removes all others before it plans the state of a join or an aggregation. So the
same node of an analysed plan has other state if something else of it is read. This follows the
optimizer's ``ColumnPruning``, and ``PushPredicateThroughJoin``: a filter that reads one side of a
join moves below it, and needs no column of the join's state. Below a node that is not known here,
every column counts as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from weir.spark.state.plan_tree import (
    Tree,
    conjuncts,
    definition_of,
    identity_of,
    named_expressions,
    object_name,
    parts_of,
    references,
    tree_of,
)

#: Ids of columns; None: all.
Needed: TypeAlias = set[int] | None

#: Nodes whose output is their input's.
_PASSING = frozenset(
    {"SubqueryAlias", "View", "CTERelationDef", "Sort", "GlobalLimit", "LocalLimit"}
)
_READS_KEYS = {
    "Deduplicate": "keys",
    "DeduplicateWithinWatermark": "keys",
    "EventTimeWatermark": "eventTime",
}
#: The sides of a join below which a filter on that side moves.
_PUSHED = {
    "Inner": {0, 1},
    "Cross": {0, 1},
    "LeftOuter": {0},
    "LeftSemi": {0},
    "LeftAnti": {0},
    "RightOuter": {1},
}


class NeededColumns:
    """The columns that are read of each node, from the root down."""

    def __init__(self, plan: Tree, ids: Callable[[Tree], Sequence[int]]) -> None:
        """``ids`` are those of a node's output, in order."""
        self._ids = ids
        self._found: dict[int, Needed] = {}
        self._visit(plan, None)

    def of(self, node: Tree) -> Needed:
        """The columns that are read of a node."""
        return self._found[node.number]

    def sides(self, expression: Tree, node: Tree, join: Tree) -> set[int]:
        """Which children of a join an expression above it reads.

        Its columns are those of ``node``, which is the join, or leads to it by projections and
        filters.
        """
        found: set[int] = set()
        for attribute in parts_of(expression, "AttributeReference"):
            identity, at = identity_of(attribute), node
            while at is not join and identity is not None:
                definition = definition_of(at, identity)
                at = at.children[0]
                if definition is not None and definition.kind != "AttributeReference":
                    found |= self.sides(definition, at, join)
                    identity = None
            found |= {
                number for number, child in enumerate(join.children) if identity in self._ids(child)
            }
        return found

    def _visit(self, node: Tree, needed: Needed) -> None:
        self._found[node.number] = needed
        for child, read in zip(node.children, self._of_children(node, needed), strict=True):
            self._visit(child, read)

    def _of_children(self, node: Tree, needed: Needed) -> list[Needed]:
        if node.kind in ("Project", "Aggregate"):
            return [_made_of(node, needed) | _read(node, "groupingExpressions")]
        if node.kind == "Join":
            own = _read(node, "condition")
            return [
                {i for i in self._ids(child) if needed is None or i in needed or i in own}
                for child in node.children
            ]
        if needed is not None and node.kind == "Union":
            places = [number for number, i in enumerate(self._ids(node)) if i in needed]
            return [{self._ids(child)[place] for place in places} for child in node.children]
        if needed is not None and node.kind == "Filter":
            return [needed | self._filtered(node)]
        if needed is not None and (node.kind in _PASSING or node.kind in _READS_KEYS):
            return [needed | _read(node, _READS_KEYS.get(node.kind))]
        return [None] * len(node.children)

    def _filtered(self, node: Tree) -> set[int]:
        """The columns that a filter reads, without what moves below a join."""
        join = node.children[0]
        while join.kind in ("Project", "Filter", "SubqueryAlias"):
            join = join.children[0]
        pushed = _PUSHED.get(object_name(join.fields["joinType"])) if join.kind == "Join" else None
        found: set[int] = set()
        for part in conjuncts(tree_of(node.fields["condition"])):
            sides = self.sides(part, node.children[0], join) if pushed else set()
            if not (pushed and len(sides) == 1 and sides <= pushed):
                found |= references(part)
        return found


def _made_of(node: Tree, needed: Needed) -> set[int]:
    """The columns of its input of which a projection or aggregation makes those that are needed."""
    found: set[int] = set()
    for expression in named_expressions(node) or ():
        if needed is None or identity_of(expression) in needed:
            found |= references(expression)
    return found


def _read(node: Tree, field: str | None) -> set[int]:
    """The columns in the expressions of one of a node's arguments."""
    return {
        identity
        for flat in _expressions(node.fields.get(field) if field else None)
        for identity in references(tree_of(flat))
    }


def _expressions(argument: object) -> Iterator[Sequence[object]]:
    """The expressions in an argument, which is one of them or a list of them."""
    if isinstance(argument, list) and argument:
        if isinstance(argument[0], list):
            yield from argument
        else:
            yield argument
