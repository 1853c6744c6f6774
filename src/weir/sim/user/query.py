"""A model of Spark's query loop around the user's own code: one query of one attempt.

It does what ``QueryTask`` does with Spark, in the same order, and can be interrupted between any
two steps: plan, compute the steps of the vertex, write a segment, stage at every sink, take up the
results of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from weir.core.graph import MAIN_OUTPUT, GraphStep, StepKind
from weir.core.messages.channel import MAX_WATERMARK_MS, Segment
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    Drained,
    PlanningCalled,
    RecordsEnded,
    StartDrain,
    TakeSnapshot,
    TaskStarted,
)
from weir.core.task.plan import TaskPlan
from weir.core.types import Committable, CompletedCheckpoint, OperatorId, StateHandle, TaskState
from weir.durable.task_snapshots import TaskSnapshots
from weir.errors import OperatorError, invariant
from weir.runtime.ports import PostToTask
from weir.runtime.task_work import task_errored
from weir.sim.engine.channel_offsets import BEGIN, ChannelOffsets
from weir.sim.engine.loop import Task
from weir.sim.engine.snapshots import LostStateError, segment_path
from weir.sim.engine.task_port import SimTaskPort
from weir.sim.stores.frame import Frame
from weir.sim.user.driver import UserDriver
from weir.sim.user.plan import Rows, count, decoded, encoded, outputs, partitioned
from weir.sim.user.subtasks import SimSubtasks
from weir.sinks.base import Batch
from weir.subtasks.chain import ENTRY, BatchEnd, OperatorChain, ProcessStep
from weir.subtasks.worker import END_OF_TIME_MS

#: The longest time from the drain's batch to the end of the drain, in virtual microseconds.
_SLOW_DRAIN_US = 200_000


class _Directory:
    """``weir.subtasks.chain.StateDirectory`` of one query."""

    def __init__(self, port: SimTaskPort, path: str) -> None:
        self.fs = port.fs
        self._path = path

    def file(self, key: str) -> str:
        return f"{self._path}/{key}"


class UserQuery:
    """Implements ``weir.sim.engine.code.Query``."""

    def __init__(
        self,
        port: SimTaskPort,
        driver: UserDriver,
        plan: TaskPlan,
        attempt: int,
        post: PostToTask,
    ) -> None:
        self._port = port
        self._driver = driver
        self._plan = plan
        self._post = post
        self._vertex = driver.job.vertices[plan.vertex]
        self._directory = f"/working/{port.storage.job_id}/{attempt}/{plan.vertex}"
        self.channel = f"{self._directory}/channel"
        self._position = -1
        #: Its entries and its output watermark after the last batch and the one before, by batch: a
        #: source's snapshot may be taken beside the next batch, and come when that has ended.
        self._rests: dict[int, tuple[dict[str, str], int | None]] = {}
        self._offsets: dict[OperatorId, int] = {}
        self._channels = ChannelOffsets(plan.inputs)
        #: The watermark of the query's next batch, and its output watermark.
        self._reached_ms: int | None = None
        self._watermark_ms: int | None = None
        self._task: Task | None = None
        #: Whether code of the user runs, which cannot be interrupted.
        self._busy = False
        steps = driver.process_steps(plan.vertex)
        self._subtasks = SimSubtasks(driver.workers, driver.function)
        self.chain: OperatorChain | None = None
        if steps:
            self.chain = OperatorChain(
                self._vertex,
                steps,
                subtasks=self._subtasks,
                token=f"{port.storage.job_id}-{attempt}-{driver.name}",
                clock=port.clock,
                unique=lambda: f"{port.random.getrandbits(64):016x}",
            )
            for step in self._vertex.steps:
                if step.operator_id in steps and driver.job.has_event_time(step):
                    self.chain.add_timed(step.operator_id)
        self._process_steps: Mapping[OperatorId, ProcessStep] = steps
        self._opened = False
        self.snapshots = self._snapshots()

    # -- the contract

    def restore(self, state: TaskState, checkpoint: CompletedCheckpoint) -> None:
        """Copy the state out of a checkpoint."""
        fs = self._port.fs
        self._position = state.position
        for handle in state.files:
            path = self._port.storage.file_path(checkpoint, handle)
            data = self._port.storage.fs(path).read(path)
            fs.put(f"{self._directory}/{handle.key}", data)
        if ENTRY in state.entries:
            fs.put(f"{self._directory}/{ENTRY}", state.entries[ENTRY].encode())
        if "offsets" in state.entries:
            self._offsets = msgspec.json.decode(state.entries["offsets"], type=dict[str, int])
            self._channels.load(state.entries["channels"])
            self._channels.pass_barrier(BEGIN, state.in_flight)
            times = msgspec.json.decode(state.entries["watermarks"], type=list[int | None])
            self._reached_ms, self._watermark_ms = times
        if checkpoint.job_id == self._port.storage.job_id and not checkpoint.kind.is_savepoint:
            self.snapshots = self._snapshots(state.files)
        self.open()

    def open(self) -> None:
        """Load the state of the operators."""
        if self.chain is not None and not self._opened:
            directory = _Directory(self._port, self._directory)
            self.chain.open(directory, self._position, self._driver.restored_checkpoint_id)
            if self._position >= 0:
                self._planned()
                self.chain.resume_at(self._reached_ms)
        self._opened = True

    def start(self) -> None:
        """Start the query loop."""
        self._task = self._port.loop.spawn(self._port.process, partial(self._guarded, self._run))

    def stop(self) -> None:
        """Interrupt the query, but not within code of the user."""
        if self._task is None:
            return
        task, self._task = self._task, None
        while self._busy and not task.done():
            self._port.loop.sleep(self._port.process, 200)
        task.interrupt()

    def drain(self, effect: StartDrain) -> None:
        """Run the last batch."""
        if effect.call is not None and self._task is not None:
            self._task.interrupt()
        self._task = self._port.loop.spawn(
            self._port.process, partial(self._guarded, lambda: self._drain(effect))
        )

    def take(self, effect: TakeSnapshot) -> None:
        """Take the synchronous part of a snapshot."""
        invariant(
            effect.position == self._position or effect.position in self._rests,
            f"snapshot of {self._vertex.name} for position {effect.position} taken at"
            f" {self._position}",
        )
        _, watermark_ms = self._rests.get(effect.position, ({}, self._watermark_ms))
        if effect.finished:
            watermark_ms = MAX_WATERMARK_MS
        self._channels.pass_barrier(effect.checkpoint_id, effect.in_flight)
        self._port.passes_barrier(self._vertex.name, effect.checkpoint_id, watermark_ms)
        if self.chain is not None and self._port.declines():
            raise OperatorError("simulated failure", operator=self._vertex.name)
        self.snapshots.take(effect)

    def completed(self, checkpoint_id: int) -> None:
        """Notify the operators with the next batch."""
        if self.chain is not None:
            self.chain.completed.append(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Notify the operators with the next batch."""
        if self.chain is not None:
            self.chain.aborted.append(checkpoint_id)

    def close(self) -> None:
        """Close the operators."""
        if self.chain is not None:
            self.chain.close()

    # -- the loop

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self._busy = False
            self._post(task_errored(error))

    def _run(self) -> None:
        self.open()
        self._post(TaskStarted(position=self._position))
        while True:
            self._pause(2_000)
            before = list(self._rests.items())[-1:]
            self._rests = {**dict(before), self._position: (self._entries(), self._watermark_ms)}
            call, answered = self._port.new_call()
            self._post(
                PlanningCalled(
                    call=call,
                    position=self._position,
                    consumed=self._channels.committed,
                    watermark_ms=self._watermark_ms,
                    timer_in_ms=None if self.chain is None else self.chain.timer_in_ms,
                )
            )
            answered.wait()
            answer = self._port.answer(call)
            forced = answer.barrier is not None
            if self.chain is not None:
                forced = self.chain.forces_batch(
                    answer, first=self._position < 0, ends_by_itself=self._ends_by_itself
                )
            if self._vertex.inputs:
                self._read(answer, forced)
            elif self._vertex.is_enumerated:
                if forced:
                    self._batch({}, {}, answer)
                else:
                    self._pause(10_000)
            elif not self._read_source(answer, forced):
                self._post(RecordsEnded(position=self._position))
                return

    @property
    def _ends_by_itself(self) -> bool:
        return not self._vertex.inputs and not self._vertex.is_enumerated

    def _read_source(self, answer: AnswerPlanning, forced: bool) -> bool:
        """Run a batch if there are records, or one is forced; False at the end of the records."""
        ends: dict[OperatorId, int] = {}
        for step in self._vertex.steps:
            if step.kind is StepKind.SOURCE:
                before = self._offsets.get(step.operator_id, 0)
                landed = self._driver.landed(step.operator_id, self._port.loop.now_us)
                most = before + self._port.random.randint(1, self._driver.batch_rows)
                ends[step.operator_id] = before if answer.only_events else min(landed, most)
        total = self._driver.records * len(ends)
        read = sum(self._offsets.get(one, 0) for one in ends)
        if read >= total and not forced:
            return False
        reads = {one: (self._offsets.get(one, 0), end) for one, end in ends.items()}
        if forced or any(first < end for first, end in reads.values()):
            self._batch(reads, {}, answer)
        else:
            self._pause(10_000)
        return True

    def _read(self, answer: AnswerPlanning, forced: bool) -> None:
        risen = self._channels.tell(
            answer.watermarks_ms, self._port.at_barrier(self._channels, answer)
        )
        if not (risen or answer.admitted or forced):
            return
        if self._port.reader_us:
            self._pause(self._port.reader_us)
        rows: dict[str, Rows] = {}
        for channel, segments in self._channels.between(answer.admitted).items():
            merged = rows.setdefault(channel, {})
            for segment in segments:
                for tag, batches in self._segment(segment).items():
                    merged.setdefault(tag, []).extend(batches)
        self._batch({}, rows, answer)
        self._channels.commit(answer.admitted)

    def _segment(self, segment: Segment) -> Rows:
        try:
            return decoded(self._port.fs.read(segment_path(segment.payload, self._directory)))
        except FileNotFoundError as error:
            raise LostStateError(f"{self._vertex.name}: the segment {error} is gone") from error

    def _batch(
        self,
        reads: Mapping[OperatorId, tuple[int, int]],
        channels: Mapping[str, Rows],
        effect: AnswerPlanning | StartDrain,
    ) -> None:
        batch = self._position + 1
        self._port.fs.put(f"{self._directory}/offsets/{batch}", b"")
        self._fail_perhaps()
        told = self.chain.source_watermark_ms if self.chain is not None else None
        if self.chain is not None:
            self.chain.begin_batch(batch)
        self._busy = True
        rows = self._computed(reads, channels)
        self._busy = False
        self._fail_perhaps()
        segment = self._written(rows, batch)
        committables = self._staged(rows, batch)
        end = BatchEnd() if self.chain is None else self.chain.end_batch(batch)
        self._fail_perhaps()
        self._post(
            BatchStaged(
                position=batch,
                committables=committables,
                segment=segment,
                sent_events=end.sent,
                input_ended=end.input_ended,
                induced=end.induced,
            )
        )
        self._offsets |= {one: last for one, (_, last) in reads.items()}
        self._position = batch
        if isinstance(effect, AnswerPlanning):
            self._move_time(told)

    def _computed(
        self, reads: Mapping[OperatorId, tuple[int, int]], channels: Mapping[str, Rows]
    ) -> Rows:
        """The rows that the last step of the vertex emits."""
        job = self._driver.job
        found: dict[OperatorId, Rows] = dict(channels)
        for step in self._vertex.steps:
            name = step.operator_id
            inputs = [found.get(one, {}).get(tag, []) for one, tag in step.outputs_read]
            if name in self._process_steps:
                found[name] = self._processed(step, inputs)
            elif step.kind is StepKind.SOURCE:
                first, end = reads.get(name, (0, 0))
                declared = job.simulation.rows.get(step.name, "id long")
                made = (
                    [job.rows.source(declared, range(first, end), step.name)] if first < end else []
                )
                found[name] = {MAIN_OUTPUT: made}
            elif step.kind is StepKind.UNION:
                schema = job.schemas[name][MAIN_OUTPUT]
                union = [one.select(schema.names) for batches in inputs for one in batches]
                found[name] = {MAIN_OUTPUT: union}
            else:
                found[name] = {MAIN_OUTPUT: self._transformed(step, inputs[0])}
            self._see_time(step, found[name])
        return found[self._vertex.name]

    def _transformed(self, step: GraphStep, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        declared = self._driver.job.simulation.rows.get(step.name)
        if declared is None:
            return batches
        rows = self._driver.job.rows
        return [rows.transformed(declared, one, step.name) for one in batches if one.num_rows]

    def _processed(self, step: GraphStep, inputs: list[list[pa.RecordBatch]]) -> Rows:
        one = self._process_steps[step.operator_id]
        if step.enumerated:
            inputs = []
        parts = partitioned(self._driver.job, step, inputs, one.parallelism)
        emitted: list[pa.RecordBatch] = []
        for subtask, batches in enumerate(parts):
            emitted += self._subtasks.run(step.operator_id, subtask, batches)
        made = outputs(emitted)
        self._driver.saw(step, inputs, made)
        return made

    def _written(self, rows: Rows, batch: int) -> Segment | None:
        if not count(rows) or not self._port.consumers(self._vertex.name):
            return None
        path, data = f"{self.channel}/{batch}", encoded(rows)
        self._port.fs.put(path, data)
        return Segment(position=batch, size=len(data) << 10, payload={"file": path})

    def _staged(self, rows: Rows, batch: int) -> tuple[Committable, ...]:
        committables = []
        for name, tag in zip(self._vertex.sinks, self._vertex.sink_tags, strict=True):
            schema = self._driver.job.schemas[self._vertex.name][tag]
            frame: Any = Frame(pa.Table.from_batches(rows.get(tag, []), schema))
            self._busy = True
            payload = self._driver.sinks[name].stage(frame, Batch(batch_id=batch))
            self._busy = False
            if payload is not None:
                committables.append(Committable(sink=name, position=batch, payload=payload))
            self._fail_perhaps()
        return tuple(committables)

    # -- time

    def _see_time(self, step: GraphStep, rows: Rows) -> None:
        """Take up the event time that a source or a transformation gives to its rows."""
        column = self._driver.job.simulation.event_time.get(step.name)
        if column is None or self._vertex.inputs:
            return
        for batch in rows.get(MAIN_OUTPUT, ()):
            newest = pc.max(batch.column(column)).cast(pa.timestamp("ms", "UTC"), safe=False).value
            if newest is not None:
                self._reached_ms = max(newest, self._reached_ms or 0)

    def _move_time(self, told: int | None) -> None:
        """Take up the watermark for the next batch; see ``OutputWatermarks.update``."""
        reached = self._channels.watermark_ms if self._vertex.inputs else told
        if reached is not None:
            self._reached_ms = max(min(reached, END_OF_TIME_MS), self._reached_ms or 0)
        if self.chain is not None:
            self._planned()
        if self._driver.job.event_time.get(self._vertex.name) is None or not self._reached_ms:
            return
        output_ms: int | None = self._reached_ms
        if self.chain is not None:
            output_ms = self.chain.output_watermark_ms(output_ms)
        if output_ms is not None:
            self._watermark_ms = max(output_ms, self._watermark_ms or 0)

    def _planned(self) -> None:
        invariant(self.chain is not None, "only operators are planned")
        if self.chain is not None:
            self.chain.planned(self._reached_ms or 0)

    # -- the end

    def _drain(self, effect: StartDrain) -> None:
        self._pause(2_000)
        self._fail_perhaps()
        if self.chain is not None and effect.position >= 0:
            self.chain.take_orders(effect)
            self._batch({}, {}, effect)
        # Until it is drained, checkpoints are taken as of the position before.
        self._pause(self._port.random.choice((2_000, _SLOW_DRAIN_US)))
        self._fail_perhaps()
        committables = self._port.sinks.finish(self._vertex.sinks, self._position + 1)
        if committables:
            self._position += 1
            self._post(BatchStaged(position=self._position, committables=committables))
            self._fail_perhaps()
        self._post(Drained(position=self._position))

    # -- snapshots

    def _snapshots(self, base: Sequence[StateHandle] = ()) -> TaskSnapshots:
        return self._port.snapshots(
            self._plan, self._directory, base, self._state_at, self._state_at_end
        )

    def _entries(self) -> dict[str, str]:
        return {
            "offsets": msgspec.json.encode(self._offsets).decode(),
            "channels": self._channels.dump(),
            "watermarks": msgspec.json.encode([self._reached_ms, self._watermark_ms]).decode(),
        }

    def _state_at(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        entries, files = self._state_at_end(effect)
        kept, _ = self._rests.get(effect.position, (self._entries(), None))
        return entries | kept, files

    def _state_at_end(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        return ({}, []) if self.chain is None else self.chain.snapshot(effect)

    def _pause(self, most_us: int) -> None:
        self._port.loop.sleep(self._port.process, self._port.random.randrange(most_us))

    def _fail_perhaps(self) -> None:
        if self._port.fails():
            raise RuntimeError("simulated failure of a query")
