"""A sink for ``complete`` mode: the result as a whole, after each epoch.

The step emits what changed (``output_mode="update"``). The sink keeps the newest row of each key in
its staging directory, and calls a function with all of them, as Spark does with each batch::

    _weir/tables/<job id>-totals/7/part-....parquet
        the rows when the function was called with the id 7
    _weir/tables/<job id>-totals/7.json
        its files: the table is complete

A commit makes the table with the next id (``sinks/foreach/numbers.py``) from the one before, which
may be that of the job that this one continues, and the epoch's batches. Then it calls the function,
and enters the epoch in the ledger. A commit that is repeated finds its id, and its table if that is
complete. A reader of an older table finds its files until some more epochs are committed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from weir.adopt.outputs.lineage import OwnRows
from weir.sinks.files.sink import FilesPayload
from weir.sinks.foreach.batch import BatchFunction
from weir.sinks.foreach.staged import StagedRows
from weir.sinks.staging import sync_below, write_frame
from weir.storage.paths import as_spark_path, join
from weir.storage.records import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Tables kept for readers of older ones.
_KEPT = 5
_COMPLETE = re.compile(r"([0-9]+)\.json")


class WholeTable(OwnRows, StagedRows):
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
        for ledger in self._lineage():
            if known := self._complete(self._tables(ledger)):
                return self._table(self._tables(ledger), max(known))
        return None

    def _add(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> int:
        """Mark the epoch, make its table, pass it, then enter the epoch in the ledger."""
        number = self._batches(epoch, payloads, 1).first
        files = sum(len(payload.files) for payload in payloads)
        self._begin(epoch, files)
        tables = self._tables(self._ledger_name)
        known = self._complete(tables)
        if number not in known:
            self._make(tables, number, payloads)
        self.function(self._table(tables, number), number)
        self._enter(epoch, files)
        self._numbers.forget()
        for old in sorted(known)[: 1 - _KEPT]:
            self._file_system.delete(join(tables, f"{old}.json"))
            self._file_system.delete(join(tables, str(old)))
        return sum(move.rows for move in self._moves_of(payloads))

    def _make(self, tables: str, number: int, payloads: Sequence[FilesPayload]) -> None:
        """Write a table, durably."""
        from weir.spark.adopt.frames import newest_rows

        before = self.table()
        frames = [] if before is None else [before]
        frames += [self._frame(self._moves_of([payload])) for payload in payloads]
        rows = newest_rows(frames, self._keys)
        directory = join(tables, str(number))
        written = write_frame(rows, self._file_system, directory, format_name="parquet")
        files = [f"{number}/{file.path}" for file in written]
        sync_below(self._file_system, self._root, [f"{self._below(tables)}/{it}" for it in files])
        self._file_system.write(join(tables, f"{number}.json"), msgspec.json.encode(files))

    def _table(self, tables: str, number: int) -> DataFrame:
        data = self._file_system.read(join(tables, f"{number}.json"))
        files = decoded(data, list[str])
        return self._read([as_spark_path(join(tables, file)) for file in files])

    def _complete(self, tables: str) -> set[int]:
        matches = (_COMPLETE.fullmatch(entry.name) for entry in self._file_system.list(tables))
        return {int(match[1]) for match in matches if match}

    def _tables(self, ledger: str) -> str:
        return join(self._root, "_weir", "tables", ledger)

    def _below(self, path: str) -> str:
        """A path below the root, relative to it."""
        return path.removeprefix(join(self._root, ""))
