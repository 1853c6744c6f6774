"""Notifies a script's listeners of its queries, instead of the queries by which Weir runs them.

Spark gets one listener, ``_Relay``, as soon as the script adds one. It passes on the progress of
what computes the script's queries, under their names; the queries of Weir's own channels are not
seen. A query starts once, in ``start()``, and ends once, with its job: what Spark reports of
attempts is not passed on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from weir.spark.adopt.handles import AdoptedQuery, all_of
from weir.spark.own_calls import own_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Listeners:
    """The listeners of a script."""

    def __init__(self, queries: Callable[[], Sequence[AdoptedQuery]]) -> None:
        self._queries = queries
        self._lock = threading.Lock()
        self._listeners: list[StreamingQueryListener] = []
        self._is_relayed = False

    def add(self, listener: StreamingQueryListener, session: SparkSession) -> None:
        """Notify a listener from now on."""
        listener._set_spark_session(session)
        with self._lock:
            self._listeners.append(listener)
            is_first, self._is_relayed = not self._is_relayed, True
        if is_first:
            manager: Any = session
            with own_calls():
                StreamingQueryManager(manager._jsparkSession.streams()).addListener(_Relay(self))

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

    def progressed(self, name: str | None, event: QueryProgressEvent) -> None:
        """A batch of the Spark query of this name has ended."""
        for query in all_of(self._queries(), name):
            own = query.progressed(event)
            self._notify(lambda listener, own=own: listener.onQueryProgress(own))  # type: ignore[misc]

    def idle(self, name: str | None, event: QueryIdleEvent) -> None:
        """The Spark query of this name had nothing to read."""
        for query in all_of(self._queries(), name):
            own = query.idle(event)
            self._notify(lambda listener, own=own: listener.onQueryIdle(own))  # type: ignore[misc]

    def _notify(self, call: Callable[[StreamingQueryListener], None]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                call(listener)
            except Exception:
                # As in Spark, where it fails no query.
                _log.warning("A listener of the script raised.", exc_info=True)


class _Relay(StreamingQueryListener):
    """The listener that Spark notifies."""

    def __init__(self, listeners: Listeners) -> None:
        self._to = listeners
        #: The names of Spark's queries, by the id of their run: an idle one has no other.
        self._names: dict[str, str | None] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """An attempt has begun, which the script does not see."""
        self._names[str(event.runId)] = event.name

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended."""
        self._names[str(event.progress.runId)] = event.progress.name
        self._to.progressed(event.progress.name, event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was nothing to read."""
        self._to.idle(self._names.get(str(event.runId)), event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """An attempt has ended, which the script does not see."""
        self._names.pop(str(event.runId), None)
