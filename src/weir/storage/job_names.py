"""The map from job name to job id (PROTOCOL P20).

Running a pipeline again must find the same job, and two drivers started at the same time must agree
on its id. So each name has a numbered log: a new generation (``--fresh``, ``--from-savepoint``) is
the next number, and the first driver that takes the number assigns the id.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from weir.core.types import AbsolutePath, JobId, MetadataChecksum, Ordinal, Recorded
from weir.errors import StorageError
from weir.kernel import MACHINE, Kernel
from weir.storage.filesystem import FileSystem
from weir.storage.numbered_log import NumberedLog, Recorder
from weir.storage.paths import join
from weir.storage.records import sealed, unsealed

_FORM = "weir-job-name"


@dataclass(frozen=True, kw_only=True)
class NameRecord:
    """Which job a name stands for."""

    job_id: JobId
    name: str
    #: Grows by one with each ``--fresh`` and ``--from-savepoint``; the first is 1.
    generation: Ordinal
    #: The savepoint that this generation started from. Running from the same savepoint again
    #: continues this generation, wherever the savepoint lies by then.
    from_savepoint: AbsolutePath | None
    #: Checksum of its ``_metadata``, which identifies it.
    snapshot_checksum: MetadataChecksum | None = None


class JobNames:
    """The names of all jobs below one checkpoint directory."""

    def __init__(self, fs: FileSystem, base_directory: str, kernel: Kernel = MACHINE) -> None:
        self._fs = fs
        self._directory = join(base_directory, "names")
        self._kernel = kernel

    def lookup(self, name: str) -> NameRecord | None:
        """The newest generation of the name, or None if no job of this name ever ran here."""
        log = self._log(name)
        entry = log.newest()
        if entry is None:
            return None
        try:
            place = f"The record {log.path(entry.number)} of job name {name!r}"
            record = unsealed(_FORM, entry.data, NameRecord, name=place)
            if (record.name, record.generation) != (name, entry.number):
                raise ValueError(f"it is generation {record.generation} of name {record.name!r}")
            return record
        except ValueError as error:
            raise StorageError(
                f"The record {log.path(entry.number)} of job name {name!r} is damaged ({error}):"
                f" restore it from a copy, or delete {log.directory} and start the job from one"
                " of its checkpoints."
            ) from error

    def assign(
        self,
        name: str,
        job_id: JobId,
        *,
        from_savepoint: str | None,
        snapshot_checksum: str | None = None,
        after: int,
    ) -> Recorded:
        """Assign the name to this job, as the generation after ``after`` (0: none yet).

        FENCED: another driver assigned that generation; look it up again. Raises ``StorageError``
        if nothing was recorded, or if that stays unknown.
        """
        record = NameRecord(
            job_id=job_id,
            name=name,
            generation=after + 1,
            from_savepoint=from_savepoint,
            snapshot_checksum=snapshot_checksum,
        )
        data = sealed(_FORM, record)
        self._fs.make_directory(self._directory)
        recorder = Recorder(self._log(name), self._kernel)
        outcome = recorder.record(record.generation, data)
        if outcome is Recorded.FAILED:
            raise StorageError(f"Cannot record the id of job {name!r}: {recorder.failure}")
        return outcome

    def _log(self, name: str) -> NumberedLog:
        return NumberedLog(self._fs, join(self._directory, directory_name(name)))


def directory_name(name: str) -> str:
    """A directory name for any job name: readable, and distinct for distinct names."""
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}".lstrip("-")
