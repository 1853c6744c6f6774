"""A job without Spark: a port whose tasks the test drives, in a running job on real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any
from unittest.mock import patch

from tests.kit.waiting import wait_until

from weir.coordinators import OperatorCoordinator
from weir.coordinators.runner import CoordinatorRunner
from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.job.master import JobMaster
from weir.core.messages.channel import ReleaseSegments
from weir.core.messages.job import (
    AllocateLocation,
    CheckpointRecorded,
    DiscardCheckpoint,
    JobEnded,
    RecordCheckpoint,
    RecordEnd,
    TriggerHook,
)
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    CommitSinks,
    ContinueSnapshot,
    Drained,
    DropSnapshot,
    PlanningCalled,
    ReportAborted,
    StartDrain,
    TakeSnapshot,
    TaskStarted,
)
from weir.core.settings import CheckpointConfig, RestartConfig, RestartStrategyType
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Payload,
    Recorded,
    SnapshotMetrics,
    TaskState,
)
from weir.gateway import live_view
from weir.gateway.running_job import RunningJob
from weir.monitoring.views import JobView
from weir.runtime.concurrency import Clock, SystemClock, ThreadWaits, ThreadWorkers
from weir.runtime.ports import AttemptStart, PostToTask, SubtaskView, VertexMetrics

JOB_ID = "0" * 32


def plan(vertex: str, *, bounded: bool = False) -> TaskPlan:
    """A vertex with one operator and one sink."""
    return TaskPlan(
        vertex=vertex,
        operators=(OperatorState(operator_id=vertex, name=vertex),),
        sinks=(f"{vertex}-sink",),
        bounded=bounded,
        requires_final_checkpoint=True,
    )


def job_master(
    plans: Mapping[str, TaskPlan],
    *,
    hooks: tuple[str, ...] = (),
    coordinated: Mapping[str, CoordinatedOperator] = MappingProxyType({}),
    **checkpointing: Any,
) -> JobMaster:
    """The master of a job of these vertices: two restarts, and by default no interval."""
    return JobMaster(
        job_id=JOB_ID,
        vertices={vertex: made.operators for vertex, made in plans.items()},
        config=CheckpointConfig(**{"interval_ms": None, **checkpointing}),
        restart=RestartConfig(
            type=RestartStrategyType.FIXED_DELAY, fixed_delay_attempts=2, fixed_delay_ms=1
        ),
        savepoint_directory=None,
        hooks=hooks,
        coordinated=coordinated,
    )


class FakePort:
    """Records every call, can block or fail calls, and plays the queries."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        #: Raised by the next calls with these names.
        self.errors: dict[str, Sequence[BaseException]] = {}
        #: Calls with these names wait for their event.
        self.gates: dict[str, threading.Event] = {}
        #: How many calls wait so now.
        self.held = 0
        self.posts: dict[tuple[str, int], PostToTask] = {}
        self.restored: CompletedCheckpoint | None = None
        self.attempt = 0
        self.effects: list[Any] = []
        self.threads: dict[str, int] = {}
        self._changed = threading.Condition()
        self._planning_calls = 0
        self._checkpoints = 0
        self._taken: dict[tuple[str, int], TakeSnapshot] = {}

    # -- for the test ------------------------------------------------------------------------------

    def wait_for(self, call: str, times: int = 1) -> None:
        """Wait until this many such calls were made."""
        self.wait_until(lambda: self.calls.count(call) >= times)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that only calls of the port change."""
        with self._changed:
            self._changed.wait_for(condition)

    def seen_within(self, call: str, times: int, seconds: float) -> bool:
        """Whether such a call is made this many times within a short time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.calls.count(call) >= times, seconds)

    def step(self, vertex: str, position: int) -> None:
        """Run a step of the newest attempt's task, up to its next planning call."""
        post = self.posts[vertex, self.attempt]
        item = Committable(sink=f"{vertex}-sink", position=position, payload={"step": position})
        post(BatchStaged(position=position, committables=(item,)))
        self.plan(vertex, position)

    def plan(self, vertex: str, position: int, consumed: dict[str, int] | None = None) -> None:
        """Make a planning call of the newest attempt's task."""
        self._planning_calls += 1
        call = PlanningCalled(call=self._planning_calls, position=position, consumed=consumed or {})
        self.posts[vertex, self.attempt](call)

    # -- the port ----------------------------------------------------------------------------------

    def begin_attempt(self) -> AttemptStart:
        self._called("begin_attempt")
        self.attempt += 1
        return AttemptStart(
            attempt=self.attempt,
            restored=self.restored,
            states={} if self.restored is None else self.restored.states,
        )

    def prepare_attempt(self, start: AttemptStart) -> None:
        self._called(f"prepare_attempt {start.attempt}")

    def resume(self) -> None:
        self._called("resume")

    def stop(self) -> None:
        self._called("stop")

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        self._called(f"start_task {plan.vertex}")
        position = -1 if restored is None else restored.position
        self.posts[plan.vertex, attempt] = post
        post(TaskStarted(position=position))
        self.plan(plan.vertex, position)
        self._called(f"started {plan.vertex}")

    def stop_tasks(self) -> None:
        self._called("stop_tasks")

    def answer_planning(self, effect: AnswerPlanning) -> None:
        self._called(f"answer_planning {effect.call}")

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        self._called(f"take_snapshot {effect.checkpoint_id}", effect)
        self._taken[effect.vertex, effect.checkpoint_id] = effect
        self._called(f"taken {effect.checkpoint_id}")

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        self._called(f"continue_snapshot {effect.checkpoint_id}", effect)
        taken = self._taken[effect.vertex, effect.checkpoint_id]
        state = TaskState(
            vertex=effect.vertex,
            position=taken.position,
            operators=(
                OperatorState(
                    operator_id=effect.vertex, name=effect.vertex, fully_finished=taken.finished
                ),
            ),
            committables=taken.committables,
            in_flight=taken.in_flight,
        )
        return state, SnapshotMetrics()

    def release_segments(self, effect: ReleaseSegments) -> None:
        self._called(f"release_segments {effect.position}", effect)

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        self._called(f"drop_snapshot {effect.checkpoint_id}", effect)

    def checkpoint_completed(self, vertex: str, checkpoint_id: int) -> None:
        self._called(f"checkpoint_completed {checkpoint_id}")

    def checkpoint_aborted(self, vertex: str, checkpoint_id: int) -> None:
        self._called(f"checkpoint_aborted {checkpoint_id}")

    def drain(self, effect: StartDrain) -> None:
        self._called(f"drain {effect.position}", effect)
        self.posts[effect.vertex, self.attempt](Drained(position=effect.position))

    def close_operators(self, vertex: str) -> None:
        self._called(f"close_operators {vertex}")

    def commit_sinks(self, effect: CommitSinks) -> None:
        self._called(f"commit_sinks {effect.checkpoint_id}", effect)

    def report_aborted(self, effect: ReportAborted) -> None:
        self._called(f"report_aborted {effect.checkpoint_id}", effect)

    def allocate(self, effect: AllocateLocation) -> tuple[int, str | None]:
        self._called("allocate", effect)
        self._checkpoints += 1
        return self._checkpoints, f"{effect.target}/savepoint" if effect.kind.is_savepoint else None

    def record_checkpoint(self, effect: RecordCheckpoint) -> CheckpointRecorded:
        self._called(f"record_checkpoint {effect.checkpoint_id}", effect)
        checkpoint = CompletedCheckpoint(
            job_id=JOB_ID,
            checkpoint_id=effect.checkpoint_id,
            kind=effect.kind,
            timestamp_ms=effect.timestamp_ms,
            completion_timestamp_ms=effect.timestamp_ms,
            attempt=effect.attempt,
            tasks=effect.tasks,
            external_path=effect.target or f"/chk-{effect.checkpoint_id}",
        )
        return CheckpointRecorded(
            checkpoint_id=effect.checkpoint_id, outcome=Recorded.WON, checkpoint=checkpoint
        )

    def trigger_hook(self, effect: TriggerHook) -> Payload | None:
        self._called(f"trigger_hook {effect.identifier}", effect)
        return None

    def discard(self, effect: DiscardCheckpoint) -> None:
        self._called(f"discard {effect.checkpoint_id}", effect)

    def record_end(self, effect: RecordEnd) -> Recorded:
        self._called(f"record_end {effect.status.name}", effect)
        return Recorded.WON

    def metrics(self, vertex: str) -> VertexMetrics:
        self._raise("metrics")
        return VertexMetrics(position=7, records_in=70, pending_records=5)

    def subtasks(self, vertex: str) -> tuple[SubtaskView, ...]:
        return (
            SubtaskView(
                stage=1, index=0, host="h", status="SUCCESS", duration_ms=5, rows=7, size=9
            ),
        )

    def _called(self, call: str, effect: Any = None) -> None:
        name = call.split(" ", maxsplit=1)[0]
        with self._changed:
            self.calls.append(call)
            self.threads[name] = threading.get_ident()
            if effect is not None:
                self.effects.append(effect)
            self._changed.notify_all()
        gate = self.gates.get(name)
        if gate is not None:
            with self._changed:
                self.held += 1
            gate.wait()
            with self._changed:
                self.held -= 1
        self._raise(name)

    def _raise(self, name: str) -> None:
        errors = self.errors.get(name)
        if errors:
            self.errors[name] = errors[1:]
            raise errors[0]


