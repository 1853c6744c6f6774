"""``map_in_arrow``: pyspark's ``mapInArrow`` for columns of any name.

pyspark looks the columns up by their names, as if they were expressions: a name with a dot would be
a field of a struct, and one with a backtick a syntax error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    RowsFunction: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class _Named:
    """A function whose batches get these names; pickled for Spark's workers."""

    function: RowsFunction
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)


def map_in_arrow(
    frame: Any, names: Sequence[str], function: RowsFunction, schema: StructType | str
) -> DataFrame:
    """The rows that the function makes of the frame's, whose columns have these names."""
    mapped: DataFrame
    if any("." in name or "`" in name for name in names):
        plain = frame.toDF(*(f"c{number}" for number in range(len(names))))
        mapped = plain.mapInArrow(_Named(function, tuple(names)), schema)
    else:
        mapped = frame.mapInArrow(function, schema)
    return mapped
