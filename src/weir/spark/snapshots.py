"""What the snapshots of a Spark query are made of, and how a query's directory is filled from one.

``durable/task_snapshots.py`` takes the snapshots. Small log entries go into the metadata; the other
files of a query's directory are the state files that Spark's own lists name (``state_files.py``).
They are hard-linked at once, into the checkpoint directory if both lie on one local file system,
else beside the working directory, so that Spark's clean-up cannot take them away.

The watermark of what a query has emitted is part of a snapshot: until its next batch nobody else
could tell its consumers (PROTOCOL P25).
"""

from __future__ import annotations

from collections.abc import Callable

from weir.core.types import CompletedCheckpoint, InFlightSegment, Payload, StateHandle, TaskState
from weir.spark.channels import kept_payload, keyed_files
from weir.spark.operators import DIRECTORY
from weir.spark.query_directory import QueryDirectory
from weir.spark.saved_task import WATERMARK_ENTRY, check_saved_task, output_watermark_ms
from weir.spark.state_files import StateFiles, is_uniquely_named, relocate_operator_metadata
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.paths import parent

#: The state of Python operators after a batch: entries, and keys of files in the query's directory.
ReadOperatorState = Callable[[int], tuple[dict[str, str], list[str]]]


class QueryState:
    """Implements ``weir.durable.task_snapshots.RestingQuery`` for a query's directory."""

    def __init__(
        self,
        directory: QueryDirectory,
        transfer: Transfer,
        *,
        restored: TaskState | None,
        watermark_ms: Callable[[], int | None],
        operator_state: ReadOperatorState | None,
    ) -> None:
        """``watermark_ms`` gives the watermark of what the query has emitted, and
        ``operator_state`` the state of its Python operators, while it rests."""
        self._directory = directory
        self._transfer = transfer
        self._watermark_ms = watermark_ms
        self._operator_state = operator_state
        self._state_files = StateFiles(
            directory,
            [one.key for one in restored.files if not one.key.startswith(f"{DIRECTORY}/")]
            if restored
            else [],
            # Of the restored batch the commit log is read as well: a query that was rescaled has
            # nothing else.
            max(restored.position - 1, -1) if restored else -1,
        )

    def read(self, position: int) -> tuple[dict[str, str], list[str]]:
        """The log entries of the query's directory, and the keys of all its other files."""
        if position < 0:
            return {}, []
        inline, keys = self._directory.source_entries(position)
        entries = self._directory.log_entries(position) | inline
        watermark_ms = self._watermark_ms()
        if watermark_ms is not None:
            entries[WATERMARK_ENTRY] = str(watermark_ms)
        if self._operator_state is not None:
            kept, files = self._operator_state(position)
            entries |= kept
            keys += files
        return entries, keys + self._state_files.keys(position)

    def segment(self, segment: InFlightSegment) -> tuple[Payload, dict[str, str]]:
        """The files of a segment in flight: written by its producer, or restored with this
        query."""
        files = keyed_files(segment, self._directory.path)
        return kept_payload(files), files

    def file(self, key: str) -> str:
        """Where the file of a key is."""
        return self._directory.file(key)

    def is_unchanged(self, handle: StateHandle) -> bool:
        """State files have unique names. Schemas, few and small, have not: they are compared."""
        if is_uniquely_named(handle.key):
            return True
        return self._directory.fs.checksum(self.file(handle.key)) == (handle.size, handle.checksum)

    def pin_directory(self, directory: str, below: str, checkpoint_id: int) -> str | None:
        """``directory``, or one beside the query's own, or None on a file system without links."""
        self._transfer.make_directory(directory, below=below)
        own = self._directory.path
        if self._transfer.can_link(own, directory):
            return directory
        if not self._transfer.can_link(own, own):
            return None
        pinned = f"{own}-pinned-{checkpoint_id}"
        self._directory.fs.make_directory(pinned)
        return pinned

    def copy(self, source: str, target: str) -> None:
        """Link a file where that is possible, else copy it."""
        self._transfer.link_or_copy(source, target)

    def unpin(self, directory: str) -> None:
        """Delete a directory of second names."""
        self._directory.fs.delete(directory)


def restore_directory(
    *,
    state: TaskState,
    checkpoint: CompletedCheckpoint,
    storage: CheckpointStorage,
    transfer: Transfer,
    directory: QueryDirectory,
) -> None:
    """Fill a fresh query directory so that Spark goes on after ``state.position``.

    Raises ``CheckpointDamagedError`` before anything is written if the snapshot holds what no query
    may start on. Nothing is written outside of the directory: keys stay below it (``StateKey``),
    and what is linked into it is a plain file.
    """
    check_saved_task(state, checkpoint.external_path)
    made: set[str] = set()
    for key, text in state.entries.items():
        _make_parent(directory, key, made)
        directory.fs.write(directory.file(key), text.encode())
    for handle in state.files:
        _make_parent(directory, handle.key, made)
        transfer.link_or_copy(storage.file_path(checkpoint, handle), directory.file(handle.key))
    relocate_operator_metadata(directory)


def restored_watermark_ms(state: TaskState | None) -> int | None:
    """What the query had put out when the snapshot was taken."""
    return None if state is None else output_watermark_ms(state)


def _make_parent(directory: QueryDirectory, key: str, made: set[str]) -> None:
    place = parent(directory.file(key))
    if place not in made:
        directory.fs.make_directory(place)
        made.add(place)
