"""One driver of the simulated job: the production machines in a process that can die.

The job master, the dispatcher, the coordinator runner and the durable part are the product's.
"""

from __future__ import annotations

import random as global_random
from collections.abc import Callable
from functools import partial
from random import Random

from weir.coordinators.runner import CoordinatorRunner
from weir.core.checkpoints.pending import PendingState
from weir.core.job.master import JobMaster
from weir.core.messages.job import JobEnded, JobSubmitted
from weir.core.messages.task import CommitSinks, SinkCommitFailed, SinksCommitted
from weir.core.settings import UntilIdle
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.types import CompletedCheckpoint, JobId, TaskStatus, VertexId
from weir.durable.hooks import CheckpointListeners, MasterHooks
from weir.durable.job import DurableJob, DurableSettings
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.durable.state_mapping import NothingChanges, StateMapping
from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.kernel import Kernel
from weir.runtime.dispatcher import Dispatcher, Envelope, ToTask
from weir.runtime.watching import Watchers
from weir.sim.engine.code import TABLES_DIRECTORY, Code, DriverCode, Environment, operators_of
from weir.sim.engine.disk import Disk, ProcessFileSystem
from weir.sim.engine.faults import Fault, Injector
from weir.sim.engine.job import SimJob
from weir.sim.engine.listener import OrderedListener
from weir.sim.engine.liveness import Liveness
from weir.sim.engine.loop import Loop, Process, SimWaits, SimWorkers
from weir.sim.engine.task_port import SimTaskPort
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.paths import is_local

_WORKING_DIRECTORY = "/working"

_WALL_CLOCK_BASE_MS = 1_700_000_000_000
#: The dispatcher's patience; nothing hangs in the simulator.
_PATIENCE_MS = 60_000


