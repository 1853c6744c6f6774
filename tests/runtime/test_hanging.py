"""How a job ends while user code hangs, on real threads: any number of commits, starts or attempts.

All work once shared sixteen threads, so these jobs have more tasks than that.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kit.clock import LaterClock
from tests.kit.running_job import RunningWorld
from tests.kit.waiting import wait_until

from weir.core.messages.task import TaskErrored
from weir.core.settings import CheckpointConfig
from weir.core.status import JobStatus
from weir.runtime.concurrency import ThreadWorkers

VERTICES = tuple(f"v{number:02}" for number in range(24))


def world(**how: Any) -> RunningWorld:
    """A job of many tasks whose patience ends once nothing is under way but what hangs."""
    subject = RunningWorld(*VERTICES, patience_ms=10, **how)
    workers = subject.job.driver._workers
    wait = workers.wait

    def wait_for_the_rest(works: Sequence[Any], timeout_s: float) -> bool:
        wait_until(
            lambda: sum(not work.done() for work in works) <= subject.port.held, "all else is over"
        )
        return wait(works, timeout_s)

    workers.wait = wait_for_the_rest  # type: ignore[method-assign]
    return subject


def hang(subject: RunningWorld, name: str) -> None:
    """Make calls of this name hang from now on."""
    subject.port.gates[name] = threading.Event()


def take(subject: RunningWorld, position: int) -> None:
    """Let every task take part in the checkpoint that was just requested."""
    subject.wait_in_progress()
    for vertex in VERTICES:
        subject.port.step(vertex, position)


def let_commits_hang(subject: RunningWorld) -> None:
    """Hang every task's sink in the commit of checkpoint 1."""
    hang(subject, "commit_sinks")
    subject.wait_running(answers=len(VERTICES))
    subject.job.trigger_checkpoint()
    take(subject, 0)
    subject.port.wait_for("commit_sinks 1", len(VERTICES))


def test_a_job_is_cancelled_while_every_sink_hangs_in_a_commit() -> None:
    """The tasks are stopped and the end is recorded, although no commit ever returns."""
    with world() as subject:
        let_commits_hang(subject)
        subject.job.cancel().result()
        assert subject.join().status is JobStatus.CANCELED
        assert not subject.port.gates["commit_sinks"].is_set()
    assert subject.port.calls.count("stop_tasks") >= 1


def test_a_job_is_suspended_while_every_sink_hangs_in_a_commit() -> None:
    """Like Ctrl-C: nothing is recorded, and the same command resumes the job."""
    with world() as subject:
        let_commits_hang(subject)
        subject.job.suspend()
        assert subject.join().status is JobStatus.SUSPENDED
    assert not any(call.startswith("record_end") for call in subject.port.calls)


def test_a_job_fails_over_while_every_sink_hangs_in_a_commit() -> None:
    """The next attempt starts; its sinks decide whether they can be opened."""
    with world() as subject:
        let_commits_hang(subject)
        subject.port.posts[VERTICES[0], 1](TaskErrored(message="boom"))
        subject.port.wait_for("begin_attempt", 2)
        subject.wait_until(lambda: subject.job.view().attempt == 2)
        subject.job.cancel().result()


def test_a_savepoint_is_taken_and_a_stop_is_answered_while_every_sink_hangs_in_a_commit() -> None:
    """The answer names the savepoint once the checkpoint's timeout has passed; the job goes on as
    after any failure (P34)."""
    clock = LaterClock()
    with world(clock=clock, tolerable_failed_checkpoints=100) as subject:
        let_commits_hang(subject)
        stop = subject.job.stop_with_savepoint("/saved")
        take(subject, 1)
        subject.port.wait_for("checkpoint_completed 2", len(VERTICES))
        clock.ahead_ms = CheckpointConfig().timeout_ms
        subject.job.driver.call(lambda: None)
        failure = str(stop.exception())
        assert "Created a savepoint at /saved/savepoint, but the job did not stop" in failure
        assert "have not committed and closed their sinks: 'v00', 'v01'" in failure
        subject.port.wait_for("begin_attempt", 2)
        subject.job.cancel().result()
        assert subject.join().status is JobStatus.CANCELED


@pytest.mark.parametrize("call", ["start_task", "started"])
def test_a_job_is_cancelled_while_every_start_hangs(call: str) -> None:
    """Before or after the query runs."""
    subject = world()
    hang(subject, call)
    with subject:
        subject.port.wait_until(
            lambda: sum(made.startswith(call) for made in subject.port.calls) == len(VERTICES)
        )
        subject.job.cancel().result()
        assert subject.join().status is JobStatus.CANCELED


