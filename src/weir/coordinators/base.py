"""``OperatorCoordinator``: a part of an operator that runs in the driver, once for all of its
subtasks (MISSION C1).

A coordinator and the subtasks of its operator tell each other events. Weir sees to it that both
sides agree after every failure: an event that was sent before the coordinator's snapshot for a
checkpoint is handled by the subtask before its own snapshot for the same checkpoint, one that was
sent after it is not (PROTOCOL P2).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from weir.core.types import OperatorId, Payload


class CoordinatorContext(Protocol):
    """What a coordinator may ask for. Everything but ``run_in_coordinator`` is called on the
    coordinator's own thread."""

    @property
    def operator_id(self) -> OperatorId:
        """The operator that is coordinated."""
        ...

    @property
    def current_parallelism(self) -> int:
        """How many subtasks the operator has in this attempt."""
        ...

    def send_event(self, subtask: int, event: Payload) -> None:
        """Send an event, JSON values, to one subtask. Events arrive in the order in which they are
        sent, each exactly once in the history that counts. A subtask handles it before the records
        of its next batch; one is forced if it rests."""
        ...

    def fail_job(self, message: str) -> None:
        """The job cannot go on like this: it is restored from its newest checkpoint."""
        ...

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        """Run a short function on the coordinator's thread, after all that waits. From any thread;
        nothing happens if the job was restored meanwhile."""
        ...

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run something that blocks beside the coordinator, and come back with
        ``then(result, error)``."""
        ...

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Run a function on the coordinator's thread after so long, unless the job is restored
        before."""
        ...


class OperatorCoordinator(abc.ABC):
    """Derive a coordinator from it, and hand an instance to ``Stream.process``.

    Calls never overlap, and come on one thread of the coordinator's own: one that is slow holds up
    nothing but itself, and the checkpoints that wait for its snapshot. An exception fails the job,
    which is then restored from its newest checkpoint.
    """

    def start(self, context: CoordinatorContext) -> None:
        """Called once in a driver, before anything else."""
        self.context = context

    def close(self) -> None:
        """The driver ends: give back what is held. Not called if it is killed."""
        return

    @abc.abstractmethod
    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """A subtask has sent an event. Each counts once: what this call changes and sends is in the
        same checkpoints as the fact that the event was handled (MISSION C7)."""

    def handle_request(self, request: Payload) -> Payload | None:
        """Somebody outside of the job asks for something: ``weir send``, or REST. What is returned
        is the answer, which is given once a completed checkpoint has what the request has changed:
        it survives whatever comes then. A request that is refused raises ``ValueError``,
        ``TypeError`` or ``LookupError``, before anything has changed."""
        raise ValueError(f"{type(self).__name__} takes no requests: {request}")

    @abc.abstractmethod
    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload | None:
        """The coordinator's state as JSON values, or None for nothing. It must not be changed
        afterwards."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable. Ids grow; a call can be missing after a failure."""
        return

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete."""
        return

    @abc.abstractmethod
    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Called at the begin of every attempt: forget all, and go on from the state that was
        returned for this checkpoint (None if there was none), or from the begin (both None). Events
        that were sent later never arrived."""

    def subtask_reset(self, subtask: int, checkpoint_id: int | None) -> None:
        """One subtask alone went back to a checkpoint. Not under Spark, where all subtasks of a
        query fail together and ``reset_to_checkpoint`` is called (PROTOCOL P39)."""
        return

    def execution_attempt_ready(self, subtask: int, attempt: int) -> None:
        """A subtask runs. Events that are sent before wait for it."""
        return

    def execution_attempt_failed(self, subtask: int, attempt: int, message: str) -> None:
        """A subtask failed; events that it had not handled for good by the newest completed
        checkpoint are lost to it."""
        return
