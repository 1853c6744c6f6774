"""The checkpoint coordinator's contract, driven through ``JobMaster``."""

from __future__ import annotations

import pytest
from tests.core.master_harness import JOB_ID, World, checkpoint, of, only, task_state, with_interval

from weir.core.checkpoints.requests import Verdict
from weir.core.checkpoints.stats import CheckpointCounts
from weir.core.config import CheckpointConfig
from weir.core.messages.job import (
    AllocateLocation,
    AnswerRequest,
    DiscardCheckpoint,
    LocationAllocated,
    LocationFailed,
    RecordCheckpoint,
    RequestKind,
)
from weir.core.messages.protocol import (
    AcknowledgeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from weir.core.types import Committable, SnapshotKind, SnapshotMetrics, TaskStatus
from weir.errors import InvariantError


def test_a_checkpoint_completes_only_after_every_task_has_acknowledged() -> None:
    """MISSION A7: the record is written after the last acknowledgement; a duplicate changes
    nothing."""
    world = World().running()
    n, effects = world.allocate(world.ask())
    assert [t.vertex for t in of(effects, TriggerCheckpoint)] == ["a", "b"]
    assert not of(world.acknowledge(n, "a"), RecordCheckpoint)
    assert world.acknowledge(n, "a") == []
    effects = world.acknowledge(n, "b")
    assert only(effects, RecordCheckpoint).retained == (n,)
    effects = world.record(effects)
    assert [e.vertex for e in of(effects, NotifyCheckpointComplete)] == ["a", "b"]
    assert only(effects, AnswerRequest).checkpoint is not None
    assert world.master.next_deadline() is None


def test_nothing_is_notified_before_the_record_is_won() -> None:
    """PROTOCOL P13: completion is announced only once the record is durable."""
    world = World().running()
    n = world.trigger()
    world.acknowledge(n)
    assert not of(world.effects, NotifyCheckpointComplete)


def test_one_decline_aborts_the_checkpoint_and_repeated_declines_are_harmless() -> None:
    """The first discards it; later declines and acknowledgements of it change nothing."""
    world = World(
        config=CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=5)
    ).running()
    n = world.trigger()
    effects = world.decline(n, "a")
    assert [e.vertex for e in of(effects, NotifyCheckpointAborted)] == ["a", "b"]
    assert only(effects, DiscardCheckpoint).checkpoint_id == n
    assert "Checkpoint was declined." in (only(effects, AnswerRequest).failure or "")
    assert world.decline(n, "b") == []


def test_a_late_acknowledgement_of_an_aborted_checkpoint_has_its_files_deleted_again() -> None:
    """A snapshot that ends after its abort leaves no files, and its metrics go into the history."""
    world = World(
        config=CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=5)
    ).running()
    n = world.trigger()
    world.decline(n, "a")
    effects = world.acknowledge(n, task_state("b", files=("f",)))
    assert only(effects, DiscardCheckpoint).checkpoint_id == n
    entry = world.master.stats(world.now_ms).history[0]
    assert (entry.status, entry.state_size) == ("FAILED", 1)


def test_a_late_acknowledgement_of_a_completed_checkpoint_deletes_nothing() -> None:
    """Only aborted checkpoints are deleted again."""
    world = World().running()
    n, _ = world.complete(world.ask())
    assert world.acknowledge(n, "a") == []


def test_a_checkpoint_expires_after_its_timeout_and_a_queued_request_then_runs() -> None:
    """MISSION A5, A7: expiry aborts, records the id as aborted and lets the next request run."""
    config = CheckpointConfig(interval_ms=None, timeout_ms=1_000, tolerable_failed_checkpoints=5)
    world = World(config=config).running()
    n = world.trigger(name="1")
    assert not of(world.ask(name="2"), AllocateLocation)
    assert world.master.stats(world.now_ms).waits_because is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert world.pass_time(999) == []
    effects = world.pass_time(1)
    answer = only(effects, AnswerRequest)
    assert answer.request == "1"
    assert "Checkpoint expired before completing." in (answer.failure or "")
    assert only(effects, AllocateLocation).kind is SnapshotKind.CHECKPOINT
    assert only(world.acknowledge(n, "a"), DiscardCheckpoint).checkpoint_id == n


