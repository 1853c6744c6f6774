"""How acknowledgements are answered: lateness is a result, not an exception."""

from __future__ import annotations

from tests.kit.job_master import MasterWorld, of, running_job, task_state

from weir.core.checkpoints.outputs import CheckpointOutput
from weir.core.checkpoints.pending import TaskAcknowledgeResult as Result
from weir.core.messages.job import (
    DiscardCheckpoint,
)
from weir.core.messages.protocol import AcknowledgeCheckpoint
from weir.core.types import SnapshotMetrics


def acknowledge(subject: MasterWorld, n: int, vertex: str) -> tuple[Result, list[CheckpointOutput]]:
    """Ask the coordinator directly, since the job master does not pass the answer on."""
    metrics = SnapshotMetrics(sync_duration_ms=4, checkpointed_size=9)
    state = task_state(vertex, files=("f",))
    event = AcknowledgeCheckpoint(
        vertex=vertex, attempt=1, checkpoint_id=n, state=state, metrics=metrics
    )
    return subject.master.coordinator.acknowledge(event, subject.now_ms)


def test_an_awaited_acknowledgement_is_answered_with_success_and_a_second_one_with_duplicate() -> (
    None
):
    """The second one changes nothing."""
    subject = running_job(history_size=40)
    n = subject.trigger()
    assert acknowledge(subject, n, "a") == (Result.SUCCESS, [])
    assert acknowledge(subject, n, "a") == (Result.DUPLICATE, [])
    assert subject.master.stats(0).history[0].state_size == 1


def test_a_vertex_that_a_pending_checkpoint_does_not_know_is_answered_with_unknown() -> None:
    """It changes neither the checkpoint nor the statistics."""
    subject = running_job(history_size=40)
    n = subject.trigger()
    assert acknowledge(subject, n, "stranger") == (Result.UNKNOWN, [])
    assert subject.master.coordinator.pending[0].not_yet_acknowledged == ("a", "b")
    assert subject.master.stats(0).history[0].state_size == 0


def test_an_acknowledgement_of_an_aborted_checkpoint_is_answered_with_discarded_and_deleted() -> (
    None
):
    """Its metrics are added to the entry of the failed checkpoint."""
    subject = running_job(history_size=40)
    n = subject.trigger()
    subject.decline(n, "a")
    result, outputs = acknowledge(subject, n, "b")
    assert result is Result.DISCARDED
    assert of(outputs, DiscardCheckpoint)
    entry = subject.master.stats(0).history[0]
    assert (entry.status, entry.checkpointed_size) == ("FAILED", 9)
    assert entry.tasks[1].metrics.sync_duration_ms == 4


def test_an_acknowledgement_of_a_completed_checkpoint_is_answered_with_duplicate() -> None:
    """All of its tasks have acknowledged it; none of its files is deleted."""
    subject = running_job(history_size=40)
    n = subject.trigger()
    subject.record(subject.acknowledge(n))
    assert acknowledge(subject, n, "a") == (Result.DUPLICATE, [])


def test_an_acknowledgement_of_an_id_that_nobody_remembers_is_answered_with_unknown() -> None:
    """Sixteen aborted ids are remembered; the longer history still takes late metrics."""
    subject = running_job(history_size=40)
    ids = [subject.trigger()]
    subject.decline(ids[0], "a")
    for _ in range(16):
        ids.append(subject.trigger())
        subject.decline(ids[-1], "a")
    assert acknowledge(subject, ids[0], "b") == (Result.UNKNOWN, [])
    assert subject.master.stats(0).history[-1].checkpointed_size == 9
    assert acknowledge(subject, ids[1], "b")[0] is Result.DISCARDED


def test_an_acknowledgement_of_an_id_that_never_was_is_answered_with_unknown() -> None:
    """It may belong to a checkpoint of another driver."""
    assert acknowledge(running_job(history_size=40), 99, "a") == (Result.UNKNOWN, [])


def test_only_sixteen_completed_ids_are_remembered() -> None:
    """Everything is bounded."""
    subject = running_job(history_size=40)
    for _ in range(17):
        subject.record(subject.acknowledge(subject.trigger()))
    assert acknowledge(subject, 1, "a") == (Result.UNKNOWN, [])
    assert acknowledge(subject, 2, "a") == (Result.DUPLICATE, [])
