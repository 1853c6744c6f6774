"""The port to a file system, as narrow as the protocol allows.

Paths are kept as ``weir/storage/paths.py`` says: plain (``/data/x``) for the local file system,
URIs (``hdfs://nn/x``) for Hadoop's. ``LocalFileSystem`` (``weir/storage/local.py``) needs no JVM;
``HadoopFileSystem`` (``weir/spark/hadoop.py``) speaks through Spark's own configuration.

The one operation that arbitrates is ``create``: it makes a file with all of its content or says
that the name is taken, atomically and durably (PROTOCOL P17). How: ``file:`` links a synced
temporary file to the name; ``hdfs:`` renames without overwriting; ``s3a:`` puts with
``If-None-Match``. A file system without such an operation is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class CreateResult(enum.Enum):
    """How a conditional create ended. A create that ended in doubt has been read back before this
    is returned."""

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


class FileSystem(Protocol):
    """What Weir needs of a file system. Every failure is a ``StorageError`` that names the path,
    and a ``LostWriteError`` where a second try could succeed without the data."""

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken. Durable (file and directory)
        on return."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file; a reader sees the old or the new content, never a part.
        Durable on return."""
        ...

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such file, and ``StorageError``
        if it is no plain one."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """What is at the path, or None."""
        ...

    def is_link(self, path: str) -> bool:
        """Whether the last name of the path is a symbolic link, wherever that leads."""
        ...

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        ...

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents; no error if it is there.

        ``below`` is one of them that is not made: a ``StorageError`` if it is not there, as when
        its volume is away.
        """
        ...

    def make_private_directory(self, path: str) -> None:
        """The same; on a local file system only its owner may see what is in a new directory.
        Elsewhere access is granted by the store."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all below it; no error if there is nothing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; the target's directory must exist. A target file is
        replaced."""
        ...

    def link_or_copy(self, source: str, target: str) -> bool:
        """Give an immutable file a second name. True if that was a link, False if the content was
        copied.

        A target of the same size that exists already is left as it is.
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
