"""The modelled query's files in a snapshot; ``durable/task_snapshots.py`` takes it, as for Spark.

Without links, state files are copied later and may have vanished by then. The segment of a live
producer is where the producer wrote it, a restored segment below the query's own directory. A
segment that is gone before it could be copied was deleted too early, since the task holds back the
notification that it was read (PROTOCOL P27): that is lost state, not a fault of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.core.messages.task import TakeSnapshot
from weir.core.types import InFlightSegment, Payload, StateHandle
from weir.errors import StorageError
from weir.sim.engine.disk import ProcessFileSystem
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.paths import is_local

#: Entries and file keys of a query's state, for a snapshot.
ReadState = Callable[[TakeSnapshot], tuple[dict[str, str], list[str]]]


class LostStateError(Exception):
    """A query does not find its past state, or a segment.

    No code catches this: the auditor looks for it in the failures that tasks report.
    """


def segment_path(payload: Payload, directory: str) -> str:
    """The path of a segment's file, for the query in ``directory`` that reads it."""
    return payload.get("file") or f"{directory}/{payload['key']}"


class SimState:
    """Implements ``weir.durable.task_snapshots.RestingQuery``."""

    def __init__(
        self,
        *,
        vertex: str,
        directory: str,
        file_system: ProcessFileSystem,
        storage: CheckpointStorage,
        links: bool,
        read: ReadState,
    ) -> None:
        """``read`` returns the entries and file keys of a snapshot."""
        self._vertex = vertex
        self._directory = directory
        self._fs = file_system
        self._transfer = Transfer(storage.fs)
        self._links = links
        self.read = read
        #: Files of in-flight segments that snapshots have requested.
        self._segments: set[str] = set()

    def segment(self, segment: InFlightSegment) -> tuple[Payload, dict[str, str]]:
        """The payload and the one file of a segment."""
        key = f"in-flight/{segment.channel}/{segment.position:020d}"
        path = segment_path(segment.payload, self._directory)
        self._segments.add(path)
        return {"key": key}, {key: path}

    def file(self, key: str) -> str:
        """The path of a key's file."""
        return f"{self._directory}/{key}"

    def is_unchanged(self, handle: StateHandle) -> bool:
        """Always True: file names are unique."""
        del handle
        return True

    def pin_directory(self, directory: str, below: str, checkpoint_id: int) -> str | None:
        """The checkpoint's own directory if there are links; None otherwise."""
        del checkpoint_id
        if is_local(directory):
            self._fs.provide_directory(directory, below=below)
        return directory if self._links else None

    def copy(self, source: str, target: str) -> None:
        """Copy a file.

        Raises ``LostStateError`` if a segment is gone, ``StorageError`` if another file is.
        """
        try:
            self._transfer.link_or_copy(source, target)
        except StorageError as error:
            if source in self._segments and self._fs.status(source) is None:
                raise LostStateError(f"{self._vertex}: the segment {source} is gone") from error
            raise

    def copy_all(self, files: Sequence[tuple[str, str]], below: str) -> Sequence[None]:
        """Copy one file after the other; the directory has been made."""
        del below
        for source, target in files:
            self.copy(source, target)
        return [None] * len(files)

    def unpin(self, directory: str) -> None:
        """Do nothing: pinned files are links in the checkpoint's own directory."""
