"""Nothing is triggered while too many checkpoints are being deleted.

In Flink: ``CheckpointsCleaner`` and the decider.
"""

from __future__ import annotations

import pytest
from master_harness import World, of, only

from weir.core.checkpoints.requests import (
    CheckpointRequest,
    CheckpointRequestDecider,
    RequestOrigin,
    Verdict,
)
from weir.core.config import CheckpointConfig
from weir.core.messages.job import (
    AllocateLocation,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
    RequestKind,
    SnapshotRequested,
    TasksStopped,
)
from weir.core.messages.protocol import TaskFailed
from weir.core.types import Recorded, TaskStatus
from weir.errors import InvariantError


def world(**changes: int) -> World:
    """A running job whose deletions finish only when a test says so."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=100, **changes)
    return World(config=config, cleans=False).running()


def request(world: World, kind: RequestKind = RequestKind.CHECKPOINT) -> list:
    return world.handle(SnapshotRequested(request=f"r{len(world.effects)}", kind=kind))


def declined(world: World) -> int:
    """Take a checkpoint that is declined; return its id."""
    n, _ = world.allocate(request(world))
    world.decline(n, "a")
    return n


@pytest.mark.parametrize("origin", list(RequestOrigin))
def test_no_request_runs_while_more_checkpoints_are_cleaned_up_than_may_be_pending(
    origin: RequestOrigin,
) -> None:
    """Not even a forced one; as many deletions as may be pending are still allowed."""
    decider = CheckpointRequestDecider(max_concurrent_checkpoints=2, min_pause_ms=0)
    decider.enqueue(CheckpointRequest(origin=origin))
    state = {"now_ms": 0, "triggering": False, "pending": 0, "last_end_ms": None}
    assert decider.choose(**state, cleaning=3).verdict is Verdict.TOO_MANY_CHECKPOINTS_BEING_CLEANED
    assert decider.choose(**state, cleaning=2).verdict is Verdict.RUN


def test_a_request_that_waits_for_the_cleaning_runs_as_soon_as_one_deletion_is_over() -> None:
    """Every finished deletion runs the queue again."""
    subject = world()
    first = declined(subject)
    second = declined(subject)
    assert request(subject, RequestKind.SAVEPOINT) == []
    waits = subject.master.stats(subject.now_ms).waits_because
    assert waits is Verdict.TOO_MANY_CHECKPOINTS_BEING_CLEANED
    assert of(subject.handle(CheckpointDiscarded(checkpoint_id=second)), AllocateLocation)
    assert subject.handle(CheckpointDiscarded(checkpoint_id=first)) == []
    assert subject.master.coordinator.cleaning == 0


def test_each_deletion_counts_also_several_of_one_checkpoint() -> None:
    """A late acknowledgement deletes an aborted checkpoint's files again."""
    subject = world()
    n = declined(subject)
    subject.acknowledge(n, "b")
    assert subject.master.coordinator.cleaning == 2
    assert request(subject) == []
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    assert subject.master.coordinator.cleaning == 1


def test_a_subsumed_checkpoint_counts_until_it_is_deleted() -> None:
    """Two checkpoints complete and one is retained."""
    subject = world()
    subject.complete(request(subject))
    _, effects = subject.complete(request(subject))
    assert only(effects, DiscardCheckpoint).subsumed
    assert subject.master.coordinator.cleaning == 1


def test_a_deletion_that_waits_for_tasks_to_stop_counts_all_the_while() -> None:
    """It counts from the moment it is requested."""
    subject = world()
    n, _ = subject.allocate(request(subject))
    effects = subject.handle(TaskFailed(vertex="a", attempt=1, message="boom"))
    assert not of(effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 1
    assert of(subject.handle(TasksStopped(attempt=1, chance=0.0)), DiscardCheckpoint)
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    assert subject.master.coordinator.cleaning == 0


def test_the_count_survives_a_restart() -> None:
    """The files are still there after the restart."""
    subject = world()
    first, second = declined(subject), declined(subject)
    subject.handle(TaskFailed(vertex="a", attempt=1, message="boom"))
    subject.handle(TasksStopped(attempt=1, chance=0.0))
    subject.pass_time(1_000)
    subject.begin(2)
    subject.status(TaskStatus.RUNNING)
    assert request(subject) == []
    assert of(subject.handle(CheckpointDiscarded(checkpoint_id=first)), AllocateLocation)
    subject.handle(CheckpointDiscarded(checkpoint_id=second))


def test_a_deletion_that_a_fenced_driver_drops_does_not_count() -> None:
    """PROTOCOL P17: it touches no file, so no one will ever report the deletion."""
    subject = world(max_concurrent_checkpoints=2)
    first, _ = subject.allocate(request(subject))
    subject.allocate(request(subject))
    subject.acknowledge(first)
    fenced = CheckpointRecorded(checkpoint_id=first, outcome=Recorded.FENCED, message="x")
    subject.handle(fenced)
    assert subject.master.coordinator.pending == ()
    subject.handle(TasksStopped(attempt=1, chance=0.0))
    assert not of(subject.effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 0


def test_deferred_deletions_that_a_fenced_driver_drops_do_not_count_either() -> None:
    """They were requested before the record was lost and would have run after the tasks had
    stopped."""
    subject = world(max_concurrent_checkpoints=2)
    first, _ = subject.allocate(request(subject))
    subject.allocate(request(subject))
    subject.acknowledge(first)
    subject.handle(TaskFailed(vertex="a", attempt=1, message="boom"))
    assert subject.master.coordinator.cleaning == 1
    subject.handle(CheckpointRecorded(checkpoint_id=first, outcome=Recorded.FENCED, message="x"))
    subject.handle(TasksStopped(attempt=1, chance=0.0))
    assert not of(subject.effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 0


def test_a_deletion_that_was_never_requested_is_a_bug() -> None:
    """The kernel reports each effect once."""
    subject = world()
    n = declined(subject)
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    with pytest.raises(InvariantError, match="more often than requested"):
        subject.handle(CheckpointDiscarded(checkpoint_id=n))
