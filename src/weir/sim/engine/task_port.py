"""The simulator's task port: the queries of one driver, and what they ask of the core.

``own/queries.py`` has the model of a query of Weir's own jobs, ``user/query.py`` that of a user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from weir.core.messages.channel import MAX_WATERMARK_MS, ReleaseSegments
from weir.core.messages.task import (
    AnswerPlanning,
    ContinueSnapshot,
    DropSnapshot,
    StartDrain,
    TakeSnapshot,
)
from weir.core.task.plan import TaskPlan
from weir.core.types import CompletedCheckpoint, SnapshotMetrics, StateHandle, TaskState, VertexId
from weir.durable.sink_port import SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.runtime.concurrency import Clock, Waits
from weir.runtime.ports import AttemptStart, PostToTask, SubtaskView, VertexMetrics
from weir.sim.engine.channel_offsets import BEGIN, ChannelOffsets
from weir.sim.engine.disk import ProcessFileSystem
from weir.sim.engine.loop import Loop, Process, SimEvent
from weir.sim.engine.snapshots import ReadState, SimState
from weir.storage.checkpoints import CheckpointStorage


class Query(Protocol):
    """One query of one attempt."""

    snapshots: TaskSnapshots
    #: The directory of its segments.
    channel: str

    def restore(self, state: TaskState, checkpoint: CompletedCheckpoint) -> None:
        """Load the state of a checkpoint."""
        ...

    def start(self) -> None:
        """Start the query loop."""
        ...

    def stop(self) -> None:
        """Interrupt the query."""
        ...

    def drain(self, effect: StartDrain) -> None:
        """Run the batch with MAX_WATERMARK."""
        ...

    def take(self, effect: TakeSnapshot) -> None:
        """Take the synchronous part of a snapshot."""
        ...

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint completed. Quick."""
        ...

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was aborted. Quick."""
        ...

    def close(self) -> None:
        """Close the operators."""
        ...


class Queries(Protocol):
    """Makes the queries of one driver."""

    def begin_attempt(self, port: SimTaskPort, start: AttemptStart) -> None:
        """An attempt begins."""
        ...

    def make(self, port: SimTaskPort, plan: TaskPlan, attempt: int, post: PostToTask) -> Query:
        """The query of one task."""
        ...


class SimTaskPort:
    """Implements ``weir.runtime.ports.TaskPort``."""

    def __init__(
        self,
        *,
        loop: Loop,
        process: Process,
        file_system: ProcessFileSystem,
        executors: ProcessFileSystem,
        storage: CheckpointStorage,
        sinks: SinkPort,
        tables: Mapping[str, Any],
        plans: Mapping[VertexId, TaskPlan],
        queries: Queries,
        random: Random,
        fails: Callable[[], bool],
        writes_late: Callable[[], bool],
        links: bool,
        retain_us: int,
        upload_us: int,
        reader_us: int,
        partitions: int,
        declines: Callable[[], bool],
        clock: Clock,
        waits: Waits,
    ) -> None:
        """Create a task port for one driver.

        ``executors`` is the file system as executors see it, which may outlive the driver.
        ``fails`` decides whether a query fails at this point, ``writes_late`` whether a stopped
        query still writes, ``declines`` whether an operator declines a snapshot. Without ``links``
        maintenance keeps old state files for ``retain_us``. ``upload_us`` is the longest
        asynchronous part of a snapshot, not counting its disk operations, ``reader_us`` the longest
        batch over channels. ``partitions`` is the number of state partitions of every query.
        """
        self.loop = loop
        self.process = process
        self.fs = file_system
        self.executors = executors
        self.storage = storage
        self.sinks = sinks
        self.tables = tables
        self.random = random
        self.fails = fails
        self.writes_late = writes_late
        self.links = links
        self.retain_us = retain_us
        self.reader_us = reader_us
        self.partitions = partitions
        self.declines = declines
        self.clock = clock
        self.waits = waits
        self._upload_us = upload_us
        self._plans = plans
        self._make = queries
        self._queries: dict[VertexId, Query] = {}
        self._calls: dict[int, SimEvent] = {}
        self._answers: dict[int, AnswerPlanning] = {}
        #: (vertex, checkpoint) -> the vertex's output watermark at that checkpoint's barrier.
        self._at_barrier: dict[tuple[VertexId, int], int] = {}
        self._number = 0
        self._attempt = 0
        self._stopped = False
        self._restored: CompletedCheckpoint | None = None

    def snapshots(
        self,
        plan: TaskPlan,
        directory: str,
        base: Sequence[StateHandle],
        state: ReadState,
        finished: ReadState | None = None,
    ) -> TaskSnapshots:
        """The snapshots of a query whose files are in a directory; for the others: ``SimState``."""
        return TaskSnapshots(
            vertex=plan.vertex,
            operators=plan.operators,
            inputs=plan.inputs,
            query=SimState(
                vertex=plan.vertex,
                directory=directory,
                file_system=self.fs,
                storage=self.storage,
                links=self.links,
                state=state,
                finished=finished or (lambda _: ({}, [])),
            ),
            storage=self.storage,
            flush=self.sinks.flush,
            base=base,
            clock=self.clock,
            waits=self.waits,
        )

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
