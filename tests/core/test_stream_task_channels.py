"""A task between channels: barriers, ends and backpressure.

MISSION B2, B3; PROTOCOL P28 to P32.
"""

from __future__ import annotations

import pytest
from tests.core.channel_task import BATCH_SIZE, OPERATORS, Task, barrier, kinds, segment, trigger

from weir.core.messages.channel import (
    Admission,
    CancelCheckpointMarker,
    ChannelAppended,
    EndOfPartition,
    EndOfUserRecords,
    ReleaseSegments,
    Segment,
    SegmentsConsumed,
    Watermark,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskFailed,
)
from weir.core.messages.task import (
    AnswerPlanning,
    BatchStaged,
    Drained,
    PlanningCalled,
    RecordsEnded,
    ReportAborted,
    SinksCommitted,
    StartDrain,
    SyncPartDone,
    TakeSnapshot,
)
from weir.core.task.output_channels import ChannelBound, OutputChannels
from weir.core.task.plan import TaskPlan
from weir.core.task.stream_task import StreamTask
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import TaskStatus


def test_a_task_with_channels_rests_until_there_is_something_to_read() -> None:
    """Its planning call is answered with what the next batch may read."""
    task = Task(inputs=("a",))
    assert task.plan(-1) == []
    (answer,) = task.get("a", segment(4))
    assert isinstance(answer, AnswerPlanning)
    assert [segment.position for segment in answer.admitted[0].segments] == [4]


def test_after_each_batch_a_query_may_take_one_of_its_own() -> None:
    """Spark runs a batch without data when a watermark has moved, but decides so only after its
    planning call."""
    task = Task(inputs=("a",))
    task.plan(-1)
    task.get("a", segment(0))
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]
    assert kinds(task.plan(1)) == ["AnswerPlanning"]
    assert task.plan(1) == []


def test_the_barrier_goes_downstream_before_the_snapshot_is_taken() -> None:
    """B2: pre-barrier, broadcast, snapshot; later records follow the barrier in the channel."""
    task = Task(consumers=("x", "y"))
    task.plan(-1)
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    task.do(trigger(1))
    assert kinds(task.plan(0)) == [
        "Segment",
        "Segment",
        "CheckpointBarrier",
        "CheckpointBarrier",
        "TakeSnapshot",
    ]


def test_a_segment_is_appended_when_its_batch_is_complete() -> None:
    """Not when it is staged: a failing step fails the job."""
    task = Task(consumers=("x",))
    task.plan(-1)
    assert task.do(BatchStaged(position=0, committables=(), segment=segment(0))) == []
    assert kinds(task.plan(0)) == ["Segment", "AnswerPlanning"]


def test_a_snapshot_is_taken_when_all_before_the_barrier_is_committed() -> None:
    """The batch that read up to it is committed, as the query's next planning call reports (P7)."""
    task = Task(inputs=("a",))
    task.plan(-1)
    task.get("a", segment(0))
    task.get("a", barrier(1))
    effects = task.plan(0, a=0)
    assert kinds(effects) == ["SegmentsConsumed", "TakeSnapshot"]
    assert effects[0] == SegmentsConsumed(
        vertex="a", consumer="v", position=0, batch_size=BATCH_SIZE
    )


def test_no_record_after_the_barrier_is_read_before_the_synchronous_part_is_done() -> None:
    """It would be in the snapshot's state."""
    task = Task(inputs=("a",))
    task.plan(-1)
    assert kinds(task.get("a", barrier(1))) == ["TakeSnapshot"]
    assert task.get("a", segment(0)) == []
    assert kinds(task.do(SyncPartDone(checkpoint_id=1))) == ["ContinueSnapshot", "AnswerPlanning"]


def test_the_alignment_is_part_of_the_acknowledgement() -> None:
    """B5."""
    task = Task(inputs=("a", "b"))
    task.plan(-1)
    task.get("a", barrier(1), 100)
    task.get("b", barrier(1), 140)
    acknowledged = task.snapshot(1, -1)[-1]
    assert isinstance(acknowledged, AcknowledgeCheckpoint)
    assert acknowledged.metrics.alignment_duration_ms == 40


