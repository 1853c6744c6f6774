"""``StreamTask``'s contract for staged output: snapshots, acknowledgements, commits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_stream_task import (
    SAVEPOINT,
    commit,
    confirm,
    declined,
    drop,
    status,
)
from tests.kit.stream_task import METRICS, VERTEX, TaskHarness, flushed, staged

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    TaskFailed,
    TriggerCheckpoint,
)
from weir.core.messages.task import AnswerPlanning, BatchStaged, SinkCommitFailed, TaskErrored
from weir.core.types import CheckpointFailureReason as Reason
from weir.core.types import SnapshotKind, TaskStatus
from weir.errors import InvariantError

# ---- committables in snapshots


def test_a_snapshot_holds_what_is_staged_and_marks_it_with_its_barrier() -> None:
    """It contains everything unconfirmed up to its position (PROTOCOL P5)."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    assert harness.taken[7].committables == (staged(0, barrier=7),)


def test_a_snapshot_keeps_earlier_barriers_and_epochs() -> None:
    """The first barrier after a committable stays its barrier, even if that checkpoint is aborted
    (P12)."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    harness.abort(7)
    harness.stage(1)
    harness.plan(2, 1)
    harness.trigger(8)
    assert harness.taken[8].committables == (staged(0, barrier=7), staged(1, barrier=8))


def test_an_intermediate_savepoint_marks_nothing() -> None:
    """It commits nothing (PROTOCOL P14), so the next checkpoint is still the first barrier."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7, SAVEPOINT)
    harness.plan(1, 0)
    assert harness.taken[7].committables == (staged(0),)
    harness.sync_done(7)
    harness.trigger(8)
    harness.plan(2, 0)
    assert harness.taken[8].committables == (staged(0, barrier=8),)


def test_staging_twice_for_one_batch_is_an_invariant_error() -> None:
    """Rows would be committed twice."""
    harness = TaskHarness()
    harness.stage(0)
    with pytest.raises(InvariantError, match="a sink staged batch 0 twice"):
        harness.stage(0)


def test_staging_for_a_complete_batch_or_an_unknown_sink_is_an_invariant_error() -> None:
    """Staged output belongs to the step in progress and to a sink of the task."""
    harness = TaskHarness()
    harness.plan(1, 4)
    for committable, said in (
        (staged(4), "v staged batch 4, which cannot be running"),
        (staged(5, "other"), "sink other staged for batch 5 in batch 5"),
        (staged(6), "sink s1 staged for batch 6 in batch 5"),
    ):
        with pytest.raises(InvariantError, match=said):
            harness.send(
                BatchStaged(position=min(committable.position, 5), committables=(committable,))
            )


# ---- acknowledging


def test_an_asynchronous_part_that_is_done_is_acknowledged_with_its_metrics() -> None:
    """The acknowledged state contains flushed payloads with the marks of the snapshot."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    (ack,) = harness.async_done(7)
    assert isinstance(ack, AcknowledgeCheckpoint)
    assert (ack.vertex, ack.attempt, ack.checkpoint_id, ack.metrics) == (VERTEX, 3, 7, METRICS)
    (committable,) = ack.state.committables
    assert (committable.barrier, committable.payload) == (7, flushed(staged(0)))
    assert not ack.state.fully_finished


def test_flushed_committables_replace_the_staged_ones() -> None:
    """A later snapshot and the commit use the flushed payload."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    assert harness.complete(7) == [confirm(7), commit(7, s1=(flushed(staged(0)),))]


def test_flushed_committables_keep_an_epoch_that_they_got_meanwhile() -> None:
    """Checkpoint 7 completes while 8 is being flushed: the committable stays in epoch 7 only."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.trigger(8)
    harness.plan(2, 0)
    harness.sync_done(8)
    harness.complete(7)
    harness.async_done(8)
    harness.committed(7)
    assert harness.complete(8) == [confirm(8), commit(8)]


@pytest.mark.parametrize("confirmed", [False, True], ids=["committing", "committed"])
def test_what_was_committed_while_it_was_flushed_is_left_out(confirmed: bool) -> None:
    """Checkpoint 7 completes and its sinks commit while 8 is being flushed."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.trigger(8)
    harness.plan(2, 0)
    harness.sync_done(8)
    harness.complete(7)
    if confirmed:
        harness.committed(7)
    harness.taken[8] = replace(harness.taken[8], committables=())
    (ack,) = harness.async_done(8)
    assert isinstance(ack, AcknowledgeCheckpoint)
    assert ack.state.committables == ()


def test_a_flush_that_loses_a_committable_is_an_invariant_error() -> None:
    """Its rows would be lost."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    harness.taken[7] = replace(harness.taken[7], committables=())
    with pytest.raises(InvariantError, match="lost or added a committable"):
        harness.async_done(7)


@pytest.mark.parametrize(("operator", "named"), [("scorer", "scorer"), (None, "o")])
def test_a_failed_synchronous_part_names_the_operator_or_else_the_last_one_of_the_task(
    operator: str | None, named: str
) -> None:
    """MISSION B6; the started snapshot is dropped, and records flow again."""
    harness = TaskHarness()
    harness.plan(1, 0)
    harness.plan(2, 1)
    harness.trigger(7)
    harness.plan(3, 2)
    answer, *others = harness.snapshot_failed(7, operator)
    assert isinstance(answer, DeclineCheckpoint)
    assert answer.reason is Reason.CHECKPOINT_DECLINED
    assert answer.message == f"Could not complete snapshot 7 for operator {named}. disk full"
    assert others == [drop(7), AnswerPlanning(call=3)]


@pytest.mark.parametrize("full", [True, False])
def test_a_snapshot_is_full_exactly_if_its_trigger_says_so(full: bool) -> None:
    """PROTOCOL P40: the task passes on the coordinator's decision."""
    harness = TaskHarness()
    harness.plan(1, 0)
    barrier = CheckpointBarrier(
        checkpoint_id=7, kind=SnapshotKind.CHECKPOINT, timestamp_ms=9, full=full
    )
    trigger = TriggerCheckpoint(vertex=VERTEX, barrier=barrier)
    harness.send(trigger)
    harness.plan(2, 1)
    assert harness.taken[7].full is full


