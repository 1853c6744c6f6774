"""When the jobs of a script begin, what waits for them, and how they end: without Spark.

The script is a Python function, and a job a thread that waits until the test or the script ends it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from tests.kit.started_queries import started
from tests.kit.waiting import wait_until

from weir.adopt import script as script_module
from weir.adopt.jobs import Display
from weir.adopt.script import ScriptRun
from weir.core.status import JobStatus
from weir.errors import JobError, PipelineError
from weir.launch.options import JobResult
from weir.spark.adopt.query import Place, StartedQuery
from weir.spark.adopt.session import ScriptSession


class FakeJob:
    """A job that runs until it is told to end; its own gateway and view."""

    status = JobStatus.RUNNING
    vertices = ()
    saves_on_sigterm = False

    def __init__(
        self,
        name: str,
        queries: Sequence[StartedQuery],
        submits_after_s: float,
        refusal: JobError | None,
    ) -> None:
        self.refusal = refusal
        self._submits_after_s = submits_after_s
        self.name = name
        self.places = [query.place.line for query in queries]
        self.ended_by = ""
        #: The batches whose output the next checkpoints have as not yet committed.
        self.staged: list[list[int] | None] = []
        self._over = threading.Event()

    def vertex_of(self, index: int) -> str:
        return f"query{index}"

    def run(self, listener: Any) -> JobResult:
        threading.Event().wait(self._submits_after_s)
        if self.refusal is not None:
            raise self.refusal
        listener.submitted("id", self, "http://nowhere")
        self._over.wait()
        status = JobStatus.FINISHED if self.ended_by == "end" else JobStatus.SUSPENDED
        return JobResult(job_id="id", status=status)

    def view(self) -> FakeJob:
        return self

    def trigger_checkpoint(self) -> Future[Any]:
        """Each checkpoint has the next of ``staged``; None of these is a checkpoint that fails."""
        positions = self.staged.pop(0)
        taken: Future[Any] = Future()
        if positions is None:
            taken.set_exception(JobError("no checkpoint"))
        else:
            output = [SimpleNamespace(sink="out", position=one) for one in positions]
            taken.set_result(SimpleNamespace(tasks=[SimpleNamespace(committables=output)]))
        return taken

    def stop_with_checkpoint(self) -> Future[None]:
        self.end("rest")
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def suspend(self) -> None:
        self.end("suspend")

    def end(self, how: str = "end") -> None:
        self.ended_by = self.ended_by or how
        self._over.set()


class FakeDisplay:
    """Knows the gateway."""

    gateway: Any = None

    def submitted(self, job_id: str, gateway: Any, rest_address: str) -> None:
        self.gateway = gateway

    def note(self, message: str) -> None: ...


class FakeException(Exception):
    """In place of ``StreamingQueryException``."""

    def __init__(self, **known: str) -> None:
        super().__init__(known["desc"])


class FakeSession:
    """A session that is never made."""

    app_name = "app"
    session = None

    def close(self) -> None: ...


class World:
    """A script and its jobs."""

    def __init__(self, path: Path, code: Callable[[World], None]) -> None:
        self.said: list[str] = []
        self.jobs: list[FakeJob] = []
        self.killed: list[int] = []
        self.submits_after_s = 0.0
        self.refusal: JobError | None = None
        self.path = path
        self.module = ModuleType("__main__")
        self._code = code
        self.run = ScriptRun(
            self,
            cast(ScriptSession, FakeSession()),
            name=None,
            assemble=self._assembled,
            check=lambda _: None,
            show=self._show,
            say=self.said.append,
            end=self.killed.append,
        )

    def execute(self, around: object = None) -> None:
        self._code(self)

    def start(self, line: int, **asked: Any) -> Any:
        """What a script's line does that starts a query."""
        name = asked.pop("name", f"query{line}")
        return self.run.start(started(None, place=Place("script.py", line), name=name, **asked))

    def end_first(self) -> None:
        """Let the first job end."""
        self.jobs[0].end()

    def _assembled(self, name: str, queries: Sequence[StartedQuery]) -> FakeJob:
        self.jobs.append(FakeJob(name, queries, self.submits_after_s, self.refusal))
        return self.jobs[-1]

    @contextmanager
    def _show(self) -> Iterator[Display]:
        yield cast(Display, FakeDisplay())


@pytest.fixture
def world(tmp_path: Path) -> Callable[[Callable[[World], None]], World]:
    """Makes the world of a script."""
    path = tmp_path / "script.py"
    path.write_text("")
    return lambda code: World(path, code)


