"""The contents of a Spark query's snapshots, and restoring a query's directory from a snapshot.

``durable/task_snapshots.py`` takes the snapshots. Small log entries go into the metadata; larger
entries and the state files that Spark's own lists name (``rocksdb_files.py``) are kept as files.
They are hard-linked at once, so that Spark's clean-up cannot delete them: into the checkpoint
directory if both lie on one local file system, else beside the query's directory. A file system
without links keeps only the original names until the files are copied.

A source's snapshot may be taken while the next batch runs. All that it reads is named by batch or
by state version, never rewritten, and kept by Spark for ``minBatchesToRetain`` batches
(PROTOCOL P4).

A snapshot includes the query's output watermark: after a restore and until the next batch, nothing
else could give it to consumers (PROTOCOL P25).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weir.core.messages.task import TakeSnapshot
from weir.core.types import CompletedCheckpoint, InFlightSegment, Payload, StateHandle, TaskState
from weir.errors import StorageError
from weir.spark.channels import kept_payload, keyed_files
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.plan_layout import PLAN_ENTRY, PlanLayout, encode_layout
from weir.spark.state.rebase import is_joined
from weir.spark.state.rocksdb_files import StateFiles, is_uniquely_named, relocate_operator_metadata
from weir.spark.state.saved_task import WATERMARK_ENTRY, check_saved_task
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.paths import is_local, parent
from weir.subtasks.chain import DIRECTORY

#: Takes the snapshots of Python operators: entries, and keys of files in the query's directory.
SnapshotOperators = Callable[[TakeSnapshot], tuple[dict[str, str], list[str]]]


class QueryState:
    """Implements ``weir.durable.task_snapshots.RestingQuery`` on a query's directory."""

    def __init__(
        self,
        directory: QueryDirectory,
        transfer: Transfer,
        *,
        restored: TaskState | None,
        watermark_ms: Callable[[int], int | None],
        snapshot_operators: SnapshotOperators | None,
        layout: Callable[[], PlanLayout | None],
        entries: Mapping[str, str],
    ) -> None:
        """``restored`` is the state that the query started from; None if it started without.

        ``watermark_ms`` returns the query's output watermark after a batch. While the query rests,
        ``snapshot_operators`` takes the snapshots of its Python operators, and ``layout`` returns
        the owners in its plan after the last batch, None if they are not known. ``entries`` are the
        same in all of its snapshots.
        """
        self._directory = directory
        self._transfer = transfer
        self._watermark_ms = watermark_ms
        self._snapshot_operators = snapshot_operators
        self._layout = layout
        self._entries = entries
        self._restored_layout = None if restored is None else restored.entries.get(PLAN_ENTRY)
        self._state_files = StateFiles(
            directory,
            [file.key for file in restored.files if not file.key.startswith(f"{DIRECTORY}/")]
            if restored
            else [],
            # The commit log of the restored batch is read too: a rescaled query has nothing else.
            max(restored.position - 1, -1) if restored else -1,
        )

    def read(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        """The small entries of the state after a batch, and the keys of all its other files.

        Of a query that has finished only the state of its Python operators is left: what they
        commit once the final checkpoint is complete.
        """
        position = effect.position
        if position < 0:
            return {}, []
        take = self._snapshot_operators
        kept, keys = ({}, []) if take is None else take(effect)
        if effect.finished:
            return kept, keys
        inline, sources = self._directory.source_entries(position)
        entries = self._directory.log_entries(position) | inline | kept | dict(self._entries)
        watermark_ms = self._watermark_ms(position)
        if watermark_ms is not None:
            entries[WATERMARK_ENTRY] = str(watermark_ms)
        layout = self._layout()
        text = self._restored_layout if layout is None else encode_layout(layout)
        if text is not None:
            entries[PLAN_ENTRY] = text
        return entries, sources + keys + self._state_files.keys(position)

    def segment(self, segment: InFlightSegment) -> tuple[Payload, dict[str, str]]:
        """The payload and files of an in-flight segment: its producer's, or restored files."""
        files = keyed_files(segment, self._directory.path)
        return kept_payload(segment.payload, files), files

    def file(self, key: str) -> str:
        """The path of the file with this key."""
        return self._directory.file(key)

    def is_unchanged(self, handle: StateHandle) -> bool:
        """Whether the file is still that of an earlier checkpoint.

        State files have unique names, so they are. Schemas have not, but they are few and small:
        their checksums are compared.
        """
        if is_uniquely_named(handle.key):
            return True
        return self._directory.fs.checksum(self.file(handle.key)) == (handle.size, handle.checksum)

    def pin_directory(self, directory: str, below: str, checkpoint_id: int) -> str | None:
        """Where to link files: ``directory``, if it can be made below ``below`` and linked to.

        Else a directory beside the query's own; None on a file system without links.
        """
        own = self._directory.path
        if is_local(directory):
            self._transfer.make_directory(directory, below=below)
            if self._transfer.can_link(own, directory):
                return directory
        if not self._transfer.can_link(own, own):
            return None
        pinned = f"{own}-pinned-{checkpoint_id}"
        self._directory.fs.make_directory(pinned)
        return pinned

    def copy(self, source: str, target: str) -> None:
        """Link the file if possible, else copy it."""
        self._transfer.link_or_copy(source, target)

    def copy_all(
        self, files: Sequence[tuple[str, str]], below: str
    ) -> Sequence[tuple[int, str] | None]:
        """Copy files; a remote directory is only made now, when no query waits."""
        for directory in {parent(target) for _, target in files}:
            self._transfer.make_directory(directory, below=below)
        return self._transfer.link_or_copy_all(files)

    def unpin(self, directory: str) -> None:
        """Delete a directory of links."""
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

    Files of a remote checkpoint are fetched several at once. Raises ``CheckpointDamagedError``,
    before anything is written, if the snapshot holds state on which no query may start. Nothing is
    written outside the directory: keys stay below it (``StateKey``), and only plain files are
    linked into it.
    """
    checked = state
    if state not in checkpoint.tasks:
        # Made of tasks that were checked; what was joined is not yet part of the query.
        checked = replace(
            state,
            entries={key: text for key, text in state.entries.items() if not is_joined(key)},
            files=tuple(file for file in state.files if not is_joined(file.key)),
        )
    check_saved_task(checked, checkpoint.external_path)
    made: set[str] = set()
    for key, text in state.entries.items():
        _make_parent(directory, key, made)
        directory.fs.write(directory.file(key), text.encode())
    for handle in state.files:
        _make_parent(directory, handle.key, made)
    moved = transfer.link_or_copy_all(
        [
            (storage.file_path(checkpoint, handle), directory.file(handle.key))
            for handle in state.files
        ]
    )
    for handle, seen in zip(state.files, moved, strict=True):
        if seen not in (None, (handle.size, handle.checksum)):
            raise StorageError(
                f"{handle.path} of {checkpoint.external_path} did not arrive as it was written: the"
                " job tries again."
            )
    relocate_operator_metadata(directory)


def _make_parent(directory: QueryDirectory, key: str, made: set[str]) -> None:
    place = parent(directory.file(key))
    if place not in made:
        directory.fs.make_directory(place)
        made.add(place)
