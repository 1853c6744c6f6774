"""``CoordinatorRunner``: runs the coordinators of one job, each on its own queue, in strict order.

Each coordinator has its own queue, and at most one thread works on it. So the events that a
coordinator sends are posted before the answer of a snapshot that it takes later, as the protocol
requires (MISSION C3, C8), and a slow coordinator delays no other. Work that is left in the queue
when the job is restored belongs to an ended attempt and is dropped.

A coordinator that answers a checkpoint with a future has taken its snapshot when it completes the
future, on whatever thread. The answer is posted at that moment and not queued: what the coordinator
sends after it must be posted after it, even from the same call.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from weir.coordinators.base import OperatorCoordinator
from weir.coordinators.requests import OpenRequests
from weir.core.messages.coordination import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorFailed,
    CoordinatorSentEvent,
    CoordinatorSnapshotFailed,
    CoordinatorSnapshotTaken,
    EventReceipt,
    HandleOperatorEvent,
    NotifyCoordinator,
    OperatorEventHandled,
    ResetCoordinator,
    SnapshotCoordinator,
    SubtasksFailed,
    SubtasksReady,
)
from weir.core.types import OperatorId, Payload
from weir.errors import CoordinatorError
from weir.json_values import KEPT, read_back
from weir.monitoring.log_lines import place
from weir.runtime.concurrency import RAISED, Waits, Workers
from weir.runtime.failures import cause_of, describe, is_fatal
from weir.runtime.ports import CoordinatorAnswer

_log = logging.getLogger(__name__)

#: How long the end of the driver waits for coordinators to close, in seconds.
_CLOSING_S = 10.0
#: How many ended checkpoints to remember. A snapshot for a forgotten checkpoint is useless.
_REMEMBERED = 64

Post = Callable[[CoordinatorEvent], None]


class CoordinatorRunner:
    """Implements ``weir.runtime.ports.CoordinatorPort``."""

    def __init__(
        self,
        coordinators: Mapping[OperatorId, OperatorCoordinator],
        *,
        workers: Workers,
        waits: Waits,
    ) -> None:
        self._all_closed = waits.event()
        self._coordinators = {
            name: _Coordinated(name, coordinator, workers, waits, self._on_closed)
            for name, coordinator in coordinators.items()
        }

    def submit(self, effect: CoordinatorEffect, post: Post) -> None:
        """Queue an effect for its coordinator, after all earlier effects."""
        self._coordinators[effect.operator].submit(effect, post)

    def request(
        self, operator: OperatorId, request: Payload, answer: Future[CoordinatorAnswer]
    ) -> None:
        """Queue a request from outside the job for an operator's coordinator.

        Raises ``CoordinatorError`` if the operator has no coordinator.
        """
        if operator not in self._coordinators:
            known = ", ".join(self._coordinators) or "none"
            raise CoordinatorError(
                f"The job has no operator {operator!r} with a coordinator; those with a"
                f" coordinator: {known}."
            )
        self._coordinators[operator].request(request, answer)

    def close(self) -> None:
        """Close every coordinator; wait for it, at most ``_CLOSING_S`` seconds in total."""
        for coordinator in self._coordinators.values():
            coordinator.begin_close()
        if self._coordinators:
            self._all_closed.wait(_CLOSING_S)
        for coordinator in self._coordinators.values():
            if not coordinator.closed.is_set():
                _log.warning(
                    "The coordinator of %r did not close within %.0f s.",
                    coordinator.operator_id,
                    _CLOSING_S,
                )

    def _on_closed(self) -> None:
        if all(coordinator.closed.is_set() for coordinator in self._coordinators.values()):
            self._all_closed.set()


class _Coordinated:
    """One coordinator with its queue; also its context."""

    def __init__(
        self,
        name: OperatorId,
        coordinator: OperatorCoordinator,
        workers: Workers,
        waits: Waits,
        on_closed: Callable[[], None],
    ) -> None:
        self._name = name
        self._coordinator = coordinator
        self._workers = workers
        self._waits = waits
        self._lock = waits.lock()
        self._queue: deque[Callable[[], None]] = deque()
        #: Whether a thread is working on the queue.
        self._working = False
        #: The thread that works on the queue, or did last.
        self._thread = 0
        #: The operator's event that the coordinator handles at the moment, until that is posted.
        self._handling: OperatorEventHandled | None = None
        self._started = False
        #: The newest ended checkpoints, completed or aborted.
        self._over: deque[int] = deque(maxlen=_REMEMBERED)
        self.closed = waits.event()
        self._on_closed = on_closed
        #: The current attempt; 0 before the first and after a failure. Work of another attempt is
        #: dropped.
        self._attempt = 0
        self._parallelism = 0
        self._requests = OpenRequests(name)
        #: By receipt, the futures of events that gateways sent and that are not handled for good.
        self._in_flight: dict[int, Future[None]] = {}
        self._last_receipt = 0
        self._post: Post = lambda event: None

    # ---- from the job's main thread

    def submit(self, effect: CoordinatorEffect, post: Post) -> None:
        """Queue an effect.

        A snapshot whose checkpoint has ended by its turn is skipped. Otherwise a coordinator slower
        than the checkpoint timeout would never catch up.
        """
        if isinstance(effect, NotifyCoordinator):
            self._over.append(effect.checkpoint_id)
        self._enqueue(lambda: self._guarded(partial(self._do, effect, post)))

    def request(self, request: Payload, answer: Future[CoordinatorAnswer]) -> None:
        """Queue a request from outside the job. From any thread."""
        self._enqueue(lambda: self._guarded(partial(self._handle_request, request, answer)))

    def begin_close(self) -> None:
        """Queue the close of the coordinator."""
        self._enqueue(self._close)

    # ---- the context

    @property
    def operator_id(self) -> OperatorId:
        """See ``CoordinatorContext``."""
        return self._name

    @property
    def current_parallelism(self) -> int:
        """See ``CoordinatorContext``."""
        return self._parallelism

    def send_event(self, subtask: int, event: Payload) -> None:
        """See ``CoordinatorContext``."""
        self._send(subtask, event, None)

    def send_by_gateway(self, subtask: int, attempt: int, event: Payload) -> Future[None]:
        """See ``SubtaskGateway``."""
        sent: Future[None] = Future()
        if attempt != self._attempt:
            sent.set_exception(self._lost(f"attempt {attempt} of subtask {subtask} has ended"))
            return sent
        self._last_receipt += 1
        self._send(subtask, event, self._last_receipt)
        self._in_flight[self._last_receipt] = sent
        return sent

    def _receive(self, effect: EventReceipt) -> None:
        sent = self._in_flight.pop(effect.receipt, None)
        if sent is None or not sent.set_running_or_notify_cancel():
            return
        if effect.handled:
            sent.set_result(None)
        else:
            sent.set_exception(self._lost("its subtask has ended"))

    def _lose_in_flight(self, why: str) -> None:
        lost, self._in_flight = self._in_flight, {}
        for future in lost.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._lost(why))

    def _lost(self, why: str) -> CoordinatorError:
        return CoordinatorError(f"An event of the coordinator of {self._name!r} was lost: {why}.")

    def _send(self, subtask: int, event: Payload, receipt: int | None) -> None:
        """Post an event.

        Raises ``CoordinatorError`` for a subtask that does not exist, and for an event that JSON
        cannot represent.
        """
        if not 0 <= subtask < self._parallelism:
            raise CoordinatorError(
                f"The coordinator of {self._name!r} sent an event to subtask {subtask}, but the"
                f" operator has subtasks 0 to {self._parallelism - 1}: see"
                " context.current_parallelism."
            )
        self._post(
            CoordinatorSentEvent(
                operator=self._name,
                attempt=self._attempt,
                subtask=subtask,
                payload=self._json(event, "An event of"),
                receipt=receipt,
            )
        )

    def fail_job(self, message: str) -> None:
        """See ``CoordinatorContext``."""
        self._failed(CoordinatorFailed(operator=self._name, attempt=self._attempt, message=message))

    def _failed(self, failed: CoordinatorFailed) -> None:
        self._post(failed)
        self._attempt = 0

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        """See ``CoordinatorContext``."""
        self._in_attempt(self._attempt, function)

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        """See ``CoordinatorContext``."""
        attempt = self._attempt

        def run() -> None:
            try:
                with place(step=self._name):
                    result: Any = work()
                error: BaseException | None = None
            except RAISED as raised:
                result, error = None, raised
            self._in_attempt(attempt, lambda: then(result, error))

        self._workers.submit_aside(run)

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        """See ``CoordinatorContext``."""
        attempt = self._attempt

        def run() -> None:
            self._waits.sleep(delay_ms / 1_000)
            self._in_attempt(attempt, function)

        self._workers.submit_aside(run)

    # ---- the queue

    def _in_attempt(self, attempt: int, function: Callable[[], None]) -> None:
        def run() -> None:
            # 0: it is closed or has failed.
            if attempt and attempt == self._attempt:
                self._guarded(function)

        self._enqueue(run)

    def _enqueue(self, item: Callable[[], None]) -> None:
        with self._lock:
            self._queue.append(item)
            if self._working:
                return
            self._working = True
        self._workers.submit_aside(self._work)

    def _work(self) -> None:
        self._thread = threading.get_ident()
        while True:
            with self._lock:
                if not self._queue:
                    self._working = False
                    return
                item = self._queue.popleft()
            item()

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            with place(step=self._name):
                function()
        except RAISED as error:
            if not self._attempt:
                # The attempt has ended: nobody waits for this.
                _log.warning("The coordinator of %r failed.", self._name, exc_info=True)
            else:
                self._failed(
                    CoordinatorFailed(
                        operator=self._name,
                        attempt=self._attempt,
                        message=describe(error),
                        fatal=is_fatal(error),
                        cause=cause_of(error),
                    )
                )

    def _handle_request(self, request: Payload, future: Future[CoordinatorAnswer]) -> None:
        if not self._attempt:
            self._requests.refuse(
                future, "the job is not running at the moment; try again when it is"
            )
            return
        try:
            request = self._json(request, "A request to")
        except CoordinatorError as error:
            self._requests.refuse(future, describe(error))
            return
        try:
            answer = self._coordinator.handle_request(request)
            answer = None if answer is None else self._json(answer, "An answer of")
        except (ValueError, TypeError, LookupError) as error:
            why = str(error) if isinstance(error, ValueError) else describe(error)
            self._requests.refuse(future, why)
        except Exception as error:
            # The request may have been carried out in part: restoring the job undoes that.
            self._requests.refuse(future, describe(error))
            raise
        else:
            self._requests.handled(answer, future)

    def _close(self) -> None:
        self._attempt = 0
        self._requests.end()
        self._lose_in_flight("the job has ended")
        try:
            if self._started:
                with place(step=self._name):
                    self._coordinator.close()
        except Exception:
            _log.warning("The coordinator of %r could not be closed.", self._name, exc_info=True)
        finally:
            self.closed.set()
            self._on_closed()

    # ---- effects of the job master

    def _do(self, effect: CoordinatorEffect, post: Post) -> None:
        if isinstance(effect, ResetCoordinator):
            self._reset(effect, post)
        elif self._attempt:
            self._handle(effect)

    def _reset(self, effect: ResetCoordinator, post: Post) -> None:
        self._attempt, self._parallelism, self._post = effect.attempt, effect.parallelism, post
        self._lose_in_flight("the job was restored")
        if not self._started:
            self._coordinator.start(self)
            self._started = True
        self._requests.restored(effect.checkpoint_id if effect.own else None)
        self._coordinator.reset_to_checkpoint(effect.checkpoint_id, effect.state)

    def _handle(self, effect: CoordinatorEffect) -> None:
        coordinator, attempt = self._coordinator, self._attempt
        match effect:
            case SnapshotCoordinator(checkpoint_id=n):
                if n not in self._over:
                    self._snapshot(n)
            case HandleOperatorEvent():
                self._handle_event(effect)
            case NotifyCoordinator(checkpoint_id=n, completed=True):
                self._requests.completed(n)
                coordinator.notify_checkpoint_complete(n)
            case NotifyCoordinator(checkpoint_id=n):
                coordinator.notify_checkpoint_aborted(n)
            case SubtasksReady():
                for subtask in range(self._parallelism):
                    gateway = _Gateway(self, subtask, attempt)
                    coordinator.execution_attempt_ready(subtask, attempt, gateway)
            case EventReceipt():
                self._receive(effect)
            case SubtasksFailed(message=message):
                self._lose_in_flight(f"its subtask failed ({message})")
                for subtask in range(self._parallelism):
                    coordinator.execution_attempt_failed(subtask, attempt, message)

    def _handle_event(self, effect: HandleOperatorEvent) -> None:
        self._handling = OperatorEventHandled(
            operator=self._name,
            attempt=self._attempt,
            subtask=effect.subtask,
            number=effect.number,
        )
        try:
            self._coordinator.handle_event_from_operator(
                effect.subtask, self._attempt, effect.payload
            )
            self._handled()
        finally:
            self._handling = None

    def _handled(self) -> None:
        """Post that the event is handled, once."""
        if self._handling is not None:
            self._post(self._handling)
            self._handling = None

    # ---- snapshots

    def _snapshot(self, checkpoint_id: int) -> None:
        attempt = self._attempt
        answer = self._coordinator.checkpoint_coordinator(checkpoint_id)
        # A later answer contains these requests too, and perhaps more.
        self._requests.snapshot(checkpoint_id)
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._answered(checkpoint_id, attempt, done))
        else:
            self._taken(checkpoint_id, attempt, answer)

    def _answered(self, checkpoint_id: int, attempt: int, done: Future[Any]) -> None:
        """The coordinator has completed the future of a snapshot. On any thread."""
        if checkpoint_id in self._over or attempt != self._attempt:
            _log.info(
                "The coordinator of %r completed its snapshot for checkpoint %d too late: the"
                " checkpoint has ended. It is ignored.",
                self._name,
                checkpoint_id,
            )
            return
        if self._handling is not None and threading.get_ident() != self._thread:
            self._refused(
                checkpoint_id,
                attempt,
                "another thread completed its snapshot while it handled an event of its operator,"
                " so nobody knows whether the snapshot contains the event: complete it on the"
                " coordinator's thread, by context.run_in_coordinator",
            )
            return
        try:
            state = done.result()
        except CancelledError:
            self._refused(checkpoint_id, attempt, "its snapshot was cancelled")
        except RAISED as error:
            self._refused(checkpoint_id, attempt, f"its snapshot failed: {describe(error)}")
        else:
            # The call that completed it is handling this event: the snapshot contains it.
            self._handled()
            self._taken(checkpoint_id, attempt, state)

    def _taken(self, checkpoint_id: int, attempt: int, state: Payload | None) -> None:
        try:
            state = None if state is None else self._json(state, "The state of")
        except CoordinatorError as error:
            self._refused(checkpoint_id, attempt, str(error))
            return
        self._post(
            CoordinatorSnapshotTaken(
                operator=self._name, attempt=attempt, checkpoint_id=checkpoint_id, state=state
            )
        )

    def _refused(self, checkpoint_id: int, attempt: int, message: str) -> None:
        self._post(
            CoordinatorSnapshotFailed(
                operator=self._name, attempt=attempt, checkpoint_id=checkpoint_id, message=message
            )
        )

    def _json(self, value: Payload, what: str) -> Payload:
        """The value as JSON reads it back: an equal copy that the coordinator cannot change."""
        try:
            if not isinstance(value, dict):
                raise ValueError(f"it is a {type(value).__name__}, not a map")
            read: Payload = read_back(value)
            return read
        except ValueError as error:
            raise CoordinatorError(
                f"{what} the coordinator of {self._name!r} cannot be stored, since {error}: make"
                f" it a map of {KEPT}."
            ) from error


class _Gateway:
    """Implements ``weir.coordinators.SubtaskGateway``."""

    def __init__(self, coordinated: _Coordinated, subtask: int, attempt: int) -> None:
        self._coordinated = coordinated
        self.subtask = subtask
        self.attempt = attempt

    def send_event(self, event: Payload) -> Future[None]:
        """See ``SubtaskGateway``."""
        return self._coordinated.send_by_gateway(self.subtask, self.attempt, event)
