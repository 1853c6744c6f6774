"""State files of subtasks in a store that workers reach by themselves, without a JVM.

A file is written on local disk, and goes to the store as a whole when it is closed: then the driver
may name it. A file that is read is fetched as a whole, and stays on local disk for the parts of it
that are read next: files never change. Files on local disk have no name, as in ``StateMemory``:
they are gone with the process.

``s3a:`` is Hadoop's name; workers reach the same objects as ``s3:``, by the credentials in their
environment.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from io import IOBase, RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO

from weir.errors import PipelineError, StorageError, UnsupportedEnvironmentError
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import BLOCK_BYTES, FileSystem
from weir.storage.paths import is_local, join, parent

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.operators.state.memory import StateMemory

#: How many fetched files stay open. The state of a subtask may have parts in many.
_FETCHED_MAX = 128


class RemoteStateFiles:
    """State files in a store. The module's docstring says how."""

    def __init__(self) -> None:
        # Spark's name of the user who runs the job; an executor may run as another.
        if user := os.environ.get("SPARK_USER"):
            os.environ.setdefault("HADOOP_USER_NAME", user)
        self._file_system = FileSystems()
        self._made: set[str] = set()
        self._fetched: OrderedDict[str, BinaryIO] = OrderedDict()

    def create(self, directory: str, file: str) -> IOBase:
        """A new file, which is in the store once it is closed."""
        path = join(directory, file)
        fs = self._file_system(path)
        if parent(path) not in self._made:
            fs.make_directory(parent(path))
            self._made.add(parent(path))
        return _Upload(fs, path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file."""
        return os.pread(self._local(path).fileno(), length, offset)

    def mapped(self, path: str, offset: int, length: int, memory: StateMemory) -> pa.Buffer:
        """Part of a file, mapped."""
        return memory.mapped_part(self._local(path), offset, length)

    def _local(self, path: str) -> BinaryIO:
        """The file on local disk. Raises ``OSError`` if it is not in the store."""
        found = self._fetched.get(path)
        if found is None:
            found = _temporary()
            try:
                for block in self._file_system(path).blocks(path):
                    found.write(block)
                found.flush()
            except StorageError as error:
                raise OSError(str(error)) from error
            self._fetched[path] = found
            if len(self._fetched) > _FETCHED_MAX:
                self._fetched.popitem(last=False)[1].close()
        self._fetched.move_to_end(path)
        return found


class _Upload(RawIOBase):
    """A file that is written on local disk, and put into the store when it is closed."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._local = _temporary()

    def __del__(self) -> None:
        # What a failed batch leaves open goes nowhere.
        self._local.close()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        return int(self._local.write(data))

    def close(self) -> None:
        """Put it into the store. Raises ``StorageError``."""
        if self.closed:
            return
        try:
            self._local.seek(0)
            self._fs.write_blocks(self._path, self._blocks())
        finally:
            self._local.close()
            super().close()

    def _blocks(self) -> Iterator[bytes]:
        while block := self._local.read(BLOCK_BYTES):
            yield block


def check_reached(directory: str) -> None:
    """Raise ``PipelineError`` unless workers can keep state below the directory."""
    if is_local(directory):
        return
    try:
        FileSystems()(directory)
    except (StorageError, UnsupportedEnvironmentError) as error:
        raise PipelineError(
            "The state of Python operators is kept in files below weir.working-dir, which their"
            f" workers must reach without Spark: {error}"
        ) from error


def _temporary() -> Any:
    from weir.operators.state.memory import local_directory

    return tempfile.TemporaryFile(dir=local_directory())
