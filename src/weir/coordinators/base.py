"""``OperatorCoordinator``: the part of an operator that runs in the driver (MISSION C1).

All subtasks of the operator exchange events with one coordinator. Weir ensures that
both sides agree after every failure: an event sent before the coordinator's snapshot for a
checkpoint is handled by the subtask before its own snapshot for that checkpoint; an event sent
after it is not (PROTOCOL P2).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

from weir.core.types import OperatorId, Payload

#: A coordinator's answer to a checkpoint: its state, or a future of it. None is no state.
CoordinatorSnapshot: TypeAlias = Payload | Future[Payload] | Future[Payload | None] | None


class DriverContext(Protocol):
    """The services available to what runs in the driver: a coordinator, or a split enumerator.

    All members except ``run_in_coordinator`` are used on the coordinator's own thread. Functions
    for that thread do not run if the job is restored first.
    """

    @property
    def operator_id(self) -> OperatorId:
        """The coordinated operator."""
        ...

    @property
    def current_parallelism(self) -> int:
        """The number of the operator's subtasks in this attempt."""
        ...

    def fail_job(self, message: str) -> None:
        """Fail the job; it is restored from its newest checkpoint."""
        ...

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        """Queue a short function to run on the coordinator's thread. From any thread."""
        ...

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run blocking work on another thread, then ``then(result, error)`` on its own."""
        ...

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Run a function on the coordinator's thread after ``delay_ms`` milliseconds."""
        ...


class CoordinatorContext(DriverContext, Protocol):
    """The services available to a coordinator."""

    def send_event(self, subtask: int, event: Payload) -> None:
        """Send an event, a map of JSON values, to one subtask.

        Events arrive in the order in which they are sent, each with exactly-once effect on state. A
        subtask handles an event before the records of its next batch; an idle subtask gets a batch
        for it.
        """
        ...


class SubtaskGateway(Protocol):
    """Sends events to one attempt of one subtask. Used on the coordinator's own thread."""

    @property
    def subtask(self) -> int:
        """The subtask's index."""
        ...

    @property
    def attempt(self) -> int:
        """The attempt that it sends to."""
        ...

    def send_event(self, event: Payload) -> Future[None]:
        """Send an event like ``CoordinatorContext.send_event``, and see how it fares.

        The future is completed, on the coordinator's thread, when the batch in which the subtask
        handled the event has ended. It fails with a ``CoordinatorError`` if the attempt ends or the
        operator finishes first, and does so before ``execution_attempt_failed``. The restored
        coordinator decides by its state what to send again (MISSION C5).
        """
        ...


class OperatorCoordinator(abc.ABC):
    """Base class of coordinators; pass an instance to ``Stream.process``.

    Calls never overlap, and never run on the job's main thread: a slow coordinator delays only
    itself, and the checkpoints that wait for its snapshot. An exception fails the job, which is
    then restored from its newest checkpoint.
    """

    #: Keys of its state that a reset or a snapshot may change, such as a count of calls. The
    #: simulator compares the others with the restored state.
    changed_by_reset: Sequence[str] = ()

    def start(self, context: CoordinatorContext) -> None:
        """Called once in a driver, before anything else."""
        self.context = context

    def close(self) -> None:
        """The driver ends: release resources. Not called if the driver is killed."""
        return

    @abc.abstractmethod
    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Handle an event from a subtask.

        Each event takes effect once: the changes that this call makes and the events it sends are
        in the same checkpoints as the fact that the event was handled (MISSION C7).
        """

    def handle_request(self, request: Payload) -> Payload | None:
        """Handle a request from outside the job (``weir send`` or REST), and return the answer.

        The answer is delivered once a completed checkpoint contains the changes of the request, so
        they survive any later failure. To refuse a request, raise ``ValueError``, ``TypeError`` or
        ``LookupError`` before changing anything.
        """
        raise ValueError(f"{type(self).__name__} does not accept requests: {request}")

    @abc.abstractmethod
    def checkpoint_coordinator(self, checkpoint_id: int) -> CoordinatorSnapshot:
        """Return the coordinator's state as a map of JSON values, None for no state, or a future.

        With a future, the coordinator takes other calls until it completes it. The snapshot is
        taken at that moment (MISSION C3): the result contains every event sent and handled before,
        and no later event. So complete it where no other call can come in between: on the
        coordinator's thread (``call_async``, ``run_in_coordinator``), as the last act of a call.
        Another thread must exclude calls by a lock; if it completes the future while the
        coordinator handles an operator's event, the checkpoint is declined, since either order
        could be meant.

        A future that fails, or is cancelled, fails only this checkpoint, which counts as failed. If
        a future is never completed, the checkpoint expires; completing it later has no effect. An
        exception from the call itself fails the job, as from every other call.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable. Ids grow; a call can be lost in a failure."""
        return

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete."""
        return

    @abc.abstractmethod
    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Discard everything and resume from the state returned for this checkpoint.

        Called at the start of every attempt. ``state`` is None if the checkpoint has none for this
        coordinator; both are None for a start without a checkpoint. Events sent after the
        checkpoint never arrived.
        """

    def subtask_reset(self, subtask: int, checkpoint_id: int | None) -> None:
        """A single subtask was reset to a checkpoint.

        Does not happen under Spark, where all subtasks of a query fail together and
        ``reset_to_checkpoint`` is called (PROTOCOL P39).
        """
        return

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:
        """A subtask is running; ``gateway`` sends to it. Events sent earlier have waited for it."""
        return

    def execution_attempt_failed(self, subtask: int, attempt: int, message: str) -> None:
        """A subtask failed. Events whose handling is in no completed checkpoint are lost."""
        return
