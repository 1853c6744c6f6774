"""Finds the file system of a path, and links or copies immutable files between file systems."""

from __future__ import annotations

import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from weir.errors import StorageError, UnsupportedEnvironmentError, invariant
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import FileSystem
from weir.storage.local import LocalFileSystem
from weir.storage.paths import (
    is_hadoops_s3,
    is_local,
    is_object_store,
    root_of,
    scheme_of,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class FileSystems:
    """Finds the file system of a path: the local one, an object store, HDFS, or Hadoop's others.

    ``hadoop`` makes Hadoop's file system for a URI, once for each root; None without a Spark
    session. It also serves an HDFS that cannot be used without, and ``s3a:``, whose settings it
    knows; without a session ``s3a:`` is reached as ``s3:`` is.
    """

    def __init__(
        self, hadoop: Callable[[str], FileSystem] | None = None, kernel: Kernel = MACHINE
    ) -> None:
        self._kernel = kernel
        self._local = LocalFileSystem(kernel)
        self._make = hadoop
        self._remote: dict[str, FileSystem] = {}

    def __call__(self, path: str) -> FileSystem:
        """The file system that holds an absolute path or URI.

        Raises ``UnsupportedEnvironmentError`` for a URI that needs a Spark session, without one, or
        a library that is not installed, and ``StorageError`` if the file system cannot be reached.
        """
        if is_local(path):
            return self._local
        root = root_of(path)
        if root not in self._remote:
            self._remote.setdefault(root, self._remote_of(path))
        return self._remote[root]

    def _remote_of(self, path: str) -> FileSystem:
        scheme = scheme_of(path)
        invariant(scheme not in (None, "file"), f"{path!r} is not an absolute path")
        if is_object_store(path) or (is_hadoops_s3(path) and self._make is None):
            try:
                from weir.storage.object_store import ObjectStoreFileSystem
            except ImportError as error:
                raise UnsupportedEnvironmentError(
                    f"{path} needs obstore, which is not installed ({error}): pip install"
                    " 'weir-spark[objectstore]'."
                ) from error

            return ObjectStoreFileSystem(path, self._kernel)
        if scheme == "hdfs":
            try:
                return self._hdfs(path)
            except (UnsupportedEnvironmentError, StorageError) as error:
                if self._make is None:
                    raise
                _log.warning("Spark's client is used for %s: %s", root_of(path), error)
                return self._make(path)
        if self._make is None:
            raise UnsupportedEnvironmentError(
                f"{path} can only be read through Spark ({scheme}: is not a local file system):"
                " use a command that starts Spark, such as weir run or weir inspect --operator,"
                " or copy the files to a local directory."
            )
        return self._make(path)

    def _hdfs(self, path: str) -> FileSystem:
        try:
            from weir.storage.hdfs import HdfsFileSystem
        except ImportError as error:
            raise UnsupportedEnvironmentError(
                f"{path} needs hdfs-native, which is not installed ({error}): pip install"
                " 'weir-spark[hdfs]', or use a command that starts Spark."
            ) from error

        return HdfsFileSystem(path, self._kernel)


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
        self.copy(source, target)
        return False

    def copy(self, source: str, target: str) -> tuple[int, str]:
        """Copy ``source`` to ``target``, durably; an existing file is replaced.

        The result is its size and checksum. Raises ``StorageError`` if the source has vanished, and
        ``LostWriteError`` if what is at ``target`` now may be lost.
        """
        content = _Content(self._file_system(source), source)
        self._file_system(target).write_blocks(target, content)
        return content.size, f"crc32:{content.crc:08x}"

    def link_or_copy_all(self, files: Sequence[tuple[str, str]]) -> list[tuple[int, str] | None]:
        """Link or copy each (source, target), several at once if a file system is remote.

        The result has, for each file whose content passed through here, its size and checksum.
        Raises ``StorageError`` if a source has vanished; then no copy is under way any more.
        """
        if not files:
            return []
        at_once = max(self._file_system(path).transfers for path in files[0])
        return in_parallel([partial(self._moved, *pair) for pair in files], at_once)

    def _moved(self, source: str, target: str) -> tuple[int, str] | None:
        source_fs, target_fs = self._file_system(source), self._file_system(target)
        if source_fs is target_fs:
            target_fs.link_or_copy(source, target)
            return None
        return self.copy(source, target)


class _Content:
    """The blocks of a file, with the size and checksum of those that were read."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self.size = 0
        self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            for block in self._fs.blocks(self._path):
                self.size += len(block)
                self.crc = zlib.crc32(block, self.crc)
                yield block
        except FileNotFoundError as error:
            raise StorageError(f"{self._path} vanished before it could be copied.") from error


def in_parallel(works: Sequence[Callable[[], T]], at_once: int) -> list[T]:
    """Run functions on threads, at most ``at_once`` at a time, and return their results.

    Raises the first error, once no function runs any more. Functions that had not begun by then do
    not begin.
    """
    if min(at_once, len(works)) <= 1:
        return [work() for work in works]
    results: list[Future[T]] = [Future() for _ in works]
    numbers = itertools.count()
    failed = threading.Event()

    def run() -> None:
        # ``next`` of a count is atomic.
        while not failed.is_set() and (number := next(numbers)) < len(works):
            try:
                results[number].set_result(works[number]())
            except BaseException as error:
                results[number].set_exception(error)
                failed.set()

    # Daemon threads: work that hangs does not keep the process from exiting.
    threads = [
        threading.Thread(target=run, name="weir-transfer", daemon=True)
        for _ in range(min(at_once, len(works)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in (result.exception() for result in results if result.done()):
        if error is not None:
            raise error
    return [result.result() for result in results]
