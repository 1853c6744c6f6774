"""Reading what each side wrote, with pyarrow, and comparing it as multisets of rows."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
    """The two sides did not write the same rows: their times mean nothing."""


def read_table(directory: Path, side: Side) -> pa.Table:
    """The committed rows, sorted. On the plain sides the files are those that Spark's own log names."""
    if side is Side.WEIR:
        files = sorted(path for path in directory.glob("*.parquet"))
    else:
        files = files_in_spark_log(directory / "_spark_metadata")
    tables = [pq.ParquetFile(path).read().cast(SCHEMA) for path in files]
    return pa.concat_tables([*tables, SCHEMA.empty_table()]).sort_by(
        [(name, "ascending") for name in SCHEMA.names]
    )


def check_same(plain: pa.Table, weir: pa.Table, input_rows: int) -> None:
    """Raises ``TablesDifferError`` unless both have the same rows and these account for all the input."""
    counted = pc.sum(plain.column("orders")).as_py() or 0
    if counted != input_rows:
        raise TablesDifferError(f"The plain query counted {counted} of {input_rows} rows.")
    if not plain.equals(weir):
        raise TablesDifferError(
            f"The tables differ: the plain query wrote {plain.num_rows} rows, Weir {weir.num_rows}."
        )


def files_in_spark_log(log: Path) -> list[Path]:
    """Files of the newest compacted entry and of all entries after it."""
    entries = {
        int(path.name.removesuffix(".compact")): path for path in log.iterdir() if path.name[0].isdigit()
    }
    compacted = max((number for number, path in entries.items() if path.suffix == ".compact"), default=0)
    files: dict[Path, None] = {}
    for number in sorted(entries):
        if number >= compacted:
            for line in entries[number].read_text().splitlines()[1:]:
                files[Path(unquote(urlparse(json.loads(line)["path"]).path))] = None
    return list(files)