class RunningWorld:
    """A running job over a ``FakePort``, with its driver on a separate thread."""

    def __init__(
        self,
        *vertices: str,
        bounded: bool = False,
        hooks: tuple[str, ...] = (),
        coordinators: Mapping[str, OperatorCoordinator] = MappingProxyType({}),
        patience_ms: int = 300_000,
        clock: Clock | None = None,
        **checkpointing: Any,
    ) -> None:
        """``coordinators`` by vertex; their operators have one subtask."""
        self.port = FakePort()
        self.observed: list[object] = []
        plans = {vertex: plan(vertex, bounded=bounded) for vertex in vertices or ("v",)}
        self.job = RunningJob(
            job_id=JOB_ID,
            name="orders",
            master=job_master(
                plans,
                hooks=hooks,
                coordinated={
                    name: CoordinatedOperator(vertex=name, parallelism=1) for name in coordinators
                },
                **checkpointing,
            ),
            plans=plans,
            tasks=self.port,
            durable=self.port,
            coordinators=CoordinatorRunner(
                coordinators, workers=ThreadWorkers(), waits=ThreadWaits()
            ),
            clock=SystemClock() if clock is None else clock,
            configuration={"parallelism.default": "2"},
            patience_ms=patience_ms,
        )
        self.job.driver.watchers.watch_effects({object: self.observed.append})
        self.ended: JobEnded | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> RunningWorld:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for gate in self.port.gates.values():
            gate.set()
        self.job.suspend()
        self._thread.join()

    def wait_running(self, answers: int = 1) -> None:
        """Wait until every task has started its first step."""

        def answered() -> bool:
            return sum(call.startswith("answer_planning") for call in self.port.calls) >= answers

        self.port.wait_until(answered)

    def wait_for_status(self, status: JobStatus) -> None:
        """Wait until the job's view shows the status."""
        self.wait_until(lambda: self.job.view().status is status)

    def wait_in_progress(self, checkpoints: int = 1) -> None:
        """Wait until this many checkpoints are triggered at the tasks."""
        self.wait_until(lambda: self.job.view().checkpoints.counts.in_progress == checkpoints)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that only a view shows."""
        wait_until(condition, "what a view shows")

    def look(self) -> JobView:
        """A view of now, however long the main thread and the counters take."""
        at_once = {"_FRESH_MS": 0, "_SERVE_MS": 0, "_PATIENCE_S": None}
        with patch.multiple(live_view, **at_once):
            return self.job.view()

    def join(self) -> JobEnded:
        """Wait for the end of the job and return its outcome."""
        self._thread.join()
        assert self.ended is not None, self.error
        return self.ended

    def join_error(self) -> BaseException:
        """Wait for the end of ``run`` and return its error."""
        self._thread.join()
        assert self.error is not None
        return self.error

    def _run(self) -> None:
        try:
            self.ended = self.job.driver.run()
        except BaseException as error:
            self.error = error
        finally:
            self.job.finish()