Worlds = Callable[[Callable[[World], None]], World]


def soon(call: Callable[[], object]) -> None:
    """Call something on another thread, shortly."""
    threading.Timer(0.3, call).start()


def test_queries_that_are_started_before_the_first_look_are_one_job(world: Worlds) -> None:
    """Two starts make no job; the first wait makes one of both, with the application's name."""

    def code(made: World) -> None:
        first = made.start(1)
        made.start(2)
        assert made.jobs == []
        soon(made.end_first)
        first.awaitTermination()

    made = world(code)
    assert made.run.run() == 0
    (job,) = made.jobs
    assert (job.name, job.places, made.said) == ("app", [1, 2], [])


@pytest.mark.parametrize(
    "look",
    [
        lambda query, run: query.isActive,
        lambda query, run: query.status,
        lambda query, run: query.exception(),
        lambda query, run: run.active(),
        lambda query, run: run.sleep(),
        lambda query, run: run.look(),
    ],
)
def test_each_look_at_a_query_starts_the_job(
    world: Worlds, look: Callable[[Any, ScriptRun], object]
) -> None:
    """The job runs once the script has looked."""

    def code(made: World) -> None:
        query = made.start(1)
        look(query, made.run)
        assert len(made.jobs) == 1
        query.stop()

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs[0].ended_by == "rest"


def test_looks_before_the_first_query_do_nothing(world: Worlds) -> None:
    """``resetTerminated``, ``active`` and sleeping at the top of a script."""

    def code(made: World) -> None:
        made.run.forget_ended()
        assert made.run.active() == []
        made.run.sleep()
        made.run.stop_session()

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs == []


def test_a_script_that_waits_for_nothing_goes_on_and_says_so(world: Worlds) -> None:
    """Its job runs until it ends."""

    def code(made: World) -> None:
        made.start(1)
        soon(made.end_first)

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs[0].ended_by == "end"
    assert len(made.said) == 1 and "without waiting" in made.said[0]


def test_a_script_that_has_waited_for_a_time_lets_its_job_rest(world: Worlds) -> None:
    """``awaitTermination`` with a timeout returns False; the end of the script rests the job."""

    def code(made: World) -> None:
        assert made.start(1).awaitTermination(0.2) is False

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs[0].ended_by == "rest"


def test_only_the_last_query_that_is_stopped_ends_the_job(world: Worlds) -> None:
    """The first of two is no longer active, which is said; with the second the job rests."""

    def code(made: World) -> None:
        first, second = made.start(1), made.start(2)
        first.stop()
        assert not first.isActive and second.isActive
        assert made.jobs[0].ended_by == ""
        second.stop()
        assert not second.isActive

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs[0].ended_by == "rest"
    assert len(made.said) == 1 and "script.py, line 1" in made.said[0]


def test_a_query_after_the_first_look_has_a_job_of_its_own(world: Worlds) -> None:
    """It is said with its line, and the job has a number."""

    def code(made: World) -> None:
        first = made.start(1)
        assert first.isActive
        second = made.start(2)
        assert second.isActive
        for query in (first, second):
            query.stop()

    made = world(code)
    assert made.run.run() == 0
    assert [(job.name, job.places) for job in made.jobs] == [("app", [1]), ("app-2", [2])]
    assert len(made.said) == 1 and "script.py, line 2" in made.said[0]


def test_a_query_that_is_started_again_in_a_loop_goes_on_with_its_job(world: Worlds) -> None:
    """Twice the same two queries in turn: two names, each twice."""

    def code(made: World) -> None:
        for _ in range(2):
            for line in (1, 2):
                query = made.start(line)
                assert query.isActive
                soon(made.jobs[-1].end)
                query.awaitTermination()

    made = world(code)
    assert made.run.run() == 0
    assert [job.name for job in made.jobs] == ["app", "app-2", "app", "app-2"]
    assert made.said == []


def test_a_query_that_runs_is_not_started_again(world: Worlds) -> None:
    """Refused with both lines, as Spark refuses a second query of one name."""

    def code(made: World) -> None:
        assert made.start(1, name="one").isActive
        with pytest.raises(PipelineError, match=r"line 2: .*'one'.*line 1"):
            made.start(2, name="one")
        made.jobs[0].end()

    assert world(code).run.run() == 0


