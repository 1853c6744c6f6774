"""Reads the tables of each side with pyarrow, and compares them as multisets of rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.runs import Side

SCHEMA = pa.schema(
    [
        ("minute", pa.timestamp("us", tz="UTC")),
        ("key", pa.int32()),
        ("orders", pa.int64()),
        ("amount", pa.int64()),
    ]
)


class TablesDifferError(Exception):
    """A side did not write the right rows: its times mean nothing."""


def read_table(directory: Path, side: Side) -> pa.Table:
    """The committed rows, sorted; on the plain sides from the files that Spark's log names."""
    if side is Side.WEIR:
        files = sorted(path for path in directory.glob("*.parquet"))
    else:
        files = files_in_spark_log(directory / "_spark_metadata")
    tables = [pq.ParquetFile(path).read().cast(SCHEMA) for path in files]
    return pa.concat_tables([*tables, SCHEMA.empty_table()]).sort_by(
        [(name, "ascending") for name in SCHEMA.names]
    )


def check_same(plain: pa.Table, weir: pa.Table, input_rows: int) -> None:
    """Check that both tables have the same rows, and that these account for all of the input.

    Raises ``TablesDifferError``.
    """
    counted = pc.sum(plain.column("orders")).as_py() or 0
    if counted != input_rows:
        raise TablesDifferError(f"The plain query counted {counted} of {input_rows} rows.")
    if not plain.equals(weir):
        raise TablesDifferError(
            f"The tables differ: the plain query wrote {plain.num_rows} rows, Weir {weir.num_rows}."
        )


def committed_files(table: Path) -> list[Path]:
    """The Parquet files that readers of a table without a Delta log see; none before it exists.

    These are the files that Spark's log names, or without a log the files in the directory, as
    ``weir.sinks.Files`` commits them.
    """
    log = table / "_spark_metadata"
    return files_in_spark_log(log) if log.exists() else sorted(table.glob("*.parquet"))


def has_rows(table: Path) -> bool:
    """Whether a row is committed; Spark also commits files without rows."""
    if _has_delta_log(table):
        return int(DeltaTable(table).count()) > 0
    return any(pq.read_metadata(path).num_rows for path in committed_files(table))


def read_committed(table: Path, schema: pa.Schema) -> pa.Table:
    """The rows that the table's readers see, with the columns and types of the schema."""
    if _has_delta_log(table):
        found = DeltaTable(table).to_pyarrow_table()
    else:
        files = [str(path) for path in committed_files(table)]
        dataset = ds.dataset(
            files, format="parquet", partitioning="hive", partition_base_dir=str(table)
        )
        found = dataset.to_table()
    return found.select(schema.names).cast(schema)


def _has_delta_log(table: Path) -> bool:
    return any((table / "_delta_log").glob("*.json"))


def check_part(name: str, found: pa.Table, expected: pa.Table) -> None:
    """Check that the found rows are expected rows, none of them more often than expected.

    Raises ``TablesDifferError``.
    """
    surplus = _counted(found) - _counted(expected)
    if surplus:
        row, times = surplus.most_common(1)[0]
        raise TablesDifferError(
            f"{name} has {surplus.total()} surplus rows, for example {row}, {times} of them."
        )


def _counted(table: pa.Table) -> Counter[tuple[object, ...]]:
    """How often each row occurs."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def files_in_spark_log(log: Path) -> list[Path]:
    """The files of the newest compacted entry and of all entries after it."""
    entries = {
        int(path.name.removesuffix(".compact")): path
        for path in log.iterdir()
        if path.name[0].isdigit()
    }
    compacted = max(
        (number for number, path in entries.items() if path.suffix == ".compact"), default=0
    )
    files: dict[Path, None] = {}
    for number in sorted(entries):
        if number >= compacted:
            for line in entries[number].read_text().splitlines()[1:]:
                files[Path(unquote(urlparse(json.loads(line)["path"]).path))] = None
    return list(files)
