"""The dispatcher without threads: the order of effects, and an answer for each that blocks.

Blocking work runs when the test says so, one piece at a time, so that anything can happen in
between.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.kit.clock import ManualClock
from tests.kit.running_job import FakePort, job_master, plan

from weir.core.job.master import JobMaster
from weir.core.messages.channel import (
    Admission,
    CheckpointBarrier,
    ReleaseSegments,
    Segment,
    SegmentsConsumed,
)
from weir.core.messages.job import (
    AnswerRequest,
    BeginAttempt,
    CancelRequested,
    JobMasterEffect,
    JobMasterEvent,
    JobSubmitted,
    RequestKind,
    SnapshotRequested,
)
from weir.core.messages.protocol import (
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    TaskFailed,
    TriggerCheckpoint,
)
from weir.core.messages.task import (
    AnswerPlanning,
    CloseOperators,
    CommitSinks,
    ReportAborted,
    StartDrain,
    StreamTaskEvent,
    TaskErrored,
    TaskWork,
)
from weir.core.status import JobStatus
from weir.core.task.stream_task import StreamTask
from weir.core.types import (
    CompletedCheckpoint,
    InFlightSegment,
    OperatorState,
    SnapshotKind,
    TaskState,
)
from weir.errors import PipelineError
from weir.runtime.dispatcher import Dispatcher, Envelope
from weir.runtime.failures import cause_of
from weir.runtime.task_work import begin_task_work
from weir.runtime.watching import Watchers

START_TASK = "StartTask"


class Work:
    """A piece of blocking work, named after the effect that it carries out."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.name = START_TASK
        self._over = False

    def done(self) -> bool:
        return self._over

    def run(self) -> None:
        """Run it unless it has ended. Like a pool, keep what the work raises to itself."""
        if not self._over:
            self._over = True
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._work()


class Coordinators:
    """A port that only counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def submit(self, effect: object, post: object) -> None:
        raise AssertionError(f"no operator has a coordinator: {effect}")

    def request(self, operator: str, request: object, answer: object) -> None:
        raise AssertionError(f"no request is expected: {operator}")

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A dispatcher over a ``FakePort``; its clock stands still until a deadline is requested."""

    def __init__(
        self,
        *vertices: str,
        master: JobMaster | None = None,
        inputs: Mapping[str, tuple[str, ...]] | None = None,
        **how: Any,
    ) -> None:
        plans = {
            vertex: replace(plan(vertex), inputs=(inputs or {}).get(vertex, ()))
            for vertex in vertices
        }
        self.port = FakePort()
        self.master = master or job_master(plans, **how)
        self.effects: list[object] = []
        self.coordinators = Coordinators()
        self.aside: list[Work] = []
        self._clock = ManualClock(0)
        self._works: list[Work] = []
        self._unnamed: list[Work] = []
        self._mail: deque[Envelope] = deque()
        watchers = Watchers()
        watchers.watch_effects({object: self._seen})
        self.dispatcher = Dispatcher(
            master=self.master,
            plans=plans,
            tasks=self.port,
            durable=self.port,
            coordinators=self.coordinators,
            clock=self._clock,
            workers=self,
            chance=lambda: 0.5,
            mailbox=self._mail.append,
            watchers=watchers,
            patience_ms=1_000,
        )

    # -- for the test ------------------------------------------------------------------------------

    def post(self, event: JobMasterEvent) -> None:
        """Post something to the job master and handle all that follows except blocking work."""
        self._mail.append(event)
        self.deliver()

    def deliver(self) -> None:
        """Handle everything in the mailbox without running work."""
        while self._mail:
            self.dispatcher.turn(self._mail.popleft())
            self._unnamed.clear()

    def settle(self, *, holding: Collection[str] = ()) -> None:
        """Run until only work with these names is left."""
        self.deliver()
        while work := next((work for work in self._works if work.name not in holding), None):
            self._works.remove(work)
            work.run()
            self.deliver()

    def pass_time(self) -> None:
        """Advance to the next deadline and handle all that follows."""
        deadline = self.dispatcher.next_deadline()
        assert deadline is not None
        self._clock.ms = deadline
        self.dispatcher.turn()
        self.settle()

    def run(self) -> Bench:
        """Bring the job to RUNNING."""
        self.post(JobSubmitted())
        self.settle()
        assert self.master.status is JobStatus.RUNNING
        return self

    def checkpoint(self, request: str = "r", *, holding: Collection[str] = ()) -> None:
        """Request a checkpoint as a user; every task takes part with its next step."""
        self.post(SnapshotRequested(request=request, kind=RequestKind.CHECKPOINT))
        self.settle(holding=holding)
        for vertex in self.dispatcher.tasks:
            self.port.step(vertex, len(self.effects))
            self.settle(holding=holding)

    def answer(self, request: str = "r") -> AnswerRequest:
        """The only answer to a request."""
        answers = [
            effect
            for effect in self.effects
            if isinstance(effect, AnswerRequest) and effect.request == request
        ]
        (answer,) = answers
        return answer

    # -- workers -----------------------------------------------------------------------------------

    def submit(self, work: Callable[[], None]) -> Work:
        made = Work(work)
        self._works.append(made)
        self._unnamed.append(made)
        return made

    def submit_aside(self, work: Callable[[], None]) -> None:
        made = Work(work)
        self.aside.append(made)

    def wait(self, works: Sequence[Work], timeout_s: float) -> bool:
        """End the work in progress now."""
        for work in works:
            work.run()
        return True

    def _seen(self, effect: object) -> None:
        self.effects.append(effect)
        for work in self._unnamed:
            work.name = type(effect).__name__
        self._unnamed.clear()


