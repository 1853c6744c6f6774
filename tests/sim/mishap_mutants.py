"""Deliberately broken variants of target checks and lost writes; see ``mutants.py``.

A job checks its targets before it starts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with

from weir.core.types import CompletedCheckpoint, JobId, Recorded
from weir.durable import job as job_module
from weir.durable.job import DurableJob
from weir.durable.sink_port import SinkPort
from weir.errors import LostWriteError
from weir.runtime import task_work
from weir.sim import world as world_module
from weir.sim.engine import faults as faults_module
from weir.sim.engine.disk import ProcessFileSystem
from weir.sim.engine.faults import Mishap
from weir.storage.numbered_log import Recorder


def records_that_may_be_older_than_the_tables() -> AbstractContextManager[None]:
    """A job does not check whether a sink has committed beyond its newest record (P19, P21)."""
    return _with(
        patch.object(job_module, "own_commits", lambda sinks, job_id: []),
        patch.object(SinkPort, "committed_beyond", lambda self, checkpoint_id: iter(())),
        _always(Mishap.BACKUP_PUT_BACK),
    )


def a_savepoint_that_may_be_begun_again() -> AbstractContextManager[None]:
    """A job that starts from a snapshot does not check for commits made since (P21)."""
    real = DurableJob._rows_before

    def trusting(self: DurableJob, checkpoint: CompletedCheckpoint | None) -> dict[JobId, int]:
        if checkpoint is None or checkpoint.job_id == self._storage.job_id:
            return real(self, checkpoint)
        return {**checkpoint.ancestors, checkpoint.job_id: checkpoint.checkpoint_id}

    return _with(
        patch.object(DurableJob, "_rows_before", trusting),
        patch.object(SinkPort, "check_newest", lambda self, checkpoint: None),
        # Savepoints are frequent.
        patch.object(faults_module, "_TIMED_RATES_MS", (100.0, 400.0)),
        _always(Mishap.SAVEPOINT_AGAIN),
    )


def a_new_job_over_the_rows_of_its_namesake() -> AbstractContextManager[None]:
    """A job without records starts, whatever its targets hold (P21)."""
    real = DurableJob._rows_before

    def trusting(self: DurableJob, checkpoint: CompletedCheckpoint | None) -> dict[JobId, int]:
        return {} if checkpoint is None else real(self, checkpoint)

    return _with(
        patch.object(DurableJob, "_rows_before", trusting), _always(Mishap.VOLUME_NOT_MOUNTED)
    )


def a_failed_sync_that_only_declines() -> AbstractContextManager[None]:
    """The next snapshot syncs the same file again, and trusts that sync's success (P23)."""
    return _with(patch.object(task_work, "LostWriteError", _NeverRaisedError), syncs_fail())


def a_record_believed_although_its_sync_failed() -> AbstractContextManager[None]:
    """A record that is found after a failed sync counts as won once a later sync succeeds (P23)."""
    look = Recorder._look

    def trusting(self: Recorder, number: int, data: bytes, lost: Any) -> Recorded:
        del lost
        return look(self, number, data, None)

    return _with(patch.object(Recorder, "_look", trusting), syncs_fail())


def staged_rows_believed_although_their_sync_failed() -> AbstractContextManager[None]:
    """Rows that an attempt put back and failed to sync are what the next attempt finds (P23)."""
    put_back = DurableJob._put_back

    def trusting(self: DurableJob, *args: Any) -> None:
        path = args[2]
        fs = self._storage.fs(path)
        if fs.status(path) is None:
            put_back(self, *args)
        else:
            fs.sync([path])

    return _with(patch.object(DurableJob, "_put_back", trusting), syncs_fail())


def metadata_believed_although_its_sync_failed() -> AbstractContextManager[None]:
    """A checkpoint is recorded although the sync of its ``_metadata`` failed (P23)."""
    write = ProcessFileSystem.write

    def trusting(self: ProcessFileSystem, path: str, data: bytes) -> None:
        with suppress(LostWriteError):
            write(self, path, data)

    return _with(patch.object(ProcessFileSystem, "write", trusting), syncs_fail())


def _always(mishap: Mishap) -> AbstractContextManager[None]:
    """Each run has this mishap, in its second half."""

    def drawn(random: Random, until_us: int) -> list[tuple[int, Mishap]]:
        return [(random.randrange(until_us // 2, until_us), mishap)]

    return _with(patch.object(world_module, "draw_mishaps", drawn))


def syncs_fail() -> AbstractContextManager[None]:
    """Syncs fail in each run, and often."""
    return _with(
        patch.object(faults_module, "_SYNCS_FAIL", 1.0),
        patch.object(faults_module, "_SYNC_RATE", (0.02, 0.1)),
    )


class _NeverRaisedError(Exception):
    """An exception that is never raised."""


def _mutant(variant: Any, says: tuple[str, ...], known_seed: int) -> Mutant:
    return Mutant(name=variant.__name__, variant=variant, says=says, known_seed=known_seed)


_BEGINS = ("starts over unknown rows",)

MISHAP_MUTANTS: tuple[Mutant, ...] = (
    _mutant(records_that_may_be_older_than_the_tables, _BEGINS, 3),
    _mutant(a_savepoint_that_may_be_begun_again, _BEGINS, 3),
    _mutant(a_new_job_over_the_rows_of_its_namesake, _BEGINS, 541),
    _mutant(a_failed_sync_that_only_declines, ("is not flushed",), 32),
    _mutant(a_record_believed_although_its_sync_failed, ("tasks are notified",), 9),
    _mutant(staged_rows_believed_although_their_sync_failed, ("which is not flushed",), 131),
    _mutant(metadata_believed_although_its_sync_failed, ("is not flushed",), 13),
)
