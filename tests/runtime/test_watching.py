"""Watching a job: each watcher sees what it subscribed to, and cannot harm the job."""

from __future__ import annotations

import threading

import pytest
from tests.kit.running_job import RunningWorld

from weir.core.messages.job import JobEnded, JobStatusChanged
from weir.core.messages.protocol import TaskStatusChanged
from weir.core.messages.task import AnswerPlanning, PlanningCalled
from weir.core.status import JobStatus
from weir.errors import InvariantError
from weir.runtime.concurrency import MainThread
from weir.runtime.watching import Watchers


def test_a_watcher_that_raises_harms_neither_the_job_nor_other_watchers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its error is logged."""

    def fail(message: object) -> None:
        raise RuntimeError(f"no {type(message).__name__}")

    world = RunningWorld()
    seen: list[object] = []
    watchers = world.job.driver.watchers
    watchers.watch_task("v", {PlanningCalled: fail})
    watchers.watch_effects({object: fail, JobEnded: seen.append})
    with world:
        world.wait_running()
        world.job.cancel().result()
        assert world.join().status is JobStatus.CANCELED
    assert len(seen) == 1
    # Not the text: where Spark has run, its formatter writes tracebacks in another form.
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert "no PlanningCalled" in logged
    assert "no JobEnded" in logged


def test_a_task_is_watched_without_the_others() -> None:
    """Its events and its effects, in order; the job master's effects are not among them."""
    world = RunningWorld("a", "b")
    seen: list[object] = []
    kinds = (TaskStatusChanged, PlanningCalled, AnswerPlanning, JobStatusChanged)
    world.job.driver.watchers.watch_task("b", dict.fromkeys(kinds, seen.append))
    with world:
        world.wait_running(answers=2)
        world.job.suspend()
        world.join()
    first = [type(message) for message in seen[:3]]
    assert first == [TaskStatusChanged, PlanningCalled, AnswerPlanning]
    assert {status.vertex for status in seen if isinstance(status, TaskStatusChanged)} == {"b"}
    assert not any(isinstance(message, JobStatusChanged) for message in seen)


def test_functions_are_called_in_the_order_in_which_they_subscribed() -> None:
    """Those of one task come before those of all machines, and those of every effect come last."""
    watchers = Watchers()
    called: list[str] = []
    watchers.watch_effects({object: lambda _: called.append("every effect")})
    watchers.watch_effects({AnswerPlanning: lambda _: called.append("first")})
    watchers.watch_effects({AnswerPlanning: lambda _: called.append("second")})
    watchers.watch_task("v", {AnswerPlanning: lambda _: called.append("of the task")})
    for watch in watchers.of_effect("v", AnswerPlanning):
        watch(AnswerPlanning(call=1))
    assert called == ["of the task", "first", "second", "every effect"]
    assert len(watchers.of_effect("w", AnswerPlanning)) == 3
    assert len(watchers.of_effect(None, TaskStatusChanged)) == 1


def test_machines_are_used_on_one_thread_only() -> None:
    """The first that uses them; any other is a bug."""
    main = MainThread()
    main.assert_inside()
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            main.assert_inside()
        except InvariantError as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    main.assert_inside()
    assert [str(error) for error in errors] == [
        "state machines may be used on the main thread only"
    ]
