"""Requests to the REST server: their bodies as checked values, and the operations they trigger.

Unknown fields of a body are accepted, as Flink's server does.
``FIELDS`` of each says what a body may hold; it is the way out that a refusal names.

**Triggered operations** (Flink: asynchronous operations) are kept until the client has read the
answer. A POST answers at once with a trigger id, and the client polls that id. Rules:

1. A POST that repeats a trigger id joins the operation that it began, so that a client may repeat
   it when it does not know whether the first one arrived.
2. A finished operation stays readable for ``rest.async.store-duration``.
3. The store is bounded: beyond ``MAX_OPERATIONS`` the oldest finished one is forgotten, and if all
   are in flight a new one is refused, unless it ends the job: that has places of its own.
4. A server that stops first waits a little for clients to read what has just finished: after a stop
   with savepoint the driver exits, and the client still has to learn the savepoint's path.

Handlers run on the server's event loop, futures end on the job's threads: one lock guards the
store.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from weir.core.types import CheckpointType
from weir.runtime.concurrency import Clock

#: 32 hexadecimal digits, in either case.
TriggerId = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")]

#: A path as an operating system takes it: not without end, and without a zero byte.
Path = Annotated[str, msgspec.Meta(max_length=4096, pattern="^[^\\x00]*$")]


class SavepointFormat(enum.Enum):
    """What ``flink savepoint -type`` may ask for. Weir has one format, so both are one."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/checkpoints``. An absent type is CONFIGURED; null is none of the three
    and refused."""

    FIELDS: ClassVar[str] = "checkpointType is CONFIGURED, FULL or INCREMENTAL"

    checkpoint_type: CheckpointType = msgspec.field(
        name="checkpointType", default=CheckpointType.CONFIGURED
    )
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/savepoints``; without a directory the configured one is used."""

    FIELDS: ClassVar[str] = (
        "target-directory is a path or null, formatType CANONICAL or NATIVE, cancel-job false"
    )

    target_directory: Path | None = msgspec.field(name="target-directory", default=None)
    cancel_job: bool = msgspec.field(name="cancel-job", default=False)
    format_type: SavepointFormat | None = msgspec.field(name="formatType", default=None)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class DisposalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /savepoint-disposal``."""

    FIELDS: ClassVar[str] = "savepoint-path is a path"

    savepoint_path: Path = msgspec.field(name="savepoint-path")
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class CoordinatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/coordinators/:operator``."""

    FIELDS: ClassVar[str] = "request is an object, as the coordinator understands it"

    request: dict[str, Any]
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /jobs/:jobid/stop``; note that the directory is spelled otherwise than in
    ``SavepointRequest``."""

    FIELDS: ClassVar[str] = (
        "targetDirectory is a path or null, formatType CANONICAL or NATIVE, drain true or false"
    )

    target_directory: Path | None = msgspec.field(name="targetDirectory", default=None)
    drain: bool = False
    format_type: SavepointFormat | None = msgspec.field(name="formatType", default=None)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


#: How many operations are remembered.
MAX_OPERATIONS = 1_000
#: Places beyond these that only what ends the job can take.
RESERVED_OPERATIONS = 100
#: How long after its end an operation may hold up the end of the server: clients poll at least
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
        """Begin an operation, or join the one of this kind and id.

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
        """The operation's future, or None if it is unknown or forgotten. A finished one counts as
        collected."""
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
        """Count all operations of a kind as collected: their outcome was read in another way."""
        with self._changed:
            for (other, _), operation in self._operations.items():
                if other == kind:
                    operation.collected = True
            self._changed.notify_all()

    def wait_until_collected(self) -> None:
        """Wait until clients have read what has just finished, at most ``COLLECT_WITHIN_MS`` from
        now."""
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
            (key for key, one in self._operations.items() if one.done_ms is not None), None
        )
        if finished is None:
            raise TooManyOperationsError
        del self._operations[finished]
