"""Columns in the form from which Spark makes its own soonest.

``RowConversion`` goes from the columns of Arrow to the rows of a function, and back, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType


@dataclass(frozen=True, kw_only=True)
class RowConversion:
    """How the session converts the arguments and values of an Arrow-optimised Python UDF."""

    #: Whether a value that does not fit its type is an error.
    is_safe: bool
    #: Whether binary values are ``bytes``; else they are ``bytearray``.
    has_bytes: bool
    #: Whether integers become decimals where those are asked for.
    makes_decimals: bool

    @classmethod
    def of(cls, session: SparkSession) -> Self | None:
        """The session's; None where it calls such functions in threads, or by way of pandas."""

        def is_set(name: str, *default: str) -> bool:
            return session.conf.get(f"spark.sql.{name}", *default) == "true"

        threads = session.conf.get("spark.sql.execution.pythonUDF.arrow.concurrency.level", None)
        by_pandas = is_set("legacy.execution.pythonUDF.pandas.conversion.enabled", "false")
        if threads is not None or by_pandas:
            return None
        return cls(
            is_safe=is_set("execution.pandas.convertToArrowArraySafely"),
            has_bytes=is_set("execution.pyspark.binaryAsBytes"),
            makes_decimals=is_set("execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        )

    def reader(self, kind: DataType) -> Callable[[pa.Array], list[Any]]:
        """Makes a column of this type the function's arguments."""
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        convert = ArrowTableToRowsConversion._create_converter(
            kind, none_on_identity=True, binary_as_bytes=self.has_bytes
        )
        if convert is None:
            return lambda column: list(column.to_pylist())
        return lambda column: [convert(value) for value in column.to_pylist()]

    def converter(self, kind: DataType) -> Callable[[Any], Any] | None:
        """Makes a value of the function one that Arrow takes for this type; None: it does."""
        from pyspark.sql.conversion import LocalDataToArrowConversion

        found: Callable[[Any], Any] | None = LocalDataToArrowConversion._create_converter(
            kind, none_on_identity=True, int_to_decimal_coercion_enabled=self.makes_decimals
        )
        return found


def texts(values: Sequence[str | None]) -> pd.Series[Any]:
    """Texts as a column of pandas that Arrow keeps, and Spark takes as it is.

    A column of objects takes pandas and Spark far longer, if all of them are None above all.
    """
    import pandas as pd
    import pyarrow as pa

    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, pa.string())))


def no_texts(index: pd.Index[Any]) -> pd.Series[Any]:
    """As many as the index has, all null."""
    import pandas as pd
    import pyarrow as pa

    array = pd.arrays.ArrowExtensionArray(pa.nulls(len(index), pa.string()))
    return pd.Series(array, index=index)
