"""``FileReader`` and files as other programs write them: read as they were meant, or refused."""

from __future__ import annotations

import bz2
import gzip
import io
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sources.test_file_reader import FakeContext

from weir.errors import InputError, PipelineError
from weir.sources.file_listing import FileSplit
from weir.sources.file_reader import FileReader
from weir.sources.formats.opening import read_file
from weir.sources.formats.records import PIECE_BYTES

INSTANT = pa.timestamp("us", "UTC")


def rows(
    directory: Path, data: bytes, file: str, *, rejects: bool = False, **schema: pa.DataType
) -> list[dict[str, Any]] | str:
    """The rows of a file, or why there are none or fewer."""
    (directory / file).write_bytes(data)
    context = FakeContext()
    context.schema = pa.schema(list(schema.items()))
    suffix = file.split(".")[1]
    format = "ipc" if suffix == "arrow" else suffix
    reader = FileReader(context, str(directory), format=format, rejects=rejects)
    reader.add_splits([FileSplit(file)])
    try:
        found = [one.batch for one in reader.read(1) if one.batch is not None]
    except InputError as error:
        return str(error)
    (*rejected, _) = context.sent
    return str(rejected) if rejected else [row for batch in found for row in batch.to_pylist()]


def parquet(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def arrow(table: pa.Table) -> bytes:
    """A file in Arrow's file format."""
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


COLUMNAR: list[tuple[str, Callable[[pa.Table], bytes]]] = [
    ("a.parquet", parquet),
    ("a.arrow", arrow),
]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"Number,LABEL\n1,a\n"),
        ("a.json", b'{"Number": 1, "LABEL": "a"}\n'),
        ("a.json", b'{"NUMBER" :1, "l\\u0061bel": "a", "x": {"number": 2, "s": "{\\""}}'),
        ("a.parquet", parquet(pa.table({"Number": [1], "LABEL": ["a"]}))),
        ("a.arrow", arrow(pa.table({"Number": [1], "LABEL": ["a"]}))),
    ],
)
def test_the_case_of_names_does_not_matter(
    tmp_path: Path, name: str, data: bytes, rejects: bool
) -> None:
    """As for Spark's reader of Parquet, in every format."""
    schema = {"number": pa.int64(), "label": pa.string()}
    assert rows(tmp_path, data, name, rejects=rejects, **schema) == [{"number": 1, "label": "a"}]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"id,ID\n1,2\n"),
        ("a.json", b'{"id": 1, "ID": 2}\n'),
        ("a.json", b'{"id": 1, "id": 2}\n'),
        (
            "a.parquet",
            parquet(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])),
        ),
        ("a.parquet", parquet(pa.table({"id": [1], "Id": [2]}))),
        (
            "a.arrow",
            arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])),
        ),
    ],
)
def test_two_columns_of_one_name_are_refused_by_name(
    tmp_path: Path, name: str, data: bytes, rejects: bool
) -> None:
    """Nobody knows which one is meant."""
    assert "'id'" in rows(tmp_path, data, name, rejects=rejects, id=pa.int64())


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"1,a\n2,b\n"),
        ("a.csv", b"number;label\n1;a\n"),
        ("a.csv", b"number\tlabel\n1\ta\n"),
        ("a.csv", b"number, label\n1, a\n"),
        ("a.csv", "number,label\n1,a\n".encode("utf-16")),
        ("a.json", b'{"x": 1}\n{"y": 2}\n'),
        ("a.json", '{"number": 1}\n'.encode("utf-16")),
        ("a.parquet", parquet(pa.table({"x": [1]}))),
        ("a.arrow", arrow(pa.table({"x": [1]}))),
    ],
)
def test_a_file_with_none_of_the_columns_is_unreadable(
    tmp_path: Path, name: str, data: bytes, rejects: bool
) -> None:
    """It has no header, another separator or encoding, or another content: rows of nulls are no
    data."""
    found = rows(tmp_path, data, name, rejects=rejects, number=pa.int64(), label=pa.string())
    assert isinstance(found, str)
    assert any(word in found for word in ("number", "label", "UTF-16"))


