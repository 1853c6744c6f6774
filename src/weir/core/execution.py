"""The tasks of the running attempt as the job master sees them (what is left of Flink's
``ExecutionGraph``).

The job master is the only writer; the checkpoint coordinator reads it to plan a checkpoint and to
know whom to tell.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from weir.core.types import CompletedCheckpoint, OperatorState, TaskState, TaskStatus, VertexId
from weir.errors import invariant

_ENDED = frozenset({TaskStatus.FINISHED, TaskStatus.FAILED, TaskStatus.CANCELED})


class AttemptPhase(enum.Enum):
    """How far the newest attempt is."""

    #: Its tasks do not exist, or exist no more.
    NONE = "NONE"
    #: ``BeginAttempt`` is under way.
    BEGINNING = "BEGINNING"
    #: Its tasks exist.
    UP = "UP"
    #: ``StopTasks`` is under way.
    STOPPING = "STOPPING"


class Execution:
    """Attempt number, and the status of every task in it."""

    def __init__(
        self,
        vertices: Mapping[VertexId, tuple[OperatorState, ...]],
        producers: Mapping[VertexId, tuple[VertexId, ...]],
    ) -> None:
        invariant(vertices, "a job has at least one vertex")
        self._operators = dict(vertices)
        #: The tasks whose channels a task reads.
        self.producers = MappingProxyType(dict(producers))
        #: 0 before the first attempt began.
        self._attempt = 0
        self.phase = AttemptPhase.NONE
        self._status = dict.fromkeys(self._operators, TaskStatus.INITIALIZING)
        #: How many tasks are in each status. Law: what counting ``_status`` gives.
        self._counts = Counter(self._status.values())
        #: Whether messages may go to the tasks: from the begin of the attempt until they are told
        #: to stop.
        self._live = False
        #: Tasks whose records are all processed, and that no checkpoint completed since covers
        #: (PROTOCOL P29), in the order in which they began to wait.
        self._needs_final_checkpoint: dict[VertexId, None] = {}

    @property
    def attempt(self) -> int:
        """The number of the running attempt, or of the last one that ran."""
        return self._attempt

    @property
    def live(self) -> bool:
        """Whether messages may go to the tasks."""
        return self._live

    @property
    def tasks_up(self) -> bool:
        """Whether the attempt's tasks exist: from ``AttemptBegan`` to ``TasksStopped``."""
        return self.phase in (AttemptPhase.UP, AttemptPhase.STOPPING)

    @property
    def statuses(self) -> Mapping[VertexId, TaskStatus]:
        """The status of every task, in the order of the job graph."""
        return MappingProxyType(self._status)

    @property
    def all_finished(self) -> bool:
        """Whether every task is FINISHED, so that the job is."""
        return self._counts[TaskStatus.FINISHED] == len(self._status)

    @property
    def all_ended_records(self) -> bool:
        """Whether no task will process another record (MISSION E3: a final checkpoint is due at
        once)."""
        waiting = self._counts[TaskStatus.WAITING_FOR_FINAL_CHECKPOINT]
        return waiting + self._counts[TaskStatus.FINISHED] == len(self._status)

    @property
    def all_started(self) -> bool:
        """Whether no task of the attempt is initializing any more."""
        return not self._counts[TaskStatus.INITIALIZING]

    @property
    def can_be_checkpointed(self) -> bool:
        """Whether there is a task to trigger, and every other one that cannot be is FINISHED
        (MISSION A4)."""
        triggerable = sum(n for status, n in self._counts.items() if status.can_be_triggered)
        return triggerable > 0 and triggerable + self._counts[TaskStatus.FINISHED] == len(
            self._status
        )

    @property
    def last_to_wait(self) -> VertexId | None:
        """Of the tasks that need a final checkpoint, the one that began to wait last; None if there
        is none.

        A checkpoint that covers it covers all of them, since they were waiting already when it was
        triggered.
        """
        return next(reversed(self._needs_final_checkpoint), None)

    def operators(self, vertex: VertexId) -> tuple[OperatorState, ...]:
        """The operators of a vertex, from source to sinks."""
        return self._operators[vertex]

    def finished_state(self, vertex: VertexId, last: Mapping[VertexId, int]) -> TaskState:
        """What the metadata says of a task that is FINISHED (MISSION D4). ``last`` are the
        positions in the newest completed checkpoint."""
        operators = tuple(
            OperatorState(operator_id=o.operator_id, name=o.name, fully_finished=True)
            for o in self._operators[vertex]
        )
        inputs = self.producers.get(vertex, ())
        position = last.get(vertex, -1)
        return TaskState(vertex=vertex, position=position, operators=operators, inputs=inputs)

    def receivers(self, vertices: tuple[VertexId, ...]) -> tuple[VertexId, ...]:
        """Those of ``vertices`` that a message can reach: none once the tasks are told to stop."""
        return tuple(v for v in vertices if self._live and self._status[v] not in _ENDED)

    def begin(self, attempt: int, restored: CompletedCheckpoint | None) -> None:
        """A new attempt: each task initializes, unless it was fully finished in ``restored``
        (MISSION D5)."""
        invariant(self.phase is AttemptPhase.BEGINNING, f"attempt {attempt} began unasked")
        invariant(attempt > self._attempt, f"attempt {attempt} follows attempt {self._attempt}")
        self._attempt = attempt
        self.phase = AttemptPhase.UP
        self._live = True
        self._needs_final_checkpoint.clear()
        tasks = () if restored is None else restored.tasks
        finished = {task.vertex for task in tasks if task.fully_finished}
        for vertex in self._status:
            self._status[vertex] = (
                TaskStatus.FINISHED if vertex in finished else TaskStatus.INITIALIZING
            )
        self._counts = Counter(self._status.values())

    def stop(self) -> None:
        """No message may go to the tasks any more."""
        self._live = False
        self._needs_final_checkpoint.clear()

    def set_status(self, vertex: VertexId, status: TaskStatus) -> None:
        """A task reported its status; a task that has ended stays as it ended."""
        invariant(vertex in self._status, f"the job has no task {vertex!r}")
        if self._status[vertex] in _ENDED:
            return
        self._counts[self._status[vertex]] -= 1
        self._counts[status] += 1
        self._status[vertex] = status
        if status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT and self._live:
            self._needs_final_checkpoint[vertex] = None
        else:
            self._needs_final_checkpoint.pop(vertex, None)

    def released(self, vertices: frozenset[VertexId]) -> None:
        """A checkpoint that was triggered while ``vertices`` waited has completed: they commit and
        finish."""
        for vertex in vertices:
            self._needs_final_checkpoint.pop(vertex, None)

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        counts = Counter(self._status.values())
        invariant(
            all(self._counts[status] == counts[status] for status in TaskStatus),
            "tasks are miscounted",
        )
        for vertex in self._needs_final_checkpoint:
            invariant(
                self._live and self._status[vertex] is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT,
                f"task {vertex!r} is {self._status[vertex].name} but needs a final checkpoint",
            )