class SimClock:
    """A process's clocks: the wall clock may jump both ways, the monotonic clock only forward."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.ahead_ms = 0
        self.wall_offset_ms = 0

    def now_ms(self) -> int:
        """Milliseconds on the monotonic clock."""
        return self._loop.now_us // 1_000 + self.ahead_ms

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return _WALL_CLOCK_BASE_MS + self._loop.now_us // 1_000 + self.wall_offset_ms


class _Faults:
    """``disk.StorageFaults`` of one driver."""

    def __init__(self, driver: SimDriver, injector: Injector, random: Random) -> None:
        self._driver = driver
        self._injector = injector
        self._random = random

    def delay_us(self) -> int:
        """Less than half a millisecond, or 20 to 400 ms when slow storage strikes."""
        if self._injector.strikes(Fault.STORAGE_SLOW, self._driver.protocol_state):
            return self._random.randrange(20_000, 400_000)
        return self._random.randrange(20, 400)

    def fails_before(self, operation: str) -> bool:
        """Whether the operation fails without effect; any operation can."""
        del operation
        return self._injector.strikes(Fault.STORAGE_ERROR, self._driver.protocol_state)

    def fails_after(self, operation: str) -> bool:
        """Whether the outcome is in doubt; asked for writes only."""
        del operation
        return self._injector.strikes(Fault.STORAGE_IN_DOUBT, self._driver.protocol_state)

    def loses_writes(self, path: str) -> bool:
        """Whether a sync fails and loses its writes; never of the log of a table, which has no
        answer to that, and not in a store, whose sinks are not asked for one."""
        if path.startswith(TABLES_DIRECTORY) and path.split("/")[-2] == "log":
            return False
        if path.startswith("/stores"):
            return False
        return self._injector.strikes(Fault.SYNC_FAILED, self._driver.protocol_state)


class SimDriver:
    """Runs one job's machines in one process.

    ``on_end`` gets the way the job ended, or the error that ended the driver.
    """

    #: Whether a final checkpoint was queued after the last turn.
    final_waits = False

    def __init__(
        self,
        *,
        number: int,
        job: SimJob,
        code: Code,
        job_id: JobId,
        from_savepoint: str | None,
        loop: Loop,
        disk: Disk,
        injector: Injector,
        random: Random,
        on_effect: Callable[[SimDriver, object], None],
        on_turn: Callable[[SimDriver, object], None],
        on_end: Callable[[SimDriver, JobEnded | BaseException], None],
        broken: Callable[[str], None],
        liveness: Liveness,
        connect: Callable[[Kernel], FileSystem] | None = None,
    ) -> None:
        """``connect`` gives the object store; None: the job's records are on the disk."""
        self.liveness = liveness
        self.process = Process(f"d{number}")
        #: The executors of its queries, which may outlive it.
        self.executors = Process(f"executors of d{number}")
        self.job_id = job_id
        self.clock = SimClock(loop)
        self._loop = loop
        self._random = random
        self._on_turn = on_turn
        self._on_end = on_end
        self._delivered_us = 0
        self._alarm: int | None = None
        #: The machines have ended; the driver waits for work in progress.
        self._over = False
        self._left = False
        #: Final checkpoints that the driver has begun, until they are discarded.
        self.finals: set[int] = set()
        #: Commits in progress: (vertex, checkpoint).
        self._committing: set[tuple[str, int]] = set()
        self._workers = SimWorkers(loop, self.process, lambda: random.randrange(10, 300))
        self._on_effect = on_effect
        #: The first error of ``on_effect``.
        self._broken: Exception | None = None
        faults = _Faults(self, injector, random)
        fs = ProcessFileSystem(disk, loop, self.process, faults, links=job.links)
        executors = ProcessFileSystem(disk, loop, self.executors, faults, links=job.links)
        waits = SimWaits(loop, self.process)
        storage = self._storage(job, fs, waits, connect)
        #: As ``weir run``, it looks whether the object store can hold records.
        self._to_check = None if connect is None else storage
        strikes = {fault: partial(injector.strikes, fault, self.protocol_state) for fault in Fault}
        environment = Environment(
            number=number,
            job_id=job_id,
            loop=loop,
            process=self.process,
            fs=fs,
            executors=executors,
            waits=waits,
            clock=self.clock,
            random=random,
            strikes=strikes,
            hook_fails=lambda: (
                strikes[Fault.DECLINED]()
                or (self._records_are_over and strikes[Fault.END_HOOK_FAILED]())
            ),
            broken=broken,
        )
        loaded = code.load(environment)
        self._plans = loaded.plans
        self._listeners = loaded.listeners
        #: The checkpoint from which the last attempt resumed.
        self._restored: CompletedCheckpoint | None = None
        sinks = _sinks(loaded, waits, storage)
        self.durable = _durable(
            job,
            loaded,
            storage=storage,
            sinks=sinks,
            from_savepoint=from_savepoint,
            waits=waits,
            restored=self._resumes,
        )
        tasks = SimTaskPort(environment, job, loaded, storage=storage, sinks=sinks)
        self.master = _master(job, job_id, loaded)
        coordinators = CoordinatorRunner(loaded.coordinators, workers=self._workers, waits=waits)
        self.dispatcher = self._dispatcher(dict(loaded.plans), tasks, coordinators)

    def _storage(
        self,
        job: SimJob,
        fs: ProcessFileSystem,
        waits: SimWaits,
        connect: Callable[[Kernel], FileSystem] | None,
    ) -> CheckpointStorage:
        """The product's storage, over the disk or an object store."""
        kernel = Kernel(
            now_ms=self.clock.now_ms,
            wall_ms=self.clock.wall_ms,
            sleep=waits.sleep,
            chance=global_random.random,
            new_name=lambda: f"{self._random.getrandbits(64):016x}" * 2,
        )
        remote = None if connect is None else connect(kernel)

        def files(path: str) -> FileSystem:
            return fs if remote is None or is_local(path) else remote

        return CheckpointStorage(
            fs=files, base_directory=job.base_directory, job_id=self.job_id, kernel=kernel
        )

    def _resumes(self, checkpoint: CompletedCheckpoint) -> None:
        self._restored = checkpoint

    def unheard(self) -> list[VertexId]:
        """The vertices that ran to their end here, and whose listeners heard of no checkpoint."""
        before = () if self._restored is None else self._restored.tasks
        ended = {task.vertex for task in before if task.fully_finished}
        return [
            name
            for name, plan in self._plans.items()
            if plan.requires_final_checkpoint and name not in ended
            for one in self._listeners[name]
            if isinstance(one, OrderedListener) and not one.has_heard
        ]

    def _dispatcher(
        self, plans: dict[VertexId, TaskPlan], tasks: SimTaskPort, coordinators: CoordinatorRunner
    ) -> Dispatcher:
        """The product's dispatcher, between the machines and the simulated ports."""
        watchers = Watchers()
        watchers.watch_effects({object: self._effect})
        return Dispatcher(
            master=self.master,
            plans=plans,
            tasks=tasks,
            durable=self.durable,
            coordinators=coordinators,
            clock=self.clock,
            workers=self._workers,
            chance=self._random.random,
            mailbox=self.post,
            watchers=watchers,
            patience_ms=_PATIENCE_MS,
        )

    @property
    def _records_are_over(self) -> bool:
        """Whether only the job's final checkpoint is left to do."""
        over = (TaskStatus.WAITING_FOR_FINAL_CHECKPOINT, TaskStatus.FINISHED)
        return all(self.master.task_status(vertex) in over for vertex in self.dispatcher.tasks)

    @property
    def is_endless(self) -> bool:
        """Whether the records of a task end with a drain only."""
        return not all(plan.bounded for plan in self._plans.values())

    @property
    def is_live(self) -> bool:
        """Whether the driver runs or is paused: neither killed nor ended."""
        return self.process.alive and not self._left

    def start(self) -> None:
        """Submit the job."""
        if self._to_check is None:
            self.post(JobSubmitted())
        else:
            self._loop.spawn(self.process, partial(self._check, self._to_check))

    def _check(self, storage: CheckpointStorage) -> None:
        try:
            storage.check_writable()
            storage.make_job_directory()
        except UnsupportedEnvironmentError as error:
            self._finish(error)
        except StorageError as error:
            self._finish(JobEnded(status=JobStatus.FAILED, failure=str(error)))
        else:
            self.post(JobSubmitted())

    def post(self, envelope: Envelope) -> None:
        """Put into the mailbox: envelopes arrive in the order of posting, some time later."""
        match envelope:
            case ToTask(
                vertex=vertex,
                event=SinksCommitted(checkpoint_id=n) | SinkCommitFailed(checkpoint_id=n),
            ):
                self._committing.discard((vertex, n))
        arrival_us = max(self._delivered_us, self._loop.now_us + self._random.randrange(5, 200))
        self._delivered_us = arrival_us
        self._loop.at(arrival_us - self._loop.now_us, self.process, lambda: self._turn(envelope))

    def wake(self) -> None:
        """Check the deadlines after the clock jumped."""
        self._turn(None)

    def protocol_state(self) -> str:
        """The protocol state of the job in this driver, for the count of what struck when."""
        master = self.master
        if master.status is not JobStatus.RUNNING:
            return master.status.name
        states = {pending.state for pending in master.coordinator.pending}
        for state in (PendingState.FINALIZING, PendingState.WAITING, PendingState.TRIGGERING):
            if state in states:
                return state.name
        if master.coordinator.trigger.in_progress is not None:
            return "ALLOCATING"
        return "COMMITTING" if self._committing else "RUNNING"

    def _effect(self, effect: object) -> None:
        if isinstance(effect, CommitSinks):
            self._committing.add((effect.vertex, effect.checkpoint_id))
        try:
            self._on_effect(self, effect)
        except Exception as error:
            # The dispatcher would only log it.
            self._broken = self._broken or error

    def _turn(self, envelope: Envelope | None) -> None:
        if self._over:
            return
        try:
            deadline = self.dispatcher.turn(envelope)
            if self._broken is not None:
                raise self._broken
            self._on_turn(self, envelope)
        except Exception as error:
            self._finish(error)
            return
        if self.dispatcher.ended is not None:
            self._finish(self.dispatcher.ended)
            return
        self._set_alarm(deadline)

    def _set_alarm(self, deadline: int | None) -> None:
        if deadline is None or deadline == self._alarm:
            return
        self._alarm = deadline

        def ring() -> None:
            if self._alarm == deadline:
                self._alarm = None
                self._turn(None)

        self._loop.at(max(0, deadline - self.clock.now_ms()) * 1_000, self.process, ring)

    def _finish(self, how: JobEnded | BaseException) -> None:
        """As ``JobDriver.run``: stop everything, let work in progress end, and exit."""
        self._over = True

        def leave() -> None:
            self.dispatcher.stop()
            self._workers.close()
            self._left = True
            self._on_end(self, how)

        self._loop.spawn(self.process, leave)