def test_a_checkpoint_whose_barrier_will_not_come_is_declined_and_cancelled_downstream() -> None:
    """B3: no downstream task waits in vain."""
    task = Task(inputs=("a", "b"), consumers=("x",))
    task.plan(-1)
    task.get("a", barrier(1))
    effects = task.get("b", CancelCheckpointMarker(checkpoint_id=1))
    assert kinds(effects) == ["DeclineCheckpoint", "CancelCheckpointMarker"]
    assert effects[0].reason is Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER


def test_a_task_that_cannot_be_triggered_cancels_the_checkpoint_downstream() -> None:
    """B1 and B3."""
    task = StreamTask(
        TaskPlan(
            vertex="v",
            operators=OPERATORS,
            sinks=(),
            bounded=True,
            requires_final_checkpoint=True,
        ),
        attempt=1,
        consumers=("x",),
    )
    assert kinds(task.handle(trigger(1), 0)) == ["DeclineCheckpoint", "CancelCheckpointMarker"]


def test_an_aborted_alignment_lets_records_flow_again() -> None:
    """The coordinator aborts while one channel is held."""
    task = Task(inputs=("a", "b"))
    task.plan(-1)
    task.get("a", barrier(1))
    task.get("a", segment(0))
    assert kinds(task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1))) == [
        "ReportAborted",
        "AnswerPlanning",
    ]


def test_a_task_drains_when_every_channels_records_have_ended() -> None:
    """P28: its query is alive and gives up its held planning call; then the task ends its own
    channels."""
    task = Task(inputs=("a", "b"), consumers=("x",))
    task.plan(-1)
    assert kinds(task.get("a", EndOfUserRecords())) == ["AnswerPlanning"]
    task.plan(-1)
    (drain,) = task.get("b", EndOfUserRecords())
    assert drain == StartDrain(vertex="v", position=-1, call=2)
    effects = task.do(Drained(position=0))
    assert kinds(effects) == ["EndOfUserRecords", "TaskStatusChanged"]
    assert task.machine.status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def test_the_final_barrier_comes_after_the_end_of_records_and_before_the_end_of_the_channel() -> (
    None
):
    """P28: the order on a channel; the task takes its finished snapshot at that barrier."""
    task = Task(inputs=("a",), consumers=("x",))
    task.plan(-1)
    task.get("a", EndOfUserRecords())
    task.do(Drained(position=0))
    effects = task.get("a", barrier(1))
    assert kinds(effects) == ["CheckpointBarrier", "TakeSnapshot"]
    assert isinstance(effects[1], TakeSnapshot)
    assert effects[1].finished
    task.snapshot(1, 0)
    task.do(NotifyCheckpointComplete(vertex="v", checkpoint_id=1))
    assert kinds(task.do(SinksCommitted(checkpoint_id=1))) == [
        "TaskStatusChanged",
        "EndOfPartition",
    ]


def test_a_task_finishes_only_when_its_consumers_have_processed_everything() -> None:
    """P30: otherwise the coordinator would treat a consumer with unread records as a root."""
    task = Task(consumers=("x",))
    task.plan(-1)
    task.step(0)
    task.do(RecordsEnded(position=0))
    task.do(Drained(position=0))
    task.do(trigger(1))
    task.snapshot(1, 0)
    task.do(NotifyCheckpointComplete(vertex="v", checkpoint_id=1))
    assert task.do(SinksCommitted(checkpoint_id=1)) == []
    effects = task.do(SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE))
    assert kinds(effects) == ["ReleaseSegments", "TaskStatusChanged", "EndOfPartition"]


def test_a_task_whose_channels_have_all_ended_is_triggered_by_the_coordinator() -> None:
    """P31: it is a root now."""
    task = Task(inputs=("a",))
    task.plan(-1)
    for entry in (EndOfUserRecords(), barrier(1), EndOfPartition()):
        task.get("a", entry)
    task.do(Drained(position=0))
    task.snapshot(1, -1)
    assert kinds(task.do(trigger(2)))[-1] == "TakeSnapshot"


