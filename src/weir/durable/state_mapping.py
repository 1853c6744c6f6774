"""Checks that the state of a checkpoint fits the pipeline (Flink's state assignment; MISSION D5).

State is matched by name. A vertex is one query with one directory, named after the step to which
its sinks are attached, so all of its state goes to the vertex of the same name or nowhere. A vertex
without state reads its input from the start, and its output is duplicated in every sink that
existed before. So changes are answered as follows, and checked in this order:

======================================  ============================================================
change                                  answer
======================================  ============================================================
a step belongs to another vertex        always refused: it would start without state, in sinks that
                                        are not empty
a finished vertex has a new step        always refused: the vertex is not started again, so no row
                                        would reach the step
a vertex has other sources, or another  always refused: a query keeps its read positions by the
order                                   order of its sources
a vertex reads other channels           always refused: it keeps their watermarks by their order; a
                                        finished vertex reads no more (MISSION D5)
a new vertex reads a finished one       always refused: no row would reach it
everything has finished, and a vertex   always refused (PROTOCOL P35)
is new
a step or a coordinator was removed     refused unless ``--allow-non-restored-state`` permits to
                                        drop its state
a running vertex has a new step         accepted: the step starts without state, and a sink with the
                                        rows from now on
a vertex is new, with all of its steps  accepted: it starts without state, and a channel with the
                                        rows from now on
======================================  ============================================================

Spark itself checks, when the query starts, that a stateful transformation fits its own state.
Nothing is committed or deleted before this check: if the pipeline is changed back, the job resumes
as if it had never been changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from weir.core.graph import source_names
from weir.core.types import CompletedCheckpoint, OperatorId, OperatorState, TaskState, VertexId
from weir.errors import JobError

_KEEP_THE_CHAIN = (
    "restore the chain with the same step names, or start from scratch with --fresh and new tables"
)


@dataclass(frozen=True, kw_only=True)
class StateMapping:
    """The parts of the pipeline that checkpointed state is matched with."""

    #: The operators of each vertex, sources first and sinks last, as in ``Vertex.operators``.
    vertices: Mapping[VertexId, tuple[OperatorState, ...]]
    #: ``execution.state-recovery.ignore-unclaimed-state``: whether the state of a removed step may
    #: be dropped.
    allow_non_restored_state: bool
    #: The vertices whose channels each vertex reads, in order; vertices that read none may be
    #: missing.
    inputs: Mapping[VertexId, tuple[VertexId, ...]] = field(default_factory=dict)
    #: The operators that have a coordinator.
    coordinated: frozenset[OperatorId] = frozenset()

    def check(self, checkpoint: CompletedCheckpoint) -> None:
        """Raise ``JobError`` unless every state of the checkpoint has its place in the pipeline."""
        homes = {
            operator.operator_id: vertex
            for vertex, operators in self.vertices.items()
            for operator in operators
        }
        for task in checkpoint.tasks:
            self._check_not_moved(checkpoint, task, homes)
        for task in checkpoint.tasks:
            if task.vertex in self.vertices:
                self._check_not_added_to_finished(checkpoint, task)
                self._check_sources(checkpoint, task)
                self._check_channels(checkpoint, task)
        self._check_not_behind_finished(checkpoint)
        self._check_not_added_to_drained(checkpoint)
        if not self.allow_non_restored_state:
            self._check_all_claimed(checkpoint, homes)

    def _check_not_moved(
        self, checkpoint: CompletedCheckpoint, task: TaskState, homes: Mapping[OperatorId, VertexId]
    ) -> None:
        for operator in task.operators:
            home = homes.get(operator.operator_id, task.vertex)
            if home != task.vertex:
                known = {known.operator_id for task in checkpoint.tasks for known in task.operators}
                removed = [
                    f"{name!r} was removed" for name in _ids(task.operators) if name not in homes
                ]
                added = [
                    f"{name!r} was added" for name in _ids(self.vertices[home]) if name not in known
                ]
                changes = f" (step {', step '.join(removed + added)})" if removed or added else ""
                _refuse(
                    checkpoint,
                    f"the state of step {operator.operator_id!r} belongs to the chain ending in"
                    f" {task.vertex!r}, but the step is now in the chain ending in"
                    f" {home!r}{changes}: {_KEEP_THE_CHAIN}.",
                )

    def _check_not_added_to_finished(
        self, checkpoint: CompletedCheckpoint, task: TaskState
    ) -> None:
        """A fully finished vertex must have no new operator (MISSION D5).

        Upstream of a finished operator none may be added; downstream it would get no rows.
        """
        if not any(operator.fully_finished for operator in task.operators):
            return
        known = set(_ids(task.operators))
        for name in _ids(self.vertices[task.vertex]):
            if name not in known:
                _refuse(
                    checkpoint,
                    f"step {name!r} was added to the chain ending in {task.vertex!r}, which has"
                    " already finished and is not restarted: remove the step, or start from"
                    " scratch with --fresh and new tables.",
                )

    def _check_sources(self, checkpoint: CompletedCheckpoint, task: TaskState) -> None:
        before, now = source_names(task.operators), source_names(self.vertices[task.vertex])
        if before != now:
            _refuse(
                checkpoint,
                f"the chain ending in {task.vertex!r} read {_listed(before)} and now reads"
                f" {_listed(now)}, but read positions are matched by the order of the sources:"
                " give it the same sources in the same order with the same names, or start from"
                " scratch with --fresh and new tables.",
            )

    def _check_channels(self, checkpoint: CompletedCheckpoint, task: TaskState) -> None:
        before, now = task.inputs, self.inputs.get(task.vertex, ())
        if before != now:
            _refuse(
                checkpoint,
                f"the chain ending in {task.vertex!r} read {_listed(before, 'no other chain')}"
                f" and now reads {_listed(now, 'no other chain')}, but its channels are matched"
                f" by their order: {_KEEP_THE_CHAIN}.",
            )

    def _check_not_behind_finished(self, checkpoint: CompletedCheckpoint) -> None:
        for vertex, inputs in self.inputs.items():
            if checkpoint.task(vertex) is not None:
                continue
            for name in inputs:
                producer = checkpoint.task(name)
                if producer is not None and producer.fully_finished:
                    _refuse(
                        checkpoint,
                        f"the new chain ending in {vertex!r} reads {name!r}, which has already"
                        " finished and is not restarted: remove the chain, or start from scratch"
                        " with --fresh and new tables.",
                    )

    def _check_not_added_to_drained(self, checkpoint: CompletedCheckpoint) -> None:
        if not checkpoint.drained:
            return
        for vertex, operators in self.vertices.items():
            if checkpoint.task(vertex) is None:
                _refuse(
                    checkpoint,
                    f"the whole job had finished, and step {operators[0].operator_id!r} would add"
                    " new input: remove the step, or run it as a separate job.",
                )

    def _check_all_claimed(
        self, checkpoint: CompletedCheckpoint, homes: Mapping[OperatorId, VertexId]
    ) -> None:
        for task in checkpoint.tasks:
            for name in _ids(task.operators):
                if name not in homes:
                    _refuse(
                        checkpoint,
                        f"it has state of step {name!r}, which is not in the pipeline: restore"
                        " the step's name, or drop its state with --allow-non-restored-state.",
                    )
        for name in checkpoint.coordinator_states:
            if name not in self.coordinated:
                _refuse(
                    checkpoint,
                    f"it has state of the coordinator of step {name!r}, which no longer has one:"
                    " restore the coordinator, or drop its state with --allow-non-restored-state.",
                )


def _refuse(checkpoint: CompletedCheckpoint, because: str) -> NoReturn:
    kind = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
    raise JobError(
        f"Cannot map {kind} {checkpoint.checkpoint_id} ({checkpoint.external_path}) to the"
        f" pipeline, because {because}"
    )


def _ids(operators: Iterable[OperatorState]) -> list[OperatorId]:
    return [operator.operator_id for operator in operators]


def _listed(names: Iterable[OperatorId], none: str = "no source") -> str:
    return ", ".join(map(repr, names)) or none
