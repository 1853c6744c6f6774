"""Flink's scenarios 39 to 44, 46 and 47: checkpoints after tasks have finished (FLIP-147).

They also cover ends and restores. Where Flink's test counts records on a cluster, the protocol is
checked here, task by task; the end-to-end tests count on real Spark (``test_draining``,
``test_chaining``, ``test_killed_stop``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.durable.test_state_mapping import BEFORE, check
from tests.kit.changes import no_changes
from tests.kit.job_master import MasterWorld, checkpoint, of, only, running_job, task_state
from tests.kit.sink import sink_port
from tests.kit.stream_task import TaskHarness, staged

from weir.core.messages.job import AllocateLocation, EndRecorded, JobEnded, RecordEnd
from weir.core.messages.protocol import NotifyCheckpointComplete, TriggerCheckpoint
from weir.core.messages.task import StartDrain
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.core.types import Recorded, SnapshotKind, TaskStatus
from weir.errors import CheckpointNotFoundError
from weir.kernel import MACHINE
from weir.launch.options import RunOptions
from weir.launch.submission import submit
from weir.storage.file_systems import FileSystems

RUNNING, FINISHED = TaskStatus.RUNNING, TaskStatus.FINISHED
WAITING = TaskStatus.WAITING_FOR_FINAL_CHECKPOINT
STOP = SnapshotKind.SYNC_SAVEPOINT


def test_scenario_39_the_final_checkpoint_is_immediate() -> None:
    """testImmediateCheckpointing: with an interval of an hour the job ends as soon as its records
    do (MISSION E3)."""
    world = MasterWorld("a", "b", config=CheckpointConfig(interval_ms=3_600_000)).running(
        restored=None
    )
    assert not of(world.status(WAITING, "a"), AllocateLocation)
    checkpoint_id, effects = world.allocate(world.status(WAITING, "b"))
    assert {effect.vertex for effect in of(effects, TriggerCheckpoint)} == {"a", "b"}
    effects = world.record(world.acknowledge(checkpoint_id))
    assert {effect.vertex for effect in of(effects, NotifyCheckpointComplete)} == {"a", "b"}
    assert not of(effects, AllocateLocation)
    end = only(world.status(FINISHED), RecordEnd)
    assert (end.status, end.savepoint) == (JobStatus.FINISHED, None)
    assert world.master.status is JobStatus.RUNNING
    ended = only(world.handle(EndRecorded(outcome=Recorded.WON)), JobEnded)
    assert (ended.status, ended.fenced) == (JobStatus.FINISHED, False)
    assert world.now_ms == 0


def test_scenario_40_what_had_finished_is_not_started_again_by_a_restore() -> None:
    """testRestoreAfterSomeTasksFinished: its records are not replayed, and checkpoints go on
    without it (MISSION D5)."""
    restored = checkpoint(1, task_state("a", finished=True), task_state("b"))
    world = MasterWorld("a", "b")
    world.next_id = 2
    world.submit(restored)
    world.status(RUNNING, "b")
    assert world.master.task_status("a") is FINISHED
    checkpoint_id, effects = world.allocate(world.ask())
    assert [effect.vertex for effect in of(effects, TriggerCheckpoint)] == ["b"]
    world.record(world.acknowledge(checkpoint_id, "b"))
    taken = world.master.coordinator.store.latest
    assert taken is not None
    state = taken.task("a")
    assert state is not None and state.fully_finished


@pytest.mark.parametrize("finished", [True, False], ids=["after it had finished", "before"])
def test_scenario_41_a_failover_replays_a_branch_only_from_before_its_end(finished: bool) -> None:
    """testFailoverAfterSomeTasksFinished: only whether the checkpoint records it as finished
    decides."""
    world = running_job("a", "b")
    world.status(WAITING, "a")
    world.status(FINISHED, "a")
    world.next_id = 2
    attempt = world.master.attempt
    restored = checkpoint(1, task_state("a", finished=finished), task_state("b"))
    world.fail_over(restored)
    assert world.master.attempt == attempt + 1
    assert world.master.task_status("a") is (FINISHED if finished else RUNNING)
    assert world.master.task_status("b") is RUNNING


def test_scenario_42_a_task_waits_for_its_final_checkpoint() -> None:
    """testWaitingForFinalCheckpoint: it is FINISHED once that is complete and committed (MISSION
    E3)."""
    harness = TaskHarness()
    harness.stage(4)
    harness.wait_for_final()
    assert harness.task.status is WAITING
    harness.trigger(7)
    harness.acknowledge(7)
    assert harness.task.status is WAITING
    harness.complete(7)
    assert harness.task.status is WAITING
    harness.committed(7)
    assert harness.task.status is FINISHED


def test_scenario_43_the_first_completion_that_comes_may_not_be_the_one() -> None:
    """testWaitingForFinalCheckpointNotTheFirsNotifiedComplete: a barrier before the end does not
    count (P29)."""
    harness = TaskHarness()
    harness.trigger(6)
    harness.plan(1, 3)
    harness.acknowledge(6)
    harness.stage(4)
    harness.wait_for_final()
    harness.trigger(7)
    harness.acknowledge(7)
    harness.complete(6)
    harness.committed(6)
    assert harness.task.status is WAITING
    harness.complete(7)
    harness.committed(7)
    assert harness.task.status is FINISHED


def test_scenario_44_a_stop_that_finds_a_task_waiting_is_waited_for_exactly() -> None:
    """testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint (MISSION E4)."""
    harness = TaskHarness()
    harness.wait_for_final()
    harness.trigger(7)
    harness.acknowledge(7)
    harness.abort(7)
    harness.trigger(8, STOP)
    harness.acknowledge(8)
    assert harness.task.status is WAITING
    harness.complete(8)
    harness.committed(8)
    assert harness.task.status is FINISHED


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "no drain"])
def test_scenario_44_a_source_that_is_stopped_waits_for_the_savepoint(drain: bool) -> None:
    """testTriggeringStopWithSavepointWithDrain and ...NoDrain: with and without the last windows
    (MISSION E1, E2)."""
    harness = TaskHarness(bounded=False)
    harness.trigger(8, STOP, drain=drain)
    effects = harness.plan(1, 3)
    if drain:
        assert [type(effect) for effect in effects] == [StartDrain]
        harness.stage(4)
        effects = harness.drained(4)
    assert harness.task.status is WAITING
    taken = harness.taken[8]
    assert taken.finished is drain
    assert taken.committables == ((staged(4, barrier=8),) if drain else ())
    harness.acknowledge(8)
    harness.complete(8)
    harness.committed(8)
    assert harness.task.status is FINISHED


def test_scenario_46_a_savepoint_that_is_missing_fails_the_submission(tmp_path: Path) -> None:
    """testSubmitWithUnknownSavepointPath: before anything runs, with an error that names it."""
    missing = tmp_path / "savepoint-000000-gone"
    with pytest.raises(CheckpointNotFoundError, match=str(missing)):
        submit(
            name="orders",
            options=RunOptions(from_savepoint=str(missing)),
            base_directory=str(tmp_path / "checkpoints"),
            fs=FileSystems(),
            kernel=MACHINE,
            sinks=lambda _: sink_port(),
            fits=lambda _: None,
            changes=no_changes(),
        )


def test_scenario_47_stateless_operators_may_change_between_savepoint_and_restore() -> None:
    """testCanRestoreWithModifiedStatelessOperators: other operators in a chain, more of them, a new
    order."""
    sources, sinks = BEFORE["t_count"][:1], BEFORE["t_count"][-1:]
    for between in (
        ("t_clean", "t_new", "t_count"),
        ("t_new", "t_other", "t_clean", "t_count"),
    ):
        check({**BEFORE, "t_count": (*sources, *between, *sinks)})
