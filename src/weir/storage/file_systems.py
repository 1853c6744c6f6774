"""Finds the file system of a path, and links or copies immutable files between file systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from weir.errors import StorageError, UnsupportedEnvironmentError, invariant
from weir.storage.filesystem import FileSystem
from weir.storage.local import LocalFileSystem
from weir.storage.paths import is_local, root_of, scheme_of


class FileSystems:
    """Finds the file system of a path: the local one for plain paths, Hadoop's for URIs.

    ``hadoop`` makes Hadoop's file system for a URI, once for each root; None without a Spark
    session.
    """

    def __init__(self, hadoop: Callable[[str], FileSystem] | None = None) -> None:
        self._local = LocalFileSystem()
        self._make = hadoop
        self._hadoop: dict[str, FileSystem] = {}

    def __call__(self, path: str) -> FileSystem:
        """The file system that holds an absolute path or URI.

        Raises ``UnsupportedEnvironmentError`` for a URI without a Spark session.
        """
        if is_local(path):
            return self._local
        scheme = scheme_of(path)
        invariant(scheme not in (None, "file"), f"{path!r} is not an absolute path")
        if self._make is None:
            raise UnsupportedEnvironmentError(
                f"{path} can only be read through Spark ({scheme}: is not a local file system):"
                " use a command that starts Spark, such as weir run or weir inspect --operator,"
                " or copy the files to a local directory."
            )
        root = root_of(path)
        if root not in self._hadoop:
            self._hadoop[root] = self._make(path)
        return self._hadoop[root]


class Transfer:
    """Links or copies files whose paths may belong to different file systems."""

    def __init__(self, file_system: Callable[[str], FileSystem]) -> None:
        self._file_system = file_system

    def make_directory(self, path: str, *, below: str) -> None:
        """Make a directory and its parents. Raises ``StorageError`` if ``below`` is missing."""
        self._file_system(path).make_directory(path, below=below)

    def can_link(self, directory: str, other: str) -> bool:
        """Whether a file in one existing directory can be hard-linked into the other."""
        if not (is_local(directory) and is_local(other)):
            return False
        return Path(directory).stat().st_dev == Path(other).stat().st_dev

    def link_or_copy(self, source: str, target: str) -> bool:
        """Hard-link or copy ``source`` to ``target``. True if it was a link.

        Raises ``StorageError`` if the source has vanished.
        """
        source_fs, target_fs = self._file_system(source), self._file_system(target)
        if source_fs is target_fs:
            return target_fs.link_or_copy(source, target)
        target_fs.write_blocks(target, _blocks(source_fs, source))
        return False


def _blocks(fs: FileSystem, path: str) -> Iterator[bytes]:
    try:
        yield from fs.blocks(path)
    except FileNotFoundError as error:
        raise StorageError(f"{path} vanished before it could be copied.") from error
