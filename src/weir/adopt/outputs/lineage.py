"""Which rows of a directory are a job's own: its own, and those of the job that it continues.

The place of a script's rows outlives its jobs. A job that starts with ``--fresh`` begins with
nothing, and a job that starts from another's savepoint goes on with its rows. The runtime opens the
sinks of the latter in the other job's name first, to commit what was pending; that is recorded in
the job's ledger.
"""

from __future__ import annotations

from collections.abc import Iterator

from weir.sinks.base import Commit, SinkContext
from weir.sinks.files.sink import Files
from weir.storage.paths import join

_CONTINUES = "continues"


class OwnRows(Files):
    """``Files`` that know whose rows they continue."""

    #: The ledger of the job from whose snapshot this one has started, once that is known.
    _forerunner: str | None = None

    def open(self, context: SinkContext) -> None:
        """Also record which job this one continues."""
        super().open(context)
        if context.is_in_other_name:
            self._forerunner = self._ledger_name
        elif self._forerunner is not None and len(self._lineage()) == 1:
            record = join(self._ledger, _CONTINUES)
            self._file_system.write(record, self._forerunner.encode())

    def _lineage(self) -> list[str]:
        """The names of the job's ledger and of those that it continues, newest first."""
        names = [self._ledger_name]
        while True:
            record = join(self.landmark(), names[-1], _CONTINUES)
            try:
                names.append(self._file_system.read(record).decode())
            except FileNotFoundError:
                return names


class ShownOnly(Files):
    """``Files`` whose rows are only shown: no job doubles them by showing them again."""

    def identity(self) -> str:
        """Where its rows are."""
        return f"Shown from {self._root}"

    def dataset(self) -> None:
        """None: nobody else reads it."""

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """None: a job may start over."""
        del context
        return iter(())