def test_a_record_without_keys_is_a_row_of_nulls(tmp_path: Path) -> None:
    """Writers of JSON leave out keys without a value."""
    assert rows(tmp_path, b"{}\n{}", "a.json", id=pa.int64()) == [{"id": None}, {"id": None}]
    data = b'{"other": 1}\n{"id": 1}\n'
    assert rows(tmp_path, data, "a.json", id=pa.int64()) == [{"id": None}, {"id": 1}]


def test_a_column_that_first_occurs_late_in_a_file_is_read(tmp_path: Path) -> None:
    """No schema is taken from the start of a file."""
    data = b'{"id": 0}\n' * (2 * PIECE_BYTES // 10) + b'{"id": 1, "x": 1.5}\n'
    found = rows(tmp_path, data, "a.json", id=pa.int64(), x=pa.float64())
    assert found[-1] == {"id": 1, "x": 1.5}


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "start", "end"),
    [("a.json", b'{"v": "', b'"}\n'), ("a.csv", b'v\n"', b'"\n'), ("a.csv", b"v\n", b"\n")],
)
def test_a_record_may_be_longer_than_a_piece(
    tmp_path: Path, name: str, start: bytes, end: bytes, rejects: bool
) -> None:
    """The piece grows."""
    value = b"x" * (3 * PIECE_BYTES)
    found = rows(tmp_path, start + value + end, name, rejects=rejects, v=pa.string())
    assert found == [{"v": value.decode()}]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'\xef\xbb\xbf{"v": "a"}\r\n\r\n{"v": "b"}\r{"v": "c"}\n{"v": "d"}'),
        ("a.csv", b'\xef\xbb\xbf\r\nv,w\r\na,\r\n\r\n"b",1\r"c","\n""\r\n"\nd,'),
    ],
)
def test_pieces_of_any_size_give_the_same_rows(
    tmp_path: Path, name: str, data: bytes, piece_bytes: int, rejects: bool
) -> None:
    """Line breaks, quotes and UTF-8's mark may be cut in two."""
    (tmp_path / name).write_bytes(data)
    schema = pa.schema([("v", pa.string())])
    found = read_file(
        tmp_path / name, name[2:], schema, pytest.fail, partitions={}, piece_bytes=piece_bytes
    )
    assert [row["v"] for batch in found for row in batch.to_pylist()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("piece_bytes", [1, 10, 1_000])
def test_lines_are_counted_through_all_pieces(tmp_path: Path, piece_bytes: int) -> None:
    """Also lines within values, and those that end with two characters."""
    text = b'\r\nid,v\r\n1,"a\r\nb\rc"\r\n\r\nx,d\r2,e\ny,f'
    (tmp_path / "a").write_bytes(text)
    schema, bad = pa.schema([("id", pa.int64())]), []
    found = read_file(
        tmp_path / "a",
        "csv",
        schema,
        lambda line, _: bad.append(line),
        partitions={},
        piece_bytes=piece_bytes,
    )
    assert [row["id"] for batch in found for row in batch.to_pylist()] == [1, 2]
    assert bad == [7, 9]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("codec", ["gz", "bz2", "zst", "lz4", "br"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_compressed_file_is_read_whole_or_not_at_all(
    tmp_path: Path, format: str, codec: str, rejects: bool
) -> None:
    """As its name says; several streams may follow each other, and none may be cut."""
    header, rest = (b"id\n", b"1\n2\n") if format == "csv" else (b'{"id": 1}\n', b'{"id": 2}\n')
    arrow_names = {"gz": "gzip", "zst": "zstd", "br": "brotli"}

    def packed(text: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, arrow_names.get(codec, codec)) as out:
            out.write(text)
        whole: bytes = sink.getvalue().to_pybytes()
        return whole

    name, want = f"a.{format}.{codec}", [{"id": 1}, {"id": 2}]
    data = packed(header) + packed(rest)
    assert rows(tmp_path, data, name, rejects=rejects, id=pa.int64()) == want
    cut = rows(tmp_path, data[:-1], name, rejects=rejects, id=pa.int64())
    assert isinstance(cut, str) and "Truncated" in cut
    plain = rows(tmp_path, header + rest, name, rejects=rejects, id=pa.int64())
    assert isinstance(plain, str)


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("a.csv.xz", b"id\n1\n", ".xz"),
        ("a.json.snappy", b'{"id": 1}\n', ".snappy"),
        ("a.csv.ZIP", b"id\n1\n", ".ZIP"),
        ("a.csv", gzip.compress(b"id\n1\n", mtime=0), "gzip"),
        ("a.json", bz2.compress(b'{"id": 1}\n'), "bz2"),
        ("a.json", b"\xfd7zXZ\x00...", "xz"),
    ],
)
def test_other_compressions_are_refused_by_name(
    tmp_path: Path, name: str, data: bytes, word: str, rejects: bool
) -> None:
    """So is a compressed file whose name does not say so."""
    found = rows(tmp_path, data, name, rejects=rejects, id=pa.int64())
    assert isinstance(found, str) and word in found.split("rejected")[-1]


def test_a_header_without_rows_is_no_damage(tmp_path: Path) -> None:
    """Python's ``csv`` says the same."""
    for data in (b"id,name", b"id,name\n", b"\n\nid,name\n\n", b"\n"):
        assert rows(tmp_path, data, "a.csv", id=pa.int64(), name=pa.string()) == []


def test_an_empty_value_of_csv_is_null(tmp_path: Path) -> None:
    """Also within quotes, as for Spark and pandas; a word that others take for null is text."""
    data = b'id,name\n1,\n2,""\n,NULL\n'
    want = [
        {"id": 1, "name": None},
        {"id": 2, "name": None},
        {"id": None, "name": "NULL"},
    ]
    assert rows(tmp_path, data, "a.csv", id=pa.int64(), name=pa.string()) == want


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"x\nNaN\nInf\n-Infinity\n"),
        ("a.json", b'{"x": NaN}\n{"x": Infinity, "y": "NaN"}\n{"x": "-Infinity"}\n'),
    ],
)
def test_numbers_that_are_not_finite_are_read(tmp_path: Path, name: str, data: bytes) -> None:
    """As Spark and Python do."""
    found = rows(tmp_path, data, name, x=pa.float64())
    assert math.isnan(found[0]["x"])  # type: ignore[arg-type, index]
    assert found[1:] == [{"x": math.inf}, {"x": -math.inf}]


