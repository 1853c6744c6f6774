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
from weir.spark.rejects.conversion import RowConversion, no_texts, texts
from weir.spark.rejects.wrapper import Wrapper
from weir.spark.releases import arrow_type

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


#: The fields of what they return.
_FIELDS = ("value", "error")


@dataclass(frozen=True, kw_only=True)
class _Udf(Wrapper):
    #: Whether the first argument says if a row has no error yet.
    flagged: bool
    #: The type of the value.
    value_type: Any


@dataclass(frozen=True, kw_only=True)
class RowUdf(_Udf):
    """A UDF of one row, which Spark calls for each row."""

    #: Whether Spark takes what it returns as it is, without a conversion to the type.
    as_it_is: bool

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
                # Spark would do so later, where it fails the batch.
                converted = self._convert(value)
                value = converted if self.as_it_is else value
        except Exception as error:
            return None, describe(error)
        return value, None


@dataclass(frozen=True, kw_only=True)
class ArrowRowUdf(_Udf):
    """A UDF of one row, which gets the columns of many rows and calls the function for each.

    Rows and values are converted as Spark does for such a UDF. Spark itself would make each row's
    value and error a struct, which takes longer than most functions.
    """

    #: The types of its arguments, without the flag.
    argument_types: tuple[Any, ...]
    #: How Spark converts.
    conversion: RowConversion

    @cached_property
    def _readers(self) -> list[Callable[[pa.Array], list[Any]]]:
        return [self.conversion.reader(one) for one in self.argument_types]

    @cached_property
    def _convert(self) -> Callable[[Any], Any] | None:
        return self.conversion.converter(self.value_type)

    def __call__(self, *columns: pa.Array, **named: pa.Array) -> pa.Array:
        import pyarrow as pa

        errors: list[str | None] = [None] * len([*columns, *named.values()][0])
        skipped: Sequence[int] = ()
        if self.flagged:
            good, *columns = columns  # type: ignore[assignment]
            skipped = [number for number, one in enumerate(good.to_pylist()) if not one]
        given = zip(self._readers, [*columns, *named.values()], strict=True)
        rows = list(zip(*[read(column) for read, column in given], strict=True))
        values = self._called(rows, tuple(named), frozenset(skipped), errors)
        array = self._array(values, 0, errors)
        return pa.StructArray.from_arrays([array, pa.array(errors, pa.string())], _FIELDS)

    def _called(
        self,
        rows: Sequence[tuple[Any, ...]],
        names: tuple[str, ...],
        skipped: frozenset[int],
        errors: list[str | None],
    ) -> list[Any]:
        """The values of the rows; null where there is an error, or nothing was called."""
        function, convert = self.function, self._convert
        if names:
            function = _with_names(function, names)
        values: list[Any] = []
        for number, row in enumerate(rows):
            value = None
            if number not in skipped:
                try:
                    value = function(*row)
                    if convert is not None:
                        value = convert(value)
                except Exception as error:
                    value, errors[number] = None, describe(error)
            values.append(value)
        return values

    def _array(self, values: list[Any], first: int, errors: list[str | None]) -> pa.Array:
        """The values, the first of which is of the row ``first``, with nulls for unfit ones."""
        import pyarrow as pa

        kind = arrow_type(self.value_type)
        try:
            try:
                return pa.array(values, kind)
            except pa.ArrowInvalid:
                return pa.array(values).cast(kind, safe=self.conversion.is_safe)
        except Exception as error:
            if len(values) == 1:
                errors[first] = describe(error)
                return pa.nulls(1, kind)
            middle = len(values) // 2
            halves = (values[:middle], first), (values[middle:], first + middle)
            return pa.concat_arrays([self._array(*half, errors) for half in halves])


def _with_names(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """The function with its last arguments passed by name."""
    return lambda *row: function(
        *row[: -len(names)], **dict(zip(names, row[-len(names) :], strict=True))
    )


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

        if len(made) == 1 and len(made[0][0]) == len(errors):
            values = _series(made[0][1])
            # Of one index, and by position: pandas and Spark would compare indexes and names.
            return pd.DataFrame({0: values, 1: no_texts(values.index)}, copy=False)
        values = pd.Series([None] * len(errors), dtype=object)
        for rows, found in made:
            # As objects, since a null would make floats of integers.
            values.iloc[rows] = _series(found).astype(object).to_numpy()
        return pd.DataFrame({0: values, 1: texts(errors)})


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
        return pa.StructArray.from_arrays([values, pa.array(errors, pa.string())], _FIELDS)


def _series(made: Any) -> Any:
    """The values of a pandas UDF as one column: those of a struct come as a frame."""
    import pandas as pd

    if isinstance(made, pd.DataFrame):
        return pd.Series(made.to_dict("records"), dtype=object)
    # By position, as Spark takes them, whatever the index.
    return (made if isinstance(made, pd.Series) else pd.Series(made)).reset_index(drop=True)
