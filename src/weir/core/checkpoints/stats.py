"""Checkpoint statistics (MISSION A10), and the frozen values that REST and progress output read.

Field names follow Flink's REST API (``weir/rest`` only converts them to its JSON spelling). Reading
a value needs no lock. ``CheckpointStatsTracker`` is notified of what happens to each checkpoint;
``snapshot`` returns the frozen value:

1. A checkpoint attempt is in progress until it completes or fails. After that its entry changes in
   only two ways: late metrics are still added to a FAILED entry (they show which task was slow),
   and a COMPLETED entry can be marked as discarded.
2. A checkpoint in progress is always tracked to its end, even if newer checkpoints have pushed it
   out of the history.
3. Memory is bounded whatever the job's age: ``history_size`` entries, and the durations and sizes
   of ``MAX_SUMMARIZED`` checkpoints.
4. Durations are differences of the monotonic clock (``now_ms``); displayed times are wall clock
   (``wall_ms``, ``timestamp_ms``).
5. The cost of an acknowledgement does not depend on the number of tasks: an attempt's frozen value
   is built when it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from weir.core.checkpoints.request_decider import Verdict
from weir.core.types import (
    CompletedCheckpoint,
    Count,
    Ordinal,
    SnapshotKind,
    SnapshotMetrics,
    Timestamp,
    VertexId,
)
from weir.errors import invariant


@dataclass(frozen=True, kw_only=True)
class TaskCheckpointStats:
    """One task in one checkpoint."""

    vertex: VertexId
    #: Milliseconds since the Unix epoch; None until it acknowledged.
    ack_timestamp_ms: Timestamp | None = None
    #: Bytes of the full state.
    state_size: Count = 0
    metrics: SnapshotMetrics = field(default_factory=SnapshotMetrics)


@dataclass(frozen=True, kw_only=True)
class CheckpointStats:
    """One checkpoint attempt.

    ``status`` is IN_PROGRESS, COMPLETED or FAILED (Flink: CheckpointStatsStatus).
    """

    checkpoint_id: Ordinal
    kind: SnapshotKind
    status: str
    trigger_timestamp_ms: Timestamp
    #: From trigger to completion or failure; to now while in progress.
    end_to_end_duration_ms: Count = 0
    latest_ack_timestamp_ms: Timestamp | None = None
    checkpointed_size: Count = 0
    state_size: Count = 0
    tasks: tuple[TaskCheckpointStats, ...] = ()
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp_ms: Timestamp | None = None
    failure_message: str | None = None
    #: It is FAILED only because tasks that it needed were ending: nothing went wrong.
    met_ending_tasks: bool = False


@dataclass(frozen=True, kw_only=True)
class RestoredCheckpointStats:
    """The checkpoint that the newest attempt of the job was restored from."""

    checkpoint_id: Ordinal
    restore_timestamp_ms: Timestamp
    is_savepoint: bool
    external_path: str


@dataclass(frozen=True, kw_only=True)
class CheckpointCounts:
    """Numbers of checkpoints since the driver started."""

    restored: Count = 0
    total: Count = 0
    in_progress: Count = 0
    completed: Count = 0
    failed: Count = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointStatsSnapshot:
    """The state of ``CheckpointStatsTracker``; ``history`` is newest first."""

    counts: CheckpointCounts = field(default_factory=CheckpointCounts)
    history: tuple[CheckpointStats, ...] = ()
    latest_completed: CheckpointStats | None = None
    latest_savepoint: CheckpointStats | None = None
    latest_failed: CheckpointStats | None = None
    latest_restored: RestoredCheckpointStats | None = None
    #: Why the newest failed checkpoint failed, if it had no id yet; otherwise ``latest_failed`` has
    #: the reason.
    latest_trigger_failure: str | None = None
    #: Why queued requests wait (PROTOCOL P38); None if none waits.
    waits_because: Verdict | None = None
    #: Consecutive triggers that failed on the way to their tasks (MISSION A9).
    unsuccessful_triggers: Count = 0
    #: For completed checkpoints and savepoints since the driver started, in order of completion
    #: (bounded): end-to-end durations, bytes of the full state, and bytes that each wrote itself.
    durations_ms: tuple[Count, ...] = ()
    state_sizes: tuple[Count, ...] = ()
    checkpointed_sizes: tuple[Count, ...] = ()

    @property
    def newest_failure(self) -> str | None:
        """Why the newest failed checkpoint failed; None if none did."""
        if self.latest_trigger_failure is not None:
            return self.latest_trigger_failure
        return None if self.latest_failed is None else self.latest_failed.failure_message

    def find(self, checkpoint_id: int) -> CheckpointStats | None:
        """A checkpoint, from the history or from the latest of each kind."""
        latest = (self.latest_completed, self.latest_savepoint, self.latest_failed)
        known = (*self.history, *(stats for stats in latest if stats is not None))
        return next((stats for stats in known if stats.checkpoint_id == checkpoint_id), None)


#: For how many of the newest completed checkpoints durations and sizes are kept for percentiles.
MAX_SUMMARIZED = 10_000
#: How many ended attempts are kept for ``take_ended``; more than can end at once.
MAX_ENDED = 64

_IN_PROGRESS = "IN_PROGRESS"
_COMPLETED = "COMPLETED"
_FAILED = "FAILED"


class _Attempt:
    """One checkpoint attempt whose figures can still change."""

    def __init__(self, stats: CheckpointStats, triggered_ms: int) -> None:
        #: Monotonic milliseconds of the trigger.
        self.triggered_ms = triggered_ms
        #: Stale in what depends on ``_tasks`` until ``freeze`` is called.
        self._stats = stats
        self._tasks = {task.vertex: task for task in stats.tasks}
        self._looked_at = True

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint's id."""
        return self._stats.checkpoint_id

    @property
    def status(self) -> str:
        """IN_PROGRESS, COMPLETED or FAILED."""
        return self._stats.status

    def duration_ms(self, now_ms: int) -> int:
        """From the trigger to ``now_ms``."""
        return max(0, now_ms - self.triggered_ms)

    def acknowledged(self, task: TaskCheckpointStats) -> None:
        """A task acknowledged; duplicates and tasks that are not awaited are ignored."""
        known = self._tasks.get(task.vertex)
        if known is not None and known.ack_timestamp_ms is None:
            self._tasks[task.vertex] = task
            self._looked_at = False

    def change(self, **changes: Any) -> None:
        """Change fields of the value."""
        self._stats = replace(self.freeze(), **changes)

    def freeze(self) -> CheckpointStats:
        """The value as it is now."""
        if not self._looked_at:
            tasks = tuple(self._tasks.values())
            self._stats = replace(
                self._stats,
                tasks=tasks,
                latest_ack_timestamp_ms=max(
                    task.ack_timestamp_ms for task in tasks if task.ack_timestamp_ms is not None
                ),
                state_size=sum(task.state_size for task in tasks),
                checkpointed_size=sum(task.metrics.checkpointed_size for task in tasks),
            )
            self._looked_at = True
        return self._stats


