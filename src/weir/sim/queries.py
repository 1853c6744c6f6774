"""The simulator's task port: queries that are modelled, one for each task of an attempt (``query.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from weir.core.messages.channel import MAX_WATERMARK_MS, ReleaseSegments
from weir.core.messages.task import AnswerPlanning, ContinueSnapshot, DropSnapshot, StartDrain, TakeSnapshot
from weir.core.types import CompletedCheckpoint, SnapshotMetrics, TaskState, VertexId
from weir.durable.sink_port import SinkPort
from weir.kernel.ports import AttemptStart, PostToTask, TaskPlan, VertexMetrics
from weir.sim.disk import ProcessFileSystem
from weir.sim.loop import Loop, Process, SimEvent
from weir.sim.query import BEGIN, SimQuery
from weir.sim.table import SimTable
from weir.sim.vertices import SimVertex
from weir.state.storage import CheckpointStorage


class SimTaskPort:
    """Implements ``weir.kernel.ports.TaskPort``."""

    def __init__(
        self,
        *,
        loop: Loop,
        process: Process,
        file_system: ProcessFileSystem,
        storage: CheckpointStorage,
        sinks: SinkPort,
        tables: dict[str, SimTable],
        vertices: Sequence[SimVertex],
        random: Random,
        fails: Callable[[], bool],
        writes_late: Callable[[], bool],
        links: bool,
        retain_us: int,
        upload_us: int,
        reader_us: int,
        partitions: int,
        declines: Callable[[], bool],
    ) -> None:
        """``fails`` says whether a query fails at this step, ``writes_late`` whether a stopped one still writes. Without
        ``links`` maintenance keeps old state files for ``retain_us``. ``upload_us`` is how long an asynchronous part takes
        at most, beside its steps on the disk, ``reader_us`` a batch over channels. ``partitions``: of the state of every
        query. ``declines``: whether an operator takes no snapshot this time."""
        self.loop = loop
        self.process = process
        self.fs = file_system
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
        self._upload_us = upload_us
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._queries: dict[VertexId, SimQuery] = {}
        self._calls: dict[int, SimEvent] = {}
        self._answers: dict[int, AnswerPlanning] = {}
        #: (vertex, checkpoint) -> the vertex's output watermark at that barrier.
        self._at_barrier: dict[tuple[VertexId, int], int] = {}
        self._number = 0
        self._attempt = 0
        self._stopped = False
        self._restored: CompletedCheckpoint | None = None

    def prepare_attempt(self, start: AttemptStart) -> None:
        """Take up the attempt."""
        self._attempt, self._restored, self._stopped = start.attempt, start.restored, False
        self._at_barrier = {}
        if start.restored is not None:
            for ended in (task.vertex for task in start.restored.tasks if task.fully_finished):
                self._at_barrier[ended, BEGIN] = MAX_WATERMARK_MS

    def start_task(self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask) -> None:
        """Fill the query's directory from the checkpoint, and start it."""
        query = SimQuery(self, self._vertices[plan.vertex], plan, attempt, post)
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
        """A planning call that waits for its answer."""
        self._number += 1
        event = self._calls[self._number] = SimEvent(self.loop, self.process)
        return self._number, event

    def answer_planning(self, effect: AnswerPlanning) -> None:
        """Let a planning call return."""
        self._answers[effect.call] = effect
        self._calls.pop(effect.call).set()

    def answer(self, call: int) -> AnswerPlanning:
        """What an answered call was told."""
        return self._answers.pop(call)

    def passes_barrier(self, vertex: VertexId, checkpoint_id: int, watermark_ms: int | None) -> None:
        """A query takes part in a checkpoint while its output watermark is this one."""
        if watermark_ms is not None:
            self._at_barrier[vertex, checkpoint_id] = watermark_ms

    def at_barrier(self, vertices: Sequence[VertexId], checkpoint_id: int) -> dict[VertexId, int]:
        """The output watermarks of some vertices at the barrier of a checkpoint, as far as there are any."""
        keys = ((vertex, checkpoint_id) for vertex in vertices)
        return {key[0]: self._at_barrier[key] for key in keys if key in self._at_barrier}

    def consumers(self, vertex: VertexId) -> bool:
        """Whether anybody reads the vertex's channel."""
        return any(vertex in other.inputs for other in self._vertices.values())

    def release_segments(self, effect: ReleaseSegments) -> None:
        """Delete the files of segments that everybody has read."""
        directory = self._queries[effect.vertex].channel
        for entry in self.fs.list(directory):
            if int(entry.name) <= effect.position:
                self.fs.delete(f"{directory}/{entry.name}")

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        """The synchronous part."""
        self._queries[effect.vertex].take(effect)

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        """The asynchronous part."""
        self.loop.sleep(self.process, self.random.randrange(self._upload_us))
        return self._queries[effect.vertex].snapshots.proceed(effect.checkpoint_id)

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        """Forget a snapshot and delete its files."""
        self._queries[effect.vertex].snapshots.drop(effect.checkpoint_id)

    def confirm_base(self, vertex: VertexId, checkpoint_id: int) -> None:
        """The checkpoint is the base of the next incremental snapshot."""
        self._queries[vertex].snapshots.confirm(checkpoint_id)

    def checkpoint_aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Simulated operators keep no account of it."""

    def drain(self, effect: StartDrain) -> None:
        """Begin the step with MAX_WATERMARK."""
        self._queries[effect.vertex].drain(effect)

    def close_operators(self, vertex: VertexId) -> None:
        """Close the tables of a vertex."""
        self.sinks.close(self._vertices[vertex].sinks)

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """Nobody looks."""
        return VertexMetrics()
