"""``Frame``: what a sink's ``stage`` gets in the simulator in place of a DataFrame.

It has the rows of one batch, and the part of a DataFrame's methods that sinks use to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import PipelineError


class Row(dict[str, Any]):
    """A row: by name, by attribute and by position, as Spark's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str | int) -> Any:
        return list(self.values())[name] if isinstance(name, int) else super().__getitem__(name)

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """The row as a dict."""
        del recursive
        return dict(self)


class _Schema:
    """The part of a ``StructType`` that names the columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = list(schema.names)
        self.fieldNames = lambda: list(schema.names)
        self._arrow = schema

    def __len__(self) -> int:
        return len(self.names)


class Frame:
    """The rows of one batch."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = _Schema(table.schema)
        self.columns = list(table.schema.names)
        self.isStreaming = False

    def rows(self) -> list[Row]:
        """The rows."""
        return [Row(one) for one in self._table.to_pylist()]

    collect = rows

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:  # noqa: N802, N803
        """The rows, one by one."""
        del prefetchPartitions
        return iter(self.rows())

    def toArrow(self) -> pa.Table:  # noqa: N802
        """The rows as an Arrow table."""
        return self._table

    def toPandas(self) -> Any:  # noqa: N802
        """The rows as a pandas DataFrame."""
        return self._table.to_pandas()

    def count(self) -> int:
        """How many rows there are."""
        return len(self._table)

    def isEmpty(self) -> bool:  # noqa: N802
        """Whether there are none."""
        return not len(self._table)

    def foreach(self, function: Callable[[Row], Any]) -> None:
        """Call a function with each row."""
        for row in self.rows():
            function(row)

    def foreachPartition(self, function: Callable[[Iterable[Row]], Any]) -> None:  # noqa: N802
        """Call a function with the rows of each partition; there is one."""
        function(iter(self.rows()))

    def select(self, *columns: str | Sequence[str]) -> Frame:
        """Some columns, by name."""
        names = [name for one in columns for name in ([one] if isinstance(one, str) else one)]
        return Frame(self._table.select(names))

    def drop(self, *columns: str) -> Frame:
        """The other columns."""
        return Frame(self._table.select([one for one in self.columns if one not in columns]))

    def same(self, *_: Any, **__: Any) -> Frame:
        """This frame: how it is cached and spread makes no difference."""
        return self

    cache = persist = unpersist = repartition = coalesce = same

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PipelineError(
            f"The simulator gives sinks rows without Spark, so frame.{name} is not there: read the"
            " rows with collect, toArrow, toPandas, toLocalIterator or foreachPartition."
        )
