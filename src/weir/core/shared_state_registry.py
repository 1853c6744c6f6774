"""Which checkpoints use which state file (Flink's ``SharedStateRegistry``; MISSION A11).

An incremental checkpoint names files that older checkpoints wrote, so a file may have several users. A user is a
checkpoint's id; it is registered once for every file that it names, and unregistered when the checkpoint is over. The file
of which the last user goes is needed by nobody any more::

    register(1, {x, y})        x: 1    y: 1
    register(2, {y, z})        x: 1    y: 1, 2    z: 2
    unregister(1) -> x                 y: 2       z: 2

Each call costs as much as the files of the one checkpoint that it is about, however many checkpoints are kept: users are
counted, and no two sets of files are ever compared.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.errors import invariant


class SharedStateRegistry:
    """Counts the users of every file path."""

    def __init__(self) -> None:
        #: The files of each user, in the order in which they were registered.
        self._files: dict[int, dict[str, None]] = {}
        #: How many users a file has. Law: equal to the number of entries of ``_files`` that name it, hence never 0.
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of files that have a user."""
        return len(self._users)

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """``checkpoint_id`` uses these files, beside those that it was registered for before. Again is no change."""
        files = self._files.setdefault(checkpoint_id, {})
        for path in paths:
            if path not in files:
                files[path] = None
                self._users[path] = self._users.get(path, 0) + 1

    def unregister(self, checkpoint_id: int) -> tuple[str, ...]:
        """``checkpoint_id`` is over; those of its files that nobody uses any more. None if it is not registered."""
        unused = []
        for path in self._files.pop(checkpoint_id, {}):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                unused.append(path)
        return tuple(unused)

    def clear(self) -> None:
        """Forget everything, without a word about what is unused: the files belong to somebody else now."""
        self._files.clear()
        self._users.clear()

    def validate(self) -> None:
        """Check the law of the fields; raises ``InvariantError``."""
        counted: dict[str, int] = {}
        for files in self._files.values():
            for path in files:
                counted[path] = counted.get(path, 0) + 1
        invariant(counted == self._users, "the users of a state file are miscounted")
