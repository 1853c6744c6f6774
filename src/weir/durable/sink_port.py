"""``SinkPort``: drives the sinks of a job: one lock each, flush in snapshots, commit with retries.

A failed commit is retried with exponential backoff. When retries are used up, the task fails, and
the restored job commits again what its checkpoint had staged (PROTOCOL P13). Missing staged files
are detected by checking each file, at two moments:

1. Before a snapshot. The attempt fails: it was restored from a checkpoint that does not need the
   files, and the next attempt stages those rows again.
2. Before a commit. Nothing can bring the rows back: the job fails for good, and nothing is made
   visible.

A commit that hangs is abandoned when its attempt ends. Until it returns, no other attempt can open
its sink. It then ends without a retry and without committing to the remaining sinks, since these
belong to the newer attempt.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import tenacity

from weir.core.types import (
    AbsolutePath,
    Committable,
    CompletedCheckpoint,
    JobId,
    OperatorId,
    Payload,
    SnapshotKind,
    StateHandle,
)
from weir.errors import (
    DuplicatesError,
    HangingTransactionError,
    JobError,
    JobFencedError,
    LostRowsError,
    LostWriteError,
    SinkError,
    SinkMismatchError,
    WeirError,
)
from weir.kernel import MACHINE, Kernel
from weir.monitoring.log_lines import place
from weir.runtime.concurrency import Event, Waits
from weir.sinks.base import Batch, Commit, Sink, SinkContext
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import SinkEpoch
from weir.storage.paths import normalize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: How many of the newest epochs of a sink are known to a snapshot that is being flushed. A snapshot
#: during which more epochs are committed fails where files have been moved.
_EPOCHS_KNOWN = 1_000

#: Errors of a commit that the same call would meet again.
_NOT_REPEATED = (
    DuplicatesError,
    HangingTransactionError,
    JobFencedError,
    LostRowsError,
    SinkMismatchError,
)

#: Copies a staged file into a savepoint, given its path and a key unique in the savepoint.
KeepFile: TypeAlias = Callable[[str, str], StateHandle]
#: Copies a file of a savepoint back to where a sink staged it, durably; replaces an existing file.
PutBack: TypeAlias = Callable[[StateHandle, str], None]


@dataclass(frozen=True, kw_only=True)
class CommitRetries:
    """The settings ``weir.sink.commit.*``."""

    attempts: int
    initial_backoff_ms: int
    max_backoff_ms: int


class SinkPort:
    """Opens, flushes, commits and cleans the sinks of one job."""

    def __init__(
        self,
        *,
        sinks: Mapping[OperatorId, Sink],
        job_name: str,
        file_system: Callable[[str], FileSystem],
        retries: CommitRetries,
        waits: Waits,
        kernel: Kernel = MACHINE,
        job_directory: str | None = None,
        session: Callable[[], SparkSession] | None = None,
        leave_out: Collection[OperatorId] = (),
    ) -> None:
        """``job_directory``: where the job keeps its records.

        Sinks may publish it to readers of their targets. ``session``: see ``SinkContext``.
        ``leave_out``: the sinks that leave out checkpoints.
        """
        #: Also those that did so in an earlier run, and have such rows to commit.
        self._leave_out = set(leave_out)
        self._sinks = sinks
        self.job_name = job_name
        self._job_directory = job_directory
        self._session = session
        self._file_system = file_system
        self._retries = retries
        self._locks = {name: waits.lock() for name in sinks}
        #: The call in progress at each busy sink, for messages.
        self._busy: dict[OperatorId, str] = {}
        self._waits = waits
        self._kernel = kernel
        #: One event per attempt, set when the attempt ends.
        self._stopping: Event = waits.event()
        self._rows_committed = dict.fromkeys(sinks, 0)
        #: The newest epochs that each sink has committed, of those that came from tasks: none of
        #: another job, whose ids mean nothing here. Written under the sink's lock.
        self._committed: dict[OperatorId, deque[int]] = {
            name: deque(maxlen=_EPOCHS_KNOWN) for name in sinks
        }
        #: The sinks whose targets are known to have rows of this job.
        self._have_rows: set[OperatorId] = set()
        #: The newest epoch with rows that each sink is known to have committed (PROTOCOL P21).
        self._newest: dict[OperatorId, int] = {}

    def check(self, job_id: JobId) -> None:
        """Check every target; raises ``SinkError`` before anything runs."""
        for name, sink in self._sinks.items():
            with place(step=name):
                sink.check(self._context(job_id, name, 0))

    def open(
        self,
        job_id: JobId,
        attempt: int,
        written: Mapping[OperatorId, str] = MappingProxyType({}),
        *,
        epochs: Mapping[OperatorId, SinkEpoch] | None = None,
        may_have_gone_back: bool = False,
    ) -> None:
        """Prepare every target for the attempt.

        ``written`` and ``epochs`` are what ``written`` and ``epochs`` returned, on record; without
        ``epochs``, the job is another. ``may_have_gone_back``: see ``SinkContext``. Raises
        ``SinkError`` if a sink still hangs in a call of an earlier attempt.
        """
        for name, sink in self._sinks.items():
            self._check_not_hanging(name)
            with self._using(name, "opening its target"):
                context = self._context(job_id, name, attempt, written.get(name))
                known = None if epochs is None else epochs.get(name)
                if known is not None and known.target == sink.identity():
                    self._newest[name] = max(self._newest.get(name, 0), known.epoch)
                newest = 0 if epochs is None else self._newest.get(name, 0)
                sink.open(replace(context, newest=newest, may_have_gone_back=may_have_gone_back))

    def check_not_gone_back(self) -> None:
        """Raise ``LostRowsError`` if a target has gone back since rows were committed there.

        For the job's own rows, once the sinks are open (PROTOCOL P21).
        """
        for name, sink in self._sinks.items():
            with self._using(name, "looking up its newest commit"):
                sink.check_not_gone_back(self._newest.get(name, 0))

    def resume(self) -> None:
        """An attempt starts: commits that earlier attempts abandoned must not continue."""
        self._stopping = self._waits.event()

    def stop(self) -> None:
        """Give up waiting between retries."""
        self._stopping.set()

    def flush(
        self,
        committables: Sequence[Committable],
        keep: KeepFile | None = None,
        checkpoint_id: int = 0,
    ) -> tuple[Committable, ...]:
        """Make staged output durable; return it with completed payloads, in the same order.

        With ``keep``, also copy every staged file (PROTOCOL P14). The sink's lock keeps commits
        from moving files meanwhile. What was committed since the barrier, under an epoch up to the
        snapshot's own ``checkpoint_id``, is left out: nothing of it is pending, and its files have
        been moved or deleted. What a later epoch has committed is kept: a job that restores the
        savepoint into other tables needs it. Raises ``LostWriteError`` if a staged file is gone,
        was truncated or could not be synced.
        """
        flushed = list(committables)
        over: set[int] = set()
        for name, sink in self._sinks.items():
            mine = [index for index, item in enumerate(flushed) if item.sink == name]
            if not mine:
                continue
            with self._using(name, "making staged rows durable"):
                # By this driver, so that the rows are visible durably.
                committed = max((n for n in self._committed[name] if n <= checkpoint_id), default=0)
                over.update(index for index in mine if _is_in(flushed[index], committed))
                indexes = [index for index in mine if index not in over]
                for index in indexes:
                    _check_staged(sink, flushed[index])
                payloads = sink.flush([flushed[index].payload for index in indexes])
                for index, payload in zip(indexes, payloads, strict=True):
                    paths = [] if keep is None else sink.staged_files(payload)
                    files = tuple(
                        keep(path, f"{name}/{flushed[index].position}/{number}")
                        for number, path in enumerate(paths)
                        if keep is not None
                    )
                    flushed[index] = replace(flushed[index], payload=payload, files=files)
        return tuple(item for index, item in enumerate(flushed) if index not in over)

    def commit(
        self,
        epoch: int,
        payloads: Mapping[OperatorId, Sequence[Payload]],
        is_fenced: Callable[[], bool] = lambda: True,
    ) -> None:
        """Commit the epoch in each named sink.

        Raises a sink's last error when its retries are used up, ``SinkError`` if another attempt
        has started since, and ``DuplicatesError`` if a sink already has a later epoch, though
        nobody has fenced this driver (``is_fenced``).
        """
        stopping = self._stopping
        for name, items in payloads.items():
            if stopping is not self._stopping:
                raise SinkError(f"A newer attempt will commit checkpoint {epoch}.")
            self._commit_one(
                name, epoch, items, stopping, committed=self._committed[name], is_fenced=is_fenced
            )

    def finish(self, names: Sequence[OperatorId], position: int) -> tuple[Committable, ...]:
        """Stage what each named sink held back, as of batch ``position`` (MISSION E2)."""
        committables = []
        for name in names:
            with self._using(name, "finishing"):
                payload = self._sinks[name].finish(Batch(batch_id=position))
            if payload is not None:
                committables.append(Committable(sink=name, position=position, payload=payload))
        return tuple(committables)

    def close(self, names: Sequence[OperatorId]) -> None:
        """Close each named sink, so that it releases its resources (MISSION E5)."""
        for name in names:
            with self._using(name, "closing"):
                self._sinks[name].close()

    def learn_left_out(self, checkpoint: CompletedCheckpoint) -> bool:
        """Learn which sinks left out checkpoints before this one.

        Returns whether some of them were not known: these have to be opened again.
        """
        items = (item for task in checkpoint.tasks for item in task.committables)
        found = {item.sink for item in items if item.left_out is not None} - self._leave_out
        self._leave_out |= found
        return bool(found)

    def commit_again(
        self,
        checkpoint: CompletedCheckpoint,
        put_back: PutBack,
        *,
        foreign: bool = False,
        allow_removed: bool = False,
    ) -> tuple[OperatorId, ...]:
        """Commit the checkpoint's pending output, sink by sink, epoch by epoch (PROTOCOL P5, P13).

        Staged files of which a savepoint has copies are put back first (P14). A checkpoint
        of another job (``foreign``) may be restored with other targets: a staged file that is
        missing there and has no copy raises ``JobError``. So do pending rows of a sink that the job
        no longer has, unless ``allow_removed``: then such sinks are returned.
        """
        removed = []
        for name, epochs in pending_of(checkpoint).items():
            if name not in self._sinks:
                if not allow_removed:
                    raise JobError(
                        f"Checkpoint {checkpoint.checkpoint_id} has rows of sink {name!r} to"
                        " commit, but the job has no such sink: restore the sink, or leave them"
                        " out with --allow-non-restored-state (a job that was stopped has"
                        " committed them)."
                    )
                removed.append(name)
                continue
            for epoch in sorted(epochs):
                self._complete(name, epoch, epochs[epoch], put_back, foreign=foreign)
                self._commit_one(
                    name,
                    epoch,
                    [item.payload for item in epochs[epoch]],
                    self._stopping,
                    foreign=foreign,
                )
            # An earlier driver may have committed them, and died before it recorded that.
            if self._sinks[name].newest_committed() is not None:
                self._have_rows.add(name)
        return tuple(removed)

    def clean(self, attempt: int) -> None:
        """Delete files that older attempts staged and nobody committed (PROTOCOL P22)."""
        for name, sink in self._sinks.items():
            with self._using(name, "cleaning its target"):
                sink.clean(attempt)

    def check_not_beyond(self, checkpoint_id: int, damaged_id: int) -> None:
        """Raise ``DuplicatesError`` if a sink has committed beyond the older checkpoint (P21)."""
        for name, _, newest in self.committed_beyond(checkpoint_id):
            raise DuplicatesError(
                f"Checkpoint {damaged_id} is damaged, and falling back to checkpoint"
                f" {checkpoint_id} could duplicate rows, because sink {name!r} has committed"
                f" checkpoint {newest}. Restore the damaged file from a copy, or accept duplicate"
                " rows with --accept-duplicates."
            )

    def check_newest(self, checkpoint: CompletedCheckpoint) -> None:
        """Raise ``DuplicatesError`` if the checkpoint's own job has committed beyond it (P21)."""
        for name, target, newest in self.committed_beyond(checkpoint.checkpoint_id):
            raise DuplicatesError(
                f"{checkpoint.external_path} is checkpoint {checkpoint.checkpoint_id} of job"
                f" {checkpoint.job_id}, which has since committed checkpoint {newest} to {target}"
                f" (sink {name!r}): rows would be duplicated or lost. Start from a newer"
                " snapshot, write to new targets, or accept this with --accept-duplicates."
            )

    def commits(self, job_id: JobId) -> Iterator[tuple[OperatorId, str, Iterator[Commit]]]:
        """Each sink, its target for messages, and the commits recorded there, newest first.

        Works before ``open``, since it is called before the job has started. Raises ``SinkError``
        like ``open``.
        """
        for name, sink in self._sinks.items():
            self._check_not_hanging(name)
            with self._using(name, "looking up its commits"):
                yield name, sink.describe(), sink.commits(self._context(job_id, name, 0))

    def committed_beyond(self, checkpoint_id: int) -> Iterator[tuple[OperatorId, str, int]]:
        """Sinks with a later epoch that may be visible: the sink, its target, that epoch."""
        for name, sink in self._sinks.items():
            with self._using(name, "looking up its newest commit"):
                newest = sink.newest_begun()
            if newest is not None and newest > checkpoint_id:
                yield name, sink.describe(), newest

    def written(self) -> dict[OperatorId, AbsolutePath]:
        """By sink, the landmarks of the targets that are known to have rows of this job."""
        return {name: mark for name, mark in self._landmarks().items() if name in self._have_rows}

    def epochs(self) -> dict[OperatorId, SinkEpoch]:
        """By sink, the newest epoch with rows of this job, and where."""
        return {
            name: SinkEpoch(target=sink.identity(), epoch=epoch)
            for name, sink in self._sinks.items()
            if (epoch := self._newest.get(name)) is not None
        }

    def vanished(self, written: Mapping[OperatorId, str]) -> Iterator[tuple[OperatorId, str]]:
        """Sinks, with their targets for messages, whose landmark is in ``written`` but is gone."""
        for name, mark in self._landmarks().items():
            if written.get(name) == mark and self._file_system(mark).status(mark) is None:
                yield name, self._sinks[name].describe()

    def may_exist(self, directory: str) -> bool:
        """Whether a directory exists, or cannot be looked up."""
        try:
            return self._file_system(directory).status(directory) is not None
        except WeirError:
            return True

    def _landmarks(self) -> dict[OperatorId, AbsolutePath]:
        marks = {name: sink.landmark() for name, sink in self._sinks.items()}
        return {name: normalize(mark) for name, mark in marks.items() if mark is not None}

    def tables(self) -> dict[OperatorId, AbsolutePath]:
        """The path of the Delta or Iceberg table of each sink that appends to such a table."""
        paths = {name: sink.table_path() for name, sink in self._sinks.items()}
        return {name: normalize(path) for name, path in paths.items() if path is not None}

    def rows_committed(self, sinks: Sequence[OperatorId]) -> int:
        """Rows that these sinks have made visible since the driver started."""
        return sum(self._rows_committed[name] for name in sinks)

    def _complete(
        self,
        name: OperatorId,
        epoch: int,
        items: Sequence[Committable],
        put_back: PutBack,
        *,
        foreign: bool,
    ) -> None:
        """Put back every staged file with a copy, unless the epoch is committed.

        Existing files are not trusted: if the sync of a file failed, another sync would succeed for
        nothing (PROTOCOL P23).
        """
        if not foreign and not any(item.files for item in items):
            return
        sink = self._sinks[name]
        with self._using(name, "restoring staged rows"):
            newest = sink.newest_committed()
            if newest is not None and newest >= epoch:
                return
            for item in items:
                paths = sink.staged_files(item.payload)
                if item.files and len(item.files) != len(paths):
                    raise SinkMismatchError(
                        f"The snapshot has {len(item.files)} copies of the {len(paths)} files that"
                        f" sink {name!r} has staged for checkpoint {epoch}: it is damaged, so start"
                        " from another checkpoint or savepoint."
                    )
                for path, copy in zip(paths, item.files or [None] * len(paths), strict=True):
                    if copy is not None:
                        put_back(copy, path)
                    elif foreign and self._file_system(path).status(path) is None:
                        raise JobError(
                            f"Uncommitted rows of checkpoint {epoch} of sink {name!r} are missing"
                            f" from {path}, where they were staged: change {sink.describe()} back"
                            " to the original target, or start from a savepoint, which has a copy"
                            " of such rows."
                        )

    def _commit_one(
        self,
        name: OperatorId,
        epoch: int,
        payloads: Sequence[Payload],
        stopping: Event,
        *,
        committed: deque[int] | None = None,
        is_fenced: Callable[[], bool] = lambda: True,
        foreign: bool = False,
    ) -> None:
        """Commit with retries, until ``stopping`` is set; add the epoch to ``committed``.

        ``foreign``: it is an epoch of another job, and not kept in mind.
        """
        sink = self._sinks[name]

        def once() -> int:
            with self._using(name, f"committing checkpoint {epoch}"):
                if payloads and not sink.compares:
                    sink.check_not_gone_back(0 if foreign else self._newest.get(name, 0))
                rows = sink.commit(epoch, payloads)
                if payloads and not foreign:
                    self._learn(name, epoch, rows, is_fenced)
                if committed is not None:
                    committed.append(epoch)
                return rows

        def pause(seconds: float) -> None:
            stopping.wait(seconds)

        def report(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            _log.warning(
                "Committing checkpoint %d to %s failed (attempt %d of %d): %s",
                epoch,
                sink.describe(),
                state.attempt_number,
                self._retries.attempts,
                error,
            )

        initial_s = self._retries.initial_backoff_ms / 1000
        backoff = tenacity.wait_exponential(multiplier=initial_s)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, Exception) and not isinstance(error, _NOT_REPEATED)
            ),
            stop=lambda state: state.attempt_number >= self._retries.attempts or stopping.is_set(),
            wait=lambda state: min(
                backoff(state) + initial_s * self._kernel.chance(),
                self._retries.max_backoff_ms / 1000,
            ),
            sleep=pause,
            before_sleep=report,
            reraise=True,
        )
        rows = retrying(once)
        self._rows_committed[name] += rows
        if rows:
            self._have_rows.add(name)

    def _learn(
        self, name: OperatorId, epoch: int, rows: int, is_fenced: Callable[[], bool]
    ) -> None:
        """Keep in mind that a sink has committed an epoch with rows, if the sink knows it.

        Raises ``DuplicatesError`` if it has a later one: another driver runs the job, from a copy
        of its records.
        """
        sink = self._sinks[name]
        newest = epoch if rows and sink.compares else sink.newest_committed()
        if newest is None or newest < epoch:
            return
        if newest > epoch and not is_fenced():
            raise DuplicatesError(
                f"{sink.describe()} (sink {name!r}) already has checkpoint {newest} of this job,"
                f" whose driver is only about to commit checkpoint {epoch} and has not been"
                " replaced: a second driver runs the job from a copy of its records, and the rows"
                f" of checkpoint {epoch} are not visible there. Stop one of them, and resume the"
                " job from the newer records."
            )
        self._newest[name] = max(self._newest.get(name, 0), epoch)

    def _check_not_hanging(self, name: OperatorId) -> None:
        doing = self._busy.get(name)
        if doing is not None:
            raise SinkError(
                f"Sink {name!r} ({self._sinks[name].describe()}) still hangs while {doing} for an"
                " earlier attempt, so no new attempt can start: find out why it hangs, or suspend"
                " the job (Ctrl-C) and run it again."
            ) from TimeoutError(doing)  # A passing error: the call may still return.

    @contextmanager
    def _using(self, name: OperatorId, doing: str) -> Iterator[None]:
        """Hold the sink's lock, and note what it is doing."""
        with self._locks[name]:
            self._busy[name] = doing
            try:
                with place(step=name):
                    yield
            finally:
                del self._busy[name]

    def _context(
        self, job_id: JobId, name: OperatorId, attempt: int, landmark: str | None = None
    ) -> SinkContext:
        return SinkContext(
            job_id=job_id,
            job_name=self.job_name,
            sink=name,
            attempt=attempt,
            file_system=self._file_system,
            job_directory=self._job_directory,
            session=self._session,
            landmark=landmark,
            leaves_out=name in self._leave_out,
            kernel=self._kernel,
        )


