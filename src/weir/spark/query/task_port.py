"""The runtime's task port in production: the Spark queries of one job, and their snapshots.

::

    prepare_attempt    deletes directories of older attempts
    start_task         fills a fresh directory <work>/<job>/<attempt>/<vertex> from the checkpoint,
                       then starts the query (with another number of state partitions:
                       weir/spark/state/rescale.py)
    take, continue     weir/durable/task_snapshots.py
    planning calls     weir/spark/query/inputs.py
    segments           weir/spark/channels.py
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from weir.core.graph import Vertex
from weir.core.messages.channel import ReleaseSegments
from weir.core.messages.task import (
    AnswerPlanning,
    ContinueSnapshot,
    DropSnapshot,
    StartDrain,
    TakeSnapshot,
)
from weir.core.task.plan import TaskPlan
from weir.core.types import (
    CompletedCheckpoint,
    Fingerprint,
    OperatorId,
    OperatorState,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.changes import Changes
from weir.durable.sink_port import SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.lineage.datasets import JobDatasets
from weir.runtime.concurrency import Clock, ThreadWaits, in_background
from weir.runtime.failures import describe
from weir.runtime.ports import AttemptStart, PostToTask, SubtaskView, Unread, VertexMetrics
from weir.spark.channels import OutputSegments
from weir.spark.failures import TaskFailures
from weir.spark.kafka.inputs import KafkaInputs
from weir.spark.pipeline import Pipeline
from weir.spark.query.datasets import job_datasets
from weir.spark.query.frames import Frames
from weir.spark.query.staging import BatchStaging
from weir.spark.query.task import QueryTask
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.releases import RELEASE_ENTRY, check_checkpoint
from weir.spark.session.start import check_alive, log_of
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.rebase import rebased
from weir.spark.state.rescale import StatePartitions
from weir.spark.state.saved_task import saved_watermark_ms
from weir.spark.state.snapshots import QueryState, restore_directory
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.paths import join
from weir.subtasks.chain import ENTRY, OperatorChain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_logger = logging.getLogger(__name__)

_COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
#: How long the end of the job waits for operators to close, in seconds.
_CLOSING_S = 10.0
#: The attempt's directory of segments, beside those of its queries. No step can have this name.
_CHANNELS = "_channels"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """What the tasks of one attempt share."""

    number: int
    directory: str
    restored: CompletedCheckpoint | None
    states: Mapping[VertexId, TaskState]
    frames: Frames


class SparkTaskPort:
    """Implements ``weir.runtime.ports.TaskPort``."""

    def __init__(
        self,
        *,
        session: SparkSession,
        pipeline: Pipeline,
        storage: CheckpointStorage,
        sinks: SinkPort,
        working_directory: str,
        clock: Clock,
        changes: Changes,
        kafka: KafkaInputs,
    ) -> None:
        """``working_directory`` is ``<weir.working-dir>/<job id>``.

        ``changes`` compares the plans with the checkpoint that an attempt restores, and ``kafka``
        the topics.
        """
        self._session = session
        self._pipeline = pipeline
        self._storage = storage
        self._sinks = sinks
        self._working_directory = working_directory
        self._clock = clock
        self._changes = changes
        self._kafka = kafka
        self._transfer = Transfer(storage.fs)
        self._lock = threading.Lock()
        self._tasks: dict[VertexId, QueryTask] = {}
        #: What the tasks of the last attempt have left of their sources.
        self._unread: dict[VertexId, Unread] = {}
        #: The task of each unanswered planning call.
        self._calls: dict[int, QueryTask] = {}
        self._snapshots: dict[VertexId, TaskSnapshots] = {}
        self._metrics: dict[VertexId, VertexMetrics] = {}
        self._attempt: _Attempt | None = None
        #: The frames of the newest attempt, also after it has ended.
        self._frames: Frames | None = None
        self._partitions = StatePartitions(session, pipeline.vertices)
        self._log = log_of(session)

    def close(self) -> None:
        """Close what Spark's workers still have, and release the queries' inputs in the JVM.

        Call it after ``stop_tasks``.
        """
        self._kafka.close()
        if self._frames is not None:
            self._abandon(self._frames)
        self._release_frames()

    def delete_working_directory(self) -> None:
        """Delete what the queries left. Call it once the job has ended."""
        self._storage.fs(self._working_directory).delete(self._working_directory)

    # -- tasks

    def prepare_attempt(self, start: AttemptStart) -> None:
        """Prepare for an attempt, and delete the directories of older ones."""
        check_alive(self._session)
        if start.restored is not None:
            # An older one than was checked before, if the newest is damaged.
            check_checkpoint(start.restored)
        self._release_frames()
        directory = join(self._working_directory, str(start.attempt))
        frames = Frames(
            session=self._session,
            pipeline=self._pipeline,
            on_call=lambda vertex, call: self._on_planning(vertex, start.attempt, call),
            token=f"{self._storage.job_id}/{start.attempt}",
            clock=self._clock,
        )
        with self._lock:
            self._attempt = _Attempt(
                number=start.attempt,
                directory=directory,
                restored=start.restored,
                states=start.states,
                frames=frames,
            )
            self._frames = frames
            self._calls.clear()
        fs = self._storage.fs(self._working_directory)
        for status in fs.list(self._working_directory):
            if status.name.isdigit() and int(status.name) < start.attempt:
                fs.delete(join(self._working_directory, status.name))
        self._close_finished(self._attempt)

    def start_task(
        self, plan: TaskPlan, attempt: int, restored: TaskState | None, post: PostToTask
    ) -> None:
        """Start the task's query in a fresh directory, unless the attempt has ended."""
        current = self._attempt
        if current is None or current.number != attempt:
            return
        vertex = self._pipeline.vertices[plan.vertex]
        # Before anything of the state is copied.
        found = current.frames.fingerprints(vertex.name)
        if current.restored is not None:
            self._changes.check(found, current.restored)
        plan = replace(plan, operators=_with_fingerprints(plan.operators, found))
        directory = self._restored_directory(current, vertex, restored)
        base: tuple[StateHandle, ...] = ()
        if restored is not None:
            if current.restored is not None and self._storage.owns(current.restored):
                base = restored.files
            self._pipeline.check_in_flight(restored)
            restored = rebased(self._session, directory, restored)
            restored = self._partitions.restored(vertex.name, directory, restored)
        places = current.frames.kafka_places(vertex.name)
        entries = self._kafka.start(vertex.name, places, directory, restored)
        position = restored.position if restored is not None else -1
        query = VertexQuery(
            session=self._session,
            vertex=vertex,
            attempt=attempt,
            frames=current.frames,
            directory=directory,
        )
        operators = query.operators
        if operators is not None:
            checkpoint = current.restored
            operators.open(
                directory, position, None if checkpoint is None else checkpoint.checkpoint_id
            )
        task = QueryTask(
            query,
            self._staging(query, current),
            position=position,
            watermark_ms=None if restored is None else saved_watermark_ms(restored),
            failures=TaskFailures(self._session, vertex, self._pipeline, self._log),
            post=post,
        )
        snapshots = self._task_snapshots(plan, query, task, restored, base=base, entries=entries)
        with self._lock:
            if self._attempt is not current:
                return
            self._tasks[vertex.name] = task
            self._snapshots[vertex.name] = snapshots
        with self._partitions.starting(vertex.name):
            task.start()

    def stop_tasks(self) -> None:
        """Stop all queries in parallel.

        Raises ``UnsupportedEnvironmentError`` if Spark's JVM has gone.
        """
        with self._lock:
            self._attempt = None
            tasks = dict(self._tasks)
        if tasks:
            try:
                for stopped in [in_background(task.stop) for task in tasks.values()]:
                    stopped.result()
            except Exception:
                check_alive(self._session)
                raise
        for vertex, task in tasks.items():
            counted = self._sum(vertex)
            self._unread[vertex] = task.unread()
            with self._lock:
                if self._tasks.get(vertex) is task:
                    self._metrics[vertex] = counted
                    del self._tasks[vertex]

    def answer_planning(self, effect: AnswerPlanning) -> None:
        """Answer a planning call. The call of a stopped query has already returned."""
        with self._lock:
            task = self._calls.pop(effect.call, None)
        if task is not None:
            task.answer(effect, starting=partial(self._partitions.draining, task.name))

    def release_segments(self, effect: ReleaseSegments) -> None:
        """Delete the files of segments that no consumer needs any more."""
        task = self._tasks.get(effect.vertex)
        if task is not None:
            task.release(effect.position)

    def drain(self, effect: StartDrain) -> None:
        """Start the batch with MAX_WATERMARK."""
        starting = partial(self._partitions.draining, effect.vertex)
        self._tasks[effect.vertex].drain(effect, starting=starting)

    def close_operators(self, vertex: VertexId) -> None:
        """Close the Python operators, then the sinks; Spark's own have nothing to close."""
        operators = self._operators(vertex)
        if operators is not None:
            operators.close()
        self._sinks.close(self._pipeline.vertices[vertex].sinks)

    def metrics(self, vertex: VertexId) -> VertexMetrics:
        """The vertex's counters."""
        return replace(
            self._sum(vertex),
            records_committed=self._sinks.rows_committed(self._pipeline.vertices[vertex].sinks),
            parallelism=self._partitions.of(vertex),
        )

    def unread(self, vertex: VertexId) -> Unread:
        """What a vertex has left of its sources, once the job is drained and its tasks stopped."""
        return self._unread.get(vertex, Unread())

    def subtasks(self, vertex: VertexId) -> tuple[SubtaskView, ...]:
        """The Spark tasks of the newest batch's longest stage; empty if no query runs."""
        task = self._tasks.get(vertex)
        return () if task is None else task.subtasks()

    def datasets(self) -> JobDatasets:
        """What the job reads and writes, as far as it is known now; asks the JVM."""
        frames = self._frames
        return JobDatasets() if frames is None else job_datasets(self._pipeline, frames)

    # -- snapshots

    def take_snapshot(self, effect: TakeSnapshot) -> None:
        """Run the synchronous part of a snapshot."""
        self._snapshots[effect.vertex].take(effect)
        task = self._tasks.get(effect.vertex)
        if task is not None:
            task.snapshot_taken(effect.checkpoint_id)

    def continue_snapshot(self, effect: ContinueSnapshot) -> tuple[TaskState, SnapshotMetrics]:
        """Run the asynchronous part of a snapshot."""
        state, metrics = self._snapshots[effect.vertex].proceed(effect.checkpoint_id)
        self._kafka.acknowledged(effect.checkpoint_id, state)
        task = self._tasks.get(effect.vertex)
        counted = () if task is None else task.counters.of_checkpoint(effect.checkpoint_id)
        return state, replace(metrics, counted=counted)

    def drop_snapshot(self, effect: DropSnapshot) -> None:
        """Forget a snapshot and delete its files."""
        self._snapshots[effect.vertex].drop(effect.checkpoint_id)

    def checkpoint_completed(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify the vertex's Python operators with their next batch, or before they close.

        Unless it is a savepoint, the next incremental snapshot is based on it.
        """
        self._snapshots[vertex].confirm(checkpoint_id)
        task = self._tasks.get(vertex)
        if task is not None:
            task.counters.checkpoint_completed(checkpoint_id)
        self._kafka.completed(vertex, checkpoint_id)
        operators = self._operators(vertex)
        if operators is not None:
            operators.completed.append(checkpoint_id)

    def checkpoint_aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify the vertex's Python operators with their next batch."""
        operators = self._operators(vertex)
        if operators is not None:
            operators.aborted.append(checkpoint_id)

    # -- inside

    def _staging(self, query: VertexQuery, current: _Attempt) -> BatchStaging:
        name, sinks = query.name, query.vertex.sinks
        output = None
        if self._pipeline.consumers(name):
            channel = join(current.directory, _CHANNELS, name)
            output = OutputSegments(
                query.directory.fs,
                channel,
                self._pipeline.tags(name),
                has_rows=bool(self._pipeline.row_readers(name)),
                has_rejects=bool(query.vertex.rejects),
            )
        return BatchStaging(
            query,
            sinks={sink: self._pipeline.sinks[sink] for sink in sinks},
            output=output,
            finish=lambda position: self._sinks.finish(sinks, position),
        )

    def _task_snapshots(
        self,
        plan: TaskPlan,
        query: VertexQuery,
        task: QueryTask,
        restored: TaskState | None,
        *,
        base: tuple[StateHandle, ...],
        entries: Mapping[str, str],
    ) -> TaskSnapshots:
        """``base`` are the files that the first incremental snapshot may share.

        ``entries`` are those of all its snapshots.
        """
        operators = query.operators
        return TaskSnapshots(
            vertex=query.name,
            operators=plan.operators,
            inputs=query.vertex.inputs,
            query=QueryState(
                query.directory,
                self._transfer,
                restored=restored,
                watermark_ms=task.watermark_ms,
                snapshot_operators=None if operators is None else operators.snapshot,
                layout=task.layout,
                entries={**entries, RELEASE_ENTRY: self._session.version},
            ),
            storage=self._storage,
            flush=self._sinks.flush,
            base=base,
            clock=self._clock,
            waits=ThreadWaits(),
        )

    def _operators(self, vertex: VertexId) -> OperatorChain | None:
        current = self._attempt
        return None if current is None else current.frames.operators(vertex)

    def _close_finished(self, current: _Attempt) -> None:
        """Notify operators that had finished in the restored checkpoint that it is complete.

        The driver may have died before they did, and nothing else starts them again.
        """
        checkpoint = current.restored
        for vertex in self._pipeline.vertices.values():
            operators = current.frames.operators(vertex.name)
            restored = current.states.get(vertex.name)
            if operators is None or restored is None or checkpoint is None:
                continue
            if restored.fully_finished and ENTRY in restored.entries:
                current.frames.of(vertex.name)
                directory = self._restored_directory(current, vertex, restored)
                operators.open(directory, restored.position, checkpoint.checkpoint_id)
                operators.completed.append(checkpoint.checkpoint_id)
                operators.close()

    def _abandon(self, frames: Frames) -> None:
        """Close the Python operators that were not closed, however the job has ended."""
        closing = {
            vertex: in_background(operators.abandon)
            for vertex in self._pipeline.vertices
            if (operators := frames.operators(vertex)) is not None
        }
        wait(closing.values(), timeout=_CLOSING_S)
        for vertex, closed in closing.items():
            error = closed.exception() if closed.done() else TimeoutError("Spark does not answer")
            if error is not None:
                _logger.warning("The operators of %r were not closed: %s", vertex, describe(error))

    def _on_planning(self, vertex: VertexId, attempt: int, call: int) -> None:
        with self._lock:
            current = self._attempt
            task = (
                self._tasks.get(vertex)
                if current is not None and current.number == attempt
                else None
            )
            if task is not None:
                self._calls[call] = task
        if task is not None:
            task.planning(call)

    def _release_frames(self) -> None:
        with self._lock:
            frames, self._frames = self._frames, None
        if frames is not None:
            frames.release()

    def _restored_directory(
        self, current: _Attempt, vertex: Vertex, restored: TaskState | None
    ) -> QueryDirectory:
        """Make the query's directory, filled from the checkpoint when restoring."""
        path = join(current.directory, vertex.name)
        fs = self._storage.fs(path)
        fs.delete(path)
        fs.make_directory(path)
        directory = QueryDirectory(fs, path)
        checkpoint = current.restored
        if restored is not None and checkpoint is not None:
            restore_directory(
                state=restored,
                checkpoint=checkpoint,
                storage=self._storage,
                transfer=self._transfer,
                directory=directory,
            )
            directory.keep_compaction(int(str(self._session.conf.get(_COMPACT_INTERVAL))))
        return directory

    def _sum(self, vertex: VertexId) -> VertexMetrics:
        with self._lock:
            before = self._metrics.get(vertex, VertexMetrics())
            task = self._tasks.get(vertex)
        if task is None:
            return replace(before, records_in_per_second=0.0, pending_records=None, lags={})
        now = task.metrics()
        counted = before.counted.copy()
        counted.update(now.counted)
        return replace(now, records_in=before.records_in + now.records_in, counted=counted)


def _with_fingerprints(
    operators: tuple[OperatorState, ...], found: Mapping[OperatorId, Fingerprint]
) -> tuple[OperatorState, ...]:
    return tuple(
        replace(operator, fingerprint=found.get(operator.operator_id, operator.fingerprint))
        for operator in operators
    )
