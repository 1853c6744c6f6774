"""The timeline of a task: what its query did when, and the parts of its checkpoints.

It is made of the task's events and effects, on the main thread; Spark is not asked. Each task has
two lanes of spans:

1. *The query*: it runs a batch, rests in its planning call with nothing to read, is held there by a
   full channel (backpressure) or by the synchronous part of a snapshot, starts, or drains. It does
   exactly one of these at any time, so their totals are shares of the time.
2. *Checkpoints*: how a barrier reaches the task (a root waits for the end of its batch; others wait
   for the barriers of all channels, then read what is before them), both parts of the snapshot, and
   the commit of the sinks. Parts of several checkpoints can overlap.

A query that finds no rows plans again within milliseconds. Spans of the same kind with less than
``JOINED_MS`` between them become one, so that rest is one span and not thousands.

Times of spans are wall clock; a span's length is measured on the monotonic clock. Each lane keeps
its newest ``kept`` spans. Readers on other threads copy a lane in one step of the interpreter.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weir.core.messages.channel import (
    ChannelAppended,
    CheckpointBarrier,
    EndOfPartition,
    SegmentsConsumed,
)
from weir.core.messages.protocol import NotifyCheckpointAborted, TriggerCheckpoint
from weir.core.messages.task import (
    AnswerPlanning,
    AsyncPartDone,
    CommitSinks,
    ContinueSnapshot,
    Drained,
    PlanningCalled,
    RecordsEnded,
    SinkCommitFailed,
    SinksCommitted,
    SnapshotFailed,
    StartDrain,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskStarted,
)
from weir.core.types import VertexId
from weir.runtime.watching import Watchers

#: Neighbours of one kind with a shorter gap are one span.
JOINED_MS = 50
#: Parts of checkpoints that have begun and not ended; more are the sign of a lost end.
_OPEN_PARTS = 64


class SpanKind(enum.Enum):
    """What a span shows: of the query, from STARTING to DRAIN, and of a checkpoint after that."""

    STARTING = "starting"
    BATCH = "batch"
    #: Nothing to read.
    RESTED = "rested"
    #: A consumer lags too far: backpressure.
    HELD = "held"
    #: The synchronous part of a snapshot runs: no batch may start.
    SNAPSHOT = "snapshot"
    DRAIN = "drain"
    #: A root was triggered, and its batch has to end first.
    WAIT = "wait"
    #: The first barrier is there, and others are missing.
    ALIGNMENT = "alignment"
    #: All barriers are there, and rows before them have to be read.
    CATCH_UP = "catch-up"
    SYNC = "sync"
    ASYNC = "async"
    COMMIT = "commit"


#: The parts of a checkpoint before its snapshot is taken.
_BEFORE_SNAPSHOT = (SpanKind.WAIT, SpanKind.ALIGNMENT, SpanKind.CATCH_UP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A bar of the timeline."""

    kind: SpanKind
    #: Milliseconds since the Unix epoch.
    start_ms: int
    end_ms: int
    #: The number of the batch; None for other spans.
    batch: int | None = None
    #: The checkpoint that it is a part of; None for what the query does.
    checkpoint_id: int | None = None
    failed: bool = False


