"""One run of the simulator, determined by its seed.

Drivers run a job with bounded sources while faults strike. A supervisor (a person, or Kubernetes)
starts a new driver when one has died. In some runs the first drivers stop by themselves once they
have read what was there, as those of a scheduler do. After a while the faults cease. Then the job
must finish within bounded virtual time, with every record in every table exactly once.
"""

from __future__ import annotations

import contextlib
import random as global_random
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Protocol

import msgspec

from weir.core.checkpoints.request_decider import RequestOrigin
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    CancelRequested,
    CheckpointRecorded,
    DiscardCheckpoint,
    JobEnded,
    JobMasterEvent,
    JobStatusChanged,
    LocationAllocated,
    RequestKind,
    SnapshotRequested,
    SuspendRequested,
)
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.messages.task import ReportCompleted
from weir.core.status import JobStatus
from weir.core.types import (
    CheckpointType,
    CompletedCheckpoint,
    JobId,
    OperatorId,
    Recorded,
    VertexId,
)
from weir.runtime.dispatcher import ToTask
from weir.sim.engine.auditor import AuditError, Auditor
from weir.sim.engine.code import Code, RowLaws
from weir.sim.engine.disk import Disk
from weir.sim.engine.disk_faults import SlowPhases, damaged
from weir.sim.engine.driver import SimDriver
from weir.sim.engine.faults import (
    TIMED,
    Backup,
    Fault,
    Injector,
    Mishap,
    Refused,
    Standing,
    beyond,
    draw_cancel,
    draw_damage,
    draw_mishaps,
    draw_plan,
    draw_rare_mishaps,
    since_savepoint,
)
from weir.sim.engine.job import SimJob, draw_job
from weir.sim.engine.liveness import Liveness
from weir.sim.engine.loop import Loop, Process
from weir.sim.engine.story import Story
from weir.sim.own.code import CountedRows, OwnCode
from weir.sim.own.resting import draw_resting
from weir.sim.stores.audit import Ledger
from weir.sim.stores.placing import STRIKES_US, Stores, more_faults, with_stores
from weir.storage import metadata
from weir.storage.filesystem import DIRECTORY_MARKER
from weir.storage.job_log import JobRecord, RecordStatus
from weir.storage.metadata import METADATA_FILE
from weir.storage.paths import parent

#: Virtual seconds after the last fault within which a job must finish. A driver that does not know
#: that it was fenced may try its final checkpoint eight times, with up to ten seconds between two
#: tries, before it asks the job log.
_PATIENCE_S = 100
#: No checkpoint takes as long, but for coordinators that never answer, and these faults.
_LONG_MS = 500
_SLOWS = {Fault.DRIVER_PAUSED, Fault.CLOCK_JUMP, Fault.STORAGE_SLOW}
#: The same for jobs with stores: the session of a client that is gone may hold its locks for long.
_PATIENCE_OF_STORES_S = 300
#: How many savepoints are requested before a mishap that needs one; most are not taken in time.
_SAVEPOINTS_BEFORE = 10
_OF_SAVEPOINTS = (Mishap.SAVEPOINT_AGAIN, Mishap.SAVEPOINT_ELSEWHERE)
#: How soon after a savepoint it is started with other tables.
_MOVES_US = 200_000
#: Of damaged checkpoints, the share in which it may be any file, and a misdirected write.
_OTHER_DAMAGE = 0.5
#: What a job that cannot be run says: a person undoes the mishap.
_CANNOT_RUN = ("No checkpoint or savepoint found", "is damaged (its number is")
#: How often a checkpoint is damaged within a commit, and how long commits to stores may take.
_WAITS = 0.5
_COMMIT_US = 5_000
#: How much rarer a user's stores are struck: a job that has lost rows ends.
_RARER = 10
#: After how many virtual microseconds an endless job is drained.
_ENDS_US = 6_000_000
#: After so many failures that no fault explains, a user's job is broken.
_UNEXPLAINED = 30
#: A job that has ended so is never run again.
_OVER = (RecordStatus.FINISHED, RecordStatus.CANCELED)
#: The share of stop requests that drain; such a run ends early.
_DRAINS = 0.5
#: The modules with the effects of tasks that do not involve the job master.
_AMONG_TASKS = ("weir.core.messages.channel", "weir.core.messages.task")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one seed."""

    seed: int
    #: None: all laws held.
    violation: str | None
    plan: str
    digest: str
    #: The newest lines of the story.
    story: tuple[str, ...]
    #: Turns of machines.
    events: int
    virtual_s: float
    checkpoints: int
    struck: Counter[tuple[Fault | Mishap, str]]


class Stage(Protocol):
    """A job that is not one of Weir's own (``user/run.py``)."""

    #: Nothing fails.
    calm: bool

    def settings(self, job: SimJob) -> SimJob:
        """The settings of the run, from those that were drawn."""
        ...

    def rates(self, drawn: dict[Fault, float]) -> dict[Fault, float]:
        """The rates of its faults, from those that were drawn."""
        ...

    def begin(self, world: World, settings: SimJob) -> tuple[Code, RowLaws]:
        """The job's code, and the laws of its rows."""
        ...

    def interleaved(self) -> AbstractContextManager[None]:
        """Entered while the world runs."""
        ...

    def crashed(self, random: Random, repeated: set[int]) -> None:
        """The machine crashed; ``repeated``: tickets that a restore commits again."""
        ...


