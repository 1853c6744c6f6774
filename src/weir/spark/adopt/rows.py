"""Passes the rows of a batch to what a script gave to ``foreach``, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def row_by_row(writer: Any) -> Callable[[DataFrame, int], None]:
    """A function for ``ForeachBatch`` that keeps Spark's contract of ``foreach``.

    ``writer`` is a function of a row, or an object with ``process(row)`` and, if it likes,
    ``open(partition_id, epoch_id)`` and ``close(error)``. Each Spark task has its own copy.
    """

    def passed(frame: DataFrame, batch_id: int) -> None:
        passing = _call if callable(writer) else partial(_open_process_close, batch_id)
        frame.foreachPartition(partial(passing, writer))

    return passed


def _call(function: Callable[[Row], object], rows: Iterator[Row]) -> None:
    for row in rows:
        function(row)


def _open_process_close(batch_id: int, writer: Any, rows: Iterator[Row]) -> None:
    task = TaskContext.get()
    partition_id = 0 if task is None else task.partitionId()
    wanted = not hasattr(writer, "open") or writer.open(partition_id, batch_id)
    failure: Exception | None = None
    try:
        for row in rows if wanted else ():
            writer.process(row)
    except Exception as error:
        failure = error
        raise
    finally:
        if hasattr(writer, "close"):
            writer.close(failure)
