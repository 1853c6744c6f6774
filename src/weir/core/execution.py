"""The running attempt's tasks as the job master sees them (a reduced ``ExecutionGraph``).

The job master writes it. The checkpoint coordinator reads it to plan checkpoints and to find the
tasks to notify, and notes the positions that a completed checkpoint has.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from weir.core.status import has_ended
from weir.core.types import (
    CompletedCheckpoint,
    Fingerprint,
    OperatorId,
    OperatorState,
    Position,
    TaskState,
    TaskStatus,
    VertexId,
)
from weir.errors import invariant

#: The fingerprints of a task's operators, as far as they are known.
Fingerprints: TypeAlias = Mapping[OperatorId, Fingerprint]


class AttemptPhase(enum.Enum):
    """The phase of the newest attempt."""

    #: Its tasks do not exist yet, or no longer.
    NONE = "NONE"
    #: ``BeginAttempt`` is in progress.
    BEGINNING = "BEGINNING"
    #: Its tasks exist.
    UP = "UP"
    #: ``StopTasks`` is in progress.
    STOPPING = "STOPPING"


class Execution:
    """The attempt's number, its phase, and the status of each of its tasks."""

    def __init__(
        self,
        vertices: Mapping[VertexId, tuple[OperatorState, ...]],
        producers: Mapping[VertexId, tuple[VertexId, ...]],
    ) -> None:
        invariant(vertices, "a job has at least one vertex")
        self._operators = dict(vertices)
        #: For each task, the tasks whose channels it reads; a task that reads none may be missing.
        self.producers = MappingProxyType(dict(producers))
        #: 0 before the first attempt has begun.
        self._attempt = 0
        self.phase = AttemptPhase.NONE
        self._status = dict.fromkeys(self._operators, TaskStatus.INITIALIZING)
        #: How many tasks are in each status. Law: equals the counts in ``_status``.
        self._counts = Counter(self._status.values())
        #: Whether messages may be sent to the tasks: from the start of the attempt until the tasks
        #: are stopped.
        self._live = False
        #: Tasks that have processed all their records and are not yet covered by a completed
        #: checkpoint (PROTOCOL P29), in the order in which they began to wait.
        self._needs_final_checkpoint: dict[VertexId, None] = {}
        #: Tasks that take no more checkpoints, and are not FINISHED yet.
        self._closing: set[VertexId] = set()
        #: Tasks that have read what was available when the attempt began.
        self._caught_up: set[VertexId] = set()
        #: The position of each task in the newest completed checkpoint or savepoint of the attempt,
        #: or in what it was restored from.
        self._positions: dict[VertexId, Position] = {}
        #: The operators' fingerprints there, by vertex: a finished task computes none.
        self._fingerprints: dict[VertexId, Fingerprints] = {}

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one that ran; 0 before the first."""
        return self._attempt

    @property
    def live(self) -> bool:
        """Whether messages may be sent to the tasks."""
        return self._live

    @property
    def tasks_up(self) -> bool:
        """Whether the attempt's tasks exist: from ``AttemptBegan`` to ``TasksStopped``."""
        return self.phase in (AttemptPhase.UP, AttemptPhase.STOPPING)

    @property
    def statuses(self) -> Mapping[VertexId, TaskStatus]:
        """The status of every task, in job graph order."""
        return MappingProxyType(self._status)

    @property
    def all_finished(self) -> bool:
        """Whether every task, and therefore the job, is FINISHED."""
        return self._counts[TaskStatus.FINISHED] == len(self._status)

    @property
    def all_ended_records(self) -> bool:
        """Whether no task will process another record.

        A final checkpoint is then due at once (MISSION E3).
        """
        waiting = self._counts[TaskStatus.WAITING_FOR_FINAL_CHECKPOINT]
        return waiting + self._counts[TaskStatus.FINISHED] == len(self._status)

    @property
    def all_started(self) -> bool:
        """Whether no task of the attempt is still initializing."""
        return not self._counts[TaskStatus.INITIALIZING]

    @property
    def can_be_checkpointed(self) -> bool:
        """Whether some task can be triggered and all that cannot are FINISHED (MISSION A4)."""
        triggerable = sum(n for status, n in self._counts.items() if status.can_be_triggered)
        return triggerable > 0 and triggerable + self._counts[TaskStatus.FINISHED] == len(
            self._status
        )

    @property
    def is_closing(self) -> bool:
        """Whether a task is about to finish, and would decline a checkpoint (PROTOCOL P32)."""
        return bool(self._closing)

    @property
    def has_caught_up(self) -> bool:
        """Whether some task has read what was available, and no source is left to be read.

        The records of bounded sources have ended.
        """
        ended = (TaskStatus.WAITING_FOR_FINAL_CHECKPOINT, TaskStatus.FINISHED)
        return bool(self._caught_up) and all(
            vertex in self._caught_up or status in ended
            for vertex, status in self._status.items()
            if not self.producers.get(vertex)
        )

    @property
    def not_ready(self) -> tuple[VertexId, ...]:
        """The tasks because of which no checkpoint can be taken; all if all are FINISHED."""
        late = tuple(
            vertex
            for vertex, status in self._status.items()
            if not (status.can_be_triggered or status is TaskStatus.FINISHED)
            or vertex in self._closing
        )
        return late or tuple(self._status)

    @property
    def last_to_wait(self) -> VertexId | None:
        """The task that was the last to start waiting for a final checkpoint; None if none waits.

        A checkpoint that covers it covers the others too, since they were already waiting when the
        checkpoint was triggered.
        """
        return next(reversed(self._needs_final_checkpoint), None)

    def operators(self, vertex: VertexId) -> tuple[OperatorState, ...]:
        """The operators of a vertex, from source to sinks."""
        return self._operators[vertex]

    def finished_state(self, vertex: VertexId) -> TaskState:
        """The metadata entry of a FINISHED task, at its last known position (MISSION D4)."""
        known = self._fingerprints.get(vertex, {})
        operators = tuple(
            replace(o, fully_finished=True, fingerprint=known.get(o.operator_id, o.fingerprint))
            for o in self._operators[vertex]
        )
        inputs = self.producers.get(vertex, ())
        position = self._positions.get(vertex, -1)
        return TaskState(vertex=vertex, position=position, operators=operators, inputs=inputs)

    def receivers(self, vertices: tuple[VertexId, ...]) -> tuple[VertexId, ...]:
        """Those of ``vertices`` that a message can reach; none once the tasks are being stopped."""
        return tuple(v for v in vertices if self._live and not has_ended(self._status[v]))

    def begin(self, attempt: int, states: Mapping[VertexId, TaskState]) -> None:
        """Start an attempt: each task not fully finished in ``states`` initializes (D5)."""
        invariant(
            self.phase is AttemptPhase.BEGINNING, f"attempt {attempt} started without a request"
        )
        invariant(attempt > self._attempt, f"attempt {attempt} follows attempt {self._attempt}")
        self._attempt = attempt
        self.phase = AttemptPhase.UP
        self._live = True
        self._closing.clear()
        self._caught_up.clear()
        self._needs_final_checkpoint.clear()
        finished = {vertex for vertex, state in states.items() if state.fully_finished}
        self._positions = {vertex: state.position for vertex, state in states.items()}
        self._fingerprints = {vertex: _fingerprints(state) for vertex, state in states.items()}
        for vertex in self._status:
            self._status[vertex] = (
                TaskStatus.FINISHED if vertex in finished else TaskStatus.INITIALIZING
            )
        self._counts = Counter(self._status.values())

    def stop(self) -> None:
        """Send no more messages to the tasks."""
        self._live = False
        self._closing.clear()
        self._caught_up.clear()
        self._needs_final_checkpoint.clear()

    def set_status(self, vertex: VertexId, status: TaskStatus) -> None:
        """Record the status that a task reported; a task that has ended keeps its status."""
        invariant(vertex in self._status, f"the job has no task {vertex!r}")
        if has_ended(self._status[vertex]):
            return
        self._counts[self._status[vertex]] -= 1
        self._counts[status] += 1
        self._status[vertex] = status
        if has_ended(status):
            self._closing.discard(vertex)
        if status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT and self._live:
            self._needs_final_checkpoint[vertex] = None
        else:
            self._needs_final_checkpoint.pop(vertex, None)

    def caught_up(self, vertex: VertexId) -> None:
        """The task has read what was available when the attempt began."""
        self._caught_up.add(vertex)

    def closing(self, vertex: VertexId) -> None:
        """The task takes no more checkpoints."""
        if not has_ended(self._status[vertex]):
            self._closing.add(vertex)

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """A checkpoint or savepoint completed: note its positions."""
        self._positions = {task.vertex: task.position for task in checkpoint.tasks}
        self._fingerprints = {task.vertex: _fingerprints(task) for task in checkpoint.tasks}

    def released(self, vertices: frozenset[VertexId]) -> None:
        """Release ``vertices``: a checkpoint that covers the end of their records has completed.

        They commit and finish.
        """
        for vertex in vertices:
            self._needs_final_checkpoint.pop(vertex, None)

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        counts = Counter(self._status.values())
        invariant(
            all(self._counts[status] == counts[status] for status in TaskStatus),
            "task counts are wrong",
        )
        for vertex in self._closing:
            invariant(
                self._live and not has_ended(self._status[vertex]),
                f"task {vertex!r} is {self._status[vertex].name}, but is marked as closing",
            )
        for vertex in self._needs_final_checkpoint:
            invariant(
                self._live and self._status[vertex] is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
                f"task {vertex!r} is {self._status[vertex].name}, but is marked as needing a"
                " final checkpoint",
            )


def _fingerprints(task: TaskState) -> Fingerprints:
    return {
        operator.operator_id: operator.fingerprint
        for operator in task.operators
        if operator.fingerprint is not None
    }
