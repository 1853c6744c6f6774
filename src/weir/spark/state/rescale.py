"""Sets the number of state partitions of each query, and changes it for restored queries.

Spark fixes the number of a query's state partitions in its first batch: each offset-log entry
records it, and a restarted query uses that number, whatever its session says. So there are two
cases:

* *The first batch of a query*: Spark uses the session's number when the query starts. A number
  requested for a step is set in the session while the query starts (``StatePartitions``).
* *A restored query* (``rescaled``) for which another number is requested:

  1. Without state, the number in its newest offset-log entry is replaced: it is recorded nowhere
     else.
  2. With state, Spark repartitions it, operator by operator, while the query is stopped. It reads
     the state after the last batch b and writes all of it again as Spark's snapshots after a batch
     b+1, which has the offsets of b and reads nothing. The query goes on with b+2.

As a result, b+1 is the position of the task, reported with ``TaskStarted``, and of the next
snapshot. The state files are those that ``commits/b+1`` lists, and none of the restored files. The
logs of sources and the segments of channels are not affected: the offsets are the same, and
positions in a channel only have to grow.

If no number is requested, nothing changes: a query restored on a machine with more cores keeps its
number.

The queries of a job therefore start one after the other, in the order of the graph: each copies the
session's settings, which may differ by vertex. The first rows flow while the plans of the
downstream queries are built.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.core.graph import Vertex
from weir.core.types import TaskState, VertexId
from weir.errors import PipelineError, StorageError
from weir.spark import releases
from weir.spark.failures import first_cause
from weir.spark.operators.subtasks import DEFAULTS, EMPTY_RELATION_RULE, EXCLUDED_RULES, SETTINGS
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import decode_commit, decode_offsets
from weir.storage.paths import as_spark_path
from weir.subtasks.chain import process_steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Prefixes of the error classes with which Spark refuses to repartition state, rewrite it or read
#: it as a table.
REFUSALS = ("[STATE_REPARTITION_", "[STATE_REWRITER_", "[STDS_")


class StatePartitions:
    """The number of state partitions of each of a job's queries."""

    def __init__(self, session: SparkSession, vertices: Mapping[VertexId, Vertex]) -> None:
        self._session = session
        self._default = int(session.conf.get(SHUFFLE_PARTITIONS) or 1)
        self._asked = {name: vertex.parallelism for name, vertex in vertices.items()}
        #: Whether a query could start with another query's number.
        self._differ = any(number not in (None, self._default) for number in self._asked.values())
        self._with_operators = {name for name, vertex in vertices.items() if process_steps(vertex)}
        self._order = {name: number for number, name in enumerate(vertices)}
        #: The queries that wait to start, and whether a query is starting.
        self._waiting: set[VertexId] = set()
        self._is_starting = False
        self._changed = threading.Condition()
        self._restored: dict[VertexId, int] = {}
        #: The restored queries of which Spark keeps the columns of the state nullable, or not.
        self._guarded: dict[VertexId, bool] = {}

    def of(self, vertex: VertexId) -> int:
        """The number that the query of the vertex has, or would start with."""
        return self._restored.get(vertex) or self._asked[vertex] or self._default

    def restored(self, vertex: VertexId, directory: QueryDirectory, state: TaskState) -> TaskState:
        """Give the query the requested number, in a directory that ``restore_directory`` filled.

        Returns the state that the directory then has. Raises ``PipelineError`` if Spark cannot
        repartition it.
        """
        if state.position < 0:
            return state
        conf = directory.query_conf(state.position)
        self._guarded[vertex] = releases.guards_nullability(conf)
        found = directory.state_partitions(state.position)
        asked = self._asked[vertex] or found
        if asked != found:
            state = rescaled(self._session, vertex, directory, state, asked)
        self._restored[vertex] = asked
        return state

    @contextmanager
    def starting(self, vertex: VertexId) -> Iterator[None]:
        """Hold the vertex's settings in the session while its query starts.

        They are the requested number of state partitions, what Python operators need, and what
        keeps the types of the state the same (``weir/spark/releases.py``). Spark copies the
        session's settings when a query starts, so queries start one at a time, in the order of the
        graph among those that wait. So the first rows flow while the plans of their consumers are
        still being built.
        """
        with self._turn(vertex), self._settings(vertex):
            yield

    @contextmanager
    def draining(self, vertex: VertexId) -> Iterator[None]:
        """The same while a query starts for its drain.

        It takes no turn if all queries have the session's own settings.
        """
        if self._differ or any(map(self._excluded_rules, self._order)):
            with self.starting(vertex):
                yield
        else:
            yield

    def _excluded_rules(self, vertex: VertexId) -> tuple[str, ...]:
        if not self._guarded.get(vertex, releases.guards_nullability(None)):
            return releases.EMPTINESS_RULES
        return (EMPTY_RELATION_RULE,) if vertex in self._with_operators else ()

    @contextmanager
    def _turn(self, vertex: VertexId) -> Iterator[None]:
        with self._changed:
            self._waiting.add(vertex)
            self._changed.wait_for(
                lambda: (
                    not self._is_starting
                    and vertex == min(self._waiting, key=self._order.__getitem__)
                )
            )
            self._waiting.discard(vertex)
            self._is_starting = True
        try:
            yield
        finally:
            with self._changed:
                self._is_starting = False
                self._changed.notify_all()

    @contextmanager
    def _settings(self, vertex: VertexId) -> Iterator[None]:
        settings = {SHUFFLE_PARTITIONS: str(self.of(vertex))}
        conf = self._session.conf
        if vertex in self._with_operators:
            settings |= {key: to for key, to in DEFAULTS.items() if conf.get(key, None) is None}
            settings |= SETTINGS
        rules = self._excluded_rules(vertex)
        if rules:
            user = conf.get(EXCLUDED_RULES, None)
            settings[EXCLUDED_RULES] = ",".join(filter(None, (user, *rules)))
        before = {key: self._session.conf.get(key, None) for key in settings}
        changed = {key: value for key, value in settings.items() if value != before[key]}
        for key, value in changed.items():
            self._session.conf.set(key, value)
        try:
            yield
        finally:
            for key in changed:
                old = before[key]
                self._session.conf.unset(key) if old is None else self._session.conf.set(key, old)


