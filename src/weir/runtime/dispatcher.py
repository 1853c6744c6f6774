"""The dispatcher delivers events to the machines and executes their effects through the ports.

The mailbox holds events of the job master, events for a task (``ToTask``), and calls. Rules:

1. Machines are touched only in ``turn``, which has a single caller: the main thread of
   ``driver.py``, or the simulator. All others post: planning calls, batch callbacks, blocking work,
   REST, signals.
2. A blocking effect is handed to ``Workers`` and comes back as an event. Nothing in a turn waits.
3. Effects are executed in the order in which machines returned them; the effects that this causes
   in other machines are queued after those. So two messages to one machine arrive in the order in
   which they were sent.
4. Tasks belong to an attempt. Their events carry its number, and those of an older attempt are
   dropped.
5. A machine that raises is a bug in Weir: the driver stops the tasks and leaves the job resumable.
6. The end of a job or attempt waits at most for the *patience* for anything that may hang: running
   commits, snapshots and task starts, queries that stop, and the start of an attempt that is no
   longer wanted. Work that has not ended by then is abandoned. After that, no attempt starts in
   this process while a query of the last attempt may still run.

The channels of a new attempt (``restored_entries``) hold the segments that the barrier of an
unaligned checkpoint overtook, since those are state of their consumer (PROTOCOL P27). A producer
that is fully finished in the checkpoint is not started again, so its channels end after them. A
restored producer emits everything else again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from weir.core.job.master import JobMaster
from weir.core.messages.channel import (
    ChannelAppended,
    EndOfPartition,
    EndOfUserRecords,
    Segment,
    SegmentsConsumed,
)
from weir.core.messages.coordination import CoordinatorEffect, DeliverEvent
from weir.core.messages.job import (
    AbandonAttempt,
    AllocateLocation,
    AnswerRequest,
    AttemptBegan,
    AttemptFailed,
    BeginAttempt,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    EndRecorded,
    HookFailed,
    HookTriggered,
    JobEnded,
    JobMasterEvent,
    JobStatusChanged,
    LocationAllocated,
    LocationFailed,
    RecordCheckpoint,
    RecordEnd,
    StopTasks,
    TasksStopped,
    TriggerHook,
)
from weir.core.messages.protocol import (
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from weir.core.messages.task import StreamTaskEvent, TaskWork
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import Recorded, TaskState, VertexId
from weir.errors import JobError, invariant
from weir.runtime.concurrency import Clock, MainThread, Work, Workers, answered
from weir.runtime.failures import cause_of, describe, is_fatal
from weir.runtime.ports import AttemptStart, CoordinatorPort, DurablePort, TaskPort
from weir.runtime.task_work import begin_task_work, task_errored
from weir.runtime.watching import Watchers, harmless


@dataclass(frozen=True)
class ToTask:
    """An event of one task of one attempt."""

    vertex: VertexId
    attempt: int
    event: StreamTaskEvent


@dataclass(frozen=True)
class AttemptStarted:
    """An attempt is recorded and restored, with its commits repeated: its tasks may start."""

    start: AttemptStart


@dataclass(frozen=True)
class Call:
    """A function that another thread wants to run on the main thread (views, requests)."""

    function: Callable[[], None]


#: A posted item: an event, a call, or an error that ends the run.
Envelope: TypeAlias = ToTask | AttemptStarted | Call | JobMasterEvent | BaseException


def restored_entries(
    plan: TaskPlan, state: TaskState | None, running: Collection[VertexId]
) -> Iterator[ChannelAppended]:
    """The first entries of a task's channels, given the tasks that run in the attempt."""
    for kept in state.in_flight if state is not None else ():
        segment = Segment(position=kept.position, size=kept.size, payload=kept.payload)
        yield ChannelAppended(vertex=plan.vertex, channel=kept.channel, entries=(segment,))
    for producer in plan.inputs:
        if producer not in running:
            ends = (EndOfUserRecords(), EndOfPartition())
            yield ChannelAppended(vertex=plan.vertex, channel=producer, entries=ends)


_log = logging.getLogger(__name__)


