"""Which tasks take part in a checkpoint (Flink's ``CheckpointPlan``, FLIP-147).

1. Running tasks without a running producer are *triggered*: sources, and tasks whose producers are
   all FINISHED. A task that waits for its final checkpoint counts as running (PROTOCOL P31).
2. Every running task is *waited for*: those that are not triggered receive the barrier.
3. A FINISHED task takes no part: the completed checkpoint marks all its operators as fully finished
   (MISSION D1, D4).
4. While a task has any other status, no checkpoint can be taken.

No operator is partly finished. A task is one query, which ends as a whole, so all of its operators
are finished or none is: a reader that has nothing left to read still runs in each batch, with its
state, until all readers have ended. A restore at another parallelism redistributes the states of
all of them. So no checkpoint is refused because of union list state, as in Flink
(``PartialFinishingNotSupportedByStateException``): every subtask is there to give its part.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.core.execution import Execution
from weir.core.types import TaskStatus, VertexId


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """The role of each task in one checkpoint, fixed when its tasks are triggered."""

    tasks_to_trigger: tuple[VertexId, ...]
    tasks_to_wait_for: tuple[VertexId, ...]
    finished_tasks: tuple[VertexId, ...]
    #: Those of ``tasks_to_wait_for`` that were waiting for their final checkpoint, which is this
    #: checkpoint (PROTOCOL P29).
    waiting_tasks: frozenset[VertexId]

    def has_tasks_of(self, other: CheckpointPlan) -> bool:
        """Whether the same tasks are triggered and waited for."""
        return (self.tasks_to_trigger, self.tasks_to_wait_for) == (
            other.tasks_to_trigger,
            other.tasks_to_wait_for,
        )


def calculate_plan(execution: Execution) -> CheckpointPlan | None:
    """The plan for the tasks as they are now.

    None if a required task does not run (MISSION A4), or is about to finish.
    """
    if not execution.can_be_checkpointed or execution.is_closing:
        return None
    statuses, producers, finished = execution.statuses, execution.producers, TaskStatus.FINISHED
    running = tuple(v for v, status in statuses.items() if status is not finished)
    return CheckpointPlan(
        tasks_to_trigger=tuple(
            v for v in running if all(statuses[p] is finished for p in producers.get(v, ()))
        ),
        tasks_to_wait_for=running,
        finished_tasks=tuple(v for v, status in statuses.items() if status is finished),
        waiting_tasks=frozenset(
            v for v in running if statuses[v] is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
        ),
    )
