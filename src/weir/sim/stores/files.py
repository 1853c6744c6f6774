"""A directory on the simulated disk, whose faults are those of ``engine/disk.py``."""

from __future__ import annotations

from typing import Any

from weir.sim.stores.frame import Frame
from weir.sim.stores.store import Store
from weir.sinks.base import Sink
from weir.sinks.files.sink import Files
from weir.sinks.foreach.batch import ForeachBatch
from weir.sinks.foreach.epoch import ForeachEpoch


class Directory(Store):
    """Implements ``Store`` for ``Files``."""

    def sink(self) -> Sink:
        """See ``Store``."""
        return Files(self._root, format="json")

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """See ``Store``."""
        if sink._format not in ("parquet", "json"):
            return f"files of {sink._format.upper()}"
        return "options of the format" if sink._options else None

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``."""
        names = [path.removeprefix(f"{self._root}/") for path in self._disk.below(self._root)]
        return [row for name in names if name[0] != "_" for row in self.rows_in(name)]


class Calls(Directory):
    """Implements ``Store`` for ``ForeachEpoch``: its readers see what the function has had."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        #: By what identifies a call, the rows of a call that has returned.
        self._had: dict[Any, list[dict[str, Any]]] = {}

    def sink(self) -> Sink:
        """See ``Store``."""
        return ForeachEpoch(lambda *_: None, staging=self._root)

    def attach(self, sink: Any) -> None:
        """See ``Store``."""
        super().attach(sink)
        function = sink.function

        def called(frame: Frame, info: Any) -> None:
            function(frame, info)
            self._had[self._key(info)] = [dict(row) for row in frame.rows()]
            self._changed()

        sink.function = called

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``."""
        return [row for rows in self._had.values() for row in rows]

    def _key(self, info: Any) -> Any:
        return info.job_id, info.epoch


class BatchCalls(Calls):
    """Implements ``Store`` for ``ForeachBatch``, whose calls are identified by their ids."""

    def sink(self) -> Sink:
        """See ``Store``."""
        return ForeachBatch(lambda *_: None, staging=self._root)

    def _key(self, info: Any) -> Any:
        return info
