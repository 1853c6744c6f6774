"""The real files of a simulated run: a directory that forgets unsynced writes when it crashes.

The user's code writes real files below the current directory, a fresh one for each run. In a
machine crash, draws decide what is lost: whether every directory goes back to the names that it had
when it was last synced, and for each file that was written after its last sync, whether it goes
back to what it held then, or has only a part of what was written. What a library writes and syncs
below Python, as SQLite does, is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

#: The share of files that are torn, of those that were not synced and do not go back.
_TORN = 0.5
_SQLITE = (b"SQLite format 3\0",)
_SQLITE_ENDINGS = ("-journal", "-wal", "-shm")


@contextmanager
def machine(**functions: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile ``os`` has these functions: nobody passes a machine to code of the user."""
    real = {name: getattr(os, name) for name in functions}
    vars(os).update(functions)
    try:
        yield
    finally:
        vars(os).update(real)


@dataclass
class _Known:
    """A file at its last sync. ``pin`` keeps its inode from being used again."""

    content: bytes
    pin: Path


class CrashingFiles:
    """The files below a directory. ``pins`` is a directory on the same file system, outside."""

    #: Draws which files are torn.
    tears: Random

    def __init__(self, root: Path, pins: Path) -> None:
        self._root = root
        self._pins = pins
        #: By inode.
        self._synced: dict[int, _Known] = {}
        #: By directory: the inodes of its files when it was last synced.
        self._names: dict[Path, dict[str, int]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice what is synced meanwhile."""

        def noticed(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            self._sync(os.fstat(number).st_ino)

        with machine(fsync=noticed, fdatasync=noticed):
            yield

    def crash(self, random: Random) -> list[str]:
        """Lose power; return what is lost."""
        loses_names = random.random() < 0.5
        lost: list[str] = []
        layout: dict[Path, bytes] = {}
        current: dict[int, bytes] = {}
        for directory, files in self._directories():
            for name, inode in files.items():
                current[inode] = (directory / name).read_bytes()
        for directory, files in self._directories():
            kept = {name: one for name, one in files.items() if _keeps_itself(directory / name)}
            known = self._names.get(directory, {})
            chosen = {**known, **kept} if loses_names else files
            lost += [str(directory / name) for name in sorted(files.keys() - chosen.keys())]
            for name, inode in sorted(chosen.items()):
                path = directory / name
                synced = self._synced.get(inode)
                content = current.get(inode)
                if content is None:
                    content = b"" if synced is None else synced.content
                durable = b"" if synced is None else synced.content
                if name not in kept and content != durable:
                    if random.random() < 0.5:
                        content = durable
                        lost.append(f"the content of {path}")
                    elif self.tears.random() < _TORN:
                        content = content[: round(len(content) * self.tears.random())]
                        lost.append(f"the end of {path}")
                layout[path] = content
        self._lay_out(layout)
        return [one.replace(f"{self._root}/", "") for one in lost]

    def _lay_out(self, layout: dict[Path, bytes]) -> None:
        for directory, files in list(self._directories()):
            for name in files:
                (directory / name).unlink()
        for known in self._synced.values():
            known.pin.unlink(missing_ok=True)
        self._synced.clear()
        self._names.clear()
        for path, content in layout.items():
            path.write_bytes(content)
        for directory, files in self._directories():
            self._names[directory] = files
            for name, inode in files.items():
                self._pin(directory / name, inode)

    def _sync(self, inode: int) -> None:
        for directory, files in self._directories():
            if directory.stat().st_ino == inode:
                self._names[directory] = files
                return
            for name, one in files.items():
                if one == inode:
                    self._pin(directory / name, inode)
                    return

    def _pin(self, path: Path, inode: int) -> None:
        known = self._synced.get(inode)
        if known is None:
            pin = self._pins / str(inode)
            os.link(path, pin)
            known = self._synced[inode] = _Known(b"", pin)
        known.content = path.read_bytes()

    def _directories(self) -> Iterator[tuple[Path, dict[str, int]]]:
        for folder, folders, files in os.walk(self._root):
            folders.sort()
            found = {name: (Path(folder) / name).lstat().st_ino for name in sorted(files)}
            yield Path(folder), found


def _keeps_itself(path: Path) -> bool:
    """Whether a library below Python syncs it."""
    if path.name.endswith(_SQLITE_ENDINGS):
        return True
    with path.open("rb") as file:
        return file.read(16).startswith(_SQLITE)
