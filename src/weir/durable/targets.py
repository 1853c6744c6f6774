"""Detects rows at a job's targets that the job does not know of (PROTOCOL P19, P21).

The checkpoint or savepoint from which a job resumes says which rows its targets already have: for
each job, up to which checkpoint. A commit beyond that was made by a job that continued elsewhere,
and the rows that this job is about to write would be duplicated or left out::

    resumes from             knows                         does not know
    checkpoint 10 on record  its own rows up to 10         its own commit 14: the records are an
                                                           older copy
    savepoint 7 of job A     A up to 7, and A's ancestors  A's commit 8, and any job's after 7
    nothing                  nothing                       commits of a job of its own name

A target's commits are checked from the newest back to the first known commit. Jobs of other names
may write to the same target: their commits matter only if this job starts from a snapshot, since
those jobs may have started from it too.

The check runs before a name is given to another job and before a record is written. A position of
each table, stored in the checkpoint, would show the same, but would have to be requested at every
checkpoint.

A snapshot of another job is refused where that job has committed beyond it. The sinks are asked
under the origin's id: an intermediate savepoint may have overtaken a checkpoint, and what was
staged for that checkpoint keeps its id, under which the origin may have committed it.

**Nothing is created where something was.** Only a start creates the job's directory. Logs, ids, the
lease and checkpoints create what lies below it, and fail if the directory is gone. A record says
which targets have rows, by a landmark that exists as long as the rows do (``Sink.landmark``), and
an attempt waits if a landmark is missing. Otherwise a volume that is unmounted for a moment would
get a second history in its place, which the mount hides again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from weir.core.types import CompletedCheckpoint, JobId, OperatorId
from weir.durable.sink_port import SinkPort, pending_of
from weir.errors import DuplicatesError
from weir.sinks.base import Commit

_ACCEPT = "or accept duplicate rows with --accept-duplicates"


@dataclass(frozen=True, kw_only=True)
class UnknownCommit:
    """A commit at a target that is not part of the checkpoint from which the job resumes."""

    sink: OperatorId
    #: The target, for messages.
    target: str
    commit: Commit


def known_rows(checkpoint: CompletedCheckpoint | None) -> dict[JobId, int]:
    """By job, up to which checkpoint its rows are part of this checkpoint; empty for None."""
    if checkpoint is None:
        return {}
    return {**checkpoint.ancestors, checkpoint.job_id: checkpoint.checkpoint_id}


def unknown_commits(
    sinks: SinkPort, job_id: JobId, known: Mapping[JobId, int], *, of_any_name: bool
) -> Generator[UnknownCommit, None, None]:
    """Commits beyond ``known``: of the jobs in it, and of other jobs of the same name.

    With ``of_any_name``, of all jobs.
    """
    for sink, target, commits in sinks.commits(job_id):
        for commit in commits:
            if commit.checkpoint_id <= known.get(commit.job_id, 0):
                break
            if of_any_name or commit.job_id in known or commit.job_name == sinks.job_name:
                yield UnknownCommit(sink=sink, target=target, commit=commit)


def own_commits(sinks: SinkPort, job_id: JobId) -> list[UnknownCommit]:
    """The job's newest commit at each target, unless another job of its name committed later.

    Look these up before the job's records: a driver that is still alive completes checkpoints and
    commits meanwhile.
    """
    found = []
    for sink, target, commits in sinks.commits(job_id):
        newest = next(
            (
                commit
                for commit in commits
                if job_id == commit.job_id or sinks.job_name == commit.job_name
            ),
            None,
        )
        if newest is not None and newest.job_id == job_id:
            found.append(UnknownCommit(sink=sink, target=target, commit=newest))
    return found


def check_before_begin(
    sinks: SinkPort, job_id: JobId, snapshot: CompletedCheckpoint | None
) -> None:
    """Raise ``DuplicatesError`` if a job that starts from ``snapshot`` would duplicate rows.

    None: the job starts from nothing.
    """
    of_any_name = snapshot is not None
    for unknown in unknown_commits(sinks, job_id, known_rows(snapshot), of_any_name=of_any_name):
        raise DuplicatesError(begun_elsewhere(unknown, snapshot, sinks))
    if snapshot is not None:
        check_not_begun_from_another(sinks, job_id, snapshot)


def check_not_begun_from_another(
    sinks: SinkPort, job_id: JobId, snapshot: CompletedCheckpoint
) -> None:
    """Raise ``DuplicatesError`` if a target has rows that were pending in another savepoint.

    Two savepoints of one job may have the same rows pending, each under its own id. If a job that
    started from the first has committed them, no job may start from the second.
    """
    found = _committed_from_others(sinks, job_id, snapshot)
    first = next(found, None)
    # The generator holds a sink's lock until it is closed.
    found.close()
    if first is not None:
        raise DuplicatesError(_begun_from_another(first, snapshot))


def _committed_from_others(
    sinks: SinkPort, job_id: JobId, snapshot: CompletedCheckpoint
) -> Generator[UnknownCommit, None, None]:
    pending = pending_of(snapshot)
    for sink, target, commits in sinks.commits(job_id):
        for commit in commits:
            if commit.job_id != snapshot.job_id or commit.runner == commit.job_id:
                break
            if commit.checkpoint_id not in pending.get(sink, {}):
                yield UnknownCommit(sink=sink, target=target, commit=commit)


def accepted(unknown: Iterator[UnknownCommit]) -> dict[JobId, int]:
    """Like ``known_rows``, for the commits that a user accepted."""
    found: dict[JobId, int] = {}
    for commit in (known.commit for known in unknown):
        found[commit.job_id] = max(found.get(commit.job_id, 0), commit.checkpoint_id)
    return found


def older_records(
    target: str, sink: OperatorId, committed: int, completed: int, directory: str
) -> str:
    """The message for a target with a commit of the job beyond its records."""
    newest = f"end with checkpoint {completed}" if completed else "have no completed checkpoint"
    return (
        f"{target} (sink {sink!r}) is at checkpoint {committed} of this job, but the"
        f" job's records in {directory} {newest}: they are an older copy, or some were deleted."
        f" Restore the newer records, write to new targets, {_ACCEPT}."
    )


def _begun_from_another(unknown: UnknownCommit, snapshot: CompletedCheckpoint) -> str:
    commit = unknown.commit
    return (
        f"{snapshot.external_path} is checkpoint {snapshot.checkpoint_id} of job"
        f" {snapshot.job_id}, but job {commit.job_name!r} ({commit.runner}) has started from that"
        f" job's checkpoint {commit.checkpoint_id}, and has committed rows to {unknown.target}"
        f" (sink {unknown.sink!r}) that are pending in both: they would be duplicated. Resume"
        f" that job, start from checkpoint {commit.checkpoint_id} again, write to new targets,"
        f" {_ACCEPT}."
    )


def begun_elsewhere(
    unknown: UnknownCommit, snapshot: CompletedCheckpoint | None, sinks: SinkPort
) -> str:
    """The message for a target with rows that are not part of ``snapshot``.

    None: the job starts from nothing.
    """
    commit = unknown.commit
    directory = commit.job_directory
    gone = directory != "" and not sinks.may_exist(directory)
    place = f" (its records {'were' if gone else 'are'} in {directory})" if directory else ""
    where = f"{unknown.target} (sink {unknown.sink!r})"
    if snapshot is None:
        resume = (
            f"Nothing is in {directory} now: put the records back, or mount their volume"
            if gone
            else "Resume that job by setting execution.checkpointing.dir to the directory of its"
            " records"
        )
        return (
            f"{where} already has the rows of another job of the same name, {commit.job_id}, up"
            f" to its checkpoint {commit.checkpoint_id}{place}: this job would write them again."
            f" {resume}, start from one of its snapshots with --from-savepoint, write to new"
            f" targets, {_ACCEPT}."
        )
    return (
        f"{snapshot.external_path} is checkpoint {snapshot.checkpoint_id} of job"
        f" {snapshot.job_id}, but job {commit.job_name!r} ({commit.job_id}) has since committed"
        f" checkpoint {commit.checkpoint_id} to {where}{place}: rows would be duplicated or lost."
        f" Start from a newer snapshot, write to new targets, {_ACCEPT}."
    )
