"""A disk that forgets unsynced writes in a crash, and the file system that one process sees.

``Disk`` keeps the content that every process sees and, for each path that changed since its last
sync, the content that a machine crash would bring back. A file that survives the crash unsynced may
be torn, and end early. A sync may fail: the content is then lost for every name of the file,
although everyone can read it until the machine crashes and later syncs succeed (PROTOCOL P23).

``ProcessFileSystem`` yields before each operation, so that kills, pauses and other drivers can come
between any two operations. It also makes operations fail before they took effect, and ``create``
and ``write`` after it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from random import Random
from typing import Protocol

from weir.errors import LostWriteError, StorageError
from weir.sim.engine.disk_faults import SlowPhases
from weir.sim.engine.loop import Loop, Process
from weir.storage.filesystem import CreateResult, FileStatus
from weir.storage.paths import parent

#: The share of files that a crash tears, of those that were not synced and survive it.
_TORN = 0.3


class Watcher(Protocol):
    """Notified of changes on the disk at the moment they happen."""

    def deleted(self, path: str) -> None:
        """A file was deleted."""
        ...

    def created(self, path: str, data: bytes) -> None:
        """A conditional create made a file, and a crash cannot lose it."""
        ...


class Disk:
    """Files by path; directories by the names in them."""

    def __init__(
        self, watcher: Watcher, *, tears: Random | None = None, slow: SlowPhases | None = None
    ) -> None:
        """``tears`` draws which files a crash tears; None: none. ``slow``: None: it never is."""
        self._watcher = watcher
        self._tears = tears
        self.slow = slow or SlowPhases(Random(0), 0)
        self.files: dict[str, bytes] = {}
        self._names: dict[str, dict[str, None]] = {"": {}}
        #: Unsynced path -> the content that a crash may bring back; None: no file.
        self._undo: dict[str, bytes | None] = {}
        #: Path -> the id of its file, which links share; and the ids of files whose sync failed.
        self._file_ids: dict[str, int] = {}
        self._newest_id = 0
        self._lost: set[int] = set()
        #: The ids of files whose content was not synced.
        self._unsynced: set[int] = set()
        #: New name -> old name of files that were renamed and not synced since.
        self._renamed: dict[str, str] = {}

    def put(self, path: str, data: bytes, *, durable: bool) -> None:
        """Create or replace a file."""
        if durable:
            self._undo.pop(path, None)
        else:
            self._undo.setdefault(path, self.files.get(path))
        self.files[path] = data
        self._newest_id += 1
        self._file_ids[path] = self._newest_id
        if not durable:
            self._unsynced.add(self._newest_id)
        self._enter(path)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        self.put(target, self.files[source], durable=False)
        self._file_ids[target] = self._file_ids[source]

    def rename(self, source: str, target: str) -> None:
        """Give a file another name: after a crash it has one of the two."""
        self.link(source, target)
        self.delete(source)
        self._renamed[target] = source

    def create(self, path: str, data: bytes, *, synced: bool = True) -> CreateResult:
        """Create a file unless the path is taken; durably, unless its sync fails."""
        if path in self.files:
            return CreateResult.ALREADY_EXISTS
        self.write(path, data, synced=synced)
        if synced:
            self._watcher.created(path, data)
        return CreateResult.CREATED

    def write(self, path: str, data: bytes, *, synced: bool = True) -> None:
        """Create or replace a file; durably, unless its sync fails."""
        self.put(path, data, durable=synced)
        if not synced:
            # The content is synced before the file has its name (``LocalFileSystem``): a crash may
            # lose the name, and tears nothing.
            self._unsynced.discard(self._newest_id)
            self.fail_sync(path)

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        if path not in self._names:
            self._names[path] = {}
            self._enter(path)

    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory."""
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
        """All files below a directory, as a backup would hold them."""
        return {file: self.files[file] for file in self.below(path)}

    def put_back(self, path: str, copy: dict[str, bytes]) -> None:
        """Replace all files below a directory with a copy, durably, unnoticed by the watcher."""
        for file in self.below(path):
            del self.files[file]
            self._undo.pop(file, None)
        self._forget_names(path)
        for file, data in copy.items():
            self.put(file, data, durable=True)

    def sync(self, path: str) -> None:
        """Make the path's current content survive a crash, unless a sync of its file has failed."""
        file_id = self._file_ids.get(path, 0)
        if file_id not in self._lost:
            self._unsynced.discard(file_id)
            self._undo.pop(path, None)
            self._undo.pop(self._renamed.pop(path, ""), None)

    def fail_sync(self, path: str) -> None:
        """Fail a sync: later syncs succeed without making the file's unsynced content durable."""
        if path in self._undo and path in self.files:
            self._lost.add(self._file_ids[path])

    def is_volatile(self, path: str) -> bool:
        """Whether a crash may lose the path's current content."""
        return path in self._undo

    def crash(self, random: Random) -> None:
        """Lose power: each unsynced change is lost with probability 0.5, and others are torn."""
        lost = {path: random.random() < 0.5 for path in self._undo}
        for target, source in self._renamed.items():
            if target in lost and source in lost:
                lost[source] = lost[target]
        for path, before in self._undo.items():
            if lost[path]:
                if before is not None:
                    self.files[path] = before
                    self._enter(path)
                elif path in self.files:
                    del self.files[path]
                    self._leave(path)
        self._tear([path for path in self._undo if not lost[path] and path in self.files])
        self._undo.clear()
        self._lost.clear()
        self._unsynced.clear()
        self._renamed.clear()

    def _tear(self, survivors: Iterable[str]) -> None:
        """Let some files end early, under all their names."""
        random, ends = self._tears, dict[int, float]()
        if random is None:
            return
        for path in survivors:
            file_id = self._file_ids[path]
            if file_id in self._unsynced:
                if file_id not in ends:
                    ends[file_id] = random.random() if random.random() < _TORN else 1.0
                data = self.files[path]
                self.files[path] = data[: round(len(data) * ends[file_id])]

    def below(self, path: str) -> list[str]:
        """The paths of all files below a directory."""
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


