"""Disks that fail, fill up, or change between two calls of the code under test.

``FaultyDisk`` is a file system of Weir's, at whose calls the test acts. ``LostSyncs`` and
``broken_call`` break the operating system's calls below it, ``mounted`` is a real disk that a test
can fill, and ``quick_directory`` is for tests that sync often.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from weir.errors import StorageError
from weir.storage.filesystem import CreateResult, FileStatus
from weir.storage.local import LocalFileSystem

T = TypeVar("T")
SHARED_MEMORY = Path("/dev/shm")
_PAGE_BYTES = 4096
#: As often as anything is called.
_ALWAYS = 1_000_000


@dataclass
class _Plan:
    """What the test does at some calls of an operation."""

    operation: str
    act: Callable[[str], object]
    path: Callable[[str], bool]
    skip: int
    times: int

    def is_due(self, operation: str, path: str) -> bool:
        """Whether it is done at this call, which counts."""
        if operation != self.operation or not self.times or not self.path(path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultyDisk(LocalFileSystem):
    """A local file system that notes its calls, and at which the test acts before or after them.

    All plans are for the calls of one operation whose path is the right one, from now on: first
    ``skip`` of them pass, then the plan is carried out ``times`` times. Plans are carried out in
    their order, and return the disk.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Each call's operation and path; ``sync`` has one for each path.
        self.calls: list[tuple[str, str]] = []
        self._before: list[_Plan] = []
        self._after: list[_Plan] = []

    # -- for the test ------------------------------------------------------------------------------

    def before(
        self,
        operation: str,
        act: Callable[[str], object],
        *,
        path: Callable[[str], bool] = lambda _: True,
        skip: int = 0,
        times: int = _ALWAYS,
    ) -> FaultyDisk:
        """Call ``act`` with the path before the disk does the operation."""
        self._before.append(_Plan(operation, act, path, skip, times))
        return self

    def after(
        self,
        operation: str,
        act: Callable[[str], object],
        *,
        path: Callable[[str], bool] = lambda _: True,
        skip: int = 0,
        times: int = _ALWAYS,
    ) -> FaultyDisk:
        """Call ``act`` with the path after the disk has done the operation."""
        self._after.append(_Plan(operation, act, path, skip, times))
        return self

    def fail(self, operation: str, error: BaseException | None = None, **when: Any) -> FaultyDisk:
        """Fail, without doing the operation; ``when`` is that of ``before``."""
        return self.before(operation, partial(_fail, operation, error), **when)

    def lose_answer(self, operation: str, **when: Any) -> FaultyDisk:
        """Fail after the operation is done, as an unreliable network does."""
        return self.after(operation, partial(_fail, operation, None), **when)

    def mend(self) -> None:
        """Drop all plans."""
        self._before.clear()
        self._after.clear()

    def paths(self, operation: str) -> list[str]:
        """The paths of an operation's calls, in order."""
        return [path for called, path in self.calls if called == operation]

    # -- the file system ---------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> CreateResult:
        return self._do("create", [path], partial(super().create, path, data))

    def write(self, path: str, data: bytes) -> None:
        self._do("write", [path], partial(super().write, path, data))

    def read(self, path: str) -> bytes:
        return self._do("read", [path], partial(super().read, path))

    def status(self, path: str) -> FileStatus | None:
        return self._do("status", [path], partial(super().status, path))

    def list(self, path: str) -> list[FileStatus]:
        return self._do("list", [path], partial(super().list, path))

    def delete(self, path: str) -> None:
        self._do("delete", [path], partial(super().delete, path))

    def rename(self, source: str, target: str) -> None:
        self._do("rename", [source], partial(super().rename, source, target))

    def checksum(self, path: str) -> tuple[int, str]:
        return self._do("checksum", [path], partial(super().checksum, path))

    def sync(self, files: Iterable[str]) -> None:
        paths = [*files]
        self._do("sync", paths, partial(super().sync, paths))

    def _do(self, operation: str, paths: Iterable[str], do: Callable[[], T]) -> T:
        for path in paths:
            self.calls.append((operation, path))
            _carry_out(self._before, operation, path)
        result = do()
        for path in paths:
            _carry_out(self._after, operation, path)
        return result


def _carry_out(plans: Iterable[_Plan], operation: str, path: str) -> None:
    for plan in [*plans]:
        if plan.is_due(operation, path):
            plan.act(path)


def _fail(operation: str, error: BaseException | None, path: str) -> None:
    raise error or StorageError(f"Cannot {operation} {path}: the network is down.")


class LostSyncs:
    """Fails the first ``times`` syncs of paths that ``matches``, as Linux reports a lost write.

    The file's next sync succeeds. Records every synced path.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, matches: Callable[[str], bool], *, times: int = 1
    ) -> None:
        self.lost: list[str] = []
        self.synced: list[str] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if len(self.lost) < times and matches(path):
                self.lost.append(path)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.synced.append(path)
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all that is synced from now on, in order."""
    return LostSyncs(monkeypatch, lambda _: False).synced


def broken_call(code: int) -> Callable[..., None]:
    """A call of the operating system that fails with this errno."""

    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


class SmallDisk:
    """A mounted file system that a test fills."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"

    def fill(self, *, pages_left: int = 0) -> None:
        """Leave only this many pages free; each file and each further page of one needs one."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PAGE_BYTES))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            file.truncate(self._ballast.stat().st_size - pages_left * _PAGE_BYTES)

    def free(self) -> None:
        """Free the space again."""
        self._ballast.unlink()

    def remount(self, mode: str) -> None:
        """Remount it ``ro`` or ``rw``."""
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.directory)], check=True)

    def spoil(self, trouble: str) -> None:
        """Make it unwritable."""
        if trouble == "full":
            self.fill()
        else:
            self.remount("ro")

    def mend(self, trouble: str) -> None:
        """Undo ``spoil``."""
        if trouble == "full":
            self.free()
        else:
            self.remount("rw")


@contextmanager
def mounted(directory: Path, size: str) -> Iterator[str]:
    """A file system of its own in memory, at a new directory; needs root.

    Yields why it cannot be mounted here, or nothing.
    """
    directory.mkdir()
    if shutil.which("mount") is None:
        yield "there is no command to mount a file system"
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        yield done.stderr.strip() if done.returncode else ""
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(directory)], check=True)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[SmallDisk]:
    """A disk of this size at a new directory; skip the test where none can be mounted."""
    with mounted(directory, size) as refusal:
        if refusal:
            pytest.skip(f"a file system of its own cannot be mounted here: {refusal}")
        yield SmallDisk(directory)


@contextmanager
def quick_directory(otherwise: Path) -> Iterator[Path]:
    """A directory in memory, if possible, for tests that sync hundreds of files."""
    if not SHARED_MEMORY.is_dir():
        yield otherwise
        return
    made = Path(tempfile.mkdtemp(dir=SHARED_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)