def test_json_has_every_type(tmp_path: Path) -> None:
    """Dates and times are texts, bytes are Base64, maps are objects."""
    line = (
        b'{"day": "2026-03-01", "at": "2026-03-01T12:00:00+01:00", "local": "2026-03-01 12:00:00",'
        b' "bytes": "aGVsbG8=", "map": {"a": 1, "b": null}, "list": [{"D": "2026-03-01"}, null],'
        b' "money": 1.10, "small": -128, "yes": true}\n'
    )
    found = rows(
        tmp_path,
        line + b"{}\n",
        "a.json",
        day=pa.date32(),
        at=INSTANT,
        local=pa.timestamp("us"),
        bytes=pa.binary(),
        map=pa.map_(pa.string(), pa.int32()),
        list=pa.list_(pa.struct([("d", pa.date32()), ("x", pa.string())])),
        money=pa.decimal128(9, 2),
        small=pa.int8(),
        yes=pa.bool_(),
    )
    assert found[0] == {
        "day": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 11, tzinfo=UTC),
        "local": datetime(2026, 3, 1, 12),
        "bytes": b"hello",
        "map": [("a", 1), ("b", None)],
        "list": [{"d": date(2026, 3, 1), "x": None}, None],
        "money": Decimal("1.10"),
        "small": -128,
        "yes": True,
    }
    assert set(found[1].values()) == {None}  # type: ignore[attr-defined]


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-03-01T00:00:00", INSTANT),
        ("2026-03-01", INSTANT),
        ("2026-03-01T00:00:00Z", pa.timestamp("us")),
        ("2026-03-01T00:00:00.0000001Z", INSTANT),
        ("2026-02-30", pa.date32()),
        ("1.239", pa.decimal128(10, 2)),
        ("123456789012", pa.decimal128(10, 2)),
        ("1.5", pa.int64()),
        ("0x10", pa.int64()),
        ("300", pa.int8()),
        ("9223372036854775808", pa.int64()),
        ("1e400", pa.float64()),
        ("1e39", pa.float32()),
        ("1", pa.bool_()),
        ("NaN", pa.decimal128(10, 2)),
        ("null", pa.int64()),
    ],
)
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_text_that_is_no_value_of_its_type_is_refused_by_column(
    tmp_path: Path, format: str, text: str, kind: pa.DataType, rejects: bool
) -> None:
    """Nothing is rounded, guessed, or taken for null."""
    quoted = text if pa.types.is_floating(kind) or pa.types.is_integer(kind) else f'"{text}"'
    if (format, text) == ("json", "null"):
        quoted = '"null"'
    data = f"v\n{text}\n" if format == "csv" else f'{{"v": {quoted}}}\n'
    found = rows(tmp_path, data.encode(), f"a.{format}", rejects=rejects, v=kind)
    assert isinstance(found, str), found
    assert "'v'" in found or "$.v" in found or "out of range" in found or "malformed" in found


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize("file", COLUMNAR)
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([datetime(2026, 3, 1)], pa.timestamp("us")), INSTANT),
        (pa.array([datetime(2026, 3, 1)], INSTANT), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("ns", "UTC")), INSTANT),
        (pa.array([1.239]), pa.decimal128(10, 2)),
        (pa.array([1.5]), pa.decimal128(10, 2)),
        (pa.array([Decimal("1.239")]), pa.decimal128(10, 2)),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([300]), pa.int8()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([True]), pa.int32()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([[b"\xff"]]), pa.list_(pa.string())),
        (pa.array([{"other": 1}]), pa.struct([("a", pa.int64())])),
        (pa.array([{"a": 1, "A": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([date(2026, 3, 1)]), INSTANT),
    ],
)
def test_a_column_of_another_meaning_is_refused_by_name(
    tmp_path: Path,
    file: tuple[str, Callable[[pa.Table], bytes]],
    values: pa.Array,
    kind: pa.DataType,
    rejects: bool,
) -> None:
    """A time without a zone is no instant, and nothing is rounded."""
    name, write = file
    found = rows(tmp_path, write(pa.table({"v": values})), name, rejects=rejects, v=kind)
    assert isinstance(found, str) and "'v'" in found.replace("\\", "")


@pytest.mark.parametrize("file", COLUMNAR)
@pytest.mark.parametrize(
    ("values", "kind", "want"),
    [
        (pa.array([300], pa.int16()), pa.int64(), 300),
        (pa.array([1], pa.int32()), pa.float64(), 1.0),
        (pa.array([0.5], pa.float32()), pa.float64(), 0.5),
        (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
        (pa.array([b"a"]), pa.string(), "a"),
        (pa.array(["a"]), pa.binary(), b"a"),
        (pa.array([Decimal("1.50")]), pa.decimal128(10, 1), Decimal("1.5")),
        (pa.array([None]), pa.int64(), None),
        (
            pa.array([[{"B": 1, "x": 2}], None]),
            pa.list_(pa.struct([("a", pa.string()), ("b", pa.int32())])),
            [{"a": None, "b": 1}],
        ),
        (
            pa.array([[("k", {"A": 1})]], pa.map_(pa.string(), pa.struct([("A", pa.int32())]))),
            pa.map_(pa.string(), pa.struct([("a", pa.int64())])),
            [("k", {"a": 1})],
        ),
    ],
)
def test_a_column_of_the_same_meaning_is_converted(
    tmp_path: Path,
    file: tuple[str, Callable[[pa.Table], bytes]],
    values: pa.Array,
    kind: pa.DataType,
    want: object,
) -> None:
    """Also within lists, maps and structs."""
    name, write = file
    table = pa.concat_tables([pa.table({"v": values})] * 2)
    found = rows(tmp_path, write(table), name, v=kind)
    assert found[0] == {"v": want}
    assert len(found) == table.num_rows


def test_a_time_as_int96_is_an_instant(tmp_path: Path) -> None:
    """Spark and Hive wrote instants so for years, and up to the year 9999."""
    moment = datetime(9999, 12, 31)
    values = {"v": pa.array([moment], pa.timestamp("us"))}
    values["l"] = pa.array([[moment]], pa.list_(pa.timestamp("us")))
    data = parquet(pa.table(values), use_deprecated_int96_timestamps=True)
    utc = moment.replace(tzinfo=UTC)
    found = rows(tmp_path, data, "a.parquet", v=INSTANT, l=pa.list_(INSTANT))
    assert found == [{"v": utc, "l": [utc]}]
    refused = rows(tmp_path, data, "a.parquet", v=pa.timestamp("us"))
    assert isinstance(refused, str) and "'v'" in refused


def test_days_of_the_calendar_of_an_old_spark_are_refused(tmp_path: Path) -> None:
    """Only old ones, which it counted otherwise."""
    notes = {"org.apache.spark.legacyDateTime": ""}
    for day, is_read in ((date(1582, 10, 15), True), (date(1582, 10, 4), False)):
        table = pa.table({"v": [day]}).replace_schema_metadata(notes)
        found = rows(tmp_path, parquet(table), "a.parquet", v=pa.date32())
        assert (found == [{"v": day}]) is is_read
        assert is_read or "calendar of an old Spark" in str(found)


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"v\n\xff\n"),
        ("a.json", b'{"v": "\xff"}\n'),
        ("a.json", b'{"v": "\\ud800"}\n'),
        ("a.json", b'{"v": "\xed\xa0\x80"}\n'),
    ],
)
def test_text_that_is_not_utf8_is_refused(
    tmp_path: Path, name: str, data: bytes, rejects: bool
) -> None:
    """One such byte makes a Delta table unreadable."""
    assert isinstance(rows(tmp_path, data, name, rejects=rejects, v=pa.string()), str)


