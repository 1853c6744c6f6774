"""Moves immutable files between file systems: by hard link where that is possible, else by copying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weir.errors import StorageError
from weir.state.filesystem import FileSystem
from weir.state.paths import is_local


class Transfer:
    """Links or copies files whose paths may belong to different file systems."""

    def __init__(self, file_system: Callable[[str], FileSystem]) -> None:
        self._file_system = file_system

    def can_link(self, directory: str, other: str) -> bool:
        """Whether a file of one existing directory can get a second name in the other without copying."""
        if not (is_local(directory) and is_local(other)):
            return False
        return Path(directory).stat().st_dev == Path(other).stat().st_dev

    def link_or_copy(self, source: str, target: str) -> bool:
        """Give ``source`` a second name or a copy at ``target``. True if it was a link.

        Raises ``StorageError`` if the source has vanished.
        """
        source_fs, target_fs = self._file_system(source), self._file_system(target)
        if source_fs is target_fs:
            return target_fs.link_or_copy(source, target)
        try:
            target_fs.write(target, source_fs.read(source))
        except FileNotFoundError as error:
            raise StorageError(f"{source} has vanished before it could be copied to {target}.") from error
        return False
