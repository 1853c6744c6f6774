"""A sink for a trigger with an interval: one call with what came since the call before.

With ``trigger(processingTime="1 minute")``, Spark calls a function once a minute. Weir reads on in
the meantime, and the sink commits as seldom; a call for each of the many small batches would take
longer than their minute.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.sinks.files.sink import FilesPayload
from weir.sinks.foreach.batch import BatchFunction, ForeachBatch
from weir.sinks.foreach.staged import StagedRows


class JoinedBatches(StagedRows):
    """Calls ``fn(frame, batch_id)`` once for each epoch with rows; ids are as in ``ForeachBatch``.

    ``keys``: the columns by which an update replaces another, so that ``fn`` gets the newest row of
    each key; None for a step that emits no updates.
    """

    takes_updates = True

    def __init__(
        self,
        fn: BatchFunction,
        *,
        keys: Sequence[str] | None,
        staging: str,
        describe: str | None = None,
    ) -> None:
        super().__init__(fn, staging=staging, describe=describe)
        self._keys = keys

    def identity(self) -> str:
        """That of the sink without an interval: a trigger may change."""
        return f"{ForeachBatch.__name__} staged in {self._root}"

    def _add(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> int:
        """Mark the epoch, pass its rows, then enter it in the ledger."""
        number = self._batches(epoch, payloads, 1).first
        moves = self._moves_of(payloads)
        self._begin(epoch, len(moves))
        if self._keys is None:
            frame = self._frame(moves)
        else:
            from weir.spark.adopt.frames import newest_rows

            batches = [self._frame(self._moves_of([payload])) for payload in payloads]
            frame = newest_rows(batches, self._keys)
        self.function(frame, number)
        self._enter(epoch, len(moves))
        self._numbers.forget()
        return sum(move.rows for move in moves)