def test_a_failed_asynchronous_part_is_declined_with_its_own_reason_and_names_the_operator() -> (
    None
):
    """Reason and text are Flink's; records flow on."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    effects = harness.snapshot_failed(7)
    assert effects == [
        DeclineCheckpoint(
            vertex=VERTEX,
            attempt=3,
            checkpoint_id=7,
            reason=Reason.CHECKPOINT_ASYNC_EXCEPTION,
            message="Could not complete snapshot 7 for operator o. disk full",
        ),
        drop(7),
    ]


def test_a_task_that_is_initializing_or_failed_declines_as_not_ready() -> None:
    """Only running tasks take snapshots (MISSION B1)."""
    harness = TaskHarness(started=False)
    assert declined(harness.trigger(7)) == [(7, "CHECKPOINT_DECLINED_TASK_NOT_READY")]
    harness.send(TaskErrored(message="boom"))
    assert declined(harness.trigger(8)) == [(8, "CHECKPOINT_DECLINED_TASK_NOT_READY")]


def test_an_acknowledged_intermediate_savepoint_is_forgotten() -> None:
    """Neither its completion nor its abort concerns the task (PROTOCOL P14)."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7, SAVEPOINT)
    harness.plan(1, 0)
    harness.acknowledge(7)
    assert harness.complete(7) == []
    assert harness.abort(7) == []


# ---- completing


def test_a_completed_checkpoint_is_the_new_base_and_every_sink_commits() -> None:
    """A sink that staged nothing commits an empty epoch (PROTOCOL P15)."""
    harness = TaskHarness()
    harness.stage(0, "s2")
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    assert harness.complete(7) == [confirm(7), commit(7, s2=(flushed(staged(0, "s2")),))]


def test_what_is_staged_after_the_barrier_belongs_to_the_next_epoch() -> None:
    """Step 1 runs while checkpoint 7 is uploaded."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.sync_done(7)
    harness.stage(1)
    harness.async_done(7)
    assert harness.complete(7) == [confirm(7), commit(7)]


def test_what_an_aborted_checkpoint_staged_is_committed_by_the_next_one() -> None:
    """An abort discards state files, not staged output (PROTOCOL P12)."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    assert harness.abort(7) == [drop(7)]
    harness.trigger(8)
    harness.plan(2, 0)
    harness.acknowledge(8)
    assert harness.complete(8) == [confirm(8), commit(8, s1=(flushed(staged(0)),))]


def test_commits_run_in_id_order_one_at_a_time() -> None:
    """Epoch 8 is committed after epoch 7 is confirmed (PROTOCOL P13)."""
    harness = TaskHarness()
    for checkpoint_id in (7, 8):
        harness.stage(checkpoint_id)
        harness.plan(checkpoint_id, checkpoint_id)
        harness.trigger(checkpoint_id)
        harness.acknowledge(checkpoint_id)
    assert harness.complete(7) == [confirm(7), commit(7, s1=(flushed(staged(7)),))]
    assert harness.complete(8) == [confirm(8)]
    assert harness.committed(7) == [commit(8, s1=(flushed(staged(8)),))]
    assert harness.committed(8) == []


def test_confirmed_committables_are_removed() -> None:
    """Later snapshots do not contain them."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.complete(7)
    harness.committed(7)
    harness.trigger(8)
    harness.plan(2, 0)
    assert harness.taken[8].committables == ()


def test_what_is_being_committed_stays_in_snapshots_with_its_epoch() -> None:
    """A restored job commits it again under the same id."""
    harness = TaskHarness()
    harness.stage(0)
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.complete(7)
    harness.trigger(8)
    harness.plan(2, 0)
    (committable,) = harness.taken[8].committables
    assert (committable.barrier, committable.epoch) == (7, 7)


def test_a_failed_commit_fails_the_task() -> None:
    """Its retries are exhausted; the restored job commits again (PROTOCOL P13)."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    harness.acknowledge(7)
    harness.complete(7)
    assert harness.send(SinkCommitFailed(checkpoint_id=7, message="conflict")) == [
        status(TaskStatus.FAILED),
        TaskFailed(vertex=VERTEX, attempt=3, message="conflict"),
    ]


def test_completion_of_a_checkpoint_without_a_snapshot_here_is_ignored() -> None:
    """The task was not part of it."""
    assert TaskHarness().complete(7) == []


def test_completion_before_the_acknowledgement_is_an_invariant_error() -> None:
    """The checkpoint cannot be complete without this task's state."""
    harness = TaskHarness()
    harness.trigger(7)
    harness.plan(1, 0)
    with pytest.raises(InvariantError, match="CHECKPOINT 7 completed, but its snapshot is SYNC"):
        harness.complete(7)
