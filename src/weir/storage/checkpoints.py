"""Checkpoint storage: writes, finds, verifies and deletes one job's checkpoints and savepoints.

::

    <base>/<job id>/log/                the job log, beside the lease and the archive
                    ids/                the checkpoint id counter
                    chk-<n>/_metadata   written last: checkpoint n exists once this file does
                    chk-<n>/...         files that only checkpoint n has
                    shared/<n>/...      files that checkpoint n wrote and later ones may refer to
    <target>/savepoint-<job id[:6]>-<token>/_metadata and files, self-contained

Rules of this file, beside those of ``snapshots.py``:

1. A deletion removes ``_metadata`` first: a half-deleted checkpoint is not a checkpoint.
2. Deleting a claimed snapshot removes only files that its own ``_metadata`` names, wherever links
   lead. So its ``_metadata`` is renamed first, not removed: an interrupted deletion resumes from
   it.

A claimed snapshot is deleted once the job retains as many checkpoints of its own as it keeps
(``num-retained``). A savepoint is deleted as a whole; of another job's checkpoint, only the files
that none of that job's other checkpoints name. A checkpoint whose driver lives cannot be claimed,
since that driver's next checkpoints refer to the same files.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from weir.core.types import CompletedCheckpoint, JobId
from weir.errors import (
    JobAlreadyRunningError,
    StorageError,
    UnsupportedEnvironmentError,
    invariant,
)
from weir.kernel import MACHINE, Kernel
from weir.storage import metadata
from weir.storage.filesystem import CreateResult, FileSystem
from weir.storage.lease import Lease, holder_is_alive
from weir.storage.metadata import METADATA_FILE
from weir.storage.numbered_log import NumberedLog
from weir.storage.paths import join, lies_in, name_of, parent, stays_below
from weir.storage.records import sealed
from weir.storage.snapshots import GOING, Snapshots, check_only_own_files

#: How often another driver may take the next checkpoint id before that is an error.
_ID_ATTEMPTS = 1000
_KEPT_IDS = 4
_ID_FORM = "weir-checkpoint-id"
_CHECKPOINT = re.compile(r"chk-([0-9]{1,18})")
_NUMBER = re.compile(r"[0-9]{1,18}")
_SHARED = "shared"


@dataclass(frozen=True)
class CheckpointStorage(Snapshots):
    """The checkpoints of one job, and those that it starts from."""

    #: ``execution.checkpointing.dir``: absolute path or URI.
    base_directory: str
    job_id: JobId
    #: Whether only the owner may read new job and savepoint directories
    #: (``weir.private-snapshots``).
    private: bool = True
    kernel: Kernel = MACHINE

    @property
    def job_directory(self) -> str:
        """Everything below this directory belongs to the job."""
        return join(self.base_directory, self.job_id)

    @property
    def log_directory(self) -> str:
        """The directory of the job log."""
        return join(self.job_directory, "log")

    def check_writable(self) -> None:
        """Make the base directory and probe it, before the job starts.

        Raises ``StorageError`` if it cannot be written and ``UnsupportedEnvironmentError`` if two
        drivers could create the same name there (PROTOCOL P17).
        """
        fs = self.fs(self.base_directory)
        # Not by its process id, which drivers in containers share.
        name = f".weir-probe-{self.job_id}-{self.kernel.new_name()[:16]}"
        probe = join(self.base_directory, name)
        try:
            fs.make_directory(self.base_directory)
            fs.delete(probe)
            first, second = fs.create(probe, b"probe"), fs.create(probe, b"again")
            fs.delete(probe)
        except StorageError as error:
            raise StorageError(
                f"Cannot use the checkpoint directory {self.base_directory} (set by"
                f" execution.checkpointing.dir): {error}"
            ) from error
        if (first, second) != (CreateResult.CREATED, CreateResult.ALREADY_EXISTS):
            raise UnsupportedEnvironmentError(
                f"The file system of {self.base_directory} lets two drivers create the same file,"
                " so it cannot hold checkpoints: set execution.checkpointing.dir to a directory"
                " on a local disk, on HDFS, or in an object store with conditional writes."
            )

    def next_checkpoint_id(self, above: int = 0) -> int:
        """Durably allocate an id new to this job; the first is 1 (MISSION A6, PROTOCOL P19).

        It is above ``above``, which the caller knows to be taken, should the counter have lost it.
        """
        log = self._ids
        for _ in range(_ID_ATTEMPTS):
            checkpoint_id = max(log.newest_number() or 0, above) + 1
            if log.append(checkpoint_id, self._id_entry(checkpoint_id)) is CreateResult.CREATED:
                log.prune(_KEPT_IDS)
                return checkpoint_id
        raise StorageError(
            f"Cannot allocate a checkpoint id in {log.directory}, because other drivers took"
            f" {_ID_ATTEMPTS} in a row: stop the other drivers of this job."
        )

    def skip_checkpoint_ids(self, up_to: int) -> None:
        """Never hand out an id up to and including ``up_to`` again."""
        log = self._ids
        while (log.newest_number() or 0) < up_to:
            log.append(up_to, self._id_entry(up_to))

    def newest_checkpoint_id(self) -> int:
        """The newest id that any driver is seen to have allocated; 0 before the first.

        Also by the directories of checkpoints, in case the counter was deleted. Raises
        ``StorageError`` if its newest entry is not Weir's.
        """
        fs, log = self.fs(self.job_directory), self._ids
        entry = log.newest()
        # Those of the first Weir are empty.
        if entry is not None and entry.data not in (b"", self._id_entry(entry.number)):
            raise StorageError(
                f"The checkpoint id {log.path(entry.number)} is damaged: restore the file from a"
                " copy, or delete it."
            )
        names = [status.name for status in fs.list(self.job_directory)]
        found = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
        shared = [status.name for status in fs.list(join(self.job_directory, _SHARED))]
        found += [int(name) for name in shared if _NUMBER.fullmatch(name)]
        return max([0 if entry is None else entry.number, *found], default=0)

    def newest_left(self) -> str | None:
        """The directory of the newest checkpoint that lies there, on record or not."""
        fs = self.fs(self.job_directory)
        names = [status.name for status in fs.list(self.job_directory)]
        numbers = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
        directories = map(self.checkpoint_directory, sorted(numbers, reverse=True))
        whole = (path for path in directories if fs.status(join(path, METADATA_FILE)) is not None)
        return next(whole, None)

    def _id_entry(self, checkpoint_id: int) -> bytes:
        """What the counter has for an id. Not empty, since tidy people delete empty files."""
        return sealed(_ID_FORM, {"job_id": self.job_id, "checkpoint_id": checkpoint_id})

    @property
    def _ids(self) -> NumberedLog:
        return NumberedLog(self.fs(self.job_directory), join(self.job_directory, "ids"))

    def checkpoint_directory(self, checkpoint_id: int) -> str:
        """Directory of a checkpoint's metadata and of the files that only this checkpoint has."""
        return join(self.job_directory, f"chk-{checkpoint_id}")

    def shared_directory(self, checkpoint_id: int) -> str:
        """Directory of the files that this checkpoint writes and later ones may refer to."""
        return join(self.job_directory, self.shared_path(checkpoint_id))

    def shared_path(self, checkpoint_id: int) -> str:
        """``shared_directory`` as a path below the job's directory, as in state handles."""
        return f"{_SHARED}/{checkpoint_id}"

    def owns(self, checkpoint: CompletedCheckpoint) -> bool:
        """Whether later checkpoints of this job may refer to its files (PROTOCOL P40).

        Not if it is a savepoint, or a checkpoint of another job or place.
        """
        return checkpoint.external_path == self.checkpoint_directory(checkpoint.checkpoint_id)

    def make_savepoint_directory(self, target: str) -> str:
        """Make the directory of a new savepoint below ``target``.

        Raises ``StorageError`` if it exists.
        """
        directory = join(target, f"savepoint-{self.job_id[:6]}-{self.kernel.new_name()[:12]}")
        fs = self.fs(target)
        if fs.status(directory) is not None:
            raise StorageError(
                f"The savepoint directory {directory} already exists: request the savepoint again."
            )
        self._make_directory(directory)
        return directory

    def make_job_directory(self) -> None:
        """Make the directory of the job; if ``private``, others cannot see anything below it."""
        self._make_directory(self.job_directory)

    def _make_directory(self, directory: str) -> None:
        fs = self.fs(directory)
        if self.private:
            fs.make_private_directory(directory)
        else:
            fs.make_directory(directory)

    def write_metadata(self, checkpoint: CompletedCheckpoint) -> str:
        """Write ``_metadata``, the last file; return its checksum for the job record."""
        data = metadata.encode(checkpoint)
        fs = self.fs(checkpoint.external_path)
        # A savepoint's directory was made when the savepoint began.
        below = (
            checkpoint.external_path
            if checkpoint.kind.is_savepoint
            else parent(checkpoint.external_path)
        )
        fs.make_directory(checkpoint.external_path, below=below)
        fs.write(join(checkpoint.external_path, METADATA_FILE), data)
        return metadata.checksum_of(data)

    def discard(
        self, checkpoint_id: int, files: tuple[str, ...], target: str | None, *, subsumed: bool
    ) -> None:
        """Carry out ``DiscardCheckpoint``: ``files`` are paths below the job's directory.

        For an aborted checkpoint, delete everything it wrote; for an aborted savepoint
        (``target``), its directory. For a subsumed checkpoint, delete its directory and ``files``,
        AFTER a record that this attempt won (PROTOCOL P17).
        """
        if target is not None:
            invariant(not subsumed, f"savepoint {target} belongs to the user and is never subsumed")
            self.discard_directory(target)
            return
        invariant(
            subsumed or not tuple(files),
            "an aborted checkpoint only has files in its own directories",
        )
        fs = self.fs(self.job_directory)
        directory = self.checkpoint_directory(checkpoint_id)
        fs.delete(join(directory, METADATA_FILE))
        if subsumed:
            self._delete_files(fs, self.job_directory, files)
        else:
            fs.delete(self.shared_directory(checkpoint_id))
        fs.delete(directory)

    def discard_all(self, checkpoint_ids: Iterable[int]) -> None:
        """Delete these checkpoints and every shared file of the job; its log and ids stay."""
        for checkpoint_id in checkpoint_ids:
            self.discard_directory(self.checkpoint_directory(checkpoint_id))
        self.fs(self.job_directory).delete(join(self.job_directory, _SHARED))

    def check_claimable(self, snapshot: CompletedCheckpoint) -> None:
        """Raise ``JobAlreadyRunningError`` for a checkpoint of a job whose driver is alive.

        The next checkpoints of such a job refer to its files. A savepoint is self-contained and
        always passes.
        """
        if snapshot.kind.is_savepoint:
            return
        # From where the snapshot was found, not where its job lives: it may be a copy.
        job_directory = parent(snapshot.external_path)
        lease = Lease(self.fs(job_directory), parent(job_directory), name_of(job_directory)).read()
        now_ms = self.kernel.wall_ms()
        if lease is not None and holder_is_alive(lease, now_ms, socket.gethostname()):
            raise JobAlreadyRunningError(
                f"Cannot claim checkpoint {snapshot.external_path}: its job {snapshot.job_id} is"
                f" running in process {lease.pid} on {lease.host} and needs its files. Stop that"
                " job first, or omit --claim."
            )

    def discard_claimed(self, path: str, *, expected_checksum: str | None = None) -> None:
        """Delete the files of a claimed snapshot that its own metadata names.

        If it is a checkpoint, keep the files that another checkpoint beside it names. Does nothing
        if the snapshot is gone or is another snapshot (its ``_metadata`` does not have
        ``expected_checksum``). Raises ``JobAlreadyRunningError`` like ``check_claimable``, and
        ``StorageError`` if a link leads out of the snapshot.
        """
        fs = self.fs(path)
        directory = fs.real_path(path)
        claimed = _read_claimed(fs, directory, expected_checksum)
        if claimed is None:
            return
        self.check_claimable(claimed)
        base, files = directory, claimed.files
        if claimed.kind.is_savepoint:
            check_only_own_files(fs, claimed)
        else:
            base = parent(directory)
            others = (join(base, entry.name) for entry in fs.list(base) if entry.is_directory)
            needed = {
                file
                for other in others
                if other != directory and fs.status(join(other, METADATA_FILE)) is not None
                for file in self.read(other).files
            }
            files -= needed
        for place in sorted({parent(join(base, file)) for file in files}):
            if not lies_in(fs.real_path(place), base):
                raise StorageError(
                    f"The claimed snapshot {directory} is not deleted, because {place} is a link"
                    " that leads out of it: delete the snapshot by hand."
                )
        if fs.status(join(directory, METADATA_FILE)) is not None:
            fs.rename(join(directory, METADATA_FILE), join(directory, GOING))
        self._delete_files(fs, base, tuple(sorted(files)))
        fs.delete(join(directory, GOING))
        if not fs.list(directory):
            fs.delete(directory)

    def discard_orphans(self, retained: Iterable[CompletedCheckpoint], *, up_to: int) -> None:
        """Delete files up to checkpoint id ``up_to`` that no retained checkpoint needs.

        Only AFTER the record "attempt began", with ``up_to`` the newest id that was allocated
        BEFORE that record: a checkpoint that is not retained and has no higher id was left behind
        by an attempt that has ended (PROTOCOL P17). A driver suspended right here finds a newer
        attempt's checkpoints when it wakes up, and must not touch them.
        """
        kept = list(retained)
        fs = self.fs(self.job_directory)
        directories = {self.checkpoint_directory(known.checkpoint_id) for known in kept}
        for entry in fs.list(self.job_directory):
            directory = join(self.job_directory, entry.name)
            match = _CHECKPOINT.fullmatch(entry.name)
            if match is not None and int(match[1]) <= up_to and directory not in directories:
                self.discard_directory(directory)
        needed = {path for known in kept if not known.kind.is_savepoint for path in known.files}
        shared = join(self.job_directory, _SHARED)
        for entry in fs.list(shared):
            if not entry.name.isdecimal() or int(entry.name) > up_to:
                continue
            below = [
                f"{_SHARED}/{entry.name}/{file.name}" for file in fs.list(join(shared, entry.name))
            ]
            unneeded = tuple(path for path in below if path not in needed)
            if len(unneeded) == len(below):
                fs.delete(join(shared, entry.name))
            else:
                self._delete_files(fs, self.job_directory, unneeded)

    def _delete_files(self, fs: FileSystem, base: str, files: tuple[str, ...]) -> None:
        """Delete files below ``base`` and the directories that this empties, except ``shared``."""
        emptied: set[str] = set()
        for path in files:
            invariant(stays_below(path), f"state file {path!r} is not below the directory {base}")
            parts = path.split("/")[:-1]
            emptied.update("/".join(parts[:length]) for length in range(1, len(parts) + 1))
        fs.delete_files([join(base, path) for path in files])
        emptied.discard(_SHARED)
        # Inner directories come first.
        for name in sorted(emptied, reverse=True):
            directory = join(base, name)
            if not fs.list(directory):
                fs.delete(directory)


def _read_claimed(
    fs: FileSystem, directory: str, expected: str | None
) -> CompletedCheckpoint | None:
    """The snapshot to delete, even if its deletion has begun; None if it is gone."""
    for file in (METADATA_FILE, GOING):
        try:
            data = fs.read(join(directory, file))
        except FileNotFoundError:
            continue
        if expected is None or metadata.checksum_of(data) == expected:
            return metadata.decode(data, directory)
    return None
