"""A model of Spark's query loop over numbers, one query for each task of an attempt::

    ask the sources for their latest offsets, the control input before or after the data (Spark
        promises no order); a query that reads channels has no other sources, and its offsets are
        what the answer admits
    write offsets/<b>; process; write a state file; stage at every sink; write commits/<b>;
        sometimes clean up

The state of a query is the record numbers that it has read: one file for each batch and, every few
batches, one merged file, after which older files are deleted (Spark's maintenance). A query that is
restored from files that do not add up to exactly its past fails with ``LostStateError``, which the
auditor takes as lost state. As for Spark, ``weir/durable/task_snapshots.py`` decides which files a
snapshot needs, which it refers to and which it writes again.

A source that reads what is available when the attempt begins does as Spark does: once it has read
that, it rests without a query, and a batch that operators need may read more.

The event time of a record is its number. The watermark of a source is the next number, so none of
its records is ever late; ``engine/channel_offsets.py`` has the state of a query that reads
channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from weir.core.messages.task import AnswerPlanning, BatchStaged, StartDrain, TakeSnapshot
from weir.core.task.plan import TaskPlan
from weir.core.types import Committable, TaskState, VertexId
from weir.errors import StorageError
from weir.runtime.ports import AttemptStart, PostToTask
from weir.sim.engine.job import SimVertex
from weir.sim.engine.snapshots import LostStateError
from weir.sim.engine.table import LATE_ROWS, SimTable
from weir.sim.engine.task_port import Query, Rest, SimTaskPort
from weir.sim.own.counting import LostEventError, SimOperator
from weir.sim.own.marks import MarkedReaders, Marks
from weir.sim.own.resting import RestingSource
from weir.sinks.base import Batch

#: Batches between two merges of the state files.
_MERGE_EVERY = 5
#: Factor on the reported size of a segment, so that the core's bounds on bytes matter.
_BYTES_EACH = 1 << 20


class SimQuery(Query):
    """A query of one of Weir's own jobs."""

    def __init__(
        self,
        port: SimTaskPort,
        vertex: SimVertex,
        marks: Marks,
        resting: RestingSource | None,
        *,
        plan: TaskPlan,
        attempt: int,
        post: PostToTask,
    ) -> None:
        super().__init__(port, plan, attempt, post)
        self._vertex = vertex
        #: State files by key, with the record numbers that each holds.
        self._files: dict[str, list[int]] = {}
        #: Files that the last merge has made obsolete.
        self._obsolete: list[str] = []
        self._operator = SimOperator(vertex.name, vertex.subtasks)
        self._readers = MarkedReaders(marks, vertex.subtasks, port.random)
        self._resting = resting
        if resting is not None:
            self._channels.idle = resting.late
        #: A checkpoint whose barrier the last batch did not carry, and the barrier that it carried.
        #: Only a query that ends takes part in a checkpoint without having prepared for it.
        self._unprepared: int | None = None
        self._prepared: int | None = None
        #: How many records are there for a source that reads what is available when the attempt
        #: begins; None if it reads all. Whether it has read them, and whether its readers have said
        #: so.
        self._available: int | None = None
        self._caught_up = False
        self._told_end = False

    def _load(self, state: TaskState, files: Mapping[str, bytes]) -> None:
        """Raise ``LostStateError`` if the state is not complete."""
        if self._vertex.subtasks:
            self._operator.load(state.entries["operators"])
        in_flight = {one.payload["key"] for one in state.in_flight}
        for key, data in files.items():
            if key not in in_flight:
                self._files[key] = msgspec.json.decode(data, type=list[int])
        if self._offset != int(state.entries["offset"]) or not self._is_past():
            raise LostStateError(
                f"{self._vertex.name}: restored {sorted(self._rows())} instead of {state.entries}"
            )
        if int(state.entries["partitions"]) != self._port.partitions:
            self._rescale()

    def _rescale(self) -> None:
        """Repartition the state as ``spark/state/rescale.py`` does, in one more, empty batch."""
        rows, old = sorted(self._rows()), list(self._files)
        self._position += 1
        self._files = {}
        for number in range(self._port.partitions):
            key = f"state/{self._position}-part{number}-{self._port.random.getrandbits(32):08x}"
            self._files[key] = rows[number :: self._port.partitions]
            self._port.fs.put(f"{self._directory}/{key}", msgspec.json.encode(self._files[key]))
        self._delete(old)

    @property
    def _offset(self) -> int:
        """How many records it has read."""
        return sum(len(rows) for rows in self._files.values())

    def _rows(self) -> list[int]:
        return [row for rows in self._files.values() for row in rows]

    @property
    def _watermark_ms(self) -> int | None:
        """The output watermark: no record that the query emits from now on lies below it.

        State holds rows back until a batch with a new watermark has run.
        """
        if self._vertex.inputs:
            stateless = self._vertex.only_forwards
            return self._channels.watermark_ms if stateless else self._channels.applied_ms
        return self._vertex.base + self._offset if self._offset else None

    def _is_past(self) -> bool:
        """Whether a source's state has its records from the first on, without gaps."""
        return bool(self._vertex.inputs) or sorted(self._rows()) == self._vertex.numbers(
            0, self._offset
        )

    def _state(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        return ({}, []) if effect.finished else self._at(effect.position).state

    def _rest(self) -> Rest:
        entries = {
            "offset": str(self._offset),
            "channels": self._channels.dump(),
            "partitions": str(self._port.partitions),
        }
        if self._vertex.subtasks:
            entries["operators"] = self._operator.dump()
        return Rest(
            position=self._position,
            state=(entries, list(self._files)),
            watermark_ms=self._watermark_ms,
        )

    def take(self, effect: TakeSnapshot) -> None:
        """Take the synchronous part of a snapshot."""
        self._unprepared = None if self._prepared == effect.checkpoint_id else effect.checkpoint_id
        self._check_mark(effect.checkpoint_id)
        super().take(effect)

    def stop(self) -> None:
        """Interrupt the query; one of its executors may write once more, even after the driver."""
        if self._task is None:
            return
        super().stop()
        # What a store's executors had begun goes on by itself.
        table = self._port.tables.get(self._vertex.sinks[0]) if self._vertex.sinks else None
        if isinstance(table, SimTable) and self._port.writes_late():
            path = table.staged_path(self._position + 1)
            executors = self._port.executors
            self._port.loop.spawn(
                executors.process,
                lambda: self._write_late(path),
                self._port.random.randrange(1_000_000),
            )

    def _write_late(self, path: str) -> None:
        with suppress(StorageError):
            self._port.executors.put(path, LATE_ROWS)

    def _run(self) -> None:
        if self._plan.available_now:
            self._available = max(self._offset, self._landed)
        super()._run()

    def _round(self) -> bool:
        data_first = self._port.random.random() < 0.5
        end = self._latest() if data_first else 0
        self._unprepared = None
        answer = self._ask(
            self._watermark_ms,
            outlives_call=not self._vertex.rests_for_snapshots,
            caught_up=self._caught_up and not self._vertex.enumerated,
        )
        self._prepared = None
        if self._vertex.prepares and self._unprepared is not None:
            raise LostEventError(
                f"{self._vertex.name} did not prepare for checkpoint {self._unprepared}"
            )
        if self._vertex.inputs:
            # A query with state also runs a batch for the watermark of the last one.
            closes = self._channels.takes_effect and not self._vertex.only_forwards
            self._read(answer, forced=closes or self._is_forced(answer))
            if self._resting is not None:
                self._resting.seen(self._vertex.name, self._channels.watermark_ms)
            return True
        if not data_first:
            end = self._latest()
        over = answer.induced_over or 0
        if answer.only_events:
            end = self._offset
        if self._vertex.induced:
            end = self._readers.limit(self._offset, end, over)
        forced = self._is_forced(answer) or self._tells_end(end)
        if self._vertex.induced and not answer.only_events:
            forced = forced or self._readers.want_batch(self._offset, over)
        if self._available is not None and self._offset >= self._available and not forced:
            self._caught_up = True
        elif self._offset >= self._vertex.records and not forced:
            return False
        if end > self._offset or forced:
            self._batch(self._vertex.numbers(self._offset, max(end, self._offset)), answer)
        else:
            self._pause(10_000)
        return True

    def _check_mark(self, checkpoint_id: int) -> None:
        """Raise ``LostEventError`` if readers induce checkpoints, and not this one here."""
        if self._vertex.induced and self._offset < self._vertex.records:
            broken = self._readers.broken_law(checkpoint_id, self._offset)
            if broken is not None:
                raise LostEventError(f"{self._vertex.name}: {broken}")

    def _is_forced(self, answer: AnswerPlanning) -> bool:
        """Whether a batch runs even without rows: also the first one of operators."""
        opens = self._vertex.subtasks > 0 and self._position < 0
        return opens or bool(answer.events) or answer.barrier is not None

    def _tells_end(self, end: int) -> bool:
        """Whether its readers report the end of the input with the next batch.

        A restored query reports it again.
        """
        if not self._vertex.enumerated or self._told_end:
            return False
        most = self._vertex.records if self._available is None else self._available
        return max(end, self._offset) >= most

    def _latest(self) -> int:
        self._pause(300)
        landed = self._landed
        if self._available is not None and (self._vertex.enumerated or not self._caught_up):
            landed = min(landed, self._available)
        return max(self._offset, min(landed, self._offset + self._vertex.batch))

    @property
    def _landed(self) -> int:
        vertex, resting = self._vertex, self._resting
        most = vertex.records if resting is None else resting.most(vertex)
        return min(most, vertex.landed(self._port.loop.now_us))

    def _batch_of(self, read: Mapping[VertexId, Sequence[bytes]], answer: AnswerPlanning) -> None:
        rows: list[int] = []
        for channel, segments in read.items():
            for segment in segments:
                numbers = msgspec.json.decode(segment, type=list[int])
                self._channels.check(channel, numbers)
                rows += numbers
        self._batch(rows, answer)

    def _batch(self, rows: list[int], answer: AnswerPlanning) -> None:
        batch = self._position + 1
        fs = self._port.fs
        obsolete, self._obsolete = self._obsolete, []
        self._delete(obsolete)
        fs.put(f"{self._directory}/offsets/{batch}", b"")
        self._fail_perhaps()
        key = f"state/{batch}-{self._port.random.getrandbits(32):08x}"
        fs.put(f"{self._directory}/{key}", msgspec.json.encode(rows))
        self._fail_perhaps()
        back = self._operator.handle(answer.events)
        offset = self._offset + len(rows)
        induced = None
        if self._vertex.induced:
            induced = self._readers.read(offset, answer.induced_over or 0)
        ended = self._tells_end(offset)
        self._stage(
            batch,
            rows,
            sent_events=back,
            input_ended=ended,
            induced=induced,
            read_source=bool(rows) or not self._vertex.enumerated,
        )
        self._told_end |= ended and self._available is not None
        self._fail_perhaps()
        fs.put(f"{self._directory}/commits/{batch}", b"")
        self._prepared = answer.barrier
        self._before = self._rest()
        self._files[key] = rows
        self._position = batch
        if batch % _MERGE_EVERY == _MERGE_EVERY - 1:
            self._merge(batch)

    def _merge(self, batch: int) -> None:
        """Write the whole state to one file and delete older files, as Spark's maintenance does."""
        key = f"state/{batch}-merged-{self._port.random.getrandbits(32):08x}"
        rows = self._rows()
        self._port.fs.put(f"{self._directory}/{key}", msgspec.json.encode(rows))
        old, self._files = list(self._files), {key: rows}
        if self._port.links:
            # A snapshot of the batch before may still have to link them.
            self._obsolete = old
        else:
            # Without links a snapshot copies files, for as long as its checkpoint may take
            # (PROTOCOL P4).
            process = self._port.process
            delete = partial(self._guarded, partial(self._delete, old))
            self._port.loop.at(
                self._port.retain_us, process, lambda: self._port.loop.spawn(process, delete)
            )

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._port.fs.delete(f"{self._directory}/{key}")

    def _drain_batch(self, effect: StartDrain) -> None:
        batch = effect.position + 1
        back = self._operator.handle(effect.events)
        self._stage(batch, [], sent_events=back)
        self._fail_perhaps()
        self._before = self._rest()
        self._position = batch
        for total_sink in self._vertex.sinks[1:]:
            self._port.tables[total_sink].hold_back([[self._offset, sum(self._rows())]])

    def _stage(self, batch: int, rows: list[int], **said: Any) -> None:
        """Stage a batch at the sink of rows. ``said``: what its operators report."""
        committables = []
        frame: Any = rows
        for name in self._vertex.sinks[:1]:
            payload = self._port.tables[name].stage(frame, Batch(batch_id=batch))
            if payload is not None:
                committables.append(Committable(sink=name, position=batch, payload=payload))
        segment = None
        if rows and self._port.consumers(self._vertex.name):
            segment = self._emitted(batch, msgspec.json.encode(rows), _BYTES_EACH)
        self._post(
            BatchStaged(position=batch, committables=tuple(committables), segment=segment, **said)
        )


class SimQueries:
    """Implements ``code.Queries`` for the vertices of one job."""

    def __init__(
        self,
        vertices: Sequence[SimVertex],
        marks: Mapping[VertexId, Marks],
        resting: RestingSource | None,
    ) -> None:
        """``marks`` are those among the records of each source, ``resting`` one of them."""
        self._resting = resting
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._marks = marks

    def begin_attempt(self, port: SimTaskPort, start: AttemptStart) -> None:
        """Do nothing: nothing is left of the operators of a finished task."""

    def make(self, port: SimTaskPort, plan: TaskPlan, attempt: int, post: PostToTask) -> SimQuery:
        """The query of one vertex."""
        vertex, marks = self._vertices[plan.vertex], self._marks[plan.vertex]
        return SimQuery(port, vertex, marks, self._resting, plan=plan, attempt=attempt, post=post)
