"""Deliberately broken variants that only rare mishaps show; see ``mutants.py``.

Parts of a job's directory restored, writes that went astray, savepoints restored into other tables,
clocks that step, and aborted checkpoints of sinks that commit at intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _faults, _jobs_with, _with

from weir.core.task.commits import PendingCommits
from weir.core.types import Committable, CompletedCheckpoint, StateHandle
from weir.durable import sink_port as sink_port_module
from weir.durable.sink_port import SinkPort
from weir.runtime.dispatcher import Dispatcher
from weir.sim import world as world_module
from weir.sim.engine import faults as faults_module
from weir.sim.engine import job as sim_job_module
from weir.sim.engine.faults import Fault, Mishap
from weir.storage import job_log as job_log_module
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import JobRecord
from weir.storage.numbered_log import Entry, NumberedLog
from weir.storage.records import unsealed
from weir.storage.snapshots import Snapshots


def _always(mishap: Mishap, **config: Any) -> AbstractContextManager[None]:
    """Each run has this mishap, often early, and jobs have these settings."""

    def drawn(random: Random, until_us: int) -> list[tuple[int, Mishap]]:
        return [(1 + round(until_us * random.random() ** 3), mishap)]

    return _with(
        patch.object(world_module, "draw_rare_mishaps", drawn),
        _faults(
            {
                Fault.SAVEPOINT_REQUESTED: 150.0,
                Fault.MACHINE_CRASHED: 400.0,
                Fault.STORAGE_SLOW: 0.05,
            }
        ),
        _jobs_with(**config),
    )


def _damage_is_common() -> AbstractContextManager[None]:
    return _with(
        patch.object(faults_module, "_DAMAGED", 1.0),
        patch.object(world_module, "_OTHER_DAMAGE", 1),
        _faults({Fault.DRIVER_KILLED: 300.0}),
        _jobs_with(num_retained=3, interval_ms=20),
    )


#: Savepoints that checkpoints overtake, and the other way round.
_SLOW_SNAPSHOTS = {
    "upload_us": 100_000,
    "interval_ms": 20,
    "min_pause_ms": 0,
    "timeout_ms": 5_000,
    "max_concurrent_checkpoints": 3,
}


# -- misdirected writes


def a_record_believed_whatever_its_number() -> AbstractContextManager[None]:
    """The newest record may be what was written to an older one's place (P17)."""

    def believed(entry: Entry, log: NumberedLog) -> JobRecord:
        return unsealed(job_log_module._FORM, entry.data, JobRecord, name=log.path(entry.number))

    return _with(
        patch.object(job_log_module, "_decode", believed), _always(Mishap.RECORD_MISDIRECTED)
    )


def metadata_believed_whatever_its_record_says() -> AbstractContextManager[None]:
    """A checkpoint's metadata may be that of another checkpoint, as it is whole (P21)."""
    read = Snapshots.read

    def unchecked(self: Snapshots, path: str, **_: Any) -> CompletedCheckpoint:
        return read(self, path)

    return _with(patch.object(Snapshots, "read", unchecked), _damage_is_common())


def state_that_is_not_read_before_it_is_used() -> AbstractContextManager[None]:
    """A restore does not look whether the files of a checkpoint are as recorded (P21)."""
    return _with(patch.object(Snapshots, "verify", lambda *_: None), _damage_is_common())


def state_compared_by_size() -> AbstractContextManager[None]:
    """A file of the right size counts as the right file (P21)."""
    verify_file = Snapshots.verify_file

    def by_size(self: Snapshots, checkpoint: CompletedCheckpoint, handle: StateHandle) -> None:
        path = self.file_path(checkpoint, handle)
        status = self.fs(path).status(path)
        if status is None or status.size != handle.size:
            verify_file(self, checkpoint, handle)

    return _with(patch.object(Snapshots, "verify_file", by_size), _damage_is_common())


# -- partial restores


def ids_that_only_the_counter_knows() -> AbstractContextManager[None]:
    """The next id follows from the counter, whatever checkpoints are on record (P19)."""
    next_id = CheckpointStorage.next_checkpoint_id

    def counted(self: CheckpointStorage, above: int = 0) -> int:
        del above
        return next_id(self)

    return _with(
        patch.object(CheckpointStorage, "next_checkpoint_id", counted), _always(Mishap.IDS_PUT_BACK)
    )


# -- savepoints restored into other tables


def a_savepoint_without_its_staged_rows() -> AbstractContextManager[None]:
    """A savepoint names the rows that it has to commit, and has no copy of them (P14)."""
    flush = SinkPort.flush

    def uncopied(
        self: SinkPort, committables: Any, keep: Any = None, checkpoint_id: int = 0
    ) -> tuple[Committable, ...]:
        del keep
        return flush(self, committables, None, checkpoint_id)

    return _with(patch.object(SinkPort, "flush", uncopied), _always(Mishap.SAVEPOINT_ELSEWHERE))


