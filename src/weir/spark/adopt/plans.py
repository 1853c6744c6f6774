"""What started queries read, found in Spark's plans, and other DataFrames put in its place.

A script's query becomes a source and a transformation of a Weir job. Both are cut out of the
analyzed plan that Spark made for the script, through py4j:

1. *A reading* is a streaming leaf of the plan. All plans made from one ``load()`` have the same
   leaf, known by the id of its first column: each ``load()`` makes new ids, and so does Spark for
   the second side of a stream joined with itself, which is read twice.
2. *The source* is a DataFrame of the leaf alone (``reading_of``).
3. *The transformation* is the plan with other DataFrames in the places of its leaves
   (``QueryPlan.over``): each below a projection that gives its columns the old ids, so that
   everything above, which knows columns by their ids, stays as the script wrote it. The nodes above
   are copied, and what does not stream is kept.

A leaf may have further columns at its end: Spark adds those with file metadata to the leaf of a
plan that asks for them. The reading of several queries is the widest of their leaves.

*Complete mode.* Spark shows the whole result at each trigger, and keeps all of its state, whatever
the watermark. In update mode the same aggregation emits what has changed, of which a sink with a
key keeps the newest rows: the same table. That holds if no more than projections, a sort and
repartitions are above the aggregation (a row that a filter no longer passes would stay in the
table, and so would one that a limit pushes out). ``QueryPlan.as_updates`` leaves out the sort,
which orders what is shown, and the watermarks, which would drop late rows and old state in update
mode.

Each call to the JVM takes 0.1 ms, so a plan is walked once, and not below what does not stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weir.errors import PipelineError
from weir.spark.adopt.key_columns import key_columns
from weir.spark.java import Jvm
from weir.spark.query.source_leaves import leaf_identity, leaf_source
from weir.spark.state.plan_layout import is_stateful
from weir.spark.state.plan_words import WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What emits a row again when it has changed, in update mode; everything else emits final rows.
_EMITS_CHANGES = frozenset(
    {
        "Aggregate",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
#: What makes one row of each row of an aggregation, or none. ``coalesce(n)`` is a repartition.
_ARRANGES = frozenset(
    {"Filter", "Project", "Repartition", "RepartitionByExpression", "Sort", "SubqueryAlias"}
)
#: Marks the column of a time window.
_TIME_WINDOW = "spark.timeWindow"
#: Functions of the file that Spark is reading, which has another name behind a channel.
_FILE_FUNCTIONS = ("input_file_name()", "input_file_block_start()", "input_file_block_length()")


@dataclass(frozen=True, eq=False, kw_only=True)
class Leaf:
    """One reading in one plan."""

    #: The node of Spark's plan.
    node: Any
    #: The id of its first column: the same in all plans made from one ``load()``.
    load: str
    #: What it reads: ``json files at /data/landing``.
    what: str
    #: The short name of its source, and its options, in lower case: ``kafka``.
    source: str
    options: Mapping[str, str]
    #: Its columns in Spark's DDL.
    schema: str
    width: int


@dataclass(frozen=True, eq=False)
class _Node:
    """A node of the plan that streams, with those of its children that do."""

    node: Any
    kind: str
    #: By their numbers among all children.
    children: Mapping[int, _Node]
    is_stateful: bool = False
    #: Set if it is a reading.
    load: str | None = None

    def walk(self) -> Iterator[_Node]:
        """The nodes, each before those that it reads."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    @property
    def only_child(self) -> _Node:
        """What it reads, if that is one node."""
        [child] = self.children.values()
        return child


class QueryPlan:
    """The plan of one started query."""

    def __init__(self, frame: DataFrame) -> None:
        """Read the analyzed plan of a streaming DataFrame.

        Raises ``PipelineError`` for a leaf that no ``spark.readStream`` has made.
        """
        leaves: dict[str, Leaf] = {}
        self._root = _read(frame._jdf.queryExecution().analyzed(), leaves)
        #: What the query reads, each once, in the order of its plan.
        self.leaves: tuple[Leaf, ...] = tuple(leaves.values())

    @property
    def emits_changes(self) -> bool:
        """Whether it emits a row again when it has changed, if it runs in update mode."""
        return any(node.kind in _EMITS_CHANGES and node.is_stateful for node in self._root.walk())

    @property
    def uses_file_names(self) -> bool:
        """Whether it may ask for the name of the file that is being read."""
        text = str(self._root.node.treeString(False, False, 2**31 - 1, False, False))
        return any(function in text for function in _FILE_FUNCTIONS)

    def keys(self) -> tuple[str, ...] | None:
        """The columns that are the keys of its aggregation: empty if it has one row for all.

        None if some are not in the output, or if it is not an aggregation.
        """
        above, aggregate = self._above_aggregation()
        if aggregate is None:
            return None
        node, is_distinct = aggregate.node, aggregate.kind == "Distinct"
        grouping = node.output() if is_distinct else node.groupingExpressions()
        return key_columns(
            grouping=_expressions(grouping),
            aggregates=_expressions(grouping if is_distinct else node.aggregateExpressions()),
            projections=[
                _expressions(one.node.projectList())
                for one in reversed(above)
                if one.kind == "Project"
            ],
            time_windows=frozenset(
                number
                for number in range(grouping.size())
                if _is_time_window(grouping.apply(number))
            ),
        )

    def why_no_updates(self) -> str | None:
        """Why it cannot run in update mode, if it was written for complete mode."""
        above, aggregate = self._above_aggregation()
        if aggregate is None:
            return f"it has {above[-1].kind} after its aggregation"
        below = [node for node in aggregate.walk() if node is not aggregate]
        state = [node.kind for node in below if node.is_stateful]
        if state and any(node.kind == WATERMARK for node in below):
            return f"it has {', '.join(state)} with a watermark before its aggregation"
        return None

    @property
    def filters_result(self) -> bool:
        """Whether a filter follows its aggregation, so that a row may stop to pass it."""
        above, aggregate = self._above_aggregation()
        return aggregate is not None and any(node.kind == "Filter" for node in above)

    def as_updates(self) -> QueryPlan:
        """The same query for update mode, if it was written for complete mode."""
        changed = object.__new__(QueryPlan)
        changed._root = _without(self._root)
        changed.leaves = self.leaves
        return changed

    def frame(self, session: SparkSession) -> DataFrame:
        """The query's DataFrame over its own leaves."""
        jvm = Jvm(session)
        return jvm.frame(_rebuilt(jvm, self._root, {leaf.load: leaf.node for leaf in self.leaves}))

    def over(self, frames: Sequence[DataFrame]) -> DataFrame:
        """The query's DataFrame over other DataFrames, in the places of its leaves."""
        jvm = Jvm(frames[0].sparkSession)
        places = {
            leaf.load: _with_ids(jvm, frame, leaf)
            for leaf, frame in zip(self.leaves, frames, strict=True)
        }
        return jvm.frame(_rebuilt(jvm, self._root, places))

    def _above_aggregation(self) -> tuple[list[_Node], _Node | None]:
        """The nodes above the aggregation, from the root, and the aggregation.

        If there is another node in between, it is the last one, and the aggregation is None.
        """
        above: list[_Node] = []
        node = self._root
        while node.kind not in ("Aggregate", "Distinct") or not node.is_stateful:
            above.append(node)
            if node.kind not in _ARRANGES or len(node.children) != 1:
                return above, None
            node = node.only_child
        return above, node


