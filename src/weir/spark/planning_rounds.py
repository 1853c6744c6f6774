"""The planning calls of one query: Spark's question to its sources, held until the driver answers.

Before each batch Spark asks every source of a query once for its latest offset, in no order that it
promises. The first of Weir's sources that is asked in a *round* passes the question on to the driver and
waits; the others give what the same answer says. So all of them agree, whatever the order: a query that
reads channels reads exactly what the answer admits (PROTOCOL P7). A source that is asked again begins
the next round.

While the call waits the query rests. Spark does not interrupt it, so whoever stops the query releases
the call: first ``query.stop()`` on a thread of its own; then, once the query is no longer active and
Spark takes an interruption for its own, ``release`` (``weir/spark/query_task.py``). A released call
raises: if it returned, Spark would plan on, and run a batch without data where a watermark has moved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


class QueryInterruptedError(Exception):
    """The query was stopped. Spark takes it for an interruption of its own, by its text."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1.stop.\n: java.lang.InterruptedException"
        )


@dataclass(frozen=True, kw_only=True)
class PlanningAnswer:
    """What the next batch may do."""

    #: The watermarks of the query's channels in milliseconds, by the numbers of the channels.
    watermarks_ms: Mapping[int, int] = field(default_factory=dict)
    #: There is a batch, even without rows.
    force: bool = False


class PlanningRounds:
    """Lets one query wait for the driver, once for each batch."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """``ask`` passes the question on; ``reply`` answers it, perhaps before ``ask`` returns."""
        self._ask = ask
        self._changed = threading.Condition()
        #: The sources that were asked in this round, and the answer that holds for it.
        self._asked: set[int] = set()
        self._answer = PlanningAnswer()
        #: The answer to the call that waits, once there is one.
        self._reply: PlanningAnswer | None = None
        self._released = False

    def start_run(self) -> None:
        """The query is about to start."""
        with self._changed:
            self._asked.clear()
            self._released = False

    def answer(self, source: object) -> PlanningAnswer:
        """The answer that holds for a source. Called on the query's own thread; may wait for long.

        Raises ``QueryInterruptedError`` if the query is being stopped.
        """
        if not self._asked or id(source) in self._asked:
            self._asked = {id(source)}
            self._answer = self._wait()
        self._asked.add(id(source))
        return self._answer

    def reply(self, answer: PlanningAnswer) -> None:
        """Let the call that waits return."""
        with self._changed:
            self._reply = answer
            self._changed.notify_all()

    def release(self) -> None:
        """The query is no longer active: its call ends, and any that follows."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def _wait(self) -> PlanningAnswer:
        with self._changed:
            self._reply = None
            released = self._released
        if not released:
            self._ask()
        with self._changed:
            self._changed.wait_for(lambda: self._reply is not None or self._released)
            if self._reply is None or self._released:
                raise QueryInterruptedError
            return self._reply
