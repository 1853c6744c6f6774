"""An append-only log that takes each number by conditional create: the one arbiter (PROTOCOL P17).

Each entry is a file, named by its number with leading zeros. The first writer that creates number n
has it; every other create of n fails. The next number is the newest plus one (ids may be skipped).
There are three such logs: the job log, the checkpoint id counter, and the map from job name to job
id.

**Why pruning is safe.** Old entries can be deleted, which frees their names. A writer that has been
suspended since (the newest number that it knows is long gone) could create such a name and believe
that it won. So ``append`` lists the directory *after* it creates: since the newest entry is never
deleted, a higher number exists whenever the name had been pruned. The writer then removes its own
file and has lost::

    stale writer   read newest = 7
    other driver   create 8, 9, ... 90; prune below 59
    stale writer   create 8 (free again!); list: 90 exists -> lost

The same listing can find a higher number that was appended after ours a moment ago. Its writer has
read our entry and continues from it: we have been overtaken, so "taken" is the right answer in this
case too.

Assumption: a listing shows every file that existed when it began and was not deleted meanwhile. At
least two entries are kept, so that one append and one pruning during a listing cannot make the log
look shorter than it is.

**When a create raises**, it may still have happened. Until the outcome is known, nothing may be
deleted or committed, so ``Recorder`` reads the number back, retrying up to a limit, and decides by
what it finds:

1. our own bytes, and no higher number: synced once more, then WON;
2. another writer's bytes, or a higher number: FENCED;
3. nothing: the create is retried; after the last try it is certain that nothing was recorded:
   FAILED;
4. our own bytes, but a sync of them failed: ``LostWriteError``. They exist but may be lost, and no
   later sync is believed. The number is taken; its content may be recorded once more under the next
   number.

If the log cannot be read back within the limit, a ``StorageError`` says so. The outcome is then
unknown, and the driver must stop as if it were fenced; the next driver reads what is on disk.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from tenacity import RetryCallState, Retrying, retry_if_exception, retry_if_result
from tenacity.stop import stop_after_attempt
from tenacity.wait import wait_exponential

from weir.core.types import Recorded
from weir.errors import LostWriteError, StorageError, invariant
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import CreateResult, FileSystem
from weir.storage.paths import join, parent

_DIGITS = 20
_NAME = re.compile(rf"[0-9]{{{_DIGITS}}}")
#: No log comes near this number. A file with a higher number was not written by Weir, and would
#: leave no number above it.
_NUMBER_MAX = 2**62
#: How often ``newest`` lists again when the entry it found was pruned before it was read.
_LIST_ATTEMPTS = 100
_KEEP_MIN = 2


class _StrayError(StorageError):
    """A file among the entries that Weir did not write: waiting does not help."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the log."""

    number: int
    data: bytes