def reading_of(session: SparkSession, leaf: Leaf) -> DataFrame:
    """What a leaf reads, as a DataFrame."""
    return Jvm(session).frame(leaf.node)


def is_read_twice(leaf: Leaf, other: Leaf) -> bool:
    """Whether two ``load()`` calls read the same, so that one would do."""
    return (
        leaf.load != other.load
        and leaf.what == other.what
        and leaf.what != leaf.source
        and leaf.schema == other.schema
    )


# -- walking ---------------------------------------------------------------------------------------


def _read(node: Any, leaves: dict[str, Leaf]) -> _Node:
    """The node with all that stream below it; ``leaves`` gets the readings."""
    kind, children = str(node.nodeName()), node.children()
    streaming = {}
    for number in range(children.size()):
        child = children.apply(number)
        if child.isStreaming():
            streaming[number] = _read(child, leaves)
    if streaming or kind == "CTERelationRef":
        return _Node(node, kind, streaming, is_stateful=is_stateful(node))
    if not kind.startswith("Streaming"):
        raise PipelineError(
            f"it reads {kind}, which cannot be read again after a failure: read streams with"
            " spark.readStream."
        )
    leaf = _leaf(node)
    known = leaves.get(leaf.load)
    if known is None or known.width < leaf.width:
        leaves[leaf.load] = leaf
    return _Node(node, kind, {}, load=leaf.load)


def _leaf(node: Any) -> Leaf:
    source, options = leaf_source(node)
    output = node.output()
    return Leaf(
        node=node,
        load=str(output.head().exprId().toString()),
        what=leaf_identity(node, source, options),
        source=source,
        options=options,
        schema=str(node.schema().toDDL()),
        width=int(output.size()),
    )


def _expressions(seq: Any) -> list[list[dict[str, Any]]]:
    """Expressions as Spark writes them, each a list of nodes."""
    return [json.loads(str(seq.apply(number).toJSON())) for number in range(seq.size())]


def _is_time_window(key: Any) -> bool:
    """Whether a key is a window of a fixed length."""
    return key.nodeName() == "AttributeReference" and bool(key.metadata().contains(_TIME_WINDOW))


# -- rebuilding ------------------------------------------------------------------------------------


def _with_ids(jvm: Jvm, frame: DataFrame, leaf: Leaf) -> Any:
    """The plan of a DataFrame, its first columns under the ids of the leaf's columns."""
    plan = frame._jdf.queryExecution().analyzed()
    new, old = plan.output(), leaf.node.output()
    alias = jvm.sql_class("catalyst.expressions.Alias")
    nothing = jvm.seq(())
    aliases = []
    for number in range(leaf.width):
        known = old.apply(number)
        aliases.append(
            alias(
                new.apply(number),
                known.name(),
                known.exprId(),
                known.qualifier(),
                jvm.none,
                nothing,
            )
        )
    return jvm.sql_class("catalyst.plans.logical.Project")(jvm.seq(aliases), plan)


def _rebuilt(jvm: Jvm, node: _Node, places: Mapping[str, Any]) -> Any:
    if node.load is not None:
        return places[node.load]
    if not node.children:
        return node.node
    children = node.node.children()
    return node.node.withNewChildren(
        jvm.seq(
            _rebuilt(jvm, node.children[number], places)
            if number in node.children
            else children.apply(number)
            for number in range(children.size())
        )
    )


def _without(node: _Node) -> _Node:
    """The plan without sorts above its aggregation, and without watermarks."""
    if node.kind in ("Sort", WATERMARK):
        return _without(node.only_child)
    return replace(
        node, children={number: _without(child) for number, child in node.children.items()}
    )
