"""The gateway to a running job: views at any time, and exactly one answer per request."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from unittest.mock import patch

import pytest
from tests.kit.clock import ManualClock
from tests.kit.running_job import JOB_ID, RunningWorld
from tests.kit.waiting import wait_until

from weir.coordinators import BroadcastRules
from weir.core.messages.task import TaskErrored
from weir.core.status import JobStatus
from weir.core.types import SnapshotKind, TaskStatus
from weir.errors import InputError, JobError, LostRowsError, LostWriteError, StorageError
from weir.gateway import live_view
from weir.runtime.ports import CoordinatorAnswer, VertexMetrics


def test_a_view_shows_the_job_as_it_is_now() -> None:
    """Status, attempt, vertices with their counters, and the configuration in force."""
    with RunningWorld("a", "b") as world:
        world.wait_running(answers=2)
        view = world.look()
    assert (view.job_id, view.name, view.status, view.attempt) == (
        JOB_ID,
        "orders",
        JobStatus.RUNNING,
        1,
    )
    assert [(vertex.vertex, vertex.status) for vertex in view.vertices] == [
        ("a", TaskStatus.RUNNING),
        ("b", TaskStatus.RUNNING),
    ]
    assert (view.vertices[0].position, view.vertices[0].records_in) == (7, 70)
    assert view.vertices[0].pending_records == 5
    assert (view.end_time_ms, view.configuration) == (-1, {"parallelism.default": "2"})


def test_a_view_after_the_run_shows_how_the_job_ended() -> None:
    """With its end time, and as often as requested."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.cancel().result()
        world.join()
        world.wait_until(lambda: world.job.view().end_time_ms > 0)
        view = world.job.view()
    assert view.status is JobStatus.CANCELED
    assert view.end_time_ms >= view.start_time_ms
    assert list(view.timestamps_ms) == ["CREATED", "RUNNING", "CANCELLING", "CANCELED"]
    assert world.job.view() == view


def test_many_threads_can_look_while_the_job_ends() -> None:
    """No view waits forever, whenever it is requested."""
    statuses: list[JobStatus] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            statuses.append(world.job.view().status)

    with RunningWorld() as world:
        world.wait_running()
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        world.job.suspend()
        world.join()
        over.set()
        for thread in threads:
            thread.join()
    assert statuses


def test_a_task_whose_counters_cannot_be_read_keeps_its_last_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Readers see the job and the other tasks' counters; the log says it once."""
    batches = {"a": 7, "b": 7}

    def metrics(vertex: str) -> VertexMetrics:
        if batches[vertex] == 0:
            raise ValueError("no such year")
        return VertexMetrics(records_in=batches[vertex])

    def shown() -> list[int]:
        return [vertex.records_in for vertex in world.job.view().vertices]

    with RunningWorld("a", "b") as world:
        world.wait_running(answers=2)
        with patch.object(world.port, "metrics", metrics):
            world.wait_until(lambda: shown() == [7, 7])
            batches.update(a=0, b=8)
            world.wait_until(lambda: shown() == [7, 8])
            batches.update(b=9)
            world.wait_until(lambda: shown() == [7, 9])
    assert caplog.text.count("Cannot read the counters of task a.") == 1


def test_a_view_that_fails_on_the_main_thread_does_not_end_the_job() -> None:
    """Only the reader gets the error of counters that make no view."""
    with RunningWorld() as world:
        world.wait_running()
        with (
            patch.object(world.port, "metrics", lambda vertex: None),
            pytest.raises(AttributeError),
        ):
            world.look()
        assert world.look().status is JobStatus.RUNNING


def test_a_cancellation_before_the_run_cancels_the_job() -> None:
    """Requests may come as soon as there is a driver: nothing is raised, and no task is left."""
    world = RunningWorld()
    answer = world.job.cancel()
    with world:
        ended = world.join()
        answer.result()
    assert (ended.status, world.error) == (JobStatus.CANCELED, None)
    assert "record_end CANCELED" in world.port.calls


