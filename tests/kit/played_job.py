"""A whole job without Spark, on production code: only its one query is played.

The machines and their dispatcher run on threads, with the durable part, job log, snapshots, and the
sinks ``DeltaTable`` and ``Files``. The query's directory is written by hand, and a step stages two
rows that contain its position.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from tests.kit.durable_job import durable_job
from tests.kit.running_job import FakePort
from tests.kit.task_snapshots import FILES, FakeQuery, task_snapshots
from tests.kit.written_rows import stage_rows

from weir.coordinators.runner import CoordinatorRunner
from weir.core.job.master import JobMaster
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    ContinueSnapshot,
    DropSnapshot,
    PlanningCalled,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    SnapshotMetrics,
    TaskState,
)
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.gateway.running_job import RunningJob
from weir.kernel import MACHINE
from weir.runtime.concurrency import SystemClock, ThreadWaits, ThreadWorkers
from weir.runtime.failures import describe
from weir.runtime.ports import AttemptStart, PostToTask
from weir.sinks import DeltaTable, Files
from weir.sinks.base import Sink
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.snapshots import restore_directory
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer

JOB = "0" * 32
OPERATORS = (OperatorState(operator_id="v", name="v"),)

_tokens = itertools.count(1)
_calls = itertools.count(1)
#: Shortens every pause.
_KERNEL = replace(
    MACHINE,
    sleep=lambda seconds: time.sleep(min(seconds, 0.001)),
    new_name=lambda: f"{next(_tokens):016x}" * 2,
)


@dataclass
class PlayedQuery:
    """The query of one attempt; the test decides when it runs a batch."""

    post: PostToTask
    directory: FakeQuery
    snapshots: TaskSnapshots
    #: The newest planning call, and whether it was answered.
    call: int = 0
    answered: bool = False

    def ask(self) -> None:
        """Make a planning call."""
        self.answered = False
        self.call = next(_calls)
        position = self.directory.position
        self.post(PlanningCalled(call=self.call, position=position, outlives_call=False))


class PlayedTask(FakePort):
    """A task with a played query. Its snapshots are the ones of Spark's tasks."""

    def __init__(
        self, root: Path, storage: CheckpointStorage, sinks: dict[str, Sink], port: SinkPort
    ) -> None:
        super().__init__()
        self._root = root
        self._storage = storage
        self._sinks = sinks
        self._sink_port = port
        self._start: AttemptStart | None = None
        self._query: PlayedQuery | None = None
        #: The checkpoints whose barriers have come.
        self.reached: set[int] = set()

    @property
    def query(self) -> PlayedQuery:
        """The query of the newest attempt."""
        assert self._query is not None
        return self._query

    @property
    def may_step(self) -> bool:
        """Whether there is a query whose planning call was answered."""
        return self._query is not None and self._query.answered

    def prepare_attempt(self, start: AttemptStart) -> None:
        self._start, self.attempt = start, start.attempt
        super().prepare_attempt(start)

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        path = self._root / "work" / str(attempt) / "v"
        path.mkdir(parents=True)
        transfer = Transfer(lambda _: FILES)
        if restored is None:
            directory = FakeQuery(path)
        else:
            assert self._start is not None
            assert self._start.restored is not None
            directory = FakeQuery.__new__(FakeQuery)
            directory.path, directory.position = path, restored.position
            directory.directory = QueryDirectory(FILES, str(path))
            restore_directory(
                state=restored,
                checkpoint=self._start.restored,
                storage=self._storage,
                transfer=transfer,
                directory=directory.directory,
            )
        snapshots = task_snapshots(
            "v",
            directory.directory,
            self._storage,
            transfer,
            restored=restored,
            flush=self._sink_port.flush,
            clock=SystemClock(),
        )
        self._query = PlayedQuery(post, directory, snapshots)
        post(TaskStarted(position=directory.position))
        self._query.ask()

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        self.reached.add(effect.checkpoint_id)
        self.query.snapshots.take(effect)

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        return self.query.snapshots.proceed(effect.checkpoint_id)

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        self.query.snapshots.drop(effect.checkpoint_id)

    def checkpoint_completed(self, vertex: str, checkpoint_id: int) -> None:
        self.query.snapshots.confirm(checkpoint_id)

    def answer_planning(self, effect: AnswerPlanning) -> None:
        query = self.query
        query.answered = query.call == effect.call

    def play(self) -> None:
        """Run one batch, up to the next planning call; a sink that cannot stage fails the query."""
        query = self.query
        position = query.directory.step()
        try:
            staged = [
                Committable(
                    sink=name,
                    position=position,
                    payload=stage_rows(sink, position, self._root / "segments"),
                )
                for name, sink in self._sinks.items()
            ]
        except Exception as error:
            query.answered = False
            query.post(TaskErrored(message=describe(error)))
            return
        query.post(BatchStaged(position=position, committables=tuple(staged)))
        query.ask()


