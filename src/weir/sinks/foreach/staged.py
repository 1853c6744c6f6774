"""Rows that lie in files below ``staging`` until a user's function has had them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weir.errors import SinkError
from weir.lineage.datasets import Dataset
from weir.sinks.files.sink import Files, FilesPayload, Move
from weir.sinks.foreach.numbers import Batches, BatchNumbers
from weir.storage.paths import READ_EACH, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StagedRows(Files):
    """Stages rows as ``Files`` does; a subclass passes them to a function instead of showing them.

    ``staging``: a directory of this sink alone, which the driver and all executors share.
    ``describe`` is a name for messages.
    """

    def __init__(self, fn: Callable[..., object], *, staging: str, describe: str | None) -> None:
        self.function: Callable[..., Any] = fn
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self._description = describe or f"{type(self).__name__}({name})"
        super().__init__(staging)

    def describe(self) -> str:
        """What and where, for messages."""
        return f"{self._description}, staged in {self._shown_path!r}"

    def identity(self) -> str:
        """Where its rows are staged and its ledger is: only the function knows what it writes."""
        return f"{type(self).__name__} staged in {self._root}"

    def dataset(self) -> Dataset | None:
        """None: only the function knows what it writes."""
        return None

    @property
    def _numbers(self) -> BatchNumbers:
        return BatchNumbers(self._file_system, self._ledger, self.landmark(), place=self.describe())

    def _batches(self, epoch: int, payloads: Sequence[FilesPayload], count: int) -> Batches:
        """The ids of an epoch's batches, on record; so many are needed."""
        staged = [f"{payload.directory}/{payload.position}" for payload in payloads]
        return self._numbers.of(epoch, staged, count)

    def _session(self) -> SparkSession:
        session = self._context.session
        if session is None:
            raise SinkError(f"{self.describe()} cannot read its rows without a Spark session.")
        return session()

    def _frame(self, moves: Sequence[Move]) -> DataFrame:
        """The rows of staged files."""
        return self._read([as_spark_path(join(self._root, move.source)) for move in moves])

    def _read(self, paths: Sequence[str]) -> DataFrame:
        # A pipeline that was changed may have staged files with and without a column. The look-up
        # is recursive, since otherwise Spark reads each of several files that look like patterns
        # more than once, and makes columns of directories like day=1.
        reader = self._session().read.options(mergeSchema=True, recursiveFileLookup=True)
        return reader.options(**READ_EACH).parquet(*paths)
