"""Assembles the state of one query from the snapshot of the queries that had its steps.

Each query in the snapshot names the owners of its numbers (``plan_layout.py``). All of it is done
on the snapshot's handles and log entries, so nothing is copied: a state file gets another key.

1. *Position.* A part of a split query keeps the query's position, so that its state has the right
   version. What was joined goes on at the highest of the positions (and state of another version is
   written again by Spark: ``weir/spark/state/rebase.py``).
2. *Offsets.* Each source has the offset and the log that it had. A new channel begins at its
   producer's position: in an aligned snapshot, everything that the upstream part had read was
   processed by the downstream part.
3. *State.* Each stateful operator of the new plan gets the state of the operator that belonged to
   the same step, under its new number.
4. *Watermark.* The part of a query that now reads a channel must not be ahead of it. If an operator
   upstream of the channel holds rows back, the part has what that operator had let through in the
   last batch; else it has what the query had.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

import msgspec

from weir.core.graph import Vertex
from weir.core.types import InFlightSegment, OperatorId, StateHandle, TaskState, VertexId
from weir.durable.state_mapping import KEEP_THE_CHAIN, Refuse
from weir.spark.offsets import ChannelOffset, ControlOffset
from weir.spark.releases import lacks_rewriter
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.spark.state.log_entries import (
    CommitEntry,
    OffsetEntry,
    QueryMetadata,
    StateIds,
    decode_commit,
    decode_offsets,
    edited_commit,
)
from weir.spark.state.plan_layout import (
    CONTROL,
    PLAN_ENTRY,
    PlanInput,
    PlanLayout,
    PlanOperator,
    channel_of,
    encode_layout,
)
from weir.spark.state.rebase import JOINED
from weir.spark.state.saved_task import (
    WATERMARK_ENTRY,
    kept_operators,
    saved_watermark_ms,
    unfit,
)
from weir.storage.records import decoded
from weir.subtasks.chain import DIRECTORY, ENTRY
from weir.subtasks.held_state import KeptOperator, encode_kept

_STATE_FILE = re.compile(r"state/(?P<number>[0-9]+)/(?P<rest>.+)")
_SOURCE_FILE = re.compile(r"sources/(?P<number>[0-9]+)/(?P<rest>.+)")
#: Derives the ids of assembled queries: no two queries may have the same id.
_QUERY_IDS = uuid.UUID("6f5c4c39-5a3c-4e0a-9a70-2a4b7c0a5f11")
#: The offset of a control input and of a channel before the first batch.
_NO_WATERMARKS = ControlOffset(control=0).encode()
_NO_OFFSET = "-"


@dataclass(frozen=True, kw_only=True)
class SavedQuery:
    """One query in the snapshot, with the owners in its plan."""

    task: TaskState
    layout: PlanLayout
    query_id: str
    #: The last batch's entries in the offset log and the commit log.
    batch: OffsetEntry
    commit: CommitEntry

    @classmethod
    def of(cls, task: TaskState, layout: PlanLayout | None, path: str) -> SavedQuery:
        """Read the state of a task, of the snapshot at ``path``.

        Raises ``CheckpointDamagedError`` if its parts do not fit each other.
        """
        try:
            if layout is None:
                raise ValueError("the owners of its state are missing")
            batch = decode_offsets(task.entries[f"offsets/{task.position}"])
            commit = decode_commit(task.entries[f"commits/{task.position}"])
            sources, operators = len(batch.offsets), len(commit.state_ids or {})
            if sources != len(layout.inputs) or operators != len(layout.operators):
                raise ValueError("the owners of its state are not those of Spark's log")
            return cls(
                task=task,
                layout=layout,
                query_id=decoded(task.entries["metadata"], QueryMetadata).id,
                batch=batch,
                commit=commit,
            )
        except KeyError as error:
            raise unfit(task, path, ValueError(f"{error} is missing")) from error
        except ValueError as error:
            raise unfit(task, path, error) from error

    @property
    def watermark_ms(self) -> int:
        """The watermark of the last batch."""
        return self.batch.metadata.watermark_ms or 0

    @property
    def next_watermark_ms(self) -> int:
        """The watermark of the next batch."""
        return self.commit.next_watermark_ms or 0

    def commit_entry(self, *, next_watermark_ms: int | None = None, state_ids: StateIds) -> str:
        """The last batch's entry in the commit log, with the ids of other state."""
        return edited_commit(
            self.task.entries[f"commits/{self.task.position}"],
            next_watermark_ms=next_watermark_ms,
            state_ids=state_ids,
        )

    @property
    def operators(self) -> frozenset[OperatorId]:
        return frozenset(operator.operator_id for operator in self.task.operators)

    @property
    def python_operators(self) -> frozenset[OperatorId]:
        return frozenset(kept_operators(self.task))


