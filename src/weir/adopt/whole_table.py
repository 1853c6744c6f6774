"""A sink for ``complete`` mode: the result as a whole, after each epoch.

The step emits what changed (``output_mode="update"``). The sink keeps the newest row of each key in
its staging directory, and calls a function with all of them, as Spark does with each batch::

    _weir/table/7/part-....parquet    the rows when the function was called with the id 7
    _weir/table/7.json                its files: the table is complete

A commit makes the table with the next id (``sinks/foreach/numbers.py``) from the one before and the
epoch's batches, calls the function, and enters the epoch in the ledger. A commit that is repeated
finds its id, and its table if that is complete. A reader of an older table finds its files until
some more epochs are committed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from weir.sinks.files.sink import FilesPayload
from weir.sinks.foreach.batch import BatchFunction
from weir.sinks.foreach.staged import StagedRows
from weir.sinks.staging import sync_below, visible_files, write_frame
from weir.storage.paths import as_spark_path, join
from weir.storage.records import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Tables kept for readers of older ones.
_KEPT = 5
_COMPLETE = re.compile(r"([0-9]+)\.json")


class WholeTable(StagedRows):
    """Calls ``fn(frame, batch_id)`` with the newest row of each key after each epoch with rows.

    ``keys``: the columns by which a row replaces another; none if there is one row only.
    """

    takes_updates = True

    def __init__(
        self, fn: BatchFunction, *, keys: Sequence[str], staging: str, describe: str | None = None
    ) -> None:
        super().__init__(fn, staging=staging, describe=describe)
        self._keys = tuple(keys)

    def table(self) -> DataFrame | None:
        """The newest complete table; None before the first."""
        known = self._complete()
        return self._table(max(known)) if known else None

    def _add(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> int:
        """Mark the epoch, make its table, pass it, then enter the epoch in the ledger."""
        number = self._batches(epoch, payloads, 1).first
        files = sum(len(payload.files) for payload in payloads)
        self._begin(epoch, files)
        known = self._complete()
        if number not in known:
            self._make(number, max(known, default=None), payloads)
        self.function(self._table(number), number)
        self._enter(epoch, files)
        self._numbers.forget()
        for old in sorted(known)[: 1 - _KEPT]:
            self._file_system.delete(join(self._tables, f"{old}.json"))
            self._file_system.delete(join(self._tables, str(old)))
        return sum(move.rows for move in self._moves_of(payloads))

    def _make(self, number: int, before: int | None, payloads: Sequence[FilesPayload]) -> None:
        """Write a table, durably."""
        from weir.spark.adopt.frames import newest_rows

        frames = [] if before is None else [self._table(before)]
        frames += [self._frame(self._moves_of([payload])) for payload in payloads]
        rows = newest_rows(frames, self._keys)
        directory = join(self._tables, str(number))
        write_frame(rows, self._file_system, directory, format_name="parquet")
        files = [f"{number}/{file.path}" for file in visible_files(self._file_system, directory)]
        sync_below(self._file_system, self._tables, files)
        self._file_system.write(join(self._tables, f"{number}.json"), msgspec.json.encode(files))

    def _table(self, number: int) -> DataFrame:
        data = self._file_system.read(join(self._tables, f"{number}.json"))
        files = decoded(data, list[str])
        return self._read([as_spark_path(join(self._tables, file)) for file in files])

    def _complete(self) -> set[int]:
        entries = self._file_system.list(self._tables)
        matches = (_COMPLETE.fullmatch(entry.name) for entry in entries)
        return {int(match[1]) for match in matches if match}

    @property
    def _tables(self) -> str:
        return join(self._root, "_weir", "table")
