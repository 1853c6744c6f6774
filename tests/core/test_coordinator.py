"""The checkpoint coordinator's contract, driven through ``JobMaster``."""

from __future__ import annotations

import pytest
from tests.kit.job_master import (
    JOB_ID,
    MasterWorld,
    checkpoint,
    of,
    only,
    task_state,
    with_interval,
)

from weir.core.checkpoints.request_decider import Verdict
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    LocationAllocated,
    RecordCheckpoint,
    RequestKind,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointAborted,
)
from weir.core.settings import CheckpointConfig
from weir.core.types import Committable, SnapshotKind, SnapshotMetrics, TaskStatus
from weir.errors import InvariantError


def test_nothing_aborts_a_checkpoint_whose_record_is_being_written() -> None:
    """PROTOCOL P11: in FINALIZING neither the timeout nor a task's end aborts."""
    config = CheckpointConfig(interval_ms=None, timeout_ms=1_000)
    world = MasterWorld(config=config).running()
    n = world.trigger()
    recording = world.acknowledge(n)
    assert world.pass_time(5_000) == []
    world.status(TaskStatus.FINISHED, "a")
    finalizing = world.master.coordinator.finalizing
    assert finalizing is not None
    assert finalizing.checkpoint_id == n
    assert only(world.record(recording), AnswerRequest).checkpoint is not None


def test_a_periodic_trigger_inside_the_minimum_pause_is_rearmed_for_exactly_the_remainder() -> None:
    """MISSION A4: the pause counts from the last completion, and no failure is recorded."""
    world = MasterWorld(config=with_interval(100, min_pause_ms=80)).running()
    n, _ = world.allocate(world.pass_time(80))
    world.pass_time(60)
    world.record(world.acknowledge(n))
    assert not of(world.pass_time(40), AllocateLocation)
    assert world.master.next_deadline() == 140 + 80
    assert len(of(world.pass_time(40), AllocateLocation)) == 1
    assert world.master.stats(world.now_ms).counts.failed == 0


def test_while_a_periodic_request_waits_the_timer_is_off_and_is_set_again_when_it_runs() -> None:
    """PROTOCOL P38: one periodic request waits, and no second one is queued."""
    world = MasterWorld(config=with_interval(100)).running()
    n, _ = world.allocate(world.pass_time(0))
    world.pass_time(100)
    trigger = world.master.coordinator.trigger
    assert trigger.waits_because is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert trigger.next_trigger_ms is None
    assert world.pass_time(1_000) == []
    effects = world.record(world.acknowledge(n))
    assert len(of(effects, AllocateLocation)) == 1
    assert trigger.next_trigger_ms == world.now_ms + 100


@pytest.mark.parametrize("job_id", [JOB_ID, "1" * 32])
@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_a_task_that_was_restored_as_finished_keeps_its_position(
    kind: SnapshotKind, job_id: str
) -> None:
    """MISSION D4: in every checkpoint, also of a job that goes on from another one's snapshot."""
    ended = task_state("a", position=7, finished=True)
    restored = checkpoint(1, ended, task_state("b", position=3), kind=kind, job_id=job_id)
    world = MasterWorld("a", "b")
    world.next_id = 2
    world.submit(restored)
    world.status(TaskStatus.RUNNING, "b")
    for _ in range(2):
        n = world.trigger()
        effects = world.acknowledge(n, "b")
        positions = {task.vertex: task.position for task in only(effects, RecordCheckpoint).tasks}
        assert positions == {"a": 7, "b": 0}
        world.record(effects)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(TaskStatus.FINISHED, "task is closing"), (TaskStatus.FAILED, "Task has failed.")],
)
def test_a_checkpoint_is_aborted_when_a_task_that_it_awaits_ends(
    status: TaskStatus, sentence: str
) -> None:
    """PROTOCOL P32."""
    world = MasterWorld().running()
    world.trigger()
    effects = world.status(status, "b")
    assert sentence in (only(effects, AnswerRequest).failure or "")
    assert [e.vertex for e in of(effects, NotifyCheckpointAborted)] == ["a"]


