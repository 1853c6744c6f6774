"""The records of a JSON or CSV file of which some cannot be read.

A file that Arrow refuses as a whole is cut into records, and these into halves until each bad one
stands alone. So good ones are read by Arrow in large pieces, exactly as in a file without bad ones.
The module is imported where records are read, since Arrow takes a while to load.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from weir.core.types import Payload

    Parse = Callable[[bytes], list[pa.RecordBatch]]

#: What reading a file raises.
UNREADABLE = (pa.ArrowException, OSError, ValueError)
#: Bad records of one file that are looked for; one with more is not of this format.
MAX_BAD = 1_000
#: Characters of an error that travel with an event.
_WHY = 300


@dataclass
class Salvaged:
    """What can be read of a file."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    #: ``line`` (from 1 on, the first of the record) and ``why`` of each record that cannot.
    bad: list[Payload] = field(default_factory=list)


def why(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_WHY]


def salvage(data: bytes, format: str, parse: Parse) -> Salvaged:
    """Read what can be read; ``parse`` takes whole files. Raises ``ValueError`` if there is no
    telling records apart, or if more than ``MAX_BAD`` cannot be read."""
    header = b""
    records = list(_lines(data) if format == "json" else _csv_records(data))
    if format == "csv" and records:
        header = records.pop(0)[1]
        header += b"" if header.endswith((b"\n", b"\r")) else b"\n"
        # One that cannot be read makes every record bad.
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
                f"more than {MAX_BAD} of its rows cannot be read, the first in line"
                f" {first['line']}: {first['why']}"
            ) from error


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line + b"\n"


def _csv_records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The records that are not blank, the header included, with their first lines. A quoted value
    may hold line ends."""
    lines = data.splitlines(keepends=True)
    # Quotes, commas and line ends are the same bytes in each encoding that Arrow reads.
    reader = csv.reader(line.decode("latin-1") for line in lines)
    begin = 0
    try:
        for _ in reader:
            record = b"".join(lines[begin : reader.line_num])
            if record.strip():
                yield begin + 1, record
            begin = reader.line_num
    except csv.Error as error:
        raise ValueError(f"the record in line {begin + 1} has no end ({error})") from error