class NumberedLog:
    """A log in ``directory``.

    Objects hold no state: any number of them, in any process, may share a directory. The first
    entry makes the directory, but not its parent: if that is missing, for example because a volume
    is not mounted, the log would start over without its existing entries.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory

    def newest(self) -> Entry | None:
        """The entry with the highest number, or None if the log is empty."""
        for _ in range(_LIST_ATTEMPTS):
            number = self.newest_number()
            if number is None:
                return None
            data = self.read(number)
            if data is not None:
                return Entry(number=number, data=data)
        raise StorageError(
            f"Cannot read the newest entry of {self.directory}: it vanished {_LIST_ATTEMPTS}"
            " times after being listed; check that nothing else deletes files there."
        )

    def newest_number(self) -> int | None:
        """The highest number, or None if the log is empty.

        Raises ``StorageError`` if it is too high for Weir to have taken it.
        """
        newest = max(self._numbers(), default=None)
        if newest is not None and newest > _NUMBER_MAX:
            raise _StrayError(
                f"{self.path(newest)} was not written by Weir, and it hides the other entries of"
                " that directory: delete the file."
            )
        return newest

    def read(self, number: int) -> bytes | None:
        """The content of one entry, or None if it does not exist or was pruned."""
        try:
            return self._fs.read(self.path(number))
        except FileNotFoundError:
            return None

    def append(self, number: int, data: bytes) -> CreateResult:
        """Take ``number``, durably.

        ALREADY_EXISTS if another writer has it, or had it before it was pruned. After a
        ``StorageError`` the number may or may not be taken: read it back (``Recorder`` does).
        """
        invariant(number >= 1, f"log numbers start at 1, but got {number}")
        self._fs.make_directory(self.directory, below=parent(self.directory))
        result = self._fs.create(self.path(number), data)
        if result is CreateResult.CREATED and max(self._numbers(), default=number) > number:
            self._fs.delete(self.path(number))
            return CreateResult.ALREADY_EXISTS
        return result

    def sync(self, number: int) -> None:
        """Sync an entry that was found after its create had ended in doubt."""
        self._fs.sync([self.path(number)])

    def prune(self, keep: int) -> None:
        """Delete all but the newest ``keep`` (at least 2) entries."""
        invariant(
            keep >= _KEEP_MIN, f"at least {_KEEP_MIN} entries of a log must be kept, but got {keep}"
        )
        for number in sorted(self._numbers())[:-keep]:
            self._fs.delete(self.path(number))

    def path(self, number: int) -> str:
        """The file of one entry."""
        return join(self.directory, f"{number:0{_DIGITS}d}")

    def _numbers(self) -> list[int]:
        listed = self._fs.list(self.directory)
        return [int(status.name) for status in listed if _NAME.fullmatch(status.name)]


_logger = logging.getLogger(__name__)

_CREATE_ATTEMPTS = 5
#: With waits of up to 10 s: about ten minutes. An object store's answer may take a minute itself.
_READ_BACK_ATTEMPTS = 64
_READ_BACK_MS = 600_000


class Recorder:
    """Takes numbers of one log and resolves creates that end in doubt."""

    def __init__(self, log: NumberedLog, kernel: Kernel = MACHINE) -> None:
        self._log = log
        self._kernel = kernel
        #: Why the last create that failed did so, for the message that goes with FAILED.
        self.failure = ""
        self._create = Retrying(
            retry=retry_if_result(lambda outcome: outcome is Recorded.FAILED),
            stop=stop_after_attempt(_CREATE_ATTEMPTS),
            wait=wait_exponential(multiplier=0.1, max=2.0),
            sleep=kernel.sleep,
            retry_error_callback=_last_outcome,
        )
        self._read_back = Retrying(
            retry=retry_if_exception(
                lambda error: (
                    isinstance(error, StorageError)
                    and not isinstance(error, LostWriteError | _StrayError)
                )
            ),
            wait=wait_exponential(multiplier=0.1, max=10.0),
            sleep=kernel.sleep,
            reraise=True,
        )

    def record(self, number: int, data: bytes) -> Recorded:
        """Take ``number`` with ``data``, which must be unique to this writer (it has its token).

        Blocks while the outcome is in doubt. Raises ``StorageError`` if it stays in doubt, and
        ``LostWriteError`` if the entry was written but may be lost.
        """
        return self._create(self._record_once, number, data)

    def _record_once(self, number: int, data: bytes) -> Recorded:
        lost: LostWriteError | None = None
        try:
            if self._log.append(number, data) is CreateResult.CREATED:
                return Recorded.WON
            self.failure = (
                f"The store says that {self._log.path(number)} exists, and that there is no such"
                " file. Check the store, or choose another directory."
            )
        except StorageError as error:
            self.failure = str(error)
            lost = error if isinstance(error, LostWriteError) else None
            _logger.warning(
                "Unknown whether entry %d of %s was written: %s", number, self._log.directory, error
            )
        until_ms = self._kernel.now_ms() + _READ_BACK_MS
        patient = self._read_back.copy(
            stop=lambda state: (
                state.attempt_number >= _READ_BACK_ATTEMPTS or self._kernel.now_ms() >= until_ms
            )
        )
        try:
            return patient(self._look, number, data, lost)
        except LostWriteError:
            raise
        except StorageError as error:
            raise StorageError(
                f"Unknown whether entry {number} of {self._log.directory} was written, so this"
                f" driver must stop; run the job again once the directory can be read: {error}"
            ) from error

    def _look(self, number: int, data: bytes, lost: LostWriteError | None) -> Recorded:
        found = self._log.read(number)
        newest = self._log.newest_number()
        if newest is not None and newest > number:
            return Recorded.FENCED
        if newest is None and number > 1:
            # The log's volume may not be mounted, and the entry may be on it.
            raise StorageError(f"{self._log.directory} is empty, but entry {number - 1} was there.")
        if found is None:
            return Recorded.FAILED
        if found != data:
            return Recorded.FENCED
        if lost is not None:
            raise lost
        self._log.sync(number)
        return Recorded.WON


def _last_outcome(state: RetryCallState) -> Recorded:
    """The result of the last try, which is FAILED."""
    return Recorded.FAILED if state.outcome is None else state.outcome.result()
