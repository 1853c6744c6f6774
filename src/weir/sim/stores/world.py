"""One run of a sink over a simulated store, with the job's records in an object store.

Drivers run a job of numbered rows while requests fail, arrive late or lose their answers, drivers
are killed and paused, a second one starts, machines crash, and servers restart or go back to an
older state. After a while the faults cease, and the job must finish.

The laws:

1. Readers see only rows of completed checkpoints, each once (MISSION A11, PROTOCOL P18).
2. Rows whose commit has returned stay, unless the store itself has lost them. Then the job says so
   by name, and only then (P21).
3. The checkpoint that the newest record names is there (P17).
4. A driver is fenced by another's record only (P17).
5. Once ``clean`` has returned, no session is alive that an older attempt had before (P22).
6. Once a checkpoint has been flushed, the target holds its rows, shown or not (P23).
7. A job that has finished shows every row.

A driver (``StoreDriver``) takes its steps in the order of the durable part; everything that touches
a store is the product's: ``SinkPort`` with the sink below it, ``JobLog``, ``CheckpointStorage`` and
``ObjectStoreFileSystem``. A driver does not know that it was fenced before it reads a record that
says so.

1. It begins an attempt (PROTOCOL P17), restores the newest completed checkpoint, commits again what
   was pending there, and cleans up after dead attempts (P22). If the newest is damaged, it falls
   back to the one before, or gives up (P21).
2. It stages batches, and takes checkpoints: allocates an id, flushes, writes the metadata, records
   the completion, deletes what is subsumed, and commits. Some checkpoints are given up after they
   were flushed (P12), and some commits wait for the next checkpoint (P5).
3. When the input has ended and everything is committed, it closes the sink and says so.

The driver is a short model, since recovery as a whole is the subject of the other runs. It falls
back from a damaged checkpoint unless the sink may show rows beyond the older one: ``Files`` marks
an epoch before its first file gets its name, and the mark becomes the ledger's entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast

import msgspec
from greenlet import GreenletExit

from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotKind,
    TaskState,
)
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.errors import (
    JobFencedError,
    LostRowsError,
    SinkMismatchError,
    StorageError,
    UnsupportedEnvironmentError,
    WeirError,
)
from weir.kernel import Kernel
from weir.sim.engine.disk import Disk, ProcessFileSystem
from weir.sim.engine.loop import Loop, Process, SimWaits
from weir.sim.engine.story import Story
from weir.sim.stores.bucket import Bucket, SimObjectStore
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.frame import SimFrame
from weir.sim.stores.targets import Kind, new_target
from weir.sinks.base import Batch
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import (
    CheckpointReference,
    JobLog,
    JobRecord,
    RecordKind,
    RecordStatus,
)

BASE_DIRECTORY = "s3://bucket/checkpoints"
JOB_ID = "5" * 32
SINK = "out"
_RETAINED = 2
_RETRIES = CommitRetries(attempts=4, initial_backoff_ms=5, max_backoff_ms=500)
#: The share of checkpoints that are given up once they are flushed, and of commits that wait.
_GIVEN_UP = 0.15
_POSTPONED = 0.3
#: Virtual seconds within which a job must finish once the faults have ceased.
_PATIENCE_S = 300
#: For how long what is left runs on after the job has finished, in virtual microseconds.
_AFTERWARDS_US = 30_000_000
#: How often a driver finds the newest checkpoint damaged.
_DAMAGED = 0.3
_LOG = f"{BASE_DIRECTORY.removeprefix('s3://bucket/')}/{JOB_ID}/log/"


@dataclass(frozen=True, kw_only=True)
class StoresResult:
    """The result of one seed."""

    seed: int
    #: None: all laws held.
    violation: str | None
    #: The sink, and the digest of all lines.
    plan: str
    digest: str
    story: tuple[str, ...]
    checkpoints: int
    #: Whether the job has ended because the store had gone back.
    noticed: bool


class _Record(msgspec.Struct):
    """What the laws read of a job's record."""

    writer: str
    completed: int | None = None
    checkpoints: list[dict[str, object]] = []


