"""The file system interface, as narrow as the protocol allows.

Paths are spelled as ``weir/storage/paths.py`` defines: plain (``/data/x``) for the local file
system, URIs for the others. Three implementations need no JVM: ``LocalFileSystem`` (``local.py``),
``ObjectStoreFileSystem`` (``object_store.py``, for ``s3:``, ``gs:`` and ``az:``) and
``HdfsFileSystem`` (``hdfs.py``, for ``hdfs:``). ``HadoopFileSystem``
(``weir/spark/hadoop.py``, for ``s3a:`` in a job, and ``hdfs:`` where the former cannot serve) uses
Spark's Hadoop configuration.

The one operation that arbitrates is ``create``: it creates a file with all of its content or
reports that the name is taken, atomically and durably (PROTOCOL P17). ``file:`` links a synced
temporary file to the name; ``hdfs:`` renames without overwriting; ``s3a:`` and the object stores
put with ``If-None-Match``. A file system without such an operation is refused.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.errors import StorageError

#: How much of a file is held in memory to copy it or to compute its checksum.
BLOCK_BYTES = 1 << 20
#: An empty file that makes a directory exist where directories are prefixes. Only Weir writes it.
DIRECTORY_MARKER = ".weir.directory"


class CreateResult(enum.Enum):
    """The outcome of a conditional create. If it was in doubt, it has been read back first."""

    CREATED = "CREATED"
    ALREADY_EXISTS = "ALREADY_EXISTS"


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """One entry of a directory."""

    #: Name without its directory.
    name: str
    #: Bytes; 0 for a directory.
    size: int
    is_directory: bool
    #: When a file of a store was last modified, in nanoseconds since the Unix epoch; else 0.
    mtime_ns: int = field(default=0, compare=False)


class FileSystem(Protocol):
    """What Weir needs of a file system.

    Every failure is a ``StorageError`` that names the path, and a ``LostWriteError`` where a retry
    could succeed without the data.
    """

    @property
    def acts_late(self) -> bool:
        """Whether a failed request may still be carried out later, as by an object store."""
        ...

    @property
    def transfers(self) -> int:
        """How many files are best read or written at once; 1 on a disk."""
        ...

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken.

        Durable (file and directory) on return.
        """
        ...

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file, atomically: a reader sees the old or the new content.

        Durable on return.
        """
        ...

    def read(self, path: str) -> bytes:
        """The content.

        Raises ``FileNotFoundError`` if there is no such file, and ``StorageError`` if it is not a
        regular file.
        """
        ...

    def read_end(self, path: str, size: int) -> bytes:
        """The last ``size`` bytes, or all if there are fewer. Raises what ``read`` does."""
        ...

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content, in blocks of at most ``BLOCK_BYTES``. Raises what ``read`` does."""
        ...

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """``write``, without holding all of the content in memory.

        An error raised by ``blocks`` leaves no file.
        """
        ...

    def status(self, path: str) -> FileStatus | None:
        """The status of the file or directory at the path; None if there is neither."""
        ...

    def is_link(self, path: str) -> bool:
        """Whether the last name of the path is a symbolic link, wherever that leads."""
        ...

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        ...

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents; no error if it exists.

        ``below`` is an ancestor that is never made: raises ``StorageError`` if it is missing, for
        example because its volume is not mounted. On an object store, a directory made ``below``
        another exists once it has a file.
        """
        ...

    def make_private_directory(self, path: str) -> None:
        """Like ``make_directory``, but a new local directory is accessible to its owner only.

        Elsewhere the store controls access.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything below it; no error if it is missing."""
        ...

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files, none of which is a directory; no error if some are missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory, replacing a target file. The target's directory must exist."""
        ...

    def link_or_copy(self, source: str, target: str) -> bool:
        """Hard-link an immutable file, or copy it. True if it was linked, False if copied.

        An existing target of the same size is left as it is.
        """
        ...

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        ...

    def real_path(self, path: str) -> str:
        """The path without symbolic links, as far as it exists."""
        ...

    def sync(self, files: Iterable[str]) -> None:
        """Make these files and the directories that hold them durable (fsync, PROTOCOL P23)."""
        ...


def checksum_of(path: str, blocks: Iterable[bytes]) -> tuple[int, str]:
    """Size in bytes and ``crc32:`` checksum of a file's content.

    Raises ``StorageError`` if its blocks say that there is no such file.
    """
    size = crc = 0
    try:
        for block in blocks:
            size += len(block)
            crc = zlib.crc32(block, crc)
    except FileNotFoundError as error:
        raise StorageError(f"{path} has vanished.") from error
    return size, f"crc32:{crc:08x}"
