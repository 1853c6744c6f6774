"""What manifests say of data files, from footers that pyarrow writes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType
from tests.kit.iceberg_warehouse import Warehouse, stage_by_hand

from weir.errors import SinkMismatchError
from weir.sinks.iceberg.files import described
from weir.sinks.iceberg.partitions import partition_of
from weir.sinks.iceberg.payload import StagedDataFile
from weir.storage.local import LocalFileSystem

ROWS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "text", StringType(), required=False),
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("text", pa.string(), metadata={"PARQUET:field_id": "2"}),
    ]
)


def written(path: Path, texts: list[str | None], *, statistics: bool = True) -> pq.FileMetaData:
    table = pa.table([list(range(len(texts))), texts], ARROW)
    pq.write_table(table, path, write_statistics=statistics or ["id"])
    return pq.read_metadata(path)


def details(path: Path) -> StagedDataFile:
    file = StagedDataFile(path=path.name, size=path.stat().st_size)
    return described(LocalFileSystem(), str(path), file, rows=ROWS, partition=[], properties={})


def without_null_count(path: Path) -> pq.FileMetaData:
    """The footer, but its statistics are as Spark's of long text: there, and empty."""
    # In Thrift, the count of 77 nulls is field 3; no reader knows a field 9.
    path.write_bytes(path.read_bytes().replace(b"\x36\x9a\x01", b"\x96\x9a\x01"))
    footer = pq.read_metadata(path)
    statistics = footer.row_group(0).column(1).statistics
    assert statistics is not None and not statistics.has_null_count
    return footer


@pytest.mark.parametrize("has_statistics", [False, True])
def test_nulls_are_counted_only_if_every_row_group_counts_them(tmp_path, has_statistics):
    """A count that leaves out a row group would hide its nulls from readers."""
    footer = written(tmp_path / "one", ["a", "b"])
    other = written(tmp_path / "two", [None] * 77, statistics=has_statistics)
    footer.append_row_groups(without_null_count(tmp_path / "two") if has_statistics else other)
    footer.write_metadata_file(tmp_path / "both")
    number, text = details(tmp_path / "both").columns or []
    assert (number.values, number.nulls) == (79, 0)
    assert number.lower is not None
    assert (text.values, text.nulls, text.lower, text.upper) == (79, None, None, None)
    (_, counted) = details(tmp_path / "one").columns or []
    assert (counted.nulls, counted.lower, counted.upper) == (0, b"a", b"b")


def test_text_whose_upper_bound_cannot_be_written_has_no_bounds(tmp_path):
    """A shortened bound ends in the next greater character, which U+D7FF does not have."""
    written(tmp_path / "odd", ["x" * 15 + "\ud7ff" + "y", None])
    number, text = details(tmp_path / "odd").columns or []
    assert number.upper == (1).to_bytes(8, "little")
    assert (text.values, text.nulls, text.lower, text.upper) == (2, 1, None, None)


@pytest.mark.parametrize("text", ["9" * 28 + ".0123456789", "-" + "9" * 38 + "E-10", "0E-10"])
def test_decimal_partitions_have_all_their_digits(text):
    """Up to 38, of which Python's own context keeps 28; Spark may write an exponent."""
    schema = Schema(NestedField(1, "amount", DecimalType(38, 10), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "amount"))
    (found,) = partition_of(spec, schema, [text])
    assert (found, found.as_tuple().exponent) == (Decimal(text), -10)


def test_what_cannot_be_committed_fails_before_the_checkpoint(tmp_path, monkeypatch):
    """Else each restart would fail again, with rows that no checkpoint can do without."""
    sink = Warehouse(None, tmp_path / "warehouse").opened()
    staged = stage_by_hand(sink, 0, 1)
    monkeypatch.setattr("weir.sinks.iceberg.partitions.texts_of", lambda *_: ["one too many"])
    with pytest.raises(SinkMismatchError, match="files cannot be understood"):
        sink.flush([staged])
