"""Footers of Parquet files on a file system that is not local: only their end is read."""

from __future__ import annotations

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
