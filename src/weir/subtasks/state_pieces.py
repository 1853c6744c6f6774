"""Writes the state that a subtask hands over, as pieces of files.

Small pieces share a file. A large piece has a file of its own, so its bytes leave the checkpoints
once it is replaced, and not only with all that happened to be written together with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from weir.subtasks.messages import FilePart

#: Larger pieces have a file of their own.
SHARED_BYTES_MAX = 32 * 1024

#: Returns the name of a new file, and the file, to be written and closed.
NewFile = Callable[[], tuple[str, io.IOBase]]


class StatePieces:
    """The pieces of one subtask after one batch. ``close`` must follow the last piece."""

    def __init__(self, new_file: NewFile) -> None:
        self._new_file = new_file
        self._shared: tuple[str, io.IOBase] | None = None
        self._shared_bytes = 0

    def piece(self) -> Piece:
        """A new piece, to be written."""
        return Piece(self._new_file)

    def located(self, piece: Piece) -> FilePart:
        """The location of a piece, which is complete."""
        piece.close()
        if piece.file is not None:
            return FilePart(file=piece.file, offset=0, length=piece.length)
        if self._shared is None:
            self._shared = self._new_file()
        name, file = self._shared
        file.write(piece.data)
        offset, self._shared_bytes = self._shared_bytes, self._shared_bytes + piece.length
        return FilePart(file=name, offset=offset, length=piece.length)

    def close(self) -> None:
        """Close the file that pieces share. The checkpoint that needs it flushes it."""
        if self._shared is not None:
            self._shared[1].close()


class Piece(io.RawIOBase):
    """Bytes that are written: in memory as long as they are few, then to a file."""

    def __init__(self, new_file: NewFile) -> None:
        self._new_file = new_file
        self._out: io.IOBase | None = None
        #: The bytes, if they are few.
        self.data = b""
        #: The file; None if the bytes are few.
        self.file: str | None = None
        self.length = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        size = memoryview(data).nbytes
        self.length += size
        if self._out is None and self.length <= SHARED_BYTES_MAX:
            self.data += bytes(data)
            return size
        if self._out is None:
            self.file, self._out = self._new_file()
            self._out.write(self.data)
            self.data = b""
        self._out.write(data)
        return size

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._out is not None:
            self._out.close()
        super().close()
