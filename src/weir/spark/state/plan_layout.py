"""Which step owns what in the plan of a query, so that its state can follow its steps.

Spark numbers what a query keeps: sources by their places in the plan, stateful operators from the
root of the plan downwards. A change of the pipeline may change these numbers, and even move an
operator to another query. A snapshot therefore names the owner of each number (``PLAN_ENTRY``).

While a query's plan is built, each step marks the streaming leaves, stateful operators and
watermarks that it has added (``PlanMarks.mark``). Marks are tags on the nodes of Spark's logical
plan, which Spark copies when it rewrites a node. ``PlanMarks.layout`` reads them from the finished
plan, in Spark's order. Whether Spark has numbered the operators in this order is checked against
its own metadata (``matches``). If a mark is missing, or Spark differs, the snapshot says nothing
about the plan, and only a change that leaves the query whole can be restored from it.

``PlanMarks.words`` reads the same plan for what the steps do with their state (``plan_words.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from weir.core.types import Count, OperatorId, Timestamp, VertexId
from weir.spark.state.log_entries import OperatorMetadata
from weir.spark.state.plan_words import WATERMARK, Column, Marked, PlanWords
from weir.storage.records import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.java import Jvm

#: The entry of a snapshot that names the owners.
PLAN_ENTRY = "weir-plan"
#: The owner of the control input.
CONTROL = ""
_CHANNEL = "channel "

#: The stateful nodes of Spark's logical plans, and Spark's names for the operators they become.
_STATEFUL = {
    "Aggregate": ("stateStoreSave", "sessionWindowStateStoreSaveExec"),
    "Deduplicate": ("dedupe",),
    "DeduplicateWithinWatermark": ("dedupeWithinWatermark",),
    "Distinct": ("stateStoreSave", "dedupe"),
    "FlatMapGroupsInPandasWithState": ("flatMapGroupsWithState", "applyInPandasWithState"),
    "FlatMapGroupsWithState": ("flatMapGroupsWithState",),
    "GlobalLimit": ("globalLimit",),
    "Join": ("symmetricHashJoin",),
    "TransformWithState": ("transformWithStateExec",),
    "TransformWithStateInPySpark": (
        "transformWithStateInPySparkExec",
        "transformWithStateInPandasExec",
    ),
}

_numbers = itertools.count(1)


class PlanInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place of the plan that reads a source."""

    #: The step of a source, a channel (``channel_owner``), or ``CONTROL``.
    owner: Annotated[str, msgspec.Meta(max_length=120)]
    #: Which of the owner's streaming leaves it is.
    number: Count
    #: The number of its directory below ``sources/``.
    directory: Count


class PlanOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stateful operator of Spark's."""

    step: OperatorId
    #: Which of the step's stateful operators it is.
    number: Count
    #: The name of its node in Spark's logical plan.
    kind: str
    #: Its output watermark after the last batch, in milliseconds; None without a watermark.
    watermark_ms: Timestamp | None = None

    @property
    def key(self) -> tuple[OperatorId, int, str]:
        """What identifies it in another plan."""
        return self.step, self.number, self.kind

    @property
    def scans_from_last_watermark(self) -> bool:
        """Whether it looks for what has expired only above the last batch's watermark."""
        return self.kind.startswith("TransformWithState")


class PlanLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The owners in one query's plan."""

    #: In the order of the offsets in the offset log.
    inputs: tuple[PlanInput, ...]
    #: By Spark's number.
    operators: tuple[PlanOperator, ...]

    def with_watermarks(self, watermarks_ms: Mapping[int, int | None]) -> PlanLayout:
        """A copy with the output watermarks of the operators, by number."""
        return PlanLayout(
            inputs=self.inputs,
            operators=tuple(
                msgspec.structs.replace(operator, watermark_ms=watermarks_ms.get(number))
                for number, operator in enumerate(self.operators)
            ),
        )

    def matches(self, found: Mapping[int, OperatorMetadata]) -> bool:
        """Whether Spark has numbered the operators as it is assumed here."""
        return sorted(found) == list(range(len(self.operators))) and all(
            found[number].name in _STATEFUL.get(operator.kind, ())
            for number, operator in enumerate(self.operators)
        )


def channel_owner(vertex: VertexId) -> str:
    """The owner of a place that reads a channel. No step has this name."""
    return f"{_CHANNEL}{vertex}"


def channel_of(owner: str) -> VertexId | None:
    """The vertex whose channel this is; None if it is not a channel."""
    return owner.removeprefix(_CHANNEL) if owner.startswith(_CHANNEL) else None


def decode_layout(text: str) -> PlanLayout:
    """Decode a snapshot's entry. Raises ``ValueError``."""
    return decoded(text, PlanLayout)


def encode_layout(layout: PlanLayout) -> str:
    """The entry of a snapshot."""
    return msgspec.json.encode(layout).decode()


@dataclass(frozen=True)
class _Mark:
    owner: str
    number: int