def test_nothing_aborts_a_checkpoint_whose_record_is_being_written() -> None:
    """PROTOCOL P11: in FINALIZING neither the timeout nor a task's end aborts."""
    config = CheckpointConfig(interval_ms=None, timeout_ms=1_000)
    world = World(config=config).running()
    n = world.trigger()
    recording = world.acknowledge(n)
    assert world.pass_time(5_000) == []
    world.status(TaskStatus.FINISHED, "a")
    finalizing = world.master.coordinator.finalizing
    assert finalizing is not None
    assert finalizing.checkpoint_id == n
    assert only(world.record(recording), AnswerRequest).checkpoint is not None


def test_the_first_periodic_trigger_is_random_and_the_next_come_at_a_fixed_rate() -> None:
    """MISSION A2: uniformly in [min pause, interval], then every interval; ids and timestamps
    increase."""
    world = World(config=with_interval(100, min_pause_ms=20))
    world.submit(chance=0.5)
    world.status(TaskStatus.RUNNING)
    assert world.master.next_deadline() == 20 + 40
    seen = []
    for _ in range(3):
        start_ms = world.master.next_deadline()
        assert start_ms is not None
        effects = world.pass_time(start_ms - world.now_ms)
        n, triggers = world.allocate(effects)
        seen.append((world.now_ms, n, of(triggers, TriggerCheckpoint)[0].barrier.timestamp_ms))
        world.record(world.acknowledge(n))
    assert seen == [(60, 1, 1_000_060), (160, 2, 1_000_160), (260, 3, 1_000_260)]


def test_a_periodic_trigger_inside_the_minimum_pause_is_rearmed_for_exactly_the_remainder() -> None:
    """MISSION A4: the pause counts from the last completion, and no failure is recorded."""
    world = World(config=with_interval(100, min_pause_ms=80)).running()
    n, _ = world.allocate(world.pass_time(80))
    world.pass_time(60)
    world.record(world.acknowledge(n))
    assert not of(world.pass_time(40), AllocateLocation)
    assert world.master.next_deadline() == 140 + 80
    assert len(of(world.pass_time(40), AllocateLocation)) == 1
    assert world.master.stats(world.now_ms).counts.failed == 0


def test_while_a_periodic_request_waits_the_timer_is_off_and_is_set_again_when_it_runs() -> None:
    """PROTOCOL P38: one periodic request waits, and no second one is queued."""
    world = World(config=with_interval(100)).running()
    n, _ = world.allocate(world.pass_time(0))
    world.pass_time(100)
    trigger = world.master.coordinator.trigger
    assert trigger.waits_because is Verdict.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert trigger.next_trigger_ms is None
    assert world.pass_time(1_000) == []
    effects = world.record(world.acknowledge(n))
    assert len(of(effects, AllocateLocation)) == 1
    assert trigger.next_trigger_ms == world.now_ms + 100


def test_a_savepoint_runs_although_the_limit_of_pending_checkpoints_is_reached() -> None:
    """Forced requests are exempt from the limit on concurrent checkpoints."""
    world = World().running()
    world.trigger(name="1")
    assert only(world.ask(RequestKind.SAVEPOINT, "2"), AllocateLocation).target == "/savepoints"


def test_a_request_during_a_trigger_in_progress_waits_for_it() -> None:
    """Locations are allocated one at a time."""
    world = World().running()
    first = world.ask(RequestKind.SAVEPOINT, "1")
    assert world.ask(RequestKind.SAVEPOINT, "2") == []
    _, effects = world.allocate(first)
    assert len(of(effects, AllocateLocation)) == 1


def test_no_checkpoint_is_triggered_before_all_tasks_run() -> None:
    """MISSION A4: the pre-check names the task that is not running."""
    world = World()
    world.submit()
    world.status(TaskStatus.RUNNING, "a")
    answer = only(world.ask(), AnswerRequest)
    assert "Not all required tasks are currently running." in (answer.failure or "")
    assert "'b' is INITIALIZING" in (answer.failure or "")
    assert world.master.stats(world.now_ms).unsuccessful_triggers == 1
    assert world.master.stats(world.now_ms).counts == CheckpointCounts()


