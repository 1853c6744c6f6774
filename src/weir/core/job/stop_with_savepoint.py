"""Stop with savepoint as a state machine (MISSION E4, PROTOCOL P34).

Modelled on Flink's ``StopWithSavepointTerminationManager``::

    WAITING_FOR_RECORD ──> WAITING_FOR_SAVEPOINT ──> SAVEPOINT_CREATED ──> ENDING ──> ENDED
          └──────────────────────┴──────────────────────────┴────────────────┴──────> FAILED

Before it starts, the job master has stopped the scheduler and aborted pending checkpoints. It waits
for a checkpoint whose record is being written, takes the savepoint, waits until every task has
committed it and is FINISHED, and records the end. Each request for the stop is answered once, in
ENDED or in FAILED, and all get the same answer.

A stop that fails after its trigger is a failover, never a way back: once consumers were notified
that no more records come, nobody could revoke that in order. The restored attempt resumes from the
newest checkpoint.

The savepoint is also a restore point. Once its record is won, its rows are committed, so after a
crash before the end of the job, the job must resume from the savepoint and not from the checkpoint
before it.

A *stop with checkpoint* is the same with a checkpoint of the job in place of the savepoint. The job
ends SUSPENDED, and running its command again resumes it. A job that reads what is available now
(``UntilIdle``) stops so by itself; then nobody is answered. With a drain the job is finished.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from weir.core.checkpoints.request_decider import CheckpointRequest, RequestOrigin
from weir.core.messages.job import AnswerRequest, RequestKind, SnapshotRequested
from weir.core.status import next_state
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


@dataclass(frozen=True, kw_only=True)
class StopWithSavepoint:
    """One stop in progress; each transition returns the next value."""

    #: The users' requests for it; empty if the job stops by itself. Answered in ENDED or in FAILED,
    #: and never again.
    requests: tuple[str, ...]
    #: Parent directory of the savepoint; None: a checkpoint takes its place.
    target: str | None
    #: Whether every window and timer fires before the savepoint.
    drain: bool
    state: StopState = StopState.WAITING_FOR_RECORD
    #: The savepoint, or the checkpoint in its place. Set from SAVEPOINT_CREATED on.
    savepoint: CompletedCheckpoint | None = None
    #: When the tasks must have committed and finished, in monotonic ms. Law: set exactly in
    #: SAVEPOINT_CREATED.
    deadline_ms: int | None = None

    @property
    def savepoint_path(self) -> str | None:
        """The path of the savepoint with which the job ends, once it is complete."""
        if self.savepoint is None or self.target is None:
            return None
        return self.savepoint.external_path

    @property
    def resumes_at(self) -> int | None:
        """The checkpoint with which the job is suspended, once it is complete; None otherwise.

        A job that is drained, or whose input has ended, is finished.
        """
        if self.savepoint is None or self.target is not None or self.savepoint.drained:
            return None
        return self.savepoint.checkpoint_id

    @property
    def request(self) -> CheckpointRequest:
        """What the checkpoint coordinator is asked for."""
        origin = RequestOrigin.STOP_WITH_CHECKPOINT if self.target is None else RequestOrigin.STOP
        return CheckpointRequest(origin=origin, target=self.target, drain=self.drain)

    @property
    def _what(self) -> str:
        return "checkpoint" if self.target is None else "savepoint"

    def refuse(self, event: SnapshotRequested) -> str | None:
        """Why a user's request during the stop is refused; None if it asks for the same stop."""
        same = RequestKind.STOP_WITH_CHECKPOINT if self.target is None else RequestKind.STOP
        if event.kind is not same:
            return (
                f"The job is already being stopped with a {self._what}: wait until it has stopped."
            )
        if event.drain != self.drain:
            how = "with" if self.drain else "without"
            return f"The job is already being stopped {how} draining: wait until it has stopped."
        return None

    def joined_by(self, request: str) -> StopWithSavepoint:
        """Another request for the same stop gets the same answer."""
        return replace(self, requests=(*self.requests, request))

    def savepoint_requested(self) -> StopWithSavepoint:
        """No record is being written any more; the savepoint was requested."""
        return replace(self, state=self._next(StopState.WAITING_FOR_SAVEPOINT))

    def savepoint_created(
        self, savepoint: CompletedCheckpoint, deadline_ms: int
    ) -> StopWithSavepoint:
        """The savepoint is complete; tasks must commit it and finish by ``deadline_ms``.

        ``deadline_ms`` is on the monotonic clock.
        """
        state = self._next(StopState.SAVEPOINT_CREATED)
        return replace(self, state=state, savepoint=savepoint, deadline_ms=deadline_ms)

    def tasks_finished(self) -> StopWithSavepoint:
        """Every task is FINISHED; the job's end is being recorded."""
        return replace(self, state=self._next(StopState.ENDING), deadline_ms=None)

    def ended(self) -> StopWithSavepoint:
        """The job has ended with the savepoint."""
        return replace(self, state=self._next(StopState.ENDED))

    def failed(self) -> StopWithSavepoint:
        """The job does not end with the savepoint."""
        return replace(self, state=self._next(StopState.FAILED), deadline_ms=None)

    def answers(self, failure: str = "") -> list[AnswerRequest]:
        """The answers once it is over. If it failed, they say why, and name a savepoint taken."""
        if self.state is StopState.ENDED:
            return [AnswerRequest(request=r, checkpoint=self.savepoint) for r in self.requests]
        if self.savepoint is not None:
            path = self.savepoint.external_path
            message = f"Created a {self._what} at {path}, but the job did not stop: {failure}"
        else:
            message = f"The job was not stopped with a {self._what}: {failure}"
        return [AnswerRequest(request=request, failure=message) for request in self.requests]

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        created = (StopState.SAVEPOINT_CREATED, StopState.ENDING, StopState.ENDED)
        if self.state in created:
            invariant(self.savepoint is not None, f"stop is {self.state.name} without a savepoint")
        invariant(self.requests or self.target is None, "stop with savepoint without a request")
        waits = self.state is StopState.SAVEPOINT_CREATED
        invariant(
            (self.deadline_ms is not None) == waits, f"stop is {self.state.name} with a deadline"
        )

    def _next(self, target: StopState) -> StopState:
        return next_state(STOP_TRANSITIONS, "stop-with-savepoint", self.state, target)


def overdue(timeout_ms: int, late: Iterable[VertexId]) -> str:
    """The failure of a job whose tasks did not finish ``timeout_ms`` after its stop's snapshot."""
    return (
        f"The job did not end within {timeout_ms} ms after the snapshot of its stop completed:"
        f" these tasks have not committed and closed their sinks: {', '.join(map(repr, late))}."
    )
