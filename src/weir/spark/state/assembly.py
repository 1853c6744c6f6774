"""Makes the state of a query whose steps were in other queries when the snapshot was taken.

A task's state is Spark's log of the last batch, Spark's state by operator number, and what Weir
keeps by uid: Python operators and sinks. The latter follow their uid anywhere. For the former there
are two ways:

*The query is whole* (``_renamed``): all of its steps were in one query and no other query has any
of them. It goes on as it is; only names of channels in its offsets may change. Whether a stateful
step still fits its state is Spark's own check.

*Its state is assembled* (``query_assembly.py``) from the snapshot of one or more queries, operator
by operator.

What cannot follow:

==============================================  ====================================================
refused                                         because
==============================================  ====================================================
a step that keeps new or other state in Spark   Spark starts no operator in a query that goes on:
                                                all of its operators have the version of the batch
rows in flight in a channel that was joined,    they belong between the steps, or before a step that
or whose producer ends in another step          was added
queries with different numbers of state         a query has one number
partitions are joined
queries with different watermarks are joined,   a query has one watermark: rows would count as late,
unless one feeds the other                      or come after their window was emitted
a joined query with `transformWithState` that   Spark looks for timers above the last watermark
has not caught up with its input                only
a snapshot without the owners                   an earlier Weir took it
==============================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from weir.core.graph import StepKind, Vertex, source_names
from weir.core.types import InFlightSegment, OperatorId, TaskState, VertexId
from weir.durable.state_mapping import KEEP_THE_CHAIN, Refuse
from weir.spark.offsets import ChannelOffset
from weir.spark.state.log_entries import decode_offsets
from weir.spark.state.plan_layout import (
    PLAN_ENTRY,
    PlanInput,
    PlanLayout,
    channel_of,
    channel_owner,
    decode_layout,
    encode_layout,
)
from weir.spark.state.query_assembly import QueryAssembly, SavedQuery, python_state
from weir.spark.state.saved_task import check_saved_task


class SparkStateAssembler:
    """Implements ``weir.durable.state_mapping.StateAssembler``."""

    def __init__(
        self,
        vertices: Mapping[VertexId, Vertex],
        layouts: Callable[[], Mapping[VertexId, PlanLayout | None]],
    ) -> None:
        """``layouts`` builds the plans of the vertices, and is called if a plan must be known."""
        self._vertices = vertices
        self._layouts = layouts
        self._known: Mapping[VertexId, PlanLayout | None] | None = None

    def stateless(self, task: TaskState) -> frozenset[OperatorId]:
        """The transformations and unions without state, if the snapshot says so."""
        try:
            layout = _recorded(task)
        except ValueError:
            return frozenset()
        if layout is None:
            return frozenset()
        stateful = {operator.step for operator in layout.operators}
        kinds = (f"{StepKind.TRANSFORM.value} ", f"{StepKind.UNION.value} ")
        return frozenset(
            operator.operator_id
            for operator in task.operators
            if operator.name.startswith(kinds) and operator.operator_id not in stateful
        )

    def assemble(
        self,
        vertex: VertexId,
        origins: Mapping[VertexId, tuple[TaskState, ...]],
        states: Mapping[VertexId, TaskState],
        path: str,
        refuse: Refuse,
    ) -> TaskState:
        """The state with which a vertex goes on."""
        now = self._vertices[vertex]
        steps = {step.operator_id for step in now.steps}
        parts = tuple(
            task
            for task in origins[vertex]
            if steps & {operator.operator_id for operator in task.operators}
        )
        for task in parts:
            check_saved_task(task, path)
        renamed = self._renamed(now, parts, origins, refuse)
        if renamed is not None:
            return renamed
        if all(task.position < 0 and not task.in_flight for task in parts):
            return TaskState(vertex=vertex, position=-1, operators=now.operators, inputs=now.inputs)
        recorded = {task.vertex: _recorded(task) for task in parts}
        for name, layout in recorded.items():
            if layout is None and self._task(parts, name).position >= 0:
                refuse(
                    f"the steps of the chain ending in {name!r} are now in other chains, but the"
                    " snapshot does not say which part of its state belongs to which step: restore"
                    " it with the chains as they were, take a savepoint with this version of Weir,"
                    " and change them then."
                )
        layout = self._layout(vertex)
        if layout is None:
            refuse(
                f"the chain ending in {vertex!r} has steps of others, and in Spark's plan of it"
                f" Weir does not know which step keeps which state: {KEEP_THE_CHAIN}."
            )
        assembly = QueryAssembly(
            vertices=self._vertices,
            vertex=now,
            layout=layout,
            tasks=parts,
            parts=tuple(
                SavedQuery.of(task, recorded[task.vertex], path)
                for task in parts
                if task.position >= 0
            ),
            in_flight=self._in_flight(now, parts, origins, refuse),
            states=states,
            refuse=refuse,
        )
        return assembly.state()

    def finished(self, vertex: VertexId, origins: tuple[TaskState, ...]) -> TaskState:
        """The state of a vertex whose operators have all finished: that of Python operators."""
        now = self._vertices[vertex]
        kept, files = python_state(now, origins)
        known = {
            operator.operator_id: operator.fingerprint
            for task in origins
            for operator in task.operators
        }
        return TaskState(
            vertex=vertex,
            position=max(task.position for task in origins),
            operators=tuple(
                replace(operator, fully_finished=True, fingerprint=known.get(operator.operator_id))
                for operator in now.operators
            ),
            inputs=now.inputs,
            entries=kept,
            files=files,
            sent_events=tuple(
                event
                for task in origins
                for event in task.sent_events
                if event.operator in {operator.operator_id for operator in now.operators}
            ),
        )

    def _layout(self, vertex: VertexId) -> PlanLayout | None:
        if self._known is None:
            self._known = self._layouts()
        return self._known[vertex]

    @staticmethod
    def _task(tasks: Iterable[TaskState], vertex: VertexId) -> TaskState:
        return next(task for task in tasks if task.vertex == vertex)

    def _renamed(
        self,
        now: Vertex,
        parts: tuple[TaskState, ...],
        origins: Mapping[VertexId, tuple[TaskState, ...]],
        refuse: Refuse,
    ) -> TaskState | None:
        """The state of a query that goes on as it is; None if it does not."""
        if len(parts) != 1:
            return None
        [task] = parts
        heirs = [
            name for name, tasks in origins.items() if task in tasks and self._has_steps(name, task)
        ]
        sources = source_names(task.operators) == source_names(now.operators)
        if heirs != [now.name] or not sources or len(task.inputs) != len(now.inputs):
            return None
        channels = dict(zip(task.inputs, now.inputs, strict=True))
        for before, name in channels.items():
            if not any(origin.vertex == before for origin in origins[name]):
                return None
        layout = _recorded(task)
        steps = {step.operator_id for step in now.steps}
        if layout is not None and any(operator.step not in steps for operator in layout.operators):
            # Some of its state is dropped, which changes Spark's numbers.
            return None
        entries = dict(task.entries)
        for key in list(entries):
            if key.startswith("offsets/"):
                entries[key] = _with_channels(entries[key], channels)
        if layout is not None:
            renamed = (_renamed_input(place, channels) for place in layout.inputs)
            entries[PLAN_ENTRY] = encode_layout(
                PlanLayout(inputs=tuple(renamed), operators=layout.operators)
            )
        return replace(
            task,
            vertex=now.name,
            operators=now.operators,
            inputs=now.inputs,
            entries=entries,
            in_flight=self._in_flight(now, parts, origins, refuse),
        )

    def _has_steps(self, vertex: VertexId, task: TaskState) -> bool:
        steps = {step.operator_id for step in self._vertices[vertex].steps}
        return any(operator.operator_id in steps for operator in task.operators)

    def _in_flight(
        self,
        now: Vertex,
        parts: tuple[TaskState, ...],
        origins: Mapping[VertexId, tuple[TaskState, ...]],
        refuse: Refuse,
    ) -> tuple[InFlightSegment, ...]:
        """The unread segments of the vertex's channels.

        Refuses segments whose channel is gone: their rows belong between two steps.
        """
        kept = []
        for task in parts:
            read = {
                name
                for vertex, tasks in origins.items()
                if task in tasks
                for name in self._vertices[vertex].inputs
            }
            for segment in task.in_flight:
                if segment.channel not in read:
                    refuse(
                        f"it is unaligned and holds rows of the chain ending in"
                        f" {segment.channel!r} that no batch had read, and that chain now ends in"
                        " another step: restore from a savepoint, which holds no unread rows."
                    )
                if segment.channel in now.inputs:
                    kept.append(segment)
        return tuple(kept)


def _renamed_input(place: PlanInput, channels: Mapping[VertexId, VertexId]) -> PlanInput:
    """The same place, whose channel may have another name."""
    name = channel_of(place.owner)
    if name is None:
        return place
    return msgspec.structs.replace(place, owner=channel_owner(channels.get(name, name)))


def _recorded(task: TaskState) -> PlanLayout | None:
    """The owners that the snapshot of a query names; None if it names none."""
    text = task.entries.get(PLAN_ENTRY)
    return None if text is None else decode_layout(text)


def _with_channels(text: str, channels: Mapping[VertexId, VertexId]) -> str:
    """An offset-log entry with other names of channels."""
    entry = decode_offsets(text)
    offsets = tuple(_of_channel(offset, channels) for offset in entry.offsets)
    return replace(entry, offsets=offsets).encode()


def _of_channel(offset: str, channels: Mapping[VertexId, VertexId]) -> str:
    """The same offset, whose channel may have another name."""
    try:
        known = ChannelOffset.decode(offset)
    except ValueError:
        return offset
    name = channels.get(known.channel, known.channel)
    return ChannelOffset(channel=name, position=known.position).encode()