@dataclass(frozen=True, kw_only=True)
class _Watermarks:
    """The watermark of a query's last batch, and the next batch's."""

    last_ms: int
    next_ms: int


@dataclass(frozen=True, kw_only=True)
class QueryAssembly:
    """A query whose state is assembled."""

    vertices: Mapping[VertexId, Vertex]
    vertex: Vertex
    layout: PlanLayout
    #: The tasks of the snapshot that had its steps, and those that had run a batch.
    tasks: tuple[TaskState, ...]
    parts: tuple[SavedQuery, ...]
    in_flight: tuple[InFlightSegment, ...]
    states: Mapping[VertexId, TaskState]
    refuse: Refuse
    _found: dict[int, tuple[SavedQuery, int]] = field(default_factory=dict)

    def state(self) -> TaskState:
        """The state with which the query goes on."""
        if not self.parts:
            return self._task(-1, {}, ())
        self._find_operators()
        base = self._base()
        position = self._position()
        watermarks = self._watermarks()
        kept, python_files = python_state(self.vertex, self.tasks)
        entries = self._logs(base, position, watermarks) | kept
        output = self._output_watermark_ms(watermarks)
        if output > 0:
            entries[WATERMARK_ENTRY] = str(output)
        inline, source_files = self._source_logs()
        layout = PlanLayout(
            inputs=self.layout.inputs,
            operators=tuple(
                self._found[number][0].layout.operators[self._found[number][1]]
                for number in range(len(self.layout.operators))
            ),
        )
        entries |= inline | {PLAN_ENTRY: encode_layout(layout)} | self._joined_logs(position)
        files = (*self._state_files(position), *source_files, *python_files)
        return self._task(position, entries, files)

    def _task(
        self, position: int, entries: dict[str, str], files: tuple[StateHandle, ...]
    ) -> TaskState:
        segments = {key for segment in self.in_flight for key in segment.payload.get("keys", ())}
        operators = self.vertex.operators
        names = {operator.operator_id for operator in operators}
        unread = [handle for task in self.tasks for handle in task.files if handle.key in segments]
        return TaskState(
            vertex=self.vertex.name,
            position=position,
            operators=operators,
            inputs=self.vertex.inputs,
            entries=entries,
            files=(*files, *unread),
            in_flight=self.in_flight,
            sent_events=tuple(
                event
                for task in self.tasks
                for event in task.sent_events
                if event.operator in names
            ),
        )

    def _position(self) -> int:
        """The batch that the query goes on after.

        State keeps its version where possible, and what others have read of the query's channel
        stays before it.
        """
        tied = [part for part in self.parts if self._operators_of(part)]
        tied += [part for part in self.parts if self.vertex.name in part.operators]
        return max(part.task.position for part in tied or self.parts)

    # -- Spark's state

    def _find_operators(self) -> None:
        """Find the state of each stateful operator of the new plan."""
        available: dict[tuple[OperatorId, int, str], list[tuple[SavedQuery, int]]] = {}
        for part in self.parts:
            for number, operator in enumerate(part.layout.operators):
                available.setdefault(operator.key, []).append((part, number))
        for number, operator in enumerate(self.layout.operators):
            places = available.get(operator.key)
            if not places:
                self._refuse_new(operator)
            self._found[number] = places.pop(0)
        steps = {step.operator_id for step in self.vertex.steps}
        for (step, _, kind), places in available.items():
            if places and step in steps:
                self.refuse(
                    f"step {step!r} kept state in Spark that its function no longer asks for"
                    f" ({kind}), and its chain has changed: restore the function, or give the"
                    " step another uid and drop its state with --allow-non-restored-state."
                )

    def _refuse_new(self, operator: PlanOperator) -> NoReturn:
        known = any(operator.step in part.operators for part in self.parts)
        what = "now keeps other state" if known else "is new and keeps state"
        self.refuse(
            f"step {operator.step!r} {what} in Spark ({operator.kind}), which starts no operator in"
            f" a query that goes on: give it a query of its own with start_new_chain()"
            f"{' under another name' if known else ''}, or restore the pipeline as it was."
        )

    def _joined_logs(self, position: int) -> dict[str, str]:
        """The logs of queries whose state has the version of another batch (``rebase.py``)."""
        entries: dict[str, str] = {}
        for part in self.parts:
            if part.task.position != position and self._operators_of(part):
                self._check_rewriter(part)
                own, at = f"{JOINED}/{part.task.vertex}", part.task.position
                entries |= {
                    f"{own}/metadata": part.task.entries["metadata"],
                    f"{own}/offsets/{at}": part.task.entries[f"offsets/{at}"],
                    f"{own}/commits/{at}": part.commit_entry(state_ids=self._ids(part)),
                }
        return entries

    def _check_rewriter(self, part: SavedQuery) -> None:
        lacks = lacks_rewriter()
        if lacks is not None:
            self.refuse(
                f"the chain ending in {part.task.vertex!r}, which keeps state, was joined with"
                f" another that has run more or fewer batches, and {lacks}: {KEEP_THE_CHAIN}."
            )

    def _ids(self, part: SavedQuery) -> StateIds:
        """The ids of the part's state, by the operators' new numbers."""
        known = part.commit.state_ids or {}
        return {
            str(number): known[str(before)]
            for number, (found, before) in sorted(self._found.items(), key=lambda item: item[0])
            if found is part
        }

    def _state_files(self, position: int) -> tuple[StateHandle, ...]:
        numbers = {
            (part.task.vertex, before): number for number, (part, before) in self._found.items()
        }
        files = []
        for part in self.parts:
            for handle in part.task.files:
                match = _STATE_FILE.fullmatch(handle.key)
                number = (
                    None if match is None else numbers.get((part.task.vertex, int(match["number"])))
                )
                if match is not None and number is not None:
                    own = "" if part.task.position == position else f"{JOINED}/{part.task.vertex}/"
                    files.append(replace(handle, key=f"{own}state/{number}/{match['rest']}"))
        return tuple(files)

    # -- logs

    def _base(self) -> SavedQuery:
        """The query whose settings the new query goes on with."""
        stateful = [part for part, _ in self._found.values()]
        base = (stateful or list(self.parts))[0]
        for part in stateful:
            if part.batch.metadata.conf != base.batch.metadata.conf:
                before, other = (
                    query.batch.metadata.conf.get(SHUFFLE_PARTITIONS) for query in (base, part)
                )
                self.refuse(
                    f"the chains ending in {base.task.vertex!r} and {part.task.vertex!r} were"
                    " joined, but their queries keep state with different settings"
                    f" ({before} and {other} partitions): restore them apart with the same"
                    " parallelism, take a savepoint, and join them then."
                )
        return base

    def _logs(self, base: SavedQuery, position: int, watermarks: _Watermarks) -> dict[str, str]:
        batch = base.batch.with_watermark(watermarks.last_ms)
        offsets = replace(batch, offsets=tuple(map(self._offset, self.layout.inputs))).encode()
        ids: StateIds = {}
        for part in self.parts:
            if part.task.position == position:
                ids |= self._ids(part)
        query_id = uuid.uuid5(_QUERY_IDS, f"{base.query_id}/{self.vertex.name}")
        entries = {
            "metadata": msgspec.json.encode(QueryMetadata(id=str(query_id))).decode(),
            f"offsets/{position}": offsets,
            f"commits/{position}": base.commit_entry(
                next_watermark_ms=watermarks.next_ms, state_ids=ids
            ),
        }
        if position > 0:
            # Spark asks for it, and reads nothing from there to the last batch.
            entries[f"offsets/{position - 1}"] = offsets
        return entries

    def _offset(self, place: PlanInput) -> str:
        """The offset of a place of the new plan."""
        before = self._input(place)
        if before is not None:
            part, index = before
            if place.owner != CONTROL or part.task.inputs == self.vertex.inputs:
                return part.batch.offsets[index]
        if place.owner == CONTROL:
            return _NO_WATERMARKS
        name = channel_of(place.owner)
        producer = None if name is None else self.states.get(name)
        if name is None or producer is None or producer.position < 0:
            return _NO_OFFSET
        return ChannelOffset(channel=name, position=producer.position).encode()

    def _input(self, place: PlanInput) -> tuple[SavedQuery, int] | None:
        """Where the same source or channel was read before."""
        for part in self.parts:
            for index, known in enumerate(part.layout.inputs):
                same = (known.owner, known.number) == (place.owner, place.number)
                if same and (place.owner != CONTROL or part in self._roots()):
                    return part, index
        return None

    def _roots(self) -> list[SavedQuery]:
        """The parts that read an input of the new query, which others are downstream of."""
        owners = {channel_of(place.owner) or place.owner for place in self.layout.inputs} - {
            CONTROL
        }
        steps = {
            step.operator_id
            for step in self.vertex.steps
            if step.operator_id in owners or owners & set(step.inputs)
        }
        return [part for part in self.parts if steps & part.operators]

    def _source_logs(self) -> tuple[dict[str, str], tuple[StateHandle, ...]]:
        """The entries and files of ``sources/``, under their new numbers."""
        entries: dict[str, str] = {}
        files: dict[str, StateHandle] = {}
        for place in self.layout.inputs:
            before = self._input(place)
            if before is None:
                continue
            part, index = before
            old = f"{part.layout.inputs[index].directory}"
            for key, text in part.task.entries.items():
                match = _SOURCE_FILE.fullmatch(key)
                if match is not None and match["number"] == old:
                    entries[f"sources/{place.directory}/{match['rest']}"] = text
            for handle in part.task.files:
                match = _SOURCE_FILE.fullmatch(handle.key)
                if match is not None and match["number"] == old:
                    key = f"sources/{place.directory}/{match['rest']}"
                    files[key] = replace(handle, key=key)
        return entries, tuple(files.values())

    # -- watermarks

    def _watermarks(self) -> _Watermarks:
        """The watermarks with which the query goes on."""
        found = {part.task.vertex: self._of_part(part) for part in self.parts}
        roots = list(self._roots()) or list(self.parts)
        downstream = [part for part in self.parts if part not in roots and self._holds(part)]
        holding = [part for part in roots if self._holds(part)] or roots
        base = found[holding[0].task.vertex]
        for part in holding[1:]:
            if self._holds(part) and found[part.task.vertex] != base:
                self._refuse_watermarks(holding[0], part)
        if not any(self._holds(part) for part in roots):
            base = _Watermarks(
                last_ms=min(found[part.task.vertex].last_ms for part in roots),
                next_ms=min(found[part.task.vertex].next_ms for part in roots),
            )
            if downstream:
                output_ms = min(self._saved_output_ms(part) for part in roots)
                [first, *others] = downstream
                base = found[first.task.vertex]
                for part in others:
                    if found[part.task.vertex] != base:
                        self._refuse_watermarks(first, part)
                return replace(base, next_ms=max(base.next_ms, output_ms))
            return base
        for part in downstream:
            own = found[part.task.vertex]
            passed_ms = min([base.last_ms, *(self._let_through_ms(root) for root in holding)])
            if own.last_ms > passed_ms:
                self._refuse_watermarks(holding[0], part)
            scans = any(operator.scans_from_last_watermark for operator in self._operators_of(part))
            if scans and own.last_ms != passed_ms:
                self.refuse(
                    f"the chain ending in {part.task.vertex!r} was joined with the chain that it"
                    " reads, but has not yet handled its newest watermark, and Spark's"
                    " transformWithState would not find the timers up to it: restore the chains"
                    " apart, pause the input, and take the savepoint then."
                )
        return base

    def _refuse_watermarks(self, first: SavedQuery, other: SavedQuery) -> None:
        self.refuse(
            f"the chains ending in {first.task.vertex!r} and {other.task.vertex!r} were joined into"
            f" the chain ending in {self.vertex.name!r}, but had different watermarks, and a query"
            f" in Spark has one watermark for all of its state: {KEEP_THE_CHAIN}."
        )

    def _of_part(self, part: SavedQuery) -> _Watermarks:
        """The watermarks of a query, as they are for the steps of the new query."""
        upstream = self._upstream()
        held = [
            operator
            for operator in part.layout.operators
            if operator.step in upstream or operator.step not in self._pipeline()
        ]
        if held or part.python_operators & upstream:
            passed_ms = min([part.watermark_ms, *(operator.watermark_ms or 0 for operator in held)])
            return _Watermarks(last_ms=passed_ms, next_ms=passed_ms)
        return _Watermarks(last_ms=part.watermark_ms, next_ms=part.next_watermark_ms)

    def _operators_of(self, part: SavedQuery) -> list[PlanOperator]:
        """The part's stateful operators that are in the new query."""
        return [
            part.layout.operators[number] for found, number in self._found.values() if found is part
        ]

    def _holds(self, part: SavedQuery) -> bool:
        """Whether the watermark matters to state that the new query has of the part."""
        steps = {step.operator_id for step in self.vertex.steps}
        return bool(self._operators_of(part)) or bool(part.python_operators & steps)

    def _let_through_ms(self, part: SavedQuery) -> int:
        """The watermark that the part's operators in the new query had let through."""
        passed = [operator.watermark_ms or 0 for operator in self._operators_of(part)]
        return min([part.watermark_ms, *passed])

    def _saved_output_ms(self, part: SavedQuery) -> int:
        """The output watermark that the part had; 0 without a watermark."""
        return saved_watermark_ms(part.task) or 0

    def _output_watermark_ms(self, watermarks: _Watermarks) -> int:
        if any(self._holds(part) for part in self.parts):
            return min(watermarks.last_ms, *map(self._let_through_ms, self.parts))
        return watermarks.next_ms

    def _upstream(self) -> frozenset[OperatorId]:
        """The steps upstream of the vertex's own, in other vertices."""
        by_name = {
            step.operator_id: step for vertex in self.vertices.values() for step in vertex.steps
        }
        own = {step.operator_id for step in self.vertex.steps}
        found: set[OperatorId] = set()
        waiting = list(own)
        while waiting:
            for name in by_name[waiting.pop()].inputs:
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return frozenset(found - own)

    def _pipeline(self) -> frozenset[OperatorId]:
        return frozenset(
            step.operator_id for vertex in self.vertices.values() for step in vertex.steps
        )


def python_state(
    vertex: Vertex, tasks: Iterable[TaskState]
) -> tuple[dict[str, str], tuple[StateHandle, ...]]:
    """The state of the vertex's Python operators: the entry, and the files that it names."""
    steps = {step.operator_id for step in vertex.steps}
    kept: dict[OperatorId, KeptOperator] = {}
    files: list[StateHandle] = []
    for task in tasks:
        own = {name: state for name, state in kept_operators(task).items() if name in steps}
        kept |= own
        named = [f"{DIRECTORY}/{name}/" for name in own]
        files += [
            handle
            for handle in task.files
            if any(handle.key.startswith(prefix) for prefix in named)
        ]
    return ({ENTRY: encode_kept(kept)} if kept else {}), tuple(files)
