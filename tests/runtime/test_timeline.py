"""The timeline of a task: what its query did, and the parts of its checkpoints."""

from __future__ import annotations

from tests.kit.clock import ManualClock

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
    PlanningCalled,
    SinksCommitted,
    SyncPartDone,
    TakeSnapshot,
    TaskStarted,
)
from weir.core.types import SnapshotKind, SnapshotMetrics, TaskState
from weir.monitoring.timeline import Span, SpanKind, TaskTimeline
from weir.runtime.watching import Watchers

#: Wall clock time is monotonic time plus this.
EPOCH = 1_000_000


class Watched:
    """A timeline whose time the test sets."""

    def __init__(self, *inputs: str, kept: int = 100) -> None:
        self.clock = ManualClock(0, epoch_ms=EPOCH)
        self.is_full = False
        self.watchers = Watchers()
        self.timeline = TaskTimeline(
            "v",
            inputs,
            is_full=lambda: self.is_full,
            now_ms=self.clock.now_ms,
            wall_ms=self.clock.wall_ms,
            kept=kept,
        )
        self.timeline.watch(self.watchers)

    def at(self, now_ms: int, message: object, is_full: bool = False) -> None:
        self.clock.ms = now_ms
        self.is_full = is_full
        for watch in self.watchers.of_task("v", type(message)):
            watch(message)

    def query(self) -> list[tuple[str, int, int]]:
        return shown(self.timeline.query)

    def parts(self) -> list[tuple[str, int, int]]:
        return shown(self.timeline.parts)


def shown(spans: object) -> list[tuple[str, int, int]]:
    assert isinstance(spans, list | tuple) or hasattr(spans, "__iter__")
    return [
        (span.kind.value, span.start_ms - EPOCH, span.end_ms - EPOCH)
        for span in spans
        if isinstance(span, Span)
    ]


def called(position: int) -> PlanningCalled:
    return PlanningCalled(call=1, position=position)


def consumed(position: int) -> SegmentsConsumed:
    return SegmentsConsumed(vertex="v", consumer="w", position=position, batch_size=1)


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(
        checkpoint_id=checkpoint_id, kind=SnapshotKind.CHECKPOINT, timestamp_ms=0
    )


def taken(checkpoint_id: int) -> TakeSnapshot:
    return TakeSnapshot(
        vertex="v",
        checkpoint_id=checkpoint_id,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        target=None,
        position=1,
        finished=False,
        committables=(),
    )


def appended(channel: str, checkpoint_id: int, vertex: str = "v") -> ChannelAppended:
    return ChannelAppended(vertex=vertex, channel=channel, entries=(barrier(checkpoint_id),))


def test_a_batch_runs_from_the_answer_to_the_next_planning_call() -> None:
    """It differs from rest by the position, which moves with each batch."""
    seen = Watched()
    seen.timeline.starting()
    seen.at(100, TaskStarted(position=-1))
    seen.at(100, called(-1))
    seen.at(100, AnswerPlanning(call=1))
    seen.at(900, called(0))
    seen.at(1_000, AnswerPlanning(call=1))
    assert seen.query() == [("starting", 0, 100), ("batch", 100, 900), ("rested", 900, 1_000)]
    assert [span.batch for span in seen.timeline.query] == [None, 0, None]
    assert (seen.timeline.batches, seen.timeline.batch_ms) == (1, 800)


def test_a_query_that_finds_no_rows_rests_in_one_span() -> None:
    """Though Spark plans again every few milliseconds."""
    seen = Watched()
    seen.at(0, TaskStarted(position=3))
    for now_ms in range(0, 1_000, 10):
        seen.at(now_ms, called(3))
        seen.at(now_ms, AnswerPlanning(call=1))
    seen.at(2_000, called(4))
    assert seen.query() == [("rested", 0, 990), ("batch", 990, 2_000)]
    assert seen.timeline.totals_ms()[SpanKind.RESTED] == 990


def test_a_query_behind_a_full_channel_is_held_until_a_consumer_has_read() -> None:
    """Backpressure begins and ends with the events that fill and empty the channel."""
    seen = Watched()
    seen.at(0, TaskStarted(position=0))
    seen.at(0, called(0))
    seen.at(0, AnswerPlanning(call=1))
    seen.at(100, called(1), is_full=True)
    seen.at(400, consumed(0), is_full=True)
    seen.at(500, consumed(1), is_full=False)
    seen.at(600, AnswerPlanning(call=1))
    assert seen.query() == [("batch", 0, 100), ("held", 100, 500), ("rested", 500, 600)]


