"""``FileReader`` and files from public reports, in which readers lost or changed values.

Cases name their reports. The rows are those that the writer meant; a text instead of rows is what
the refusal says.
"""

from __future__ import annotations

import codecs
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sources.test_files_of_others import INSTANT, parquet, rows

from weir.sources.formats.csv_rows import whole

TEXT = pa.string()
LONG = pa.int64()
UNCLOSED = "line 3: a value in quotes has no closing quote, or text behind it"
UINT64 = parquet(pa.table({"n": pa.array([2**64 - 1, 1], pa.uint64())}))
NANOS = pa.timestamp("ns", "UTC")

CSV: list[tuple[str, bytes, list[dict[str, Any]] | str]] = [
    (
        "apache/spark#57608: a line break within quotes",
        b'id,t\r\n1,"a\r\nb"\r\n2,c\r\n',
        [{"id": 1, "t": "a\r\nb"}, {"id": 2, "t": "c"}],
    ),
    (
        "apache/spark#54812: an empty quoted value in the last column",
        b'id,t\n1,""\n2,"x"',
        [{"id": 1, "t": None}, {"id": 2, "t": "x"}],
    ),
    (
        "databricks/spark-csv#433: empty lines within quotes",
        b'id,t\n1,"a\n\nb ""c"""\n',
        [{"id": 1, "t": 'a\n\nb "c"'}],
    ),
    ("apache/spark#38446: a quote behind a backslash", b'id,t\n0,x\n1,"a\\"b"\n', UNCLOSED),
    (
        "apache/spark#38446: such quotes in two values",
        b'id,t\n0,x\n1,"a\\"",\n2,"b\\""\n',
        UNCLOSED,
    ),
    (
        "apache/spark#38446: a backslash that ends a value",
        b'id,t\n1,"C:\\dir\\"\n2,c\n',
        [{"id": 1, "t": "C:\\dir\\"}, {"id": 2, "t": "c"}],
    ),
    ("apache/carbondata#107: a quote that is never closed", b'id,t\n0,x\n1,"a\n2,b\n', UNCLOSED),
    (
        "a quote within a value without quotes",
        b'id,t\n1,5" pipe\n2,c\n',
        [{"id": 1, "t": '5" pipe'}, {"id": 2, "t": "c"}],
    ),
    (
        "AndreaBozzo/dataprof#497: the mark of UTF-8 before the header",
        codecs.BOM_UTF8 + b"id,t\n1,a\n",
        [{"id": 1, "t": "a"}],
    ),
    ("Excel: every line ends with a comma", b"id,t,\n1,a,\n", [{"id": 1, "t": "a"}]),
    ("Excel: numbers with separators", b'id,t\n"1,234",a\n', "line 2: column 'id'"),
    ("databricks/spark-csv#290: null as a word", b"id,t\nnull,a\n", "line 2: column 'id'"),
    ("a row that was cut", b"id,t\n1\n2,b\n", "line 2"),
    (
        "a line separator of Unicode",
        "id,t\n1,a\u2028b\n".encode(),
        [{"id": 1, "t": "a\u2028b"}],
    ),
]

JSON: list[tuple[str, bytes, list[dict[str, Any]] | str]] = [
    (
        "duckdb/duckdb#16568: the mark of UTF-8 before the first record",
        codecs.BOM_UTF8 + b'{"id":1,"t":"a"}\n{"id":2,"t":"b"}\n',
        [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}],
    ),
    (
        "apache/spark#20849: UTF-16 with its mark",
        '{"id":1}\r\n{"id":2}\r\n'.encode("utf-16"),
        "UTF-16",
    ),
    (
        "apache/spark#20849: UTF-16 without its mark",
        '{"id":1}\r\n{"id":2}\r\n'.encode("utf-16-le"),
        "line 1",
    ),
    ("one array instead of lines", b'[{"id":1},{"id":2}]', "line 1"),
    ("records over several lines", b'{\n "id": 1\n}\n', "line 1"),
    ("two records in a line", b'{"id":1}{"id":2}\n', "line 1"),
    ("a number beyond 64 bits", b'{"id":9223372036854775808}\n', "line 1: column 'id'"),
    ("half of a surrogate pair", b'{"id":1,"t":"a\\ud800b"}\n', "line 1"),
    ("a zero in a text", b'{"id":1,"t":"a\\u0000b"}\n', [{"id": 1, "t": "a\0b"}]),
]

PARQUET: list[tuple[str, bytes, pa.DataType, list[Any] | str]] = [
    ("apache/spark#31960: an unsigned number beyond 63 bits", UINT64, LONG, "column 'n'"),
    (
        "apache/spark#31960: unsigned numbers of 32 bits",
        parquet(pa.table({"n": pa.array([2**32 - 1], pa.uint32())})),
        LONG,
        [2**32 - 1],
    ),
    (
        "apache/spark#39905: whole microseconds as nanoseconds",
        parquet(pa.table({"n": pa.array([1700000000123456000], NANOS)}), version="2.6"),
        INSTANT,
        [datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)],
    ),
    (
        "apache/spark#39905: nanoseconds",
        parquet(pa.table({"n": pa.array([1700000000123456789], NANOS)}), version="2.6"),
        INSTANT,
        "column 'n'",
    ),
    (
        "NVIDIA/cudf-spark#2302: years beyond nanoseconds as INT96",
        parquet(
            pa.table({"n": pa.array([datetime(8669, 7, 20, 4, 45, 57, tzinfo=UTC)], INSTANT)}),
            use_deprecated_int96_timestamps=True,
        ),
        INSTANT,
        [datetime(8669, 7, 20, 4, 45, 57, tzinfo=UTC)],
    ),
    (
        "a decimal of a larger scale that loses nothing",
        parquet(pa.table({"n": [Decimal("1.5000")]})),
        pa.decimal128(10, 2),
        [Decimal("1.50")],
    ),
]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("file", "data", "expected"),
    [
        *(pytest.param("a.csv", data, expected, id=report) for report, data, expected in CSV),
        *(pytest.param("a.json", data, expected, id=report) for report, data, expected in JSON),
    ],
)
def test_a_reported_text_is_read_as_it_was_meant_or_refused(
    tmp_path: Path, file: str, data: bytes, expected: list[dict[str, Any]] | str, rejects: bool
) -> None:
    """A refusal names the line, as far as there are lines."""
    found = rows(tmp_path, data, file, rejects=rejects, id=LONG, t=TEXT)
    if isinstance(expected, list):
        assert found == expected
        return
    assert isinstance(found, str)
    found = found.replace("'line': ", "line ")
    assert all(part in found for part in expected.split(": "))


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("data", "type", "expected"),
    [pytest.param(data, type, expected, id=report) for report, data, type, expected in PARQUET],
)
def test_a_reported_column_is_read_as_it_was_meant_or_refused(
    tmp_path: Path, data: bytes, type: pa.DataType, expected: list[Any] | str, rejects: bool
) -> None:
    """A refusal names the column."""
    found = rows(tmp_path, data, "a.parquet", rejects=rejects, n=type)
    if isinstance(expected, str):
        assert expected in found
    else:
        assert found == [{"n": value} for value in expected]


def test_a_header_whose_quote_is_never_closed_is_refused(tmp_path: Path) -> None:
    """It would take the whole file for one name."""
    data = b'"id,t\n1,a\n'
    assert whole(data) == 0
    assert "closing quote" in rows(tmp_path, data, "a.csv", id=LONG, t=TEXT)
