"""Files of every format and type, and what the judges of docs/FILES.md make of them.

An example is a file with a column ``id`` and a column ``v`` of some type. Each of its rows has a
judge: Spark's reader, or Python's ``json`` and ``csv``, or pyarrow. A row that the table lists as
refused need not be read; if it is, it is read as its judge does.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

Value: TypeAlias = Any
INSTANT = pa.timestamp("us", "UTC")

#: The types, as Spark and Arrow call them.
KINDS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(12,3)": pa.decimal128(12, 3),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": INSTANT,
    "timestamp_ntz": pa.timestamp("us"),
    "array<date>": pa.list_(pa.date32()),
    "map<string,double>": pa.map_(pa.string(), pa.float64()),
    "struct<a:bigint,b:array<struct<c:timestamp>>>": pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.struct([("c", INSTANT)])))]
    ),
}
#: Those that CSV has.
SIMPLE = [kind for kind in KINDS if "<" not in kind]
#: By the end of a name, what Arrow calls a compression.
CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}
#: Compressions that Spark reads without a native library of Hadoop's.
OF_SPARK = ("", "gz", "bz2")


@dataclass(frozen=True)
class Row:
    """A row of a file and what is known about it."""

    id: int
    #: What Python or pyarrow makes of it; None where Spark is the judge.
    value: Value = None
    by_spark: bool = True
    #: Whether the table lists it as refused.
    is_listed: bool = False


@dataclass(frozen=True)
class Example:
    """A file, and how to read it."""

    format: str
    kind: str
    data: bytes
    rows: list[Row]
    codec: str = ""
    #: The size of pieces of text, or of batches.
    piece: int = 1 << 20
    #: Whether the table lists the file as refused as a whole.
    is_listed: bool = False
    #: The same file for Spark, if it does not read this one.
    twin: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The end of the file's name."""
        return self.format + (f".{self.codec}" if self.codec else "")

    @property
    def packed(self) -> bytes:
        """The bytes of the file."""
        if not self.codec:
            return self.data
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, CODECS[self.codec]) as out:
            out.write(self.data)
        packed: bytes = sink.getvalue().to_pybytes()
        return packed


# -- values

#: Hypothesis prefers the ends of a range, so what is rare lies within.
_RARELY = st.integers(0, 999).map(lambda number: 450 <= number < 500)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_dates = st.dates(date(1, 1, 2), date(9999, 12, 30))
_times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
_doubles = st.floats(allow_nan=False, allow_infinity=False)
_c = st.fixed_dictionaries({"c": st.none() | _times})
VALUES: dict[str, st.SearchStrategy[Value]] = {
    "boolean": st.booleans(),
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": _doubles,
    "decimal(12,3)": st.decimals(-(10**9) + 1, 10**9 - 1, places=3, allow_nan=False),
    "string": _text,
    "binary": st.binary(max_size=12),
    "date": _dates,
    "timestamp": _times,
    "timestamp_ntz": _times,
    "array<date>": st.lists(st.none() | _dates, max_size=3),
    "map<string,double>": st.dictionaries(_text, st.none() | _doubles, max_size=3),
    "struct<a:bigint,b:array<struct<c:timestamp>>>": st.fixed_dictionaries(
        {"a": st.none() | _integers(64), "b": st.none() | st.lists(st.none() | _c, max_size=2)}
    ),
}

