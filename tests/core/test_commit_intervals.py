"""Sinks that leave out checkpoints, so that they commit at intervals (``min_commit_interval``)."""

from __future__ import annotations

import pytest
from tests.kit.stream_task import VERTEX, TaskHarness, flushed, staged

from weir.core.messages.task import CommitSinks
from weir.core.types import Committable, SnapshotKind

SECOND = 1_000


class Job:
    """A task whose sink ``s1`` commits every ten seconds at most, and ``s2`` every epoch."""

    def __init__(self) -> None:
        self.harness = TaskHarness(commit_intervals_ms={"s1": 10 * SECOND})
        #: The newest batch; the first one stages nothing.
        self.position = 0
        self.harness.plan(0, -1)
        self.harness.plan(1, 0)

    def batch(self, sink: str = "s1") -> None:
        """Run one batch that stages output."""
        self.position += 1
        self.harness.stage(self.position, sink)
        self.harness.plan(self.position + 1, self.position)

    def take(self, checkpoint_id: int, at_s: float) -> tuple[Committable, ...]:
        """Take a snapshot up to its acknowledgement; what it holds."""
        self.harness.trigger(checkpoint_id, at_ms=round(at_s * SECOND))
        self.harness.acknowledge(checkpoint_id)
        return self.harness.taken[checkpoint_id].committables

    def complete(self, checkpoint_id: int) -> dict[str, list[int]]:
        """Complete a checkpoint: by sink, the batches that are committed."""
        effects = self.harness.complete(checkpoint_id)
        (commit,) = [effect for effect in effects if isinstance(effect, CommitSinks)]
        self.harness.committed(checkpoint_id)
        by_payload = {
            str(flushed(staged(position, sink))): position
            for sink in ("s1", "s2")
            for position in range(self.position + 1)
        }
        return {
            sink: [by_payload[str(payload)] for payload in payloads]
            for sink, payloads in commit.payloads.items()
        }


def test_a_sink_leaves_out_checkpoints_until_its_interval_is_over() -> None:
    """Their rows are committed together, under the id of the first that it does not leave out."""
    job = Job()
    job.batch()
    job.take(1, at_s=100)
    assert job.complete(1) == {"s1": [1], "s2": []}
    for checkpoint_id, at_s in ((2, 103), (3, 109.9)):
        job.batch()
        job.take(checkpoint_id, at_s)
        # Not even an empty commit: a restored job commits the rows under this id.
        assert job.complete(checkpoint_id) == {"s2": []}
    job.batch()
    job.take(4, at_s=110)
    assert job.complete(4) == {"s1": [2, 3, 4], "s2": []}


def test_a_checkpoint_that_is_left_out_holds_the_rows_without_an_epoch() -> None:
    """A job restored from it commits them first of all, under its id (PROTOCOL P5)."""
    job = Job()
    job.take(1, at_s=100)
    job.complete(1)
    job.batch()
    assert job.take(2, at_s=101) == (staged(1, left_out=2),)
    job.complete(2)
    job.batch()
    held = job.take(3, at_s=102)
    assert held == (
        Committable(sink="s1", position=1, payload=flushed(staged(1)), left_out=2),
        staged(2, left_out=3),
    )
    job.complete(3)
    job.batch()
    last = job.take(4, at_s=110)
    assert [(committable.barrier, committable.left_out) for committable in last] == [
        (4, 2),
        (4, 3),
        (4, None),
    ]


def test_sinks_of_one_interval_commit_at_the_same_checkpoints() -> None:
    """Whatever their last commits were: otherwise no checkpoint would be shown by two tables."""
    harness = TaskHarness(commit_intervals_ms={"s1": 10 * SECOND, "s2": 10 * SECOND})
    harness.plan(0, -1)
    committed: list[set[str]] = []
    for checkpoint_id, at_s in enumerate((108, 109, 111, 119, 120), start=1):
        harness.plan(checkpoint_id, checkpoint_id - 1)
        harness.trigger(checkpoint_id, at_ms=at_s * SECOND)
        harness.acknowledge(checkpoint_id)
        effects = harness.complete(checkpoint_id)
        (commit,) = [effect for effect in effects if isinstance(effect, CommitSinks)]
        harness.committed(checkpoint_id)
        committed.append(set(commit.payloads))
    assert committed == [{"s1", "s2"}, set(), {"s1", "s2"}, set(), {"s1", "s2"}]


def test_an_aborted_checkpoint_does_not_count_as_a_commit() -> None:
    """The next checkpoint commits, however soon it comes (PROTOCOL P12)."""
    job = Job()
    job.batch()
    job.take(1, at_s=100)
    job.harness.abort(1)
    job.take(2, at_s=101)
    assert job.complete(2) == {"s1": [1], "s2": []}


def test_output_of_an_aborted_checkpoint_is_not_left_out_by_the_next() -> None:
    """Its epoch is the first that completes from its barrier on, as in metadata (PROTOCOL P12)."""
    job = Job()
    job.take(1, at_s=100)
    job.complete(1)
    job.batch()
    assert job.take(2, at_s=110) == (staged(1, barrier=2),)
    job.harness.abort(2)
    # The clock was set back.
    job.take(3, at_s=105)
    assert job.complete(3) == {"s1": [1], "s2": []}


def test_the_savepoint_of_a_stop_commits_everything() -> None:
    """Nothing comes after it (MISSION E4)."""
    job = Job()
    job.take(1, at_s=100)
    job.complete(1)
    job.batch()
    job.take(2, at_s=101)
    job.complete(2)
    job.harness.trigger(3, SnapshotKind.SYNC_SAVEPOINT, at_ms=102 * SECOND)
    job.harness.plan(9, job.position + 1)
    job.harness.acknowledge(3)
    assert job.complete(3) == {"s1": [1], "s2": []}


def test_the_final_checkpoint_commits_everything() -> None:
    """A task that has finished its records leaves nothing pending (PROTOCOL P16)."""
    harness = TaskHarness(commit_intervals_ms={"s1": 10 * SECOND})
    harness.plan(0, -1)
    for position, checkpoint_id in ((0, 1), (1, 2)):
        harness.stage(position)
        harness.plan(position + 1, position)
        harness.trigger(checkpoint_id, at_ms=checkpoint_id * SECOND)
        harness.acknowledge(checkpoint_id)
        harness.complete(checkpoint_id)
        harness.committed(checkpoint_id)
    harness.wait_for_final()
    harness.trigger(3, at_ms=3 * SECOND)
    harness.acknowledge(3)
    effects = harness.complete(3)
    payloads = {"s1": (flushed(staged(1)),), "s2": ()}
    assert CommitSinks(vertex=VERTEX, checkpoint_id=3, payloads=payloads) in effects


@pytest.mark.parametrize("at_s", [50, 1e9])
def test_a_clock_that_jumps_does_not_hold_rows_back(at_s: float) -> None:
    """Back or forward, the next checkpoint commits."""
    job = Job()
    job.take(1, at_s=100)
    job.complete(1)
    job.batch()
    job.take(2, at_s)
    assert job.complete(2) == {"s1": [1], "s2": []}
