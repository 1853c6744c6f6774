"""Functions of Arrow batches over columns of any name (weir/sinks/arrow_rows.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from weir.sinks.arrow_rows import map_in_arrow

NAMES = ["a.b", "c`d", "`", ".", "ü\U0001f600", "e f", "g'h\"i", "j\\k", "a"]


def test_a_column_of_any_name_comes_with_its_name_and_values(spark: Any) -> None:
    """pyspark takes a dot for a field of a struct, and a backtick for a quote."""

    # Here, so that it is pickled by value: Spark's workers have no tests.
    def names_and_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {"name": name, "value": value}
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
                for value in column.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(rows)

    frame = spark.createDataFrame([tuple(range(len(NAMES)))], NAMES)
    found = map_in_arrow(frame, frame.columns, names_and_values, "name string, value long")
    assert {row["name"]: row["value"] for row in found.collect()} == {
        name: number for number, name in enumerate(NAMES)
    }
