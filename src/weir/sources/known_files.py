"""``KnownFiles``: the files that were assigned, in a state that does not grow without bound.

1. Files are identified by name, which is a relative path if directories are read. The name of an
   assigned file is kept as long as the file exists, whatever its times are. So a file that arrives
   late, with an old modification time, is known to be new. Its size and modification time are kept
   with it.
2. The name of a removed file is kept until the latest modification time is more than
   ``retention_ns`` past the latest time when the file was missed. Modification times of the
   directory's files are compared with each other, never with a clock.
3. Once names have been forgotten, a file with an unknown name is *doubtful* if it is not younger
   than the latest modification time when those files were missed: it may be one of them that has
   come back, or a new file that is late. It is neither read nor skipped, but reported by name. Also
   doubtful is a file with the name of a removed file and another size or time.
4. An empty listing forgets nothing: a directory that is not mounted is empty too.

So no file is lost or read twice silently, and the state is bounded by the files in the directory
and the recently removed files. A file with a time in the future makes rule 2 forget earlier names
sooner, and keep the names of files removed after it for longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from weir.core.types import Payload
from weir.sources.file_listing import FileSplit, FoundFile

#: Before every modification time.
_NEVER = -(2**63)


@dataclass
class Look:
    """What a listing has."""

    new: list[FoundFile] = field(default_factory=list)
    #: Rule 3.
    doubtful: list[FoundFile] = field(default_factory=list)
    #: Assigned files with another content.
    changed: list[FoundFile] = field(default_factory=list)


class KnownFiles:
    """Remembers assigned files. The module's docstring has the rules."""

    def __init__(self, state: Payload, *, retention_ns: int) -> None:
        """``state`` is a result of ``dump``, or empty."""
        self._retention_ns = retention_ns
        #: Names of assigned files that were in the newest listing, in the order of assignment.
        self._assigned: dict[str, None] = dict.fromkeys(state.get("assigned", ()))
        #: Names of assigned files that were not: the latest modification time seen when the file
        #: was missed.
        self._removed: dict[str, int] = dict(state.get("removed", {}))
        #: Names of files that differed in the newest listing: while a file is being written, it
        #: does in several.
        self._changing: set[str] = set()
        #: Size and modification time of assigned files, removed or not, when they were assigned or
        #: were last reported as changed.
        self._marks: dict[str, tuple[int, int]] = {
            name: (size, mtime_ns) for name, (size, mtime_ns) in state.get("marks", {}).items()
        }
        #: The latest modification time ever seen, and what it was when the last of the forgotten
        #: files was missed.
        self._youngest_ns: int = state.get("youngest_ns", _NEVER)
        self._forgotten_ns: int = state.get("forgotten_ns", _NEVER)

    def dump(self) -> Payload:
        """The state as JSON values."""
        return {
            "assigned": list(self._assigned),
            "removed": dict(self._removed),
            "marks": {name: list(mark) for name, mark in self._marks.items()},
            "youngest_ns": self._youngest_ns,
            "forgotten_ns": self._forgotten_ns,
        }

    @property
    def names(self) -> set[str]:
        """All names that are not forgotten."""
        return self._assigned.keys() | self._removed.keys()

    def add(self, files: Iterable[FoundFile | FileSplit]) -> None:
        """Remember these files as assigned."""
        for file in files:
            self._assigned[file.name] = None
            self._removed.pop(file.name, None)
            self._marks[file.name] = _mark(file)

    def take_back(self, names: Iterable[str]) -> None:
        """Forget that these files were assigned."""
        for name in names:
            self._assigned.pop(name, None)
            self._marks.pop(name, None)

    def look(self, files: Collection[FoundFile], waiting: Collection[str]) -> Look:
        """Take up a listing of all files.

        ``waiting`` are names that an earlier listing had as new and that are not assigned yet.
        """
        look, changing = Look(), set[str]()
        for file in files:
            missed_ns = self._removed.get(file.name)
            if missed_ns is not None:
                mark = self._marks.get(file.name, _mark(file))
                if mark != _mark(file) or file.mtime_ns > missed_ns:
                    look.doubtful.append(file)
                else:
                    self.add([file])
            elif file.name in self._assigned:
                if self._marks.setdefault(file.name, _mark(file)) != _mark(file):
                    self._marks[file.name] = _mark(file)
                    changing.add(file.name)
                    if file.name not in self._changing:
                        look.changed.append(file)
            else:
                late = file.mtime_ns <= self._forgotten_ns and file.name not in waiting
                (look.doubtful if late else look.new).append(file)
        self._changing = changing
        if files:
            # Last: names that this listing makes forgotten were still known when it was taken.
            self._forget(files)
        return look

    def _forget(self, files: Iterable[FoundFile]) -> None:
        """Forget names by rule 2."""
        there = {file.name: file.mtime_ns for file in files}
        self._youngest_ns = max(self._youngest_ns, *there.values())
        for name in [name for name in self._assigned if name not in there]:
            del self._assigned[name]
            self._removed[name] = self._youngest_ns
        limit_ns = self._youngest_ns - self._retention_ns
        for name in [name for name, missed_ns in self._removed.items() if missed_ns < limit_ns]:
            self._forgotten_ns = max(self._forgotten_ns, self._removed.pop(name))
            self._marks.pop(name, None)


def _mark(file: FoundFile | FileSplit) -> tuple[int, int]:
    return file.size, file.mtime_ns
