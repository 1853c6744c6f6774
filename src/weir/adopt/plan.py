"""Executes a script to find its queries, up to where they would have to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.adopt.naming import key_of
from weir.adopt.reading import Executed, check_names, give_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from weir.spark.adopt.handles import AdoptedQuery
    from weir.spark.adopt.places import Places
    from weir.spark.adopt.query import Place, StartedQuery
    from weir.spark.adopt.session import ScriptSession


class LookReached(SystemExit):
    """Ends the execution where the job would start: what unwinds a script ends it quietly."""


@dataclass(frozen=True, kw_only=True)
class FoundQueries:
    """The queries of a script's first job."""

    queries: tuple[StartedQuery, ...]
    #: Where the job would start, and what was not executed; None: at the end of the script.
    end: Place | None


class QuerySearch:
    """One execution of a script that runs no query (``QueryHost``)."""

    def __init__(
        self, program: Executed, session: ScriptSession, check: Callable[[StartedQuery], None]
    ) -> None:
        self._program = program
        self._session = session
        self._check = check
        self._queries: list[StartedQuery] = []
        self._end: Place | None = None
        self._places: Places | None = None

    def run(self, say: Callable[[str], None]) -> FoundQueries:
        """Execute the script, which may write nothing; raises what it raises."""
        from weir.spark.adopt.capture import StandIns
        from weir.spark.adopt.places import Places

        path = self._program.path
        check_names(path, str(path))
        self._places = Places(str(path))
        with ExitStack() as stack:
            stack.enter_context(StandIns(self, self._session, self._places, refuse_writes=True))
            give_session(self._program, self._session, say)
            with suppress(LookReached):
                self._program.execute()
        return FoundQueries(queries=tuple(self._queries), end=self._end)

    # -- QueryHost

    def start(self, query: StartedQuery) -> AdoptedQuery:
        """Note a query; what comes after the first look is not executed."""
        from weir.spark.adopt.handles import AdoptedQuery

        self._check(query)
        self._queries.append(query)
        return AdoptedQuery(query, _NoJob(self.look), identity=key_of(query))

    def look(self) -> None:
        """The job would start here, if there are queries."""
        if self._queries and threading.current_thread() is threading.main_thread():
            if self._end is None and self._places is not None:
                self._end = self._places.of_caller()
            raise LookReached

    def look_at_tables(self) -> None:
        """The same, for the table of a memory sink."""
        if any(query.format == "memory" for query in self._queries):
            self.look()

    def sleep(self) -> None:
        """The same."""
        self.look()

    def active(self) -> Sequence[AdoptedQuery]:
        """The same; no query runs."""
        self.look()
        return ()

    def await_any(self, timeout: float | None) -> bool | None:
        """The same."""
        self.look()
        return None if timeout is None else False

    def forget_ended(self) -> None:
        """Do nothing: no query has ended."""

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Do nothing: there is nothing to notify it of."""

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Do nothing."""

    def stop_session(self) -> None:
        """Do nothing: the command stops the session."""


class _NoJob:
    """In place of a query's job, which is never run (``QueryJob``)."""

    is_running = True
    failure = None
    error = None
    status = "planned"

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def begin(self) -> None:
        self._look()

    def wait(self, timeout: float | None) -> bool:
        del timeout
        self._look()
        return False

    def settle(self) -> None:
        self._look()

    def stop(self, query: AdoptedQuery) -> None:
        del query
        self._look()

    def vertex_of(self, query: AdoptedQuery) -> None:
        del query
