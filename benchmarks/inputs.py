"""The benchmarks' input: Parquet files in event-time order, and a last one that closes all windows.

Each file covers its own range of event time. Modification times are one second apart, since Spark's
file source admits files in that order: so both sides read the same files in the same batches, and
no row is late. The last file has a single row one day later. It moves the watermark past every
window before it; its own window stays open on both sides.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.demo.landing import write_atomically

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", tz="UTC")), ("key", pa.int32()), ("amount", pa.int64())],
)

#: 2024-01-01T00:00:00Z, the first event time.
_FIRST_US = 1_704_067_200_000_000
_DAY_US = 86_400_000_000
_AMOUNT_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class InputSize:
    """The size of an input."""

    files: int
    rows_per_file: int
    #: Distinct values of ``key``.
    keys: int
    #: Seconds of event time that one file covers.
    seconds_per_file: int

    @property
    def rows(self) -> int:
        """Rows of all files except the closing one."""
        return self.files * self.rows_per_file


def write_input(directory: Path, size: InputSize) -> None:
    """Write the files; the same size gives the same rows."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(7)
    span_us = size.seconds_per_file * 1_000_000
    first_mtime_s = int(time.time()) - size.files - 10
    for number in range(size.files):
        begin_us = _FIRST_US + number * span_us
        table = pa.table(
            [
                pa.array(rng.integers(begin_us, begin_us + span_us, size.rows_per_file)).cast(
                    SCHEMA.field(0).type
                ),
                pa.array(rng.integers(0, size.keys, size.rows_per_file, dtype=np.int32)),
                pa.array(rng.integers(0, _AMOUNT_MAX, size.rows_per_file)),
            ],
            schema=SCHEMA,
        )
        path = directory / f"{number:06}.parquet"
        write_atomically(table, path, mtime_s=first_mtime_s + number)
    closing = pa.table(
        [
            pa.array([_FIRST_US + size.files * span_us + _DAY_US]).cast(SCHEMA.field(0).type),
            pa.array([0], pa.int32()),
            pa.array([0]),
        ],
        schema=SCHEMA,
    )
    path = directory / f"{size.files:06}.parquet"
    write_atomically(closing, path, mtime_s=first_mtime_s + size.files)


def link_input(directory: Path, target: Path) -> None:
    """Link the files, which keeps modification times, into a directory that a run may add to."""
    target.mkdir(parents=True)
    for path in directory.glob("*.parquet"):
        os.link(path, target / path.name)


def write_row_after(directory: Path) -> None:
    """Add a file with one row, a day after the closing one.

    A query may emit the windows that a watermark closes only with its next batch; this row causes
    that batch.
    """
    last = max(directory.glob("*.parquet"))
    closing = pq.read_table(last, schema=SCHEMA)
    later = pa.array([closing["ts"][0].value + _DAY_US], SCHEMA.field(0).type)
    path = directory / f"{int(last.stem) + 1:06}.parquet"
    row = closing.set_column(0, SCHEMA.field(0), later)
    write_atomically(row, path, mtime_s=int(last.stat().st_mtime) + 1)