def test_a_trigger_to_a_closing_task_is_declined_and_cancelled_downstream() -> None:
    """P32: the cancellation marker precedes the end of the channel."""
    task = Task(consumers=("x",))
    _end_with_checkpoint(task, 1)
    task.do(trigger(2))
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE)
    assert kinds(task.do(consumed)) == ["ReleaseSegments"], "checkpoint 2 is answered first"
    effects = task.do(trigger(3))
    assert isinstance(effects[0], DeclineCheckpoint)
    assert effects[0].reason is Reason.CHECKPOINT_DECLINED_TASK_CLOSING
    assert kinds(effects)[1:] == ["CancelCheckpointMarker"]


def test_a_task_that_has_ended_takes_part_in_checkpoints_until_its_consumers_have_read_all() -> (
    None
):
    """Otherwise no checkpoint would complete while they read, and a stop would fail the job
    over."""
    task = Task(consumers=("x",))
    _end_with_checkpoint(task, 1)
    assert kinds(task.do(trigger(2))) == ["CheckpointBarrier", "TakeSnapshot"]


def _end_with_checkpoint(task: Task, checkpoint_id: int) -> None:
    """Emit one unread step, end the records, then take and commit the final checkpoint."""
    task.plan(-1)
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    task.plan(0)
    task.do(RecordsEnded(position=0))
    task.do(Drained(position=0))
    task.do(trigger(checkpoint_id))
    task.snapshot(checkpoint_id, 0)
    task.do(NotifyCheckpointComplete(vertex="v", checkpoint_id=checkpoint_id))
    task.do(SinksCommitted(checkpoint_id=checkpoint_id))


def test_a_watermark_follows_the_segments_that_it_speaks_of() -> None:
    """The producer's output watermark follows the step's output, and only when it has advanced
    (P25)."""
    task = Task(consumers=("x",))
    task.plan(-1)
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    planned = PlanningCalled(call=2, position=0, watermark_ms=70)
    assert kinds(task.do(planned)) == ["Segment", "Watermark", "AnswerPlanning"]
    planned = PlanningCalled(call=3, position=0, watermark_ms=70)
    assert kinds(task.do(planned)) == ["AnswerPlanning"]


def test_a_batch_takes_a_segment_and_the_watermark_after_it_together() -> None:
    """Both arrive in one message, so the watermark alone does not cause another step."""
    task = Task(inputs=("a",))
    task.plan(-1)
    entries = (segment(0), Watermark(timestamp_ms=70))
    (answer,) = task.do(ChannelAppended(vertex="v", channel="a", entries=entries))
    assert answer == AnswerPlanning(
        call=1, admitted=(Admission(channel="a", segments=(segment(0),)),), watermarks_ms={"a": 70}
    )


def test_a_task_takes_a_watermark_to_its_query_with_the_next_batch() -> None:
    """It runs a step without a segment if there is none to read."""
    task = Task(inputs=("a",))
    task.plan(-1)
    (answer,) = task.get("a", Watermark(timestamp_ms=70))
    assert answer == AnswerPlanning(call=1, watermarks_ms={"a": 70})


def test_a_resting_task_runs_a_batch_for_operators_that_hear_how_a_checkpoint_ended() -> None:
    """Its channels have nothing to read, and nobody knows when they will."""
    task = Task(inputs=("in",), operators_take_part=True)
    task.plan(-1)
    task.get("in", segment(0))
    task.do(BatchStaged(position=0, committables=()))
    assert AnswerPlanning(call=2) in task.plan(0, **{"in": 0})
    assert task.plan(0) == []
    report = ReportAborted(vertex="v", checkpoint_id=1)
    assert task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1)) == [
        report,
        AnswerPlanning(call=3),
    ]