class DiskFile(BytesIO):
    """A new file, which is on the disk once it is closed."""

    def __init__(self, disk: Disk, path: str, *, durable: bool) -> None:
        super().__init__()
        self._disk = disk
        self._path = path
        self._durable = durable

    def close(self) -> None:
        """Write it."""
        if not self.closed:
            self._disk.put(self._path, self.getvalue(), durable=self._durable)
        super().close()


class StorageFaults(Protocol):
    """Decides what goes wrong with an operation of one process."""

    def delay_us(self) -> int:
        """How long the operation takes, in virtual microseconds."""
        ...

    def fails_before(self, operation: str) -> bool:
        """Whether the operation fails without effect."""
        ...

    def fails_after(self, operation: str) -> bool:
        """Whether the operation takes effect and still reports a failure."""
        ...

    def loses_writes(self, path: str) -> bool:
        """Whether a sync of this file fails."""
        ...


class ProcessFileSystem:
    """Implements ``weir.storage.filesystem.FileSystem`` for one process."""

    def __init__(
        self, disk: Disk, loop: Loop, process: Process, faults: StorageFaults, *, links: bool
    ) -> None:
        self._disk = disk
        self._loop = loop
        self.process = process
        self._faults = faults
        #: Whether hard links exist; without them ``link_or_copy`` copies the content.
        self._links = links

    @property
    def acts_late(self) -> bool:
        """False: a request is carried out before or while it fails."""
        return False

    @property
    def transfers(self) -> int:
        """One: the simulator's order of events is fixed."""
        return 1

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with this content unless the name is taken, durably.

        Raises ``LostWriteError`` if the file is there but its sync failed.
        """
        self._begin("create", path, entry=path)
        synced = path in self._disk.files or not self._faults.loses_writes(path)
        result = self._disk.create(path, data, synced=synced)
        self._end("create", path, synced=synced)
        return result

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file, durably. Raises ``LostWriteError`` as ``create`` does."""
        self._begin("write", path, entry=path)
        synced = not self._faults.loses_writes(path)
        self._disk.write(path, data, synced=synced)
        self._end("write", path, synced=synced)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the file without syncing it, as Spark and its executors do.

        Like them it creates missing directories; nothing else does.
        """
        self._begin("put", path)
        self._disk.put(path, data, durable=False)

    def read(self, path: str) -> bytes:
        """The file's content. Raises ``FileNotFoundError``."""
        self._begin("read", path)
        if path not in self._disk.files:
            raise FileNotFoundError(path)
        return self._disk.files[path]

    def blocks(self, path: str) -> Iterator[bytes]:
        """The file's content in one block. Raises ``FileNotFoundError``."""
        yield self.read(path)

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """``write`` with all blocks."""
        self.write(path, b"".join(blocks))

    def read_end(self, path: str, size: int) -> bytes:
        """The file's last ``size`` bytes. Raises ``FileNotFoundError``."""
        return self.read(path)[-size:]

    def status(self, path: str) -> FileStatus | None:
        """The file or directory at the path; None if the path does not exist."""
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
        """Always False: the disk has no symbolic links."""
        return False

    def list(self, path: str) -> list[FileStatus]:
        """The entries of a directory, sorted by name."""
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
        """Create the directory and its parents. Raises ``StorageError`` if ``below`` is missing."""
        self._begin("make_directory", path)
        self.provide_directory(path, below=below or "")

    def provide_directory(self, path: str, *, below: str = "") -> None:
        """Create a directory, if ``below`` exists, within another operation."""
        self._check_directory(below, f"{path} cannot be created")
        self._disk.make_directory(path)

    def make_private_directory(self, path: str) -> None:
        """Create a directory like any other: the disk has no permissions."""
        self.make_directory(path)

    def delete(self, path: str) -> None:
        """Delete a file or a directory, yielding after each file."""
        self._begin("delete", path)
        for file in self._disk.below(path):
            self._disk.delete(file)
            self._begin("delete", path)
        self._disk.delete(path)

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files."""
        for path in paths:
            self.delete(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        self._begin("rename", source, entry=target)
        if source not in self._disk.files:
            raise StorageError(f"{source} cannot be renamed: no such file.")
        self._disk.rename(source, target)

    def link_or_copy(self, source: str, target: str) -> bool:
        """Link the file to a second name, or copy it; return whether it was linked."""
        self._begin("link" if self._links else "copy", source, entry=target)
        if source not in self._disk.files:
            raise StorageError(f"{source} vanished before it could be copied to {target}.")
        if self._links:
            self._disk.link(source, target)
        else:
            self._disk.put(target, self._disk.files[source], durable=False)
        return self._links

    def checksum(self, path: str) -> tuple[int, str]:
        """The size and checksum of the content."""
        self._begin("checksum", path)
        data = self._disk.files.get(path)
        if data is None:
            raise StorageError(f"{path} vanished.")
        return len(data), f"crc32:{zlib.crc32(data):08x}"

    def real_path(self, path: str) -> str:
        """The path itself: the disk has no symbolic links."""
        return path

    def sync(self, files: Iterable[str]) -> None:
        """Make files durable. Raises ``LostWriteError`` if a sync fails."""
        for path in files:
            self._begin("sync", path)
            if path not in self._disk.files and not self._disk.is_directory(path):
                raise StorageError(f"{path} vanished before it was synced.")
            if self._faults.loses_writes(path):
                self._disk.fail_sync(path)
                raise _lost(path)
            self._disk.sync(path)

    def _begin(self, operation: str, path: str, *, entry: str | None = None) -> None:
        """Begin an operation; a new ``entry`` needs its directory on a local disk.

        File systems without links make missing directories when they write, so there a late writer
        can bring back what was deleted.
        """
        late_us = self._disk.slow.late_us(self._loop.now_us)
        self._loop.sleep(self.process, self._faults.delay_us() + late_us)
        if entry is not None and self._links:
            self._check_directory(parent(entry).rstrip("/"), f"{operation} of {path} failed")
        if self._faults.fails_before(operation):
            raise StorageError(f"Simulated: {operation} of {path} failed.")

    def _check_directory(self, path: str, failure: str) -> None:
        if not self._disk.is_directory(path):
            raise StorageError(f"{failure}: {path or '/'} is missing.")

    def _end(self, operation: str, path: str, *, synced: bool) -> None:
        if not synced:
            raise _lost(path)
        if self._faults.fails_after(operation):
            raise StorageError(f"Simulated: {operation} of {path} has an unknown outcome.")


def _lost(path: str) -> LostWriteError:
    return LostWriteError(f"Simulated: {path} could not be synced.")