# -- order -----------------------------------------------------------------------------------------


class DecliningMaster:
    """Triggers checkpoint 1 at both tasks and aborts it at both as soon as one declines."""

    status = JobStatus.RUNNING

    def next_deadline(self) -> int | None:
        return None

    def handle(self, event: object, now_ms: int) -> list[JobMasterEffect]:
        match event:
            case JobSubmitted():
                return [BeginAttempt()]
            case SnapshotRequested():
                return [self._trigger("a"), self._trigger("b")]
            case DeclineCheckpoint(checkpoint_id=n):
                return [NotifyCheckpointAborted(vertex=vertex, checkpoint_id=n) for vertex in "ab"]
        return []

    def _trigger(self, vertex: str) -> TriggerCheckpoint:
        return TriggerCheckpoint(
            vertex=vertex,
            barrier=CheckpointBarrier(
                checkpoint_id=1, kind=SnapshotKind.CHECKPOINT, timestamp_ms=0
            ),
        )


def test_a_task_is_woken_at_the_time_that_it_names_and_no_other_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A barrier that is waiting for its timeout overtakes then, although no event arrives."""
    bench = Bench("a", "b").run()
    woken: list[tuple[str, int]] = []
    named = {"a": 900, "b": 700}
    monkeypatch.setattr(StreamTask, "next_deadline", lambda self: named.get(self._vertex))
    monkeypatch.setattr(
        StreamTask, "on_deadline", lambda self, now_ms: woken.append((self._vertex, now_ms)) or []
    )
    assert bench.dispatcher.next_deadline() == 700
    bench.pass_time()
    assert woken == [("b", 700)]


def test_of_two_messages_to_one_task_the_first_that_was_sent_arrives_first() -> None:
    """A task that declines within its trigger aborts the checkpoint, but only after all were
    triggered (C6)."""
    bench = Bench("a", "b", master=cast(JobMaster, DecliningMaster()))
    bench.port.errors["start_task"] = [PipelineError("It does not start.")]
    bench.run()
    bench.post(SnapshotRequested(request="r", kind=RequestKind.CHECKPOINT))
    assert [type(effect) for effect in bench.effects if getattr(effect, "vertex", "") == "b"][
        -3:
    ] == [
        TriggerCheckpoint,
        NotifyCheckpointAborted,
        ReportAborted,
    ]
    # Otherwise it would take a snapshot for an aborted checkpoint, and nothing would delete it.
    bench.port.step("b", 0)
    bench.settle()
    assert "take_snapshot 1" not in bench.port.calls
    assert "answer_planning 2" in bench.port.calls


# -- restoring -------------------------------------------------------------------------------------


def unaligned_checkpoint(*, finished: bool = False, channel: str = "a") -> CompletedCheckpoint:
    """Task b had not read segment 3 of a; a is at 3 or has finished."""
    segment = InFlightSegment(channel=channel, position=3, size=9, payload={"keys": ["k"]})
    return CompletedCheckpoint(
        job_id="0" * 32,
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=(
            TaskState(
                vertex="a",
                position=3,
                operators=(OperatorState(operator_id="a", name="a", fully_finished=finished),),
            ),
            TaskState(
                vertex="b",
                position=2,
                operators=(OperatorState(operator_id="b", name="b"),),
                in_flight=(segment,),
            ),
        ),
        external_path="/chk-7",
    )


@pytest.mark.parametrize("finished", [False, True])
def test_a_task_reads_first_what_was_in_flight_when_it_was_restored(finished: bool) -> None:
    """P27: even if its producer had finished; the channel then ends after the in-flight
    segments."""
    bench = Bench("a", "b", inputs={"b": ("a",)})
    bench.port.restored = unaligned_checkpoint(finished=finished)
    bench.run()
    admitted = [
        effect.admitted
        for effect in bench.effects
        if isinstance(effect, AnswerPlanning) and effect.admitted
    ]
    segment = Segment(position=3, size=9, payload={"keys": ["k"]})
    assert admitted == [(Admission(channel="a", segments=(segment,)),)]
    bench.port.plan("b", 3, consumed={"a": 3})
    bench.settle(holding=["AllocateLocation"])
    assert any(isinstance(effect, SegmentsConsumed) for effect in bench.effects)
    assert not any(isinstance(effect, ReleaseSegments) for effect in bench.effects)
    assert any(isinstance(effect, StartDrain) for effect in bench.effects) is finished


# -- stopping --------------------------------------------------------------------------------------


def test_after_tasks_are_asked_to_stop_they_start_no_commit() -> None:
    """The commit in progress ends and is waited for; the next commit is left to the next attempt
    (P13)."""
    bench = Bench("v").run()
    for request in ("r1", "r2"):
        bench.checkpoint(request, holding=["CommitSinks"])
        assert bench.answer(request).failure is None
    begun = [effect.checkpoint_id for effect in bench.effects if isinstance(effect, CommitSinks)]
    assert begun == [1]
    bench.post(CancelRequested(request="c"))
    bench.settle(holding=["CommitSinks"])
    bench.settle()
    calls = bench.port.calls
    assert (
        calls.index("stop_tasks")
        < calls.index("commit_sinks 1")
        < calls.index("record_end CANCELED")
    )
    assert "commit_sinks 2" not in calls


def test_a_cancellation_while_an_attempt_starts_gives_up_its_waiting_at_once() -> None:
    """A restored job that commits again may wait minutes between two retries."""
    bench = Bench("v")
    bench.post(JobSubmitted())
    assert bench.port.calls == ["resume"]
    bench.post(CancelRequested(request="c"))
    assert bench.port.calls == ["resume", "stop"]
    bench.settle()
    assert bench.dispatcher.ended is not None
    assert bench.dispatcher.ended.status is JobStatus.CANCELED


def test_the_next_attempt_waits_between_retries_again() -> None:
    """The interruption by the stop is cleared before the next attempt starts."""
    bench = Bench("v").run()
    bench.port.posts["v", 1](TaskErrored(message="boom"))
    bench.settle()
    bench.pass_time()
    order = ("resume", "stop", "begin_attempt")
    assert [call for call in bench.port.calls if call in order] == [
        *("resume", "begin_attempt"),
        "stop",
        *("resume", "begin_attempt"),
    ]


# -- answers ---------------------------------------------------------------------------------------


def test_a_task_whose_start_calls_exit_has_failed_and_the_job_is_restarted() -> None:
    """User code may call ``sys.exit()``: that is an error of the task like any other."""
    bench = Bench("v")
    bench.port.errors["start_task"] = [SystemExit(1)]
    bench.post(JobSubmitted())
    bench.settle()
    assert bench.master.status is JobStatus.RESTARTING
    assert "SystemExit" in (bench.master.failure or "")
    bench.pass_time()
    assert (bench.master.status, bench.master.attempt) == (JobStatus.RUNNING, 2)


@pytest.mark.parametrize(
    "effect",
    [
        StartDrain(vertex="v", position=0),
        CloseOperators(vertex="v"),
        ReportAborted(vertex="v", checkpoint_id=1),
    ],
)
def test_an_error_that_no_attempt_can_fix_is_final_whatever_raises_it(effect: TaskWork) -> None:
    """The pipeline has to be changed, so a restart would only hide the reason."""
    posted: list[StreamTaskEvent] = []

    def fail(what: str, work: object, **callbacks: Any) -> None:
        callbacks["on_error"](PipelineError("wrong"))

    port: Any = FakePort()
    begin_task_work(effect, "v", tasks=port, durable=port, work=fail, post=posted.append)
    assert posted == [
        TaskErrored(message="wrong", fatal=True, cause=cause_of(PipelineError("wrong")))
    ]


def test_a_hook_that_calls_exit_has_failed_and_the_job_continues() -> None:
    """The checkpoint is aborted and counted; the next checkpoint is taken (A9)."""
    bench = Bench("v", hooks=("h",), tolerable_failed_checkpoints=1).run()
    bench.port.errors["trigger_hook"] = [SystemExit(1)]
    bench.post(SnapshotRequested(request="r1", kind=RequestKind.CHECKPOINT))
    bench.settle()
    bench.aside.pop().run()
    bench.settle()
    assert "SystemExit" in (bench.answer("r1").failure or "")
    assert bench.master.status is JobStatus.RUNNING
    bench.post(SnapshotRequested(request="r2", kind=RequestKind.CHECKPOINT))
    bench.settle()
    bench.aside.pop().run()
    bench.settle()
    bench.port.step("v", 0)
    bench.settle()
    assert bench.answer("r2").failure is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), CancelledError()])
def test_every_call_that_fails_is_answered(error: BaseException) -> None:
    """Here the start of an attempt: without an answer the job would wait forever."""
    bench = Bench("v")
    bench.port.errors["begin_attempt"] = [error]
    bench.post(JobSubmitted())
    bench.settle()
    assert bench.master.status is JobStatus.RESTARTING
    assert type(error).__name__ in (bench.master.failure or "")


def test_coordinators_outlive_an_attempt_and_are_closed_with_the_driver() -> None:
    """C1: a restarted attempt resets them."""
    bench = Bench("v")
    bench.post(JobSubmitted())
    bench.settle()
    bench.post(TaskFailed(vertex="v", attempt=1, message="no"))
    bench.settle()
    assert bench.coordinators.closed == 0
    bench.dispatcher.stop()
    assert bench.coordinators.closed == 1
