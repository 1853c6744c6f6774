"""The recorder of a job: its story, its failures and its samples, in bounded memory."""

from __future__ import annotations

import io
import logging
import threading
from contextlib import redirect_stderr
from dataclasses import replace

from tests.kit.running_job import JOB_ID, RunningWorld, plan

from weir.core.messages.task import TaskErrored
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, SnapshotKind, TaskState
from weir.monitoring.log_buffer import LINES, LogBuffer
from weir.monitoring.recorder import COUNTERS, MOMENTS, Recorder, Sampler
from weir.runtime.concurrency import SystemClock


def texts(recorder: Recorder) -> list[str]:
    return [moment.text for moment in recorder.moments]


def test_the_story_has_what_people_ask_for() -> None:
    """States of job and tasks, checkpoints once each, and requests, in order."""
    with RunningWorld("a", "b") as world:
        world.wait_running(answers=2)
        world.job.trigger_checkpoint()
        world.job.cancel().result()
        world.join()
        story = texts(world.job.recorder)
    assert story[0] == "The job is RUNNING (attempt 1)."
    assert story.count("Task a is RUNNING.") == 1
    assert "A checkpoint was requested." in story
    assert story[-1] == "The job ended: CANCELED."
    numbers = [moment.number for moment in world.job.recorder.moments]
    assert numbers == sorted(set(numbers))


def test_an_intermediate_savepoint_is_in_the_story_and_in_the_timeline() -> None:
    """Though no task is notified of its completion (P14)."""
    with RunningWorld() as world:
        world.wait_running()
        future = world.job.trigger_savepoint("/saved")
        world.wait_in_progress()
        world.port.step("v", 0)
        future.result()
        recorder = world.job.recorder
        assert [bar.is_savepoint for bar in recorder.checkpoints] == [True]
    (ended,) = (text for text in texts(recorder) if "completed" in text)
    assert ended.startswith("Savepoint 1 completed in ")
    assert ended.endswith(": /saved/savepoint")


def test_a_checkpoint_that_fails_before_its_tasks_are_triggered_is_in_the_story() -> None:
    """No task is notified of that."""
    with RunningWorld(hooks=("h",)) as world:
        world.wait_running()
        world.port.errors["trigger_hook"] = [RuntimeError("no lock")]
        assert world.job.trigger_checkpoint().exception() is not None
        recorder = world.job.recorder
        assert [bar.failed for bar in recorder.checkpoints] == [True]
    assert any("Checkpoint 1 failed: " in text and "no lock" in text for text in texts(recorder))


def test_a_task_that_is_finished_in_the_restored_checkpoint_does_not_start() -> None:
    """Its timeline stays empty."""
    world = RunningWorld("a", "b")
    operators = tuple(replace(operator, fully_finished=True) for operator in plan("a").operators)
    world.port.restored = CompletedCheckpoint(
        job_id=JOB_ID,
        checkpoint_id=1,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=(
            TaskState(vertex="a", position=4, operators=operators),
            TaskState(vertex="b", position=4, operators=plan("b").operators),
        ),
        external_path="/chk-1",
    )
    with world:
        world.wait_running()
        timelines = world.job.recorder.timelines
        assert timelines["a"].open_spans() == []
        assert timelines["b"].open_spans() != []


def test_a_failure_keeps_the_story_before_it_and_what_came_of_it() -> None:
    """The task, the message, the restart, and when the job ran again."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.driver._dispatcher.poster("v", 1)(TaskErrored(message="disk full"))
        world.wait_until(lambda: len(world.job.recorder.failures) == 1)
        world.wait_until(lambda: world.job.recorder.failures[0].recovered_ms is not None)
        failure = world.job.recorder.failures[0]
        world.job.cancel().result()
        world.join()
    assert (failure.vertex, failure.attempt) == ("v", 1)
    assert "disk full" in failure.message
    assert "Task v is RUNNING." in [moment.text for moment in failure.story]
    assert failure.outcome.startswith("The restart strategy begins attempt 2 in ")


def test_a_sample_has_every_counter_of_every_task() -> None:
    """In the order of the tasks; a time that is not known is -1."""
    with RunningWorld("a", "b") as world:
        world.wait_running(answers=2)
        view = world.look()
        world.job.recorder.sample(view)
        sample = world.job.recorder.samples[-1]
        world.job.suspend()
        world.join()
    assert len(sample.values) == 2 * len(COUNTERS)
    first = dict(zip(COUNTERS, sample.values, strict=False))
    assert (first["records_in"], first["watermark_ms"]) == (70, -1)


def test_the_sampler_survives_a_view_that_cannot_be_made() -> None:
    """The page then has a gap, and the thread ends with the run."""
    recorder = Recorder(SystemClock(), {}, dict)

    def view() -> object:
        raise RuntimeError("the JVM has gone")

    with Sampler(recorder, view):  # type: ignore[arg-type]
        pass
    assert not recorder.samples


def test_the_story_is_bounded() -> None:
    """The oldest moments go first."""
    recorder = Recorder(SystemClock(), {}, dict)
    for number in range(MOMENTS + 10):
        recorder.note("note", f"moment {number}")
    assert len(recorder.moments) == MOMENTS
    assert recorder.moments[0].text == "moment 10"


def test_the_log_keeps_lines_with_their_task_and_stays_bounded() -> None:
    """A line that a query's thread logs has its task; a trace comes with its line."""
    log = logging.getLogger("weir.test_recorder")
    with LogBuffer() as kept, redirect_stderr(io.StringIO()):
        try:
            raise ValueError("no")
        except ValueError:
            log.warning("It %s", "failed", exc_info=True)
        thread = threading.Thread(target=lambda: log.warning("late"), name="weir-query-clean")
        thread.start()
        thread.join()
        assert [line.task for line in kept.lines] == ["", "clean"]
        assert kept.lines[0].text.startswith("It failed\nTraceback")
        for number in range(LINES):
            kept.add(1_500, "INFO", "x", str(number), task="")
    assert len(kept.lines) == LINES
    log.warning("after the end")
    assert kept.lines[-1].text == str(LINES - 1)


def test_a_failed_job_is_the_outcome_of_its_last_failure() -> None:
    """If no attempt follows, the failure says so."""
    with RunningWorld() as world:
        world.wait_running()
        world.job.driver._dispatcher.poster("v", 1)(TaskErrored(message="bad plan", fatal=True))
        world.join()
    assert world.job.view().status is JobStatus.FAILED
    assert world.job.recorder.failures[-1].outcome == "The job ended: FAILED."
