"""What the snapshots of a modelled query are made of; ``durable/task_snapshots.py`` takes them, as
it does Spark's.

Where there are no links, state files are copied later and may have vanished by then. The segment of
a live producer is found where that wrote it, a restored one below the query's own directory. One
that is gone before it could be copied was deleted too early, since the task holds back the
notification that it was read (PROTOCOL P27): that is lost state, and no fault of the disk.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.core.types import InFlightSegment, Payload, StateHandle
from weir.errors import StorageError
from weir.sim.disk import ProcessFileSystem


class LostStateError(Exception):
    """A query does not find its past, or a segment. Caught by nobody: the auditor looks for it in
    what tasks report."""


def segment_path(payload: Payload, directory: str) -> str:
    """Where the file of a segment is that the query in ``directory`` reads."""
    return payload.get("file") or f"{directory}/{payload['key']}"


class SimState:
    """Implements ``weir.durable.task_snapshots.RestingQuery``."""

    def __init__(
        self,
        *,
        vertex: str,
        directory: str,
        file_system: ProcessFileSystem,
        links: bool,
        state: Callable[[], tuple[dict[str, str], list[str]]],
    ) -> None:
        """``state`` gives the entries and keys of the query's state as it is."""
        self._vertex = vertex
        self._directory = directory
        self._fs = file_system
        self._links = links
        self._state = state
        #: Files of segments in flight that snapshots have asked for.
        self._segments: set[str] = set()

    def read(self, position: int) -> tuple[dict[str, str], list[str]]:
        """The state of the query, which rests at ``position``."""
        del position
        return self._state()

    def segment(self, segment: InFlightSegment) -> tuple[Payload, dict[str, str]]:
        """Each segment is one file."""
        key = f"in-flight/{segment.channel}/{segment.position:020d}"
        path = segment_path(segment.payload, self._directory)
        self._segments.add(path)
        return {"key": key}, {key: path}

    def file(self, key: str) -> str:
        """Where the file of a key is."""
        return f"{self._directory}/{key}"

    def is_unchanged(self, handle: StateHandle) -> bool:
        """All files have unique names."""
        del handle
        return True

    def pin_directory(self, directory: str, below: str, checkpoint_id: int) -> str | None:
        """The checkpoint's own directory, if there are links."""
        del below, checkpoint_id
        return directory if self._links else None

    def copy(self, source: str, target: str) -> None:
        """Copy a file. Raises ``LostStateError`` for a segment that is gone, ``StorageError`` for
        another file."""
        try:
            self._fs.link_or_copy(source, target)
        except StorageError as error:
            if source in self._segments and self._fs.status(source) is None:
                raise LostStateError(f"{self._vertex}: the segment {source} is gone") from error
            raise

    def unpin(self, directory: str) -> None:
        """Second names are in the checkpoint's own directory."""
