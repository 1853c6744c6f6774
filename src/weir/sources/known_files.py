"""``KnownFiles``: which files of a directory were assigned already, in a state that does not grow for ever.

The rules of this file:

1. Files are told apart by their names. The name of an assigned file is kept for as long as the file is there, whatever its
   times are. So a file that comes late, with times of long ago, is known to be new.
2. The name of one that was removed is kept until files have come that are ``retention_ns`` younger than the youngest was
   when it was missed. Modification times of the directory's files are compared with each other, never with a clock.
3. Once names have been forgotten, a file of an unknown name that is not younger than the youngest was when these were missed
   can be one of them, come back, or one that came late. It is *doubtful*: neither read nor passed over, but said by name. So
   is a file under the name of a removed one that is younger than that can have been.
4. A look that finds nothing forgets nothing: a directory that is not mounted is empty too.

So no file is lost or read twice without a word, and the state is bounded by what lies in the directory and what was removed
of late. A file with a time in the future holds rule 2 up: names are kept for longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, TypeAlias

import msgspec

from weir.core.types import Count, Payload

#: Before every modification time.
_NEVER = -(2**63)


#: A file of the directory that a look would show: no path, which might lead out of it.
FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(?![._])[^/\x00]+\Z")]


class FoundFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the directory."""

    name: FileName
    size: Count
    mtime_ns: int


class KnownFiles:
    """The module's docstring has its rules."""

    def __init__(self, state: Payload, *, retention_ns: int) -> None:
        """``state`` is what ``dump`` returned, or empty."""
        self._retention_ns = retention_ns
        #: Names of files that were assigned and there at the newest look, in the order in which they were assigned.
        self._assigned: dict[str, None] = dict.fromkeys(state.get("assigned", ()))
        #: Names of those that were not there: the youngest time that had been seen when the file was missed.
        self._removed: dict[str, int] = dict(state.get("removed", {}))
        #: The youngest time that was ever seen, and what it was when the last of the forgotten files was missed.
        self._youngest_ns: int = state.get("youngest_ns", _NEVER)
        self._forgotten_ns: int = state.get("forgotten_ns", _NEVER)

    def dump(self) -> Payload:
        """All of it as JSON values."""
        return {
            "assigned": list(self._assigned),
            "removed": dict(self._removed),
            "youngest_ns": self._youngest_ns,
            "forgotten_ns": self._forgotten_ns,
        }

    @property
    def names(self) -> set[str]:
        """All that are not forgotten."""
        return self._assigned.keys() | self._removed.keys()

    def add(self, names: Iterable[str]) -> None:
        """These files are assigned."""
        for name in names:
            self._assigned[name] = None
            self._removed.pop(name, None)

    def look(
        self, files: Collection[FoundFile], waiting: Collection[str]
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        """All files that are there now: those that are new, and those that are doubtful (rule 3). ``waiting`` are names that
        an earlier look has found to be new, and that are not assigned yet."""
        new: list[FoundFile] = []
        doubtful: list[FoundFile] = []
        for file in files:
            missed_ns = self._removed.get(file.name)
            if missed_ns is not None:
                if file.mtime_ns > missed_ns:
                    doubtful.append(file)
                else:
                    self.add([file.name])
            elif file.name not in self._assigned:
                late = file.mtime_ns <= self._forgotten_ns and file.name not in waiting
                (doubtful if late else new).append(file)
        if files:
            # Only now: what this look makes forgotten was known to it.
            self._forget(files)
        return new, doubtful

    def _forget(self, files: Iterable[FoundFile]) -> None:
        """Rule 2."""
        there = {file.name: file.mtime_ns for file in files}
        self._youngest_ns = max(self._youngest_ns, *there.values())
        for name in [name for name in self._assigned if name not in there]:
            del self._assigned[name]
            self._removed[name] = self._youngest_ns
        limit_ns = self._youngest_ns - self._retention_ns
        for name in [name for name, missed_ns in self._removed.items() if missed_ns < limit_ns]:
            self._forgotten_ns = max(self._forgotten_ns, self._removed.pop(name))
