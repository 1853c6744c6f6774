"""HDFS without a JVM, by hdfs-native, whose configuration is that in ``HADOOP_CONF_DIR``.

Rules of this file:

1. A file appears whole or not at all: it is written under a temporary name beside its own, closed,
   and renamed. Create alone would not do: the name node shows the name, with no content, from the
   first moment, and for ever if the writer dies.
2. ``create`` renames without overwriting, so of any number of writers exactly one wins (PROTOCOL
   P17). hdfs-native repeats a request whose answer was lost, and the repetition finds the name
   taken, perhaps by the first try. So whenever a rename did not plainly succeed, the temporary file
   decides: nobody else moves it, so if it is gone and the name is there, ours took effect.
3. A request that no name node could serve is repeated: by hdfs-native if none answers or all stand
   by (``dfs.client.failover.max.attempts``, some three minutes), here for a minute in safe mode.
   Only the first request gives up sooner, so that a wrong address is reported soon.
4. A closed file is as durable as HDFS makes it: it is in the memory or on the disk of as many data
   nodes as it has replicas. So ``sync`` does nothing.

Files and directories get the modes 644 and 755, as from Hadoop's own client with its default umask.
A rename whose answer never came may still be carried out later (``acts_late``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from hdfs_native import Client, WriteOptions
from hdfs_native import FileStatus as Found
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from weir.errors import StorageError
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileStatus, checksum_of
from weir.storage.paths import join, name_of, parent, root_of

T = TypeVar("T")

#: Files that are moved at once, for one caller.
_TRANSFERS = 4
#: The port of a name node whose URI names none.
_PORT = 8020
#: With waits of up to 2 s: about a minute.
_ATTEMPTS = 33
#: Some five seconds in all.
_AT_START = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.max.millis": "2000",
}
#: What a name node answers that cannot serve now.
_NOT_NOW = ("SafeModeException", "RetriableException")
#: What comes before the name node's own words.
_SAID = re.compile(r'\A\w+\("(?:(?:[\w$]+\.)*([\w$]+)", ")?')
#: One part of the path is a file.
_NO_DIRECTORY = "ParentNotDirectoryException"


class _TakenError(StorageError):
    """The name node says that something has the name."""


class HdfsFileSystem:
    """One HDFS. The module's docstring says how it arbitrates."""

    def __init__(self, uri: str, kernel: Kernel = MACHINE) -> None:
        """``uri`` is any path in it. Raises ``StorageError`` if no name node answers."""
        self._new_name = kernel.new_name
        self._root = root_of(uri)
        self._patience = Retrying(
            retry=retry_if_exception(lambda error: any(word in str(error) for word in _NOT_NOW)),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=2),
            sleep=kernel.sleep,
            reraise=True,
        )
        self._client = self._connected(uri, _AT_START)
        self.status(uri)
        self._client = self._connected(uri, {})

    def _connected(self, uri: str, settings: dict[str, str]) -> Client:
        """A client with these settings beside those in ``HADOOP_CONF_DIR``."""
        host = self._root.rpartition("/")[2]
        try:
            return Client(self._root, settings)
        except Exception as error:
            if host and ":" not in host:
                # Not a name service: the host of a name node.
                with suppress(Exception):
                    return Client(f"{self._root}:{_PORT}", settings)
            raise _failure("reach", uri, error) from error

    @property
    def acts_late(self) -> bool:
        """True: a rename that was given up may still arrive."""
        return True

    @property
    def transfers(self) -> int:
        """Several: each waits for the network most of the time."""
        return _TRANSFERS

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file unless the name is taken (rule 2)."""
        return self.create_blocks(path, (data,))

    def create_blocks(self, path: str, blocks: Iterable[bytes]) -> CreateResult:
        """Create the file, block by block, unless the name is taken (rule 2)."""
        if self._put("create", path, blocks, overwrite=False):
            return CreateResult.CREATED
        return CreateResult.ALREADY_EXISTS

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file atomically."""
        self.write_blocks(path, (data,))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """Create or replace the file atomically, block by block."""
        if not self._put("write", path, blocks, overwrite=True):
            raise _in_the_way("write", path)

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such file."""
        return self._ask("read", path, lambda: self._client.read(self._key(path)).read())

    def read_end(self, path: str, size: int) -> bytes:
        """The last ``size`` bytes. Raises ``FileNotFoundError`` if there is no such file."""

        def end() -> bytes:
            file = self._client.read(self._key(path))
            length = min(size, len(file))
            return file.read_range(len(file) - length, length) if length else b""

        return self._ask("read", path, end)

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content in blocks. Raises ``FileNotFoundError`` if there is no such file."""
        file = self._ask("read", path, lambda: self._client.read(self._key(path)))
        for start in range(0, len(file), BLOCK_BYTES):
            length = min(BLOCK_BYTES, len(file) - start)
            yield self._ask("read", path, lambda: file.read_range(start, length))  # noqa: B023

    def status(self, path: str) -> FileStatus | None:
        """The status of the file or directory at the path; None if there is neither."""
        try:
            found = self._ask("look at", path, lambda: self._client.get_file_info(self._key(path)))
        except FileNotFoundError:
            return None
        return _status(name_of(path), found)

    def is_link(self, path: str) -> bool:
        """Always False: HDFS has links switched off."""
        return False

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        key = self._key(path)
        try:
            found = self._ask("list", path, lambda: [*self._client.list_status(key)])
        except FileNotFoundError:
            return []
        # A file is listed as itself.
        entries = [_status(name_of(one.path), one) for one in found if one.path != key]
        return sorted(entries, key=lambda entry: entry.name)

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents, except ``below``, which must exist."""
        if below is not None and self.status(below) is None:
            raise StorageError(
                f"Cannot create the directory {path}: {below} is gone. Restore it, or choose"
                " another directory."
            )
        self._ask(
            "make the directory",
            path,
            lambda: self._client.mkdirs(self._key(path), create_parent=True),
        )

    def make_private_directory(self, path: str) -> None:
        """Make the directory and its parents. HDFS says who may read it."""
        self.make_directory(path)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything below it."""
        with suppress(FileNotFoundError):
            self._ask("delete", path, lambda: self._client.delete(self._key(path), recursive=True))

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files."""
        for path in paths:
            self.delete(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory; a target file is replaced."""
        missing = StorageError(f"Cannot rename {source}: there is no such file.")
        if self.status(source) is None:
            raise missing
        try:
            moved = self._move("rename", source, target, overwrite=True)
        except FileNotFoundError as error:
            raise missing from error
        if not moved:
            raise _in_the_way("rename", target)

    def link_or_copy(self, source: str, target: str) -> bool:
        """Copy the file, unless a target of the same size exists; always False."""
        found, there = self.status(source), self.status(target)
        if found is None:
            raise StorageError(f"{source} vanished before it could be copied.")
        if there is None or (there.size, there.is_directory) != (found.size, False):
            self.write_blocks(target, self.blocks(source))
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        return checksum_of(path, self.blocks(path))

    def real_path(self, path: str) -> str:
        """The path itself: there are no links here."""
        return path

    def sync(self, files: Iterable[str]) -> None:
        """Do nothing (rule 4)."""

    # ---- internals

    def _key(self, path: str) -> str:
        return path[len(self._root) :] or "/"

    def _put(self, what: str, path: str, blocks: Iterable[bytes], *, overwrite: bool) -> bool:
        """Write a temporary file and rename it; whether that took effect (rules 1 and 2)."""
        temporary = join(parent(path), f".weir.{self._new_name()}.tmp")
        options = WriteOptions(overwrite=True, create_parent=False)

        def fill() -> None:
            with self._client.create(self._key(temporary), options) as file:
                for block in blocks:
                    file.write(block)

        moved = False
        try:
            # Blocks of an iterator are there only once.
            self._ask(what, path, fill, repeat=isinstance(blocks, tuple))
            moved = self._move(what, temporary, path, overwrite=overwrite)
        except FileNotFoundError as error:
            raise StorageError(
                f"Could not {what} {path}: its directory is gone. Restore it, or choose another"
                " directory."
            ) from error
        finally:
            if not moved:
                # What is left of it holds up nobody.
                with suppress(Exception):
                    self._client.delete(self._key(temporary))
        return moved

    def _move(self, what: str, source: str, target: str, *, overwrite: bool) -> bool:
        """Rename; False if the target's name is taken.

        Raises ``FileNotFoundError`` if there is no source.
        """
        old, new = self._key(source), self._key(target)
        try:
            self._ask(what, target, lambda: self._client.rename(old, new, overwrite))
            return True
        except _TakenError:
            return self._took_effect(source, target)
        except FileNotFoundError:
            if self._took_effect(source, target):
                return True
            raise

    def _took_effect(self, source: str, target: str) -> bool:
        """Whether a rename that was repeated did so at its first try (rule 2)."""
        return self.status(source) is None and self.status(target) is not None

    def _ask(self, what: str, path: str, request: Callable[[], T], *, repeat: bool = True) -> T:
        """What the name node and the data nodes answer.

        Raises ``FileNotFoundError`` if there is no such file, else ``StorageError``.
        """
        try:
            return self._patience(request) if repeat else request()
        except StorageError:
            # From the blocks of a file that is written.
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(path) from error
        except FileExistsError as error:
            raise _TakenError(str(_failure(what, path, error))) from error
        except Exception as error:
            if _NO_DIRECTORY in str(error):
                raise FileNotFoundError(path) from error
            raise _failure(what, path, error) from error


def _status(name: str, found: Found) -> FileStatus:
    return FileStatus(
        name=name,
        size=0 if found.isdir else found.length,
        is_directory=found.isdir,
        mtime_ns=found.modification_time * 10**6,
    )


def _in_the_way(what: str, path: str) -> StorageError:
    return StorageError(
        f"Could not {what} {path}: a directory has this name. Choose another one, or delete it."
    )


def _failure(what: str, path: str, error: Exception) -> StorageError:
    # Of what the name node says, hdfs-native shows Java's stack trace with its lines escaped.
    first = re.split(r"\n|\\n", str(error).strip())[0] or type(error).__name__
    if said := _SAID.match(first):
        kind = f"{said[1]}: " if said[1] else ""
        first = kind + first[said.end() :].rstrip('")').replace('\\"', '"')
    return StorageError(
        f"Could not {what} {path}: {first.rstrip('.')}. Check that the name node answers, that this"
        " user may do so, and the configuration in HADOOP_CONF_DIR."
    )