def test_pre_checks_are_repeated_after_the_location_is_allocated() -> None:
    """MISSION A6: a change in between rejects the request and removes its location."""
    world = World().running()
    effects = world.ask()
    world.status(TaskStatus.FAILED, "b")
    n, effects = world.allocate(effects)
    assert not of(effects, TriggerCheckpoint)
    assert only(effects, DiscardCheckpoint).checkpoint_id == n
    assert only(effects, AnswerRequest).failure


def test_a_location_that_cannot_be_had_counts_as_a_failed_checkpoint_without_a_pending_one() -> (
    None
):
    """MISSION A9: at tolerance 0 the job fails."""
    world = World().running()
    allocation = only(world.ask(), AllocateLocation).allocation
    effects = world.handle(
        LocationFailed(allocation=allocation, message="no space", timestamp_ms=2_000_000)
    )
    assert "no space" in (only(effects, AnswerRequest).failure or "")
    assert world.master.coordinator.pending == ()
    assert world.master.stats(world.now_ms).counts.failed == 1
    assert "Exceeded checkpoint tolerable failure threshold." in (world.master.failure or "")


def test_a_finished_task_is_not_triggered_and_is_recorded_as_fully_finished() -> None:
    """MISSION D1, D4: with the channels it has read, by which a restore recognizes it."""
    world = World("a", "b", "c", producers={"b": ("a",)}).running()
    world.status(TaskStatus.FINISHED, "a", "b")
    n, effects = world.allocate(world.ask())
    assert [t.vertex for t in of(effects, TriggerCheckpoint)] == ["c"]
    record = only(world.acknowledge(n, "c"), RecordCheckpoint)
    for vertex, inputs in (("a", ()), ("b", ("a",))):
        state = next(task for task in record.tasks if task.vertex == vertex)
        assert state.fully_finished
        assert (state.inputs, state.entries, state.files, state.committables) == (
            inputs,
            {},
            (),
            (),
        )


@pytest.mark.parametrize("job_id", [JOB_ID, "1" * 32])
@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_a_task_that_was_restored_as_finished_keeps_its_position(
    kind: SnapshotKind, job_id: str
) -> None:
    """MISSION D4: in every checkpoint, also of a job that goes on from another one's snapshot."""
    ended = task_state("a", position=7, finished=True)
    restored = checkpoint(1, ended, task_state("b", position=3), kind=kind, job_id=job_id)
    world = World("a", "b")
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
    world = World().running()
    world.trigger()
    effects = world.status(status, "b")
    assert sentence in (only(effects, AnswerRequest).failure or "")
    assert [e.vertex for e in of(effects, NotifyCheckpointAborted)] == ["a"]


def test_a_completed_intermediate_savepoint_notifies_nobody_and_enters_no_store() -> None:
    """PROTOCOL P14."""
    world = World().running()
    first, _ = world.complete(world.ask(name="1"))
    n = world.trigger(RequestKind.SAVEPOINT, "2")
    recording = world.acknowledge(n)
    assert only(recording, RecordCheckpoint).retained == (first,)
    effects = world.record(recording)
    assert [type(e) for e in effects] == [AnswerRequest]
    assert world.master.coordinator.store.ids == (first,)


