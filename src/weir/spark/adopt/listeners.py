"""Notifies a script's handles and listeners of its queries, not of those by which Weir runs them.

Spark notifies one listener, ``_Relay``. It passes on the progress of what computes the script's
queries, under their names; the queries of Weir's own channels are not seen. A query starts once, in
``start()``, and ends once, with its job: what Spark reports of attempts is not passed on.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.java_gateway import ensure_callback_server_started

from weir.spark.adopt.handles import AdoptedQuery
from weir.spark.java import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

_log = logging.getLogger(__name__)


class Listeners:
    """The listeners of a script."""

    def __init__(
        self, queries: Callable[[], Sequence[AdoptedQuery]], session: SparkSession
    ) -> None:
        """``queries`` are those of the script so far."""
        self._queries = queries
        self._session = session
        self._lock = threading.Lock()
        self._listeners: list[StreamingQueryListener] = []
        jvm = Jvm(session)
        ensure_callback_server_started(jvm.gateway)  # type: ignore[no-untyped-call]
        relay = jvm.sql_class("streaming.PythonStreamingQueryListenerWrapper")(_Relay(self))
        jvm.java_session.streams().addListener(relay)

    def add(self, listener: StreamingQueryListener) -> None:
        """Notify a listener from now on."""
        listener._set_spark_session(self._session)
        with self._lock:
            self._listeners.append(listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        """Notify a listener no longer."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def started(self, query: AdoptedQuery) -> None:
        """The script has started a query."""
        self._notify(lambda listener: listener.onQueryStarted(query.started()))

    def terminated(self, query: AdoptedQuery, failure: str | None) -> None:
        """A query has ended for good, by a failure or otherwise."""
        self._notify(lambda listener: listener.onQueryTerminated(query.terminated(failure)))

    def progressed(self, name: str | None, progress: str) -> None:
        """A batch of the Spark query of this name has ended."""
        for query in self._computed_by(name):
            event = query.progressed(progress)
            self._notify(lambda listener, event=event: listener.onQueryProgress(event))  # type: ignore[misc]

    def idle(self, name: str | None, timestamp: str) -> None:
        """The Spark query of this name had nothing to read."""
        for query in self._computed_by(name):
            event = query.idle(timestamp)
            self._notify(lambda listener, event=event: listener.onQueryIdle(event))  # type: ignore[misc]

    def _computed_by(self, name: str | None) -> Iterator[AdoptedQuery]:
        return (query for query in self._queries() if query.is_computed_by(name))

    def _notify(self, call: Callable[[StreamingQueryListener], None]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                call(listener)
            except Exception:
                # As in Spark, where it fails no query.
                _log.warning("A listener of the script raised.", exc_info=True)


class _Relay:
    """The listener that Spark notifies: as PySpark's own, with fewer calls of the JVM."""

    def __init__(self, listeners: Listeners) -> None:
        self._to = listeners
        #: The names of Spark's queries, by the id of their run: an idle one has no other.
        self._names: dict[str, str | None] = {}

    def onQueryStarted(self, event: Any) -> None:
        """An attempt has begun, which the script does not see."""
        self._names[str(event.runId().toString())] = event.name()

    def onQueryProgress(self, event: Any) -> None:
        """A batch has ended."""
        progress = str(event.progress().json())
        self._to.progressed(json.loads(progress).get("name"), progress)

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing to read."""
        name = self._names.get(str(event.runId().toString()))
        self._to.idle(name, str(event.timestamp()))

    def onQueryTerminated(self, event: Any) -> None:
        """An attempt has ended, which the script does not see."""
        self._names.pop(str(event.runId().toString()), None)

    class Java:
        """What py4j makes of it."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
