"""One driver of a job that writes to a simulated store, and keeps its records in a bucket.

The order of its steps is that of the durable part; everything that touches a store is the
product's: ``SinkPort`` with the sink below it, ``JobLog``, ``CheckpointStorage`` and
``ObjectStoreFileSystem``. A driver never knows that it was fenced before a record tells it so.

1. It begins an attempt (PROTOCOL P17), restores the newest completed checkpoint, commits again what
   was pending there, and cleans up after dead attempts (P22). If the newest is damaged, it falls
   back to the one before, or gives up (P21).
2. It stages batches, and takes checkpoints: allocates an id, flushes, writes the metadata, records
   the completion, deletes what is subsumed, and commits. Some checkpoints are given up after they
   were flushed (P12), and some commits wait for the next checkpoint (P5).
3. When the input has ended and everything is committed, it closes the sink and says so.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotKind,
    TaskState,
)
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.errors import JobFencedError, StorageError
from weir.sim.engine.disk import ProcessFileSystem
from weir.sim.engine.loop import Process, SimWaits
from weir.sim.stores.bucket import SimObjectStore
from weir.sim.stores.frame import SimFrame
from weir.sinks.base import Batch
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import CheckpointReference, JobLog, RecordKind, RecordStatus

if TYPE_CHECKING:
    from weir.sim.stores.world import StoresWorld

BASE_DIRECTORY = "s3://bucket/checkpoints"
JOB_ID = "5" * 32
SINK = "out"
_RETAINED = 2
_RETRIES = CommitRetries(attempts=4, initial_backoff_ms=5, max_backoff_ms=500)
#: The share of checkpoints that are given up once they are flushed, and of commits that wait.
_GIVEN_UP = 0.15
_POSTPONED = 0.3


class StoreDriver:
    """One process; ``run`` is called in a greenlet of its own."""

    #: A record that failed may still land, so its checkpoint is not deleted (``acts_late``).
    keeps_what_may_land = True

    def __init__(self, world: StoresWorld, number: int) -> None:
        self._world = world
        self.process = Process(f"d{number}")
        self.executors = Process(f"e{number}")
        self.ended = False
        #: 0 before its attempt has begun.
        self.attempt = 0
        self._random = Random(f"driver {world.seed} {number}")
        self._waits = SimWaits(world.loop, self.process)
        storage = SimObjectStore
        self._connect = partial(storage, BASE_DIRECTORY, world.bucket)
        self._files = ProcessFileSystem(
            world.disk, world.loop, self.process, world.disk_faults, links=True
        )
        self._sink = world.target.sink()
        self._position = -1
        self._pending: list[Committable] = []
        #: Completed checkpoints whose commit waits.
        self._uncommitted: list[int] = []
        self._retained: tuple[CheckpointReference, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether it runs the job, or believes that it does."""
        return self.process.alive and not self.ended

    def run(self) -> None:
        """Run the job to its end. Raises what ends the driver."""
        fs = self._connect()
        self._storage = CheckpointStorage(
            fs=lambda _: fs, base_directory=BASE_DIRECTORY, job_id=JOB_ID
        )
        log = JobLog(fs, self._storage.log_directory, sleep=self._waits.sleep)
        self._storage.check_writable()
        self._storage.make_job_directory()
        newest = log.newest()
        if newest is not None and newest.status is RecordStatus.FINISHED:
            self._world.finish()
            return
        self._writer = log.begin_attempt(
            after=newest,
            job_id=JOB_ID,
            job_name="sim",
            writer=self.process.name,
            timestamp_ms=self._now_ms,
        )
        self.attempt = self._writer.newest.attempt
        self._world.tell(f"{self.process.name} begins attempt {self.attempt}")
        self._sinks = SinkPort(
            sinks={SINK: self._sink},
            job_name="sim",
            file_system=lambda _: self._files,
            retries=_RETRIES,
            waits=self._waits,
            job_directory=self._storage.job_directory,
        )
        self._restore()
        while not self._is_done():
            for _ in range(self._random.randint(0, 3)):
                self._stage()
            self._checkpoint()
        self._sinks.close([SINK])
        self._append(RecordKind.ENDED, RecordStatus.FINISHED)
        self._world.finish()

    def _restore(self) -> None:
        """Commit again what the newest completed checkpoint has pending."""
        self._retained = self._writer.newest.checkpoints
        self._sinks.check(JOB_ID)
        self._sinks.open(JOB_ID, self.attempt, self._writer.newest.written)
        newest_id = self._retained[-1].checkpoint_id if len(self._retained) > 1 else 0
        if newest_id and self._world.is_damaged(newest_id, self):
            self._retained = self._retained[:-1]
            # Raises unless the target shows nothing of it (PROTOCOL P21).
            self._sinks.check_not_beyond(self._retained[-1].checkpoint_id, newest_id)
            self._world.gives_up(newest_id)
        if self._retained:
            newest = self._retained[-1]
            checkpoint = self._storage.read(newest.path, expected_checksum=newest.checksum)
            self._position = checkpoint.tasks[0].position
            pending = checkpoint.tasks[0].committables
            self._world.restored(pending)
            self._sinks.commit_again(checkpoint, _no_copies)
            self._world.committed(pending)
        self._clean()

    def _clean(self) -> None:
        target = self._world.target
        dead = target.sessions(self.attempt)
        self._sinks.clean(self.attempt)
        self._world.cleaned(dead & target.sessions(self.attempt))

    def _is_done(self) -> bool:
        return self._position == self._world.batches - 1 and not self._pending

    def _stage(self) -> None:
        """Stage the next batch, if there is one."""
        if self._position == self._world.batches - 1:
            return
        self._position += 1
        executors_files = ProcessFileSystem(
            self._world.disk, self._world.loop, self.executors, self._world.disk_faults, links=True
        )
        frame = SimFrame(
            self._world.rows_of(self._position),
            self._world.network,
            self.executors,
            executors_files,
        )
        payload = self._sink.stage(cast("Any", frame), Batch(batch_id=self._position))
        self._world.look()
        if payload is not None:
            self._pending.append(Committable(sink=SINK, position=self._position, payload=payload))

    def _checkpoint(self) -> None:
        """Take a checkpoint, and commit."""
        number = self._storage.next_checkpoint_id()
        marked = [item.with_barrier(number) for item in self._pending]
        age = self._world.target.age
        self._pending = list(self._sinks.flush(marked, checkpoint_id=number))
        self._world.flushed(self, self._pending, age)
        if self._random.random() < _GIVEN_UP:
            return
        checkpoint = self._completed(number)
        checksum = self._storage.write_metadata(checkpoint)
        self._world.took(number, self._position)
        reference = CheckpointReference(
            checkpoint_id=number, path=checkpoint.external_path, checksum=checksum
        )
        before = self._retained
        self._retained = (*before, reference)[-_RETAINED:]
        outcome = self._append(RecordKind.CHECKPOINT_COMPLETED, RecordStatus.RUNNING, number)
        if outcome is not Recorded.WON:
            self._retained = before
            if not self.keeps_what_may_land:
                self._storage.discard(number, (), None, subsumed=False)
            return
        for subsumed in (*before, reference)[:-_RETAINED]:
            self._storage.discard(subsumed.checkpoint_id, (), None, subsumed=True)
        self._pending = [item.with_epoch(number) for item in self._pending]
        first = not self._uncommitted and before == ()
        self._uncommitted.append(number)
        if self._random.random() >= _POSTPONED:
            self._commit()
            if first:
                self._clean()

    def _commit(self) -> None:
        """Commit the completed checkpoints, one after the other."""
        for number in self._uncommitted:
            items = [item for item in self._pending if item.epoch == number]
            self._world.commits(items)
            self._sinks.commit(number, {SINK: [item.payload for item in items]})
            self._world.tell(f"{self.process.name} has committed {number}")
            self._world.committed(items)
            self._pending = [item for item in self._pending if item.epoch != number]
        self._uncommitted = []

    def _completed(self, number: int) -> CompletedCheckpoint:
        return CompletedCheckpoint(
            job_id=JOB_ID,
            checkpoint_id=number,
            kind=SnapshotKind.CHECKPOINT,
            timestamp_ms=self._now_ms,
            completion_timestamp_ms=self._now_ms,
            attempt=self.attempt,
            tasks=(
                TaskState(
                    vertex="v",
                    position=self._position,
                    operators=(OperatorState(operator_id="v", name="v"),),
                    committables=tuple(self._pending),
                ),
            ),
            external_path=self._storage.checkpoint_directory(number),
        )

    def _append(
        self, kind: RecordKind, status: RecordStatus, completed: int | None = None
    ) -> Recorded:
        """Win the next record. Raises ``JobFencedError``, or ``StorageError`` at the end."""
        outcome = self._writer.append(
            kind=kind,
            timestamp_ms=self._now_ms,
            status=status,
            completed=completed or self._writer.newest.completed,
            checkpoints=self._retained,
            written=self._sinks.written(),
        )
        self._world.tell(f"{self.process.name} records {kind.value} {completed}: {outcome.value}")
        if outcome is Recorded.FENCED:
            raise JobFencedError("Simulated: a newer attempt holds the job.")
        if outcome is Recorded.FAILED and kind is RecordKind.ENDED:
            raise StorageError("Simulated: the end of the job could not be recorded.")
        return outcome

    @property
    def _now_ms(self) -> int:
        return self._world.loop.now_us // 1_000


def _no_copies(*_: object) -> None:
    raise AssertionError("a checkpoint has no copies of staged files")
