"""Nothing is triggered while too many checkpoints are being deleted.

In Flink: ``CheckpointsCleaner`` and the decider.
"""

from __future__ import annotations

import pytest
from tests.kit.job_master import MasterWorld, of, only, running_job

from weir.core.messages.job import (
    AllocateLocation,
    CheckpointDiscarded,
    CheckpointRecorded,
    DiscardCheckpoint,
)
from weir.core.types import Recorded
from weir.errors import InvariantError


def declined(world: MasterWorld) -> int:
    """Take a checkpoint that is declined; return its id."""
    n = world.trigger()
    world.decline(n, "a")
    return n


def test_each_deletion_counts_also_several_of_one_checkpoint() -> None:
    """A late acknowledgement deletes an aborted checkpoint's files again."""
    subject = running_job(cleans=False)
    n = declined(subject)
    subject.acknowledge(n, "b")
    assert subject.master.coordinator.cleaning == 2
    assert subject.ask() == []
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    assert subject.master.coordinator.cleaning == 1


def test_a_subsumed_checkpoint_counts_until_it_is_deleted() -> None:
    """Two checkpoints complete and one is retained."""
    subject = running_job(cleans=False)
    subject.complete(subject.ask())
    _, effects = subject.complete(subject.ask())
    assert only(effects, DiscardCheckpoint).subsumed
    assert subject.master.coordinator.cleaning == 1


def test_a_deletion_that_waits_for_tasks_to_stop_counts_all_the_while() -> None:
    """It counts from the moment it is requested."""
    subject = running_job(cleans=False)
    n = subject.trigger()
    effects = subject.fail()
    assert not of(effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 1
    assert of(subject.stopped(), DiscardCheckpoint)
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    assert subject.master.coordinator.cleaning == 0


def test_the_count_survives_a_restart() -> None:
    """The files are still there after the restart."""
    subject = running_job(cleans=False)
    first, second = declined(subject), declined(subject)
    subject.fail_over()
    assert subject.ask() == []
    assert of(subject.handle(CheckpointDiscarded(checkpoint_id=first)), AllocateLocation)
    subject.handle(CheckpointDiscarded(checkpoint_id=second))


def test_a_deletion_that_a_fenced_driver_drops_does_not_count() -> None:
    """PROTOCOL P17: it touches no file, so no one will ever report the deletion."""
    subject = running_job(cleans=False, max_concurrent_checkpoints=2)
    first = subject.trigger()
    subject.trigger()
    subject.acknowledge(first)
    fenced = CheckpointRecorded(checkpoint_id=first, outcome=Recorded.FENCED, message="x")
    subject.handle(fenced)
    assert subject.master.coordinator.pending == ()
    subject.stopped()
    assert not of(subject.effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 0


def test_deferred_deletions_that_a_fenced_driver_drops_do_not_count_either() -> None:
    """They were requested before the record was lost and would have run after the tasks had
    stopped."""
    subject = running_job(cleans=False, max_concurrent_checkpoints=2)
    first = subject.trigger()
    subject.trigger()
    subject.acknowledge(first)
    subject.fail()
    assert subject.master.coordinator.cleaning == 1
    subject.handle(CheckpointRecorded(checkpoint_id=first, outcome=Recorded.FENCED, message="x"))
    subject.stopped()
    assert not of(subject.effects, DiscardCheckpoint)
    assert subject.master.coordinator.cleaning == 0


def test_a_deletion_that_was_never_requested_is_a_bug() -> None:
    """The kernel reports each effect once."""
    subject = running_job(cleans=False)
    n = declined(subject)
    subject.handle(CheckpointDiscarded(checkpoint_id=n))
    with pytest.raises(InvariantError, match="more often than requested"):
        subject.handle(CheckpointDiscarded(checkpoint_id=n))
