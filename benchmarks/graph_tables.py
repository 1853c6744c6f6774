"""The expected content of a graph's two tables, computed with pyarrow alone, and its comparison.

The table of raw rows is far too large to be sorted for each run. It is compared by its aggregates
for each key: number of rows, sum of amounts, and sum and bounds of the times. The table of windows
is compared as it is. The closing rows, a day later, are left out of both: their windows may or may
not be open at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.inputs import SCHEMA as RAW
from benchmarks.runs import Side
from benchmarks.tables import SCHEMA as WINDOWS
from benchmarks.tables import TablesDifferError, files_in_spark_log


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected content of both tables."""

    #: Number of rows before the closing row, and the closing row's time.
    rows: int
    closing: pa.Scalar
    #: Aggregates of the raw rows for each key.
    raw: pa.Table
    windows: pa.Table


def expect(directory: Path) -> Expected:
    """Read the input and compute the expected content of both tables."""
    files = sorted(directory.glob("*.parquet"))
    closing = pq.read_table(files.pop())["ts"][0]
    counted = []
    for path in files:
        table = _read(path, RAW)
        minutes = table.append_column("minute", pc.floor_temporal(table["ts"], unit="minute"))
        counted.append(
            minutes.group_by(["minute", "key"])
            .aggregate([("ts", "count"), ("amount", "sum")])
            .rename_columns(["minute", "key", "orders", "amount"])
        )
    windows = (
        pa.concat_tables(counted)
        .group_by(["minute", "key"])
        .aggregate([("orders", "sum"), ("amount", "sum")])
    )
    return Expected(
        rows=sum(pq.read_metadata(path).num_rows for path in files),
        closing=closing,
        raw=_by_key(files, closing),
        windows=_sorted(windows.rename_columns(WINDOWS.names).cast(WINDOWS), ["minute", "key"]),
    )


def check_tables(directory: Path, side: Side, expected: Expected) -> None:
    """Check both tables below the directory. Raises ``TablesDifferError`` if one is wrong."""
    raw, windows = directory / "raw", directory / "minutes"
    if side is Side.WEIR:
        raw_files = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(raw)).file_uris()]
        window_files = sorted(windows.glob("*.parquet"))
    else:
        raw_files = files_in_spark_log(raw / "_spark_metadata")
        window_files = files_in_spark_log(windows / "_spark_metadata")
    if not _by_key(raw_files, expected.closing).equals(expected.raw):
        raise TablesDifferError(f"The raw table of {side.value} differs from the input.")
    found = pa.concat_tables(
        [_read(path, WINDOWS) for path in window_files] or [WINDOWS.empty_table()]
    )
    # The closing row's window may begin before that row.
    closing = pc.floor_temporal(expected.closing, unit="minute")
    found = _sorted(found.filter(pc.less(found["minute"], closing)), ["minute", "key"])
    if not found.equals(expected.windows):
        raise TablesDifferError(
            f"The window table of {side.value} has wrong or missing rows: {found.num_rows} rows,"
            f" {expected.windows.num_rows} expected."
        )


def _by_key(files: Iterable[Path], closing: pa.Scalar) -> pa.Table:
    """The aggregates for each key over the rows before the closing row."""
    parts = []
    for path in files:
        table = _read(path, RAW)
        table = table.filter(pc.less(table["ts"], closing))
        before_us = pc.subtract(closing, table["ts"]).cast(pa.int64())
        parts.append(
            table.set_column(0, "before_us", before_us)
            .group_by("key")
            .aggregate(
                [
                    ("amount", "count"),
                    ("amount", "sum"),
                    ("before_us", "sum"),
                    ("before_us", "min"),
                    ("before_us", "max"),
                ]
            )
            .rename_columns(["key", "rows", "amount", "before_us", "least_us", "most_us"])
        )
    whole = pa.concat_tables(parts).group_by("key")
    return _sorted(
        whole.aggregate(
            [
                ("rows", "sum"),
                ("amount", "sum"),
                ("before_us", "sum"),
                ("least_us", "min"),
                ("most_us", "max"),
            ]
        ),
        ["key"],
    )


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    return pq.ParquetFile(path).read().select(schema.names).cast(schema)


def _sorted(table: pa.Table, names: list[str]) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in names]).combine_chunks()