def check_rescaling(vertex: Vertex, state: TaskState) -> None:
    """Raise ``PipelineError`` if the vertex asks for another number of partitions than it can get.

    Spark may be too old to repartition its state. Needs no JVM.
    """
    lacks = releases.lacks_repartition()
    offsets = state.entries.get(f"offsets/{state.position}")
    commit = state.entries.get(f"commits/{state.position}")
    if lacks is None or vertex.parallelism is None or offsets is None or commit is None:
        return
    # What cannot be read is reported by the restore.
    with suppress(ValueError, KeyError):
        found = int(decode_offsets(offsets).metadata.conf[SHUFFLE_PARTITIONS])
        if found != vertex.parallelism and decode_commit(commit).is_stateful:
            raise PipelineError(_cannot(vertex.name, found, vertex.parallelism, lacks))


def _cannot(vertex: VertexId, found: int, partitions: int, because: str) -> str:
    return (
        f"The state of the chain ending in {vertex!r} cannot go from {found} partitions to"
        f" {partitions}, because {because}: run it with {found} as before"
        f" (parallelism={found} at one of its steps, or parallelism.default), or start from"
        " scratch with --fresh and new tables."
    )


def rescaled(
    session: SparkSession,
    vertex: VertexId,
    directory: QueryDirectory,
    state: TaskState,
    partitions: int,
) -> TaskState:
    """Give a restored query another number of state partitions.

    Returns the state that the directory then has. Raises ``PipelineError`` if Spark refuses, and
    ``StorageError`` if it failed and may succeed another time.
    """
    position = state.position
    if not directory.commit_entry(position).is_stateful:
        directory.set_state_partitions(position, partitions)
        return state
    found = directory.state_partitions(position)
    lacks = releases.lacks_repartition()
    if lacks is not None:
        raise PipelineError(_cannot(vertex, found, partitions, lacks))
    try:
        session._streamingCheckpointManager.repartition(as_spark_path(directory.path), partitions)
    except Exception as error:
        cause = first_cause(error)
        if not any(refusal in cause for refusal in REFUSALS):
            raise StorageError(
                f"The state of the chain ending in {vertex!r} cannot go from {found} partitions to"
                f" {partitions}: {cause}."
            ) from error
        raise PipelineError(_cannot(vertex, found, partitions, f"Spark says {cause}")) from error
    # None of the restored files belongs to the state after the new batch.
    return replace(state, position=position + 1, files=())
