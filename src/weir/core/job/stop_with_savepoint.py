"""Stop with savepoint as a state machine (MISSION E4, PROTOCOL P34).

Modelled on Flink's ``StopWithSavepointTerminationManager``::

    WAITING_FOR_RECORD ──> WAITING_FOR_SAVEPOINT ──> SAVEPOINT_CREATED ──> ENDING ──> ENDED
          └──────────────────────┴──────────────────────────┴────────────────┴──────> FAILED

Before it starts, the job master has stopped the scheduler and aborted pending checkpoints. It waits
for a checkpoint whose record is being written, takes the savepoint, waits until every task has
committed it and is FINISHED, and records the end. Each request for the stop is answered once, in
ENDED or in FAILED, and all get the same answer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from weir.core.config import RetainExternalized
from weir.core.messages.job import AnswerRequest, RequestKind, SnapshotRequested
from weir.core.status import Goal, JobStatus, next_state
from weir.core.types import CompletedCheckpoint, VertexId
from weir.errors import invariant

#: The answer to a savepoint request if neither it nor the configuration gives a directory.
NO_SAVEPOINT_DIRECTORY = (
    "No savepoint was taken: pass a target directory in the request or set"
    " execution.checkpointing.savepoint-dir."
)


class StopState(enum.Enum):
    """The state of the stop."""

    WAITING_FOR_RECORD = "WAITING_FOR_RECORD"
    WAITING_FOR_SAVEPOINT = "WAITING_FOR_SAVEPOINT"
    SAVEPOINT_CREATED = "SAVEPOINT_CREATED"
    ENDING = "ENDING"
    ENDED = "ENDED"
    FAILED = "FAILED"


STOP_TRANSITIONS: dict[StopState, frozenset[StopState]] = {
    StopState.WAITING_FOR_RECORD: frozenset({StopState.WAITING_FOR_SAVEPOINT, StopState.FAILED}),
    StopState.WAITING_FOR_SAVEPOINT: frozenset({StopState.SAVEPOINT_CREATED, StopState.FAILED}),
    StopState.SAVEPOINT_CREATED: frozenset({StopState.ENDING, StopState.FAILED}),
    StopState.ENDING: frozenset({StopState.ENDED, StopState.FAILED}),
    StopState.ENDED: frozenset(),
    StopState.FAILED: frozenset(),
}


class StopWithSavepoint:
    """One stop in progress, and the requests that asked for it."""

    def __init__(self, *, request: str, target: str, drain: bool) -> None:
        self._state = StopState.WAITING_FOR_RECORD
        #: Law: not empty; answered when the state is ENDED or FAILED, and never again.
        self._requests = [request]
        self._target = target
        self._drain = drain
        #: Set from SAVEPOINT_CREATED on.
        self._savepoint: CompletedCheckpoint | None = None
        #: In SAVEPOINT_CREATED, in monotonic ms.
        self._deadline_ms: int | None = None

    @property
    def state(self) -> StopState:
        """The state of the stop."""
        return self._state

    @property
    def target(self) -> str:
        """Parent directory of the savepoint."""
        return self._target

    @property
    def drain(self) -> bool:
        """Whether every window and timer fires before the savepoint."""
        return self._drain

    @property
    def savepoint_path(self) -> str | None:
        """The path of the savepoint with which the job ends, once it is complete."""
        return None if self._savepoint is None else self._savepoint.external_path

    @property
    def deadline_ms(self) -> int | None:
        """When the tasks must have committed and finished, in monotonic ms.

        None except in SAVEPOINT_CREATED.
        """
        return self._deadline_ms if self._state is StopState.SAVEPOINT_CREATED else None

    def ask(self, event: SnapshotRequested) -> str | None:
        """Handle a user's request during the stop; returns the reason if it is refused.

        A request for the same stop joins this one and gets its answer; any other is refused.
        """
        if event.kind is not RequestKind.STOP:
            return "The job is already being stopped with a savepoint: wait until it has stopped."
        if event.drain != self._drain:
            how = "with" if self._drain else "without"
            return f"The job is already being stopped {how} draining: wait until it has stopped."
        self._requests.append(event.request)
        return None

    def savepoint_requested(self) -> None:
        """No record is being written any more; the savepoint was requested."""
        self._move(StopState.WAITING_FOR_SAVEPOINT)

    def savepoint_created(self, savepoint: CompletedCheckpoint, deadline_ms: int) -> None:
        """The savepoint is complete; tasks must commit it and finish by ``deadline_ms``.

        ``deadline_ms`` is on the monotonic clock.
        """
        self._savepoint = savepoint
        self._deadline_ms = deadline_ms
        self._move(StopState.SAVEPOINT_CREATED)

    def tasks_finished(self) -> None:
        """Every task is FINISHED; the job's end is being recorded."""
        self._move(StopState.ENDING)

    def end(self) -> list[AnswerRequest]:
        """The job has ended with the savepoint."""
        self._move(StopState.ENDED)
        return [
            AnswerRequest(request=request, checkpoint=self._savepoint) for request in self._requests
        ]

    def fail(self, message: str) -> list[AnswerRequest]:
        """The job did not end with the savepoint; if one was taken, the answer names it."""
        self._move(StopState.FAILED)
        if self._savepoint is not None:
            message = (
                f"Created a savepoint at {self._savepoint.external_path}, but the job did not"
                f" stop: {message}"
            )
        else:
            message = f"The job was not stopped with a savepoint: {message}"
        return [AnswerRequest(request=request, failure=message) for request in self._requests]

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        created = (StopState.SAVEPOINT_CREATED, StopState.ENDING, StopState.ENDED)
        if self._state in created:
            invariant(
                self._savepoint is not None, f"stop is {self._state.name} without a savepoint"
            )
        invariant(self._requests, "stop without a request")

    def _move(self, target: StopState) -> None:
        self._state = next_state(STOP_TRANSITIONS, "stop-with-savepoint", self._state, target)


def refuse_snapshot(
    status: JobStatus, goal: Goal, failure: str | None, retention: RetainExternalized
) -> str:
    """The answer to a snapshot request of a job that is not running, with what works instead.

    ``failure``: why the job failed last.
    """
    if goal not in (Goal.RUN, Goal.RESTART):
        return f"The job is {status.name} and about to end: no more snapshots can be taken."
    if status is JobStatus.CREATED:
        return "The job is CREATED and has not started yet: retry once it is RUNNING."
    return (
        f"The job is {status.name}, so no snapshot can be taken: retry once it is RUNNING, or end"
        " it with 'weir cancel', which"
        f" {'deletes' if retention.deletes_on_cancellation else 'keeps'} its completed"
        f" checkpoints. It failed because: {failure}"
    )


def overdue(timeout_ms: int, late: Iterable[VertexId]) -> str:
    """The failure of a job whose tasks did not finish ``timeout_ms`` after its stop's savepoint."""
    return (
        f"The job did not end within {timeout_ms} ms after the savepoint of its stop completed:"
        f" these tasks have not committed and closed their sinks: {', '.join(map(repr, late))}."
    )
