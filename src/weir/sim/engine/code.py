"""The code of a simulated job: what one driver's process has loaded, and where queries come from.

Weir's own jobs (``own/code.py``) and a user's pipeline (``user/``) both look like this to
``driver.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from weir.coordinators.base import OperatorCoordinator
from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    CompletedCheckpoint,
    JobId,
    OperatorId,
    OperatorState,
    VertexId,
)
from weir.durable.hooks import CheckpointListener, MasterHook
from weir.runtime.concurrency import Clock
from weir.runtime.ports import AttemptStart, PostToTask
from weir.sim.engine.disk import ProcessFileSystem
from weir.sim.engine.faults import Fault
from weir.sim.engine.loop import Loop, Process, SimWaits
from weir.sinks.base import Sink

#: The directory of the tables on the simulated disk.
TABLES_DIRECTORY = "/tables"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The process of one driver."""

    number: int
    job_id: JobId
    loop: Loop
    process: Process
    fs: ProcessFileSystem
    #: The file system as executors see it, with their process, which may outlive the driver.
    executors: ProcessFileSystem
    waits: SimWaits
    clock: Clock
    random: Random
    #: Whether a fault strikes now.
    strikes: Mapping[Fault, Callable[[], bool]]
    #: Whether user code in a checkpoint fails now.
    hook_fails: Callable[[], bool]
    #: Gets the text of a broken law.
    broken: Callable[[str], None]


class Queries(Protocol):
    """Makes the queries of one driver, for its ``SimTaskPort``."""

    def begin_attempt(self, port: Any, start: AttemptStart) -> None:
        """An attempt begins."""
        ...

    def make(self, port: Any, plan: TaskPlan, attempt: int, post: PostToTask) -> Any:
        """The query of one task."""
        ...


@dataclass(frozen=True, kw_only=True)
class DriverCode:
    """What one driver has loaded."""

    plans: Mapping[VertexId, TaskPlan]
    sinks: Mapping[OperatorId, Sink]
    hooks: Sequence[MasterHook]
    listeners: Mapping[VertexId, Sequence[CheckpointListener]]
    coordinators: Mapping[OperatorId, OperatorCoordinator]
    coordinated: Mapping[OperatorId, CoordinatedOperator]
    queries: Queries
    #: Gives sinks what they need of a Spark session; None: there is none.
    session: Callable[[], Any] | None = None


class Code(Protocol):
    """The code of a job, which every driver loads for itself."""

    def load(self, environment: Environment) -> DriverCode:
        """Load it in a new process."""
        ...


class RowLaws(Protocol):
    """What the tables of a job must show, and what its checkpoints must hold."""

    def disagreement(self, checkpoint: CompletedCheckpoint) -> str | None:
        """What is wrong with the state in a completed checkpoint; None if nothing is."""
        ...

    def incomplete(self, shown: Shown, *, drained: bool) -> str | None:
        """What is wrong with the rows of a job that has finished; None if nothing is.

        After a drain its input may have ended early.
        """
        ...

    def behind(self, shown: Shown) -> str | None:
        """What is wrong with the rows of a job that was stopped with a checkpoint; else None."""
        ...

    def gaps(self, shown: Shown) -> str | None:
        """What is wrong with the rows of a job that was cancelled; None if nothing is."""
        ...


#: The rows that a table shows; None if nobody knows which it should show.
Shown = Callable[[OperatorId], Sequence[object] | None]


def operators_of(plans: Mapping[VertexId, TaskPlan]) -> dict[VertexId, tuple[OperatorState, ...]]:
    """The operators of each vertex."""
    return {name: plan.operators for name, plan in plans.items()}
