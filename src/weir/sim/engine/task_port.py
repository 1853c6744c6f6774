"""The simulator's task port: the queries of one driver, and what they ask of the core.

``Query`` is the model of a query. ``own/queries.py`` has the batches of Weir's own jobs,
``user/query.py`` those of a user's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from weir.core.messages.channel import MAX_WATERMARK_MS, ReleaseSegments, Segment
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    ContinueSnapshot,
    Drained,
    DropSnapshot,
    PlanningCalled,
    RecordsEnded,
    StartDrain,
    TakeSnapshot,
    TaskStarted,
)
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    CompletedCheckpoint,
    OperatorId,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.sink_port import SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.errors import OperatorError, invariant
from weir.runtime.ports import AttemptStart, PostToTask, SubtaskView, VertexMetrics
from weir.runtime.task_work import task_errored
from weir.sim.engine.channel_offsets import BEGIN, ChannelOffsets
from weir.sim.engine.code import DriverCode, Environment
from weir.sim.engine.faults import Fault
from weir.sim.engine.job import SimJob
from weir.sim.engine.loop import SimEvent, Task
from weir.sim.engine.snapshots import LostStateError, SimState, segment_path
from weir.storage.checkpoints import CheckpointStorage


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What a snapshot sees of a query after a batch."""

    position: int
    #: Its entries, and the keys of its files.
    state: tuple[dict[str, str], list[str]]
    watermark_ms: int | None


