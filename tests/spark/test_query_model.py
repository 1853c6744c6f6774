"""The simulator's query model and real Spark must produce the same trace of one script.

The script plays the job master around one production ``StreamTask``: it triggers checkpoints at
given positions, lets a step of the first attempt fail, and starts the next attempt from the newest
checkpoint. What the query posts and what the machine asks for, in order, is the trace. It contains
no times and no sizes, and a planning call at the position of the last call counts once: how often a
query that has nothing to do asks is no part of the protocol.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.kit.changes import changes_of
from tests.kit.rig import Collected, Landing

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointComplete,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.messages.task import (
    AnswerPlanning,
    AsyncPartDone,
    BatchStaged,
    CloseOperators,
    CommitSinks,
    ContinueSnapshot,
    Drained,
    OperatorsClosed,
    PlanningCalled,
    RecordsEnded,
    ReportCompleted,
    SinksCommitted,
    StartDrain,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.settings import CheckpointConfig, RestartConfig
from weir.core.task.output_channels import DEFAULT_BOUND
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import (
    CompletedCheckpoint,
    OperatorState,
    SnapshotKind,
    TaskState,
    TaskStatus,
)
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.job import Job, definition_of
from weir.runtime.concurrency import SystemClock, ThreadWaits
from weir.runtime.ports import AttemptStart, TaskPort
from weir.sim.engine.auditor import Auditor
from weir.sim.engine.code import DriverCode, Environment
from weir.sim.engine.disk import Disk, ProcessFileSystem
from weir.sim.engine.faults import Fault
from weir.sim.engine.job import SimJob, SimVertex
from weir.sim.engine.loop import Loop, Process, SimEvent, SimWaits
from weir.sim.engine.table import SimTable
from weir.sim.engine.task_port import SimTaskPort
from weir.sim.own.code import CountedRows
from weir.sim.own.marks import Marks
from weir.sim.own.queries import SimQueries
from weir.sinks.base import Batch, Sink
from weir.spark.kafka.inputs import KafkaInputs
from weir.spark.pipeline import Pipeline
from weir.spark.query.task_port import SparkTaskPort
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

JOB = "0" * 32
STEPS = 4
#: Checkpoints to trigger when the query asks at a position, in the first and in the second attempt.
SCRIPT: tuple[Mapping[int, int], ...] = ({0: 1, 1: 2}, {2: 3})
#: The step that fails in the first attempt.
FAILS_AT = 3


class Script:
    """Plays the job master for one task over a task port."""

    def __init__(self, port: TaskPort, plan: TaskPlan, storage: CheckpointStorage) -> None:
        self.trace: list[str] = []
        self._port = port
        self._plan = plan
        self._storage = storage
        self._newest: tuple[int, TaskState] | None = None

    def attempt(
        self, number: int, post: Callable[[Any], None], take: Callable[[], Any]
    ) -> TaskStatus:
        """Run one attempt to its end; ``take`` waits for the next event given to ``post``."""
        self._tell(f"attempt {number}")
        restored = self._restored()
        task = StreamTask(self._plan, attempt=number)
        self._port.prepare_attempt(
            AttemptStart(
                attempt=number,
                restored=restored,
                states={} if restored is None else restored.states,
            )
        )
        state = restored.task("v") if restored else None
        self._port.start_task(self._plan, number, state, post)
        triggers = dict(SCRIPT[number - 1])
        while task.status not in (TaskStatus.FINISHED, TaskStatus.FAILED):
            event = take()
            self._hear(event)
            if isinstance(event, PlanningCalled) and event.position in triggers:
                self._do(task, self._trigger(triggers.pop(event.position)))
            self._do(task, event)
            if task.status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT and 99 not in triggers:
                triggers[99] = 99
                self._do(task, self._trigger(99))
        self._port.stop_tasks()
        return task.status

    def _do(self, task: StreamTask, event: Any) -> None:
        for effect in task.handle(event, 0):
            for following in self._carry_out(effect):
                self._do(task, following)

    def _carry_out(self, effect: Any) -> list[Any]:
        match effect:
            case AnswerPlanning():
                self._port.answer_planning(effect)
            case TakeSnapshot(checkpoint_id=n, position=position, finished=finished):
                self._tell(f"snapshot {n} at {position}{', finished' if finished else ''}")
                self._port.take_snapshot(effect)
                return [SyncPartDone(checkpoint_id=n)]
            case ContinueSnapshot(checkpoint_id=n):
                state, metrics = self._port.continue_snapshot(effect)
                return [AsyncPartDone(checkpoint_id=n, state=state, metrics=metrics)]
            case AcknowledgeCheckpoint(checkpoint_id=n, state=state):
                self._newest = (n, state)
                return [NotifyCheckpointComplete(vertex="v", checkpoint_id=n)]
            case ReportCompleted(checkpoint_id=n):
                self._port.checkpoint_completed("v", n)
            case CommitSinks(checkpoint_id=n, payloads=payloads):
                self._tell(f"commit {n}: {sum(len(staged) for staged in payloads.values()) > 0}")
                return [SinksCommitted(checkpoint_id=n)]
            case CloseOperators():
                self._port.close_operators(effect.vertex)
                return [OperatorsClosed()]
            case StartDrain(position=position):
                self._tell(f"drain after {position}")
                self._port.drain(effect)
            case TaskStatusChanged(status=status):
                self._tell(status.name)
        return []

    def _hear(self, event: Any) -> None:
        match event:
            case TaskStarted(position=position):
                self._tell(f"started at {position}")
            case PlanningCalled(position=position):
                self._tell(f"plans after {position}")
            case BatchStaged(position=position):
                self._tell(f"staged {position}")
            case RecordsEnded(position=position):
                self._tell(f"records ended after {position}")
            case Drained(position=position):
                self._tell(f"drained at {position}")
            case TaskErrored():
                self._tell("errored")

    def _tell(self, what: str) -> None:
        if not (what.startswith("plans") and self.trace and self.trace[-1] == what):
            self.trace.append(what)

    def _trigger(self, checkpoint_id: int) -> TriggerCheckpoint:
        barrier = CheckpointBarrier(
            checkpoint_id=checkpoint_id, kind=SnapshotKind.CHECKPOINT, timestamp_ms=0
        )
        return TriggerCheckpoint(vertex="v", barrier=barrier)

    def _restored(self) -> CompletedCheckpoint | None:
        if self._newest is None:
            return None
        checkpoint_id, state = self._newest
        return CompletedCheckpoint(
            job_id=JOB,
            checkpoint_id=checkpoint_id,
            kind=SnapshotKind.CHECKPOINT,
            timestamp_ms=0,
            completion_timestamp_ms=0,
            attempt=1,
            tasks=(state,),
            external_path=self._storage.checkpoint_directory(checkpoint_id),
        )


class FailsOnce(Collected):
    """Fails one step in the first attempt; holds rows back until the end, like the model's."""

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def stage(self, frame: DataFrame, batch: Batch) -> Any:
        if batch.batch_id == FAILS_AT and not self._failed:
            self._failed = True
            raise RuntimeError("as the script says")
        return super().stage(frame, batch)

    def finish(self, batch: Batch) -> Any:
        return {"position": batch.batch_id}


