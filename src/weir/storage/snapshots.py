"""Checkpoints and savepoints wherever they lie: reads, verifies and disposes of them.

State handles of a checkpoint are relative to its job's directory, those of a savepoint to its own
directory. Both are resolved from where the metadata was *found*, so either may be moved as a whole.
Nothing outside of those two directories is ever read as a state file or deleted, whatever a
metadata file says: ``metadata.py`` checks the paths when it decodes them, and ``file_path`` checks
that no link leads out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from weir.core.types import CompletedCheckpoint, StateHandle
from weir.errors import CheckpointNotFoundError, StorageError
from weir.storage import metadata
from weir.storage.file_systems import in_parallel
from weir.storage.filesystem import DIRECTORY_MARKER, FileSystem
from weir.storage.metadata import METADATA_FILE, damaged
from weir.storage.paths import join, name_of, normalize, parent, real

#: The metadata of a claimed snapshot that is being deleted.
GOING = "_metadata.deleted"
#: How many neighbouring snapshots the message about a missing checkpoint names.
_NAMED_NEIGHBOURS = 10


@dataclass(frozen=True)
class Snapshots:
    """Checkpoints and savepoints of any job. ``fs`` gives the file system of a path."""

    fs: Callable[[str], FileSystem]

    def read(self, path: str, *, expected_checksum: str | None = None) -> CompletedCheckpoint:
        """The checkpoint or savepoint at ``path``, its directory or its ``_metadata`` file.

        ``expected_checksum`` is the file's checksum from the job record. Raises
        ``CheckpointNotFoundError`` and ``CheckpointDamagedError``. Does not look at state files
        (``verify`` does).
        """
        directory = _without_file(normalize(path))
        data = self._metadata(directory)
        found = metadata.checksum_of(data)
        if expected_checksum is not None and found != expected_checksum:
            raise damaged(
                directory, METADATA_FILE, f"has checksum {found}, expected {expected_checksum}"
            )
        return metadata.decode(data, directory)

    def checksum(self, path: str) -> str:
        """The checksum of a snapshot's ``_metadata``, which identifies it wherever it lies.

        Raises ``CheckpointNotFoundError`` if there is no such file.
        """
        return metadata.checksum_of(self._metadata(_without_file(normalize(path))))

    def verify(self, checkpoint: CompletedCheckpoint) -> None:
        """Read every state file, several at once if they are remote.

        Raises ``CheckpointDamagedError`` for the first that is missing or differs.
        """
        handles = {handle.path: handle for task in checkpoint.tasks for handle in task.all_files}
        in_parallel(
            [partial(self.verify_file, checkpoint, handle) for handle in handles.values()],
            self.fs(checkpoint.external_path).transfers,
        )

    def verify_file(self, checkpoint: CompletedCheckpoint, handle: StateHandle) -> None:
        """Read a state file; raises ``CheckpointDamagedError`` if it is missing or differs."""
        path = self.file_path(checkpoint, handle)
        fs = self.fs(path)
        status = fs.status(path)
        if status is None:
            raise damaged(checkpoint.external_path, handle.path, "is missing")
        if status.size != handle.size:
            what = f"has {status.size} bytes, expected {handle.size} bytes"
            raise damaged(checkpoint.external_path, handle.path, what)
        _, checksum = fs.checksum(path)
        if checksum != handle.checksum:
            what = f"has checksum {checksum}, expected {handle.checksum}"
            raise damaged(checkpoint.external_path, handle.path, what)

    def file_path(self, checkpoint: CompletedCheckpoint, handle: StateHandle) -> str:
        """Where a state file lies, given where its checkpoint was found.

        Raises ``CheckpointDamagedError`` if the file, or a directory on the way to it, is a
        symbolic link: that may lead anywhere.
        """
        path = checkpoint.external_path
        if not checkpoint.kind.is_savepoint:
            path = parent(path)
        fs = self.fs(path)
        for name in handle.path.split("/"):
            path = join(path, name)
            if fs.is_link(path):
                raise damaged(
                    checkpoint.external_path, handle.path, f"is reached through a link ({path})"
                )
        return path

    def dispose_savepoint(self, path: str) -> CompletedCheckpoint:
        """Delete a savepoint at its owner's request, and return what it was.

        Raises ``CheckpointNotFoundError`` and ``CheckpointDamagedError``, and ``StorageError`` if
        it is a checkpoint or its directory holds files that are not its own; then nothing is
        deleted.
        """
        directory = snapshot_directory(path)
        savepoint = self.read(directory)
        if not savepoint.kind.is_savepoint:
            raise StorageError(
                f"{directory} is checkpoint {savepoint.checkpoint_id} of job {savepoint.job_id},"
                " not a savepoint, so it is not disposed of: the job deletes its checkpoints"
                " itself, and other checkpoints may need its files."
            )
        check_only_own_files(self.fs(directory), savepoint)
        self.discard_directory(directory)
        return savepoint

    def discard_directory(self, directory: str) -> None:
        """Delete a checkpoint's or savepoint's directory, its ``_metadata`` first."""
        fs = self.fs(directory)
        fs.delete(join(directory, METADATA_FILE))
        fs.delete(directory)

    def _metadata(self, directory: str) -> bytes:
        fs = self.fs(directory)
        try:
            return fs.read(join(directory, METADATA_FILE))
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(_not_found(fs, directory)) from error


def snapshot_directory(path: str) -> str:
    """The real directory of a snapshot named by its directory, its ``_metadata`` or a link."""
    return _without_file(real(normalize(path)))


def _without_file(path: str) -> str:
    return parent(path) if name_of(path) == METADATA_FILE else path


def _files_below(fs: FileSystem, directory: str) -> Iterator[str]:
    """Every file below a directory, as a path relative to it."""
    for entry in fs.list(directory):
        if entry.is_directory:
            below = _files_below(fs, join(directory, entry.name))
            yield from (f"{entry.name}/{file}" for file in below)
        else:
            yield entry.name


def _not_found(fs: FileSystem, directory: str) -> str:
    """A sentence that names the snapshots the user could have meant."""
    exists = fs.status(directory) is not None
    what = (
        f"{directory} has no file {METADATA_FILE}"
        if exists
        else f"there is no directory {directory}"
    )
    for place in (directory, parent(directory)):
        names = [
            entry.name
            for entry in fs.list(place)
            if entry.is_directory
            and entry.name.startswith(("chk-", "savepoint-"))
            and fs.status(join(place, entry.name, METADATA_FILE)) is not None
        ]
        if names:
            names.sort(key=lambda name: (len(name), name))
            shown = ", ".join(names[-_NAMED_NEIGHBOURS:])
            return (
                f"No checkpoint or savepoint found: {what}; {place} has {shown}: specify one of"
                " these."
            )
    return (
        f"No checkpoint or savepoint found: {what}; specify the directory chk-<n> of a retained"
        " checkpoint or that of a savepoint."
    )


def check_only_own_files(fs: FileSystem, savepoint: CompletedCheckpoint) -> None:
    """Raise ``StorageError`` if a savepoint's directory holds a file its metadata does not name."""
    own = {METADATA_FILE, GOING, DIRECTORY_MARKER, *savepoint.files}
    foreign = [file for file in _files_below(fs, savepoint.external_path) if file not in own]
    if foreign:
        shown = ", ".join(foreign[:_NAMED_NEIGHBOURS])
        raise StorageError(
            f"The savepoint {savepoint.external_path} is not deleted, because its directory has"
            f" files of others ({shown}): move them away first."
        )
