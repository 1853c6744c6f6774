"""What was committed to a table, as its own log has it: for readers of several tables."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from weir.errors import StorageError
from weir.sinks.base import Commit


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One version in a table's log."""

    version: int
    #: None for a version that no Weir job made.
    commit: Commit | None
    #: False if the version has the same rows and schema as the previous version.
    changes_data: bool
    #: The earlier version whose rows it has brought back; None if it is not known to have done so.
    restored: int | None = None


class CommitLog(abc.ABC):
    """What was committed to one table, for readers of several tables at one checkpoint."""

    def __init__(self, name: str, place: str, root: str) -> None:
        """``name`` is the caller's; ``place`` the table, for messages; ``root`` where it lies."""
        self.name = name
        self.place = place
        self.root = root

    @abc.abstractmethod
    def look_again(self) -> None:
        """Update the log to the newest version."""

    @abc.abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All entries, newest first, as far back as the table has them."""

    @abc.abstractmethod
    def check_one_sink(self, job_id: str, job_name: str, sink: str) -> None:
        """Raise ``StorageError`` if another sink of the job writes to the table.

        With two sinks, no single commit says what the table shows, and there may be no version that
        shows exactly one checkpoint.
        """

    @abc.abstractmethod
    def cleaned_up(self) -> str:
        """What to add to an error if older entries are gone."""

    def commits(self, *, among: int | None = None) -> Iterator[Commit]:
        """The commits of Weir jobs, newest first; with ``among``, in that many newest entries."""
        return (entry.commit for entry in islice(self.entries(), among) if entry.commit is not None)

    def newest(self) -> Commit:
        """The newest commit of a Weir job. Raises ``StorageError`` if there is none."""
        for commit in self.commits():
            return commit
        raise StorageError(
            f"No Weir job has written to {self.place}{self.cleaned_up()}: remove it from the list,"
            " or write it with a sink for such tables."
        )
