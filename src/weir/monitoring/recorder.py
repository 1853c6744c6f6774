"""``Recorder``: what happened in a job over the last hour, in bounded memory, for the web page.

1. *Timelines*, one per task (``timeline.py``): up to ``SPANS`` spans in all, and at least
   ``SPANS_MIN`` in each lane of a task.
2. *The story*: the newest ``MOMENTS`` moments, in sentences for people, and the bars of the newest
   ``CHECKPOINTS`` checkpoints.
3. *Failures*: the newest ``FAILURES``, each with the story before it and its outcome.
4. *Samples*: every ``SAMPLE_MS`` the counters of each task, for an hour. They are cumulative: a
   rate is the difference of two samples over their distance, whatever happened in between.
5. *The log*: the driver's newest lines, those of the story among them (``log_buffer.py``).

Everything is appended on the job's main thread, except the samples, which ``Sampler`` takes on a
thread of its own, and moments of other threads. Readers copy what they need in one step of the
interpreter and never wait for the job.
"""

from __future__ import annotations

import itertools
import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from weir.core.checkpoints.stats import CheckpointStats
from weir.core.job.master import JobMaster
from weir.core.messages.job import (
    AnswerRequest,
    DiscardCheckpoint,
    JobEnded,
    JobStatusChanged,
    StopTasks,
)
from weir.core.messages.protocol import (
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.status import JobStatus
from weir.core.task.stream_task import StreamTask
from weir.core.types import SnapshotKind, TaskStatus, VertexId
from weir.masking import masked
from weir.monitoring.log_buffer import LogBuffer
from weir.monitoring.timeline import SpanKind, TaskTimeline
from weir.monitoring.views import JobView
from weir.runtime.concurrency import Clock
from weir.runtime.watching import Watchers

_log = logging.getLogger(__name__)

#: Spans kept in all lanes together, and in each lane at least.
SPANS = 40_000
SPANS_MIN = 500
MOMENTS = 2_000
CHECKPOINTS = 1_000
FAILURES = 32
_TRIGGERS = 64
#: How many moments before a failure are kept with it.
STORY = 15
#: Milliseconds between two samples, and how many are kept: an hour.
SAMPLE_MS = 5_000
SAMPLES = 720

#: The counters of a task in a sample, in order. A count that is not known is -1.
COUNTERS = (
    "records_in",
    "records_committed",
    "batches",
    "batch_ms",
    "busy_ms",
    "rested_ms",
    "held_ms",
    "snapshot_ms",
    "watermark_ms",
    "behind_bytes",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A sentence of the story: something that happened."""

    #: Grows by one with each moment.
    number: int
    #: Milliseconds since the Unix epoch.
    time_ms: int
    #: What it is about: job, task, checkpoint, failure, request or note.
    kind: str
    text: str
    vertex: VertexId | None = None
    checkpoint_id: int | None = None
    #: A checkpoint goes as it should: nothing to report.
    is_routine: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt failed, and the outcome."""

    #: Milliseconds since the Unix epoch.
    time_ms: int
    attempt: int
    message: str
    #: Of bounded length; "" without a trace.
    trace: str
    #: The task that failed; None if it was not a task.
    vertex: VertexId | None
    #: What happened before it, oldest first.
    story: tuple[Moment, ...]
    #: What the restart strategy did; "" until it has decided.
    outcome: str = ""
    #: When the job ran again; None if it has not.
    recovered_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointBar:
    """A checkpoint in the timeline: from its trigger to its end."""

    checkpoint_id: int
    is_savepoint: bool
    #: Milliseconds since the Unix epoch.
    start_ms: int
    end_ms: int
    failed: bool


def checkpoint_bar(stats: CheckpointStats) -> CheckpointBar:
    """The bar of a checkpoint, up to now while it is in progress."""
    return CheckpointBar(
        checkpoint_id=stats.checkpoint_id,
        is_savepoint=stats.kind.is_savepoint,
        start_ms=stats.trigger_timestamp_ms,
        end_ms=stats.trigger_timestamp_ms + stats.end_to_end_duration_ms,
        failed=stats.status == "FAILED",
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sample:
    """The counters of all tasks at one time; equal to itself only, since arrays have no hash."""

    #: Milliseconds since the Unix epoch.
    time_ms: int
    #: ``COUNTERS`` of the first task, then of the second, and so on.
    values: array[int]


class Recorder:
    """The recorded hour of one job."""

    def __init__(
        self,
        clock: Clock,
        inputs: Mapping[VertexId, tuple[VertexId, ...]],
        tasks: Callable[[], Mapping[VertexId, StreamTask]],
    ) -> None:
        """``inputs``: for each task the tasks whose channels it reads.

        ``tasks`` returns the machines of the newest attempt's tasks.
        """
        self._clock = clock
        self._tasks = tasks
        kept = max(SPANS_MIN, SPANS // (2 * max(1, len(inputs))))
        self.timelines = {
            vertex: TaskTimeline(
                vertex,
                channels,
                is_full=partial(self._is_full, vertex),
                now_ms=clock.now_ms,
                wall_ms=clock.wall_ms,
                kept=kept,
            )
            for vertex, channels in inputs.items()
        }
        #: Oldest first, as all of these.
        self.moments: deque[Moment] = deque(maxlen=MOMENTS)
        self.failures: deque[Failure] = deque(maxlen=FAILURES)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        #: Those that have ended; the history of checkpoints is shorter.
        self.checkpoints: deque[CheckpointBar] = deque(maxlen=CHECKPOINTS)
        #: The driver's log, a context manager around the run.
        self.log = LogBuffer()
        self._numbers = itertools.count(1)
        #: The newest checkpoints whose trigger is in the story: every root is triggered.
        self._triggers: deque[int] = deque(maxlen=_TRIGGERS)

    # ---- on the main thread

    def watch(self, watchers: Watchers, master: JobMaster) -> None:
        """Subscribe to what happens in a job."""
        for timeline in self.timelines.values():
            timeline.watch(watchers)
        watchers.watch_effects(
            {
                TaskStatusChanged: self._task_status_changed,
                TriggerCheckpoint: self._triggered,
                DeclineCheckpoint: self._declined,
                StopTasks: self._stopped,
                JobStatusChanged: partial(self._status_changed, master),
                JobEnded: self._job_ended,
            }
        )
        # At least one of these follows at once when a checkpoint has ended.
        follows = (
            *(NotifyCheckpointComplete, NotifyCheckpointAborted, DiscardCheckpoint),
            *(AnswerRequest, JobStatusChanged, JobEnded),
        )
        watchers.watch_effects(dict.fromkeys(follows, partial(self._checkpoints_ended, master)))

    def _task_status_changed(self, effect: TaskStatusChanged) -> None:
        if effect.status is not TaskStatus.INITIALIZING:
            text = f"Task {effect.vertex} is {effect.status.value}."
            self.note("task", text, vertex=effect.vertex)

    def _triggered(self, effect: TriggerCheckpoint) -> None:
        n = effect.checkpoint_id
        if n not in self._triggers:
            self._triggers.append(n)
            self.note(
                "checkpoint",
                f"{_noun(effect.kind)} {n} was triggered.",
                checkpoint_id=n,
                is_routine=not effect.kind.is_savepoint,
            )

    def _declined(self, effect: DeclineCheckpoint) -> None:
        n, why = effect.checkpoint_id, effect.reason.describe(effect.message)
        text = f"Task {effect.vertex} declined checkpoint {n}: {why}"
        self.note("checkpoint", text, vertex=effect.vertex, checkpoint_id=n)

    def _checkpoints_ended(self, master: JobMaster, effect: object) -> None:
        """Note the checkpoints that have ended since the last call."""
        for stats in master.coordinator.take_ended():
            self.checkpoints.append(checkpoint_bar(stats))
            self.note(
                "checkpoint",
                _how_ended(stats),
                checkpoint_id=stats.checkpoint_id,
                is_routine=stats.status == "COMPLETED" and not stats.kind.is_savepoint,
            )

    def _stopped(self, effect: StopTasks) -> None:
        for timeline in self.timelines.values():
            timeline.stopped()

    def _job_ended(self, effect: JobEnded) -> None:
        end = f" Savepoint: {effect.savepoint}" if effect.savepoint else ""
        self.note("job", f"The job ended: {effect.status.value}.{end}")
        self._decided(f"The job ended: {effect.status.value}.")

    def _status_changed(self, master: JobMaster, effect: JobStatusChanged) -> None:
        status, attempt = effect.status, master.attempt
        if status is JobStatus.FAILING:
            failure = Failure(
                time_ms=self._clock.wall_ms(),
                attempt=attempt,
                message=masked(effect.message),
                trace=masked(effect.trace),
                vertex=effect.vertex,
                story=tuple(self.moments)[-STORY:],
            )
            self.failures.append(failure)
            first = effect.message.partition("\n")[0]
            self.note("failure", f"Failure: {first}", vertex=effect.vertex)
            return
        if status is JobStatus.RESTARTING:
            at_ms = master.restarts.at_ms
            in_ms = 0 if at_ms is None else max(0, at_ms - self._clock.now_ms())
            when = "" if at_ms is None else f" in {in_ms / 1000:.1f} s"
            self._decided(f"The restart strategy begins attempt {attempt + 1}{when}.")
        self.note("job", f"The job is {status.value} (attempt {attempt}).")
        if status is JobStatus.RUNNING:
            if self.failures and self.failures[-1].recovered_ms is None:
                self._change(recovered_ms=self._clock.wall_ms())
            # The others are finished in the restored checkpoint.
            for vertex in self._tasks():
                self.timelines[vertex].starting()

    def _decided(self, outcome: str) -> None:
        if self.failures and not self.failures[-1].outcome:
            self._change(outcome=outcome)

    def _change(self, **changes: object) -> None:
        self.failures[-1] = replace(self.failures[-1], **changes)  # type: ignore[arg-type]

    def _is_full(self, vertex: VertexId) -> bool:
        task = self._tasks().get(vertex)
        return task is not None and task.outputs.is_full

    # ---- on any thread

    def note(
        self,
        kind: str,
        text: str,
        *,
        vertex: VertexId | None = None,
        checkpoint_id: int | None = None,
        is_routine: bool = False,
    ) -> None:
        """Add a moment to the story, and with it a line to the log."""
        moment = Moment(
            number=next(self._numbers),
            time_ms=self._clock.wall_ms(),
            kind=kind,
            text=masked(text),
            vertex=vertex,
            checkpoint_id=checkpoint_id,
            is_routine=is_routine,
        )
        self.moments.append(moment)
        level = "ERROR" if kind == "failure" else "INFO"
        self.log.add(moment.time_ms, level, f"weir.{kind}", text, task=vertex or "")

    def sample(self, view: JobView) -> None:
        """Take a sample. At most one thread at a time."""
        self.samples.append(self.counted(view))

    def counted(self, view: JobView) -> Sample:
        """The counters as they are now."""
        values = array("q")
        for vertex in view.vertices:
            timeline = self.timelines[vertex.vertex]
            totals = timeline.totals_ms()
            values.extend(
                (
                    vertex.records_in,
                    vertex.records_committed,
                    timeline.batches,
                    timeline.batch_ms,
                    totals[SpanKind.BATCH] + totals[SpanKind.DRAIN],
                    totals[SpanKind.RESTED],
                    totals[SpanKind.HELD],
                    totals[SpanKind.SNAPSHOT],
                    -1 if vertex.watermark_ms is None else vertex.watermark_ms,
                    sum(channel.size for channel in vertex.outputs),
                )
            )
        return Sample(time_ms=self._clock.wall_ms(), values=values)


class Sampler:
    """Takes a sample of a job every ``SAMPLE_MS``, on a thread of its own. A context manager."""

    def __init__(self, recorder: Recorder, view: Callable[[], JobView]) -> None:
        self._recorder = recorder
        self._view = view
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weir-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._recorder.sample(self._view())
            except Exception:
                # The page then has a gap; the job goes on.
                _log.debug("Cannot take a sample.", exc_info=True)
            self._ending.wait(SAMPLE_MS / 1000)


def _noun(kind: SnapshotKind) -> str:
    return "Savepoint" if kind.is_savepoint else "Checkpoint"


def _how_ended(stats: CheckpointStats) -> str:
    name = f"{_noun(stats.kind)} {stats.checkpoint_id}"
    if stats.status == "FAILED":
        return f"{name} failed: {stats.failure_message}"
    where = f": {stats.external_path}" if stats.kind.is_savepoint else ""
    return f"{name} completed in {stats.end_to_end_duration_ms / 1000:.1f} s{where}"