#: Texts that are written otherwise than values are. Spark is the judge: of ``csv`` in CSV only, and
#: of ``listed`` if it is read, since the table lists a refusal.
_ODD: dict[str, list[tuple[str, str]]] = {
    "boolean": [("TRUE", "csv"), ("1", "listed"), ("yes", "listed")],
    "tinyint": [("128", "listed"), ("1.0", "listed")],
    "smallint": [("-32769", "listed"), ("1e2", "listed")],
    "int": [("+7", "csv"), ("007", "csv"), ("0x10", "listed"), ("2147483648", "listed")],
    "bigint": [("9223372036854775808", "listed"), ("1.0", "listed"), ("NaN", "listed")],
    "float": [("NaN", "spark"), ("-Infinity", "spark"), ("1e39", "listed")],
    "double": [("NaN", "spark"), ("Infinity", "spark"), ("1e400", "listed"), ("1d", "listed")],
    "decimal(12,3)": [("1e3", "spark"), ("1.5", "spark"), ("1.2345", "listed"), ("1e12", "listed")],
    "string": [],
    "binary": [],
    "date": [("2026-3-1", "listed"), ("2026-02-30", "listed"), ("2026", "listed")],
    "timestamp": [
        ("2026-03-01T00:00:00.100+0130", "spark"),
        ("2026-03-01 00:00:00+01:30", "spark"),
        ("2026-03-01T00:00:00.123456000Z", "spark"),
        ("2026-03-01T00:00:00.1234567Z", "listed"),
        ("2026-03-01T00:00:00", "listed"),
        ("2026-03-01", "listed"),
        ("2026-03-01T00:00:00 Europe/Berlin", "listed"),
    ],
    "timestamp_ntz": [("2026-03-01", "spark"), ("2026-03-01T00:00:00Z", "listed")],
}


# -- text


def _csv_text(kind: str, value: Value) -> str:
    if value is None:
        return ""
    if kind == "boolean":
        return str(value).lower()
    if kind == "timestamp":
        return value.isoformat() + "Z"
    if kind.startswith("decimal"):
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    return value.decode() if isinstance(value, bytes) else str(value)


def _json_value(kind: str, value: Value) -> Value:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat() + ("" if kind == "timestamp_ntz" else "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _json_value(kind, one) for key, one in value.items()}
    return [_json_value(kind, one) for one in value] if isinstance(value, list) else value


def _of_python(kind: str, value: Value) -> Value:
    """A value as Arrow gives it to Python."""
    if kind == "timestamp" or (kind.startswith("struct") and isinstance(value, datetime)):
        return value.replace(tzinfo=UTC) if value is not None else None
    if kind.startswith("map") and isinstance(value, dict):
        return list(value.items())
    if isinstance(value, dict):
        return {key: _of_python(kind, one) for key, one in value.items()}
    return [_of_python(kind, one) for one in value] if isinstance(value, list) else value


@st.composite
def csv_examples(draw: st.DrawFn, kinds: Collection[str]) -> Example:
    """CSV: text is judged by Python's ``csv``, since Spark has another quote; the rest by Spark."""
    kind = draw(st.sampled_from([kind for kind in SIMPLE if kind in kinds]))
    # Spark goes by position, and reads no value with line breaks or quotes as others do.
    is_plain = kind != "string" and draw(st.integers(0, 3)) > 0
    values = VALUES[kind]
    if kind == "binary":
        values = _text.filter(lambda text: text.isalnum()).map(str.encode)
    rows, lines = list[Row](), list[list[str]]()
    for number in range(draw(st.integers(0, 6))):
        odd = is_plain and _ODD[kind] and draw(_RARELY)
        text, judge = draw(st.sampled_from(_ODD[kind])) if odd else ("", "spark")
        value = None if odd else draw(st.none() | values)
        if not odd:
            text = _csv_text(kind, value)
        known = _of_python(kind, value if text else None)
        rows.append(Row(number, known, by_spark=is_plain, is_listed=judge == "listed"))
        lines.append([str(number), text])
    names = ["id", "v"]
    if not is_plain:
        names = draw(st.sampled_from([["id", "v"], ["ID", "V"], ["Id", "v"]]))
        extra = draw(st.sampled_from([None, 0, 1, 2]))
        if draw(st.booleans()):
            names, lines = names[::-1], [line[::-1] for line in lines]
        if extra is not None:
            names.insert(extra, "other")
            for line in lines:
                line.insert(extra, draw(_text))
    twice = not is_plain and draw(_RARELY)
    file = io.StringIO(newline="")
    # Python's writer does not quote a line break that is not its own.
    breaks = any("\r" in text or "\n" in text for line in lines for text in line)
    quotings = [csv.QUOTE_ALL] if breaks else [csv.QUOTE_MINIMAL, csv.QUOTE_ALL]
    writer = csv.writer(
        file,
        quoting=draw(st.sampled_from(quotings)),
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
    )
    writer.writerows(
        [[*names, "V"] if twice else names, *([*one, ""] if twice else one for one in lines)]
    )
    text = file.getvalue()
    if draw(st.booleans()) and lines and lines[-1][-1]:
        text = text.rstrip("\r\n") or text
    return Example(
        "csv",
        kind,
        text.encode(),
        rows,
        codec=draw(st.sampled_from(["", *CODECS])),
        piece=draw(st.sampled_from([1, 7, 100, 1 << 20])),
        is_listed=twice,
        twin=text.encode(),
    )


@st.composite
def json_examples(draw: st.DrawFn, kinds: Collection[str]) -> Example:
    """JSON: judged by Spark, except for keys in another case, which it takes for others."""
    kind = draw(st.sampled_from(sorted(kinds)))
    in_case = draw(st.integers(0, 3)) > 0
    spelled = "v" if in_case else "V"
    rows, lines = list[Row](), list[str]()
    for number in range(draw(st.integers(1, 5))):
        odds = [one for one in _ODD.get(kind, []) if one[1] != "csv"]
        odd = in_case and odds and draw(_RARELY)
        record: dict[str, Value] = {}
        if draw(st.booleans()):
            record["other"] = draw(st.sampled_from([1, "id", {"v": 2, "V": [3]}, None, '"v":']))
        record["id"] = number
        value = draw(st.none() | VALUES[kind]) if not odd else None
        if value is not None or odd or draw(st.booleans()):
            written = _json_value(kind, value)
            record[spelled] = "@" if odd or isinstance(written, Decimal) else written
        line = json.dumps(record, ensure_ascii=draw(st.booleans()))
        listed = False
        if odd:
            text, judge = draw(st.sampled_from(odds))
            quoted = kind in ("date", "timestamp", "timestamp_ntz") or draw(st.integers(0, 9)) == 0
            line = line.replace('"@"', f'"{text}"' if quoted else text)
            listed = judge == "listed" or quoted
        elif isinstance(value, Decimal):
            line = line.replace('"@"', draw(st.sampled_from(["{}", '"{}"'])).format(value))
        if not listed and draw(_RARELY):
            # A key that occurs twice.
            line, listed = f'{line[:-1]}, "id": {number}}}', True
        known = _of_python(kind, value)
        rows.append(Row(number, known, by_spark=in_case, is_listed=listed))
        lines.append(line)
        if draw(st.integers(0, 5)) == 0:
            lines.append("")
    text = draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))
    return Example(
        "json",
        kind,
        text.encode(),
        rows,
        codec=draw(st.sampled_from(["", *CODECS])),
        piece=draw(st.sampled_from([1, 7, 100, 1 << 20])),
        twin=text.encode(),
    )


