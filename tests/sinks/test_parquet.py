"""Footers of Parquet files on a file system that is not local: only their end is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.sinks.parquet import count_rows, read_footer
from weir.storage.local import LocalFileSystem


class Remote(LocalFileSystem):
    """Has a directory's files at ``s3a://bucket/``, and counts the bytes that are read."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.bytes_read = 0

    def read(self, path: str) -> bytes:
        raise AssertionError("the file is read whole")

    def read_end(self, path: str, size: int) -> bytes:
        name = path.removeprefix("s3a://bucket/")
        end = super().read_end(str(self._directory / name), size)
        self.bytes_read += len(end)
        return end


@pytest.mark.parametrize("columns", [1, 2_000], ids=["a short footer", "a long footer"])
def test_a_footer_is_read_from_the_end_of_the_file(tmp_path: Path, columns: int) -> None:
    """Its length stands in front of the last four bytes; a long one takes a second read."""
    path = tmp_path / "part.parquet"
    rows = pa.array(range(100_000 // columns))
    pq.write_table(pa.table({f"c{number}": rows for number in range(columns)}), path)
    remote = Remote(tmp_path)
    local = read_footer(LocalFileSystem(), str(path))
    assert read_footer(remote, "s3a://bucket/part.parquet") == local
    assert remote.bytes_read < path.stat().st_size
    assert count_rows(remote, "s3a://bucket/part.parquet") == len(rows)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_bounds_of_times_are_those_of_the_values(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    """A point in time is written in UTC; nanoseconds without a zone are not a type of Spark's."""
    path = tmp_path / "part.parquet"
    instants = [1_704_067_200_123, -62_135_596_800_000 if unit != "ns" else -1, 1_704_067_200_124]
    times = pa.array(instants, pa.timestamp("ms")).cast(pa.timestamp(unit, zone))
    pq.write_table(pa.table({"time": times}), path, row_group_size=1)
    statistics = json.loads(read_footer(LocalFileSystem(), str(path)).statistics)
    end = "" if zone is None else "Z"
    least = "1969-12-31T23:59:59.999000" if unit == "ns" else "0001-01-01T00:00:00.000000"
    assert statistics["minValues"] == {"time": least + end}
    assert statistics["maxValues"] == {"time": "2024-01-01T00:00:00.124000" + end}


def test_a_time_that_python_does_not_have_has_no_bound(tmp_path: Path) -> None:
    """Spark's years go to 294,247."""
    path = tmp_path / "part.parquet"
    times = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"time": times}), path)
    statistics = json.loads(read_footer(LocalFileSystem(), str(path)).statistics)
    assert (statistics["minValues"], statistics["maxValues"]) == ({}, {})


def test_reading_a_footer_does_not_import_pandas(tmp_path: Path) -> None:
    """It would take 0.7 s in the first commit of each run."""
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"time": pa.array([0], pa.timestamp("us", "UTC"))}), path)
    script = f"""
import sys
from weir.sinks.parquet import read_footer
from weir.storage.local import LocalFileSystem
print(read_footer(LocalFileSystem(), {str(path)!r}).rows, "pandas" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "False"]
