"""``FileReader``: reads the files that the enumerator assigns to a subtask (``enumerator.py`` has
their messages).

If Arrow refuses a JSON or CSV file as a whole, ``salvage`` cuts it into records, and these into
halves until each bad one stands alone. So good ones are read by Arrow in large pieces, exactly as
in a file without bad ones.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.core.types import Payload
from weir.errors import StorageError
from weir.operators.base import Operator, OperatorContext

if TYPE_CHECKING:
    from weir.core.types import Payload

    Parse = Callable[[bytes], list[pa.RecordBatch]]
    import pyarrow as pa


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


#: Formats that have a row in each line.
_TEXT = ("json", "csv")
#: A line of JSON that is no object. Arrow crashes on it where it is the first of a block.
_NULL = re.compile(rb"\n[ \t\r]*null")
_CHUNK_BYTES = 4 * 1024 * 1024


class FileReader(Operator):
    """Reads whole files, in the batch in which it is told of them. So it has no state: no file is
    half read between two batches."""

    def __init__(self, directory: str, *, format: str, schema: str, rejects: bool) -> None:
        """``schema`` as Spark's DDL text. ``rejects``: what cannot be read does not fail the
        job."""
        self.output_schema = schema
        self._directory = directory
        self._format = format
        self._rejects = rejects

    def open(self, context: OperatorContext) -> None:
        """Ask for files: who ran the subtask before may not have (PROTOCOL P41)."""
        super().open(context)
        self._asks = True
        self._ended = False
        self._names: list[str] = []

    def handle_operator_event(self, event: Payload) -> None:
        """Files, or the end of the input."""
        self._names += event.get("splits", ())
        self._ended |= event.get("end", False)

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        """Read all that was assigned, then ask for more."""
        names, self._names = self._names, []
        for name in names:
            yield from self._read(name)
        if self._ended:
            self.context.end_input()
        elif self._asks or names:
            self.context.send_event_to_coordinator({"ask": True})
        self._asks = False

    def _read(self, name: str) -> Iterator[pa.RecordBatch]:
        from weir.sources.reader import UNREADABLE, why

        path = Path(self._directory, name)
        try:
            batches = self._batches(path)
            # Rows that went downstream cannot be taken back.
            yield from (list(self._with_values(batches)) if self._rejects else batches)
        except UNREADABLE as error:
            if not self._rejects:
                raise StorageError(
                    f"The file {path} cannot be read ({why(error)}): put it right, or pass over"
                    " what cannot be read with FileSource(on_error='reject')."
                ) from error
            yield from self._salvaged(path, error)

    def _salvaged(self, path: Path, error: Exception) -> list[pa.RecordBatch]:
        """What can be read of a file; the rest is reported, by lines where the format has them."""
        from weir.sources.reader import UNREADABLE, salvage, why

        if self._format in _TEXT:
            try:
                found = salvage(path.read_bytes(), self._format, self._parsed)
            except UNREADABLE as worse:
                error = worse
            else:
                if found.bad:
                    self.context.send_event_to_coordinator(
                        {"rejected": path.name, "rows": found.bad}
                    )
                return found.batches
        self.context.send_event_to_coordinator({"rejected": path.name, "why": why(error)})
        return []

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        if self._format in _TEXT and path.stat().st_size == 0:
            # No line is no row; Arrow calls it broken.
            return
        if self._format == "json":
            with path.open("rb") as file:
                _check_objects(iter(lambda: file.read(_CHUNK_BYTES), b""))
        schema = self.context.output_schema
        found = ds.dataset(
            str(path), schema=schema, format=self._format, filesystem=LocalFileSystem()
        )
        yield from (batch for batch in found.to_batches() if batch.num_rows)

    def _parsed(self, data: bytes) -> list[pa.RecordBatch]:
        """The rows of a text file, as ``_batches`` reads them."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        if self._format == "json":
            _check_objects([data])
        format = ds.JsonFileFormat() if self._format == "json" else ds.CsvFileFormat()
        found = format.make_fragment(pa.py_buffer(data)).to_batches(
            schema=self.context.output_schema
        )
        return list(self._with_values(batch for batch in found if batch.num_rows))

    def _with_values(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. Raises ``ValueError`` for a null where none may be."""
        schema = self.context.output_schema
        for batch in batches:
            for column_field, column in zip(schema, batch.columns, strict=True):
                if not column_field.nullable and column.null_count:
                    raise ValueError(
                        f"a null in {column_field.name!r}, which the schema declares as NOT NULL"
                    )
            yield batch


def _check_objects(chunks: Iterable[bytes]) -> None:
    before = b"\n"
    for chunk in chunks:
        if _NULL.search(before + chunk):
            raise ValueError("a line is null, and not an object")
        before = chunk[-16:]