class NobodyWatches:
    """Implements ``disk.Watcher``."""

    def deleted(self, path: str) -> None:
        """See ``Watcher``."""

    def created(self, path: str, data: bytes) -> None:
        """See ``Watcher``."""


class _DiskFaults:
    """Implements ``disk.StorageFaults``: a disk that is slow, and fails without effect."""

    def __init__(self, random: Random, over: Callable[[], bool]) -> None:
        self._random = random
        self._rate = random.choice((0.0, 0.002, 0.02))
        self._over = over

    def delay_us(self) -> int:
        """See ``StorageFaults``."""
        return self._random.randrange(20, 400)

    def fails_before(self, operation: str) -> bool:
        """See ``StorageFaults``."""
        return not self._over() and self._random.random() < self._rate

    def fails_after(self, operation: str) -> bool:
        """See ``StorageFaults``."""
        return self.fails_before(operation)

    def loses_writes(self, path: str) -> bool:
        """See ``StorageFaults``."""
        return False


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
        self._kernel = Kernel(
            now_ms=lambda: self._now_ms,
            wall_ms=lambda: self._now_ms,
            sleep=self._waits.sleep,
            chance=world.chance,
            new_name=world.new_name,
        )
        self._connect = partial(SimObjectStore, BASE_DIRECTORY, world.bucket, self._kernel)
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
            fs=lambda _: fs, base_directory=BASE_DIRECTORY, job_id=JOB_ID, kernel=self._kernel
        )
        log = JobLog(fs, self._storage.log_directory, self._kernel)
        self._storage.check_writable()
        self._storage.make_job_directory()
        newest = log.newest()
        if newest is not None and newest.status is RecordStatus.FINISHED:
            self._world.finish()
            return
        name, now_ms = self.process.name, self._now_ms
        self._writer = log.begin_attempt(
            JobRecord.first_attempt(job_id=JOB_ID, job_name="sim", writer=name, timestamp_ms=now_ms)
            if newest is None
            else newest.attempt_began(writer=name, timestamp_ms=now_ms)
        )
        self.attempt = self._writer.newest.attempt
        self._world.tell(f"{self.process.name} begins attempt {self.attempt}")
        self._sinks = SinkPort(
            sinks={SINK: self._sink},
            job_name="sim",
            file_system=lambda _: self._files,
            retries=_RETRIES,
            waits=self._waits,
            kernel=self._kernel,
            job_directory=self._storage.job_directory,
        )
        self._restore()
        while not self._is_done():
            for _ in range(self._random.randint(0, 3)):
                self._stage()
            self._checkpoint()
        self._sinks.close([SINK])
        self._append(self._writer.newest.ended(RecordStatus.FINISHED, timestamp_ms=self._now_ms))
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
        """Stage the next batch, if any is left."""
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
        marked = [
            item if item.barrier is not None else replace(item, barrier=number)
            for item in self._pending
        ]
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
        outcome = self._append(
            self._writer.newest.checkpoint_completed(
                reference,
                timestamp_ms=self._now_ms,
                retained=[known.checkpoint_id for known in self._retained],
                written=self._sinks.written(),
            )
        )
        if outcome is not Recorded.WON:
            self._retained = before
            if not self.keeps_what_may_land:
                self._storage.discard(number, (), None, subsumed=False)
            return
        for subsumed in (*before, reference)[:-_RETAINED]:
            self._storage.discard(subsumed.checkpoint_id, (), None, subsumed=True)
        self._pending = [
            item if item.epoch is not None else replace(item, epoch=number)
            for item in self._pending
        ]
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

    def _append(self, record: JobRecord) -> Recorded:
        """Win the next record. Raises ``JobFencedError``, or ``StorageError`` at the end."""
        outcome = self._writer.append(record)
        what = f"{record.kind.value} {record.completed}"
        self._world.tell(f"{self.process.name} records {what}: {outcome.value}")
        if outcome is Recorded.FENCED:
            raise JobFencedError("Simulated: a newer attempt holds the job.")
        if outcome is Recorded.FAILED and record.kind is RecordKind.ENDED:
            raise StorageError("Simulated: the end of the job could not be recorded.")
        return outcome

    @property
    def _now_ms(self) -> int:
        return self._world.loop.now_us // 1_000


