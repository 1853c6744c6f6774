"""A model of Spark's query loop around the user's own code: one query of one attempt.

As ``QueryTask``, it plans, computes the steps of the vertex, writes a segment, stages at every
sink, and takes up the results of the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from weir.core.graph import MAIN_OUTPUT, GraphStep, StepKind
from weir.core.messages.channel import Segment
from weir.core.messages.task import AnswerPlanning, BatchStaged, StartDrain, TakeSnapshot
from weir.core.task.plan import TaskPlan
from weir.core.types import Committable, OperatorId, TaskState, VertexId
from weir.operators.output import rejects_tag
from weir.runtime.ports import PostToTask
from weir.sim.engine.task_port import Query, Rest, SimTaskPort
from weir.sim.stores.frame import Frame
from weir.sim.user.driver import UserDriver
from weir.sim.user.plan import REJECTS, Rows, decoded, encoded, outputs, partitioned
from weir.sim.user.subtasks import SimSubtasks
from weir.sinks.base import Batch
from weir.subtasks.chain import ENTRY, BatchEnd, OperatorChain, ProcessStep
from weir.subtasks.worker import END_OF_TIME_MS

#: The longest time from the drain's batch to the end of the drain, in virtual microseconds.
_SLOW_DRAIN_US = 200_000


class UserQuery(Query):
    """A query of a user's job."""

    def __init__(
        self,
        port: SimTaskPort,
        driver: UserDriver,
        plan: TaskPlan,
        attempt: int,
        post: PostToTask,
    ) -> None:
        super().__init__(port, plan, attempt, post)
        self._driver = driver
        self._vertex = driver.job.vertices[plan.vertex]
        self._offsets: dict[OperatorId, int] = {}
        #: The watermark of the query's next batch, and its output watermark.
        self._reached_ms: int | None = None
        self._watermark_ms: int | None = None
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

    def _load(self, state: TaskState, files: Mapping[str, bytes]) -> None:
        del files
        if ENTRY in state.entries:
            self._port.fs.put(f"{self._directory}/{ENTRY}", state.entries[ENTRY].encode())
        if "offsets" in state.entries:
            self._offsets = msgspec.json.decode(state.entries["offsets"], type=dict[str, int])
            times = msgspec.json.decode(state.entries["watermarks"], type=list[int | None])
            self._reached_ms, self._watermark_ms = times
        self.open()

    def open(self) -> None:
        """Load the state of the operators."""
        if self.chain is not None and not self._opened:
            directory: Any = SimpleNamespace(
                fs=self._port.fs, file=lambda key: f"{self._directory}/{key}"
            )
            self.chain.open(directory, self._position, self._driver.restored_checkpoint_id)
            if self._position >= 0:
                self.chain.planned(self._reached_ms or 0)
                self.chain.resume_at(self._reached_ms)
        self._opened = True

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

    def _run(self) -> None:
        self.open()
        super()._run()

    def _round(self) -> bool:
        timer_in_ms = None if self.chain is None else self.chain.timer_in_ms
        answer = self._ask(self._watermark_ms, timer_in_ms=timer_in_ms)
        forced = answer.barrier is not None
        if self.chain is not None:
            forced = self.chain.forces_batch(
                answer, first=self._position < 0, ends_by_itself=self._ends_by_itself
            )
        if self._vertex.inputs:
            self._read(answer, forced=forced)
        elif not self._vertex.is_enumerated:
            return self._read_source(answer, forced)
        elif forced:
            self._batch({}, {}, answer)
        else:
            self._pause(10_000)
        return True

    @property
    def _ends_by_itself(self) -> bool:
        return not self._vertex.inputs and not self._vertex.is_enumerated

    def _read_source(self, answer: AnswerPlanning, forced: bool) -> bool:
        """Run a batch if there are records, or one is forced; False at the end of the records."""
        ends: dict[OperatorId, int] = {}
        for step in self._vertex.steps:
            if step.kind is StepKind.SOURCE:
                before = self._offsets.get(step.operator_id, 0)
                landed = self._driver.landed(self._port.loop.now_us)
                most = before + self._port.random.randint(1, self._driver.draws.batch_rows)
                ends[step.operator_id] = before if answer.only_events else min(landed, most)
        total = self._driver.draws.records * len(ends)
        read = sum(self._offsets.get(one, 0) for one in ends)
        if read >= total and not forced:
            return False
        reads = {one: (self._offsets.get(one, 0), end) for one, end in ends.items()}
        if forced or any(first < end for first, end in reads.values()):
            self._batch(reads, {}, answer)
        else:
            self._pause(10_000)
        return True

    def _batch_of(self, read: Mapping[VertexId, Sequence[bytes]], answer: AnswerPlanning) -> None:
        rows: dict[str, Rows] = {}
        for channel, segments in read.items():
            merged = rows.setdefault(channel, {})
            for segment in segments:
                for tag, batches in decoded(segment).items():
                    merged.setdefault(tag, []).extend(batches)
        self._batch({}, rows, answer)

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
        committables = self._staged(rows, batch)
        end = BatchEnd() if self.chain is None else self.chain.end_batch(batch)
        self._fail_perhaps()
        segment = self._written({**rows, **self._rejects(end)}, batch)
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
        self._before = self._rest()
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
            elif step.kind is StepKind.REJECTS:
                tag = rejects_tag(name)
                aside = [one for rows in channels.values() for one in rows.get(tag, [])]
                found[name] = {MAIN_OUTPUT: aside}
            elif step.kind is StepKind.UNION:
                schema = job.schemas[name][MAIN_OUTPUT]
                union = [one.select(schema.names) for batches in inputs for one in batches]
                found[name] = {MAIN_OUTPUT: union}
            else:
                found[name] = {MAIN_OUTPUT: self._transformed(step, inputs[0])}
            self._see_time(step, found[name])
        return found[self._vertex.name]

    def _rejects(self, end: BatchEnd) -> Rows:
        """What the operators have set aside, as the rows of the rejects steps."""
        found: Rows = {}
        for name, row in end.rejects:
            step = self._driver.job.step(name)
            made = {"step": step.name, "error": row.error, "row": row.row}
            batch = pa.RecordBatch.from_pylist([made], REJECTS)
            found.setdefault(rejects_tag(step.on_error or ""), []).append(batch)
        return found

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
        any_rows = any(batch.num_rows for batches in rows.values() for batch in batches)
        if not any_rows or not self._port.consumers(self._vertex.name):
            return None
        return self._emitted(batch, encoded(rows), 1 << 10)

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
            self.chain.planned(self._reached_ms or 0)
        if self._driver.job.event_time.get(self._vertex.name) is None or not self._reached_ms:
            return
        output_ms: int | None = self._reached_ms
        if self.chain is not None:
            output_ms = self.chain.output_watermark_ms(output_ms)
        if output_ms is not None:
            self._watermark_ms = max(output_ms, self._watermark_ms or 0)

    # -- the end

    def _drain_batch(self, effect: StartDrain) -> None:
        if self.chain is not None and effect.position >= 0:
            self.chain.take_orders(effect)
            self._batch({}, {}, effect)
        else:
            self._before = self._rest()
        # Until it is drained, checkpoints are taken as of the position before.
        self._pause(self._port.random.choice((2_000, _SLOW_DRAIN_US)))
        self._fail_perhaps()

    # -- snapshots

    def _rest(self) -> Rest:
        entries = {
            "offsets": msgspec.json.encode(self._offsets).decode(),
            "channels": self._channels.dump(),
            "watermarks": msgspec.json.encode([self._reached_ms, self._watermark_ms]).decode(),
        }
        return Rest(position=self._position, state=(entries, []), watermark_ms=self._watermark_ms)

    def _state(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        entries, files = ({}, []) if self.chain is None else self.chain.snapshot(effect)
        return entries if effect.finished else entries | self._at(effect.position).state[0], files
