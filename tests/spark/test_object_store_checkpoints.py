"""Whole checkpoints in an object store, without a session: what is asked of the store, and when.

The tasks' directories are hand-made (``FakeQuery``), all else is what a driver runs. The
server is moto, an emulation of S3.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.kit.clock import ManualClock
from tests.kit.durable_job import Driver
from tests.kit.object_store import ObjectStore
from tests.kit.task_snapshots import FakeQuery, task_snapshots

from weir.core.messages.job import AllocateLocation, DiscardCheckpoint, RecordCheckpoint
from weir.core.messages.task import TakeSnapshot
from weir.core.types import CompletedCheckpoint, Recorded, SnapshotKind, TaskState
from weir.errors import StorageError
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.snapshots import restore_directory
from weir.storage import job_log
from weir.storage import object_store as module
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.local import LocalFileSystem

JOB = "0" * 32


class StoredJob:
    """A driver of a job of some tasks, whose checkpoints lie in a bucket."""

    def __init__(self, store: ObjectStore, directory: Path, tasks: int) -> None:
        self.store = store
        self.driver = Driver(
            directory,
            JOB,
            files=FileSystems(),
            checkpoints=f"{store.bucket()}/checkpoints",
        )
        self.storage = self.driver.storage
        self.transfer = Transfer(self.storage.fs)
        self.job = self.driver.job
        self.job.begin_attempt()
        self.queries = {f"v{n}": FakeQuery(directory / "work" / f"v{n}") for n in range(tasks)}
        self.snapshots = {
            vertex: task_snapshots(
                vertex,
                query.directory,
                self.storage,
                self.transfer,
                clock=ManualClock(0, epoch_ms=1_250),
            )
            for vertex, query in self.queries.items()
        }
        self.newest: CompletedCheckpoint | None = None

    def allocate(self) -> int:
        """The next checkpoint's id."""
        kind = SnapshotKind.CHECKPOINT
        return self.job.allocate(AllocateLocation(allocation=1, kind=kind, target=None))[0]

    def take(self, checkpoint_id: int) -> None:
        """The synchronous part of every task, after one more batch of each."""
        for vertex, query in self.queries.items():
            self.snapshots[vertex].take(
                TakeSnapshot(
                    vertex=vertex,
                    checkpoint_id=checkpoint_id,
                    kind=SnapshotKind.CHECKPOINT,
                    full=False,
                    timestamp_ms=1_000,
                    target=None,
                    position=query.step(),
                    finished=False,
                    committables=(),
                )
            )

    def proceed(self, checkpoint_id: int) -> tuple[TaskState, ...]:
        """The asynchronous part of every task."""
        return tuple(snapshots.proceed(checkpoint_id)[0] for snapshots in self.snapshots.values())

    def record(self, checkpoint_id: int, tasks: tuple[TaskState, ...]) -> CompletedCheckpoint:
        """Complete the checkpoint, and delete the checkpoint before it."""
        outcome = self.job.record_checkpoint(
            RecordCheckpoint(
                checkpoint_id=checkpoint_id,
                kind=SnapshotKind.CHECKPOINT,
                timestamp_ms=1_000,
                attempt=self.job.attempt,
                target=None,
                tasks=tasks,
                hook_states={},
                coordinator_states={},
                retained=(checkpoint_id,),
            )
        )
        assert outcome.outcome is Recorded.WON
        assert outcome.checkpoint is not None
        for vertex in self.queries:
            self.snapshots[vertex].confirm(checkpoint_id)
        if self.newest is not None:
            unneeded = self.newest.files - outcome.checkpoint.files
            self.job.discard(
                DiscardCheckpoint(
                    checkpoint_id=self.newest.checkpoint_id,
                    files=tuple(sorted(unneeded)),
                    target=None,
                    subsumed=True,
                )
            )
        self.newest = outcome.checkpoint
        return outcome.checkpoint

    def checkpoint(self) -> CompletedCheckpoint:
        """A whole checkpoint."""
        n = self.allocate()
        self.take(n)
        return self.record(n, self.proceed(n))