class Dispatcher:
    """The machines of one job, between a mailbox and the ports."""

    def __init__(
        self,
        *,
        master: JobMaster,
        plans: Mapping[VertexId, TaskPlan],
        tasks: TaskPort,
        durable: DurablePort,
        coordinators: CoordinatorPort,
        clock: Clock,
        workers: Workers,
        chance: Callable[[], float],
        mailbox: Callable[[Envelope], None],
        watchers: Watchers,
        patience_ms: int,
    ) -> None:
        """``mailbox`` takes envelopes from any thread and passes them to ``turn`` in order.

        ``chance`` draws from [0, 1).
        """
        self._master = master
        self._plans = plans
        self._task_port = tasks
        self._durable = durable
        self._coordinators = coordinators
        self._vertex_of = {
            operator.operator_id: name
            for name, plan in plans.items()
            for operator in plan.operators
        }
        self._clock = clock
        self._workers = workers
        self._chance = chance
        self._mailbox = mailbox
        self._watchers = watchers
        self._patience_ms = patience_ms
        self._tasks: dict[VertexId, StreamTask] = {}
        self._attempt = 0
        #: The start of an attempt, while its outcome is awaited; None otherwise.
        self._beginning: Work | None = None
        self._work_of_tasks: dict[Work, _TaskWork] = {}
        #: Whether queries of the last stopped attempt may still run, since they did not stop in
        #: time.
        self._left_running = False
        self._ended: JobEnded | None = None
        #: Effects to execute, each with its task (None: the job master); the first is in progress.
        self._effects: deque[tuple[VertexId | None, Any]] = deque()
        self._main_thread = MainThread()

    @property
    def ended(self) -> JobEnded | None:
        """How the job ended in this process; None while it runs."""
        return self._ended

    @property
    def tasks(self) -> Mapping[VertexId, StreamTask]:
        """The machines of the newest attempt's tasks; for reading only."""
        return self._tasks

    def next_deadline(self) -> int | None:
        """When the next turn is due, in monotonic milliseconds; None if there is no deadline."""
        deadlines = [
            self._master.next_deadline(),
            *(task.next_deadline() for task in self._tasks.values()),
        ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def poster(self, vertex: VertexId, attempt: int) -> Callable[[StreamTaskEvent], None]:
        """A function that posts events of one task of one attempt."""
        return lambda event: self._mailbox(ToTask(vertex, attempt, event))

    def stop(self) -> None:
        """Stop every task without notifying the machines; blocks. For the end of the run."""
        try:
            if not self._left_running:
                self._stop_tasks({})
        finally:
            self._coordinators.close()

    def turn(self, envelope: Envelope | None = None) -> int | None:
        """Handle a posted envelope, if there is one, then each deadline that has come.

        Returns the next deadline, as ``next_deadline``. A mailbox that is never empty does not
        delay the timers. Raises ``InvariantError`` for a bug, and any posted error.
        """
        self._main_thread.assert_inside()
        match envelope:
            case None:
                pass
            case ToTask(vertex=vertex, attempt=attempt, event=event):
                if attempt == self._attempt:
                    self._to_task(vertex, event)
            case AttemptStarted() | AttemptFailed() if self._beginning is None:
                _log.debug("Ignored a late event: %s", envelope)
            case AttemptStarted(start=start):
                self._beginning = None
                self._start_attempt(start)
            case AttemptFailed():
                self._beginning = None
                self._carry_out(self._master.handle(envelope, self._clock.now_ms()), None)
            case Call(function=function):
                function()
            case BaseException():
                raise envelope
            case _:
                self._carry_out(self._master.handle(envelope, self._clock.now_ms()), None)
        now_ms = self._clock.now_ms()
        if _is_due(self.next_deadline(), now_ms):
            self._on_deadline(now_ms)
        return self.next_deadline()

    def _on_deadline(self, now_ms: int) -> None:
        if _is_due(self._master.next_deadline(), now_ms):
            self._carry_out(self._master.on_deadline(now_ms), None)
        for vertex, task in list(self._tasks.items()):
            # What an earlier deadline caused may have ended the attempt.
            if self._tasks.get(vertex) is task and _is_due(task.next_deadline(), now_ms):
                self._carry_out(task.on_deadline(now_ms), vertex)

    def _to_task(self, vertex: VertexId, event: StreamTaskEvent) -> None:
        task = self._tasks.get(vertex)
        if task is not None:
            effects = task.handle(event, self._clock.now_ms())
            for watch in self._watchers.of_task(vertex, type(event)):
                with harmless():
                    watch(event)
            self._carry_out(effects, vertex)

    def _start_attempt(self, start: AttemptStart) -> None:
        self._attempt = start.attempt
        self._tasks = {}
        for vertex, plan in self._plans.items():
            state = start.states.get(vertex)
            if state is not None and state.fully_finished:
                continue
            self._tasks[vertex] = StreamTask(
                plan,
                attempt=start.attempt,
                consumers=tuple(
                    name for name, other in self._plans.items() if vertex in other.inputs
                ),
                sent_events=() if state is None else state.sent_events,
                allocated=start.allocated,
            )
        began = AttemptBegan(
            attempt=start.attempt,
            restored=start.restored,
            states=start.states,
            chance=self._chance(),
            timestamp_ms=self._clock.wall_ms(),
            older=start.older,
        )
        self._carry_out(self._master.handle(began, self._clock.now_ms()), None)
        for vertex in self._tasks:
            state = start.states.get(vertex)
            for entry in restored_entries(self._plans[vertex], state, self._tasks):
                self._to_task(vertex, entry)
        for vertex in self._tasks:
            self._start_task(vertex, start)

    def _start_task(self, vertex: VertexId, start: AttemptStart) -> None:
        plan = self._plans[vertex]
        state = start.states.get(vertex)
        post = self.poster(vertex, start.attempt)
        self._work(
            vertex,
            "the start",
            lambda: self._task_port.start_task(plan, start.attempt, state, post),
            runs_query=True,
            on_error=lambda error: post(task_errored(error)),
        )

    def _carry_out(self, effects: list[Any], vertex: VertexId | None) -> None:
        """Execute the effects of a task, or of the job master (None).

        Effects that they cause in other machines are queued after all earlier effects, so two
        messages to one machine arrive in the order in which they were sent (MISSION C6).
        """
        self._main_thread.assert_inside()
        self._effects.extend((vertex, effect) for effect in effects)
        if len(self._effects) > len(effects):
            return
        while self._effects:
            source, effect = self._effects[0]
            if isinstance(effect, StopTasks) and len(self._effects) > 1:
                # The effects queued after it were caused by earlier messages. They start work of
                # the attempt, which the stop has to wait for.
                self._effects.rotate(-1)
                continue
            if isinstance(effect, CoordinatorEffect):
                self._coordinators.submit(effect, self._mailbox)
            elif source is None:
                self._effect_of_master(effect)
            elif isinstance(effect, ChannelAppended | SegmentsConsumed):
                self._to_task(effect.vertex, effect)
            elif isinstance(effect, TaskWork):
                begin_task_work(
                    effect,
                    source,
                    tasks=self._task_port,
                    durable=self._durable,
                    work=partial(self._work, source),
                    post=self.poster(source, self._attempt),
                )
            else:  # a message to the job master
                self._carry_out(self._master.handle(effect, self._clock.now_ms()), None)
            for watch in self._watchers.of_effect(source, type(effect)):
                with harmless():
                    watch(effect)
            self._effects.popleft()

    def _effect_of_master(self, effect: Any) -> None:
        match effect:
            case TriggerCheckpoint() | NotifyCheckpointComplete() | NotifyCheckpointAborted():
                self._to_task(effect.vertex, effect)
            case DeliverEvent(operator=operator):
                self._to_task(self._vertex_of[operator], effect)
            case BeginAttempt():
                self._durable.resume()
                self._beginning = self._submit(
                    self._begin_attempt,
                    on_done=lambda start: self._mailbox(AttemptStarted(start)),
                    on_error=self._attempt_failed,
                )
            case StopTasks(attempt=attempt):
                self._begin_stop(attempt)
            case AllocateLocation(allocation=allocation):
                self._submit(
                    lambda: self._durable.allocate(effect),
                    on_done=lambda r: self._mailbox(
                        LocationAllocated(
                            allocation=allocation,
                            checkpoint_id=r[0],
                            target=r[1],
                            timestamp_ms=self._clock.wall_ms(),
                        )
                    ),
                    on_error=lambda e: self._mailbox(
                        LocationFailed(
                            allocation=allocation,
                            message=describe(e),
                            timestamp_ms=self._clock.wall_ms(),
                        )
                    ),
                )
            case RecordCheckpoint(checkpoint_id=n):
                self._submit(
                    lambda: self._durable.record_checkpoint(effect),
                    on_done=self._mailbox,
                    on_error=lambda e: self._mailbox(
                        CheckpointRecorded(
                            checkpoint_id=n, outcome=Recorded.FAILED, message=describe(e)
                        )
                    ),
                )
            case DiscardCheckpoint(checkpoint_id=n):
                self._submit(
                    lambda: self._durable.discard(effect),
                    on_done=lambda _: self._mailbox(CheckpointDiscarded(checkpoint_id=n)),
                    on_error=lambda e: self._discard_failed(n, e),
                )
            case TriggerHook():
                self._trigger_hook(effect)
            case RecordEnd():
                self._submit(
                    lambda: self._durable.record_end(effect),
                    on_done=lambda outcome: self._mailbox(EndRecorded(outcome=outcome)),
                    on_error=lambda e: self._mailbox(
                        EndRecorded(outcome=Recorded.FAILED, message=describe(e))
                    ),
                )
            case AbandonAttempt():
                self._abandon()
            case JobEnded() | JobStatusChanged() | AnswerRequest():
                _log.debug("%s", effect)
                self._ended = effect if isinstance(effect, JobEnded) else self._ended
            case _:
                invariant(False, f"unknown effect {effect!r}")

    def _begin_attempt(self) -> AttemptStart:
        start = self._durable.begin_attempt()
        self._task_port.prepare_attempt(start)
        return start

    def _begin_stop(self, attempt: int) -> None:
        under_way, self._work_of_tasks = self._work_of_tasks, {}
        # The tasks get no more events, so they cannot start work that nothing would wait for.
        self._tasks = {}

        def stopped(left: str) -> None:
            self._mailbox(TasksStopped(attempt=attempt, chance=self._chance(), left_running=left))

        self._submit(lambda: self._stop_tasks(under_way), on_done=stopped, on_error=self._mailbox)

    def _trigger_hook(self, effect: TriggerHook) -> None:
        hook, n = effect.identifier, effect.checkpoint_id
        call = answered(
            lambda: self._durable.trigger_hook(effect),
            on_done=lambda state: self._mailbox(
                HookTriggered(identifier=hook, checkpoint_id=n, state=state)
            ),
            on_error=lambda e: self._mailbox(
                HookFailed(identifier=hook, checkpoint_id=n, message=describe(e))
            ),
        )
        self._workers.submit_aside(call)

    def _discard_failed(self, checkpoint_id: int, error: BaseException) -> None:
        """Log it: the start of the next attempt deletes what could not be deleted now."""
        _log.warning("Could not delete checkpoint %d: %s", checkpoint_id, describe(error))
        self._mailbox(CheckpointDiscarded(checkpoint_id=checkpoint_id))

    def _attempt_failed(self, error: BaseException) -> None:
        self._mailbox(
            AttemptFailed(message=describe(error), fatal=is_fatal(error), cause=cause_of(error))
        )

    def _abandon(self) -> None:
        self._durable.stop()
        if self._beginning is not None:
            self._workers.submit_aside(partial(self._await_begin, self._beginning))

    def _await_begin(self, begin: Work) -> None:
        """Wait for the start of an unwanted attempt, at most for the patience.

        If it hangs, it counts as failed, so that the job can end without it.
        """
        if not self._workers.wait([begin], self._patience_ms / 1000):
            self._attempt_failed(
                JobError(f"The attempt did not start within {self._patience_ms} ms.")
            )

    # ---- blocking work

    def _submit(self, work: Callable[[], Any], **callbacks: Callable[[Any], None]) -> Work:
        return self._workers.submit(answered(work, **callbacks))

    def _work(
        self,
        vertex: VertexId,
        what: str,
        work: Callable[[], Any],
        *,
        runs_query: bool = False,
        **callbacks: Callable[[Any], None],
    ) -> None:
        """Start work of a task. The attempt has stopped only when it has ended or is abandoned."""
        under_way = {begun: task for begun, task in self._work_of_tasks.items() if not begun.done()}
        described = _TaskWork(what=f"{what} (task {vertex!r})", runs_query=runs_query)
        self._work_of_tasks = under_way | {self._submit(work, **callbacks): described}

    def _stop_tasks(self, under_way: Mapping[Work, _TaskWork]) -> str:
        """Stop the queries, and wait for running work, at most for the patience.

        Returns the abandoned work that may still run queries, as text; "" if all has ended.
        """
        self._durable.stop()
        errors: list[BaseException] = []
        stop = self._submit(self._task_port.stop_tasks, on_error=errors.append)
        works = {stop: _TaskWork(what="stopping the queries", runs_query=True), **under_way}
        if not self._workers.wait(list(works), self._patience_ms / 1000):
            hanging = [described for work, described in works.items() if not work.done()]
            _log.warning(
                "Abandoned work that was still running %d ms after the tasks were stopped: %s.",
                self._patience_ms,
                ", ".join(described.what for described in hanging),
            )
            left = ", ".join(described.what for described in hanging if described.runs_query)
            self._left_running = bool(left)
            return left
        if errors:
            raise errors[0]
        return ""


@dataclass(frozen=True, kw_only=True)
class _TaskWork:
    """A description of a task's work."""

    what: str
    runs_query: bool


def _is_due(deadline: int | None, now_ms: int) -> bool:
    return deadline is not None and deadline <= now_ms