def test_records_are_written_one_at_a_time_and_in_order() -> None:
    """The outcome of one record decides the epoch that the next one gives as committed."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = MasterWorld(config=config).running()
    first = world.trigger(name="1")
    second = world.trigger(name="2")
    recording = world.acknowledge(first)
    staged = Committable(sink="s", position=0, payload={}, barrier=first)
    assert not of(
        world.acknowledge(second, task_state("a", committables=(staged,)), "b"), RecordCheckpoint
    )
    record = only(world.record(recording), RecordCheckpoint)
    assert record.checkpoint_id == second
    assert record.tasks[0].committables[0].epoch == first


def test_what_an_aborted_checkpoint_staged_is_committed_by_the_next_checkpoint_that_completes() -> (
    None
):
    """PROTOCOL P12."""
    world = MasterWorld(
        config=CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=5)
    ).running()
    first = world.trigger(name="1")
    world.decline(first, "b")
    second = world.trigger(name="2")
    staged = Committable(sink="s", position=0, payload={}, barrier=first)
    record = only(
        world.acknowledge(second, task_state("a", committables=(staged,)), "b"), RecordCheckpoint
    )
    assert record.tasks[0].committables[0].epoch == second


def test_an_intermediate_savepoint_leaves_open_what_no_completed_checkpoint_covers() -> None:
    """PROTOCOL P14: it commits nothing and keeps the epoch of what a checkpoint covers."""
    world = MasterWorld().running()
    first, _ = world.complete(world.ask(name="1"))
    n = world.trigger(RequestKind.SAVEPOINT, "2")
    staged = (
        Committable(sink="s", position=0, payload={}, barrier=first),
        Committable(sink="s", position=1, payload={}, barrier=n),
    )
    record = only(world.acknowledge(n, task_state("a", committables=staged), "b"), RecordCheckpoint)
    assert [c.epoch for c in record.tasks[0].committables] == [first, None]


def test_deletion_waits_for_checkpoints_that_were_triggered_before_the_subsumption() -> None:
    """A pending checkpoint may be based on the subsumed one (PROTOCOL P4)."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = MasterWorld("a", config=config).running()
    world.complete(world.ask(name="1"), task_state("a", files=("x", "y")))
    second = world.trigger(name="2")
    third = world.trigger(name="3")
    effects = world.record(world.acknowledge(second, task_state("a", files=("z",))))
    assert not of(effects, DiscardCheckpoint)
    effects = world.record(world.acknowledge(third, task_state("a", files=("x",))))
    discards = {d.checkpoint_id: d.files for d in of(effects, DiscardCheckpoint)}
    assert discards == {1: ("y",), 2: ("z",)}


def test_failed_savepoints_do_not_count_against_the_tolerance() -> None:
    """Only checkpoints count; the savepoint's requester gets the failure."""
    world = MasterWorld().running()
    n = world.trigger(RequestKind.SAVEPOINT)
    effects = world.decline(n, "a")
    assert only(effects, DiscardCheckpoint).target == "/savepoints/savepoint-1"
    assert world.master.failure is None


def test_only_sixteen_aborted_ids_are_remembered() -> None:
    """Everything is bounded: a late message for an older checkpoint gets UNKNOWN."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=100)
    world = MasterWorld(config=config).running()
    for i in range(17):
        n = world.trigger(name=str(i))
        world.decline(n, "a")
    assert world.acknowledge(1, "b") == []
    assert of(world.acknowledge(2, "b"), DiscardCheckpoint)


def test_starting_the_scheduler_after_its_shutdown_is_an_error() -> None:
    """MISSION A2."""
    coordinator = MasterWorld().running().master.coordinator
    coordinator.shut_down(0)
    with pytest.raises(InvariantError, match="after its shutdown"):
        coordinator.start_scheduler(0, 0.0)


def test_starting_a_running_scheduler_stops_it_first() -> None:
    """MISSION A2: there are never two timers."""
    world = MasterWorld(config=with_interval(100)).running()
    world.allocate(world.pass_time(0))
    coordinator = world.master.coordinator
    outputs = coordinator.start_scheduler(0, 0.99)
    assert coordinator.pending == ()
    assert len(of(outputs, DiscardCheckpoint)) == 1
    assert coordinator.next_deadline() == 99


def test_the_restored_checkpoint_is_subsumed_by_the_first_new_one() -> None:
    """The restore seeds the store with it."""
    world = MasterWorld("a")
    world.next_id = 8
    world.running(restored=checkpoint(7, task_state("a", files=("x",))))
    _, effects = world.complete(world.ask())
    assert only(effects, DiscardCheckpoint).checkpoint_id == 7


def test_a_location_for_a_request_that_is_forgotten_is_removed() -> None:
    """A late allocation leaves no directory."""
    world = MasterWorld().running()
    allocation = only(world.ask(), AllocateLocation).allocation
    world.ask(RequestKind.STOP)
    late = LocationAllocated(allocation=allocation, checkpoint_id=1, target=None, timestamp_ms=1)
    assert only(world.handle(late), DiscardCheckpoint).checkpoint_id == 1


def test_what_an_older_attempt_says_is_ignored() -> None:
    """Every task event carries its attempt."""
    world = MasterWorld().running()
    n = world.trigger()
    state, metrics = task_state("a"), SnapshotMetrics()
    late = AcknowledgeCheckpoint(
        vertex="a", attempt=0, checkpoint_id=n, state=state, metrics=metrics
    )
    assert world.handle(late) == []
    assert "a" in world.master.coordinator.pending[0].not_yet_acknowledged