class PlanMarks:
    """The marks of one vertex's steps in one plan."""

    def __init__(self, jvm: Jvm) -> None:
        tag = jvm.sql_class("catalyst.trees.TreeNodeTag")
        # A frame that a user's function returns again still has its marks from an earlier plan.
        self._tag = tag(f"weir-owner-{next(_numbers)}")
        self._jvm = jvm
        self._marks: dict[str, _Mark] = {}
        #: The nodes of the finished plan, each before those that it reads.
        self._in_plan: list[Any] = []

    def mark(self, owner: str, frame: DataFrame) -> None:
        """Mark what is in the frame and not yet marked as the owner's."""
        number = 0
        for node in self._nodes(_plan(frame), into_marked=False):
            counts = _counts(node)
            if (counts or _is_watermark(node)) and node.getTagValue(self._tag).isEmpty():
                # No layout has watermarks.
                name = f"{owner}/{number}" if counts else f"{owner}/{WATERMARK}"
                self._marks[name] = _Mark(owner, number if counts else -1)
                node.setTagValue(self._tag, name)
                number += counts
        # Of a stateless step: not to look through its plan again.
        root = _plan(frame)
        if root.getTagValue(self._tag).isEmpty():
            root.setTagValue(self._tag, "")

    def layout(self, frame: DataFrame) -> PlanLayout | None:
        """The owners in the finished plan; None if some are not known."""
        plan = _plan(frame)
        self._in_plan = list(self._nodes(plan, into_marked=True))
        nodes = [node for node in self._in_plan if _counts(node)]
        marks = [self._mark_of(node) for node in nodes]
        if any(mark is None for mark in marks):
            return None
        leaves = plan.collectLeaves()
        places: list[int] = []
        inputs: list[_Mark] = []
        operators: list[PlanOperator] = []
        for node, mark in zip(nodes, marks, strict=True):
            if mark is None:
                continue
            if _is_leaf(node):
                places.append(int(leaves.indexOf(node)))
                inputs.append(mark)
            else:
                operators.append(
                    PlanOperator(step=mark.owner, number=mark.number, kind=str(node.nodeName()))
                )
        distinct = sorted(set(places))
        return PlanLayout(
            inputs=tuple(
                PlanInput(owner=mark.owner, number=mark.number, directory=distinct.index(place))
                for mark, place in zip(inputs, places, strict=True)
            ),
            operators=tuple(operators),
        )

    @property
    def has_words(self) -> bool:
        """Whether some node of the finished plan keeps state or has a watermark."""
        return any(_is_watermark(node) or is_stateful(node) for node in self._in_plan)

    def words(self, frame: DataFrame, column: Column) -> PlanWords:
        """What the steps do, in words. Call it after ``layout``, with the same frame."""
        owners, delays = {}, {}
        for number, node in enumerate(self._in_plan):
            is_watermark = _is_watermark(node)
            if is_watermark:
                delays[number] = str(node.delay().toString())
            mark = self._mark_of(node) if is_watermark or _counts(node) else None
            if mark is not None:
                owners[number] = mark.owner
        marked = Marked(
            owners=owners, delays=delays, is_control=lambda owner: owner == CONTROL, column=column
        )
        return PlanWords.of(str(self._brief(_plan(frame)).toJSON()), marked)

    def _brief(self, plan: Any) -> Any:
        """The plan with one projection for each sliding window.

        It has one for each window that a row is in, which may be thousands, and all say the same.
        """
        if not any(map(_slides, self._in_plan)):
            return plan

        def brief(node: Any) -> Any:
            children = node.children()
            below = [children.apply(index) for index in range(children.size())]
            if not below:
                return node
            made = node.withNewChildren(self._jvm.seq(brief(child) for child in below))
            if not _slides(made):
                return made
            return made.copy(made.projections().take(1), made.output(), made.child())

        return brief(plan)

    def _mark_of(self, node: Any) -> _Mark | None:
        found = node.getTagValue(self._tag)
        return None if found.isEmpty() else self._marks.get(str(found.get()))

    def _nodes(self, node: Any, *, into_marked: bool) -> Iterator[Any]:
        """The nodes of the plan, each before those that it reads, from left to right."""
        if not into_marked and not node.getTagValue(self._tag).isEmpty():
            return
        yield node
        children = node.children()
        for index in range(children.size()):
            yield from self._nodes(children.apply(index), into_marked=into_marked)


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _is_watermark(node: Any) -> bool:
    return str(node.nodeName()) == WATERMARK


def _slides(node: Any) -> bool:
    """Whether the node puts a row into several time windows."""
    return str(node.nodeName()) == "Expand" and str(node.output().head().name()) == "window"


def is_stateful(node: Any) -> bool:
    """Whether a node of Spark's plan keeps state."""
    return not _is_leaf(node) and _counts(node)


def _is_leaf(node: Any) -> bool:
    return str(node.nodeName()).startswith("Streaming")


def _counts(node: Any) -> bool:
    """Whether Spark numbers it: a streaming leaf or a stateful operator."""
    name = str(node.nodeName())
    if name not in _STATEFUL:
        return _is_leaf(node)
    if name != "Join":
        return bool(node.isStreaming())
    return bool(node.left().isStreaming()) and bool(node.right().isStreaming())
