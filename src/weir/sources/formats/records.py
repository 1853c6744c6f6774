"""Cuts text into pieces of whole records, and reads the good records of a piece that has bad ones.

Pieces are large, so that a format parses many records at once, and grow until they hold a whole
record. A piece that a format refuses is split into records, and these are bisected until each bad
record is isolated. So the good records are parsed exactly as in a file without bad records, and a
bad record is named by its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from weir.sources.formats.compression import without_mark

#: The errors that reading a file raises.
UNREADABLE = (pa.ArrowException, OSError, ValueError)
#: About how much text is parsed at once.
PIECE_BYTES = 4 * 1024 * 1024
#: The longest record.
MAX_RECORD_BYTES = 1024 * 1024 * 1024

#: Called for a bad record: its first line, counted from 1, and the error.
OnBad: TypeAlias = Callable[[int, Exception], None]


class RecordFormat(Protocol):
    """A format of records that are separated by line breaks."""

    def whole(self, data: bytes) -> int:
        """How many bytes, from the start of a record on, are whole records."""
        ...

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The records, without empty ones, and their first lines counted from 0."""
        ...

    def parse(self, data: bytes) -> pa.RecordBatch:
        """The rows of whole records. Raises an error of ``UNREADABLE`` if one is bad."""
        ...


@dataclass(frozen=True)
class Piece:
    """Whole records."""

    data: bytes
    #: The line on which they start, counted from 1.
    line: int


class Pieces:
    """The pieces of a text, in order."""

    def __init__(self, file: pa.NativeFile, *, piece_bytes: int = PIECE_BYTES) -> None:
        """``piece_bytes`` is about how much is read at once."""
        self._file = file
        self._bytes = piece_bytes
        self._left = b""
        self._line = 1
        self._ended = False
        self._started = False

    def next(self, whole: Callable[[bytes], int]) -> Piece | None:
        """The next piece, as far as ``whole`` says; None at the end of the text.

        Raises ``ValueError`` for a record that is longer than ``MAX_RECORD_BYTES``.
        """
        end = self._end(whole)
        while not end and not self._ended:
            self._read()
            end = self._end(whole)
        end = end or len(self._left)
        if not end:
            return None
        piece = Piece(self._left[:end], self._line)
        self._left = self._left[end:]
        self._line += lines_in(piece.data)
        return piece

    def _end(self, whole: Callable[[bytes], int]) -> int:
        # A line break may be cut in two.
        cut = self._left.endswith(b"\r") and not self._ended
        return whole(self._left[:-1] if cut else self._left)

    def _read(self) -> None:
        if len(self._left) > MAX_RECORD_BYTES:
            raise ValueError(f"line {self._line} starts a record of more than 1 GiB")
        # Twice as much each time, so that a long record is not looked through again and again.
        read = self._file.read(max(self._bytes, len(self._left)))
        self._ended = not read
        self._left += read
        if not self._started and (len(self._left) >= 3 or self._ended):
            self._left = without_mark(self._left)
            self._started = True


def lines_in(data: bytes) -> int:
    """How many line breaks there are."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def batches(pieces: Pieces, format: RecordFormat, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
    """The rows of all good records."""
    while (piece := pieces.next(format.whole)) is not None:
        try:
            yield format.parse(piece.data)
        except UNREADABLE:
            records = [(piece.line + line, data) for line, data in format.records(piece.data)]
            yield from _bisected(records, format, on_bad)


def _bisected(
    records: list[tuple[int, bytes]], format: RecordFormat, on_bad: OnBad
) -> Iterator[pa.RecordBatch]:
    try:
        found = format.parse(b"".join(data for _, data in records))
    except UNREADABLE as error:
        if len(records) == 1:
            on_bad(records[0][0], error)
            return
        middle = len(records) // 2
        yield from _bisected(records[:middle], format, on_bad)
        yield from _bisected(records[middle:], format, on_bad)
        return
    yield found
