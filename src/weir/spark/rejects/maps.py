"""Functions of batches (``mapInPandas``, ``mapInArrow``) that find the rows on which they raise.

Such a function is a running generator, and may keep what it likes between two batches. What it
emits between two pulls belongs to the batch that it has pulled last. If it raises, these rows are
dropped, a new generator goes on with the next batch, and generators of their own get the halves of
the batch that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weir.operators.json_rows import rows_as_json
from weir.runtime.failures import describe
from weir.spark.rejects.conversion import no_texts
from weir.spark.rejects.wrapper import Wrapper
from weir.spark.releases import arrow_schema, arrow_type

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: The last columns of what such a function emits: the error, and its row as JSON.
ERROR = "__weir_error"
ROW = "__weir_row"

B = TypeVar("B")
T = TypeVar("T")


class _Feed(Generic[B, T]):
    """Gives a function its batches, and keeps apart what it emits for each."""

    def __init__(self, batches: Iterator[B]) -> None:
        self._batches = batches
        #: The batch pulled last; None before the first, and after the end.
        self.newest: B | None = None
        #: What was emitted for it, and for those before it.
        self.held: list[T] = []
        self.ready: list[T] = []
        #: Whether it was the batches that raised.
        self.broken = False

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        self.ready += self.held
        self.held = []
        self.newest = None
        try:
            self.newest = next(self._batches)
        except StopIteration:
            raise
        except BaseException:
            self.broken = True
            raise
        return self.newest


def each_batch(
    function: Callable[[Iterator[B]], Iterable[T]], batches: Iterable[B]
) -> Iterator[T | tuple[B, Exception]]:
    """What a function of batches emits, and each batch on which it raises, with the error.

    Raises what it raises before it has pulled a batch, or when there are no more.
    """
    source = iter(batches)
    while True:
        feed: _Feed[B, T] = _Feed(source)
        failed: tuple[B, Exception] | None = None
        try:
            for emitted in function(feed):
                yield from feed.ready
                feed.ready = []
                feed.held.append(emitted)
        except Exception as error:
            if feed.broken or feed.newest is None:
                raise
            failed = feed.newest, error
            feed.held = []
        yield from (*feed.ready, *feed.held)
        if failed is None:
            return
        yield failed


@dataclass(frozen=True, kw_only=True)
class _Map(Wrapper):
    """A function of batches. Those that it gets have columns that the user does not see."""

    #: How many columns the user sees, the first ones.
    visible: int
    #: The names and places of the columns of the step's input row.
    row: tuple[tuple[str, int], ...]
    #: The place of the column with the error; None if there is none yet.
    error: int | None
    #: The types of these columns.
    row_types: tuple[Any, ...]
    #: The type of what it emits, with ``ERROR`` and ``ROW``.
    returned: Any

    def _emitted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """What the function emits, and for rows that raise ``(batch, errors)``."""
        failed: list[tuple[Any, list[str]]] = []

        def good_rows() -> Iterator[Any]:
            for batch in batches:
                if self.error is None:
                    yield batch
                    continue
                good, bad, errors = self._divided(batch, self.error)
                if errors:
                    failed.append((bad, errors))
                yield good

        yield from self._found(good_rows())
        yield from failed

    def _found(self, batches: Iterable[Any]) -> Iterator[Any]:
        for found in each_batch(self._on_visible, batches):
            if isinstance(found, tuple):
                yield from self._split(*found)
            else:
                yield found

    def _on_visible(self, batches: Iterator[Any]) -> Iterable[Any]:
        return self.function(self._seen(batch) for batch in batches)  # type: ignore[no-any-return]

    def _split(self, batch: Any, error: Exception) -> Iterator[Any]:
        length = len(batch)
        if length == 0:
            # It does not like the end of its input.
            raise error
        if length == 1:
            yield batch, [describe(error)]
        else:
            middle = length // 2
            for half in (self._part(batch, 0, middle), self._part(batch, middle, length)):
                yield from self._found([half])

    def _seen(self, batch: Any) -> Any:
        raise NotImplementedError

    def _part(self, batch: Any, start: int, end: int) -> Any:
        raise NotImplementedError

    def _divided(self, batch: Any, place: int) -> tuple[Any, Any, list[str]]:
        """The rows without and with an error, and these errors."""
        raise NotImplementedError


class ArrowMap(_Map):
    """The function of ``mapInArrow``."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = arrow_schema(self.returned)
        for found in self._emitted(batches):
            if not isinstance(found, tuple):
                nothing = pa.nulls(found.num_rows, pa.string())
                yield found.append_column(ERROR, nothing).append_column(ROW, nothing)
                continue
            batch, errors = found
            row = pa.RecordBatch.from_arrays(
                [batch.column(place) for _, place in self.row], [name for name, _ in self.row]
            )
            given = {ERROR: errors, ROW: rows_as_json(row)}
            columns = [
                pa.array(given.get(one.name, [None] * len(errors)), one.type) for one in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema.names)

    def _seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(range(self.visible)))

    def _part(self, batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
        return batch.slice(start, end - start)

    def _divided(
        self, batch: pa.RecordBatch, place: int
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, list[str]]:
        import pyarrow.compute as pc

        good = pc.is_null(batch.column(place))
        bad = batch.filter(pc.invert(good))
        return batch.filter(good), bad, bad.column(place).to_pylist()


class PandasMap(_Map):
    """The function of ``mapInPandas``."""

    def __call__(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pandas as pd

        names = self.returned.names
        for found in self._emitted(batches):
            if not isinstance(found, tuple):
                # Spark takes columns by position if none has a name.
                named = any(isinstance(name, str) for name in found.columns)
                good, nothing = found.copy(deep=False), no_texts(found.index).array
                for name in (ERROR, ROW) if named else (len(names) - 2, len(names) - 1):
                    good[name] = nothing
                yield good
                continue
            batch, errors = found
            given = {ERROR: errors, ROW: rows_as_json(self._rows(batch))}
            nothing = [None] * len(errors)
            yield pd.DataFrame(
                {name: pd.Series(given.get(name, nothing), dtype=object) for name in names}
            )

    def _rows(self, batch: pd.DataFrame) -> pa.RecordBatch:
        """The rows of the step's input: with nulls, pandas has made floats of integers."""
        import pyarrow as pa

        columns = []
        for (_, place), kind in zip(self.row, self.row_types, strict=True):
            values = batch.iloc[:, place]
            try:
                made = pa.Array.from_pandas(values, type=arrow_type(kind))
            except (pa.ArrowException, TypeError):
                made = pa.array([None if one is None else str(one) for one in values], pa.string())
            columns.append(made)
        return pa.RecordBatch.from_arrays(columns, [name for name, _ in self.row])

    def _seen(self, batch: pd.DataFrame) -> pd.DataFrame:
        return batch.iloc[:, : self.visible] if batch.shape[1] > self.visible else batch

    def _part(self, batch: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
        return batch.iloc[start:end].reset_index(drop=True)

    def _divided(
        self, batch: pd.DataFrame, place: int
    ) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
        good = batch.iloc[:, place].isna()
        if good.all():
            return batch, batch.iloc[:0], []
        bad = batch[~good].reset_index(drop=True)
        return batch[good].reset_index(drop=True), bad, list(bad.iloc[:, place])
