"""A directory on the simulated disk, whose faults are those of ``engine/disk.py``."""

from __future__ import annotations

from typing import Any

from weir.sim.stores.frame import rows_of
from weir.sim.stores.store import Store
from weir.sinks.base import Sink
from weir.sinks.files.sink import Files


class Directory(Store):
    """Implements ``Store`` for ``Files``."""

    def sink(self) -> Sink:
        """See ``Store``."""
        return Files(self._root, format="json")

    def attach(self, sink: Sink) -> None:
        """See ``Store``: its file system is in its context."""

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``."""
        return [
            row
            for path in self._disk.below(self._root)
            if not path.startswith(f"{self._root}/_")
            for row in rows_of(self._disk.files[path])
        ]
