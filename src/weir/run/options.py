"""What a run is given and what it returns: ``RunOptions``, ``JobResult`` and ``RunListener``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from weir.core.status import JobStatus

if TYPE_CHECKING:
    from weir.core.types import CompletedCheckpoint
    from weir.runtime.gateway import JobGateway


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a job is to be run; all of it can be given on the command line."""

    #: Spark's master URL; None for ``spark.master`` of the configuration, else ``local[*]``.
    master: str | None = None
    #: Flink's keys, ``weir.*`` keys and ``spark.*`` keys, as text.
    conf: dict[str, str] = field(default_factory=dict)
    #: Directory of a savepoint or retained checkpoint, or its ``_metadata``.
    from_savepoint: str | None = None
    #: Start anew under a new job id, whatever ran before.
    fresh: bool = False
    #: Fence a driver that seems alive (PROTOCOL P20).
    takeover: bool = False
    #: Use an older checkpoint although sinks have committed beyond it (PROTOCOL P21).
    accept_duplicates: bool = False


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How the job ended."""

    job_id: str
    #: FINISHED (also when stopped with a savepoint), FAILED, CANCELED or SUSPENDED.
    status: JobStatus
    failure: str | None = None
    savepoint: str | None = None
    #: It was stopped with a drain: every window and timer has fired, and there is nothing to go on
    #: with.
    drained: bool = False
    #: The job had finished before: nothing was run.
    already_finished: bool = False
    #: Another driver has taken over the job.
    fenced: bool = False


class RunListener(Protocol):
    """What happens while a job runs, as calls on the job's threads; keep them short."""

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """The job has its id and its REST server answers at ``rest_address``
        (``http://127.0.0.1:8081``)."""
        ...

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The job goes on from this checkpoint or savepoint."""
        ...

    def phase(self, name: str | None) -> None:
        """The run has come to this phase of its start, or of a restart; None: that is over."""
        ...

    def note(self, message: str) -> None:
        """One line for people: a status change, a failure and its way out, a damaged checkpoint, a
        warning."""
        ...
