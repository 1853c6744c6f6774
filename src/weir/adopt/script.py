"""Runs an ordinary Structured Streaming script, with no line changed, as Weir jobs.

The script is executed on the main thread, with stand-ins for the methods of PySpark that start and
watch queries. Its queries are collected, and become one job when the script first waits for a query
or looks at one, sleeps on its main thread, reads the table of a memory sink, or ends. What the job
consists of so depends on the script's code alone, and not on how fast it runs.

A query that is started later belongs to a next job of the script, which is not in one cut with the
first; this is reported. The jobs of a script are numbered, and known by their queries: those that
are started again in a loop (``availableNow``) go on with the job that they had.

At the end of the script its jobs

- go on until they end, if the script has waited for nothing, or still waits in a thread: in Spark,
  its queries would end with it, which nobody wants of a script that only starts them;
- rest otherwise: the same command resumes them.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from weir.adopt.jobs import Assembled, ScriptJob, Shows
from weir.adopt.naming import key_of
from weir.adopt.reading import Executed, check_names, give_session
from weir.adopt.signals import ScriptSignals
from weir.errors import PipelineError, WeirError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from weir.spark.adopt.handles import AdoptedQuery
    from weir.spark.adopt.listeners import Listeners
    from weir.spark.adopt.query import StartedQuery
    from weir.spark.adopt.session import ScriptSession

_TURN_S = 0.2
#: A thread that waits for a query, or looks at one, starts the job if no further query is started
#: for so long: the main thread may wait for that thread.
_PATIENCE_S = 2.0


#: Makes a job of queries: its name, and the queries.
Assembles = Callable[[str, Sequence["StartedQuery"]], Assembled]


class ScriptRun:
    """One execution of a script (``QueryHost``)."""

    def __init__(
        self,
        program: Executed,
        session: ScriptSession,
        *,
        name: str | None,
        assemble: Assembles,
        check: Callable[[StartedQuery], None],
        show: Shows,
        say: Callable[[str], None],
        end: Callable[[int], None],
    ) -> None:
        """``name`` is the command line's. ``check`` refuses a query at its line.

        ``end`` ends the process at a second signal, with its number.
        """
        self._program = program
        self._session = session
        self._name = name
        self._assemble = assemble
        self._check = check
        self._show = show
        self._say = say
        self._lock = threading.RLock()
        self._signals = ScriptSignals(jobs=lambda: tuple(self.jobs), say=say, end=end)
        #: In the order of their starts.
        self.jobs: list[ScriptJob] = []
        #: The job that takes further queries.
        self._open: ScriptJob | None = None
        #: The names of the jobs, by the keys of their queries.
        self._names: dict[frozenset[str], str] = {}
        self._last_start = 0.0
        self._listeners: Listeners | None = None
        #: Queries that have ended, and that ``awaitAnyTermination`` is to ignore.
        self._forgotten: set[int] = set()
        #: Whether the script has waited for a time, and so decides itself how long its jobs run.
        self._has_waited = False
        #: How many threads wait without an end.
        self._waiting = 0

    @property
    def received(self) -> signal.Signals | None:
        """The first signal that the process received."""
        return self._signals.received

    # -- the script

    def run(self) -> int:
        """Execute the script and run its jobs until it and they have ended.

        Returns the exit code of the process. Raises ``WeirError`` for what Weir refuses.
        """
        from weir.spark.adopt.capture import StandIns
        from weir.spark.adopt.places import Places

        path = self._program.path
        check_names(path, str(path))
        stand_ins = StandIns(self, self._session, Places(str(path)))
        with ExitStack() as stack:
            stack.callback(self._session.close)
            stack.enter_context(self._signals)
            try:
                with stand_ins:
                    code = self._executed()
                    if code == 0 and self._signals.received is None:
                        self._see_to_the_end()
            except KeyboardInterrupt:
                code = 128 + signal.SIGINT
            except SystemExit as exit_:
                code = _code_of(exit_)
            finally:
                self._suspend_all()
        received = self._signals.received
        return code if received is None else 128 + received

    def _executed(self) -> int:
        """Execute the file; return its exit code."""
        give_session(self._program, self._session, self._say)
        try:
            self._program.execute()
        except SystemExit as exit_:
            return _code_of(exit_)
        except PipelineError as error:
            cause = error.__cause__
            if cause is None:
                raise
            # What Weir refuses says all that a user needs, also what it refuses as a job starts,
            # for which the script then waits in vain.
            for refused in (cause, cause.__cause__):
                if isinstance(refused, WeirError):
                    raise refused from None
            # A script's own error is shown as Python shows it.
            traceback.print_exception(_without_weir(cause))
            return 1
        return 0

    def _see_to_the_end(self) -> None:
        """The script has ended: run what it has started until that ends too, or rest."""
        self._begin()
        running = [job for job in self.jobs if job.is_running]
        if not running:
            return
        if self._has_waited and not self._waiting:
            for job in running:
                job.rest()
            return
        if not self._waiting:
            self._say(
                "the script has ended without waiting for its queries, which go on: Ctrl-C suspends"
                " them, and weir stop ends them."
            )
        for job in running:
            self._wait(job, None)

    def _suspend_all(self) -> None:
        """End what still runs, after an error or a signal."""
        for job in self.jobs:
            if job.has_begun and job.is_running:
                job.suspend()
            job.join()

    # -- queries (QueryHost)

    def start(self, query: StartedQuery) -> AdoptedQuery:
        """Add a query to the job that takes queries, and return its handle."""
        from weir.spark.adopt.handles import AdoptedQuery

        self._check(query)
        with self._lock:
            self._check_name(query)
            if self._open is None:
                self._open = self._next_job(query)
            job = self._open
            handle = AdoptedQuery(
                query, _Watched(self, job), identity=f"{self._base_name()}/{key_of(query)}"
            )
            job.queries.append(handle)
            self._last_start = time.monotonic()
        listeners = self._relayed()
        if listeners is not None:
            listeners.started(handle)
        return handle

    def look(self) -> None:
        """The queries must run."""
        self._begin()

    def look_at_tables(self) -> None:
        """The script reads a table: that of a memory sink is there once its query runs."""
        if any(query.asked.format == "memory" for query in self._queries()):
            self._begin()
            for job in self.jobs:
                job.wait_until_it_runs()

    def sleep(self) -> None:
        """The script's main thread sleeps."""
        if self._queries():
            self._begin()
            self._has_waited = True

    def active(self) -> Sequence[AdoptedQuery]:
        """The queries that run; none before the first."""
        self._begin()
        return [query for query in self._queries() if query.is_running]

    def await_any(self, timeout: float | None) -> bool | None:
        """Wait until a query has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        with _Waiting(self, timeout):
            self._begin()
            while True:
                ended = [
                    query
                    for query in self._queries()
                    if not query.is_running and id(query) not in self._forgotten
                ]
                if ended:
                    self._signals.raise_if_received()
                    for query in ended:
                        query.raise_failure()
                    return None if timeout is None else True
                if until is not None and time.monotonic() >= until:
                    return False
                self._pause()

    def forget_ended(self) -> None:
        """Ignore the queries that have ended in ``await_any``."""
        self._forgotten |= {id(query) for query in self._queries() if not query.is_running}

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener of the queries from now on."""
        listeners = self._relayed()
        if listeners is not None:
            listeners.add(listener)

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener no longer."""
        if self._listeners is not None:
            self._listeners.remove(listener)

    def stop_session(self) -> None:
        """The script is done with its session: it stops when the script and its jobs have ended."""
        self._has_waited = self._has_waited or any(job.has_begun for job in self.jobs)

    def _relayed(self) -> Listeners | None:
        """The listeners, which Spark notifies from now on; None without a session."""
        session = self._session.session
        with self._lock:
            if self._listeners is None and session is not None:
                from weir.spark.adopt.listeners import Listeners

                self._listeners = Listeners(self._queries, session)
            return self._listeners

    # -- jobs

    def begin(self, job: ScriptJob) -> None:
        """Start a job for which the script waits, unless it has started."""
        self._begin()
        job.begin()

    def wait(self, job: ScriptJob, timeout: float | None) -> bool:
        """Wait for a job on behalf of the script."""
        with _Waiting(self, timeout):
            self.begin(job)
            return self._wait(job, timeout)

    def stop(self, job: ScriptJob, query: AdoptedQuery) -> None:
        """The script stops a query; with the last of its job, the job rests."""
        self._has_waited = True
        if all(other.is_stopped for other in job.queries):
            self.begin(job)
            job.rest()
            self._signals.raise_if_received()
        else:
            self._say(
                f"{query.asked.place}: the query {query.identity!r} is stopped, but computed until"
                " its job ends, with the others."
            )

    def settle(self, job: ScriptJob) -> None:
        """Wait on behalf of the script until a job has committed what its sources have."""
        self._has_waited = True
        self.begin(job)
        job.settle()
        self._signals.raise_if_received()

    def _wait(self, job: ScriptJob, timeout: float | None) -> bool:
        ended = job.wait(timeout)
        if ended:
            self._signals.raise_if_received()
        return ended

    def _queries(self) -> list[AdoptedQuery]:
        with self._lock:
            return [query for job in self.jobs for query in job.queries]

    def _next_job(self, query: StartedQuery) -> ScriptJob:
        if any(job.is_running for job in self.jobs):
            self._say(
                f"{query.place}: the query is started after the script has looked at others, so it"
                " belongs to a job of its own: its rows are not in one cut with theirs."
            )
        job = ScriptJob(assemble=self._assembled, show=self._show, ended=self._ended)
        self.jobs.append(job)
        return job

    def _begin(self) -> None:
        """Start the job that has collected queries, if any.

        A thread other than the main one gives the script time to start further queries.
        """
        if threading.current_thread() is not threading.main_thread():
            while self._open is not None and time.monotonic() - self._last_start < _PATIENCE_S:
                self._pause()
        with self._lock:
            job, self._open = self._open, None
            if job is not None:
                job.begin()

    def _assembled(self, job: ScriptJob) -> Assembled:
        keys = frozenset(query.identity for query in job.queries)
        first = job.queries[0].asked
        name = self._names.get(keys)
        if name is None:
            number = len(self._names) + 1
            name = self._base_name() if number == 1 else f"{self._base_name()}-{number}"
            self._names[keys] = name
        elif any(other.is_running for other in self._of_name(keys) if other is not job):
            raise PipelineError(
                f"{first.place}: the query already runs: stop it before it is started again."
            )
        return self._assemble(name, job.asked)

    def _of_name(self, keys: frozenset[str]) -> list[ScriptJob]:
        return [job for job in self.jobs if frozenset(one.identity for one in job.queries) == keys]

    def _base_name(self) -> str:
        return self._name or self._session.app_name or self._program.path.stem

    def _check_name(self, query: StartedQuery) -> None:
        """As in Spark, no two active queries have one name."""
        for other in self._queries():
            if query.name is not None and other.asked.name == query.name and other.is_running:
                raise PipelineError(
                    f"{query.place}: a query named {query.name!r} is already active, from"
                    f" {other.asked.place}: give each query a name of its own."
                )

    def _ended(self, job: ScriptJob) -> None:
        """A job has ended."""
        if self._listeners is not None:
            for query in job.queries:
                self._listeners.terminated(query, job.failure)

    @staticmethod
    def _pause() -> None:
        threading.Event().wait(_TURN_S)


class _Watched:
    """The job of a query for its handle: what the script does with it concerns the run."""

    def __init__(self, run: ScriptRun, job: ScriptJob) -> None:
        self._run = run
        self._job = job

    @property
    def is_running(self) -> bool:
        return self._job.is_running

    @property
    def failure(self) -> str | None:
        self._job.is_failure_known = True
        return self._job.failure

    @property
    def error(self) -> BaseException | None:
        return self._job.error

    @property
    def status(self) -> str:
        return self._job.status

    def begin(self) -> None:
        self._run.begin(self._job)

    def wait(self, timeout: float | None) -> bool:
        return self._run.wait(self._job, timeout)

    def settle(self) -> None:
        self._run.settle(self._job)

    def stop(self, query: AdoptedQuery) -> None:
        self._run.stop(self._job, query)

    def vertex_of(self, query: AdoptedQuery) -> str | None:
        return self._job.vertex_of(query)


class _Waiting:
    """Notes while it is entered that a thread of the script waits."""

    def __init__(self, run: ScriptRun, timeout: float | None) -> None:
        self._run = run
        self._is_endless = timeout is None

    def __enter__(self) -> None:
        if self._is_endless:
            self._run._waiting += 1
        else:
            self._run._has_waited = True

    def __exit__(self, *_: object) -> None:
        if self._is_endless:
            self._run._waiting -= 1


def _code_of(exit_: SystemExit) -> int:
    """The exit code of a script, as Python has it."""
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    print(exit_.code, file=sys.stderr)
    return 1


def _without_weir(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") != "__main__":
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)