def test_hooks_that_never_return_hold_up_nothing() -> None:
    """However many hang, the job still stops its tasks, records its end and returns."""
    hooks = tuple(f"h{number}" for number in range(40))
    with RunningWorld(hooks=hooks) as world:
        world.port.gates["trigger_hook"] = threading.Event()
        world.wait_running()
        future = world.job.trigger_checkpoint()
        for hook in hooks:
            world.port.wait_for(f"trigger_hook {hook}")
        world.job.cancel()
        assert world.join().status is JobStatus.CANCELED
        assert not world.port.gates["trigger_hook"].is_set()
        assert future.exception() is not None


def ask(world: RunningWorld) -> Future[CoordinatorAnswer]:
    """Change a rule and wait until the checkpoint that will contain it waits for its task."""
    world.wait_running()
    answer = world.job.send_to_coordinator("v", {"set": {"often": 10}})
    world.wait_in_progress()
    return answer


def test_a_request_that_no_checkpoint_contains_is_answered_with_that() -> None:
    """Without periodic checkpoints nothing would request another."""
    rules = {"v": BroadcastRules({"often": 5})}
    with RunningWorld(coordinators=rules, tolerable_failed_checkpoints=1) as world:
        world.port.errors["take_snapshot"] = [StorageError("The disk is full.")]
        answer, steps = ask(world), 0
        while not answer.done():
            world.port.step("v", steps)
            steps += 1
            world.wait_running(answers=steps + 1)
        said = str(answer.exception())
    assert said.startswith("It is unknown whether the request took effect: Checkpoint 1 failed: ")
    assert "The disk is full." in said


def test_a_request_to_a_coordinator_of_a_job_that_failed_is_to_be_sent_again() -> None:
    """The coordinator was reset to a state without the change."""
    with RunningWorld(coordinators={"v": BroadcastRules({"often": 5})}) as world:
        answer = ask(world)
        world.port.posts["v", 1](TaskErrored(message="gone"))
        assert "restored from a checkpoint without it: send it again" in str(answer.exception())


def test_a_run_that_ended_with_an_error_can_still_be_looked_at() -> None:
    """The last view shows the time of the error."""
    with RunningWorld() as world:
        world.wait_running()
        world.port.errors["stop_tasks"] = [RuntimeError("gone"), RuntimeError("gone")]
        world.job.suspend()
        world.join_error()
        world.wait_until(lambda: world.job.view().end_time_ms > 0)


def test_a_job_that_never_ran_can_be_looked_at() -> None:
    """As soon as it exists, and after its end; an unreadable counter does not make that a
    failure."""
    world = RunningWorld()
    assert world.job.view().status is JobStatus.CREATED
    world.port.errors["metrics"] = [RuntimeError("no counter")]
    world.job.finish()
    assert world.job.view().end_time_ms > 0


def test_while_the_main_thread_hangs_views_are_the_newest_and_a_cancellation_is_taken() -> None:
    """No reader waits long, a thousand reads leave nothing behind, and the cancellation is carried
    out afterwards."""
    gate = threading.Event()
    with RunningWorld() as world:
        world.wait_running()
        world.job.driver.call(lambda: gate.wait() and None)
        for _ in range(10):
            assert world.job.view().status is JobStatus.RUNNING
        answer = world.job.cancel()
        assert not answer.done()
        with patch.object(world.job._view, "_make_view", wraps=world.job._view._make_view) as made:
            gate.set()
            answer.result()
            assert world.join().status is JobStatus.CANCELED
        assert made.call_count < 10