def _is_in(item: Committable, committed: int) -> bool:
    """Whether an item was committed at the latest under this epoch; 0: none was.

    An item's epoch is the first completed checkpoint at or after its barrier.
    """
    first = next((n for n in (item.epoch, item.barrier, item.left_out) if n is not None), None)
    return first is not None and first <= committed


def _check_staged(sink: Sink, item: Committable) -> None:
    """Raise ``LostWriteError`` if a committable of a snapshot can no longer be committed."""
    if item.epoch is not None:
        # A completed checkpoint covers it: its commit checks the files, and may have moved them.
        return
    damage = sink.damaged(item.payload)
    if damage is None:
        return
    newest = sink.newest_committed()
    if item.barrier is not None and newest is not None and newest >= item.barrier:
        return  # its checkpoint has completed since, and was committed
    raise LostWriteError(
        f"Output that {sink.describe()} staged in batch {item.position} cannot be part of a"
        f" checkpoint, because {damage}: its rows are recomputed from the last checkpoint. Make"
        " sure that nothing else deletes files there."
    )


def pending_of(
    checkpoint: CompletedCheckpoint,
) -> dict[OperatorId, dict[int, list[Committable]]]:
    """What a job that starts from the checkpoint commits first, by sink and epoch."""
    pending: dict[OperatorId, dict[int, list[Committable]]] = {}
    for task in checkpoint.tasks:
        for item in task.committables:
            epochs = pending.setdefault(item.sink, {})
            epochs.setdefault(_epoch(item, checkpoint), []).append(item)
    return pending


def _epoch(item: Committable, checkpoint: CompletedCheckpoint) -> int:
    """The epoch under which a checkpoint's committable is committed.

    For an intermediate savepoint it is bounded twice:

    1. The savepoint may have overtaken the checkpoint that was to commit the item. If that
       checkpoint, or a later one, completed, the savepoint's job has committed the item under an id
       at or after its barrier. So an item without an epoch gets its barrier's id (P14, P19).
       If its sink has left checkpoints out, the job may also have been restored from the first of
       them, and have committed it under the id of that checkpoint; any later commit of the sink has
       it, too.
    2. A later checkpoint may have completed before the savepoint. The id never exceeds the
       savepoint's, since commits beyond that count as rows that the original job wrote after the
       savepoint (P21).
    """
    if checkpoint.kind is not SnapshotKind.SAVEPOINT:
        return checkpoint.checkpoint_id if item.epoch is None else item.epoch
    marks = (item.left_out, item.barrier if item.epoch is None else item.epoch)
    return min([checkpoint.checkpoint_id, *(n for n in marks if n is not None)])
