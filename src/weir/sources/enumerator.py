"""``FileEnumerator``: finds files and assigns them to readers that ask (MISSION C; PROTOCOL P41).

The messages::

    enumerator   {} to every reader at the start of an attempt
                 (forces a batch: a resting query runs none on its own)
    reader       {"ask": true}
                 (when a process opens it, and after each batch in which it has read)
    enumerator   {"splits": [name, ...]} as soon as there are files
                 (forces the batch that reads them)
    enumerator   {"end": true}, alone or with the last files
                 (to readers that ask, once all of a bounded input is assigned)
    reader       {"rejected": name, "why": text} for a file, or
                 {"rejected": name, "rows": [{"line": 7, "why": text}, ...]}

Rules:

1. A file is *discovered* until it is *assigned*, which happens once and is final. Every snapshot
   has both. The event that assigns a file is sent in the same epoch, so a restored reader has read
   exactly the files that the snapshot has as assigned.
2. The readers that wait for files are not in snapshots: readers ask again in each attempt. A reader
   that asks twice waits once.
3. All waiting readers share the discovered files, each up to ``batch_bytes``. Readers that ask in
   one batch are served together.
4. An unbounded input consists of the files of the newest listing that were not assigned before
   (``KnownFiles`` remembers those): a file removed before it was assigned is dropped. A bounded
   input consists of the files of the first listing.
5. A doubtful file fails the job by name, or is rejected; it is never read or skipped silently.
6. A file that was seen before a restore, is not assigned in the checkpoint, and is missing from the
   first listing afterwards is listed with the rejects: its rows are in no checkpoint, and if they
   were read, it was by an attempt that was rolled back. A file found after the checkpoint is known
   only to the driver that found it.
7. A file whose name is not UTF-8 cannot be named in an event or a snapshot: like an unreadable
   file, it fails the job, or is rejected once.

**Known files** (``KnownFiles``): the files that were assigned already, in a state that does not
grow without bound.

1. Files are identified by name. The name of an assigned file is kept as long as the file is there,
   whatever its times are. So a file that arrives late, with an old modification time, is known to
   be new.
2. The name of a removed file is kept until the latest modification time is more than
   ``retention_ns`` past the latest one when the file was missed. Modification times of the
   directory's files are compared with each other, never with a clock.
3. Once names have been forgotten, a file with an unknown name is *doubtful* if it is not younger
   than the latest modification time when those files were missed: it may be one of them that has
   come back, or a new one that is late. It is neither read nor skipped, but reported by name. Also
   doubtful is a file with the name of a removed one that is too young to be that file.
4. An empty listing forgets nothing: a directory that is not mounted is empty too.

So no file is lost or read twice silently, and the state is bounded by the files in the directory
and the recently removed ones. A file with a time in the future makes rule 2 forget earlier names
sooner, and keep the names of files removed after it for longer.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import Annotated, TypeAlias

import msgspec

from weir.coordinators.base import OperatorCoordinator
from weir.core.types import Count, Payload
from weir.errors import CoordinatorStateError
from weir.storage.paths import is_utf8
from weir.storage.records import converted

#: Before every modification time.
_NEVER = -(2**63)


#: The name of a visible file in the directory: never a path, which might lead out of it.
FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(?![._])[^/\x00]+\Z")]


class FoundFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the directory."""

    name: FileName
    size: Count
    mtime_ns: int


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
        #: The latest modification time ever seen, and what it was when the last of the forgotten
        #: files was missed.
        self._youngest_ns: int = state.get("youngest_ns", _NEVER)
        self._forgotten_ns: int = state.get("forgotten_ns", _NEVER)

    def dump(self) -> Payload:
        """The state as JSON values."""
        return {
            "assigned": list(self._assigned),
            "removed": dict(self._removed),
            "youngest_ns": self._youngest_ns,
            "forgotten_ns": self._forgotten_ns,
        }

    @property
    def names(self) -> set[str]:
        """All names that are not forgotten."""
        return self._assigned.keys() | self._removed.keys()

    def add(self, names: Iterable[str]) -> None:
        """Remember these files as assigned."""
        for name in names:
            self._assigned[name] = None
            self._removed.pop(name, None)

    def look(
        self, files: Collection[FoundFile], waiting: Collection[str]
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        """Take up a listing of all files; return the new ones and the doubtful ones (rule 3).

        ``waiting`` are names that an earlier listing had as new and that are not assigned yet.
        """
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
            # Last: names that this listing makes forgotten were still known when it was taken.
            self._forget(files)
        return new, doubtful

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


_log = logging.getLogger(__name__)

#: The most files in one event; how many rejected files and rows are kept, the newest ones.
MAX_SPLITS = 10_000
MAX_REJECTS = 1_000
_DOUBTFUL = (
    "the file may have been read already: it is not newer than removed files whose names are"
    " forgotten (FileSource(name_retention=...)), or has the name of a removed one. Move it away;"
    " if it was not read, copy it in again with another name and a new modification time"
)
_MISSING = (
    "the file was found before the job was restored, is in no completed checkpoint, and has been"
    " removed: unless it is put back, its rows are lost"
)


class _Reject(msgspec.Struct, frozen=True, omit_defaults=True):
    file: str
    why: str
    line: Count | None = None


class _State(msgspec.Struct, frozen=True):
    """The enumerator's state in a checkpoint; from ``assigned`` on, that of ``KnownFiles``."""

    listed: bool = False
    discovered: list[FoundFile] = []
    rejected: Count = 0
    rejects: list[_Reject] = []
    assigned: list[FileName] = []
    removed: dict[FileName, int] = {}
    youngest_ns: int = 0
    forgotten_ns: int = 0


def _reject(reject: _Reject) -> Payload:
    said: Payload = msgspec.to_builtins(reject)
    return said


def list_files(directory: str) -> list[FoundFile]:
    """List the visible files of a directory, oldest first. Raises ``OSError``."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name[0] in "._":
                continue
            try:
                if entry.is_file():
                    status = entry.stat()
                    found.append(FoundFile(entry.name, status.st_size, status.st_mtime_ns))
            except FileNotFoundError:
                # It was removed meanwhile.
                continue
    return sorted(found, key=lambda file: (file.mtime_ns, file.name))


def _spelled(name: str) -> str:
    """A printable form of a name that is not UTF-8, for events, snapshots and people."""
    return name.encode(errors="backslashreplace").decode()


class FileEnumerator(OperatorCoordinator):
    """Finds files and assigns them to readers. The module's docstring has the rules."""

    def __init__(
        self,
        directory: str,
        *,
        interval_ms: int,
        bounded: bool,
        batch_bytes: int,
        rejects: bool,
        retention_ns: int,
    ) -> None:
        """With ``rejects``, a doubtful or unnameable file does not fail the job.

        ``retention_ns``: see ``KnownFiles``.
        """
        self._directory = directory
        self._interval_ms = interval_ms
        self._bounded = bounded
        self._batch_bytes = batch_bytes
        self._goes_on = rejects
        self._retention_ns = retention_ns
        #: Files that the attempts of this driver have seen and that may turn out to be missing.
        self._expected: set[str] = set()
        self._begin({})

    def reset_to_checkpoint(self, checkpoint_id: int | None, state: Payload | None) -> None:
        """Restore the state, wake the readers, and look for files.

        Raises ``CoordinatorStateError`` for an invalid state.
        """
        self._expected |= self._known.names | {file.name for file in self._discovered}
        try:
            self._begin(state or {})
        except ValueError as error:
            raise CoordinatorStateError(
                f"The checkpoint's record of the files in {self._directory} is invalid ({error}):"
                " restore from another checkpoint or savepoint."
            ) from error
        self._expected |= {file.name for file in self._discovered}
        for subtask in range(self.context.current_parallelism):
            self.context.send_event(subtask, {})
        self._discover()

    def checkpoint_coordinator(self, checkpoint_id: int) -> Payload:
        """The discovered, assigned and rejected files."""
        return {
            "listed": self._listed,
            "discovered": msgspec.to_builtins(list(self._discovered)),
            **self._known.dump(),
            "rejected": self._rejected,
            "rejects": list(self._rejects),
        }

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Payload) -> None:
        """Handle a reader that asks for files, or could not read a file or some of its rows."""
        if "rows" in event:
            self._reject_rows(event["rejected"], event["rows"])
        elif "rejected" in event:
            self._reject(event["rejected"], event["why"])
        elif subtask < self.context.current_parallelism:
            # A higher subtask asked before the job was restored with fewer readers.
            self._waiting.add(subtask)
            self._assign_soon()

    def handle_request(self, request: Payload) -> Payload:
        """Answer ``{"rejects": true}`` with what could not be read.

        Raises ``ValueError`` for any other request.
        """
        if request != {"rejects": True}:
            raise ValueError(
                f'{request} is not a request that a file source supports: send {{"rejects": true}}'
            )
        return {"rejected": self._rejected, "rejects": list(self._rejects)}

    # -- inside

    def _begin(self, state: Payload) -> None:
        checked = converted(state, _State)
        #: Whether there was a first listing: in the job's history, and since this start or restore.
        self._listed = checked.listed
        self._looked = False
        #: Files to be assigned, in order.
        self._discovered = deque(checked.discovered)
        #: Assigned files.
        self._known = KnownFiles(state, retention_ns=self._retention_ns)
        self._rejected = checked.rejected
        self._rejects: deque[Payload] = deque(map(_reject, checked.rejects), maxlen=MAX_REJECTS)
        #: Readers that have asked and wait for files.
        self._waiting: set[int] = set()
        self._assigns_soon = False

    def _discover(self) -> None:
        if not (self._bounded and self._listed):
            self.context.call_async(partial(list_files, self._directory), self._found)

    def _found(self, files: list[FoundFile] | None, error: BaseException | None) -> None:
        if files is None:
            self.context.fail_job(f"the files of {self._directory} cannot be listed ({error})")
            return
        unnamed = {_spelled(file.name): file.name for file in files if not is_utf8(file.name)}
        if unnamed and not self._goes_on:
            self.context.fail_job(
                f"the file {next(iter(unnamed.values()))!r} in {self._directory} has a name that"
                " is not UTF-8: rename it, or skip such files with FileSource(on_error='reject')"
            )
            return
        files = [msgspec.structs.replace(file, name=_spelled(file.name)) for file in files]
        if not self._looked:
            self._looked = True
            self._say_missing({file.name for file in files})
        new, doubtful = self._known.look(files, {file.name for file in self._discovered})
        for file in [*new, *doubtful]:
            if file.name in unnamed:
                self._reject(file.name, "its name is not UTF-8")
        self._known.add(file.name for file in [*new, *doubtful] if file.name in unnamed)
        new, doubtful = (
            [file for file in some if file.name not in unnamed] for some in (new, doubtful)
        )
        if doubtful and not self._goes_on:
            more = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
            self.context.fail_job(f"{doubtful[0].name}{more} in {self._directory}: {_DOUBTFUL}")
            return
        for file in doubtful:
            self._reject(file.name, _DOUBTFUL)
        self._known.add(file.name for file in doubtful)
        self._listed = True
        self._discovered = deque(new)
        self._assign()
        if not self._bounded:
            self.context.schedule(self._interval_ms, self._discover)

    def _say_missing(self, there: set[str]) -> None:
        """Reject missing files by rule 6.

        They stay expected, since the checkpoint that records the rejects may fail.
        """
        self._expected -= there | self._known.names
        said = {one["file"] for one in self._rejects if one["why"] == _MISSING}
        for name in sorted(self._expected - said):
            self._reject(name, _MISSING)

    def _assign_soon(self) -> None:
        """Assign files after the events that are already queued."""
        if not self._assigns_soon:
            self._assigns_soon = True
            self.context.run_in_coordinator(self._assign)

    def _assign(self) -> None:
        self._assigns_soon = False
        readers = self.context.current_parallelism
        events: dict[int, Payload] = {}
        for index, subtask in enumerate(sorted(self._waiting)):
            left = sum(file.size for file in self._discovered)
            names = self._next(min(self._batch_bytes, left / (readers - index)))
            events[subtask] = {"splits": names} if names else {}
        ends = {"end": True} if self._bounded and self._listed and not self._discovered else {}
        for subtask, event in events.items():
            if event or ends:
                self.context.send_event(subtask, event | ends)
                self._waiting.discard(subtask)

    def _next(self, size: float) -> list[str]:
        """Assign the next files: the first, and more up to ``size`` bytes in total."""
        names: list[str] = []
        while self._discovered and len(names) < MAX_SPLITS:
            size -= self._discovered[0].size
            if names and size < 0:
                break
            names.append(self._discovered.popleft().name)
        self._known.add(names)
        return names

    def _reject(self, name: str, why: str) -> None:
        _log.warning("The file %s/%s was rejected: %s", self._directory, name, why)
        self._rejected += 1
        self._rejects.append({"file": name, "why": why})

    def _reject_rows(self, name: str, rows: list[Payload]) -> None:
        first = f"line {rows[0]['line']}: {rows[0]['why']}"
        _log.warning(
            "Rows of the file %s/%s were rejected: %d, the first in %s",
            self._directory,
            name,
            len(rows),
            first,
        )
        self._rejected += len(rows)
        self._rejects += [{"file": name, **row} for row in rows]