def test_while_the_jvm_hangs_views_show_what_happens_with_the_last_counters() -> None:
    """One thread waits for the JVM, however many readers there are, and the main thread still makes
    views."""
    with RunningWorld() as world:
        world.wait_running()
        world.wait_until(lambda: world.job.view().vertices[0].records_in == 70)
        gate = threading.Event()
        hanging: list[str] = []

        def hang(vertex: str) -> VertexMetrics:
            hanging.append(vertex)
            gate.wait()
            return VertexMetrics()

        with patch.object(world.port, "metrics", hang):
            future = world.job.trigger_checkpoint()
            world.wait_in_progress()
            wait_until(lambda: hanging, "a reader waits")
            world.port.step("v", 0)
            future.result()
            world.wait_until(lambda: world.job.view().checkpoints.counts.completed == 1)
            with patch.object(live_view, "_FRESH_MS", 0):
                for _ in range(3):
                    assert world.job.view().vertices[0].records_in == 70
            assert hanging == ["v"]
            world.job.cancel().result()
            world.wait_until(lambda: world.job.view().status is JobStatus.CANCELED)
            gate.set()


def test_many_looks_cost_the_main_thread_ten_views_a_second() -> None:
    """All readers within a tenth of a second see the same view."""
    clock = ManualClock()
    with RunningWorld(clock=clock) as world:
        world.wait_running()
        world.look()
        with patch.object(world.job._view, "_make_view", wraps=world.job._view._make_view) as made:
            for _ in range(1_000):
                clock.ms += 1
                world.job.view()
        assert 0 < made.call_count <= 10


def test_a_requester_sees_the_effect_of_an_answered_request() -> None:
    """However recently the view was last read."""
    with RunningWorld() as world:
        world.wait_running()
        for number in range(5):
            world.port.step("v", number)
            world.job.trigger_checkpoint().result()
            assert world.job.view().checkpoints.counts.completed == number + 1


def test_a_checkpoint_is_answered_when_it_is_complete() -> None:
    """The future contains the recorded checkpoint."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        assert not future.done()
        world.port.step("v", 0)
        checkpoint = future.result()
    assert (checkpoint.checkpoint_id, checkpoint.kind) == (1, SnapshotKind.CHECKPOINT)


def test_a_savepoint_is_answered_and_the_job_continues() -> None:
    """It lies below the requested directory and commits nothing (P14)."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.trigger_savepoint("/saved")
        world.wait_in_progress()
        world.port.step("v", 0)
        assert future.result().external_path == "/saved/savepoint"
        world.port.wait_for("answer_planning 2")
        assert world.job.view().status is JobStatus.RUNNING
        assert not any(call.startswith("commit_sinks") for call in world.port.calls)


def test_a_savepoint_without_a_directory_is_refused() -> None:
    """Neither the request nor the configuration names a directory."""
    with RunningWorld() as world:
        world.wait_running()
        error = world.job.trigger_savepoint(None).exception()
    assert isinstance(error, JobError)
    assert "execution.checkpointing.savepoint-dir" in str(error)


def test_a_stop_is_answered_when_its_rows_are_committed_and_the_view_names_the_savepoint() -> None:
    """The commit comes before the answer, and the job is FINISHED."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.stop_with_savepoint("/saved")
        world.wait_in_progress()
        world.port.step("v", 0)
        savepoint = future.result()
        ended = world.join()
        world.wait_until(lambda: world.job.view().end_time_ms > 0)
        assert "answer_planning 2" not in world.port.calls
        assert "commit_sinks 1" in world.port.calls
        assert world.job.view().savepoint == savepoint.external_path
    assert (ended.status, ended.savepoint) == (JobStatus.FINISHED, savepoint.external_path)


def test_a_main_thread_that_hangs_is_silent_until_it_answers() -> None:
    """What a liveness probe asks; a thread that answers is never silent."""
    hung = threading.Event()
    with RunningWorld() as world:
        world.wait_running()
        assert world.job.silent_ms() == 0
        world.job.driver.call(hung.wait)
        world.wait_until(lambda: world.job.silent_ms() > 0)
        hung.set()
        world.wait_until(lambda: world.job.silent_ms() == 0)


def test_a_stop_with_checkpoint_leaves_a_suspended_job() -> None:
    """It is answered like a stop with savepoint, and there is no savepoint to name."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.stop_with_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 0)
        checkpoint = future.result()
        ended = world.join()
        world.wait_until(lambda: world.job.view().end_time_ms > 0)
        assert "commit_sinks 1" in world.port.calls
        assert (world.job.view().status, world.job.view().savepoint) == (JobStatus.SUSPENDED, None)
    assert (ended.status, ended.checkpoint_id) == (JobStatus.SUSPENDED, checkpoint.checkpoint_id)