def test_a_producer_rests_while_a_consumer_is_too_far_behind() -> None:
    """Backpressure: a full channel holds the planning call, but checkpoints are still taken."""
    task = Task(consumers=("x", "y"))
    task.plan(-1)
    bound = ChannelBound().segments
    for position in range(bound - 1):
        assert kinds(task.step(position))[-1] == "AnswerPlanning"
        task.do(
            SegmentsConsumed(vertex="v", consumer="y", position=position, batch_size=BATCH_SIZE)
        )
    assert kinds(task.step(bound - 1)) == ["Segment", "Segment"]
    assert kinds(task.do(trigger(1)))[-1] == "TakeSnapshot"
    task.snapshot(1, bound - 1)
    assert (
        kinds(
            task.do(SegmentsConsumed(vertex="v", consumer="x", position=0, batch_size=BATCH_SIZE))
        )[0]
        == "AnswerPlanning"
    )


def test_a_producer_does_not_run_ahead_of_what_a_consumer_reads_in_two_batches() -> None:
    """A barrier waits for everything before it: one step being read and one waiting keep a consumer
    busy."""
    channels = OutputChannels("v", ("x", "y"), ChannelBound())

    def put_out(position: int, size: int) -> None:
        channels.staged(Segment(position=position, size=size, payload={}))
        channels.completed(position)

    put_out(0, 1)
    for consumer in ("x", "y"):
        channels.consumed(consumer, 0, batch_size=BATCH_SIZE)
    put_out(1, BATCH_SIZE * 2)
    assert not channels.is_full, "one segment, however large, is read while the next one is made"
    put_out(2, 1)
    assert channels.is_full
    for consumer in ("x", "y"):
        channels.consumed(consumer, 1, batch_size=BATCH_SIZE)
    assert not channels.is_full
    put_out(3, 10)
    channels.consumed("y", 2, batch_size=5)
    assert not channels.is_full
    put_out(4, 10)
    assert channels.is_full, "y takes steps of five bytes and has twenty to read"


def test_a_producer_is_one_segment_ahead_of_a_consumer_that_has_read_none() -> None:
    """First batches take seconds: more of them elsewhere would only slow the consumer down."""
    channels = OutputChannels("v", ("x", "y"), ChannelBound())
    assert not channels.is_full
    channels.staged(Segment(position=0, size=1, payload={}))
    channels.completed(0)
    channels.consumed("x", 0, batch_size=BATCH_SIZE)
    assert channels.is_full, "y has read nothing"
    channels.consumed("y", 0, batch_size=BATCH_SIZE)
    assert not channels.is_full


def test_segments_are_released_when_every_consumer_has_read_them() -> None:
    """Their files are no longer needed."""
    task = Task(consumers=("x", "y"))
    task.plan(-1)
    task.step(0)
    task.step(1)
    assert (
        task.do(SegmentsConsumed(vertex="v", consumer="x", position=1, batch_size=BATCH_SIZE)) == []
    )
    released = task.do(
        SegmentsConsumed(vertex="v", consumer="y", position=0, batch_size=BATCH_SIZE)
    )
    assert released == [ReleaseSegments(vertex="v", position=0)]
    released = task.do(
        SegmentsConsumed(vertex="v", consumer="y", position=1, batch_size=BATCH_SIZE)
    )
    assert released == [ReleaseSegments(vertex="v", position=1)]


@pytest.mark.parametrize("read", [-1, 3])
def test_a_batch_that_did_not_read_what_it_was_let_fails_the_task_by_name(read: int) -> None:
    """P7: going on would lose records, or put a later checkpoint's records into this checkpoint."""
    task = Task(inputs=("a",))
    task.plan(-1)
    task.get("a", segment(2))
    failed = task.plan(0, a=read)[-1]
    assert isinstance(failed, TaskFailed)
    assert failed.message == (
        f"Batch 0 of 'v' did not read exactly the admitted segments: read channel 'a' up to segment"
        f" {read} instead of 2"
    )


def test_operators_get_a_first_batch_before_they_finish() -> None:
    """E2: though no record came; it reads nothing, and the drain follows it."""
    task = Task(inputs=("a",), has_operators=True)
    task.plan(-1)
    [answer] = task.get("a", EndOfUserRecords())
    assert isinstance(answer, AnswerPlanning)
    assert (answer.only_events, answer.admitted, answer.watermarks_ms) == (True, (), {})
    task.do(BatchStaged(position=0, committables=()))
    [drain] = task.plan(0)
    assert isinstance(drain, StartDrain)
    assert drain.position == 0