def cost(
    tasks: int, new: int, *, unneeded: int = 0, touched: int = 0, emptied: int = 0
) -> Counter[str]:
    """The formula of docs/DEPLOYMENT.md: requests of a checkpoint of that many tasks.

    ``new`` files are written. ``unneeded`` files of the subsumed checkpoint are deleted, from that
    many directories of earlier checkpoints (``touched``), some of which become empty.
    """
    return Counter(
        PUT=new + 3,
        LIST=6 + touched + emptied,
        HEAD=tasks + 7 + emptied,
        DELETE=3 + unneeded,
    )


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_checkpoint_costs_the_requests_that_the_docs_name(
    object_store: ObjectStore, tmp_path: Path, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First one new file for each task; then two that replace a chain of changelogs."""
    monkeypatch.setattr(job_log, "KEPT_RECORDS", 4)
    job = StoredJob(object_store, tmp_path, tasks)
    for _ in range(5):
        job.checkpoint()
    object_store.counted()
    job.checkpoint()
    assert object_store.counted() == cost(tasks, tasks)

    for query in job.queries.values():
        query.snapshot_state(query.step())
    job.checkpoint()
    made = 6
    # The first checkpoint's directory keeps the schemas.
    assert object_store.counted() == cost(
        tasks, 3 * tasks, unneeded=made * tasks, touched=made, emptied=made - 1
    )


def test_the_synchronous_part_asks_nothing_of_the_store(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    """No planning call waits for a network; afterwards each new file goes up once."""
    job = StoredJob(object_store, tmp_path, 3)
    n = job.allocate()
    object_store.counted()
    job.take(n)
    assert object_store.counted() == {}
    job.record(n, job.proceed(n))
    job.checkpoint()
    asked = Counter(request for request in object_store.requests if "/shared/" in request.key)
    written = {request.key: times for request, times in asked.items() if request.kind == "PUT"}
    # Metadata, schema and one changelog of each task; then one more changelog.
    assert list(written.values()) == [1] * 3 * 4
    assert not [request for request in asked if request.kind == "GET"]


def test_a_restore_fetches_what_the_checkpoint_holds(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    """The directory is the query's again, though the query has gone on and cleaned up."""
    job = StoredJob(object_store, tmp_path, 1)
    job.checkpoint()
    query = job.queries["v0"]
    before = {
        path.relative_to(query.path): path.read_bytes() for path in query.path.glob("state/**/*.*")
    }
    completed = job.checkpoint()
    job.storage.verify(completed)
    restored = tmp_path / "restored"
    (state,) = completed.tasks
    restore_directory(
        state=state,
        checkpoint=completed,
        storage=job.storage,
        transfer=job.transfer,
        directory=QueryDirectory(LocalFileSystem(), str(restored)),
    )
    found = {
        path.relative_to(restored): path.read_bytes() for path in restored.glob("state/**/*.*")
    }
    assert found.items() > before.items()


def test_a_file_that_arrives_damaged_fails_the_restore_and_not_the_checkpoint(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    """The error may pass, so the job tries again; the checkpoint was verified."""
    job = StoredJob(object_store, tmp_path, 1)
    completed = job.checkpoint()
    (state,) = completed.tasks
    handle = state.files[0]
    job.storage.fs(job.storage.base_directory).write(
        job.storage.file_path(completed, handle), b"x" * handle.size
    )
    with pytest.raises(StorageError, match="did not arrive as it was written"):
        restore_directory(
            state=state,
            checkpoint=completed,
            storage=job.storage,
            transfer=job.transfer,
            directory=QueryDirectory(LocalFileSystem(), str(tmp_path / "restored")),
        )


def test_a_store_that_is_away_declines_a_checkpoint_and_damages_none(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the failed checkpoint is left, and the next checkpoint completes."""
    monkeypatch.setitem(module._PATIENT, "retry_timeout", timedelta(seconds=0.2))
    job = StoredJob(object_store, tmp_path, 2)
    first = job.checkpoint()
    n = job.allocate()
    job.take(n)
    object_store.go_down(60)
    with pytest.raises(StorageError, match="503"):
        job.proceed(n)
    object_store.heal()
    for snapshots in job.snapshots.values():
        snapshots.drop(n)
    job.storage.verify(first)
    assert job.storage.fs(job.storage.base_directory).list(job.storage.shared_directory(n)) == []
    job.storage.verify(job.checkpoint())
