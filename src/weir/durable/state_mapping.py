"""Maps the state of a checkpoint to the pipeline (Flink's state assignment; MISSION D5).

State is matched by operator: by the ``uid`` of a step, or its name. A vertex is one query with one
directory, and its state is made of the state of its operators, in whichever vertices they were when
the checkpoint was taken. A vertex that is as it was gets its state unchanged. For any other the
``StateAssembler`` makes it; the part of it that belongs to Spark can follow only within limits
(``weir/spark/state/assembly.py``). Changes are answered as follows:

======================================  ============================================================
change                                  answer
======================================  ============================================================
a step was renamed and keeps its uid    accepted: its state is found by the uid
a vertex ends in another step, because  accepted: it is found by its other steps
a step was added, removed or renamed
a vertex was split (``start_new_chain`` accepted where Spark's state can follow; Python operators,
or a further reader of a step), or two  coordinators and sinks always do
were joined
a transformation or union without       accepted: nothing is lost
state was removed
another step or a coordinator was       refused unless ``--allow-non-restored-state`` permits to
removed                                 drop its state
a running vertex has a new step         accepted: the step starts without state, and a sink with the
                                        rows from now on; refused if the new step would keep state
                                        in the query of others
a vertex is new, with all of its steps  accepted: it starts without state, and a channel with the
                                        rows from now on
a vertex with state reads a new source  refused: the watermark of the state may have passed the
                                        source's rows, which would be dropped as late
a vertex with state reads another       refused, for the same reason; a finished vertex reads no
channel than before                     more (MISSION D5)
finished and running steps are now in   refused: a query finishes as a whole
one vertex
a finished vertex has a new step        refused: the vertex is not started again, so no row would
                                        reach the step
a new vertex reads a finished one       refused: no row would reach it
everything has finished, and a vertex   refused (PROTOCOL P35)
is new
======================================  ============================================================

A change of what a step does with its state, of what a source reads or a sink writes, is refused in
``changes.py``.

Nothing is committed or deleted before this check: if the pipeline is changed back, the job resumes
as if it had never been changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NoReturn, Protocol, TypeAlias

from weir.core.graph import source_names
from weir.core.types import CompletedCheckpoint, OperatorId, OperatorState, TaskState, VertexId
from weir.errors import InvariantError, JobError

#: Refuses the checkpoint, because of what the rest of a sentence says.
Refuse: TypeAlias = Callable[[str], NoReturn]

KEEP_THE_CHAIN = (
    "restore the chain with the same step names, or start from scratch with --fresh and new tables"
)


class StateAssembler(Protocol):
    """Makes the state of vertices that are not as they were when the checkpoint was taken."""

    def stateless(self, task: TaskState) -> frozenset[OperatorId]:
        """The transformations and unions of a task that are known to have no state."""
        ...

    def assemble(
        self,
        vertex: VertexId,
        origins: Mapping[VertexId, tuple[TaskState, ...]],
        states: Mapping[VertexId, TaskState],
        path: str,
        refuse: Refuse,
    ) -> TaskState:
        """The state with which a vertex goes on that none of its operators has finished.

        ``origins`` has, for each vertex, the tasks of the checkpoint at ``path`` that had some of
        its operators; ``states`` the states of the vertices before this one.
        """
        ...

    def finished(self, vertex: VertexId, origins: tuple[TaskState, ...]) -> TaskState:
        """The state of a vertex whose operators were in these tasks, which have all finished."""
        ...


class NothingChanges:
    """The ``StateAssembler`` of a pipeline that never changes, as in the simulator."""

    def stateless(self, task: TaskState) -> frozenset[OperatorId]:
        """None is known to be."""
        del task
        return frozenset()

    def assemble(
        self,
        vertex: VertexId,
        origins: Mapping[VertexId, tuple[TaskState, ...]],
        states: Mapping[VertexId, TaskState],
        path: str,
        refuse: Refuse,
    ) -> TaskState:
        """Refuse the checkpoint."""
        del origins, states, path
        refuse(f"the chain ending in {vertex!r} has changed: {KEEP_THE_CHAIN}.")

    def finished(self, vertex: VertexId, origins: tuple[TaskState, ...]) -> TaskState:
        """Raise ``InvariantError``."""
        raise InvariantError(f"{vertex} was made of {[task.vertex for task in origins]}")


@dataclass(frozen=True, kw_only=True)
class StateMapping:
    """The parts of the pipeline that checkpointed state is matched with."""

    #: The operators of each vertex, sources first and sinks last, as in ``Vertex.operators``;
    #: vertices after those whose channels they read.
    vertices: Mapping[VertexId, tuple[OperatorState, ...]]
    #: ``execution.state-recovery.ignore-unclaimed-state``: whether the state of a removed step may
    #: be dropped.
    allow_non_restored_state: bool
    assembler: StateAssembler
    #: The vertices whose channels each vertex reads, in order; vertices that read none may be
    #: missing.
    inputs: Mapping[VertexId, tuple[VertexId, ...]] = field(default_factory=dict)
    #: The operators that have a coordinator.
    coordinated: frozenset[OperatorId] = frozenset()

    def assign(self, checkpoint: CompletedCheckpoint) -> dict[VertexId, TaskState]:
        """The state of each vertex; vertices that start without state are missing.

        Raises ``JobError`` unless every state of the checkpoint has its place in the pipeline.
        """
        self.check(checkpoint)
        homes, refuse = self._homes, partial(_refuse, checkpoint)
        origins = self._origins(checkpoint)
        states: dict[VertexId, TaskState] = {}
        for vertex in self.vertices:
            tasks = origins[vertex]
            if not tasks:
                continue
            if self._is_unchanged(vertex, tasks, homes):
                states[vertex] = tasks[0]
            elif tasks[0].fully_finished:
                states[vertex] = self.assembler.finished(vertex, tasks)
            else:
                states[vertex] = self.assembler.assemble(
                    vertex, origins, states, checkpoint.external_path, refuse
                )
        return states

    def check(self, checkpoint: CompletedCheckpoint) -> None:
        """Check what needs neither the checkpoint's files nor Spark.

        Raises ``JobError`` as ``assign`` does.
        """
        refuse, origins = partial(_refuse, checkpoint), self._origins(checkpoint)
        for vertex in self.vertices:
            self._check_finished(vertex, origins, refuse)
        if checkpoint.drained:
            self._check_not_added_to_drained(origins, refuse)
        if not self.allow_non_restored_state:
            self._check_all_claimed(checkpoint, refuse)
        for vertex in self.vertices:
            if origins[vertex]:
                self._check_sources(vertex, checkpoint, refuse)
                self._check_channels(vertex, origins, refuse)

    @cached_property
    def _homes(self) -> Mapping[OperatorId, VertexId]:
        """The vertex of each operator."""
        return {
            operator.operator_id: vertex
            for vertex, operators in self.vertices.items()
            for operator in operators
        }

    def _origins(self, checkpoint: CompletedCheckpoint) -> dict[VertexId, tuple[TaskState, ...]]:
        """For each vertex, the tasks of the checkpoint that had some of its operators."""
        homes = self._homes
        return {
            vertex: tuple(
                task
                for task in checkpoint.tasks
                if any(homes.get(name) == vertex for name in _ids(task.operators))
            )
            for vertex in self.vertices
        }

    def _is_unchanged(
        self,
        vertex: VertexId,
        tasks: tuple[TaskState, ...],
        homes: Mapping[OperatorId, VertexId],
    ) -> bool:
        [task, *others] = tasks
        removed = {name for name in _ids(task.operators) if name not in homes}
        return (
            not others
            and task.vertex == vertex
            and all(homes.get(name, vertex) == vertex for name in _ids(task.operators))
            and (not removed or removed <= self.assembler.stateless(task))
            and task.inputs == self.inputs.get(vertex, ())
            and source_names(task.operators) == source_names(self.vertices[vertex])
        )

    def _check_finished(
        self, vertex: VertexId, origins: Mapping[VertexId, tuple[TaskState, ...]], refuse: Refuse
    ) -> None:
        """A finished vertex is not started again, so no row reaches a new operator (MISSION D5)."""
        ended = [task for task in origins[vertex] if task.fully_finished]
        inputs = self.inputs.get(vertex, ())
        if not ended:
            for name in () if origins[vertex] else inputs:
                if origins[name] and all(task.fully_finished for task in origins[name]):
                    refuse(
                        f"the new chain ending in {vertex!r} reads {name!r}, which has already"
                        " finished and is not restarted: remove the chain, or start from scratch"
                        " with --fresh and new tables."
                    )
            return
        known = {name for task in origins[vertex] for name in _ids(task.operators)}
        for name in _ids(self.vertices[vertex]):
            if name not in known:
                refuse(
                    f"step {name!r} was added to the chain ending in {vertex!r}, which has"
                    " already finished and is not restarted: remove the step, or start from"
                    " scratch with --fresh and new tables."
                )
        running = [task for task in origins[vertex] if not task.fully_finished]
        running += [task for name in inputs for task in origins[name] if not task.fully_finished]
        if running or any(not origins[name] for name in inputs):
            refuse(
                f"the chain ending in {ended[0].vertex!r} had finished, but what is now the chain"
                f" ending in {vertex!r} has steps, or reads rows, of others that had not:"
                f" {KEEP_THE_CHAIN}."
            )

    def _check_sources(
        self, vertex: VertexId, checkpoint: CompletedCheckpoint, refuse: Refuse
    ) -> None:
        known = {name for task in checkpoint.tasks for name in source_names(task.operators)}
        for name in source_names(self.vertices[vertex]):
            if name not in known:
                refuse(
                    f"source {name!r} was added to the chain ending in {vertex!r}, whose watermark"
                    " may have passed its rows, which would be dropped as late: give the new"
                    " source a query and a sink of its own, or start from scratch with --fresh and"
                    " new tables."
                )

    def _check_channels(
        self, vertex: VertexId, origins: Mapping[VertexId, tuple[TaskState, ...]], refuse: Refuse
    ) -> None:
        """Each channel carries rows that the vertex's operators have read before."""
        tasks = {task.vertex for task in origins[vertex]}
        read = tasks | {name for task in origins[vertex] for name in task.inputs}
        for name in self.inputs.get(vertex, ()):
            if not any(task.vertex in read for task in origins[name]):
                refuse(
                    f"the chain ending in {vertex!r} now reads the rows of {name!r}, which it did"
                    " not before, and its watermark may have passed them: restore the chain as it"
                    " was, or start from scratch with --fresh and new tables."
                )

    def _check_not_added_to_drained(
        self, origins: Mapping[VertexId, tuple[TaskState, ...]], refuse: Refuse
    ) -> None:
        for vertex, operators in self.vertices.items():
            if not origins[vertex]:
                refuse(
                    f"the whole job had finished, and step {operators[0].operator_id!r} would add"
                    " new input: remove the step, or run it as a separate job."
                )

    def _check_all_claimed(self, checkpoint: CompletedCheckpoint, refuse: Refuse) -> None:
        for task in checkpoint.tasks:
            removed = [name for name in _ids(task.operators) if name not in self._homes]
            stateless = self.assembler.stateless(task) if removed else ()
            for name in removed:
                if name not in stateless:
                    refuse(
                        f"it has state of step {name!r}, which is not in the pipeline: restore"
                        f" the step's name, give the step that it has become uid={name!r}, or drop"
                        " its state with --allow-non-restored-state."
                    )
        for name in checkpoint.coordinator_states:
            if name not in self.coordinated:
                refuse(
                    f"it has state of the coordinator of step {name!r}, which no longer has one:"
                    " restore the coordinator, or drop its state with --allow-non-restored-state."
                )


def _refuse(checkpoint: CompletedCheckpoint, because: str) -> NoReturn:
    kind = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
    raise JobError(
        f"Cannot map {kind} {checkpoint.checkpoint_id} ({checkpoint.external_path}) to the"
        f" pipeline, because {because}"
    )


def _ids(operators: Iterable[OperatorState]) -> list[OperatorId]:
    return [operator.operator_id for operator in operators]