def task_plan(*sinks: str) -> TaskPlan:
    """The plan of the only vertex."""
    return TaskPlan(
        vertex="v",
        operators=(OperatorState(operator_id="v", name="v"),),
        sinks=sinks,
        bounded=True,
        requires_final_checkpoint=True,
    )


def sink_port(sinks: Mapping[str, Sink], file_system: Any, waits: Any) -> SinkPort:
    """All sinks of the job, opened."""
    retries = CommitRetries(attempts=1, initial_backoff_ms=1, max_backoff_ms=1)
    made = SinkPort(
        sinks=sinks,
        job_name="model",
        file_system=lambda _: file_system,
        retries=retries,
        waits=waits,
    )
    made.open(JOB, 1)
    return made


def trace_of_spark(session: SparkSession, directory: Path) -> list[str]:
    """Run the script on real Spark."""
    landing = Landing(directory / "in")
    landing.land(STEPS)
    job = Job("model")
    sink = FailsOnce()
    # With state, so that there is something to drain; without a watermark, so that no batch runs
    # without data.
    numbers = job.source("numbers", landing.source, bounded=True)
    numbers.transform("v", lambda df: df.dropDuplicates(["id"])).sink("out", sink)
    (vertex,) = definition_of(job).vertices()
    fs = LocalFileSystem()
    storage = CheckpointStorage(fs=lambda _: fs, base_directory=str(directory / "cp"), job_id=JOB)
    storage.make_job_directory()
    port = SparkTaskPort(
        session=session,
        pipeline=Pipeline(
            vertices={"v": vertex},
            functions=definition_of(job).functions,
            sinks={"out": sink},
        ),
        storage=storage,
        sinks=sink_port({"out": sink}, fs, ThreadWaits()),
        working_directory=str(directory / "work"),
        clock=SystemClock(),
        changes=changes_of(job),
        kafka=KafkaInputs(session, accepted=frozenset(), group=None, note=print),
    )
    script = Script(port, task_plan("out"), storage)
    try:
        for number in (1, 2):
            events: queue.SimpleQueue[Any] = queue.SimpleQueue()
            script.attempt(number, events.put, lambda events=events: events.get())
    finally:
        port.stop_tasks()
        port.close()
    return script.trace