def test_no_attempt_starts_while_a_start_of_the_last_attempt_hangs() -> None:
    """It may still run a query: the job has failed, says why, and another process can resume it."""
    subject = world()
    hang(subject, "started")
    with subject:
        subject.port.wait_until(lambda: len(subject.port.posts) == len(VERTICES))
        subject.port.posts[VERTICES[3], 1](TaskErrored(message="boom"))
        ended = subject.join()
    assert ended.status is JobStatus.FAILED
    assert "Task 'v03' failed: boom (not restarted in this process" in (ended.failure or "")
    assert "the start (task 'v07')" in (ended.failure or "")
    assert subject.port.calls.count("begin_attempt") == 1


def test_a_job_whose_queries_do_not_stop_is_cancelled() -> None:
    """Its end is recorded, and the run returns without retrying."""
    with world() as subject:
        subject.wait_running(answers=len(VERTICES))
        hang(subject, "stop_tasks")
        subject.job.cancel().result()
        assert subject.join().status is JobStatus.CANCELED
    assert subject.port.calls.count("stop_tasks") == 1


@pytest.mark.parametrize("call", ["begin_attempt", "prepare_attempt"])
def test_a_job_is_cancelled_while_the_start_of_its_attempt_hangs(call: str) -> None:
    """A sink being opened, a hook being restored, a session that does not answer."""
    subject = world()
    hang(subject, call)
    with subject:
        subject.port.wait_until(lambda: any(made.startswith(call) for made in subject.port.calls))
        subject.job.cancel().result()
        assert subject.join().status is JobStatus.CANCELED
        assert subject.port.calls[-1] == "stop_tasks"
        assert "record_end CANCELED" in subject.port.calls


def test_an_attempt_that_starts_after_it_was_given_up_starts_no_task() -> None:
    """The job has ended: late results change nothing."""
    subject = world()
    hang(subject, "begin_attempt")
    hang(subject, "record_end")
    with subject:
        subject.port.wait_for("begin_attempt")
        cancelled = subject.job.cancel()
        subject.port.wait_for("record_end CANCELED")
        subject.port.gates["begin_attempt"].set()
        subject.port.wait_for("prepare_attempt 1")
        assert not subject.port.seen_within(f"start_task {VERTICES[0]}", 1, 0.3)
        subject.port.gates["record_end"].set()
        cancelled.result()
    assert subject.error is None


HANGING_PROCESS = """
import sys
sys.path.insert(0, {root!r})
from tests.runtime.test_hanging import let_commits_hang, world
subject = world()
subject.__enter__()
let_commits_hang(subject)
subject.job.cancel().result()
print(subject.join().status.name)
"""


def test_a_process_ends_though_its_commits_hang() -> None:
    """Hanging threads are daemons, and nothing joins them at exit."""
    root = str(__file__).rsplit("/tests/", 1)[0]
    command = [sys.executable, "-c", HANGING_PROCESS.format(root=root)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("CANCELED\n", 0), ended.stderr


# -- the threads -----------------------------------------------------------------------------------


def test_work_is_never_kept_waiting_by_work_that_hangs() -> None:
    """However much of it there is."""
    workers, gate, reached = ThreadWorkers(), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        reached.release()
        gate.wait()

    hanging = [workers.submit(wait) for _ in range(200)]
    for _ in hanging:
        reached.acquire()
    assert workers.wait([workers.submit(lambda: None)], threading.TIMEOUT_MAX)
    assert not workers.wait(hanging, 0.05)
    # It would wait forever for what was left behind.
    workers.close(threading.TIMEOUT_MAX)
    gate.set()
    assert workers.wait(hanging, threading.TIMEOUT_MAX)


def test_threads_are_used_again() -> None:
    """A job that checkpoints every second does not start a thread every second."""
    workers, names = ThreadWorkers(), set[int]()
    for _ in range(50):
        assert workers.wait(
            [workers.submit(lambda: names.add(threading.get_ident()))], threading.TIMEOUT_MAX
        )
        wait_until(lambda: workers._idle, "its thread waits for more")
    assert len(names) == 1


def test_work_that_raises_is_over() -> None:
    """Its thread ends, and the next piece of work gets another."""
    workers = ThreadWorkers()
    previous, threading.excepthook = threading.excepthook, lambda args: None
    try:
        assert workers.wait([workers.submit(lambda: sys.exit(1))], threading.TIMEOUT_MAX)
        assert workers.wait([workers.submit(lambda: None)], threading.TIMEOUT_MAX)
    finally:
        threading.excepthook = previous
