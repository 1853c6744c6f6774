"""``JobHandle`` over a fake run: what it answers, how it waits, and what it leaves behind."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import IPython.display
import pytest
from IPython.display import DisplayHandle
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway, completed
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason
from weir.errors import (
    ConfigurationError,
    JobAlreadyRunningError,
    JobEndedError,
    JobError,
    JobFailedError,
)
from weir.handle import job_handle
from weir.handle.job_progress import as_html, progress_of
from weir.launch import runner
from weir.launch.options import JobResult, RunListener, RunOptions

ADDRESS = "http://127.0.0.1:8081"


class Gateway(FakeGateway):
    """Ends the run when it is suspended, stopped or cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: Future[JobStatus] = Future()

    def suspend(self) -> None:
        super().suspend()
        if not self.ended.done():
            self.ended.set_result(JobStatus.SUSPENDED)

    def _call(self, name: str, target: str | None) -> Future[Any]:
        self.prepared.append(None if name == "cancel" else completed(7, "/s/1"))
        ends = {"cancel": JobStatus.CANCELED, "stop": JobStatus.FINISHED}
        if name in ends:
            self.ended.set_result(ends[name])
        return super()._call(name, target)


class FakeRuns:
    """Replaces ``run_job``: each run is submitted, and ends when its gateway says so."""

    def __init__(self) -> None:
        self.gateways: list[Gateway] = []
        self.options: list[RunOptions] = []
        #: Open unless a test holds the start.
        self.may_submit = threading.Event()
        self.may_submit.set()
        self.refusal: Exception | None = None
        self.result: JobResult | None = None

    def __call__(self, job: object, options: RunOptions, listener: RunListener) -> JobResult:
        self.options.append(options)
        if self.refusal is not None:
            raise self.refusal
        if self.result is not None:
            return self.result
        assert self.may_submit.wait(PATIENCE_S)
        gateway = Gateway()
        self.gateways.append(gateway)
        listener.submitted(JOB_ID, gateway, ADDRESS)
        listener.phase(None)
        status = gateway.ended.result(PATIENCE_S)
        savepoint = "/s/1" if status is JobStatus.FINISHED else None
        return JobResult(job_id=JOB_ID, status=status, savepoint=savepoint, failure="a cause")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRuns]:
    """Fake runs; none survives its test, and no thread of a handle does."""
    monkeypatch.chdir(tmp_path)
    made = FakeRuns()
    monkeypatch.setattr(runner, "run_job", made)
    before = set(threading.enumerate())
    yield made
    made.may_submit.set()
    for gateway in made.gateways:
        gateway.suspend()
    wait_until(lambda: set(threading.enumerate()) <= before, "every thread has ended")


Action = Callable[[weir.JobHandle], object]


def test_a_started_job_says_what_and_where_it_is(runs: FakeRuns) -> None:
    """``start`` returns once the job runs, and passes its keywords on."""
    handle = weir.Job("orders").start(fresh=True, conf={"rest.port": 0})
    assert (handle.job_id, handle.url, handle.status) == (JOB_ID, ADDRESS, JobStatus.RUNNING)
    assert runs.options == [RunOptions(fresh=True, conf={"rest.port": 0})]
    assert repr(handle) == (
        "<weir.JobHandle 'orders' RUNNING, checkpoint 7, 1000 rows in, 800 rows committed,"
        f" {ADDRESS}>"
    )
    result = handle.suspend()
    assert (result.status, handle.status, handle.url) == (
        *(JobStatus.SUSPENDED, JobStatus.SUSPENDED),
        None,
    )
    assert handle.wait() is result is handle.suspend()


def test_what_refuses_a_start_is_raised_there(runs: FakeRuns) -> None:
    """Not by a later call: nobody may make one."""
    runs.refusal = JobAlreadyRunningError("Job 'orders' is running in process 7: leave it running.")
    with pytest.raises(JobAlreadyRunningError, match="process 7"):
        weir.Job("orders").start()
    with pytest.raises(ConfigurationError, match="did you mean"):
        weir.Job("orders").start(conf={"rest.prt": 0})


