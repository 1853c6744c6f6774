"""A disk that forgets what was not flushed, and its file system as one process sees it.

``Disk`` keeps what everyone sees, and beside it what a crash of the machine would bring back for
each path that was changed since it was last synced. A sync may fail: then the content is lost for
every name that the file has, though all read it until the machine crashes, and later syncs succeed
(PROTOCOL P23).

``ProcessFileSystem`` gives way before each operation, so that kills, pauses and other drivers come
between any two, and lets operations fail before or after they took effect.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from random import Random
from typing import Protocol

from weir.errors import LostWriteError, StorageError
from weir.sim.loop import Loop, Process
from weir.storage.filesystem import CreateResult, FileStatus


class Watcher(Protocol):
    """Told of what happens on the disk, the moment that it happens."""

    def deleted(self, path: str) -> None:
        """A file has gone."""
        ...

    def created(self, path: str, data: bytes) -> None:
        """A file was made durably by a conditional create."""
        ...


class Disk:
    """Files by path; directories by the names in them."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.files: dict[str, bytes] = {}
        self._names: dict[str, dict[str, None]] = {"": {}}
        #: What a crash may bring back for paths that were changed and not synced; None: no file.
        self._undo: dict[str, bytes | None] = {}
        #: The file behind each name, and those of which a sync has failed.
        self._file_ids: dict[str, int] = {}
        self._newest_id = 0
        self._lost: set[int] = set()

    def put(self, path: str, data: bytes, *, durable: bool) -> None:
        """Make or replace a file."""
        if durable:
            self._undo.pop(path, None)
        else:
            self._undo.setdefault(path, self.files.get(path))
        self.files[path] = data
        self._newest_id += 1
        self._file_ids[path] = self._newest_id
        self._enter(path)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        self.put(target, self.files[source], durable=False)
        self._file_ids[target] = self._file_ids[source]

    def create(self, path: str, data: bytes) -> CreateResult:
        """Make a file durably unless there is one."""
        if path in self.files:
            return CreateResult.ALREADY_EXISTS
        self.put(path, data, durable=True)
        self._watcher.created(path, data)
        return CreateResult.CREATED

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        if path not in self._names:
            self._names[path] = {}
            self._enter(path)

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""
        return path in self._names

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory."""
        return sorted(self._names.get(path, ()))

    def delete(self, path: str) -> None:
        """Delete a file or a whole directory."""
        if path in self.files:
            self._undo.setdefault(path, self.files[path])
            del self.files[path]
            self._leave(path)
            self._watcher.deleted(path)
        elif path in self._names:
            for name in self.names(path):
                self.delete(f"{path}/{name}")
            del self._names[path]
            self._leave(path)

    def copy_of(self, path: str) -> dict[str, bytes]:
        """All files below a directory, as a backup has them."""
        return {file: self.files[file] for file in self.below(path)}

    def put_back(self, path: str, copy: dict[str, bytes]) -> None:
        """Somebody replaces all that is below a directory by such a copy, durably. The watcher is
        not told."""
        for file in self.below(path):
            del self.files[file]
            self._undo.pop(file, None)
        self._forget_names(path)
        for file, data in copy.items():
            self.put(file, data, durable=True)

    def sync(self, path: str) -> None:
        """What the path is now survives a crash, unless a sync of the file failed before."""
        if self._file_ids.get(path) not in self._lost:
            self._undo.pop(path, None)

    def fail_sync(self, path: str) -> None:
        """What was not on the disk before a sync that failed never will be; and nobody is told
        again."""
        if path in self._undo and path in self.files:
            self._lost.add(self._file_ids[path])

    def is_volatile(self, path: str) -> bool:
        """Whether a crash may take away what the path is now."""
        return path in self._undo

    def crash(self, random: Random) -> None:
        """The machine loses power: each change that was not synced is lost or not, as it
        happens."""
        for path, before in list(self._undo.items()):
            if random.random() < 0.5:
                if before is not None:
                    self.files[path] = before
                    self._enter(path)
                elif path in self.files:
                    del self.files[path]
                    self._leave(path)
        self._undo.clear()
        self._lost.clear()

    def below(self, path: str) -> list[str]:
        """Paths of all files below a directory."""
        found = []
        for name in self.names(path):
            child = f"{path}/{name}"
            found += [child] if child in self.files else self.below(child)
        return found

    def _forget_names(self, path: str) -> None:
        for name in self.names(path):
            self._forget_names(f"{path}/{name}")
        self._names.pop(path, None)
        self._leave(path)

    def _enter(self, path: str) -> None:
        while path:
            parent, _, name = path.rpartition("/")
            known = self._names.get(parent)
            if known is not None and name in known:
                return
            self._names.setdefault(parent, {})[name] = None
            path = parent

    def _leave(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._names.get(parent, {}).pop(name, None)


class StorageFaults(Protocol):
    """What may go wrong with one operation of one process."""

    def delay_us(self) -> int:
        """How long it takes."""
        ...

    def fails_before(self, operation: str) -> bool:
        """Whether it fails without effect."""
        ...

    def fails_after(self, operation: str) -> bool:
        """Whether it takes effect and yet reports a failure."""
        ...

    def loses_writes(self) -> bool:
        """Whether a sync fails."""
        ...


class ProcessFileSystem:
    """Implements ``weir.storage.filesystem.FileSystem`` for one process."""

    def __init__(
        self, disk: Disk, loop: Loop, process: Process, faults: StorageFaults, *, links: bool
    ) -> None:
        self._disk = disk
        self._loop = loop
        self._process = process
        self._faults = faults
        #: Without links, a second name is a copy that takes time.
        self._links = links

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken."""
        self._begin("create", path)
        result = self._disk.create(path, data)
        self._end("create", path)
        return result

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file, durably."""
        self._begin("write", path)
        self._disk.put(path, data, durable=True)
        self._end("write", path)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the file without making it durable, as Spark and its executors do."""
        self._begin("put", path)
        self._disk.put(path, data, durable=False)

    def read(self, path: str) -> bytes:
        """The content."""
        self._begin("read", path)
        if path not in self._disk.files:
            raise FileNotFoundError(path)
        return self._disk.files[path]

    def status(self, path: str) -> FileStatus | None:
        """What is at the path, or None."""
        self._begin("status", path)
        name = path.rpartition("/")[2]
        if path in self._disk.files:
            return FileStatus(name=name, size=len(self._disk.files[path]), is_directory=False)
        return (
            FileStatus(name=name, size=0, is_directory=True)
            if self._disk.is_directory(path)
            else None
        )

    def is_link(self, path: str) -> bool:
        """Never: the disk has none."""
        return False

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name."""
        self._begin("list", path)
        files = self._disk.files
        return [
            FileStatus(
                name=name,
                size=len(files.get(f"{path}/{name}", b"")),
                is_directory=f"{path}/{name}" not in files,
            )
            for name in self._disk.names(path)
        ]

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents, and ``below`` too: no volume is away here."""
        del below
        self._begin("make_directory", path)
        self._disk.make_directory(path)

    def make_private_directory(self, path: str) -> None:
        """The same: there is nobody else."""
        self.make_directory(path)

    def delete(self, path: str) -> None:
        """Delete a file or a directory, one file after the other."""
        self._begin("delete", path)
        for file in self._disk.below(path):
            self._disk.delete(file)
            self._begin("delete", path)
        self._disk.delete(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        self._begin("rename", source)
        if source not in self._disk.files:
            raise StorageError(f"{source} cannot be renamed: there is no such file.")
        self._disk.link(source, target)
        self._disk.delete(source)

    def link_or_copy(self, source: str, target: str) -> bool:
        """Give a file a second name, or a copy."""
        self._begin("link" if self._links else "copy", source)
        if source not in self._disk.files:
            raise StorageError(f"{source} has vanished before it could be copied to {target}.")
        if self._links:
            self._disk.link(source, target)
        else:
            self._disk.put(target, self._disk.files[source], durable=False)
        return self._links

    def checksum(self, path: str) -> tuple[int, str]:
        """Size and checksum of the content."""
        self._begin("checksum", path)
        data = self._disk.files.get(path)
        if data is None:
            raise StorageError(f"{path} has vanished.")
        return len(data), f"crc32:{zlib.crc32(data):08x}"

    def real_path(self, path: str) -> str:
        """The path: there are no symbolic links."""
        return path

    def sync(self, files: Iterable[str]) -> None:
        """Make files durable."""
        for path in files:
            self._begin("sync", path)
            if path not in self._disk.files and not self._disk.is_directory(path):
                raise StorageError(f"{path} has vanished before it was synced.")
            if self._faults.loses_writes():
                self._disk.fail_sync(path)
                raise LostWriteError(f"Simulated: {path} could not be synced.")
            self._disk.sync(path)

    def _begin(self, operation: str, path: str) -> None:
        self._loop.sleep(self._process, self._faults.delay_us())
        if self._faults.fails_before(operation):
            raise StorageError(f"Simulated: {operation} of {path} failed.")

    def _end(self, operation: str, path: str) -> None:
        if self._faults.fails_after(operation):
            raise StorageError(f"Simulated: {operation} of {path} has an unknown outcome.")