def test_a_wait_in_another_thread_starts_the_job_after_a_while(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each query: both are in one job, since the first waits for further starts."""
    monkeypatch.setattr(script_module, "_PATIENCE_S", 0.5)

    def code(made: World) -> None:
        threads = []
        for line in (1, 2):
            query = made.start(line)
            threads.append(threading.Thread(target=query.awaitTermination))
            threads[-1].start()
            # A sleep would be a look.
            threading.Event().wait(0.1)
        assert made.jobs == []
        wait_until(lambda: made.jobs, "the job starts")
        made.jobs[0].end()
        for thread in threads:
            thread.join()

    made = world(code)
    assert made.run.run() == 0
    assert [job.places for job in made.jobs] == [[1, 2]]


def test_any_termination_is_that_of_a_query_that_is_not_forgotten(world: Worlds) -> None:
    """After ``resetTerminated``, the wait is for another query."""

    def code(made: World) -> None:
        first = made.start(1)
        first.stop()
        assert made.run.await_any(1) is True
        made.run.forget_ended()
        second = made.start(2)
        assert made.run.await_any(0.1) is False
        second.stop()
        assert made.run.await_any(None) is None

    made = world(code)
    assert made.run.run() == 0


def test_a_start_that_is_refused_is_reported_without_the_frames_of_the_script(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after ``weir stop``. The script that waits gets Spark's exception, and may catch it;
    if it does not, the command reports what was refused."""
    # Spark's own asks the JVM for its stack.
    monkeypatch.setattr("weir.spark.adopt.handles.StreamingQueryException", FakeException)
    refusal = JobError("it was stopped with a savepoint")

    def code(made: World) -> None:
        made.refusal = refusal
        try:
            made.start(1).awaitTermination()
        except FakeException as error:
            raise PipelineError("script.py, line 1: it failed") from error

    with pytest.raises(JobError) as caught:
        world(code).run.run()
    assert caught.value is refusal


def test_a_script_that_waits_for_all_rows_waits_for_their_commit(world: Worlds) -> None:
    """Until a checkpoint has none of the output that the first one had; that a sink which commits
    at intervals has newer output, or that a checkpoint fails, changes nothing."""

    def code(made: World) -> None:
        query = made.start(1)
        assert query.isActive
        (job,) = made.jobs
        job.staged += [[3, 4], [3, 4, 5], None, [4, 5], [5], [6]]
        query.processAllAvailable()
        assert job.staged == [[6]]

    made = world(code)
    assert made.run.run() == 0
    assert made.jobs[0].ended_by == "rest"


def test_a_script_that_fails_suspends_its_jobs(
    world: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own exit code is the command's; what it raised is shown as Python shows it."""

    def code(made: World) -> None:
        assert made.start(1).isActive
        raise SystemExit(3)

    made = world(code)
    assert made.run.run() == 3
    assert made.jobs[0].ended_by == "suspend"

    def raises(made: World) -> None:
        raise PipelineError("script.py, line 9: KeyError: 1") from KeyError(1)

    assert world(raises).run.run() == 1
    assert "KeyError: 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_suspends_the_job_before_it_unwinds_the_script(
    world: Worlds, number: signal.Signals, raised: type[BaseException]
) -> None:
    """The script's ``finally`` finds its query ended."""
    unwound: list[object] = []

    def code(made: World) -> None:
        query = made.start(1)
        soon(lambda: _send(number))
        try:
            query.awaitTermination()
        except BaseException as error:
            unwound.extend((type(error), query.isActive))
            raise

    made = world(code)
    assert made.run.run() == 128 + number
    assert unwound == [raised, False]
    assert made.jobs[0].ended_by == "suspend"
    assert made.killed == []


def test_a_signal_without_a_job_unwinds_the_script_at_once(world: Worlds) -> None:
    """As without Weir."""

    def code(made: World) -> None:
        _send(signal.SIGINT)
        time.sleep(5)
        raise AssertionError("the signal was ignored")

    assert world(code).run.run() == 128 + signal.SIGINT


def _send(number: signal.Signals) -> None:
    """Send a signal to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def test_a_script_that_fails_while_its_job_starts_waits_to_suspend_it(world: Worlds) -> None:
    """The job cannot be suspended before it is submitted."""

    def code(made: World) -> None:
        made.submits_after_s = 0.5
        assert made.start(1).isActive
        raise SystemExit(3)

    made = world(code)
    assert made.run.run() == 3
    assert made.jobs[0].ended_by == "suspend"