def test_records_are_written_one_at_a_time_and_in_order() -> None:
    """The outcome of one record decides the epoch that the next one gives as committed."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = World(config=config).running()
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


def test_what_an_aborted_checkpoint_staged_is_committed_by_the_next_one_that_completes() -> None:
    """PROTOCOL P12."""
    world = World(
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
    world = World().running()
    first, _ = world.complete(world.ask(name="1"))
    n = world.trigger(RequestKind.SAVEPOINT, "2")
    staged = (
        Committable(sink="s", position=0, payload={}, barrier=first),
        Committable(sink="s", position=1, payload={}, barrier=n),
    )
    record = only(world.acknowledge(n, task_state("a", committables=staged), "b"), RecordCheckpoint)
    assert [c.epoch for c in record.tasks[0].committables] == [first, None]


def test_a_subsumed_checkpoint_is_deleted_without_the_files_that_the_retained_one_needs() -> None:
    """MISSION A11: shared state is never deleted before its last user."""
    world = World("a").running()
    world.complete(world.ask(name="1"), task_state("a", files=("x", "y")))
    _, effects = world.complete(world.ask(name="2"), task_state("a", files=("y", "z")))
    assert only(effects, DiscardCheckpoint) == DiscardCheckpoint(
        checkpoint_id=1, target=None, files=("x",), subsumed=True
    )


def test_deletion_waits_for_checkpoints_that_were_triggered_before_the_subsumption() -> None:
    """A pending checkpoint may be based on the subsumed one (PROTOCOL P4)."""
    config = CheckpointConfig(interval_ms=None, max_concurrent_checkpoints=2)
    world = World("a", config=config).running()
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
    world = World().running()
    n = world.trigger(RequestKind.SAVEPOINT)
    effects = world.decline(n, "a")
    assert only(effects, DiscardCheckpoint).target == "/savepoints/savepoint-1"
    assert world.master.failure is None


def test_only_sixteen_aborted_ids_are_remembered() -> None:
    """Everything is bounded: a late message for an older checkpoint gets UNKNOWN."""
    config = CheckpointConfig(interval_ms=None, tolerable_failed_checkpoints=100)
    world = World(config=config).running()
    for i in range(17):
        n = world.trigger(name=str(i))
        world.decline(n, "a")
    assert world.acknowledge(1, "b") == []
    assert of(world.acknowledge(2, "b"), DiscardCheckpoint)


def test_starting_the_scheduler_after_its_shutdown_is_an_error() -> None:
    """MISSION A2."""
    coordinator = World().running().master.coordinator
    coordinator.shut_down(0)
    with pytest.raises(InvariantError, match="after its shutdown"):
        coordinator.start_scheduler(0, 0.0)


def test_starting_a_running_scheduler_stops_it_first() -> None:
    """MISSION A2: there are never two timers."""
    world = World(config=with_interval(100)).running()
    world.allocate(world.pass_time(0))
    coordinator = world.master.coordinator
    outputs = coordinator.start_scheduler(0, 0.99)
    assert coordinator.pending == ()
    assert len(of(outputs, DiscardCheckpoint)) == 1
    assert coordinator.next_deadline() == 99


def test_a_restored_checkpoint_of_another_job_is_never_deleted() -> None:
    """The snapshot that a job with a new id started from belongs to its owner."""
    foreign = checkpoint(7, task_state("a", files=("x",)), job_id="f" * 32)
    world = World("a").running(restored=foreign)
    _, effects = world.complete(world.ask())
    assert not of(effects, DiscardCheckpoint)


def test_the_restored_checkpoint_is_subsumed_by_the_first_new_one() -> None:
    """The restore seeds the store with it."""
    world = World("a")
    world.next_id = 8
    world.running(restored=checkpoint(7, task_state("a", files=("x",))))
    _, effects = world.complete(world.ask())
    assert only(effects, DiscardCheckpoint).checkpoint_id == 7


def test_a_location_for_a_request_that_is_forgotten_is_removed() -> None:
    """A late allocation leaves no directory."""
    world = World().running()
    allocation = only(world.ask(), AllocateLocation).allocation
    world.ask(RequestKind.STOP)
    late = LocationAllocated(allocation=allocation, checkpoint_id=1, target=None, timestamp_ms=1)
    assert only(world.handle(late), DiscardCheckpoint).checkpoint_id == 1


def test_what_an_older_attempt_says_is_ignored() -> None:
    """Every task event carries its attempt."""
    world = World().running()
    n = world.trigger()
    state, metrics = task_state("a"), SnapshotMetrics()
    late = AcknowledgeCheckpoint(
        vertex="a", attempt=0, checkpoint_id=n, state=state, metrics=metrics
    )
    assert world.handle(late) == []
    assert "a" in world.master.coordinator.pending[0].not_yet_acknowledged