def test_the_shares_of_the_time_add_up() -> None:
    """What a query does right now counts too."""
    seen = Watched()
    seen.at(0, TaskStarted(position=0))
    seen.at(50, called(0), is_full=True)
    seen.at(80, AnswerPlanning(call=1))
    seen.clock.ms = 200
    assert {kind: ms for kind, ms in seen.timeline.totals_ms().items() if ms} == {
        SpanKind.RESTED: 50,
        SpanKind.HELD: 30,
        SpanKind.BATCH: 120,
    }


def test_no_total_falls_when_a_batch_turns_out_to_be_rest() -> None:
    """Counters are made of them, and a counter that falls counts as a restart."""
    seen = Watched()
    seen.at(0, TaskStarted(position=0))
    seen.at(0, called(0))
    seen.at(0, AnswerPlanning(call=1))
    seen.clock.ms = 300
    assert seen.timeline.totals_ms()[SpanKind.BATCH] == 300
    seen.at(400, called(0))
    assert seen.timeline.totals_ms()[SpanKind.BATCH] == 300
    assert seen.timeline.totals_ms()[SpanKind.RESTED] == 400
    seen.at(400, AnswerPlanning(call=2))
    seen.at(800, called(1))
    assert seen.timeline.totals_ms()[SpanKind.BATCH] == 400


def test_a_root_waits_for_its_batch_and_then_takes_both_parts_and_commits() -> None:
    """Each part of a checkpoint is a span; meanwhile the query is held by the first part only."""
    seen = Watched()
    seen.at(0, TaskStarted(position=0))
    seen.at(0, called(0))
    seen.at(0, AnswerPlanning(call=1))
    seen.at(100, TriggerCheckpoint(vertex="v", barrier=barrier(7)))
    seen.at(300, called(1))
    seen.at(300, taken(7))
    seen.at(320, SyncPartDone(checkpoint_id=7))
    seen.at(320, ContinueSnapshot(vertex="v", checkpoint_id=7))
    seen.at(320, AnswerPlanning(call=1))
    state = TaskState(vertex="v", position=1, operators=())
    seen.at(400, AsyncPartDone(checkpoint_id=7, state=state, metrics=SnapshotMetrics()))
    seen.at(450, CommitSinks(vertex="v", checkpoint_id=7, payloads={}))
    seen.at(500, SinksCommitted(checkpoint_id=7))
    assert seen.parts() == [
        ("wait", 100, 300),
        ("sync", 300, 320),
        ("async", 320, 400),
        ("commit", 450, 500),
    ]
    assert seen.query() == [("batch", 0, 300), ("snapshot", 300, 320)]
    assert {span.checkpoint_id for span in seen.timeline.parts} == {7}


def test_missing_barriers_are_told_from_unread_rows() -> None:
    """The first shows a slow input, the second a slow task."""
    seen = Watched("left", "right")
    seen.at(100, appended("left", 3))
    seen.at(200, appended("v", 3, vertex="downstream"))
    seen.at(400, appended("right", 3))
    seen.at(900, taken(3))
    assert seen.parts() == [("alignment", 100, 400), ("catch-up", 400, 900)]


def test_a_channel_that_has_ended_is_not_waited_for() -> None:
    """Before the barriers of the others or after them; a new attempt begins with all channels."""
    seen = Watched("left", "right")
    seen.at(100, appended("left", 3))
    end = ChannelAppended(vertex="v", channel="right", entries=(EndOfPartition(),))
    seen.at(300, end)
    seen.at(500, taken(3))
    seen.at(600, appended("left", 4))
    seen.at(900, taken(4))
    assert seen.parts() == [("alignment", 100, 300), ("catch-up", 300, 500), ("catch-up", 600, 900)]
    seen.timeline.starting()
    seen.at(1_000, appended("left", 5))
    assert SpanKind.ALIGNMENT in {span.kind for span in seen.timeline.open_spans()}


def test_an_aborted_checkpoint_ends_its_alignment_as_failed() -> None:
    """So does the end of the attempt, for all that is in progress."""
    seen = Watched("left", "right")
    seen.at(100, appended("left", 3))
    seen.at(500, NotifyCheckpointAborted(vertex="v", checkpoint_id=3))
    seen.at(600, appended("left", 4))
    seen.clock.ms = 700
    assert [span.kind for span in seen.timeline.open_spans()] == [SpanKind.ALIGNMENT]
    seen.timeline.stopped()
    assert seen.parts() == [("alignment", 100, 500), ("alignment", 600, 700)]
    assert all(span.failed for span in seen.timeline.parts)
    assert seen.timeline.open_spans() == []


def test_a_lane_keeps_its_newest_spans() -> None:
    """Memory is bounded, however long the job runs."""
    seen = Watched(kept=10)
    seen.at(0, TaskStarted(position=0))
    for batch in range(100):
        seen.at(batch * 1_000, AnswerPlanning(call=1))
        seen.at(batch * 1_000 + 500, called(batch + 1))
    assert len(seen.timeline.query) == 10
    assert seen.timeline.batches == 100
