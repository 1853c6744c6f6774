"""The inputs and outputs of a run: ``RunOptions``, ``JobResult`` and ``RunListener``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from weir.core.status import JobStatus

if TYPE_CHECKING:
    from weir.core.types import CompletedCheckpoint
    from weir.gateway.job_gateway import JobGateway


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run a job; the command line has an option for each."""

    #: Spark's master URL; None for ``spark.master`` from the configuration or
    #: ``spark-defaults.conf``, else ``local[*]``.
    master: str | None = None
    #: Flink's keys, ``weir.*`` keys and ``spark.*`` keys.
    conf: Mapping[str, str | float | bool] = field(default_factory=dict)
    #: Directory of a savepoint or retained checkpoint, or its ``_metadata``. ``latest``: the
    #: savepoint with which the job was stopped, if the job has not gone on since.
    from_savepoint: str | None = None
    #: Read what all sources of the job have now, commit it, and end with a job that goes on by the
    #: same command.
    until_idle: bool = False
    #: Let every window and timer fire at the end of such a run: the job is then finished.
    drain: bool = False
    #: Start over under a new job id, whatever ran before.
    fresh: bool = False
    #: Fence a driver that seems alive (PROTOCOL P20).
    takeover: bool = False
    #: Use an older checkpoint although sinks have committed past it (PROTOCOL P21).
    accept_duplicates: bool = False
    #: Names or uids of steps that go on with their state although they have changed.
    accept_changed_state: tuple[str, ...] = ()
    #: Names or uids of sources that go on without rows that are gone and that they have not read.
    accept_lost_rows: tuple[str, ...] = ()
    #: Names of a script's queries that are to read from the start of their input.
    read_apart: tuple[str, ...] = ()
    #: Takes the place of the job's name.
    name: str | None = None
    #: The arguments of the program, which the job's records keep without secrets.
    arguments: tuple[str, ...] = ()
    #: The checkpoint locations of a script's queries, which the job's records keep in the same way.
    checkpoint_locations: Mapping[str, str] = field(default_factory=dict)

    def over(self, code: RunOptions) -> RunOptions:
        """These options of a command line, completed by those that the code gives to ``run()``."""
        starts = self.from_savepoint is not None or self.fresh
        return replace(
            self,
            master=self.master or code.master,
            conf={**code.conf, **self.conf},
            from_savepoint=self.from_savepoint if starts else code.from_savepoint,
            fresh=self.fresh if starts else code.fresh,
            until_idle=self.until_idle or code.until_idle,
            drain=self.drain or code.drain,
            takeover=self.takeover or code.takeover,
            accept_duplicates=self.accept_duplicates or code.accept_duplicates,
            accept_changed_state=(*self.accept_changed_state, *code.accept_changed_state),
            accept_lost_rows=(*self.accept_lost_rows, *code.accept_lost_rows),
        )

    def going_on(self) -> RunOptions:
        """These options for a later run in the same process: how the first starts is left out."""
        return replace(
            self,
            from_savepoint=None,
            fresh=False,
            takeover=False,
            accept_duplicates=False,
            accept_changed_state=(),
            accept_lost_rows=(),
        )


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How the job ended."""

    job_id: str
    #: FINISHED (also when stopped with a savepoint), FAILED, CANCELED or SUSPENDED (by a signal, or
    #: with ``checkpoint_id``).
    status: JobStatus
    failure: str | None = None
    savepoint: str | None = None
    #: The job was stopped with a drain: every window and timer has fired, and nothing can resume.
    drained: bool = False
    #: The job has read what was available, or was stopped with a checkpoint, and is SUSPENDED: the
    #: same command goes on from this checkpoint, up to which everything is committed.
    checkpoint_id: int | None = None
    #: The job had finished earlier: nothing was run.
    already_finished: bool = False
    #: Another driver has taken the job over.
    fenced: bool = False


class RunListener(Protocol):
    """Is notified while a job runs. Called on the job's threads: return quickly."""

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """The job has its id, and its REST server answers at ``rest_address``.

        For example ``http://127.0.0.1:8081``.
        """
        ...

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """The job was restored from this checkpoint or savepoint."""
        ...

    def phase(self, name: str | None) -> None:
        """A phase of the start, or of a restart, begins; None: the start is done."""
        ...

    def note(self, message: str) -> None:
        """One line for people: a status change, a failure and its fix, a damaged checkpoint..."""
        ...
