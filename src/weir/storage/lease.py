"""The lease: a hint whether a driver is alive, and where it can be reached (PROTOCOL P20).

The driver renews a small file. Running the job again reads the file and refuses if the holder is
alive, instead of fencing it. The lease decides nothing: the job log stops a driver that misjudges
it (PROTOCOL P17).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import psutil

from weir.core.types import Count, JobId, Ordinal, Recorded, Timestamp
from weir.errors import StorageError
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join
from weir.storage.records import sealed, unsealed

_FORM = "weir-lease"

#: Seconds by which two processes may disagree on when a third was started (the clock may have been
#: adjusted in between).
_START_TOLERANCE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """Who holds a job."""

    attempt: Ordinal
    #: Name of the driver's machine.
    host: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,255}\Z")]
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    #: When the process was started, in seconds since the Unix epoch
    #: (``psutil.Process.create_time``).
    pid_started: float
    #: ``http://host:port``. For people: nothing connects to it.
    rest_address: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[A-Za-z0-9_.:\[\]%-]{1,300}\Z")]
    #: When the lease was renewed.
    timestamp_ms: Timestamp
    #: How long the lease holds from then on.
    timeout_ms: Count


class Lease:
    """The lease of one job, at ``<base directory>/<job id>/lease``."""

    def __init__(self, fs: FileSystem, base_directory: str, job_id: JobId) -> None:
        self._fs = fs
        self._path = join(base_directory, job_id, "lease")
        #: What the lease says beside who holds it.
        self._facts = {"job_id": job_id}

    def write(self, record: LeaseRecord) -> Recorded:
        """Take or renew the lease. FENCED, and nothing written, if a newer attempt holds it."""
        held = self.read()
        if held is not None and held.attempt > record.attempt:
            return Recorded.FENCED
        self._fs.write(self._path, sealed(_FORM, record, self._facts))
        return Recorded.WON

    def read(self) -> LeaseRecord | None:
        """The lease, or None if nobody holds it."""
        try:
            data = self._fs.read(self._path)
        except FileNotFoundError:
            return None
        try:
            name = f"The lease {self._path}"
            return unsealed(_FORM, data, LeaseRecord, name=name, facts=self._facts)
        except ValueError as error:
            raise StorageError(
                f"The lease {self._path} is damaged ({error}): make sure that no driver runs this"
                " job, then delete the file and try again."
            ) from error

    def remove(self, attempt: int) -> None:
        """Release the lease, unless another attempt holds it."""
        held = self.read()
        if held is not None and held.attempt == attempt:
            self._fs.delete(self._path)


def holder_is_alive(lease: LeaseRecord, now_ms: int, host: str) -> bool:
    """Whether the lease's holder seems to be alive, at ``now_ms`` (Unix epoch) seen from ``host``.

    It must have renewed the lease within its timeout (a stopped process does not). On the same
    machine that very process must also exist: a killed process counts as dead at once, even if its
    pid has been reused.
    """
    if now_ms - lease.timestamp_ms >= lease.timeout_ms:
        return False
    return lease.host != host or process_lives(lease.pid, lease.pid_started)


def process_lives(pid: int, started: float) -> bool:
    """Whether this very process runs on this machine; ``started`` is its ``create_time``."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started) < _START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