def test_a_cancelled_request_changes_nothing() -> None:
    """A caller may cancel the future when it stops waiting; the answer is then dropped."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        assert future.cancel()
        world.port.step("v", 0)
        world.port.wait_for("commit_sinks 1")
        assert world.job.view().status is JobStatus.RUNNING


def test_requests_after_the_end_are_refused_at_once() -> None:
    """No caller waits for an answer that cannot come."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.suspend()
        world.join()
        world.wait_until(lambda: world.job.view().end_time_ms > 0)
    for future in (world.job.trigger_checkpoint(), world.job.cancel()):
        with pytest.raises(JobError, match="ended"):
            future.result()


def test_a_suspended_job_records_no_end() -> None:
    """It can be resumed: running the command again continues it."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.suspend()
        ended = world.join()
    assert ended.status is JobStatus.SUSPENDED
    assert world.port.calls[-1] == "stop_tasks"
    assert not any(call.startswith("record_end") for call in world.port.calls)


def test_every_effect_is_observed() -> None:
    """Progress and logs see the machines' decisions in order."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.suspend()
        ended = world.join()
    kinds = [type(effect).__name__ for effect in world.observed]
    assert kinds[0] == "BeginAttempt"
    assert "StopTasks" in kinds
    assert world.observed[-1] == ended


@pytest.mark.parametrize("part", ["take_snapshot", "continue_snapshot"])
def test_a_snapshot_whose_files_may_be_lost_fails_the_attempt_and_not_the_checkpoint_alone(
    part: str,
) -> None:
    """The next snapshot would take the same files, and its sync would succeed without the lost data
    (P9, P23)."""
    with RunningWorld(tolerable_failed_checkpoints=1000) as world:
        world.wait_running()
        world.port.errors[part] = [LostWriteError("Cannot sync /shared/1/x: it may be lost.")]
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 8)
        assert "it may be lost" in str(future.exception())
        world.port.wait_for("begin_attempt", 2)
        world.port.wait_for("drop_snapshot 1")
        world.wait_until(lambda: world.job.view().status is JobStatus.RUNNING)


def test_a_snapshot_with_rows_of_another_input_fails_the_attempt_too() -> None:
    """Later snapshots would have them as well; the next attempt reads again from before them."""
    with RunningWorld(tolerable_failed_checkpoints=1000) as world:
        world.wait_running()
        world.port.errors["continue_snapshot"] = [InputError("Topic 'x' was made again.")]
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 8)
        assert "was made again" in str(future.exception())
        world.port.wait_for("begin_attempt", 2)
        world.wait_until(lambda: world.job.view().status is JobStatus.RUNNING)


def test_a_snapshot_that_fails_for_another_reason_leaves_the_attempt_alone() -> None:
    """Where failures are tolerated, records flow on (P9)."""
    with RunningWorld(tolerable_failed_checkpoints=1000) as world:
        world.wait_running()
        world.port.errors["continue_snapshot"] = [
            StorageError("Cannot write /shared/1/x: no space.")
        ]
        future = world.job.trigger_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 8)
        assert "no space" in str(future.exception())
        assert world.job.trigger_checkpoint().exception() is None
        assert world.port.calls.count("begin_attempt") == 1


def test_a_commit_that_can_never_be_made_whole_fails_the_job_at_once() -> None:
    """A restored job would find the same, so no attempt is started again (P13)."""
    with RunningWorld() as world:
        world.wait_running()
        world.port.errors["commit_sinks"] = [
            LostRowsError("Checkpoint 1 cannot be committed: x is gone.")
        ]
        world.job.trigger_checkpoint()
        world.wait_in_progress()
        world.port.step("v", 8)
        ended = world.join()
    assert ended.status is JobStatus.FAILED
    assert "x is gone" in str(ended.failure)
    assert world.port.calls.count("begin_attempt") == 1