def test_text_of_arrow_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Arrow does not look at it."""
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    )
    for name, write in COLUMNAR:
        for values in (broken, pa.ListArray.from_arrays([0, 1], broken)):
            found = rows(tmp_path, write(pa.table({"v": values})), name, v=values.type)
            assert isinstance(found, str) and "column 'v'" in found and "UTF8" in found


@pytest.mark.parametrize("rejects", [False, True])
def test_a_nested_null_where_none_may_be_is_refused_by_name(tmp_path: Path, rejects: bool) -> None:
    """A null around it is none."""
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    good = b'{"v": {"a": 1}}\n{"v": null}\n'
    assert rows(tmp_path, good, "a.json", rejects=rejects, v=kind) == [
        {"v": {"a": 1}},
        {"v": None},
    ]
    bad = rows(tmp_path, good + b'{"v": {}}\n', "a.json", rejects=rejects, v=kind)
    assert isinstance(bad, str) and "a null in 'v.a'" in bad.replace("\\", "")


@pytest.mark.parametrize(
    ("format", "schema"),
    [
        ("csv", [("v", pa.list_(pa.int64()))]),
        ("json", [("v", pa.map_(pa.int64(), pa.int64()))]),
        ("json", [("v", pa.duration("us"))]),
        (
            "json",
            [("v", pa.struct([pa.field("value", pa.binary(), metadata={"variant": "true"})]))],
        ),
        ("parquet", [("v", pa.int64()), ("V", pa.int64())]),
    ],
)
def test_a_schema_that_a_format_cannot_have_is_a_mistake(
    tmp_path: Path, format: str, schema: list[tuple[str, pa.DataType]]
) -> None:
    """No file is to blame."""
    context = FakeContext()
    context.schema = pa.schema(schema)
    reader = FileReader(context, str(tmp_path), format=format, rejects=True)
    reader.add_splits([FileSplit("a")])
    with pytest.raises(PipelineError, match="'v'"):
        list(reader.read(1))


@pytest.mark.parametrize("rejects", [False, True])
def test_names_of_directories_are_values_of_columns(tmp_path: Path, rejects: bool) -> None:
    """As Hive and Spark write them, in their places in the schema; a value of another type is
    refused."""
    (tmp_path / "DT=2026-03-01").mkdir()
    schema = {"dt": pa.date32(), "id": pa.int64(), "key": pa.string()}
    for folder, key in (("a%2Fb", "a/b"), ("__HIVE_DEFAULT_PARTITION__", None)):
        (tmp_path / "DT=2026-03-01" / f"key={folder}").mkdir()
        name = f"DT=2026-03-01/key={folder}/a.json"
        found = rows(tmp_path, b'{"id": 1}\n{"id": 2}', name, rejects=rejects, **schema)
        assert found == [{"dt": date(2026, 3, 1), "id": id, "key": key} for id in (1, 2)]
    (tmp_path / "dt=soon").mkdir()
    found = rows(tmp_path, b'{"id": 1}', "dt=soon/a.json", rejects=rejects, **schema)
    assert isinstance(found, str) and "soon" in found
