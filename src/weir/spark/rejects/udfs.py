"""UDFs that return their value and an error, of which at most one is not null.

A row that has an error already is not passed to the user's function. A function of many rows, in
pandas or Arrow, is called with the whole batch; if it raises, with both halves, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weir.runtime.failures import describe
from weir.spark.rejects.wrapper import Wrapper
from weir.spark.releases import arrow_type

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class _Udf(Wrapper):
    #: Whether the first argument says if a row has no error yet.
    flagged: bool
    #: The type of the value.
    value_type: Any


class RowUdf(_Udf):
    """A UDF of one row."""

    @cached_property
    def _convert(self) -> Callable[[Any], Any] | None:
        return self.value_type.toInternal if self.value_type.needConversion() else None

    def __call__(self, *arguments: Any, **named: Any) -> tuple[Any, str | None]:
        if self.flagged:
            good, *arguments = arguments  # type: ignore[assignment]
            if not good:
                return None, None
        try:
            value = self.function(*arguments, **named)
            if self._convert is not None:
                # Spark does so later, where it would fail the batch.
                self._convert(value)
        except Exception as error:
            return None, describe(error)
        return value, None


class _BatchUdf(_Udf):
    """A UDF of many rows."""

    def __call__(self, *columns: Any, **named: Any) -> Any:
        import numpy as np

        length = len([*columns, *named.values()][0])
        rows = np.arange(length)
        if self.flagged:
            good, *columns = columns  # type: ignore[assignment]
            rows = np.flatnonzero(np.asarray(good, dtype=bool))
        errors: list[str | None] = [None] * length
        #: Rows, and what the function made of them.
        made: list[tuple[Any, Any]] = []

        def call(rows: Any) -> None:
            try:
                values = self.function(
                    *(self._of(one, rows) for one in columns),
                    **{name: self._of(one, rows) for name, one in named.items()},
                )
                if len(values) != len(rows):
                    raise ValueError(f"it returned {len(values)} values for {len(rows)} rows")
            except Exception as error:
                if len(rows) == 1:
                    errors[rows[0]] = describe(error)
                else:
                    middle = len(rows) // 2
                    call(rows[:middle])
                    call(rows[middle:])
            else:
                made.append((rows, values))

        if len(rows):
            call(rows)
        return self._result(made, errors)

    def _of(self, column: Any, rows: Any) -> Any:
        """The values of these rows."""
        raise NotImplementedError

    def _result(self, made: Sequence[tuple[Any, Any]], errors: Sequence[str | None]) -> Any:
        """The values at their rows, beside the errors."""
        raise NotImplementedError


class PandasUdf(_BatchUdf):
    """A UDF of pandas series."""

    def _of(self, column: Any, rows: Any) -> Any:
        return column if len(rows) == len(column) else column.iloc[rows].reset_index(drop=True)

    def _result(
        self, made: Sequence[tuple[Any, Any]], errors: Sequence[str | None]
    ) -> pd.DataFrame:
        import pandas as pd

        said: pd.Series[Any] = pd.Series(list[Any](errors), dtype=object)
        if len(made) == 1 and len(made[0][0]) == len(errors):
            return pd.DataFrame({"value": _series(made[0][1]), "error": said})
        values: pd.Series[Any] = pd.Series([None] * len(errors), dtype=object)
        for rows, found in made:
            # As objects, since a null would make floats of integers.
            values.iloc[rows] = _series(found).astype(object).to_numpy()
        return pd.DataFrame({"value": values, "error": said})


class ArrowUdf(_BatchUdf):
    """A UDF of Arrow arrays."""

    def _of(self, column: Any, rows: Any) -> Any:
        import pyarrow as pa

        return column if len(rows) == len(column) else column.take(pa.array(rows))

    def _result(self, made: Sequence[tuple[Any, Any]], errors: Sequence[str | None]) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        kind = arrow_type(self.value_type)
        # Rows with an error have the null at the beginning.
        parts, places, at = [pa.nulls(1, kind)], np.zeros(len(errors), dtype=np.int64), 1
        for rows, found in made:
            array = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
            parts.append(array if array.type == kind else array.cast(kind))
            places[rows] = np.arange(at, at + len(rows))
            at += len(rows)
        whole = len(made) == 1 and at == len(errors) + 1
        values = parts[1] if whole else pa.concat_arrays(parts).take(pa.array(places))
        return pa.StructArray.from_arrays(
            [values, pa.array(errors, pa.string())], ["value", "error"]
        )


def _series(made: Any) -> Any:
    """The values of a pandas UDF as one column: those of a struct come as a frame."""
    import pandas as pd

    if isinstance(made, pd.DataFrame):
        return pd.Series(made.to_dict("records"), dtype=object)
    # By position, as Spark takes them, whatever the index.
    return (made if isinstance(made, pd.Series) else pd.Series(made)).reset_index(drop=True)
