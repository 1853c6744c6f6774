"""``Store``: where a sink of the product's writes in a run, and what may happen to it.

The laws of a sink over a store, which ``audit.py`` and the auditor check:

1. Readers see only rows of completed checkpoints, each once (MISSION A11, PROTOCOL P18).
2. Rows whose commit has returned stay, unless the store itself has lost them. Then the job says so
   by name, and only then (P21).
3. The checkpoint that the newest record names is there, also in an object store (P17).
4. A driver is fenced by another's record only (P17).
5. Once ``clean`` has returned, no session is alive that an older attempt had before (P22).
6. Once a checkpoint has been flushed, the target holds its rows, shown or not (P23).
7. What the target says of its rows agrees with them.
8. A job that has finished shows every row, unless nobody could notice that some were lost.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from weir.sim.engine.disk import Disk
from weir.sim.stores.faults import Network
from weir.sim.stores.frame import rows_of
from weir.sinks.base import Sink
from weir.sinks.staging import partition_values


class Store(abc.ABC):
    """The target of one sink, for all drivers of a run."""

    #: How often it has gone back; 0 where ``held`` does not say what it holds.
    age = 0
    #: Whether it has gone back to an older state, which a sink may have to report.
    has_gone_back = False
    #: Whether rows that readers saw went with that.
    has_lost_rows = False
    #: No attempt that knew of the rows, and no commit with rows, has begun since then.
    unseen = False
    #: The job has said that rows are lost.
    noticed = False

    def __init__(
        self, network: Network, disk: Disk, root: str, changed: Callable[[], object]
    ) -> None:
        """``root``: its directory. ``changed`` is called whenever readers may see other rows."""
        self.network = network
        self._disk = disk
        self._root = root
        self._changed = changed

    @abc.abstractmethod
    def sink(self) -> Sink:
        """A sink of the product's for this target, as a driver of Weir's own jobs has it."""

    def attach(self, sink: Any) -> None:
        """Let a sink reach the store in place of what its client library would reach.

        What it would write to a directory of its own goes to the store's.
        """
        sink._root = self._root

    def declare(self, schema: Any) -> None:
        """The Arrow schema of the sink's rows, for a table that exists beforehand."""
        del schema

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """What the sink asks of a store that this one does not show, in words."""
        del sink
        return None

    @abc.abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """What readers see."""

    def rows_in(self, path: str) -> list[dict[str, Any]]:
        """The rows of a file below the root, with the columns that are in its path."""
        rows = rows_of(self._disk.files.get(f"{self._root}/{path}", b""))
        more = partition_values(path)
        return [{**row, **more} for row in rows] if more else rows

    def held(self) -> list[dict[str, Any]] | None:
        """The rows that it shows or will show once they are committed; None if a disk has them."""
        return None

    def disagreement(self) -> str | None:
        """How what the target says of its rows differs from them; None if it does not."""
        return None

    def repair(self, wrong: Callable[[str], object]) -> None:
        """Somebody repairs what the job has named; ``wrong`` gets a text if it must not be so."""
        wrong("nothing can hang here")

    def sessions(self, sink: Sink, before: int) -> set[object]:
        """The sink's sessions of attempts before the given attempt."""
        return set()

    def strike(self) -> str | None:
        """Something happens to the store itself; returns what, or None if nothing did."""
        return None

    def goes_back(self, *, lost: bool) -> None:
        """Note that it has gone back, and whether rows are lost."""
        self.has_gone_back = True
        self.has_lost_rows |= lost
        self.unseen = self.has_lost_rows

    @property
    def is_excused(self) -> bool:
        """Whether rows may be missing at the end."""
        return self.has_lost_rows and (self.noticed or self.unseen)


def lacks_of_tables(sink: Any) -> str | None:
    """What no simulated table has: files that are merged, columns that are added."""
    if sink._adds:
        return "columns that are added"
    return None if sink._merging._target_size is None else "files that are merged"
