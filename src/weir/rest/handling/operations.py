"""The operations that requests have triggered (Flink: asynchronous operations).

They are kept so that the client can read the outcome: a POST answers at once with a trigger id, and
the client polls that id. Rules:

1. A POST that repeats a trigger id joins the operation with that id, so that a client may retry
   when it does not know whether the first request arrived.
2. A finished operation stays readable for ``rest.async.store-duration``.
3. The store is bounded: beyond ``MAX_OPERATIONS`` the oldest finished operation is forgotten. If
   all are in flight, a new operation is refused, unless it ends the job: those have reserved
   places.
4. Before the server stops, it waits a little for clients to read what has just finished: after a
   stop with savepoint the driver exits, and the client still needs the savepoint's path.

Handlers run on the server's event loop and futures complete on the job's threads, so one lock
guards the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from weir.runtime.concurrency import Clock

#: How many operations are remembered.
MAX_OPERATIONS = 1_000
#: Additional places, reserved for operations that end the job.
RESERVED_OPERATIONS = 100
#: How long after its end an unread operation may delay the server's stop. Clients poll at least
#: every two seconds.
COLLECT_WITHIN_MS = 3_000


class TooManyOperationsError(Exception):
    """Every remembered operation is still in flight. The server answers with 429."""


@dataclass(kw_only=True)
class _Operation:
    future: Future[Any]
    #: On the clock's monotonic scale; None while in flight.
    done_ms: int | None = None
    collected: bool = False


class AsyncOperations:
    """The operations of one server, by kind and trigger id. ``store_duration_ms``: see rule 2."""

    def __init__(self, clock: Clock, store_duration_ms: int) -> None:
        self._clock = clock
        self._store_duration_ms = store_duration_ms
        self._changed = threading.Condition()
        self._operations: dict[tuple[str, str], _Operation] = {}

    def start(
        self,
        kind: str,
        trigger_id: str,
        begin: Callable[[], Future[Any]],
        *,
        ends_job: bool = False,
    ) -> None:
        """Start an operation, or join the operation with this kind and id.

        Raises ``TooManyOperationsError``.
        """
        key = (kind, trigger_id)
        with self._changed:
            self._forget_old()
            if key in self._operations:
                return
            self._make_room(MAX_OPERATIONS + (RESERVED_OPERATIONS if ends_job else 0))
            operation = _Operation(future=begin())
            self._operations[key] = operation
        operation.future.add_done_callback(lambda _: self._done(operation))

    def find(self, kind: str, trigger_id: str) -> Future[Any] | None:
        """The operation's future, or None if it is unknown or forgotten.

        If the operation has finished, it counts as collected from now on.
        """
        with self._changed:
            self._forget_old()
            operation = self._operations.get((kind, trigger_id))
            if operation is None:
                return None
            if operation.future.done():
                operation.collected = True
                self._changed.notify_all()
            return operation.future

    def collect(self, kind: str) -> None:
        """Mark all operations of a kind as collected: their outcome was read in another way."""
        with self._changed:
            for (other, _), operation in self._operations.items():
                if other == kind:
                    operation.collected = True
            self._changed.notify_all()

    def wait_until_collected(self) -> None:
        """Wait, at most ``COLLECT_WITHIN_MS``, until clients have read what has just finished."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._uncollected(), timeout=COLLECT_WITHIN_MS / 1000
            )

    def _uncollected(self) -> bool:
        since_ms = self._clock.now_ms() - COLLECT_WITHIN_MS
        return any(
            not operation.collected
            and operation.done_ms is not None
            and operation.done_ms > since_ms
            for operation in self._operations.values()
        )

    def _done(self, operation: _Operation) -> None:
        with self._changed:
            operation.done_ms = self._clock.now_ms()
            self._changed.notify_all()

    def _forget_old(self) -> None:
        before_ms = self._clock.now_ms() - self._store_duration_ms
        self._operations = {
            key: operation
            for key, operation in self._operations.items()
            if operation.done_ms is None or operation.done_ms >= before_ms
        }

    def _make_room(self, places: int) -> None:
        if len(self._operations) < places:
            return
        finished = next(
            (key for key, operation in self._operations.items() if operation.done_ms is not None),
            None,
        )
        if finished is None:
            raise TooManyOperationsError
        del self._operations[finished]
