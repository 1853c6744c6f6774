"""Reads the good records of a JSON or CSV file that also has bad records.

A file that Arrow refuses as a whole is split into records, and these are bisected until each bad
record is isolated. So Arrow reads the good records in large pieces, exactly as in a file without
bad records. The module is imported only where records are read, since Arrow takes a while to load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from weir.core.types import Payload

    Parse = Callable[[bytes], list[pa.RecordBatch]]

#: The errors that reading a file raises.
UNREADABLE = (pa.ArrowException, OSError, ValueError)
#: Bad records to isolate in one file; a file with more does not have this format.
MAX_BAD = 1_000
#: A CSV record with its line break. Quotes, commas and line breaks are the same bytes in every
#: encoding that Arrow reads.
_CSV_VALUE = rb'(?>"(?>[^"]|"")*"?)?+[^,\r\n]*+'
_CSV_RECORD = re.compile(rb"(?!\Z)" + _CSV_VALUE + rb"(?>," + _CSV_VALUE + rb")*+(?>\r\n|\n|\r|\Z)")
#: Characters of an error that are kept in an event.
_WHY = 300


@dataclass
class Salvaged:
    """The readable part of a file."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    #: For each bad record: ``line``, its first line counted from 1, and ``why``.
    bad: list[Payload] = field(default_factory=list)


def why(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_WHY]


def salvage(data: bytes, format: str, parse: Parse) -> Salvaged:
    """Read the good records; ``parse`` takes whole files.

    Raises ``ValueError`` if more than ``MAX_BAD`` records are bad, or Arrow's error if the header
    is.
    """
    header = b""
    records = list(_lines(data) if format == "json" else _csv_records(data))
    if format == "csv" and records:
        header = records.pop(0)[1]
        header += b"" if header.endswith((b"\n", b"\r")) else b"\n"
        # A bad header would make every record bad.
        parse(header)
    found = Salvaged()
    if records:
        _read(records, header, parse, found)
    return found


def _read(records: list[tuple[int, bytes]], header: bytes, parse: Parse, found: Salvaged) -> None:
    try:
        found.batches += parse(header + b"".join(record for _, record in records))
    except UNREADABLE as error:
        if len(records) > 1:
            middle = len(records) // 2
            _read(records[:middle], header, parse, found)
            _read(records[middle:], header, parse, found)
            return
        found.bad.append({"line": records[0][0], "why": why(error)})
        if len(found.bad) > MAX_BAD:
            first = found.bad[0]
            raise ValueError(
                f"more than {MAX_BAD} of its rows are unreadable, the first in line"
                f" {first['line']}: {first['why']}"
            ) from error


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The non-blank lines, with their numbers."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line + b"\n"


def _csv_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The non-blank records, including the header, with the numbers of their first lines.

    A quoted value may contain line breaks; an unclosed value reaches to the end of the file.
    """
    line = 1
    for match in _CSV_RECORD.finditer(data):
        record = match[0]
        if record.strip():
            yield line, record
        line += len(record.splitlines())
