"""CSV: comma-separated values with a header, as Python's ``csv`` reads them strictly.

Arrow only separates the values; all are bytes to it, and ``text_values.py`` converts them. An empty
value is null, also within quotes, as for Spark and pandas.

A value in quotes ends with its closing quote. Others read on in silence: behind a quote that Spark
wrote as ``\\"``, or over all lines that follow a quote that was never closed, as in a cut file.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv as arrow_csv

from weir.sources.formats.names import places
from weir.sources.formats.rows import batch_of
from weir.sources.formats.text_values import parsed

# Quotes, commas and line breaks are the same bytes everywhere in UTF-8.
_VALUE = rb'(?>"(?>[^"]++|"")*+"?)?+[^,\r\n]*+'
_LINE = _VALUE + rb"(?>," + _VALUE + rb")*+"
_BREAK = rb"(?>\r\n|\n|\r)"
_RECORD = re.compile(rb"(?!\Z)" + _LINE + rb"(?>" + _BREAK + rb"|\Z)")
_RECORDS = re.compile(rb"(?>" + _LINE + _BREAK + rb")*+")
_CLOSED_VALUE = rb'(?>"(?>[^"]++|"")*+"|(?!")[^,\r\n]*+)'
_CLOSED_LINE = _CLOSED_VALUE + rb"(?>," + _CLOSED_VALUE + rb")*+"
_CLOSED_RECORDS = re.compile(rb"(?>" + _CLOSED_LINE + _BREAK + rb")*+" + _CLOSED_LINE + rb"\Z")


def whole(data: bytes) -> int:
    """How many bytes are whole records: a quoted value may have line breaks."""
    if b'"' not in data:
        return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    match = _RECORDS.match(data)
    return match.end() if match else 0


def whole_header(data: bytes) -> int:
    """How many bytes the first record has that is not empty, with empty ones before it."""
    start = len(data) - len(data.lstrip(b"\r\n"))
    match = _RECORD.match(data, start)
    if match is None or not match[0].endswith((b"\n", b"\r")):
        return 0
    return match.end()


def _check_quotes(data: bytes) -> None:
    if b'"' in data and not _CLOSED_RECORDS.match(data):
        raise ValueError(
            "a value in quotes has no closing quote, or text behind it (a quote within is doubled;"
            " read files that have \\\" instead, as Spark writes them, with Spark's own source)"
        )


class CsvRows:
    """The rows of a CSV file (``records.RecordFormat``)."""

    def __init__(self, header: bytes, schema: pa.Schema) -> None:
        """Raises ``ValueError`` if the header is not that of a file with the schema's columns."""
        _check_quotes(header)
        text = header.strip(b"\r\n").decode()
        names = next(csv.reader(io.StringIO(text, newline="")), [])
        self._schema = schema
        self._places = places(names, schema.names)
        for name in schema.names:
            # Spaces would make a column of nulls of it.
            spaced = next((one for one in names if one != name and one.strip() == name), None)
            if spaced is not None:
                raise ValueError(f"its header has {spaced!r}, and the schema {name!r}")
        wanted = [place for place in self._places if place is not None]
        self._columns = [str(place) for place in range(len(names))]
        self._parsing = arrow_csv.ParseOptions(newlines_in_values=True)
        self._conversion = arrow_csv.ConvertOptions(
            column_types={str(place): pa.binary() for place in wanted},
            include_columns=[str(place) for place in wanted],
            check_utf8=False,
            null_values=[""],
            strings_can_be_null=True,
        )

    def whole(self, data: bytes) -> int:
        """How many bytes are whole records."""
        return whole(data)

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The records, without empty ones; an unclosed value reaches to the end of the text."""
        line = 0
        for match in _RECORD.finditer(data):
            if match[0].strip(b"\r\n"):
                yield line, match[0]
            line += len(match[0].splitlines())

    def parse(self, data: bytes) -> pa.RecordBatch:
        """The rows of whole records."""
        if not data.strip(b"\r\n"):
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        _check_quotes(data)
        reading = arrow_csv.ReadOptions(
            column_names=self._columns, block_size=len(data) + 1, use_threads=False
        )
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=reading,
            parse_options=self._parsing,
            convert_options=self._conversion,
        )
        columns = []
        for field, place in zip(self._schema, self._places, strict=True):
            if place is None:
                columns.append(pa.nulls(table.num_rows, field.type))
            else:
                values = table.column(str(place)).combine_chunks()
                columns.append(parsed(values, field.type, field.name))
        return batch_of(columns, self._schema)
