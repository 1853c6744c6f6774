"""The simulator's task port: Spark's query loop as a model.

One query does what a Structured Streaming query does, in the same order, and can be interrupted between any two steps::

    ask the sources for their latest offsets, the control input before or after the data (no order is promised)
    write offsets/<b>; process; write a state file; stage at every sink; write commits/<b>; now and then clean up

The state of a query is what it has read, as record numbers: those of each batch in a file of its own, and
now and then one file for all of them, after which older files are deleted (Spark's maintenance). A query that is restored
from files that do not make up exactly its past says so, and the auditor takes that for lost state. Which files a snapshot
needs, what it refers to and what it writes anew follows the rules of ``weir/spark/snapshots.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from weir.core.channel import ReleaseSegments, Segment
from weir.core.input_gate import Admission
from weir.core.messages import (
    AnswerPlanning,
    ContinueSnapshot,
    Drained,
    DropSnapshot,
    PlanningCalled,
    RecordsEnded,
    StartDrain,
    StepStaged,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.sink_port import SinkPort
from weir.errors import StorageError, invariant
from weir.kernel.ports import AttemptStart, PostToTask, TaskPlan, VertexMetrics
from weir.sim.disk import ProcessFileSystem
from weir.sim.loop import Loop, Process, SimEvent, Task
from weir.sim.snapshots import SimSnapshots
from weir.sim.table import SimTable
from weir.sim.vertices import SimVertex
from weir.sinks.base import Step
from weir.state.storage import CheckpointStorage

#: State files are merged after so many batches.
_MERGE_EVERY = 5


class LostStateError(Exception):
    """A restored query does not find its past. Caught by nobody: the auditor looks for it in failures of tasks."""


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
    ) -> None:
        """``fails`` says whether a query fails at this step, ``writes_late`` whether a stopped one still writes. Without
        ``links`` maintenance keeps old state files for ``retain_us``. ``upload_us`` is how long an asynchronous part takes
        at most, beside its steps on the disk."""
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
        self._upload_us = upload_us
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._queries: dict[VertexId, SimQuery] = {}
        self._calls: dict[int, SimEvent] = {}
        #: What answered calls admitted.
        self._admitted: dict[int, tuple[Admission, ...]] = {}
        self._number = 0
        self._attempt = 0
        self._stopped = False
        self._restored: CompletedCheckpoint | None = None

    def prepare_attempt(self, start: AttemptStart) -> None:
        """Take up the attempt."""
        self._attempt, self._restored, self._stopped = start.attempt, start.restored, False

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
        self._admitted[effect.call] = effect.admitted
        self._calls.pop(effect.call).set()

    def admitted(self, call: int) -> tuple[Admission, ...]:
        """What the batch after an answered call may read."""
        return self._admitted.pop(call)

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

    def drain(self, effect: StartDrain) -> None:
        """Begin the step with MAX_WATERMARK."""
        self._queries[effect.vertex].drain(effect)

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """Nobody looks."""
        return VertexMetrics()


class SimQuery:
    """One query of one attempt, with its snapshots."""

    def __init__(
        self, port: SimTaskPort, vertex: SimVertex, plan: TaskPlan, attempt: int, post: PostToTask
    ) -> None:
        self._port = port
        self._vertex = vertex
        self._plan = plan
        self._attempt = attempt
        self._post = post
        self._directory = f"/working/{port.storage.job_id}/{attempt}/{vertex.name}"
        self._position = -1
        #: Where its segments lie until everybody has read them.
        self.channel = f"{self._directory}/channel"
        #: State files by key, with the records that each holds.
        self._state: dict[str, list[int]] = {}
        #: How far each channel has been read.
        self._consumed: dict[VertexId, int] = {}
        self._task: Task | None = None
        self.snapshots = self._snapshots(())

    # -- the loop ----------------------------------------------------------------------------------------------

    def restore(self, state: TaskState, checkpoint: CompletedCheckpoint) -> None:
        """Copy the state out of a checkpoint, and see that it is whole."""
        fs = self._port.fs
        self._position = state.position
        for handle in state.files:
            data = fs.read(self._port.storage.file_path(checkpoint, handle))
            fs.put(f"{self._directory}/{handle.key}", data)
            self._state[handle.key] = msgspec.json.decode(data, type=list[int])
        if checkpoint.job_id == self._port.storage.job_id and not checkpoint.kind.is_savepoint:
            self.snapshots = self._snapshots(state.files)
        if self._offset != int(state.entries["offset"]) or not self._is_past():
            raise LostStateError(f"{self._vertex.name}: {sorted(self._rows())}, not {state.entries}")

    @property
    def _offset(self) -> int:
        """Records read."""
        return sum(len(rows) for rows in self._state.values())

    def _rows(self) -> list[int]:
        return [row for rows in self._state.values() for row in rows]

    def _is_past(self) -> bool:
        """Whether the state of a source is what it has read, from the first record on without a gap."""
        return bool(self._vertex.inputs) or sorted(self._rows()) == self._vertex.numbers(0, self._offset)

    def _snapshots(self, base: Sequence[StateHandle]) -> SimSnapshots:
        return SimSnapshots(
            plan=self._plan,
            directory=self._directory,
            file_system=self._port.fs,
            storage=self._port.storage,
            flush=self._port.sinks.flush,
            links=self._port.links,
            base=base,
        )

    def take(self, effect: TakeSnapshot) -> None:
        """The synchronous part of a snapshot."""
        invariant(
            effect.position == self._position,
            f"a snapshot of {self._vertex.name} at {effect.position} while it stands at {self._position}",
        )
        self.snapshots.take(effect, offset=self._offset, keys=list(self._state))

    def start(self) -> None:
        """Begin to process."""
        self._task = self._port.loop.spawn(self._port.process, partial(self._guarded, self._run))

    def stop(self) -> None:
        """Interrupt it; an executor may go on writing for a while."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.interrupt()
        if self._port.writes_late():
            table = self._port.tables[self._vertex.sinks[0]]
            path = f"{table._staged(self._attempt)}/{self._position + 1}"
            self._port.loop.at(
                self._port.random.randrange(1_000_000),
                self._port.process,
                lambda: self._port.loop.spawn(self._port.process, lambda: self._write_late(path)),
            )

    def drain(self, effect: StartDrain) -> None:
        """The step with MAX_WATERMARK. A query that reads channels is alive, and rests in the call."""
        if effect.call is not None and self._task is not None:
            self._task.interrupt()
        self._task = self._port.loop.spawn(
            self._port.process, partial(self._guarded, lambda: self._drain(effect.position))
        )

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except LostStateError:
            raise
        except Exception as error:
            self._post(TaskErrored(message=str(error)))

    def _write_late(self, path: str) -> None:
        try:
            self._port.fs.put(path, b"[]")
        except StorageError:
            return

    def _run(self) -> None:
        self._post(TaskStarted(position=self._position))
        while True:
            self._pause(2_000)
            data_first = self._port.random.random() < 0.5
            end = self._latest() if data_first else 0
            call, answered = self._port.new_call()
            consumed = dict(self._consumed)
            self._post(PlanningCalled(call=call, position=self._position, consumed=consumed))
            answered.wait()
            admitted = self._port.admitted(call)
            if self._vertex.inputs:
                self._read(admitted)
                continue
            if not data_first:
                end = self._latest()
            if self._offset >= self._vertex.records:
                self._post(RecordsEnded(position=self._position))
                return
            if end > self._offset:
                self._batch(self._vertex.numbers(self._offset, end))
            else:
                self._pause(10_000)

    def _latest(self) -> int:
        self._pause(300)
        return min(self._vertex.landed(self._port.loop.now_us), self._offset + self._vertex.batch)

    def _read(self, admitted: tuple[Admission, ...]) -> None:
        """One batch over the segments that were admitted."""
        rows = [
            row
            for one in admitted
            for segment in one.segments
            for row in msgspec.json.decode(self._port.fs.read(segment.payload["file"]), type=list[int])
        ]
        self._batch(rows)
        self._consumed |= {one.channel: one.segments[-1].position for one in admitted}

    def _batch(self, rows: list[int]) -> None:
        batch = self._position + 1
        fs = self._port.fs
        fs.put(f"{self._directory}/offsets/{batch}", b"")
        self._fail_perhaps()
        key = f"state/{batch}-{self._port.random.getrandbits(32):08x}"
        fs.put(f"{self._directory}/{key}", msgspec.json.encode(rows))
        self._fail_perhaps()
        self._stage(batch, rows, None)
        self._fail_perhaps()
        fs.put(f"{self._directory}/commits/{batch}", b"")
        self._state[key] = rows
        self._position = batch
        if batch % _MERGE_EVERY == _MERGE_EVERY - 1:
            self._merge(batch)

    def _merge(self, batch: int) -> None:
        """One file for all the state; then older files go, as Spark's maintenance deletes them."""
        key = f"state/{batch}-merged-{self._port.random.getrandbits(32):08x}"
        rows = self._rows()
        self._port.fs.put(f"{self._directory}/{key}", msgspec.json.encode(rows))
        old, self._state = list(self._state), {key: rows}
        if self._port.links:
            self._delete(old)
        else:
            # A snapshot copies files without links for as long as its checkpoint may last (PROTOCOL P4).
            process = self._port.process
            delete = partial(self._guarded, partial(self._delete, old))
            self._port.loop.at(self._port.retain_us, process, lambda: self._port.loop.spawn(process, delete))

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._port.fs.delete(f"{self._directory}/{key}")

    def _drain(self, position: int) -> None:
        batch = position + 1
        self._pause(2_000)
        self._fail_perhaps()
        self._stage(batch, [], [self._offset, sum(self._rows())])
        self._fail_perhaps()
        self._position = batch
        self._post(Drained(position=batch))

    def _stage(self, batch: int, rows: list[int], total: list[int] | None) -> None:
        committables = []
        for name, staged in zip(self._vertex.sinks, (rows, [] if total is None else [total]), strict=True):
            frame: Any = staged
            payload = self._port.tables[name].stage(frame, Step(position=batch))
            if payload is not None:
                committables.append(Committable(sink=name, position=batch, payload=payload))
        segment = None
        if rows and self._port.consumers(self._vertex.name):
            path, data = f"{self.channel}/{batch}", msgspec.json.encode(rows)
            self._port.fs.put(path, data)
            segment = Segment(position=batch, size=len(data), payload={"file": path})
        self._post(StepStaged(position=batch, committables=tuple(committables), segment=segment))

    def _pause(self, most_us: int) -> None:
        self._port.loop.sleep(self._port.process, self._port.random.randrange(most_us))

    def _fail_perhaps(self) -> None:
        if self._port.fails():
            raise RuntimeError("simulated failure of a query")