class CheckpointStatsTracker:
    """Every checkpoint attempt since the driver started: times, sizes and figures per task."""

    def __init__(self, history_size: int) -> None:
        """``history_size`` (``web.checkpoints.history``): how many attempts to keep, at least 1."""
        invariant(
            history_size >= 1, f"history of {history_size} checkpoints, but must be at least 1"
        )
        self._history_size = history_size
        #: The newest attempts by id, in trigger order; at most ``history_size``.
        self._history: dict[int, _Attempt] = {}
        #: Attempts in progress by id; those also in the history are the same objects.
        self._in_progress: dict[int, _Attempt] = {}
        self._counts = CheckpointCounts()
        #: How many attempts met ending tasks; they are in the total, and have not failed.
        self._met_ending_tasks = 0
        self._latest_completed: _Attempt | None = None
        self._latest_savepoint: _Attempt | None = None
        self._latest_failed: _Attempt | None = None
        self._latest_restored: RestoredCheckpointStats | None = None
        #: Milliseconds, newest last; the sizes below are bytes in the same order.
        self._durations_ms: deque[int] = deque(maxlen=MAX_SUMMARIZED)
        self._state_sizes: deque[int] = deque(maxlen=MAX_SUMMARIZED)
        self._checkpointed_sizes: deque[int] = deque(maxlen=MAX_SUMMARIZED)
        #: Why the newest failed attempt failed, if it had no id yet.
        self._latest_trigger_failure: str | None = None
        #: Ended attempts that were not taken, oldest first.
        self._ended: deque[_Attempt] = deque(maxlen=MAX_ENDED)

    def report_pending(
        self,
        checkpoint_id: int,
        kind: SnapshotKind,
        timestamp_ms: int,
        vertices: Iterable[VertexId],
        now_ms: int,
    ) -> None:
        """An attempt is in progress; ``vertices`` have to acknowledge it."""
        invariant(
            checkpoint_id not in self._in_progress and checkpoint_id not in self._history,
            f"checkpoint {checkpoint_id} reported as pending twice",
        )
        stats = CheckpointStats(
            checkpoint_id=checkpoint_id,
            kind=kind,
            status=_IN_PROGRESS,
            trigger_timestamp_ms=timestamp_ms,
            tasks=tuple(TaskCheckpointStats(vertex=vertex) for vertex in vertices),
        )
        attempt = _Attempt(stats, now_ms)
        self._in_progress[checkpoint_id] = self._history[checkpoint_id] = attempt
        if len(self._history) > self._history_size:
            del self._history[next(iter(self._history))]
        self._count(total=1, in_progress=1)

    def report_acknowledged(
        self,
        checkpoint_id: int,
        vertex: VertexId,
        state_size: int,
        metrics: SnapshotMetrics,
        wall_ms: int,
    ) -> None:
        """A task acknowledged, in time or late.

        Late metrics are added to a FAILED entry if it is still known; they change nothing else. A
        second acknowledgement of a task is ignored.
        """
        attempt = self._in_progress.get(checkpoint_id) or self._find(checkpoint_id)
        if attempt is not None and attempt.status != _COMPLETED:
            attempt.acknowledged(
                TaskCheckpointStats(
                    vertex=vertex, ack_timestamp_ms=wall_ms, state_size=state_size, metrics=metrics
                )
            )

    def report_completed(self, checkpoint: CompletedCheckpoint, now_ms: int) -> None:
        """The checkpoint is durable; its full size includes finished tasks that took no part."""
        attempt = self._end(checkpoint.checkpoint_id)
        attempt.change(
            status=_COMPLETED,
            end_to_end_duration_ms=attempt.duration_ms(now_ms),
            external_path=checkpoint.external_path,
            state_size=sum(task.state_size for task in checkpoint.tasks),
        )
        if checkpoint.kind.is_savepoint:
            self._latest_savepoint = attempt
        else:
            self._latest_completed = attempt
        stats = attempt.freeze()
        self._durations_ms.append(stats.end_to_end_duration_ms)
        self._state_sizes.append(stats.state_size)
        self._checkpointed_sizes.append(stats.checkpointed_size)
        self._count(in_progress=-1, completed=1)

    def report_failed(
        self,
        checkpoint_id: int,
        message: str,
        wall_ms: int,
        now_ms: int,
        *,
        met_ending_tasks: bool = False,
    ) -> None:
        """An attempt in progress expired, was declined or was aborted; ``message`` says why.

        If it only met ending tasks, it has an entry in the history, and does not count as failed.
        """
        attempt = self._end(checkpoint_id)
        attempt.change(
            status=_FAILED,
            end_to_end_duration_ms=attempt.duration_ms(now_ms),
            failure_timestamp_ms=wall_ms,
            failure_message=message,
            met_ending_tasks=met_ending_tasks,
        )
        if met_ending_tasks:
            self._met_ending_tasks += 1
            self._count(in_progress=-1)
            return
        self._latest_failed, self._latest_trigger_failure = attempt, None
        self._count(in_progress=-1, failed=1)

    def report_failed_without_in_progress(self, message: str) -> None:
        """Count an attempt that failed before it had an id; keep its message, without an entry."""
        self._latest_trigger_failure = message
        self._count(total=1, failed=1)

    def take_ended(self) -> list[CheckpointStats]:
        """The attempts that have ended since the last call, oldest first: each is taken once."""
        ended = [attempt.freeze() for attempt in self._ended]
        self._ended.clear()
        return ended

    def report_restored(self, checkpoint: CompletedCheckpoint, timestamp_ms: int) -> None:
        """An attempt of the job was restored from ``checkpoint`` at ``timestamp_ms``."""
        self._latest_restored = RestoredCheckpointStats(
            checkpoint_id=checkpoint.checkpoint_id,
            restore_timestamp_ms=timestamp_ms,
            is_savepoint=checkpoint.kind.is_savepoint,
            external_path=checkpoint.external_path,
        )
        self._count(restored=1)

    def report_subsumed(self, checkpoint_id: int) -> None:
        """A completed checkpoint is no longer retained: mark it as discarded if still known."""
        attempt = self._find(checkpoint_id)
        if attempt is not None:
            invariant(
                attempt.status == _COMPLETED,
                f"checkpoint {checkpoint_id} is {attempt.status} and cannot be subsumed",
            )
            attempt.change(discarded=True)

    def snapshot(self, now_ms: int) -> CheckpointStatsSnapshot:
        """All figures as a frozen value; durations of attempts in progress run to ``now_ms``."""
        history = [
            attempt.freeze()
            if attempt.status != _IN_PROGRESS
            else replace(attempt.freeze(), end_to_end_duration_ms=attempt.duration_ms(now_ms))
            for attempt in self._history.values()
        ]
        return CheckpointStatsSnapshot(
            counts=self._counts,
            history=tuple(reversed(history)),
            latest_completed=_frozen(self._latest_completed),
            latest_savepoint=_frozen(self._latest_savepoint),
            latest_failed=_frozen(self._latest_failed),
            latest_restored=self._latest_restored,
            latest_trigger_failure=self._latest_trigger_failure,
            durations_ms=tuple(self._durations_ms),
            state_sizes=tuple(self._state_sizes),
            checkpointed_sizes=tuple(self._checkpointed_sizes),
        )

    def validate(self) -> None:
        """Check the laws of this tracker; raises ``InvariantError``."""
        counts = self._counts
        invariant(len(self._history) <= self._history_size, "the history exceeds its limit")
        invariant(
            counts.in_progress == len(self._in_progress),
            "the count of attempts in progress is wrong",
        )
        invariant(
            counts.total - self._met_ending_tasks
            == counts.in_progress + counts.completed + counts.failed,
            "the total differs from the sum of attempts in progress, completed and failed",
        )
        for checkpoint_id, attempt in self._history.items():
            invariant(
                attempt is self._in_progress.get(checkpoint_id, attempt)
                and (attempt.status == _IN_PROGRESS) == (checkpoint_id in self._in_progress),
                f"the history entry of checkpoint {checkpoint_id} contradicts the attempts in"
                " progress",
            )

    def _find(self, checkpoint_id: int) -> _Attempt | None:
        """The attempt if it is still shown anywhere."""
        latest = (self._latest_completed, self._latest_savepoint, self._latest_failed)
        known = (self._history.get(checkpoint_id), *latest)
        return next((a for a in known if a is not None and a.checkpoint_id == checkpoint_id), None)

    def _end(self, checkpoint_id: int) -> _Attempt:
        """Move an attempt from those in progress to those that ended."""
        invariant(
            checkpoint_id in self._in_progress, f"checkpoint {checkpoint_id} is not in progress"
        )
        attempt = self._in_progress.pop(checkpoint_id)
        self._ended.append(attempt)
        return attempt

    def _count(self, **changes: int) -> None:
        """Add to some of the counts."""
        counts = self._counts
        added = {name: getattr(counts, name) + change for name, change in changes.items()}
        self._counts = replace(counts, **added)


def _frozen(attempt: _Attempt | None) -> CheckpointStats | None:
    return None if attempt is None else attempt.freeze()
