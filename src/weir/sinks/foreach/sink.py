"""A sink made of the user's own functions.

With ``commit`` it takes part in the two-phase commit: ``fn`` stages a batch and returns what is
needed to commit it, and ``commit`` makes an epoch visible. ``commit`` is called again whenever the
outcome of a call is unknown; job id, sink and epoch in its ``CommitInfo`` are the key by which it
recognises a repetition.

Without ``commit`` the rows are visible when ``fn`` returns, so delivery is *at least once*: after a
failure the batches since the last checkpoint run again, in a new attempt. Job id, attempt and
position uniquely identify each call of ``fn``.

``fn`` must consume the whole frame with an action (``frame.write...``, ``frame.foreachPartition``,
``frame.collect``), even when it expects no rows: Spark stops a stateful query if its frame is not
run, or run only in part.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from weir.core.types import JobId, OperatorId, Payload
from weir.errors import InvariantError, SinkError
from weir.json_values import KEPT, read_back
from weir.sinks.base import Batch, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class SinkInfo:
    """The sink, its job and the attempt."""

    job_id: JobId
    job_name: str
    sink: OperatorId
    attempt: int


@dataclass(frozen=True, kw_only=True)
class BatchInfo(SinkInfo):
    """The batch that is staged."""

    #: Spark's: it grows by 1 with each batch of the query, and is unique within an attempt.
    batch_id: int


@dataclass(frozen=True, kw_only=True)
class CommitInfo(SinkInfo):
    """The epoch that is committed. The attempt is that of the commit, not that which staged."""

    #: The checkpoint id.
    epoch: int

    @property
    def key(self) -> str:
        """``<job id>/<sink>/<epoch>``: the same in every repetition of a commit, and no other."""
        return f"{self.job_id}/{self.sink}/{self.epoch}"


_log = logging.getLogger(__name__)

StageFunction: TypeAlias = "Callable[[DataFrame, BatchInfo], Any]"
CommitFunction: TypeAlias = Callable[[CommitInfo, list[Any]], int | None]
CleanFunction: TypeAlias = Callable[[SinkInfo], None]
NewestCommittedFunction: TypeAlias = Callable[[SinkInfo], int | None]


class Foreach(Sink):
    """Calls ``fn(frame, BatchInfo)`` with every batch; the module's docstring has its guarantees.

    ``fn`` returns a JSON value, which the checkpoint stores, or None if there is nothing to commit;
    what it staged must be durable when it returns. ``commit(CommitInfo, values)`` gets the values
    of the epoch in the order of their batches, and returns the number of rows that it made visible,
    or None if it does not count. ``clean(SinkInfo)`` deletes what attempts before
    ``SinkInfo.attempt`` staged and did not commit. ``newest_committed(SinkInfo)`` returns the
    newest epoch known to be committed (PROTOCOL P21): also one without values, if ``commit`` would
    do nothing for its number later. If it names an older epoch than before, the target has gone
    back, and the job fails. ``describe`` is a name for messages.

    ``fn`` may get updates (``output_mode="update"``), rows that replace earlier ones of their key.
    """

    takes_updates = True

    def __init__(
        self,
        fn: StageFunction,
        *,
        commit: CommitFunction | None = None,
        clean: CleanFunction | None = None,
        newest_committed: NewestCommittedFunction | None = None,
        describe: str | None = None,
    ) -> None:
        self.function: StageFunction = fn
        self._commit = commit
        self._clean = clean
        self._newest_committed = newest_committed
        self._given_description = describe
        self._description = (
            describe or f"Foreach({getattr(fn, '__qualname__', type(fn).__qualname__)})"
        )
        self._opened: SinkContext | None = None
        #: Without ``commit``, no checkpoint is needed after the last rows (PROTOCOL P36).
        self.requires_final_checkpoint = commit is not None

    def describe(self) -> str:
        """What and where, for messages."""
        return self._description

    def identity(self) -> str:
        """The given name: only the functions know what they write, and they may be renamed."""
        return f"Foreach {self._given_description or ''}".rstrip()

    def check(self, context: SinkContext) -> None:
        """Say it if rows may come twice; the target is unknown before the first batch."""
        if self._commit is None:
            _log.warning(
                "Sink %r, %s, has no commit function: it delivers at least once, so rows since the"
                " last checkpoint come again after a failure. ForeachEpoch delivers exactly once.",
                context.sink,
                self._description,
            )

    def open(self, context: SinkContext) -> None:
        """Remember the attempt."""
        self._opened = context

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Call ``fn``. Raises ``SinkError`` if it returns something that is not JSON."""
        value = self.function(frame, BatchInfo(**self._identity, batch_id=batch.batch_id))
        if self._commit is None or value is None:
            return None
        if (kind := _type_that_is_not_json(value)) is not None:
            raise SinkError(
                f"The function of {self._description} (sink {self._context.sink!r}) returned a"
                f" value that contains {kind.__name__}, which is not JSON: return only dicts with"
                " string keys, lists, strings, finite numbers, booleans and None."
            )
        # ``commit`` sees the same value now and after a restore: that which JSON gives back (a
        # tuple becomes a list).
        try:
            return {"value": read_back(json.loads(json.dumps(value)))}
        except ValueError as error:
            raise SinkError(
                f"The function of {self._description} (sink {self._context.sink!r}) returned a"
                f" value that cannot be stored, since {error}: make it of {KEPT}."
            ) from error

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Do nothing: what ``fn`` staged is durable when ``fn`` returns."""
        return list(payloads)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Call ``commit`` with the epoch's values, even if there are none (PROTOCOL P15)."""
        if self._commit is None:
            return 0
        if any("value" not in payload for payload in payloads):
            raise SinkError(
                f"{self._description} cannot commit a batch for which the checkpoint has no value:"
                " use another checkpoint or savepoint."
            )
        values = [payload["value"] for payload in payloads]
        return self._commit(CommitInfo(**self._identity, epoch=epoch), values) or 0

    def newest_committed(self) -> int | None:
        """The result of the user's ``newest_committed``; None without that function."""
        return (
            None
            if self._newest_committed is None
            else self._newest_committed(SinkInfo(**self._identity))
        )

    def clean(self, attempt: int) -> None:
        """Call the user's ``clean``."""
        if self._clean is not None:
            self._clean(SinkInfo(**{**self._identity, "attempt": attempt}))

    @property
    def _context(self) -> SinkContext:
        if self._opened is None:
            raise InvariantError(f"{self._description} was used before it was opened")
        return self._opened

    @property
    def _identity(self) -> dict[str, Any]:
        context = self._context
        return {
            "job_id": context.job_id,
            "job_name": context.job_name,
            "sink": context.sink,
            "attempt": context.attempt,
        }


def _type_that_is_not_json(value: object) -> type | None:
    """The type of the first part of a value that JSON cannot hold, or None."""
    match value:
        case None | bool() | int() | str():
            return None
        case float():
            return None if math.isfinite(value) else float
        case list() | tuple():
            parts: list[object] = list(value)
        case dict():
            odd_keys = [key for key in value if not isinstance(key, str)]
            if odd_keys:
                return type(odd_keys[0])
            parts = list(value.values())
        case _:
            return type(value)
    return next(
        (kind for part in parts if (kind := _type_that_is_not_json(part)) is not None), None
    )