def committed_rows_left_out_of_a_savepoint() -> AbstractContextManager[None]:
    """A savepoint leaves out what a later checkpoint has committed meanwhile (P14)."""
    flush = SinkPort.flush

    def whatever_epoch(
        self: SinkPort, committables: Any, keep: Any = None, checkpoint_id: int = 0
    ) -> tuple[Committable, ...]:
        del checkpoint_id
        return flush(self, committables, keep, 1 << 60)

    return _with(
        patch.object(SinkPort, "flush", whatever_epoch),
        _always(Mishap.SAVEPOINT_ELSEWHERE, **_SLOW_SNAPSHOTS),
    )


def a_savepoint_that_commits_all_under_its_own_id() -> AbstractContextManager[None]:
    """Its job's own commits of the same rows have other ids, and are not recognized (P14, P19)."""

    def own_id(item: Committable, checkpoint: CompletedCheckpoint) -> int:
        return checkpoint.checkpoint_id if item.epoch is None else item.epoch

    return _with(patch.object(sink_port_module, "_epoch", own_id), _always(Mishap.SAVEPOINT_AGAIN))


# -- commit intervals with aborts, and clocks


def a_sink_that_leaves_out_what_follows_an_abort() -> AbstractContextManager[None]:
    """Rows of an aborted checkpoint get the epoch of one that the sink leaves out (P12, P15).

    That is one in the span of the commit before, to which the clock has stepped back.
    """
    is_due = PendingCommits._is_due

    def unmarked(self: PendingCommits, sink: str, triggered_ms: int) -> bool:
        marked, self._committables = self._committables, {}
        try:
            return is_due(self, sink, triggered_ms)
        finally:
            self._committables = marked

    return _with(
        patch.object(PendingCommits, "_is_due", unmarked),
        patch.object(PendingCommits, "validate", lambda self: None),
        _intervals_are_common(),
        _faults({Fault.CLOCK_JUMP: 60.0, Fault.STORAGE_ERROR: 0.02}),
        _jobs_with(interval_ms=20, min_pause_ms=0, tolerable_failed_checkpoints=1_000),
    )


def deadlines_by_the_wall_clock() -> AbstractContextManager[None]:
    """The machines get the time of day, which may step back (A4)."""
    begin = Dispatcher.__init__

    def by_wall(self: Dispatcher, *, clock: Any, **given: Any) -> None:
        begin(self, clock=_WallClock(clock), **given)

    return _with(
        patch.object(Dispatcher, "__init__", by_wall),
        _faults({Fault.CLOCK_JUMP: 100.0, Fault.TASK_FAILED: 0.02}),
    )


class _WallClock:
    """A clock whose monotonic time is the time of day."""

    def __init__(self, clock: Any) -> None:
        self.wall_ms: Callable[[], int] = clock.wall_ms
        begin_ms = clock.wall_ms() - clock.now_ms()
        self.now_ms: Callable[[], int] = lambda: self.wall_ms() - begin_ms


def _intervals_are_common() -> AbstractContextManager[None]:
    def drawn(vertices: Any, random: Random) -> dict[str, int]:
        sinks = [sink for vertex in vertices for sink in vertex.sinks]
        return dict.fromkeys(sinks, random.choice((200, 3_000)))

    return _with(patch.object(sim_job_module, "_draw_commit_intervals", drawn))


SIBLING_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=variant.__name__, variant=variant, says=tuple(says), known_seed=known_seed)
    for variant, known_seed, *says in (
        (a_record_believed_whatever_its_number, 5, "did not finish", "unknown rows", "recorded"),
        (metadata_believed_whatever_its_record_says, 29, "missing", "too often", "unknown rows"),
        (state_that_is_not_read_before_it_is_used, 3, "forbidden reason", "unknown rows"),
        (state_compared_by_size, 77, "forbidden reason", "unknown rows"),
        (ids_that_only_the_counter_knows, 27, "is not above", "recorded twice", "triggered by"),
        (a_savepoint_without_its_staged_rows, 1, "did not finish"),
        (committed_rows_left_out_of_a_savepoint, 168, "missing"),
        (a_savepoint_that_commits_all_under_its_own_id, 248, "shows a file twice", "too often"),
        (a_sink_that_leaves_out_what_follows_an_abort, 597, "missing"),
        (deadlines_by_the_wall_clock, 1, "Invariant", "did not finish", "after the last"),
    )
)