def _master(job: SimJob, job_id: JobId, code: DriverCode) -> JobMaster:
    return JobMaster(
        job_id=job_id,
        vertices=operators_of(code.plans),
        config=job.config,
        restart=job.restart,
        savepoint_directory=job.savepoint_directory,
        hooks=tuple(sorted(hook.identifier for hook in code.hooks)),
        producers={name: plan.inputs for name, plan in code.plans.items()},
        coordinated=code.coordinated,
        until_idle=(
            UntilIdle() if any(plan.available_now for plan in code.plans.values()) else None
        ),
    )


def _sinks(
    code: DriverCode,
    waits: SimWaits,
    storage: CheckpointStorage,
) -> SinkPort:
    return SinkPort(
        sinks=code.sinks,
        job_name="sim",
        file_system=storage.fs,
        session=code.session,
        retries=CommitRetries(attempts=4, initial_backoff_ms=5, max_backoff_ms=50),
        waits=waits,
        kernel=storage.kernel,
        job_directory=storage.job_directory,
    )


def _durable(
    job: SimJob,
    code: DriverCode,
    *,
    storage: CheckpointStorage,
    sinks: SinkPort,
    from_savepoint: str | None,
    waits: SimWaits,
    restored: Callable[[CompletedCheckpoint], None],
) -> DurableJob:
    return DurableJob(
        storage=storage,
        sinks=sinks,
        hooks=MasterHooks(code.hooks, allow_non_restored_state=False, waits=waits),
        listeners=CheckpointListeners(code.listeners, waits),
        state_mapping=StateMapping(
            vertices=operators_of(code.plans),
            inputs={name: plan.inputs for name, plan in code.plans.items()},
            coordinated=frozenset(code.coordinators),
            allow_non_restored_state=False,
            assembler=NothingChanges(),
        ),
        settings=DurableSettings(
            job_name="sim",
            savepoint_directory=job.savepoint_directory,
            working_directory=_WORKING_DIRECTORY,
            from_savepoint=from_savepoint,
            accept_duplicates=False,
            claims_snapshot=job.claims_snapshot,
            num_retained=job.config.num_retained,
        ),
        waits=waits,
        note=lambda _: None,
        restored=restored,
    )
