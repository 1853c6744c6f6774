"""``StateMemory``: where the arrays of keyed state lie, in memory or in local files.

A subtask's arrays stay in memory up to a number of bytes. What is allocated beyond lies in files on
local disk that are mapped into memory. The operating system keeps their pages in its cache as long
as it has room, and writes and reads them as needed. Either way they are NumPy and Arrow arrays, so
state that has been spilled is used by the same code, by whole arrays.

Files have no name: nobody else can open them, and they are gone with the last array that lies in
them, also when the process is killed. They are never read by another process: what survives a
process is handed over in layers (``keyed.py``). Their blocks are allocated before they are mapped,
so a full disk is an error here and never a signal later.

Why not a store: all calls are by whole arrays, and a store's are by key. To read 100,000 of 2
million integers from RocksDB in one call of its Python binding took 200 to 320 ms, and to write
them 70 to 120 ms; with mapped arrays both take 20 ms together. A store would also keep a second log
of what the layers already say. The price is that the operating system, not Weir, decides which
pages stay in its cache.

Spilled files have no checksum: like swap space, they belong to one process. The files of a snapshot
are checked when it is restored. A page without a block would end the process, hence the allocation
in advance.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from weir.errors import OperatorStateError

Array = np.ndarray[Any, Any]

#: Smaller arrays stay in memory: a file for each would cost more than it saves.
_SPILLED_BYTES_MIN = 64 * 1024
#: How many bytes of files may be mapped before ``trim`` asks what of them is in memory.
_TRIMMED_BYTES_MIN = 16 * 1024 * 1024
#: Arrays that grow get this part more than they need, since they are copied.
_GROWTH = 0.5


class StateMemory:
    """The memory of the keyed state of one subtask."""

    def __init__(self, bytes_max: int | None = None, directory: str | None = None) -> None:
        """``bytes_max``: beyond, arrays lie in files; None: never.

        ``directory`` is for the files; None: Spark's first local directory, or the system's for
        temporary files.
        """
        self._bytes_max = bytes_max
        self._directory = directory
        #: Bytes of arrays in memory, and in files.
        self.in_memory = 0
        self.in_files = 0
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def zeros(self, count: int, dtype: Any) -> Array:
        """A new array of zeros.

        Raises ``OperatorStateError`` if it needs a file and there is no room for it.
        """
        size = count * np.dtype(dtype).itemsize
        if not self._is_full(size):
            # The system allocates pages when they are first written.
            array: Array = self._counted(np.zeros(count, dtype), size)
            return array
        with self._file(size) as file:
            os.posix_fallocate(file, 0, size)
            return np.frombuffer(self._mapped(file, size), dtype)

    def kept(self, array: Array) -> Array:
        """The array, or a copy in a file. Raises ``OperatorStateError`` like ``zeros``."""
        if not self._is_full(array.nbytes):
            self._counted(array, array.nbytes)
            return array
        copy = self.zeros(len(array), array.dtype)
        copy[:] = array
        return copy

    def kept_rows(self, rows: pa.Array) -> pa.Array:
        """An Arrow array, or a copy in a file. Raises ``OperatorStateError`` like ``zeros``."""
        size = rows.nbytes
        if not self._is_full(size):
            if rows.get_total_buffer_size() > 2 * size:
                # A part of a large array, which would be kept as well.
                rows = rows.take(pa.array(np.arange(len(rows))))
            return self._counted(rows, size)
        batch = pa.record_batch([rows], ["rows"])
        with self._file(size) as file:
            with (
                os.fdopen(os.dup(file), "wb") as out,
                pa.ipc.new_stream(out, batch.schema) as writer,
            ):
                writer.write_batch(batch)
            mapped = self._mapped(file, os.fstat(file).st_size, mmap.PROT_READ)
        return pa.ipc.open_stream(pa.py_buffer(mapped)).read_next_batch().column(0)

    def mapped_file(self, path: str, offset: int, length: int) -> pa.Buffer:
        """Part of a file that never changes. Raises ``OSError``, also if the file is shorter."""
        with Path(path).open("rb") as file:
            return self.mapped_part(file, offset, length)

    def mapped_part(self, file: BinaryIO, offset: int, length: int) -> pa.Buffer:
        """``mapped_file`` of an open file, which may be closed afterwards."""
        if os.fstat(file.fileno()).st_size < offset + length:
            raise OSError(f"{file.name} is shorter than {offset + length} bytes")
        if not length:
            return pa.py_buffer(b"")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            file.fileno(), offset + length - start, prot=mmap.PROT_READ, offset=start
        )
        self._maps.add(mapped)
        return pa.py_buffer(mapped).slice(offset - start, length)

    def trim(self) -> None:
        """Give mapped pages back to the system's cache once they take as much as the memory.

        Called after each batch, and after each part of what goes through all of the state.
        """
        maps = list(self._maps)
        if self._bytes_max is None or sum(map(len, maps)) < _TRIMMED_BYTES_MIN:
            return
        shared = int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
        if shared > max(self._bytes_max, _TRIMMED_BYTES_MIN):
            for mapped in maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    # ---- internals

    def _is_full(self, size: int) -> bool:
        maximum = self._bytes_max
        return (
            maximum is not None and size >= _SPILLED_BYTES_MIN and self.in_memory + size > maximum
        )

    def _counted(self, array: Any, size: int) -> Any:
        self.in_memory += size
        weakref.finalize(array, self._released, size)
        return array

    def _released(self, size: int) -> None:
        self.in_memory -= size

    def _mapped(self, file: int, size: int, protection: int = 0) -> mmap.mmap:
        mapped = mmap.mmap(file, size, prot=protection or mmap.PROT_READ | mmap.PROT_WRITE)
        self._maps.add(mapped)
        self.in_files += size
        weakref.finalize(mapped, self._unmapped, size)
        return mapped

    def _unmapped(self, size: int) -> None:
        self.in_files -= size

    @contextmanager
    def _file(self, size: int) -> Iterator[int]:
        directory = self._directory or local_directory()
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                yield file.fileno()
        except OSError as error:
            raise OperatorStateError(
                f"Keyed state cannot be spilled to {directory}: {error.strerror or error}"
                f" ({size} bytes were needed). Make room there, set spark.local.dir to another"
                " directory, or raise weir.operators.state-memory."
            ) from error


class Column:
    """Numbers by place. ``values`` has room for more than there are; what is new is zero."""

    def __init__(self, memory: StateMemory, dtype: Any) -> None:
        self._memory = memory
        self.values: Array = np.zeros(0, dtype)

    def grow(self, count: int) -> None:
        """Make room for this many. Raises ``OperatorStateError`` if the disk is full."""
        if count <= len(self.values):
            return
        before = self.values
        self.values = self._memory.zeros(int(count * (1 + _GROWTH)), before.dtype)
        for start in range(0, len(before), 1 << 20):
            part = before[start : start + (1 << 20)]
            self.values[start : start + len(part)] = part
            self._memory.trim()


def local_directory() -> str:
    """Where temporary files go."""
    # Set by Spark for its Python workers.
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
