"""``FileEnumerator``: finds files and assigns them to readers that ask (MISSION C; PROTOCOL P41).

A split is a whole file. Readers ask when they have read those that they had, and get files as soon
as there are some, or the end of a bounded input. They report what they reject::

    {"rejected": name, "why": text}, or
    {"rejected": name, "rows": [{"line": 7, "why": text}, ...]}

Rules:

1. A file is *discovered* until it is *assigned*, which happens once and is final. Every snapshot
   has both, and a restored reader has read, or still has, exactly the files that the snapshot has
   as assigned.
2. The readers that wait for files are not in snapshots: readers ask again in each attempt.
3. All waiting readers share the discovered files, each up to ``batch_bytes``. Readers that ask in
   one batch are served together.
4. An unbounded input consists of the files of the newest listing that were not assigned before
   (``known_files.py`` remembers those): a file removed before it was assigned is dropped. A bounded
   input consists of the files of the first listing. What is available now are those of the first
   listing of the attempt that were not assigned before.
5. A doubtful file fails the job by name, or is rejected; it is never read or skipped silently.
6. A file that was seen before a restore, is not assigned in the checkpoint, and is missing from the
   first listing afterwards is listed with the rejects: its rows are in no checkpoint, and if they
   were read, it was by an attempt that was rolled back. A file found after the checkpoint is known
   only to the driver that found it.
7. A file whose name is not UTF-8 cannot be named in an event or a snapshot: like an unreadable
   file, it fails the job, or is rejected once.
8. What is there and is not read is rejected once, and fails no job: directories, unless the source
   reads them, and what is neither a file nor a directory.
9. So is a file that has changed since it was assigned, each time it changes, unless it did in the
   listing before, too: its reader may have had either content.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec

from weir.core.types import Count, Payload
from weir.sources.base import SplitEnumerator, SplitEnumeratorContext
from weir.sources.file_listing import FileName, FileSplit, FoundFile, Skipped, list_files
from weir.sources.known_files import KnownFiles
from weir.storage.file_systems import FileSystems
from weir.storage.paths import is_utf8
from weir.storage.records import converted

_log = logging.getLogger(__name__)

#: The most files in one event; how many of the newest rejected files and rows are kept.
MAX_SPLITS = 10_000
MAX_REJECTS = 1_000
_DOUBTFUL = (
    "the file may have been read already: it is not newer than removed files whose names are"
    " forgotten (FileSource(name_retention=...)), or has the name of a removed file. Move it away;"
    " if it was not read, copy it in again with another name and a new modification time"
)
_CHANGED = (
    "the file was changed after it was assigned to a reader, which may have read its former content"
    " only, and will not read it again: put what is new in with another name"
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
    #: Names of what is there and is not read, as last listed.
    skipped: list[str] = []
    assigned: list[FileName] = []
    removed: dict[FileName, int] = {}
    marks: dict[FileName, tuple[Count, int]] = {}
    youngest_ns: int = 0
    forgotten_ns: int = 0


def _reject(reject: _Reject) -> Payload:
    said: Payload = msgspec.to_builtins(reject)
    return said


def _spelled(name: str) -> str:
    """A printable form of a name that is not UTF-8, for events, snapshots and people."""
    return name.encode(errors="backslashreplace").decode()


class FileEnumerator(SplitEnumerator[FileSplit]):
    """Finds files and assigns them to readers. The module's docstring has the rules."""

    def __init__(
        self,
        context: SplitEnumeratorContext,
        state: Payload,
        directory: str,
        *,
        expected: set[str],
        interval_ms: int,
        bounded: bool,
        recursive: bool,
        batch_bytes: int,
        rejects: bool,
        retention_ns: int,
    ) -> None:
        """With ``rejects``, a doubtful or unnameable file does not fail the job.

        ``state`` is that of a checkpoint, or empty; raises ``ValueError`` for any other.
        ``expected`` are the files that the attempts of this driver have seen and that may turn out
        to be missing; it is added to. ``retention_ns``: see ``KnownFiles``.
        """
        self._context = context
        self._directory = directory
        self._stores = FileSystems()
        self._interval_ms = interval_ms
        self._bounded = bounded
        self._recursive = recursive
        self._batch_bytes = batch_bytes
        self._goes_on = rejects
        self._retention_ns = retention_ns
        self._expected = expected
        checked = converted(state, _State)
        #: Whether there was a first listing: in the job's history, and since this start or restore.
        self._listed = checked.listed
        self._looked = False
        #: Whether the files of a listing since then are discovered.
        self._found_any = False
        #: Files to be assigned, in order.
        self._discovered = deque(checked.discovered)
        self._expected |= {file.name for file in self._discovered}
        #: Assigned files.
        self._known = KnownFiles(state, retention_ns=self._retention_ns)
        self._skipped = set(checked.skipped)
        self._rejected = checked.rejected
        self._rejects: deque[Payload] = deque(map(_reject, checked.rejects), maxlen=MAX_REJECTS)
        #: Readers that have asked and wait for files.
        self._waiting: set[int] = set()
        self._assigns_soon = False

    def start(self) -> None:
        """Look for files."""
        self._discover()

    def close(self) -> None:
        """Note the files that this attempt has seen."""
        self._expected |= self._known.names | {file.name for file in self._discovered}

    def snapshot_state(self, checkpoint_id: int) -> Payload:
        """The discovered, assigned and rejected files."""
        return {
            "listed": self._listed,
            "discovered": msgspec.to_builtins(list(self._discovered)),
            "skipped": sorted(self._skipped),
            **self._known.dump(),
            "rejected": self._rejected,
            "rejects": list(self._rejects),
        }

    def handle_split_request(self, subtask: int) -> None:
        """A reader waits for files."""
        self._waiting.add(subtask)
        self._assign_soon()

    def handle_source_event(self, subtask: int, event: Payload) -> None:
        """A reader could not read a file or some of its rows."""
        if "rows" in event:
            self._reject_rows(event["rejected"], event["rows"])
        else:
            self._reject(event["rejected"], event["why"])

    def unassigned_splits(self) -> int:
        """The discovered files."""
        return len(self._discovered)

    def add_splits_back(self, splits: Sequence[FileSplit], subtask: int) -> None:
        """Assign these files before all others."""
        self._known.take_back(split.name for split in splits)
        self._discovered.extendleft(
            FoundFile(split.name, split.size, split.mtime_ns) for split in reversed(splits)
        )
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

    def _discover(self) -> None:
        if not (self._bounded and self._listed):
            list_all = partial(list_files, self._directory, self._stores, recursive=self._recursive)
            self._context.call_async(list_all, self._found)

    def _found(
        self,
        listing: tuple[list[FoundFile], list[Skipped]] | None,
        error: BaseException | None,
    ) -> None:
        if listing is None:
            self._context.fail_job(f"the files of {self._directory} cannot be listed ({error})")
            return
        files, skipped = listing
        unnamed = {_spelled(file.name): file.name for file in files if not is_utf8(file.name)}
        if unnamed and not self._goes_on:
            self._context.fail_job(
                f"the file {next(iter(unnamed.values()))!r} in {self._directory} has a name that"
                " is not UTF-8: rename it, or skip such files with FileSource(on_error='reject')"
            )
            return
        files = [msgspec.structs.replace(file, name=_spelled(file.name)) for file in files]
        if not self._looked:
            self._looked = True
            self._say_missing({file.name for file in files})
        self._reject_skipped(skipped)
        look = self._known.look(files, {file.name for file in self._discovered})
        for file in look.changed:
            self._reject(file.name, _CHANGED)
        unread = [file for file in [*look.new, *look.doubtful] if file.name in unnamed]
        for file in unread:
            self._reject(file.name, "its name is not UTF-8")
        self._known.add(unread)
        new, doubtful = (
            [file for file in some if file.name not in unnamed]
            for some in (look.new, look.doubtful)
        )
        if doubtful and not self._goes_on:
            more = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
            self._context.fail_job(f"{doubtful[0].name}{more} in {self._directory}: {_DOUBTFUL}")
            return
        for file in doubtful:
            self._reject(file.name, _DOUBTFUL)
        self._known.add(doubtful)
        self._listed = self._found_any = True
        self._discovered = deque(new)
        self._assign()
        if not (self._bounded or self._context.available_now):
            self._context.schedule(self._interval_ms, self._discover)

    def _reject_skipped(self, skipped: list[Skipped]) -> None:
        """Reject by rule 8 what the listing before did not have."""
        names = {_spelled(one.name): one.why for one in skipped}
        for name, why in names.items():
            if name not in self._skipped:
                self._reject(name, why)
        self._skipped = set(names)

    def _say_missing(self, there: set[str]) -> None:
        """Reject missing files by rule 6.

        They stay expected, since the checkpoint that records the rejects may fail.
        """
        self._expected -= there | self._known.names
        said = {reject["file"] for reject in self._rejects if reject["why"] == _MISSING}
        for name in sorted(self._expected - said):
            self._reject(name, _MISSING)

    def _assign_soon(self) -> None:
        """Assign files after the events that are already queued."""
        if not self._assigns_soon:
            self._assigns_soon = True
            self._context.run_in_coordinator(self._assign)

    def _assign(self) -> None:
        self._assigns_soon = False
        readers = self._context.current_parallelism
        waiting = sorted(self._waiting)
        for index, subtask in enumerate(waiting):
            left = sum(file.size for file in self._discovered)
            splits = self._next(min(self._batch_bytes, left / (readers - index)))
            if splits:
                self._context.assign_splits(splits, subtask)
                self._waiting.discard(subtask)
        if self._has_found_all and not self._discovered:
            for subtask in waiting:
                self._context.signal_no_more_splits(subtask)
            self._waiting.clear()

    @property
    def _has_found_all(self) -> bool:
        """Whether no more files will be discovered in this attempt."""
        if self._bounded:
            return self._listed
        return self._context.available_now and self._found_any

    def _next(self, size: float) -> list[FileSplit]:
        """Assign the next files: the first, and more up to ``size`` bytes in total."""
        splits: list[FileSplit] = []
        while self._discovered and len(splits) < MAX_SPLITS:
            size -= self._discovered[0].size
            if splits and size < 0:
                break
            file = self._discovered.popleft()
            splits.append(FileSplit(file.name, file.size, file.mtime_ns))
        self._known.add(splits)
        return splits

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