def test_a_job_that_has_finished_before_has_a_result_and_nothing_else(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so in a line, and no request reaches it."""
    runs.result = JobResult(job_id=JOB_ID, status=JobStatus.FINISHED, already_finished=True)
    handle = weir.Job("orders").start()
    result = handle.wait()
    assert result is not None and result.already_finished
    assert (handle.status, handle.url, handle.progress()) == (JobStatus.FINISHED, None, None)
    with pytest.raises(JobEndedError, match="fresh=True"):
        handle.checkpoint()
    assert "has already finished; nothing was run" in capsys.readouterr().err
    assert "nothing was run" in handle._repr_html_()


@pytest.mark.parametrize(
    ("action", "call", "answer"),
    [
        (lambda handle: handle.checkpoint(), ("checkpoint", "CONFIGURED"), 7),
        (lambda handle: handle.savepoint(), ("savepoint", None), "/s/1"),
        (lambda handle: handle.savepoint("/d/../s"), ("savepoint", "/s"), "/s/1"),
    ],
)
def test_a_request_goes_through_the_gateway_and_waits_for_its_answer(
    runs: FakeRuns, action: Action, call: tuple[str, str | None], answer: object
) -> None:
    """A path is made absolute first."""
    handle = weir.Job("orders").start()
    assert action(handle) == answer
    assert runs.gateways[0].calls == [call]


@pytest.mark.parametrize(
    ("action", "status"),
    [
        (lambda handle: handle.stop(), JobStatus.FINISHED),
        (lambda handle: handle.cancel(), JobStatus.CANCELED),
    ],
)
def test_what_ends_a_job_returns_how_it_ended(
    runs: FakeRuns, action: Callable[[weir.JobHandle], JobResult], status: JobStatus
) -> None:
    """Nothing of the run is left by then."""
    handle = weir.Job("orders").start()
    result = action(handle)
    assert (result.status, handle.status, handle.url) == (status, status, None)


def test_waiting_ends_after_the_time_and_the_job_goes_on(runs: FakeRuns) -> None:
    """None says so; a failed job raises."""
    handle = weir.Job("orders").start()
    assert handle.wait(timeout=0.01) is None
    runs.gateways[0].ended.set_result(JobStatus.FAILED)
    with pytest.raises(JobFailedError, match=f"'orders' \\({JOB_ID}\\) failed: a cause"):
        handle.wait()
    assert handle.status is JobStatus.FAILED


def test_an_interruption_ends_the_waiting_and_not_the_job(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when a notebook's cell is interrupted: a line says how to end the job."""
    handle = weir.Job("orders").start()
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    timer.join()
    assert handle.status is JobStatus.RUNNING
    assert (
        "Job 'orders' keeps running; suspend() or stop() of its handle" in capsys.readouterr().err
    )


def test_an_interrupted_start_suspends_the_job_once_it_is_submitted(runs: FakeRuns) -> None:
    """Spark's own start cannot be interrupted, and nobody has the handle."""
    runs.may_submit.clear()
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        weir.Job("orders").start()
    timer.join()
    runs.may_submit.set()
    wait_until(lambda: bool(runs.gateways) and runs.gateways[0].ended.done(), "it is suspended")


def test_leaving_the_block_of_a_handle_suspends_the_job(runs: FakeRuns) -> None:
    """So does an exception in the block, which is raised on."""
    with weir.Job("orders").start() as handle:
        assert handle.status is JobStatus.RUNNING
    assert handle.status is JobStatus.SUSPENDED
    with pytest.raises(ZeroDivisionError), weir.Job("orders").start() as handle:
        _ = 1 / 0
    assert handle.status is JobStatus.SUSPENDED
    with pytest.raises(ValueError, match="mine"), weir.Job("orders").start() as handle:
        runs.gateways[-1].ended.set_result(JobStatus.FAILED)
        raise ValueError("mine")


def test_starting_a_job_again_suspends_the_run_that_goes_on(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name and its checkpoint directory, whatever object it is; another job goes on."""
    first = weir.Job("orders").start()
    other = weir.Job("orders").start(conf={"execution.checkpointing.dir": "elsewhere"})
    assert "still runs" not in capsys.readouterr().err
    second = weir.Job("orders").start()
    assert [one.status for one in (first, other, second)] == [
        *(JobStatus.SUSPENDED, JobStatus.RUNNING, JobStatus.RUNNING)
    ]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Job 'orders' still runs in this process: suspending it first"
    assert f"Job {JOB_ID} is suspended; run it again to resume it" in said
    third = threading.Thread(target=weir.Job("orders").run)
    third.start()
    wait_until(lambda: len(runs.gateways) == 4, "the job runs again")
    assert second.status is JobStatus.SUSPENDED


def test_nothing_is_printed_by_a_job_that_is_to_be_silent(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    """``weir.progress-interval``; what fails is still raised."""
    handle = weir.Job("orders", conf={"weir.progress-interval": "never"}).start()
    handle.suspend()
    assert capsys.readouterr() == ("", "")


def test_in_json_every_line_is_an_object(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under ``weir run``."""
    weir.Job("orders", conf={"weir.log-format": "json"}).start().suspend()
    said = capsys.readouterr().err.splitlines()
    assert any(f'"message": "REST server: {ADDRESS}"' in line for line in said)
    assert all(line.startswith('{"time": ') for line in said)


def test_progress_has_the_figures_of_each_query_by_its_steps() -> None:
    """As of the newest view."""
    vertex = replace(VIEW.vertices[0], watermark_ms=0, pending_records=3)
    progress = progress_of(replace(VIEW, vertices=(vertex, VIEW.vertices[1])))
    assert (progress.status, progress.attempt, progress.checkpoint) == (JobStatus.RUNNING, 2, 7)
    assert progress.checkpoint_time == datetime(1970, 1, 1, 0, 0, 5, 123_000, UTC)
    assert (progress.rows_in, progress.rows_committed) == (1_000, 800), "500 came by a channel"
    found = progress.of("orders_clean")
    assert found is progress.of("clean")
    assert found.steps == ("orders", "clean", "orders_clean")
    assert (found.rows_in, found.rows_per_second, found.rows_pending) == (1_000, 50.0, 3)
    assert found.watermark == datetime(1970, 1, 1, tzinfo=UTC)
    assert progress.of("revenue").watermark is None
    with pytest.raises(JobError, match=r"no step 'x': its steps are orders, clean, orders_clean"):
        progress.of("x")


def test_a_notebook_draws_the_table_again_until_the_job_has_ended(
    runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its display id, and from one thread, however often the handle is shown."""
    drawn: list[tuple[str, str]] = []

    def display(bundle: dict[str, str], **options: object) -> DisplayHandle:
        assert options == {"raw": True, "display_id": True}
        assert "RUNNING" in bundle["text/html"]
        return DisplayHandle(f"view-{len(drawn)}")

    def update_display(bundle: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        drawn.append((display_id, bundle["text/plain"]))

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(IPython.display, "update_display", update_display)
    monkeypatch.setattr(job_handle, "_REDRAW_S", 0.01)
    handle = weir.Job("orders").start()
    handle._ipython_display_()
    wait_until(lambda: len(drawn) > 2, "it is drawn again")
    handle._ipython_display_()
    wait_until(lambda: len({view for view, _ in drawn}) == 2, "both are drawn again")
    assert [one.name for one in threading.enumerate()].count("weir-view") == 1
    handle.suspend()
    wait_until(lambda: "SUSPENDED" in drawn[-1][1], "the end is drawn")


def test_a_job_that_was_suspended_or_drained_shows_no_failure_and_no_year_9999() -> None:
    """A checkpoint that was under way then did not fail for a reason that anyone looks for."""
    stats = replace(
        VIEW.checkpoints,
        latest_trigger_failure=CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.message,
    )
    drained = replace(VIEW.vertices[0], watermark_ms=253_402_300_799_000)
    view = replace(VIEW, checkpoints=stats, vertices=(drained,))
    progress = progress_of(view)
    assert progress.failure is None
    html = as_html("orders", JOB_ID, None, progress, JobStatus.SUSPENDED)
    assert "end of input" in html and "9999" not in html
    failed = replace(view, checkpoints=replace(stats, latest_trigger_failure="no space left"))
    assert progress_of(failed).failure == "no space left"


def test_the_table_of_a_notebook_needs_nothing_else_and_escapes_what_it_shows() -> None:
    """No script, no style sheet, no picture: it is whole in a file that nobody runs any more."""
    vertex = replace(VIEW.vertices[0], operators=("<img/src=x>",))
    view = replace(VIEW, vertices=(vertex,), failure="<script>alert(1)</script>")
    html = as_html("<b>", JOB_ID, ADDRESS, progress_of(view), JobStatus.RUNNING)
    for text in (
        "&lt;img/src=x&gt;",
        "&lt;script&gt;",
        "<b>&lt;b&gt;</b>",
        "1,000",
        "checkpoint 7",
    ):
        assert text in html
    for text in ("<script", "<link", "<img", "src="):
        assert text not in html.replace("&lt;img/src=x&gt;", "")
    assert html.count("http") == 2, "the link to the web page"
