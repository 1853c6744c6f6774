"""Watermarks before a barrier take effect before its snapshot.

So a checkpoint has the windows that they close, as in Flink, where a watermark closes windows
before the barrier behind it arrives (MISSION D; PROTOCOL P7, P25).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.channel_task import Task, barrier, kinds, segment

from weir.core.messages.channel import ChannelEntry, EndOfUserRecords, SegmentsConsumed, Watermark
from weir.core.messages.protocol import NotifyCheckpointAborted
from weir.core.messages.task import AnswerPlanning, BatchStaged, TakeSnapshot
from weir.core.types import SnapshotKind, TaskStatus


def at_barrier(*after: ChannelEntry, **options: Any) -> Task:
    """A task that has read its first segment, with a watermark and a barrier behind it."""
    task = Task(inputs=("a",), **options)
    task.get("a", segment(0))
    for entry in (Watermark(timestamp_ms=70), barrier(1), *after):
        task.get("a", entry)
    task.plan(-1)
    return task


def answers(effects: list[Any]) -> list[AnswerPlanning]:
    """The answers to planning calls among the effects."""
    return [effect for effect in effects if isinstance(effect, AnswerPlanning)]


def snapshots(effects: list[Any]) -> list[int]:
    """The positions of the snapshots among the effects."""
    return [effect.position for effect in effects if isinstance(effect, TakeSnapshot)]


def test_a_query_closes_windows_before_the_snapshot_of_the_next_barrier() -> None:
    """Spark runs a batch without rows for the watermark that the last batch brought."""
    task = at_barrier()
    assert answers(task.plan(0, a=0)) == [AnswerPlanning(call=2, watermarks_ms={"a": 70})]
    assert snapshots(task.plan(1)) == [1]


def test_a_query_without_windows_takes_its_snapshot_after_one_more_planning_call() -> None:
    """It runs no batch without rows."""
    task = at_barrier()
    assert snapshots(task.plan(0, a=0)) == []
    assert snapshots(task.plan(0)) == [0]


def test_a_watermark_that_came_without_rows_is_sent_before_it_takes_effect() -> None:
    """It takes two batches: one that brings it, one in which it closes windows."""
    task = Task(inputs=("a",))
    task.plan(-1)
    task.get("a", segment(0))
    task.get("a", Watermark(timestamp_ms=70))
    task.get("a", barrier(1))
    assert answers(task.plan(0, a=0)) == [AnswerPlanning(call=2, watermarks_ms={"a": 70})]
    assert answers(task.plan(1)) == [AnswerPlanning(call=3, watermarks_ms={"a": 70})]
    assert snapshots(task.plan(2)) == [2]


def test_a_query_that_could_close_its_windows_takes_its_snapshot_at_once() -> None:
    """It rests: nothing is left to be done for the last watermark."""
    task = Task(inputs=("a",))
    task.get("a", segment(0))
    task.get("a", Watermark(timestamp_ms=70))
    task.plan(-1)
    assert kinds(task.plan(0, a=0)) == ["SegmentsConsumed", "AnswerPlanning"]
    task.plan(1)
    assert task.plan(1) == []
    assert snapshots(task.get("a", barrier(1))) == [1]


def test_nothing_behind_the_barrier_takes_effect_before_the_snapshot() -> None:
    """A restored producer may send other rows, below that watermark (P25)."""
    task = at_barrier(Watermark(timestamp_ms=90), segment(1))
    assert answers(task.plan(0, a=0)) == [AnswerPlanning(call=2, watermarks_ms={"a": 70})]
    assert snapshots(task.plan(1)) == [1]
    [answer] = answers(task.snapshot(1, 1))
    assert answer.watermarks_ms == {"a": 90}
    assert [segment.position for segment in answer.admitted[0].segments] == [1]


def test_an_aborted_checkpoint_no_longer_keeps_the_query_from_reading_on() -> None:
    """It is aborted while the batch for the watermark runs."""
    task = at_barrier(Watermark(timestamp_ms=90), segment(1))
    task.plan(0, a=0)
    assert answers(task.do(NotifyCheckpointAborted(vertex="v", checkpoint_id=1))) == []
    [answer] = answers(task.plan(1))
    assert answer.watermarks_ms == {"a": 90}
    assert [segment.position for segment in answer.admitted[0].segments] == [1]


def test_the_next_barrier_waits_for_the_snapshot_of_the_first() -> None:
    """Both were there; no batch runs between the two snapshots."""
    task = at_barrier(barrier(2))
    task.plan(0, a=0)
    assert snapshots(task.plan(1)) == [1]
    assert snapshots(task.snapshot(1, 1)) == [1]


def test_operators_that_prepare_for_a_barrier_need_no_batch_besides_its_own() -> None:
    """The last watermark is in force in the batch that carries the barrier (P6)."""
    task = at_barrier(prepares_for_barriers=True)
    assert answers(task.plan(0, a=0)) == [AnswerPlanning(call=2, barrier=1)]
    assert snapshots(task.plan(1)) == [1]


def test_operators_hear_of_a_watermark_that_came_without_rows_before_they_prepare() -> None:
    """It takes effect in the batch after the one that brings it: here that of the barrier."""
    task = Task(inputs=("a",), prepares_for_barriers=True)
    task.plan(-1)
    task.get("a", segment(0))
    task.get("a", Watermark(timestamp_ms=70))
    task.get("a", barrier(1))
    assert answers(task.plan(0, a=0)) == [AnswerPlanning(call=2, watermarks_ms={"a": 70})]
    assert answers(task.plan(1)) == [AnswerPlanning(call=3, barrier=1)]
    assert snapshots(task.plan(2)) == [2]


def test_an_unaligned_checkpoint_waits_for_watermarks_no_longer_than_for_barriers() -> None:
    """The timeout counts from the arrival of the first barrier; a savepoint has none."""
    task = at_barrier(aligned_timeout_ms=1_000)
    assert snapshots(task.plan(0, now_ms=1_000, a=0)) == [0]
    task = at_barrier(aligned_timeout_ms=1_000)
    assert len(answers(task.plan(0, now_ms=999, a=0))) == 1
    assert snapshots(task.plan(1, now_ms=5_000)) == [1]
    task = Task(inputs=("a",), aligned_timeout_ms=0)
    task.get("a", segment(0))
    for entry in (Watermark(timestamp_ms=70), barrier(1, SnapshotKind.SAVEPOINT)):
        task.get("a", entry)
    task.plan(-1)
    assert len(answers(task.plan(0, now_ms=9_000, a=0))) == 1
    assert snapshots(task.plan(1, now_ms=9_000)) == [1]


def test_a_task_whose_consumer_lags_takes_its_snapshot_without_such_a_batch() -> None:
    """What windows emit would have to wait, and the barrier behind it."""
    task = Task(inputs=("a",), consumers=("x",))
    task.do(SegmentsConsumed(vertex="v", consumer="x", position=-1, batch_size=1))
    task.get("a", segment(0))
    task.plan(-1)
    for entry in (segment(1), Watermark(timestamp_ms=70), barrier(1)):
        task.get("a", entry)
    task.do(BatchStaged(position=0, committables=(), segment=segment(0)))
    task.plan(0, a=0)
    task.do(BatchStaged(position=1, committables=(), segment=segment(1)))
    assert snapshots(task.plan(1, a=1)) == [1]
    assert answers(task.snapshot(1, 1)) == []
    consumed = SegmentsConsumed(vertex="v", consumer="x", position=1, batch_size=1)
    assert answers(task.do(consumed)) == [AnswerPlanning(call=3, watermarks_ms={"a": 70})]


def test_windows_stay_in_the_state_when_the_job_stops_without_a_drain() -> None:
    """No batch runs after the end of the records (P28)."""
    task = Task(inputs=("a",))
    task.get("a", segment(0))
    task.get("a", Watermark(timestamp_ms=70))
    task.plan(-1)
    task.get("a", EndOfUserRecords(finished=False, savepoint=1))
    task.get("a", barrier(1, SnapshotKind.SYNC_SAVEPOINT))
    assert snapshots(task.plan(0, a=0)) == [0]


@pytest.mark.parametrize("late", [False, True])
def test_windows_that_the_last_watermark_closes_are_emitted_before_a_stop_with_checkpoint(
    *, late: bool
) -> None:
    """A run of a scheduler shows what a query of its own would show; nothing else fires (P34)."""
    kind = SnapshotKind.SYNC_CHECKPOINT
    task = Task(inputs=("a",))
    task.get("a", segment(0))
    task.get("a", Watermark(timestamp_ms=70))
    task.plan(-1)
    task.get("a", EndOfUserRecords(finished=False, savepoint=1, kind=kind))
    if not late:
        task.get("a", barrier(1, kind))
    assert [answer.call for answer in answers(task.plan(0, a=0))] == [2]
    assert task.machine.status is TaskStatus.RUNNING
    if late:
        task.get("a", barrier(1, kind))
    task.do(BatchStaged(position=1, committables=()))
    assert snapshots(task.plan(1, a=0)) == [1]
    assert task.machine.status is TaskStatus.WAITING_FOR_FINAL_CHECKPOINT


def test_a_query_whose_own_watermark_releases_nothing_stops_at_its_last_batch() -> None:
    """It is asked once, and not held up (P34)."""
    kind = SnapshotKind.SYNC_CHECKPOINT
    task = Task(inputs=("a",))
    task.get("a", segment(0))
    task.plan(-1)
    task.get("a", EndOfUserRecords(finished=False, savepoint=1, kind=kind))
    task.get("a", barrier(1, kind))
    assert [answer.admitted for answer in answers(task.plan(0, a=0))] == [()]
    assert snapshots(task.plan(0, a=0)) == [0]