def _no_copies(*_: object) -> None:
    raise AssertionError("a checkpoint has no copies of staged files")


class StoresWorld:
    """One run: its stores, its drivers, and the laws."""

    def __init__(self, seed: int, kind: Kind | None = None) -> None:
        """Draw a run. ``kind``: the sink; None: the seed decides."""
        self.seed = seed
        random = self._random = Random(f"stores {seed}")
        drawn = random.choices(list(Kind), weights=[kind.weight for kind in Kind])[0]
        self.kind = kind or drawn
        self.loop = Loop()
        self._story = Story()
        self._names = Random(f"names {seed}")
        #: Retries of commits draw their jitter from here.
        self.chance = Random(seed).random
        self.network = Network(self.loop, Random(random.random()), _rates(random), self.tell)
        self.disk = Disk(NobodyWatches())
        self.disk_faults = _DiskFaults(Random(random.random()), lambda: self.network.over)
        self.bucket = Bucket(self.network, self._deleted)
        self.target = new_target(self.kind, self.network, self.disk, self.look)
        self.batches = random.randint(3, 9)
        self._sizes = [random.choice((1, 1, 3, 5)) for _ in range(self.batches)]
        self._drivers: list[StoreDriver] = []
        self._outside = Process("-")
        self._is_over = False
        self._violation: str | None = None
        self._noticed = False
        #: The store went back while no driver ran and nothing was pending.
        self._unnoticeable = False
        #: The store went back, and no commit has begun since.
        self._unseen = False
        #: By checkpoint, the position up to which it has rows.
        self._positions: dict[int, int] = {}
        #: Damaged checkpoints, none of which was shown.
        self._given_up: set[int] = set()
        #: Batches whose commit has returned.
        self._committed: set[int] = set()

    def run(self) -> StoresResult:
        """Run to the end."""
        self._supervise()
        for strike, mean_us in self._timed():
            self._arm(strike, mean_us)
        limit_us = self.network.until_us + _PATIENCE_S * 1_000_000
        over = self.loop.run(lambda: self._is_over or bool(self._violation), limit_us)
        if not over and self._violation is None:
            self.broken(f"the job did not finish within {_PATIENCE_S} s after the last fault")
        if self._violation is None:
            # Late processes must do no harm either.
            self.loop.run(lambda: bool(self._violation), self.loop.now_us + _AFTERWARDS_US)
            self._settle()
        for driver in self._drivers:
            self.loop.kill(driver.process)
            self.loop.kill(driver.executors)
        self.loop.end()
        return StoresResult(
            seed=self.seed,
            violation=self._violation,
            plan=f"{self.kind.value}, its records in an object store",
            digest=self._story.digest,
            story=tuple(self._story.lines()) if self._violation else (),
            checkpoints=len(self._positions),
            noticed=self._noticed,
        )

    def new_name(self) -> str:
        """Draw a name (``Kernel.new_name``); those of probes are in messages."""
        return self._names.randbytes(16).hex()

    # -- what drivers report

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self._story.tell(self.loop.now_us, "-", what)

    def broken(self, what: str) -> None:
        """Report a broken law; the first counts."""
        if self._violation is None:
            self.tell(f"VIOLATION {what}")
            self._violation = f"{self.kind.value}: {what}"

    def finish(self) -> None:
        """The job has finished."""
        self._is_over = True

    def rows_of(self, position: int) -> list[int]:
        """The rows of a batch."""
        return [position * 10 + row for row in range(self._sizes[position])]

    def took(self, checkpoint: int, position: int) -> None:
        """The metadata of a checkpoint was written."""
        self._positions[checkpoint] = position

    def commits(self, items: Sequence[Committable]) -> None:
        """A commit begins: with rows, it looks whether the store has gone back."""
        if items:
            self._unseen = False

    def committed(self, items: Sequence[Committable]) -> None:
        """A commit has returned: its rows must stay."""
        self._committed.update(item.position for item in items)
        self.look()

    def flushed(self, driver: StoreDriver, items: Sequence[Committable], age: int) -> None:
        """A flush has returned that began when the target had this age."""
        held = self.target.held()
        newest = max(driver.attempt for driver in self._drivers)
        # A newer attempt may have cleaned up.
        if held is not None and age == self.target.age and driver.attempt == newest:
            rows = [row for item in items for row in self.rows_of(item.position)]
            if lacking := [row for row in rows if row not in held]:
                self.broken(f"row {lacking[0]} was flushed, and is neither shown nor staged")
        self.look()

    def is_damaged(self, checkpoint: int, driver: StoreDriver) -> bool:
        """Whether the newest checkpoint cannot be read: because it was given up, or by chance.

        None is drawn while an older attempt may still commit it: its rows would be shown twice.
        """
        if checkpoint in self._given_up:
            return True
        others = any(other.is_live for other in self._drivers if other is not driver)
        if self.network.over or others or self.network.in_flight:
            return False
        return self._random.random() < _DAMAGED

    def gives_up(self, checkpoint: int) -> None:
        """A driver falls back from a damaged checkpoint to that before it."""
        self.tell(f"FAULT checkpoint {checkpoint} is damaged, and given up")
        self._given_up.add(checkpoint)

    def restored(self, pending: Sequence[Committable]) -> None:
        """A driver has opened its sink; ``pending``: what it commits again."""
        self.commits(pending)
        if self.target.has_lost_rows and not pending:
            self._unnoticeable = True

    def cleaned(self, left: set[object]) -> None:
        """``clean`` has returned; ``left``: sessions that it should have ended."""
        if left:
            self.broken(f"{len(left)} sessions of dead attempts outlive clean")
        self.look()

    def look(self) -> None:
        """Compare what readers see with what they may see."""
        shown = Counter(self.target.rows())
        twice = [row for row, count in shown.items() if count > 1]
        if twice:
            self.broken(f"row {twice[0]} is visible {shown[twice[0]]} times")
        newest = self._newest()
        last = -1 if newest is None else self._positions.get(newest.completed or 0, -1)
        early = [row for row in shown if row // 10 > last]
        if early:
            self.broken(f"row {early[0]} is visible, but no checkpoint with it has completed")
        if not self.target.has_lost_rows:
            gone = [
                row
                for position in self._committed
                for row in self.rows_of(position)
                if row not in shown
            ]
            if gone:
                self.broken(f"row {gone[0]} was committed, and is not visible")

    # -- laws

    def _settle(self) -> None:
        self.look()
        shown = set(self.target.rows())
        missing = [
            row
            for position in range(self.batches)
            for row in self.rows_of(position)
            if row not in shown
        ]
        unseen = self._unnoticeable or self._unseen
        if missing and not self._noticed and not unseen:
            self.broken(f"the job has finished, and row {missing[0]} is not visible")

    def _newest(self) -> _Record | None:
        """The job's newest record in the bucket."""
        entries = [key for key in self.bucket.objects if key.startswith(_LOG)]
        if not entries:
            return None
        return msgspec.json.decode(self.bucket.objects[max(entries)].data, type=_Record)

    def _deleted(self, key: str) -> None:
        newest = self._newest()
        if newest is None or not newest.checkpoints:
            return
        path = str(newest.checkpoints[-1]["path"]).removeprefix("s3://bucket/")
        if f"{path}/_metadata" not in self.bucket.objects:
            self.broken(f"checkpoint {newest.completed} is gone, and the newest record names it")

    # -- drivers and faults

    def _supervise(self) -> None:
        if not self._is_over:
            if not any(driver.is_live for driver in self._drivers):
                self._start_driver()
            self.loop.at(self._random.randrange(20_000, 80_000), self._outside, self._supervise)

    def _start_driver(self) -> None:
        driver = StoreDriver(self, len(self._drivers) + 1)
        self._drivers.append(driver)
        self.tell(f"{driver.process.name} starts")
        self.loop.spawn(driver.process, partial(self._drive, driver))

    def _drive(self, driver: StoreDriver) -> None:
        try:
            driver.run()
        except LostRowsError as error:
            self._lost(str(error))
        except (SinkMismatchError, UnsupportedEnvironmentError) as error:
            self.broken(f"{driver.process.name} fails for good: {error}")
        except JobFencedError as error:
            self.tell(f"{driver.process.name} is fenced: {error}")
            newest = self._newest()
            if newest is not None and newest.writer == driver.process.name:
                self.broken(f"{driver.process.name} was fenced by its own record")
        except WeirError as error:
            self.tell(f"{driver.process.name} fails: {error}")
        except GreenletExit:
            raise
        except Exception as error:
            what = f"{driver.process.name}: {type(error).__name__}: {error}"
            self.tell(what)
            # A newer attempt may delete what an older attempt uses.
            if driver.attempt == max(driver.attempt for driver in self._drivers):
                self.broken(what)
        driver.ended = True
        self._end_executors(driver)

    def _lost(self, said: str) -> None:
        """A driver says that committed rows are lost: the job ends, and says why."""
        if not self.target.has_gone_back:
            self.broken(f"nothing is lost, but the job says: {said}")
        self.tell(f"the job has failed: {said}")
        self._noticed = self._is_over = True

    def _end_executors(self, driver: StoreDriver) -> None:
        """Executors notice at once, or a while later, that their driver is gone."""
        delay_us = self._random.choice((0, self._random.randrange(3_000_000)))
        self.loop.at(delay_us, self._outside, partial(self.loop.kill, driver.executors))

    def _timed(self) -> list[tuple[Callable[[StoreDriver], object], float]]:
        strikes = [self._kill, self._pause, self._second, self._crash, self._strike]
        return [
            (strike, self._random.choice((40_000.0, 200_000.0, 1_000_000.0)))
            for strike in strikes
            if self._random.random() < 0.5
        ]

    def _arm(self, strike: Callable[[StoreDriver], object], mean_us: float) -> None:
        delay_us = round(self._random.expovariate(1 / mean_us))

        def due() -> None:
            live = [driver for driver in self._drivers if driver.is_live]
            if not self.network.over and not self._is_over:
                if live:
                    strike(live[-1])
                self._arm(strike, mean_us)

        self.loop.at(delay_us, self._outside, due)

    def _kill(self, driver: StoreDriver) -> None:
        self.tell(f"FAULT {driver.process.name} is killed")
        self.loop.kill(driver.process)
        self._end_executors(driver)

    def _pause(self, driver: StoreDriver) -> None:
        self.tell(f"FAULT {driver.process.name} is paused")
        most_us = self._random.choice((300_000, 15_000_000))
        driver.process.paused_until_us = self.loop.now_us + self._random.randrange(most_us)
        if self._random.random() < 0.7:
            self._start_driver()

    def _second(self, _: StoreDriver) -> None:
        self._start_driver()

    def _crash(self, _: StoreDriver) -> None:
        self.tell("FAULT the machine crashes")
        for driver in self._drivers:
            self.loop.kill(driver.process)
            self.loop.kill(driver.executors)
        self.disk.crash(self._random)

    def _strike(self, _: StoreDriver) -> None:
        self.target.strike()
        self._unseen = self.target.has_lost_rows


def _rates(random: Random) -> Rates:
    def drawn(most: float) -> float:
        return random.choice((0.0, most / 10, most))

    return Rates(
        refused=drawn(0.05),
        answer_lost=drawn(0.1),
        late=drawn(0.05),
        slow=drawn(0.05),
        others=drawn(0.3),
        until_us=round(random.uniform(0.1, 2.0) * 1e6),
    )


def run_stores(seed: int, kind: Kind | None = None) -> StoresResult:
    """Run one seed to its end. ``kind``: the sink; None: the seed decides."""
    return StoresWorld(seed, kind).run()
