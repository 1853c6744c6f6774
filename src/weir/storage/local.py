"""The local file system: ``FileSystem`` on top of system calls, without a JVM.

Rules of this file:

1. ``create`` never exposes a partial file. The content goes to a temporary file in the same
   directory, which is synced and then *linked* to the name; the link fails if the name is taken. So
   of any number of writers exactly one wins, and a crash at any moment leaves either nothing or the
   whole file (PROTOCOL P17).
2. ``write`` does the same with a rename, which replaces.
3. Durable means that the file *and* the directory that names it are synced (PROTOCOL P23).
   ``make_directory`` syncs each new directory's parent at once, so files written into it later
   cannot become unreachable.
4. Every ``OSError`` becomes a ``StorageError`` that names the path and the fix. The one exception
   is the ``FileNotFoundError`` of ``read``, which callers expect.
5. A failed fsync becomes a ``LostWriteError``. Linux drops the pages that it could not write,
   reports that to one fsync, and lets the next one succeed: a failed sync must never be retried and
   believed.

A temporary file's name starts with a dot, ends with ``.tmp`` and is short, however long the
target's name is. Nobody reads the temporary files that killed processes leave behind.

So a failed sync in a snapshot fails the attempt, whose restored tasks write new files; a commit
writes the files in doubt again; and the job log takes the next number for the same state.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from weir.errors import LostWriteError, StorageError, UnsupportedEnvironmentError
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileStatus, checksum_of
from weir.storage.paths import real

#: The errors of ``link`` where the file system, the file type or the link count rules out a link.
_NO_LINK = frozenset(
    {
        errno.EXDEV,
        errno.EPERM,
        errno.EMLINK,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.EINVAL,
    }
)

_WAY_OUT = {
    errno.EACCES: "permission denied; grant this user access, or choose another directory",
    errno.EPERM: "not permitted; grant this user access, or choose another directory",
    errno.ENOSPC: "no space left on the device; free some, or choose another directory",
    errno.EDQUOT: "disk quota exceeded; free some space, or choose another directory",
    errno.EROFS: "the file system is read-only; choose a writable directory",
    errno.ENOENT: "no such file or directory",
    errno.EEXIST: "a file is where a directory is needed; choose another path",
    errno.ENOTDIR: "part of the path is a file, not a directory; choose another path",
    errno.EISDIR: "it is a directory, but a file was expected",
    errno.ENOTEMPTY: "others keep writing into it; delete it once they have ended",
    errno.ENAMETOOLONG: (
        "the path, or a name in it, is too long for the file system; choose a shorter one"
    ),
    errno.ELOOP: "its symbolic links form a loop; fix them",
    errno.EIO: "the device reports an input/output error; check the disk",
}


class LocalFileSystem:
    """The file system of this machine, mounts included."""

    def __init__(self, kernel: Kernel = MACHINE) -> None:
        self._temporary_numbers = itertools.count(1)
        #: Repeats a deletion while others delete below the directory, or write there: a task that
        #: was killed writes for a moment longer.
        self._deletion = Retrying(
            retry=retry_if_exception(
                lambda error: (
                    isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTEMPTY)
                )
            ),
            stop=stop_after_attempt(20),
            wait=wait_exponential(multiplier=0.001, max=0.2),
            sleep=kernel.sleep,
            reraise=True,
        )

    @property
    def acts_late(self) -> bool:
        """False: what has failed has failed."""
        return False

    @property
    def transfers(self) -> int:
        """1: a disk serves a single reader or writer best."""
        return 1

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create the file with all of its content unless the name is taken (PROTOCOL P17).

        Durable on return. Raises ``UnsupportedEnvironmentError`` where there are no hard links and
        hence no conditional create. After a ``StorageError`` the file may or may not exist: read it
        back.
        """
        target = Path(path)
        with _explained("create", path):
            temporary = self._write_temporary(target, (data,))
            try:
                os.link(temporary, target)
            except FileExistsError:
                return CreateResult.ALREADY_EXISTS
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                raise UnsupportedEnvironmentError(
                    f"The file system of {path} has no hard links, which Weir needs so that only"
                    " one driver can take a name: choose a directory on a local disk, HDFS or S3."
                ) from error
            finally:
                temporary.unlink()
            _sync_directory(target.parent)
        return CreateResult.CREATED

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file, atomically. Durable on return."""
        self.write_blocks(path, (data,))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """Create or replace the file, atomically, block by block. Durable on return."""
        target = Path(path)
        with _explained("write", path):
            temporary = self._write_temporary(target, blocks)
            try:
                temporary.replace(target)
            except OSError:
                temporary.unlink()
                raise
            _sync_directory(target.parent)

    def read(self, path: str) -> bytes:
        """The content. Raises ``FileNotFoundError`` if there is no such file."""
        with _explained("read", path, expected=FileNotFoundError), _open_plain(path) as file:
            return file.read()

    def blocks(self, path: str) -> Iterator[bytes]:
        """The content in blocks. Raises ``FileNotFoundError`` if there is no such file."""
        with _explained("read", path, expected=FileNotFoundError), _open_plain(path) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def read_end(self, path: str, size: int) -> bytes:
        """The last ``size`` bytes. Raises ``FileNotFoundError`` if there is no such file."""
        with _explained("read", path, expected=FileNotFoundError), _open_plain(path) as file:
            file.seek(-min(size, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read()

    def status(self, path: str) -> FileStatus | None:
        """The status of the file or directory at the path; None if there is neither."""
        target = Path(path)
        with _explained("read the status of", path):
            try:
                found = target.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return _status(target.name, found)

    def is_link(self, path: str) -> bool:
        """Whether the last name of the path is a symbolic link, wherever that leads."""
        with _explained("read the status of", path):
            return Path(path).is_symlink()

    def list(self, path: str) -> list[FileStatus]:
        """Entries of a directory, sorted by name; empty if there is no such directory."""
        found: list[FileStatus] = []
        with _explained("list", path):
            try:
                with os.scandir(Path(path)) as entries:
                    for entry in entries:
                        try:
                            found.append(_status(entry.name, entry.stat()))
                        except FileNotFoundError:
                            continue  # deleted since the directory was read
            except FileNotFoundError:
                return []
        return sorted(found, key=lambda status: status.name)

    def make_directory(self, path: str, *, below: str | None = None) -> None:
        """Make the directory and its parents, syncing the parent of each; no error if it exists."""
        with _explained("create the directory", path):
            _make_directory(Path(path), below=None if below is None else Path(below))

    def make_private_directory(self, path: str) -> None:
        """Like ``make_directory`` with mode 0700. An existing directory keeps its mode."""
        with _explained("create the directory", path):
            _make_directory(Path(path), mode=0o700)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with everything below it; no error if it is missing."""
        target = Path(path)
        with _explained("delete", path):
            try:
                if not stat.S_ISDIR(target.lstat().st_mode):
                    target.unlink()
                    return
            except FileNotFoundError:
                return
            self._deletion(_delete_directory, target)

    def delete_files(self, paths: Sequence[str]) -> None:
        """Delete files."""
        for path in paths:
            self.delete(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory, replacing a target file. The target's directory must exist.

        Durable on return.
        """
        old, new = Path(source), Path(target)
        with _explained(f"move {source} to", target):
            old.replace(new)
            for directory in {old.parent, new.parent}:
                _sync_directory(directory)

    def link_or_copy(self, source: str, target: str) -> bool:
        """Hard-link an immutable file, or copy it. True if linked, False if copied.

        Copies across devices and where links are not supported. A target of the same size is left
        as it is (True if it is a link to the source already); any other is replaced. Not durable
        until ``sync``.
        """
        old, new = Path(source), Path(target)
        with _explained(f"link or copy {source} to", target):
            original = old.lstat()
            if not stat.S_ISREG(original.st_mode):
                raise _not_plain(source)
            try:
                existing = new.lstat()
            except FileNotFoundError:
                existing = None
            if existing is not None and existing.st_size == original.st_size:
                return os.path.samestat(original, existing)
            if existing is None:
                try:
                    os.link(old, new)
                    return True
                except OSError as error:
                    if error.errno not in _NO_LINK:
                        raise
            temporary = self._open_temporary(new)
            try:
                shutil.copyfile(old, temporary)
                temporary.replace(new)
            except OSError:
                temporary.unlink()
                raise
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Size in bytes and ``crc32:`` checksum of the content."""
        with _explained("read", path), _open_plain(path) as file:
            return checksum_of(path, iter(partial(file.read, BLOCK_BYTES), b""))

    def real_path(self, path: str) -> str:
        """The path without symbolic links, as far as it exists."""
        return real(path)

    def sync(self, files: Iterable[str]) -> None:
        """Make these files and the directories that hold them durable (fsync, PROTOCOL P23)."""
        directories: set[Path] = set()
        for path in files:
            target = Path(path)
            with _explained("sync", path):
                _sync(target, os.O_RDONLY)
            directories.add(target.parent)
        for directory in sorted(directories):
            with _explained("sync", str(directory)):
                _sync_directory(directory)

    def _open_temporary(self, target: Path) -> Path:
        """A new, empty file beside ``target`` that no other process uses."""
        while True:
            name = f".weir.{os.getpid()}.{next(self._temporary_numbers)}.tmp"
            temporary = target.with_name(name)
            try:
                os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                return temporary
            except FileExistsError:
                continue  # left behind by a killed process, or in use by another machine

    def _write_temporary(self, target: Path, blocks: Iterable[bytes]) -> Path:
        """A new, synced file beside ``target`` with this content."""
        temporary = self._open_temporary(target)
        try:
            with temporary.open("wb") as file:
                file.writelines(blocks)
                file.flush()
                _fsync(file.fileno())
        except BaseException:
            temporary.unlink()
            raise
        return temporary


def _delete_directory(target: Path) -> None:
    try:
        shutil.rmtree(target)
    except FileNotFoundError:
        if os.path.lexists(target):
            raise


def _open_plain(path: str) -> BinaryIO:
    """Open a regular file for reading. Reading a pipe or device might block or never end."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - Path.open takes no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _not_plain(path)
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _not_plain(path: str) -> StorageError:
    return StorageError(
        f"Cannot read {path}: it is not a regular file; put a copy of the file there."
    )


def _status(name: str, found: os.stat_result) -> FileStatus:
    is_directory = stat.S_ISDIR(found.st_mode)
    return FileStatus(
        name=name, size=0 if is_directory else found.st_size, is_directory=is_directory
    )


def _make_directory(directory: Path, *, mode: int = 0o777, below: Path | None = None) -> None:
    """Make missing directories, but never ``below``; ``mode``, less the umask, is for the last."""
    if directory.is_dir():
        return
    if directory == below:
        raise OSError(errno.ESTALE, f"{directory} is gone")
    _make_directory(directory.parent, below=below)
    directory.mkdir(mode, exist_ok=True)
    try:
        _sync_directory(directory.parent)
    except OSError:
        # Remove it, so that the next call makes and syncs it again.
        with suppress(OSError):
            directory.rmdir()
        raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


class _SyncFailedError(OSError):
    """An fsync failed (rule 5)."""


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _SyncFailedError(error.errno, error.strerror) from error


def _sync_directory(directory: Path) -> None:
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


@contextmanager
def _explained(action: str, path: str, *, expected: type[OSError] | None = None) -> Iterator[None]:
    """Turn an ``OSError`` other than ``expected`` into a ``StorageError`` that names the fix."""
    try:
        yield
    except OSError as error:
        if expected is not None and isinstance(error, expected):
            raise
        reason = _WAY_OUT.get(error.errno or 0)
        if reason is None:
            reason = f"{error.strerror or error}; check that its disk is mounted and healthy"
        if isinstance(error, _SyncFailedError):
            raise LostWriteError(
                f"Cannot {action} {path}: {reason}. It could not be synced, so the written data"
                " may be lost."
            ) from error
        raise StorageError(f"Cannot {action} {path}: {reason}.") from error