class NoFaults:
    """A disk without faults."""

    def delay_us(self) -> int:
        return 10

    def fails_before(self, operation: str) -> bool:
        return False

    def fails_after(self, operation: str) -> bool:
        return False

    def loses_writes(self, path: str) -> bool:
        return False


def trace_of_model(seed: int) -> list[str]:
    """Run the script on the simulator's model; the seed decides all delays.

    It also decides the order in which sources are asked.
    """
    loop, process = Loop(), Process("d1")
    vertex = SimVertex(name="v", records=STEPS, batch=1, pace_us=1, rests_for_snapshots=True)
    auditor = Auditor(
        base_directory="/cp",
        laws=CountedRows([vertex]),
        max_concurrent=1,
        min_pause_ms=0,
        claims=False,
    )
    disk = auditor.disk = Disk(auditor)
    disk.make_directory(f"/cp/{JOB}")
    fs = ProcessFileSystem(disk, loop, process, NoFaults(), links=True)
    storage = CheckpointStorage(fs=lambda _: fs, base_directory="/cp", job_id=JOB)
    tables = {name: SimTable(f"/tables/{name}", fs) for name in vertex.sinks}
    staged: list[int] = []
    random = Random(seed)
    script: list[Script] = []

    def fails() -> bool:
        """Fail once, in the step that the script names."""
        done = sum(line.startswith("staged") for line in script[0].trace)
        if done == FAILS_AT and not staged:
            staged.append(done)
            return True
        return False

    waits = SimWaits(loop, process)
    strikes: dict[Fault, Callable[[], bool]] = dict.fromkeys(Fault, lambda: False)
    port = SimTaskPort(
        Environment(
            number=1,
            job_id=JOB,
            loop=loop,
            process=process,
            fs=fs,
            executors=fs,
            waits=waits,
            clock=SystemClock(),
            random=random,
            strikes=strikes | {Fault.TASK_FAILED: fails},
            hook_fails=lambda: False,
            broken=auditor.broken,
        ),
        SimJob(
            vertices=[vertex],
            config=CheckpointConfig(),
            restart=RestartConfig(),
            links=True,
            upload_us=1,
            hooks=(),
            claims_snapshot=False,
            bound=DEFAULT_BOUND,
            reader_us=0,
            partitions=(2,),
            commit_intervals_ms={},
        ),
        DriverCode(
            plans={vertex.name: task_plan(*vertex.sinks)},
            sinks=tables,
            hooks=(),
            listeners={},
            coordinators={},
            coordinated={},
            queries=SimQueries([vertex], {"v": Marks(random)}, None),
        ),
        storage=storage,
        sinks=sink_port(tables, fs, waits),
    )
    script.append(Script(port, task_plan(*vertex.sinks), storage))

    def play() -> None:
        for number in (1, 2):
            events: list[Any] = []
            come = SimEvent(loop, process)

            def post(event: Any, events: list[Any] = events, come: SimEvent = come) -> None:
                events.append(event)
                come.set()

            def take(events: list[Any] = events, come: SimEvent = come) -> Any:
                while not events:
                    come.clear()
                    come.wait()
                return events.pop(0)

            script[0].attempt(number, post, take)

    played = loop.spawn(process, play)
    assert loop.run(played.done, 60_000_000)
    return script[0].trace


def test_the_model_of_a_query_and_real_spark_tell_the_same_story(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Checkpoints, a failing step, a restore, the end of the input and the drain, in the same
    order."""
    expected = trace_of_spark(spark, tmp_path)
    for seed in range(20):
        assert trace_of_model(seed) == expected
    assert expected.count("errored") == 1
    assert expected[-1] == "FINISHED"
    assert f"started at {max(SCRIPT[0])}" in expected