# -- columns

#: A type of a file for a type of the schema, and who judges: as above.
_OTHER_TYPES: list[tuple[pa.DataType, str, str]] = [
    (pa.int8(), "bigint", "spark"),
    (pa.int32(), "bigint", "spark"),
    (pa.uint32(), "bigint", "spark"),
    (pa.int32(), "double", "spark"),
    (pa.float32(), "double", "spark"),
    (pa.binary(), "string", "spark"),
    (pa.string(), "binary", "spark"),
    (pa.large_string(), "string", "spark"),
    (pa.dictionary(pa.int32(), pa.string()), "string", "spark"),
    (pa.timestamp("ms", "UTC"), "timestamp", "spark"),
    (pa.decimal128(9, 2), "decimal(12,3)", "spark"),
    (pa.list_(pa.date64()), "array<date>", "python"),
    (pa.int64(), "int", "python listed"),
    (pa.float64(), "float", "python listed"),
    (pa.timestamp("us"), "timestamp", "python listed"),
    (INSTANT, "timestamp_ntz", "python listed"),
    (pa.timestamp("ns", "UTC"), "timestamp", "python listed"),
    (pa.float64(), "decimal(12,3)", "python listed"),
    (pa.decimal128(12, 4), "decimal(12,3)", "python listed"),
    (pa.date32(), "timestamp_ntz", "python listed"),
    (pa.int64(), "decimal(12,3)", "python listed"),
    (pa.int64(), "string", "python listed"),
]
_BY_TYPE: list[tuple[pa.DataType, st.SearchStrategy[Value]]] = [
    (pa.int8(), _integers(8)),
    (pa.int32(), _integers(32)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), _integers(40)),
    (pa.float32(), VALUES["float"]),
    (pa.float64(), _doubles),
    (pa.binary(), _text.map(str.encode)),
    (pa.timestamp("ms", "UTC"), _times.map(lambda one: one.replace(microsecond=0))),
    (pa.timestamp("ns", "UTC"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
    (pa.decimal128(12, 4), st.decimals(-(10**6), 10**6, places=4)),
    (pa.list_(pa.date64()), VALUES["array<date>"]),
    (pa.date32(), _dates),
]


def _values_of(kind: pa.DataType) -> st.SearchStrategy[Value]:
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _times
    return next((values for one, values in _BY_TYPE if one == kind), _text)


@st.composite
def column_examples(draw: st.DrawFn, kinds: Collection[str]) -> Example:
    """Parquet, judged by Spark and pyarrow, and Arrow files, which Spark does not read."""
    format = draw(st.sampled_from(["parquet", "ipc"]))
    judge = "spark"
    if draw(st.integers(0, 2)) == 0:
        listed = draw(st.integers(0, 3)) == 2
        others = [one for one in _OTHER_TYPES if one[1] in kinds and ("listed" in one[2]) is listed]
        given, kind, judge = draw(st.sampled_from(others))
        values = _values_of(given)
    else:
        kind = draw(st.sampled_from(sorted(kinds)))
        given, values = KINDS[kind], VALUES[kind]
    drawn = draw(st.lists(st.none() | values, max_size=5))
    column = pa.array(drawn, pa.string() if pa.types.is_dictionary(given) else given)
    column = column.cast(given) if column.type != given else column
    names = draw(st.sampled_from([["id", "v"], ["v", "id"], ["ID", "V"], ["x", "id", "v"]]))
    contents = {"id": pa.array(range(len(drawn)), pa.int64()), "v": column, "x": column}
    columns = [contents[name.lower()] for name in names]
    twice = draw(_RARELY)
    table = pa.Table.from_arrays(
        [*columns, column] if twice else columns, [*names, "v"] if twice else names
    )
    rows = [Row(number, _known(one, kind), by_spark=format == "parquet" and judge == "spark",
                is_listed="listed" in judge) for number, one in enumerate(drawn)]  # fmt: skip
    is_listed = twice or "listed" in judge
    codec = draw(st.sampled_from(["snappy", "none", "gzip", "zstd", "lz4", "brotli"]))
    piece = draw(st.sampled_from([1, 2, 1 << 20]))
    if format == "ipc":
        return Example(
            "ipc", kind, _ipc(table, codec, piece), rows, piece=piece, is_listed=is_listed
        )
    as_int96 = kind == "timestamp" and given == INSTANT and draw(st.booleans())
    options = {
        "row_group_size": draw(st.sampled_from([1, 2, 1000])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "use_deprecated_int96_timestamps": as_int96,
    }
    data = _parquet(table, compression=codec, **options)
    twin = _parquet(table.select(range(len(names))), compression="snappy", **options)
    return Example("parquet", kind, data, rows, piece=piece, is_listed=is_listed, twin=twin)


def _known(value: Value, kind: str) -> Value:
    if isinstance(value, bytes) and kind == "string":
        return value.decode()
    if isinstance(value, str) and kind == "binary":
        return value.encode()
    if isinstance(value, int) and kind == "double":
        return float(value)
    return _of_python(kind, value)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def _ipc(table: pa.Table, codec: str, rows: int) -> bytes:
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec if codec in ("zstd", "lz4") else None)
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file.getvalue()


def examples(kinds: Collection[str]) -> st.SearchStrategy[Example]:
    """Files of any format with these types, of which CSV has some."""
    return st.one_of(csv_examples(kinds), json_examples(kinds), column_examples(kinds))


def comparable(value: Value) -> Value:
    """Equal for values that are the same: NaN is, and zeros differ by their sign."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone(timedelta(0)))
    if isinstance(value, np.generic):
        return comparable(value.item())
    if isinstance(value, dict):
        return [(key, comparable(one)) for key, one in sorted(value.items())]
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    return value