class TaskTimeline:
    """What a task does. Written on the main thread, read on any."""

    def __init__(
        self,
        vertex: VertexId,
        inputs: Iterable[VertexId],
        *,
        is_full: Callable[[], bool],
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        kept: int,
    ) -> None:
        """``is_full``: whether a consumer of the task lags too far for another batch.

        ``kept``: how many spans each lane holds at most.
        """
        self.vertex = vertex
        self._inputs = frozenset(inputs)
        self._is_full = is_full
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        #: Ended spans of the query and of checkpoints, oldest first.
        self.query: deque[Span] = deque(maxlen=kept)
        self.parts: deque[Span] = deque(maxlen=kept)
        #: Milliseconds of each kind since the driver started, without the open span.
        self._totals = dict.fromkeys(SpanKind, 0)
        #: The totals that readers have seen, under their lock.
        self._shown = dict(self._totals)
        self._showing = threading.Lock()
        #: What the query does, and since when (monotonic); None while it does not exist.
        self._doing: tuple[SpanKind, int] | None = None
        self._resting = False
        self._position = -1
        #: How many batches have ended, and how long the newest took.
        self.batches = 0
        self.batch_ms = 0
        #: How many commits have succeeded, and how long the newest took.
        self.commits = 0
        self.commit_ms = 0
        #: Open parts by checkpoint and kind: when they began (monotonic).
        self._open: dict[tuple[int, SpanKind], int] = {}
        #: The channels of this attempt that have not ended: only they bring barriers.
        self._open_channels = set(self._inputs)
        #: The channels whose barrier of a checkpoint is still missing.
        self._missing: dict[int, set[VertexId]] = {}

    def watch(self, watchers: Watchers) -> None:
        """Subscribe to what the task does."""
        watchers.watch_task(
            self.vertex,
            {
                TaskStarted: self._started,
                PlanningCalled: self._planning,
                AnswerPlanning: self._answered,
                SegmentsConsumed: self._consumed,
                StartDrain: lambda effect: self._do(SpanKind.DRAIN),
                **dict.fromkeys((RecordsEnded, Drained, TaskErrored), lambda event: self._do(None)),
                TriggerCheckpoint: lambda event: self._begin(event.checkpoint_id, SpanKind.WAIT),
                ChannelAppended: self._appended,
                TakeSnapshot: self._taken,
                SyncPartDone: self._sync_done,
                ContinueSnapshot: lambda effect: self._begin(effect.checkpoint_id, SpanKind.ASYNC),
                AsyncPartDone: lambda event: self._end(event.checkpoint_id, SpanKind.ASYNC),
                SnapshotFailed: self._snapshot_failed,
                NotifyCheckpointAborted: self._aborted,
                CommitSinks: lambda effect: self._begin(effect.checkpoint_id, SpanKind.COMMIT),
                SinksCommitted: self._committed,
                SinkCommitFailed: lambda event: self._end(
                    event.checkpoint_id, SpanKind.COMMIT, failed=True
                ),
            },
        )

    def starting(self) -> None:
        """An attempt begins: the task's query starts."""
        self._abandon()
        self._do(SpanKind.STARTING)

    def stopped(self) -> None:
        """The attempt is over: whatever has not ended never will."""
        self._abandon()
        self._do(None)

    def totals_ms(self) -> dict[SpanKind, int]:
        """How long the query did each thing since the driver started, until now.

        No total ever falls, since counters are made of them. What looks like a batch until Spark
        has found nothing to read counts as a batch at first, and as rest in the end.
        """
        with self._showing:
            doing, totals = self._doing, dict(self._totals)
            if doing is not None:
                totals[doing[0]] += max(0, self._now_ms() - doing[1])
            self._shown = {kind: max(ms, self._shown[kind]) for kind, ms in totals.items()}
            return dict(self._shown)

    def open_spans(self) -> list[Span]:
        """What has begun and not ended, until now."""
        now_ms, wall_ms, doing = self._now_ms(), self._wall_ms(), self._doing
        found = [
            Span(kind=kind, checkpoint_id=n, start_ms=wall_ms - (now_ms - began), end_ms=wall_ms)
            for (n, kind), began in tuple(self._open.items())
        ]
        if doing is not None:
            start_ms = wall_ms - (now_ms - doing[1])
            found.append(Span(kind=doing[0], start_ms=start_ms, end_ms=wall_ms))
        return found

    # ---- the query

    def _started(self, event: TaskStarted) -> None:
        self._position = event.position
        self._do(SpanKind.RESTED)

    def _planning(self, event: PlanningCalled) -> None:
        if self._doing is not None and self._doing[0] is SpanKind.BATCH:
            if event.position > self._position:
                self.batches += event.position - self._position
                self.batch_ms = self._now_ms() - self._doing[1]
            else:
                # Spark found nothing to read.
                self._doing = (SpanKind.RESTED, self._doing[1])
        self._position = event.position
        self._resting = True
        self._rest()

    def _answered(self, effect: AnswerPlanning) -> None:
        self._do(SpanKind.BATCH)
        self._resting = False

    def _consumed(self, event: SegmentsConsumed) -> None:
        if self._doing is not None and self._doing[0] in (SpanKind.HELD, SpanKind.RESTED):
            self._rest()

    def _rest(self) -> None:
        """The query waits in its planning call, if it is there."""
        if self._resting:
            self._do(SpanKind.HELD if self._is_full() else SpanKind.RESTED)

    def _do(self, kind: SpanKind | None) -> None:
        """The query does something else from now on."""
        doing, now_ms = self._doing, self._now_ms()
        if doing is not None and doing[0] is kind:
            return
        if doing is not None:
            self._did(doing[0], now_ms - doing[1])
        self._doing = None if kind is None else (kind, now_ms)
        if kind is None:
            self._resting = False

    def _did(self, kind: SpanKind, took_ms: int) -> None:
        """Add a span that ends now, or extend the last span."""
        self._totals[kind] += took_ms
        end_ms = self._wall_ms()
        start_ms = end_ms - took_ms
        last = self.query[-1] if self.query else None
        if kind in (SpanKind.RESTED, SpanKind.HELD):
            if last is not None and last.kind is kind and start_ms - last.end_ms < JOINED_MS:
                self.query.pop()
                start_ms = last.start_ms
            elif took_ms == 0:
                return
        batch = self._position if kind is SpanKind.BATCH else None
        self.query.append(Span(kind=kind, start_ms=start_ms, end_ms=end_ms, batch=batch))

    # ---- checkpoints

    def _appended(self, event: ChannelAppended) -> None:
        if event.vertex != self.vertex:  # its own effect, for a consumer
            return
        for entry in event.entries:
            if isinstance(entry, CheckpointBarrier):
                self._missing.setdefault(entry.checkpoint_id, set(self._open_channels))
                self._arrived(entry.checkpoint_id, event.channel)
            elif isinstance(entry, EndOfPartition):
                self._open_channels.discard(event.channel)
                for n in tuple(self._missing):
                    self._arrived(n, event.channel)

    def _arrived(self, checkpoint_id: int, channel: VertexId) -> None:
        """A channel has delivered its barrier, or will deliver none."""
        missing = self._missing[checkpoint_id]
        missing.discard(channel)
        if missing:
            self._begin(checkpoint_id, SpanKind.ALIGNMENT)
        else:
            self._end(checkpoint_id, SpanKind.ALIGNMENT)
            self._begin(checkpoint_id, SpanKind.CATCH_UP)

    def _taken(self, effect: TakeSnapshot) -> None:
        n = effect.checkpoint_id
        self._end(n, *_BEFORE_SNAPSHOT)
        self._missing = {m: rest for m, rest in self._missing.items() if m > n}
        self._begin(n, SpanKind.SYNC)
        if self._resting:
            self._do(SpanKind.SNAPSHOT)

    def _sync_done(self, event: SyncPartDone) -> None:
        self._end(event.checkpoint_id, SpanKind.SYNC)
        self._rest()

    def _snapshot_failed(self, event: SnapshotFailed) -> None:
        self._end(event.checkpoint_id, SpanKind.SYNC, SpanKind.ASYNC, failed=True)
        self._rest()

    def _aborted(self, event: NotifyCheckpointAborted) -> None:
        self._end(event.checkpoint_id, *_BEFORE_SNAPSHOT, failed=True)
        self._missing.pop(event.checkpoint_id, None)

    def _committed(self, event: SinksCommitted) -> None:
        began = self._open.get((event.checkpoint_id, SpanKind.COMMIT))
        if began is not None:
            self.commits += 1
            self.commit_ms = self._now_ms() - began
        self._end(event.checkpoint_id, SpanKind.COMMIT)

    def _begin(self, checkpoint_id: int, kind: SpanKind) -> None:
        if len(self._open) < _OPEN_PARTS:
            self._open.setdefault((checkpoint_id, kind), self._now_ms())

    def _end(self, checkpoint_id: int, *kinds: SpanKind, failed: bool = False) -> None:
        """End these parts of a checkpoint, those of them that have begun."""
        for kind in kinds:
            began = self._open.pop((checkpoint_id, kind), None)
            if began is not None:
                end_ms = self._wall_ms()
                self.parts.append(
                    Span(
                        kind=kind,
                        start_ms=end_ms - (self._now_ms() - began),
                        end_ms=end_ms,
                        checkpoint_id=checkpoint_id,
                        failed=failed,
                    )
                )

    def _abandon(self) -> None:
        for n, kind in tuple(self._open):
            self._end(n, kind, failed=True)
        self._missing.clear()
        self._open_channels = set(self._inputs)
