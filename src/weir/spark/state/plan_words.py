"""``PlanWords``: what the stateful operators of a plan do, in words, from Spark's analysed plan.

The plan comes as JSON (``TreeNode.toJSON``), as one text, since each question to the JVM costs a
call. The words are the same after a restart and in another session:

1. A column is written as what it is made of: ``group by lower(shop)``, wherever ``lower(shop)`` got
   a name, in this step or before it, in this query or in that whose channel it reads. So another
   name of a helper column, another order of filters, or a cut of the chain changes nothing, and
   another expression does.
2. What identifies an expression within a session is left out: ids, qualifiers, random seeds, the
   names of lambda variables. Python functions are written by name and type.
3. Columns are not named after their source, since unions have several. After a stream-stream join
   they are ``left.ts`` and ``right.ts``, and ``static.name`` if they are from a table that was
   joined: two columns of one name differ.
4. An aggregation and a join keep only what is read downstream: Spark's optimizer removes the rest,
   so the state has no more than this (``needed_columns.py``).

What is not known in words is written as Spark's class with its arguments. That may be long, but
nobody reads it unless it has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weir.durable.changes import WATERMARK as IN_WORDS
from weir.spark.state.expression_words import SYMBOLS, Writer, span
from weir.spark.state.needed_columns import NeededColumns
from weir.spark.state.plan_tree import (
    Tree,
    conjuncts,
    definition_of,
    identity_of,
    named_expressions,
    object_name,
    output_names,
    parts_of,
    tree_of,
    type_name,
)

#: The nodes that have a place in a fingerprint, besides ``WATERMARK``.
WATERMARK = "EventTimeWatermark"

#: Characters of a column's text.
_TEXT_MAX = 1000
#: The text of a column of a channel's producer, by name; None if it is not known.
Column = Callable[[str, str], str | None]


@dataclass(frozen=True, kw_only=True)
class Marked:
    """What only the JVM and the owner of the plan know."""

    #: The owner of a node, by number: a step, or what else has been marked (``PlanMarks``).
    owners: Mapping[int, str]
    #: The delay of a watermark as Spark writes it, by number.
    delays: Mapping[int, str]
    #: Whether an owner is the control input, whose rows nobody sees.
    is_control: Callable[[str], bool]
    #: The text of a column, by the owner of a leaf and the column's name; None: it has no other
    #: name than its own.
    column: Column


@dataclass
class PlanWords:
    """One plan, read."""

    plan: Tree
    marked: Marked
    _outputs: dict[int, list[int]] = field(default_factory=dict)
    _streams: dict[int, bool] = field(default_factory=dict)
    _hidden: dict[int, bool] = field(default_factory=dict)
    _columns: dict[tuple[int, int, str], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._needed = NeededColumns(self.plan, self._ids)

    @classmethod
    def of(cls, plan_json: str, marked: Marked) -> PlanWords:
        """Read a plan."""
        return cls(tree_of(json.loads(plan_json)), marked)

    def expressions(self) -> dict[str, tuple[str, ...]]:
        """What has state or a watermark, by owner, from the root down."""
        found: dict[str, list[str]] = {}
        for node, above in self._walk(self.plan, ()):
            owner = self.marked.owners.get(node.number)
            if owner is None:
                continue
            text = self._words(node, above)
            if text is not None:
                found.setdefault(owner, []).append(text)
        return {owner: tuple(texts) for owner, texts in found.items()}

    def column(self, name: str) -> str | None:
        """The text of a column of the plan's output; None if there is no such column."""
        for identity, known in self._names(self.plan).items():
            if known == name:
                return self._column(self.plan, identity, "")
        return None

    # -- operators

    def _words(self, node: Tree, above: Sequence[Tree]) -> str | None:
        words = _WORDS.get(node.kind)
        return None if words is None else words(self, node, above)

    def _watermark(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        delay = span(self.marked.delays.get(node.number, ""))
        return f"{IN_WORDS}{self._listed(node, node.fields['eventTime'])}, {delay}"

    def _aggregate(self, node: Tree, above: Sequence[Tree]) -> str:
        [child] = node.children
        keys = ", ".join(
            self._text(tree_of(key), child, "") for key in node.fields["groupingExpressions"]
        )
        del above
        needed = self._needed.of(node)
        functions: dict[str, None] = {}
        for flat in node.fields["aggregateExpressions"]:
            expression = tree_of(flat)
            if needed is None or (identity_of(expression) in needed):
                for part in parts_of(expression, "AggregateExpression"):
                    functions[self._text(part, child, "")] = None
        computing = ", ".join(functions)
        return f"group by {keys or 'nothing'}{computing and f': {computing}'}"

    def _distinct(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        return f"distinct {', '.join(self._all_columns(node.children[0]))}"

    def _deduplicate(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        return f"drop duplicates by {self._list(node, 'keys')}"

    def _deduplicate_within(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        return f"drop duplicates by {self._list(node, 'keys')} within the watermark"

    def _limit(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        return f"limit {self._listed(node, node.fields['limitExpr'])}"

    def _join(self, node: Tree, above: Sequence[Tree]) -> str:
        kind = object_name(node.fields["joinType"])
        condition = node.fields.get("condition")
        parts = conjuncts(tree_of(condition)) if condition else []
        texts = [self._condition(part, node) for part in parts]
        if kind == "Inner":
            texts += [text for text in self._keys_above(node, above) if text not in texts]
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).upper()
        kept = " and ".join(f"({', '.join(self._kept(child))})" for child in node.children)
        return f"join {spaced} on {' and '.join(texts) or 'nothing'}, keeping {kept}"

    def _kept(self, node: Tree) -> Iterator[str]:
        """The columns of a side that its state has, by their names before any renaming.

        What they are made of does not matter: a row keeps what it had. But each has its place.
        """
        needed = self._needed.of(node)
        for identity in self._ids(node):
            if needed is None or identity in needed:
                yield self._first_name(node, identity)

    def _first_name(self, node: Tree, identity: int) -> str:
        definition = definition_of(node, identity)
        if definition is not None and definition.kind == "Alias":
            [made] = definition.children
            inner = identity_of(made) if made.kind == "AttributeReference" else None
            if inner is None:
                return str(definition.fields.get("name"))
            return self._first_name(node.children[0], inner)
        if node.kind == "Union":
            position = self._ids(node).index(identity)
            names = {
                self._first_name(child, self._ids(child)[position])
                for child in node.children
                if not self._is_hidden(child)
            }
            return " | ".join(sorted(names))
        for child in node.children:
            if identity in self._ids(child):
                return self._first_name(child, identity)
        return self._names(node).get(identity, "?")

    def _apply_in_pandas(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        function = tree_of(node.fields["functionExpr"])
        return (
            f"applyInPandasWithState {function.fields.get('name')} by"
            f" {self._list(node, 'groupingAttributes')}:"
            f" {type_name(node.fields.get('stateType'))} ->"
            f" {type_name(function.fields.get('dataType'))},"
            f" {object_name(node.fields.get('timeout'))}"
        )

    def _transform_with_state(self, node: Tree, above: Sequence[Tree]) -> str:
        del above
        child = node.children[0]
        keys = self._all_columns(child)[: int(node.fields.get("groupingAttributesLen", 0))]
        function = tree_of(node.fields["functionExpr"])
        return (
            f"transformWithState by {', '.join(keys)} ->"
            f" {type_name(function.fields.get('dataType'))},"
            f" {object_name(node.fields.get('timeMode'))}"
        )

    def _condition(self, part: Tree, join: Tree) -> str:
        """A part of a join's condition, with an equality's left side first."""
        if part.kind in ("EqualTo", "EqualNullSafe"):
            first, second = (self._text(side, join, "") for side in part.children)
            if first.startswith("right.") or ("right." in first and "left." in second):
                first, second = second, first
            return f"{first} {SYMBOLS[part.kind]} {second}"
        return self._text(part, join, "")

    def _keys_above(self, join: Tree, above: Sequence[Tree]) -> Iterator[str]:
        """The equalities of both sides in filters above an inner join, which Spark makes its keys.

        They have a side each.
        """
        for node in reversed(above):
            if node.kind == "Filter":
                for part in conjuncts(tree_of(node.fields["condition"])):
                    if part.kind not in ("EqualTo", "EqualNullSafe"):
                        continue
                    sides = [
                        self._needed.sides(side, node.children[0], join) for side in part.children
                    ]
                    if sides in ([{0}, {1}], [{1}, {0}]):
                        yield self._condition(part, node)
            elif node.kind not in ("Project", "SubqueryAlias"):
                return

    # -- columns

    def _list(self, node: Tree, name: str) -> str:
        child = node.children[0] if node.children else node
        return ", ".join(
            self._text(tree_of(flat), child, "") for flat in node.fields.get(name) or ()
        )

    def _listed(self, node: Tree, flat: Sequence[object]) -> str:
        return self._text(tree_of(flat), node.children[0], "")

    def _all_columns(self, node: Tree) -> list[str]:
        names = self._names(node)
        return [
            self._column(node, identity, "") or names.get(identity, "?")
            for identity in self._ids(node)
        ]

    def _column(self, node: Tree, identity: int, prefix: str) -> str | None:
        """The text of a column of the node's output; None if only the control input has it."""
        key = (node.number, identity, prefix)
        if key not in self._columns:
            self._columns[key] = _bounded(self._column_of(node, identity, prefix))
        return self._columns[key]

    def _column_of(self, node: Tree, identity: int, prefix: str) -> str | None:
        if self._is_hidden(node):
            return None
        definition = definition_of(node, identity)
        if definition is not None and definition.kind != "AttributeReference":
            return self._text(definition, node.children[0], prefix)
        if definition is None and (made := _MADE.get(node.kind)) is not None:
            return made(self, node, identity, prefix)
        if definition is None and (name := output_names(node).get(identity)) is not None:
            return self._of_leaf(node, name, prefix)
        return self._of_child(node, identity, prefix)

    def _of_child(self, node: Tree, identity: int, prefix: str) -> str | None:
        for number, child in enumerate(node.children):
            if identity in self._ids(child):
                return self._column(child, identity, prefix + self._side(node, number))
        return None

    def _of_definition(self, node: Tree, identity: int, prefix: str) -> str | None:
        """A column of a named query (``WITH``), which is defined elsewhere in the plan."""
        for definition, _ in self._walk(self.plan, ()):
            if definition.kind == "CTERelationDef" and definition.fields.get(
                "id"
            ) == node.fields.get("cteId"):
                position = self._ids(node).index(identity)
                return self._column(definition, self._ids(definition)[position], prefix)
        return output_names(node).get(identity)

    def _side(self, node: Tree, number: int) -> str:
        """What is put before a column of a join's child."""
        if node.kind != "Join":
            return ""
        if all(map(self._is_stream, node.children)):
            return ("left.", "right.")[number]
        return "" if self._is_stream(node.children[number]) else "static."

    def _of_union(self, node: Tree, identity: int, prefix: str) -> str | None:
        position = self._ids(node).index(identity)
        texts = {
            text
            for child in node.children
            if (text := self._column(child, self._ids(child)[position], prefix)) is not None
        }
        return " | ".join(sorted(texts)) or None

    def _of_expand(self, node: Tree, identity: int, prefix: str) -> str | None:
        ids = list(output_names(node))
        if identity not in ids:
            return None
        position = ids.index(identity)
        texts = dict.fromkeys(
            self._text(tree_of(projection[position]), node.children[0], prefix)
            for projection in node.fields["projections"]
        )
        return " | ".join(texts)

    def _of_leaf(self, node: Tree, name: str, prefix: str) -> str | None:
        owner = self.marked.owners.get(node.number)
        if owner is not None and not node.children:
            known = self.marked.column(owner, name)
            if known is not None:
                return f"{prefix}({known})" if prefix and " " in known else prefix + known
        return prefix + name

    def _ids(self, node: Tree) -> list[int]:
        """The ids of a node's output, in order."""
        if node.number not in self._outputs:
            self._outputs[node.number] = list(self._ids_of(node))
        return self._outputs[node.number]

    def _ids_of(self, node: Tree) -> Iterable[int]:
        listed = named_expressions(node)
        if listed is not None:
            return [identity for e in listed if (identity := identity_of(e)) is not None]
        if node.kind == "Union":
            return self._ids(node.children[0])
        if node.kind == "WithCTE":
            return self._ids(node.children[-1])
        if node.kind == "Join" and object_name(node.fields["joinType"]) in ("LeftSemi", "LeftAnti"):
            return self._ids(node.children[0])
        names = output_names(node)
        below = [identity for child in node.children for identity in self._ids(child)]
        if node.kind == "Generate":
            return [*below, *names]
        return names or below

    def _names(self, node: Tree) -> dict[int, str]:
        """The names of a node's output."""
        found: dict[int, str] = {}
        for child in node.children:
            found |= self._names(child)
        for expression in named_expressions(node) or ():
            identity = identity_of(expression)
            if identity is not None:
                found[identity] = str(expression.fields.get("name"))
        found |= output_names(node)
        return {identity: found[identity] for identity in self._ids(node) if identity in found}

    def _is_hidden(self, node: Tree) -> bool:
        """Whether the node reads nothing but the control input."""
        if node.number not in self._hidden:
            owner = self.marked.owners.get(node.number)
            self._hidden[node.number] = (
                all(map(self._is_hidden, node.children))
                if node.children
                else owner is not None and self.marked.is_control(owner)
            )
        return self._hidden[node.number]

    def _is_stream(self, node: Tree) -> bool:
        if node.number not in self._streams:
            self._streams[node.number] = (
                node.kind.startswith("Streaming")
                if not node.children
                else any(map(self._is_stream, node.children))
            )
        return self._streams[node.number]

    def _walk(self, node: Tree, above: tuple[Tree, ...]) -> Iterator[tuple[Tree, tuple[Tree, ...]]]:
        yield node, above
        for child in node.children:
            yield from self._walk(child, (*above, node))

    # -- expressions

    def _text(self, tree: Tree, node: Tree, prefix: str) -> str:
        """An expression, whose columns are of the node's output, or of its children's."""
        return Writer(lambda identity: self._reference(node, identity, prefix), prefix).text(tree)

    def _reference(self, node: Tree, identity: int, prefix: str) -> str | None:
        if identity in self._ids(node):
            return self._column(node, identity, prefix)
        # The right side of a semi join is read by its condition only.
        return self._of_child(node, identity, prefix)


def _bounded(text: str | None) -> str | None:
    """The text, its end replaced by a digest if it is long: each level of a plan may double it."""
    if text is None or len(text) <= _TEXT_MAX:
        return text
    return f"{text[: _TEXT_MAX // 4]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


#: By the kind of a node.
_WORDS: Mapping[str, Callable[[PlanWords, Tree, Sequence[Tree]], str]] = {
    "Aggregate": PlanWords._aggregate,
    "Deduplicate": PlanWords._deduplicate,
    "DeduplicateWithinWatermark": PlanWords._deduplicate_within,
    "Distinct": PlanWords._distinct,
    "FlatMapGroupsInPandasWithState": PlanWords._apply_in_pandas,
    "GlobalLimit": PlanWords._limit,
    "Join": PlanWords._join,
    "TransformWithStateInPySpark": PlanWords._transform_with_state,
    WATERMARK: PlanWords._watermark,
}
#: By the kind of a node that makes columns in another way than by expressions.
_MADE: Mapping[str, Callable[[PlanWords, Tree, int, str], str | None]] = {
    "CTERelationRef": PlanWords._of_definition,
    "Expand": PlanWords._of_expand,
    "Union": PlanWords._of_union,
}
