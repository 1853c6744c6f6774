"""The ids of batches that a function is called with, on record before it sees them.

They count from 0 in each staging directory, over all jobs that have used it, as Spark counts in a
checkpoint location. An epoch takes its ids before its first call, in a file in its job's ledger::

    _weir/committed/<job id>-orders/13.batches
        {"first": 40, "count": 3, "passed": 1, "staged": ["0a1b2c3d-orders-1/7", ...]}

So a batch that is passed again, by whichever driver, has the id that it had; and ids of an epoch
are never taken again, even if the epoch's number comes again with other rows. A file per epoch,
since a late driver must not take back the file of a newer epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from weir.core.types import Count
from weir.errors import SinkError
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join
from weir.storage.records import decoded

_NAME = re.compile(r"([1-9][0-9]{0,17})\.batches")
#: Files kept in a ledger; only the newest is needed.
_KEPT = 3


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of one epoch."""

    #: The id of the first.
    first: Count
    #: How many ids they have.
    count: Count
    #: How many the function has had.
    passed: Count = 0
    #: Where they are staged, which identifies their rows.
    staged: tuple[str, ...]


class BatchNumbers:
    """The ids of one sink's batches; the module's docstring has the layout."""

    def __init__(self, file_system: FileSystem, ledger: str, ledgers: str, *, place: str) -> None:
        """``ledger`` is the job's own, in ``ledgers``; ``place`` is the sink, for messages."""
        self._file_system = file_system
        self._ledger = ledger
        self._ledgers = ledgers
        self._place = place

    def of(self, epoch: int, staged: Sequence[str], count: int) -> Batches:
        """The batches of an epoch with rows, on record.

        They have the same ids as before if they are staged at the same places.
        """
        known = self._read(self._path(epoch))
        if known is not None and known.staged == tuple(staged) and known.count == count:
            return known
        batches = Batches(first=self._next(), count=count, staged=tuple(staged))
        self.record(epoch, batches)
        return batches

    def record(self, epoch: int, batches: Batches) -> None:
        """Record the batches of an epoch, durably."""
        self._file_system.write(self._path(epoch), msgspec.json.encode(batches))

    def forget(self) -> None:
        """Delete the files of epochs long past."""
        for epoch in sorted(self._epochs_in(self._ledger))[:-_KEPT]:
            self._file_system.delete(self._path(epoch))

    def _next(self) -> int:
        ledgers = [
            join(self._ledgers, entry.name) for entry in self._file_system.list(self._ledgers)
        ]
        newest = [
            self._read(join(ledger, f"{epoch}.batches"))
            for ledger in ledgers
            if (epoch := max(self._epochs_in(ledger), default=None)) is not None
        ]
        return max((each.first + each.count for each in newest if each is not None), default=0)

    def _epochs_in(self, ledger: str) -> Iterator[int]:
        matches = (_NAME.fullmatch(entry.name) for entry in self._file_system.list(ledger))
        return (int(match[1]) for match in matches if match)

    def _path(self, epoch: int) -> str:
        return join(self._ledger, f"{epoch}.batches")

    def _read(self, path: str) -> Batches | None:
        try:
            return decoded(self._file_system.read(path), Batches)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SinkError(
                f"The record {path} of {self._place} is damaged ({error}): restore it from a copy,"
                " or choose a new directory."
            ) from error