class World:
    """One run: its disk, its drivers, their faults and the auditor."""

    #: The job has other tables than it began with.
    _has_moved = False
    #: The next savepoint is to be started with other tables.
    _move_waits = False
    #: A checkpoint is to be damaged while the next commit to a store is at work.
    _damage_waits = False
    #: A backup was put back: files that later attempts had staged are not cleaned up.
    _records_are_older = False

    def __init__(
        self, seed: int, *, seconds: float, stage: Stage | None = None, store: str | None = None
    ) -> None:
        """Draw a run.

        ``seconds``: how long faults may last at most, in virtual time. ``stage``: the job; None is
        one of Weir's own. ``store``: the product's sink that its first table has in a simulated
        store; None: the seed decides.
        """
        self.seed = seed
        random = Random(seed)
        # Retries of commits draw their jitter from here.
        global_random.seed(seed)
        self._random = random
        self._stage = stage
        self._loop = self.loop = Loop()
        self._plan = draw_plan(random, seconds=seconds, syncs=self._stream("syncs"))
        if stage is not None:
            self._plan = replace(self._plan, rates=stage.rates(self._plan.rates))
        of_injector = Random(random.getrandbits(64))
        #: Draws whether a stop drains.
        self._drains = self._stream("drains")
        self._drain_requests: set[str] = set()
        self._of_stores = self._stream("stores")
        self._job = self._drawn_job(store)
        self._resting = draw_resting(self._job.vertices, self._stream("resting"))
        self._injector = Injector(self._plan, of_injector, lambda: self._loop.now_us)
        self._story = Story()
        self.auditor = Auditor(
            base_directory=self._job.base_directory,
            laws=CountedRows(self._job.vertices),
            max_concurrent=self._job.config.max_concurrent_checkpoints,
            claims=self._job.claims_snapshot,
            min_pause_ms=self._job.config.min_pause_ms,
        )
        slow = SlowPhases(self._stream("slow"), 0 if self._is_calm else self._plan.until_us)
        self._disk = self.disk = Disk(self.auditor, tears=self._stream("tears"), slow=slow)
        self.auditor.disk = self._disk
        self.stores: Stores | None = None
        if stage is None and self._job.stores:
            self.open_stores(self._job.stores, Ledger(self.tell, self.auditor.broken))
        self._own = OwnCode(self._job, self._resting, self.stores)
        self._code: Code = self._own
        if stage is not None:
            self._code, self.auditor.laws = stage.begin(self, self._job)
        self._outside = Process("-")
        self._drivers: list[SimDriver] = []
        self._disk.make_directory(self._job.savepoint_directory)
        self._job_id = self._new_job()
        self._from_savepoint: str | None = None
        self._finished = False
        #: Timed faults that wait for a driver to reach a state.
        self._aimed: list[tuple[Fault, str]] = []
        self._requests = 0
        self._events = 0
        #: Vertices that this turn's effects name, and whether one went to or came from the job
        #: master.
        self._touched: set[VertexId] = set()
        self._master_touched = False
        #: The number of the driver that starts after the faults, if none outlives them.
        self._undisturbed: int | None = None
        self._mishap_random = self._stream("mishaps")
        self._rare_random = self._stream("rare mishaps")
        self._refused: Refused | None = None
        self._backups: list[Backup] = []
        #: For a user's job: the text of the newest failure, and how often no fault explained it
        #: since one did or a checkpoint completed.
        self._last_failure = ""
        self._unexplained = 0
        self._savepoints: list[CompletedCheckpoint] = []

    def _stream(self, name: str) -> Random:
        """A separate stream, so that older seeds keep their stories."""
        return Random(f"{name} {self.seed}")

    def _drawn_job(self, store: str | None) -> SimJob:
        job = draw_job(self._random, self._stream)
        if self._stage is not None:
            return self._stage.settings(job)
        job = with_stores(job, self._of_stores, store)
        if job.stores:
            rates = {**self._plan.rates, **more_faults(self._of_stores)}
            self._plan = replace(self._plan, rates=rates)
        return job

    def run(self) -> RunResult:
        """Run to the end."""
        with contextlib.nullcontext() if self._stage is None else self._stage.interleaved():
            return self._run()

    def close(self) -> None:
        """Free what still waits, once nobody looks at the world any more."""
        self._loop.end()

    def tell(self, what: str) -> None:
        """Add to the story what code of the user does."""
        self._story.tell(self._loop.now_us, "user", what)

    @property
    def _is_calm(self) -> bool:
        return self._stage is not None and self._stage.calm

    def _run(self) -> RunResult:
        self._supervise()
        for fault in TIMED:
            self._arm(fault)
        cancel_us = draw_cancel(self._stream("cancels"), self._plan.until_us)
        if cancel_us is not None and not self._is_calm:
            self._loop.at(cancel_us, self._outside, partial(self._due, Fault.CANCEL_REQUESTED))
        # A user's sink need not tell who has committed what.
        if self._stage is None and not self._job.stores:
            for random, draw in (
                (self._mishap_random, draw_mishaps),
                (self._rare_random, draw_rare_mishaps),
            ):
                for when_us, mishap in draw(random, self._plan.until_us):
                    self._prepare(mishap, when_us, random)
        for when_us in self._disk.slow.begin_us:
            self._loop.at(when_us, self._outside, self._slows_down)
        of_damage, often = self._stream("damage"), bool(self._job.stores)
        for when_us in draw_damage(of_damage, self._plan.until_us, often=often):
            if self._stage is None:
                self._loop.at(when_us, self._outside, partial(self._damage_soon, of_damage))
        self._loop.at(self._plan.until_us, self._outside, self._cease)
        if self.stores is not None and not self._is_calm:
            rarer = 1 if self._stage is None else _RARER
            self._arm_stores(self._of_stores.choice(STRIKES_US) * rarer)
        patience_s = _PATIENCE_S if self.stores is None else _PATIENCE_OF_STORES_S
        limit_us = self._plan.until_us + patience_s * 1_000_000
        over = self._loop.run(
            lambda: self._finished or self._is_lost or self.auditor.violation is not None, limit_us
        )
        if not over and self.auditor.violation is None:
            states = [f"{d.process.name}: {d.protocol_state()}" for d in self._drivers if d.is_live]
            self.auditor.broken(
                f"the job did not finish within {patience_s} s after the last fault ({states})"
                f"{self._last_failure}"
            )
        if self.auditor.violation is None and not self._is_lost:
            self._settle()
        self._kill_drivers(executors=True)
        recorded = sum(len(account.recorded) for account in self.auditor.jobs.values())
        return RunResult(
            seed=self.seed,
            violation=self.auditor.violation,
            plan=f"{self._job}\n{self._resting or ''}\n{self._plan.describe()}",
            digest=self._story.digest,
            story=tuple(self._story.lines()) if self.auditor.violation else (),
            events=self._events,
            virtual_s=self._loop.now_us / 1e6,
            checkpoints=recorded,
            struck=self._injector.struck,
        )

    # -- drivers

    @property
    def _patience_ms(self) -> int | None:
        """The timeout of checkpoints, if none may reach it."""
        timeout_ms, slows = self._job.config.timeout_ms, _SLOWS & self._plan.rates.keys()
        slows_down = slows or self._disk.slow.begin_us or self._job.coordinated
        may = timeout_ms < _LONG_MS or slows_down or self._stage is not None
        return None if may or self.stores is not None else timeout_ms

    def _supervise(self) -> None:
        """Start a driver if none is live, and check again later."""
        if not any(driver.is_live for driver in self._drivers):
            self._start_driver()
        self._loop.at(self._random.randrange(50_000, 300_000), self._outside, self._supervise)

    def _start_driver(self) -> None:
        """As ``weir run``: read the job's newest record, and run the job unless it is over."""
        record = self._record()
        if record is not None and record.status in _OVER:
            self._finished = True
            return
        if record is not None and record.status is RecordStatus.STOPPED:
            self._restore_from(record.savepoint)
        driver = SimDriver(
            number=len(self._drivers) + 1,
            job=self._job,
            code=self._code,
            job_id=self._job_id,
            from_savepoint=self._from_savepoint,
            loop=self._loop,
            disk=self._disk,
            injector=self._injector,
            random=Random(self._random.getrandbits(64)),
            on_effect=self._on_effect,
            on_turn=self._on_turn,
            on_end=self._on_end,
            broken=self.auditor.broken,
            liveness=Liveness(self._patience_ms),
            connect=self.stores.connect if self.stores is not None and self._job.bucket else None,
        )
        driver.process.stops_dead = self._stage is not None
        self._drivers.append(driver)
        self._tell(driver, f"starts job {self._job_id[:8]}")
        driver.start()

    def _restore_from(self, savepoint: str | None) -> None:
        """``weir run --from-savepoint``: a new job id (PROTOCOL P19)."""
        self._from_savepoint = savepoint
        self._job_id = self._new_job()

    def _new_job(self) -> JobId:
        """The id of a job that is submitted, which creates its directory."""
        job_id = f"{self._random.getrandbits(128):032x}"
        self._disk.make_directory(f"{self._job.base_directory}/{job_id}")
        return job_id

    def _record(self) -> JobRecord | None:
        """The newest record of the job on the disk."""
        directory = f"{self._directory}/log"
        names = self._disk.names(directory)
        if not names or names[-1] == DIRECTORY_MARKER:
            return None
        return msgspec.json.decode(self._disk.files[f"{directory}/{names[-1]}"], type=JobRecord)

    def _on_end(self, driver: SimDriver, how: JobEnded | BaseException) -> None:
        self._tell(driver, f"ended: {how}")
        wrong = driver.liveness.ended()
        if isinstance(how, BaseException):
            self.auditor.broken(f"{driver.process.name}: {type(how).__name__}: {how}")
        elif wrong is not None:
            self.auditor.broken(f"{driver.process.name} has ended, but {wrong}")
        elif self._refused is not None and "--accept-duplicates" in (how.failure or ""):
            self._undo_soon()

    def _kill_drivers(self, *, executors: bool = False) -> None:
        for driver in self._drivers:
            self._loop.kill(driver.process)
            if executors:
                self._loop.kill(driver.executors)

    # -- stores

    def open_stores(self, sinks: Iterable[OperatorId], ledger: Ledger) -> Stores:
        """The run's simulated stores, to which these sinks write."""
        stores = self.stores = Stores(
            loop=self._loop,
            disk=self._disk,
            random=Random(self._of_stores.random()),
            until_us=0 if self._is_calm else self._plan.until_us,
            ledger=ledger,
            tell=self._store_failed,
            commits=self._commit_begins,
        )
        self.auditor.stores.update(dict.fromkeys(sinks, stores.shown))
        return stores

    def _store_failed(self, what: str) -> None:
        self._injector.note(Fault.REQUEST_FAILED, self._drivers[-1].protocol_state())
        self.tell(what)

    def _arm_stores(self, mean_us: float) -> None:
        """Let something happen to the stores now and then."""

        def due() -> None:
            if self.stores is not None and not self._injector.over and self._drivers:
                state = self._drivers[-1].protocol_state()
                if self.stores.strike():
                    self._injector.note(Fault.STORE_STRUCK, state)
                self._arm_stores(mean_us)

        delay_us = round(self._of_stores.expovariate(1 / mean_us))
        self._loop.at(delay_us, self._outside, due)

    @property
    def _is_lost(self) -> bool:
        """Whether the job has said that a store has lost its rows."""
        return self.stores is not None and self.stores.noticed

    # -- mishaps

    def _prepare(self, mishap: Mishap, when_us: int, random: Random) -> None:
        """Let a mishap happen, and before it what it needs."""
        self._loop.at(random.randrange(when_us), self._outside, self._back_up)
        for _ in range(_SAVEPOINTS_BEFORE) if mishap in _OF_SAVEPOINTS else ():
            request = partial(self._due, Fault.SAVEPOINT_REQUESTED)
            self._loop.at(random.randrange(when_us), self._outside, request)
        self._loop.at(when_us, self._outside, partial(self._befall, mishap))

    def _back_up(self) -> None:
        """Copy the job's directory, as a person would."""
        record = self._record()
        if self._refused is None and record is not None and record.status is RecordStatus.RUNNING:
            copy = self._disk.copy_of(self._directory)
            self._backups.append(Backup(files=copy, record=record))

    def _left_of(self, record: JobRecord) -> set[bool]:
        """Whether the checkpoints of a record are still there: {True} if all are."""
        return {f"{known.path}/{METADATA_FILE}" in self._disk.files for known in record.checkpoints}

    def _befall(self, mishap: Mishap) -> None:
        """Kill all drivers and carry out a mishap; the tables decide whether it must be refused."""
        record = self._record()
        if self._finished or (record is not None and record.status in _OVER):
            return
        if not self._may_befall(mishap, record):
            self._move_waits |= mishap is Mishap.SAVEPOINT_ELSEWHERE and not self._has_moved
            return
        self._injector.note(mishap, self._drivers[-1].protocol_state())
        self._kill_drivers(executors=True)
        standing = Standing(job_id=self._job_id, from_savepoint=self._from_savepoint)
        backups, directory = self._own_backups, self._directory
        tables, refused = self.auditor.tables, False
        match mishap:
            case Mishap.BACKUP_PUT_BACK | Mishap.RECORDS_PUT_BACK:
                backup = backups[-1]
                standing = replace(standing, files=self._disk.copy_of(directory))
                part = directory if mishap is Mishap.BACKUP_PUT_BACK else f"{directory}/log"
                self._put_back(part, backup)
                refused = beyond(tables, self._job_id, backup.record.completed or 0)
                refused |= self._left_of(backup.record) == {False}
                if not refused:
                    self.auditor.records_put_back(backup.record, self._newest_id())
                    self._goes_back_to(backup.record.completed or 0)
            case Mishap.SAVEPOINT_AGAIN:
                savepoint = self._mishap_random.choice(self._savepoints)
                refused = since_savepoint(tables, savepoint)
                self._restore_from(savepoint.external_path)
            case Mishap.VOLUME_NOT_MOUNTED:
                refused = bool(tables)
                self._restore_from(None)
            case Mishap.CHECKPOINT_DAMAGED:
                assert record is not None
                self._refused = self._damage(record)
                refused = self._refused.must
            case Mishap.SAVEPOINT_ELSEWHERE:
                savepoint = self._rare_random.choice(self._savepoints)
                self.auditor.moved(savepoint, self._own.move())
                self._has_moved, self._savepoints = True, []
                self._restore_from(savepoint.external_path)
            case Mishap.IDS_PUT_BACK:
                self._put_back(f"{directory}/ids", backups[-1])
                assert record is not None
                self.auditor.records_put_back(record, self._newest_id())
                self._forget_savepoints(record.completed or 0)
            case Mishap.RECORD_MISDIRECTED:
                older, newest = self._disk.below(f"{directory}/log")[-2:]
                standing = replace(standing, damaged=(newest, self._disk.files[newest]))
                self._disk.put(newest, self._disk.files[older], durable=True)
                refused = True
        self._story.tell(
            self._loop.now_us, "-", f"MISHAP {mishap.value}, must be refused: {refused}"
        )
        if refused and self._refused is None:
            self._refused = Refused(mishap=mishap, before=standing)

    @property
    def _directory(self) -> str:
        return f"{self._job.base_directory}/{self._job_id}"

    @property
    def _own_backups(self) -> list[Backup]:
        return [one for one in self._backups if one.record.job_id == self._job_id]

    def _may_befall(self, mishap: Mishap, record: JobRecord | None) -> bool:
        """Whether there is what a mishap needs, and no other one to be undone."""
        if self._refused is not None or self._job.claims_snapshot:
            return False
        backups, records = self._own_backups, self._disk.names(f"{self._directory}/log")
        needs = {
            Mishap.BACKUP_PUT_BACK: backups,
            Mishap.SAVEPOINT_AGAIN: self._savepoints and not self._has_moved,
            Mishap.VOLUME_NOT_MOUNTED: not self._has_moved,
            Mishap.CHECKPOINT_DAMAGED: self._can_be_damaged(record),
            Mishap.SAVEPOINT_ELSEWHERE: self._savepoints and not self._has_moved,
            Mishap.RECORDS_PUT_BACK: backups and len(self._left_of(backups[-1].record)) < 2,
            Mishap.IDS_PUT_BACK: backups,
            Mishap.RECORD_MISDIRECTED: len(records) > 1,
        }
        return bool(needs[mishap])

    def _put_back(self, directory: str, backup: Backup) -> None:
        """Restore a directory from a backup of the job's."""
        below = f"{directory}/"
        copy = {path: data for path, data in backup.files.items() if path.startswith(below)}
        self._disk.put_back(directory, copy)

    def _damage_soon(self, random: Random) -> None:
        """Damage a checkpoint now, or while rows of the next one are being shown."""
        self._damage_waits = bool(self._job.stores) and random.random() < _WAITS
        if not self._damage_waits:
            self._befall(Mishap.CHECKPOINT_DAMAGED)

    def _commit_begins(self, sink: OperatorId, job_id: JobId, epoch: int, attempt: int) -> None:
        self.auditor.commits(sink, job_id, epoch, attempt)
        if self._damage_waits and self._can_be_damaged(self._record()):
            self._damage_waits = False
            befall = partial(self._befall, Mishap.CHECKPOINT_DAMAGED)
            self._loop.at(self._mishap_random.randrange(_COMMIT_US), self._outside, befall)

    def _can_be_damaged(self, record: JobRecord | None) -> bool:
        """Whether there is an older checkpoint, and no lost request may still show rows."""
        late = self.stores is not None and self.stores.network.in_flight
        return record is not None and len(record.checkpoints) > 1 and not late

    def _damage(self, record: JobRecord) -> Refused:
        """Damage the newest checkpoint.

        Unless readers see rows of it, drivers may go back to the checkpoint before it.
        """
        older, newest = record.checkpoints[-2:]
        files, known = self._disk.files, older.checkpoint_id
        file = f"{newest.path}/{METADATA_FILE}"
        random, others = self._mishap_random, list[bytes]()
        if self._rare_random.random() < _OTHER_DAMAGE:
            random = self._rare_random
            job = self._disk.copy_of(parent(newest.path))
            own = f"{parent(newest.path)}/shared/{newest.checkpoint_id}/"
            file = random.choice([file, *(path for path in job if path.startswith(own))])
            # What was meant for a file of the same kind, and went to this one.
            others = [job[path] for path in job if ("/shared/" in path) == ("/shared/" in file)]
        data = files[file]
        self._disk.put(file, damaged(data, random, others), durable=True)
        before = Standing(
            job_id=self._job_id, from_savepoint=self._from_savepoint, damaged=(file, data)
        )
        shown = self._shows_beyond(known)
        refused = Refused(
            mishap=Mishap.CHECKPOINT_DAMAGED,
            before=before,
            must=shown,
            damaged=newest.path,
            known=known,
        )
        if not shown:
            self._give_up(refused, record)
        return refused

    def _give_up(self, refused: Refused, record: JobRecord) -> None:
        """Drivers may go back to the checkpoint before the damaged one."""
        assert refused.known is not None
        self.auditor.damaged(record, refused.damaged)
        self._goes_back_to(refused.known)
        if self.stores is not None:
            self.stores.ledger.give_up(self._job_id, refused.known)

    def _shows_beyond(self, known: int) -> bool:
        """Whether readers see rows that a checkpoint of the job does not know."""
        return beyond(self.auditor.tables, self._job_id, known) or (
            self.stores is not None and self.stores.shows_beyond(self._job_id, known)
        )

    def _goes_back_to(self, completed: int) -> None:
        """The job goes on from an older checkpoint, and nothing shows what came after it."""
        self._records_are_older = True
        self._own.records_put_back(self._job_id, completed)
        self._forget_savepoints(completed)

    def _forget_savepoints(self, completed: int) -> None:
        """Nobody starts from those that the job took after a checkpoint.

        They refer to rows that are undone now, or their ids come again.
        """
        self._savepoints = [
            one
            for one in self._savepoints
            if one.job_id != self._job_id or one.checkpoint_id <= completed
        ]

    def _undo_soon(self) -> None:
        """A driver has said that it cannot run the job."""
        refused, self._refused = self._refused, None
        if refused is not None:
            self._loop.at(0, self._outside, partial(self._undo, refused))

    def _undo(self, refused: Refused) -> None:
        """Undo a refused mishap, as a person would after reading the driver's message."""
        self._kill_drivers()
        before = refused.before
        self._job_id, self._from_savepoint = before.job_id, before.from_savepoint
        if before.files is not None:
            self._disk.put_back(self._directory, before.files)
        if before.damaged is not None:
            self._disk.put(*before.damaged, durable=True)
        if refused.damaged:
            self.auditor.repaired(self._job_id)
        self._story.tell(self._loop.now_us, "-", f"UNDONE {refused.mishap.value}")

    def _newest_id(self) -> int:
        return max(map(int, self._disk.names(f"{self._directory}/ids")), default=0)

    # -- observation

    def _on_effect(self, driver: SimDriver, effect: object) -> None:
        self._tell(driver, str(effect))
        said = effect.message if isinstance(effect, JobStatusChanged) else ""
        if any(words in said for words in _CANNOT_RUN):
            self._undo_soon()
        if self._stage is not None:
            self._watch_user(driver, effect)
        self._touched.add(getattr(effect, "vertex", ""))
        self._master_touched |= type(effect).__module__ not in _AMONG_TASKS
        unforced = 0
        if isinstance(effect, TriggerCheckpoint):
            pending = driver.master.coordinator.pending
            unforced = sum(not one.request.origin.forced for one in pending)
        if isinstance(effect, AllocateLocation):
            request = driver.master.coordinator.trigger.in_progress
            is_final = request is not None and request.origin is RequestOrigin.FINAL
            if is_final and not driver.final_waits:
                self.auditor.asked_final(driver.process.name, driver.clock.now_ms())
        if isinstance(effect, DiscardCheckpoint) and effect.checkpoint_id in driver.finals:
            driver.finals.remove(effect.checkpoint_id)
            if not effect.subsumed:
                self.auditor.final_failed(driver.process.name, driver.clock.now_ms())
        if isinstance(effect, AnswerRequest) and effect.checkpoint is not None:
            self._on_answer(effect.request, effect.checkpoint)
        self.auditor.effect(driver.process.name, driver.job_id, effect, unforced)
        wrong = driver.liveness.effect(effect, driver.clock.now_ms())
        if wrong is not None:
            self.auditor.broken(wrong)

    def _watch_user(self, driver: SimDriver, effect: object) -> None:
        """Keep why the job failed, and end an endless one."""
        if isinstance(effect, JobStatusChanged) and effect.status is JobStatus.FAILING:
            self._last_failure = f". It failed last of: {effect.message}"
            self._unexplained = 0 if "imulated" in effect.message else self._unexplained + 1
            if self._unexplained >= (1 if self._is_calm else _UNEXPLAINED):
                self.auditor.broken(f"the job fails, and no fault explains it: {effect.message}")
        elif isinstance(effect, ReportCompleted):
            self._unexplained = 0

    def _ask_to_end(self) -> None:
        """Drain a job whose records do not end by themselves."""
        for driver in self._drivers:
            if driver.is_live and driver.is_endless:
                self._requests += 1
                driver.post(
                    SnapshotRequested(
                        request=f"r{self._requests}",
                        kind=RequestKind.STOP,
                        drain=True,
                        checkpoint_type=CheckpointType.FULL,
                    )
                )
        self._loop.at(_ENDS_US, self._outside, self._ask_to_end)

    def _repeated(self) -> set[int]:
        """Tickets of users' sinks that a restore from the newest record commits again."""
        record = self._record()
        found: set[int] = set()
        for reference in () if record is None else record.checkpoints:
            data = self._disk.files.get(f"{reference.path}/{METADATA_FILE}")
            if data is not None:
                for task in metadata.decode(data, reference.path).tasks:
                    for item in task.committables:
                        found |= set(item.payload.get("tickets", ()))
        return found

    def _on_answer(self, request: str, checkpoint: CompletedCheckpoint) -> None:
        if request in self._drain_requests and not checkpoint.drained:
            self.auditor.broken(
                f"a stop with drain ended with checkpoint {checkpoint.checkpoint_id}, which is"
                " not drained"
            )
        if checkpoint.kind.is_savepoint and not self._job.claims_snapshot:
            self.auditor.savepoint(checkpoint)
            self._savepoints.append(checkpoint)
            if self._move_waits:
                self._move_waits = False
                befall = partial(self._befall, Mishap.SAVEPOINT_ELSEWHERE)
                self._loop.at(self._rare_random.randrange(_MOVES_US), self._outside, befall)

    def _on_turn(self, driver: SimDriver, envelope: object) -> None:
        self._events += 1
        self._tell(driver, f"<- {envelope}")
        driver.liveness.turn(envelope, driver.clock.now_ms())
        if self._refused is not None and driver.master.status is JobStatus.RUNNING:
            refused, self._refused = self._refused, None
            if refused.must:
                self._check_forgotten(refused)
        self._watch_pause(driver, envelope)
        self._validate(driver, envelope)
        if self._aimed:
            self._strike_if_aimed(driver)

    def _check_forgotten(self, refused: Refused) -> None:
        """A job starts over rows that it did not know, unless a store has lost them meanwhile."""
        record = self._record()
        if refused.known is None or record is None or self._shows_beyond(refused.known):
            self.auditor.broken(f"{refused.mishap.value}: a job starts over unknown rows")
        else:
            self._give_up(refused, record)

    def _watch_pause(self, driver: SimDriver, envelope: object) -> None:
        """Report to the auditor what bounds the minimum pause, and note final checkpoints."""
        who, now_ms = driver.process.name, driver.clock.now_ms()
        waits = driver.master.coordinator.trigger.final_waits
        if waits and not driver.final_waits:
            self.auditor.asked_final(who, now_ms)
        driver.final_waits = waits
        match envelope:
            case CheckpointRecorded(outcome=Recorded.WON, checkpoint=checkpoint):
                self.auditor.completed(who, now_ms, checkpoint)
            case LocationAllocated(checkpoint_id=n):
                for one in driver.master.coordinator.pending:
                    if one.checkpoint_id == n and one.request.origin is RequestOrigin.PERIODIC:
                        self.auditor.began_periodic(who, n, now_ms)
                    elif one.checkpoint_id == n and one.request.origin is RequestOrigin.FINAL:
                        driver.finals.add(n)

    def _validate(self, driver: SimDriver, envelope: object) -> None:
        """Validate every machine that this turn involved; if that is not known, all of them."""
        touched, self._touched = self._touched, set()
        master_touched, self._master_touched = self._master_touched, False
        all_touched = not isinstance(envelope, ToTask)
        if isinstance(envelope, ToTask):
            touched.add(envelope.vertex)
        if all_touched or master_touched:
            driver.master.validate()
        for vertex, task in driver.dispatcher.tasks.items():
            if all_touched or vertex in touched:
                task.validate()

    def _settle(self) -> None:
        """Check what must hold when the job has finished or was cancelled."""
        newest = self._drivers[-1]
        undisturbed = (
            self._undisturbed == len(self._drivers)
            and not self._records_are_older
            # A put that was given up may land in an object store after its checkpoint was deleted.
            and not self._job.bucket
        )
        self._loop.run(lambda: not newest.is_live, self._loop.now_us + 60_000_000)
        record = self._record()
        status = None if record is None else record.status
        with contextlib.suppress(AuditError):
            canceled = status is RecordStatus.CANCELED
            self.auditor.settle(self._job_id, canceled=canceled, undisturbed=undisturbed)
        if undisturbed and self._stage is None and status is RecordStatus.FINISHED:
            for vertex in newest.unheard():
                self.auditor.broken(
                    f"{vertex} has ended, but its listener heard of no checkpoint of this driver"
                )

    def _tell(self, driver: SimDriver, what: str) -> None:
        self._story.tell(self._loop.now_us, driver.process.name, what)

    # -- faults

    def _cease(self) -> None:
        """End the faults, and kill each live driver with probability 0.5.

        Without a live driver the next one runs a whole attempt undisturbed.
        """
        self._story.tell(self._loop.now_us, "-", "faults are over")
        if self._stage is not None:
            self._loop.at(_ENDS_US, self._outside, self._ask_to_end)
        for driver in self._drivers:
            if self.stores is None:
                self._loop.kill(driver.executors)
            driver.process.paused_until_us = min(driver.process.paused_until_us, self._loop.now_us)
            if driver.is_live and self._random.random() < 0.5 and not self._is_calm:
                self._loop.kill(driver.process)
            if not driver.is_live:
                # Executors of a driver that goes on may be at work for a store.
                self._loop.kill(driver.executors)
        if not any(driver.is_live for driver in self._drivers):
            self._undisturbed = len(self._drivers) + 1

    def _slows_down(self) -> None:
        """The disk is slow from now on, for a while."""
        self._injector.note(Fault.DISK_SLOW, self._drivers[-1].protocol_state())
        self._story.tell(self._loop.now_us, "-", f"FAULT {Fault.DISK_SLOW.value}")

    def _arm(self, fault: Fault) -> None:
        delay_us = self._injector.next_us(fault)
        if delay_us is not None:
            self._loop.at(delay_us, self._outside, partial(self._due, fault))

    def _due(self, fault: Fault) -> None:
        """Let a timed fault strike now, or wait for a protocol state."""
        live = [driver for driver in self._drivers if driver.is_live]
        state = self._injector.aim()
        if state is not None:
            self._aimed.append((fault, state))
        elif live:
            self._strike(fault, self._random.choice(live))
        self._arm(fault)

    def _strike_if_aimed(self, driver: SimDriver) -> None:
        state = driver.protocol_state()
        for aimed in [one for one in self._aimed if one[1] == state]:
            self._aimed.remove(aimed)
            self._loop.at(
                self._random.randrange(50), self._outside, partial(self._strike, aimed[0], driver)
            )

    def _strike(self, fault: Fault, driver: SimDriver) -> None:
        if driver.is_live and not self._injector.over:
            self._injector.note(fault, driver.protocol_state())
            self._tell(driver, f"FAULT {fault.value}")
            self._carry_out(fault, driver)

    def _carry_out(self, fault: Fault, driver: SimDriver) -> None:
        match fault:
            case Fault.DRIVER_KILLED:
                self._loop.kill(driver.process)
            case Fault.MACHINE_CRASHED:
                self._kill_drivers()
                self._disk.crash(self._random)
                if self._stage is not None:
                    self._stage.crashed(self._random, self._repeated())
            case Fault.DRIVER_PAUSED:
                pause_us = self._random.randrange(100_000, 2_000_000)
                driver.process.paused_until_us = self._loop.now_us + pause_us
                if self._random.random() < 0.7:
                    self._start_driver()
            case Fault.SECOND_DRIVER:
                self._start_driver()
            case Fault.CLOCK_JUMP:
                driver.clock.wall_offset_ms += self._random.randrange(-5_000, 5_000)
                driver.clock.ahead_ms += self._random.choice((0, self._random.randrange(2_000)))
                self._loop.at(0, driver.process, driver.wake)
            case Fault.SUSPENDED:
                driver.post(SuspendRequested())
            case Fault.CANCEL_REQUESTED:
                driver.post(CancelRequested(request="cancel"))
            case _:
                driver.post(self._request(fault))

    def _request(self, fault: Fault) -> JobMasterEvent:
        self._requests += 1
        kind = {
            Fault.CHECKPOINT_REQUESTED: RequestKind.CHECKPOINT,
            Fault.SAVEPOINT_REQUESTED: RequestKind.SAVEPOINT,
            Fault.STOP_REQUESTED: RequestKind.STOP,
        }[fault]
        drain = kind is RequestKind.STOP and self._drains.random() < _DRAINS
        request = f"r{self._requests}"
        if drain:
            self._drain_requests.add(request)
            self.auditor.drain_requested = True
        return SnapshotRequested(
            request=request,
            kind=kind,
            drain=drain,
            checkpoint_type=self._random.choice(list(CheckpointType)),
        )


def run_seed(seed: int, *, seconds: float = 6.0, store: str | None = None) -> RunResult:
    """Run one seed to its end. ``store``: see ``World``."""
    with contextlib.closing(World(seed, seconds=seconds, store=store)) as world:
        return world.run()