class Query(abc.ABC):
    """A model of Spark's query loop: one query of one attempt.

    It does what a Structured Streaming query does, in the same order, and can be interrupted
    between any two steps. What its batches do is up to the subclass.
    """

    #: Whether code of the user runs, which cannot be interrupted.
    _busy = False

    def __init__(self, port: SimTaskPort, plan: TaskPlan, attempt: int, post: PostToTask) -> None:
        self._port = port
        self._plan = plan
        self._post = post
        self._directory = f"/working/{port.storage.job_id}/{attempt}/{plan.vertex}"
        #: The directory of its segments until all consumers have read them.
        self.channel = f"{self._directory}/channel"
        #: The last complete batch.
        self._position = -1
        self._channels = ChannelOffsets(plan.inputs)
        #: What it was after the batch before the last one. A source's snapshot may be taken beside
        #: the next batch, and so come when that has ended.
        self._before: Rest | None = None
        self._task: Task | None = None
        self.snapshots = self._snapshots()

    @abc.abstractmethod
    def _round(self) -> bool:
        """Plan, and run a batch if there is one; False at the end of the records."""

    @abc.abstractmethod
    def _batch_of(self, read: Mapping[VertexId, Sequence[bytes]], answer: AnswerPlanning) -> None:
        """Run a batch over segments of its channels."""

    @abc.abstractmethod
    def _drain_batch(self, effect: StartDrain) -> None:
        """Run the batch with MAX_WATERMARK."""

    @abc.abstractmethod
    def _rest(self) -> Rest:
        """What it is after the last batch."""

    @abc.abstractmethod
    def _state(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        """The entries and file keys of a snapshot, perhaps of a query that has finished."""

    @abc.abstractmethod
    def _load(self, state: TaskState, files: Mapping[str, bytes]) -> None:
        """Load the rest of a restored state, given its files by key."""

    def completed(self, checkpoint_id: int) -> None:  # noqa: B027 (optional)
        """A checkpoint completed. Quick."""

    def aborted(self, checkpoint_id: int) -> None:  # noqa: B027 (optional)
        """A checkpoint was aborted. Quick."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Close the operators."""

    def restore(self, state: TaskState, checkpoint: CompletedCheckpoint) -> None:
        """Copy the state out of a checkpoint."""
        storage, files = self._port.storage, dict[str, bytes]()
        self._position = state.position
        if "channels" in state.entries:
            self._channels.load(state.entries["channels"])
        self._channels.pass_barrier(BEGIN, state.in_flight)
        for handle in state.files:
            path = storage.file_path(checkpoint, handle)
            files[handle.key] = storage.fs(path).read(path)
            self._port.fs.put(f"{self._directory}/{handle.key}", files[handle.key])
        if storage.owns(checkpoint):
            self.snapshots = self._snapshots(state.files)
        self._load(state, files)

    def _snapshots(self, base: Sequence[StateHandle] = ()) -> TaskSnapshots:
        """Its snapshots, where ``base`` is in the checkpoint that it resumes from."""
        port, plan = self._port, self._plan
        return TaskSnapshots(
            vertex=plan.vertex,
            operators=plan.operators,
            inputs=plan.inputs,
            query=SimState(
                vertex=plan.vertex,
                directory=self._directory,
                file_system=port.fs,
                storage=port.storage,
                links=port.links,
                read=self._state,
            ),
            storage=port.storage,
            flush=port.sinks.flush,
            base=base,
            clock=port.clock,
            waits=port.waits,
        )

    def start(self) -> None:
        """Start the query loop."""
        self._spawn(self._run)

    def stop(self) -> None:
        """Interrupt the query, but not within code of the user."""
        task, self._task = self._task, None
        if task is not None:
            while self._busy and not task.done():
                self._port.loop.sleep(self._port.process, 200)
            task.interrupt()

    def drain(self, effect: StartDrain) -> None:
        """Run the last batch.

        A query that reads channels is still alive and rests in a planning call; it is interrupted.
        """
        if effect.call is not None and self._task is not None:
            self._task.interrupt()
        self._spawn(partial(self._drain, effect))

    def take(self, effect: TakeSnapshot) -> None:
        """Take the synchronous part of a snapshot."""
        watermark_ms = self._at(effect.position).watermark_ms
        self._channels.pass_barrier(effect.checkpoint_id, effect.in_flight)
        if effect.finished:
            watermark_ms = MAX_WATERMARK_MS
        self._port.passes_barrier(self._plan.vertex, effect.checkpoint_id, watermark_ms)
        if self._plan.has_operators and self._port.declines():
            raise OperatorError("simulated failure", operator=self._plan.vertex)
        self.snapshots.take(effect)

    def _at(self, position: int) -> Rest:
        """The query after batch ``position``: the last complete one or the one before."""
        if position == self._position:
            return self._rest()
        before = self._before
        invariant(
            before is not None and before.position == position,
            f"snapshot of {self._plan.vertex} for position {position} taken at {self._position}",
        )
        assert before is not None
        return before

    def _spawn(self, run: Callable[[], None]) -> None:
        self._task = self._port.loop.spawn(self._port.process, partial(self._guarded, run))

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self._busy = False
            self._post(task_errored(error))

    def _run(self) -> None:
        self._post(TaskStarted(position=self._position))
        goes_on = True
        while goes_on:
            self._pause(2_000)
            goes_on = self._round()
        self._post(RecordsEnded(position=self._position))

    def _ask(self, watermark_ms: int | None, **said: Any) -> AnswerPlanning:
        """Make a planning call, and wait for its answer."""
        call, answered = self._port.new_call()
        self._post(
            PlanningCalled(
                call=call,
                position=self._position,
                consumed=self._channels.committed,
                watermark_ms=watermark_ms,
                **said,
            )
        )
        answered.wait()
        return self._port.answer(call)

    def _read(self, answer: AnswerPlanning, *, forced: bool) -> None:
        """Run one batch over what was admitted.

        An empty batch runs only if a watermark has risen or it is ``forced``.
        """
        channels, port = self._channels, self._port
        risen = channels.tell(answer.watermarks_ms, port.at_barrier(channels, answer))
        if not (risen or answer.admitted or forced):
            return
        if port.reader_us:
            self._pause(port.reader_us)
        between = channels.between(answer.admitted)
        read = {channel: [*map(self._segment, given)] for channel, given in between.items()}
        self._batch_of(read, answer)
        channels.commit(answer.admitted)

    def _segment(self, segment: Segment) -> bytes:
        try:
            return self._port.fs.read(segment_path(segment.payload, self._directory))
        except FileNotFoundError as error:
            raise LostStateError(f"{self._plan.vertex}: the segment {error} is gone") from error

    def _emitted(self, batch: int, data: bytes, bytes_each: int) -> Segment:
        """Write the segment of a batch. ``bytes_each``: a factor on the size that is reported."""
        path = f"{self.channel}/{batch}"
        self._port.fs.put(path, data)
        return Segment(position=batch, size=len(data) * bytes_each, payload={"file": path})

    def _drain(self, effect: StartDrain) -> None:
        self._pause(2_000)
        self._fail_perhaps()
        self._drain_batch(effect)
        committables = self._port.sinks.finish(self._plan.sinks, self._position + 1)
        if committables:
            self._position += 1
            self._post(BatchStaged(position=self._position, committables=committables))
            self._fail_perhaps()
        self._post(Drained(position=self._position))

    def _pause(self, most_us: int) -> None:
        self._port.loop.sleep(self._port.process, self._port.random.randrange(most_us))

    def _fail_perhaps(self) -> None:
        if self._port.fails():
            raise RuntimeError("simulated failure of a query")


class SimTaskPort:
    """Implements ``weir.runtime.ports.TaskPort``."""

    def __init__(
        self,
        environment: Environment,
        job: SimJob,
        code: DriverCode,
        *,
        storage: CheckpointStorage,
        sinks: SinkPort,
    ) -> None:
        """Create the task port of one driver."""
        strikes = environment.strikes
        self.loop = environment.loop
        self.process = environment.process
        self.fs = environment.fs
        #: The file system as executors see it, which may outlive the driver.
        self.executors = environment.executors
        self.storage = storage
        self.sinks = sinks
        self.tables: Mapping[OperatorId, Any] = code.sinks
        self.random = environment.random
        #: Whether a query fails at this point, a stopped one still writes, and an operator declines
        #: a snapshot.
        self.fails = strikes[Fault.TASK_FAILED]
        self.writes_late = strikes[Fault.LATE_WRITE]
        self.declines = strikes[Fault.DECLINED]
        #: A snapshot is copied to an object store. Without links, maintenance keeps old state files
        #: for ``retain_us``.
        self.links = job.links and not job.bucket
        self.retain_us = 2_000 * job.config.timeout_ms
        #: The longest batch over channels.
        self.reader_us = job.reader_us
        # A separate stream, so that it does not change the other draws.
        partitions = Random(f"partitions {environment.job_id} {environment.number}")
        #: The number of state partitions of every query.
        self.partitions = partitions.choice(job.partitions)
        self.clock = environment.clock
        self.waits = environment.waits
        self._upload_us = job.upload_us
        self._plans = code.plans
        self._make = code.queries
        self._queries: dict[VertexId, Query] = {}
        self._calls: dict[int, SimEvent] = {}
        self._answers: dict[int, AnswerPlanning] = {}
        #: (vertex, checkpoint) -> the vertex's output watermark at that checkpoint's barrier.
        self._at_barrier: dict[tuple[VertexId, int], int] = {}
        self._number = 0
        self._attempt = 0
        self._stopped = False
        self._restored: CompletedCheckpoint | None = None

    def prepare_attempt(self, start: AttemptStart) -> None:
        """Begin the attempt."""
        self._attempt, self._restored, self._stopped = start.attempt, start.restored, False
        self._at_barrier = {}
        for ended in (vertex for vertex, state in start.states.items() if state.fully_finished):
            self._at_barrier[ended, BEGIN] = MAX_WATERMARK_MS
        self._make.begin_attempt(self, start)

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        """Fill the query's directory from the checkpoint, and start it."""
        query = self._make.make(self, plan, attempt, post)
        if restored is not None and self._restored is not None:
            query.restore(restored, self._restored)
        if self._stopped or attempt != self._attempt:
            return
        self._queries[plan.vertex] = query
        query.start()

    def stop_tasks(self) -> None:
        """Interrupt every query, wherever it is."""
        self._stopped = True
        for query in self._queries.values():
            query.stop()

    def new_call(self) -> tuple[int, SimEvent]:
        """A new planning call, and the event that its answer sets."""
        self._number += 1
        event = self._calls[self._number] = SimEvent(self.loop, self.process)
        return self._number, event

    def answer_planning(self, effect: AnswerPlanning) -> None:
        """Let a planning call return."""
        self._answers[effect.call] = effect
        self._calls.pop(effect.call).set()

    def answer(self, call: int) -> AnswerPlanning:
        """The answer to a planning call."""
        return self._answers.pop(call)

    def passes_barrier(
        self, vertex: VertexId, checkpoint_id: int, watermark_ms: int | None
    ) -> None:
        """Record the output watermark with which a query takes part in a checkpoint."""
        if watermark_ms is not None:
            self._at_barrier[vertex, checkpoint_id] = watermark_ms

    def at_barrier(self, channels: ChannelOffsets, answer: AnswerPlanning) -> dict[VertexId, int]:
        """The known output watermarks of a query's producers at its last barrier.

        Not for an answer that does not tell the watermarks.
        """
        if answer.barrier is not None or answer.only_events:
            return {}
        keys = ((vertex, channels.barrier) for vertex in channels.aligned)
        return {key[0]: self._at_barrier[key] for key in keys if key in self._at_barrier}

    def consumers(self, vertex: VertexId) -> bool:
        """Whether any vertex reads this vertex's channel."""
        return any(vertex in other.inputs for other in self._plans.values())

    def release_segments(self, effect: ReleaseSegments) -> None:
        """Delete the files of segments that all consumers have read."""
        directory = self._queries[effect.vertex].channel
        for entry in self.fs.list(directory):
            if int(entry.name) <= effect.position:
                self.fs.delete(f"{directory}/{entry.name}")

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        """Take the synchronous part of a snapshot."""
        self._queries[effect.vertex].take(effect)

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        """Take the asynchronous part of a snapshot."""
        self.loop.sleep(self.process, self.random.randrange(self._upload_us))
        return self._queries[effect.vertex].snapshots.proceed(effect.checkpoint_id)

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        """Forget a snapshot and delete its files."""
        self._queries[effect.vertex].snapshots.drop(effect.checkpoint_id)

    def checkpoint_completed(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Make the checkpoint the base of the next incremental snapshot."""
        self._queries[vertex].snapshots.confirm(checkpoint_id)
        self._queries[vertex].completed(checkpoint_id)

    def checkpoint_aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify the operators."""
        if vertex in self._queries:
            self._queries[vertex].aborted(checkpoint_id)

    def drain(self, effect: StartDrain) -> None:
        """Begin the batch with MAX_WATERMARK."""
        self._queries[effect.vertex].drain(effect)

    def close_operators(self, vertex: VertexId) -> None:
        """Close the operators, then the tables of a vertex."""
        self._queries[vertex].close()
        self.sinks.close(self._plans[vertex].sinks)

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """Empty metrics: the simulator does not read them."""
        return VertexMetrics()

    def subtasks(self, vertex: VertexId) -> tuple[SubtaskView, ...]:
        """None: a simulated batch is not spread."""
        return ()