class PlayedDriver:
    """One driver of the job, started as ``weir run`` does."""

    def __init__(self, root: Path) -> None:
        self._savepoints = root / "disk" / "savepoints"
        self.storage = CheckpointStorage(
            fs=lambda _: FILES,
            base_directory=str(root / "disk" / "checkpoints"),
            job_id=JOB,
            kernel=_KERNEL,
        )
        self.storage.make_job_directory()
        sinks: dict[str, Sink] = {
            "delta": DeltaTable(str(root / "disk" / "delta")),
            "files": Files(str(root / "disk" / "files")),
        }
        port = SinkPort(
            sinks=sinks,
            job_name="orders",
            file_system=lambda _: FILES,
            retries=CommitRetries(attempts=3, initial_backoff_ms=1, max_backoff_ms=1),
            waits=ThreadWaits(),
        )
        self.notes: list[str] = []
        self.durable = durable_job(
            self.storage,
            {"v": OPERATORS},
            port,
            note=self.notes.append,
            savepoint_directory=str(self._savepoints),
            working_directory=str(root / "work"),
            num_retained=2,
        )
        self.task = PlayedTask(root, self.storage, sinks, port)
        plans = {
            "v": TaskPlan(
                vertex="v",
                operators=OPERATORS,
                sinks=tuple(sinks),
                bounded=False,
                requires_final_checkpoint=True,
            )
        }
        self.job = RunningJob(
            job_id=JOB,
            name="orders",
            master=JobMaster(
                job_id=JOB,
                vertices={"v": OPERATORS},
                config=CheckpointConfig(
                    interval_ms=None, tolerable_failed_checkpoints=1000, num_retained=2
                ),
                restart=RestartConfig(
                    type=RestartStrategyType.FIXED_DELAY,
                    fixed_delay_attempts=1_000_000,
                    fixed_delay_ms=5,
                ),
                savepoint_directory=str(self._savepoints),
            ),
            plans=plans,
            tasks=self.task,
            durable=self.durable,
            coordinators=CoordinatorRunner({}, workers=ThreadWorkers(), waits=ThreadWaits()),
            clock=SystemClock(),
            patience_ms=60_000,
            configuration={},
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PlayedDriver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.job.suspend()
        self._thread.join()
        assert self.error is None, f"a bug: {self.error!r}"

    @property
    def commits(self) -> int:
        """How many commits the task's machine has confirmed."""
        return self.job.recorder.timelines["v"].commits

    @property
    def has_ended(self) -> bool:
        """Whether the driver has ended by itself."""
        return not self._thread.is_alive()

    def step(self, patience_s: float = math.inf) -> bool:
        """Let the query run a batch within that time; returns whether it did."""
        deadline = time.monotonic() + patience_s
        while not self.has_ended and time.monotonic() < deadline:
            if self.job.view().status is JobStatus.RUNNING and self.task.may_step:
                self.task.play()
                return True
            time.sleep(0.002)
        return False

    def complete(self, future: Future[CompletedCheckpoint]) -> CompletedCheckpoint | str:
        """Run batches until a snapshot completes with its commits, or return why it failed."""
        commits = self.commits
        next_step = 0.0
        while not future.done():
            if time.monotonic() >= next_step and self._awaits_barrier():
                self.step(0.05)
                next_step = time.monotonic() + 0.1
            time.sleep(0.002)
        error = future.exception()
        if error is not None:
            return str(error)
        completed = future.result()
        attempt = self.task.attempt
        while completed.kind.commits_side_effects and self.commits == commits:
            if (
                self.has_ended
                or self.task.attempt != attempt
                or self.job.view().status is not JobStatus.RUNNING
            ):
                break
            time.sleep(0.002)
        return completed

    def _awaits_barrier(self) -> bool:
        """Whether a checkpoint waits for the planning call after a batch."""
        return any(
            known.status == "IN_PROGRESS" and known.checkpoint_id not in self.task.reached
            for known in self.job.view().checkpoints.history
        )

    def _run(self) -> None:
        try:
            self.job.driver.run()
        except BaseException as error:
            self.error = error
        finally:
            self.job.finish()
