"""A sink that calls the user's function with each batch, once its checkpoint is complete.

It takes the functions of Spark's ``foreachBatch``, in append and in update mode:

1. Each batch is staged as Parquet files below ``staging``, as ``Files`` does.
2. Once its checkpoint is complete, ``fn(frame, batch_id)`` is called with the rows of each batch of
   the epoch, in order, one call after the other. No later batch is passed before ``fn`` has
   returned (PROTOCOL P15). A batch without rows is not passed.
3. ``batch_id`` counts from 0 (``numbers.py``). It never comes again with other rows. That a call
   has returned is recorded before the next one begins, so a crash repeats at most one call of each
   sink, with the same rows and the same ``batch_id`` (P13).

So ``fn`` has its effect exactly once if it does nothing for a ``batch_id`` that it has seen. Each
batch has one row at most of a key that it updates, so ``fn`` may merge it by key; the rows of a
whole epoch may have several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from weir.sinks.files.sink import FilesPayload
from weir.sinks.foreach.staged import StagedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchFunction: TypeAlias = "Callable[[DataFrame, int], object]"


class ForeachBatch(StagedRows):
    """Calls ``fn(frame, batch_id)`` with each batch; the module's docstring has the promise.

    ``staging``: a directory of this sink alone, which the driver and all executors share; rows lie
    there until ``fn`` has had them, and the ids of batches are counted there. What ``fn`` raises is
    tried again (``weir.sink.commit.*``), and then by the restored job. Its result is ignored.
    ``describe`` is a name for messages.

    ``fn`` may get updates (``output_mode="update"``), rows that replace earlier ones of their key.
    """

    takes_updates = True

    def __init__(self, fn: BatchFunction, *, staging: str, describe: str | None = None) -> None:
        super().__init__(fn, staging=staging, describe=describe)

    def _add(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> int:
        """Mark the epoch, pass its batches, then enter it in the ledger."""
        batches = self._batches(epoch, payloads, len(payloads))
        files = sum(len(payload.files) for payload in payloads)
        self._begin(epoch, files)
        rows = 0
        for number, payload in enumerate(payloads[batches.passed :], start=batches.passed):
            if number > batches.passed:
                batches = msgspec.structs.replace(batches, passed=number)
                self._numbers.record(epoch, batches)
            moves = self._moves_of([payload])
            self.function(self._frame(moves), batches.first + number)
            rows += sum(move.rows for move in moves)
        self._enter(epoch, files)
        self._numbers.forget()
        return rows
