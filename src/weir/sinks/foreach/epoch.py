"""A sink that calls the user's function once for each epoch, with all of its rows.

It is for what ``foreachBatch`` is used for, whose batches come again with other rows after a
failure. Here rows are staged as Parquet files below ``staging``, as ``Files`` does. Once their
checkpoint is complete, ``fn(frame, info)`` is called with a DataFrame of all rows of the epoch. The
call is repeated, with the same rows and the same ``info.key``, until it has returned and that is on
record; no later epoch is passed before (PROTOCOL P13, P15). So ``fn`` has its effect exactly
once if it does nothing for a key that it has seen. An epoch without rows is not passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from weir.sinks.files.sink import Move
from weir.sinks.foreach.sink import CommitInfo
from weir.sinks.foreach.staged import StagedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EpochFunction: TypeAlias = "Callable[[DataFrame, CommitInfo], object]"


class ForeachEpoch(StagedRows):
    """Calls ``fn(frame, CommitInfo)`` once for each epoch; the module's docstring has the promise.

    ``staging``: a directory of this sink alone, which the driver and all executors share; rows lie
    there until ``fn`` has had them. What ``fn`` raises is tried again (``weir.sink.commit.*``), and
    then by the restored job. Its result is ignored. ``describe`` is a name for messages.
    """

    def __init__(self, fn: EpochFunction, *, staging: str, describe: str | None = None) -> None:
        super().__init__(fn, staging=staging, describe=describe)

    def _commit_moves(self, epoch: int, moves: list[Move]) -> int:
        """Call the function with the staged files, then enter the epoch in the ledger."""
        context = self._context
        info = CommitInfo(
            job_id=context.job_id,
            job_name=context.job_name,
            sink=context.sink,
            attempt=context.attempt,
            epoch=epoch,
        )
        self.function(self._frame(moves), info)
        self._enter(epoch, len(moves))
        return sum(move.rows for move in moves)
