"""Stands in for PySpark's methods while a script is executed, so that its queries become a job.

What a script calls on a ``DataStreamWriter`` is noted on the writer and passed on to PySpark, which
checks it; only ``foreach`` and ``foreachBatch``, which would register callbacks in the JVM, and
``start`` and ``toTable`` are not. Methods are replaced, not classes, since scripts subclass them.
``StandIns`` is a context manager: at its end every method is PySpark's own again.

Weir's own calls are let through (``own_calls.py``).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter, DataFrameWriterV2
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.utils import to_str

from weir.errors import PipelineError
from weir.monitoring.log_lines import nowhere
from weir.spark.adopt.places import Places
from weir.spark.adopt.query import Place, StartedQuery, Trigger, TriggerKind
from weir.spark.adopt.session import ScriptSession
from weir.spark.own_calls import is_own_call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

#: The attribute of a writer that has what was asked of it.
_NOTED = "_weir_noted"
_SESSIONS = (
    "the queries of one script share one session: start them from the session that getOrCreate"
    " returns, not from newSession() or create()."
)
#: The first words of SQL statements that write.
_WRITING = ("insert", "merge", "update", "delete", "truncate", "drop", "create", "replace", "alter")
#: Methods that write a DataFrame.
_WRITES = {
    DataFrameWriter: (
        *("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "xml", "orc"),
        "jdbc",
    ),
    DataFrameWriterV2: (
        *("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"),
    ),
}
_DEFAULT_TRIGGER = Trigger(kind=TriggerKind.DEFAULT)
#: Whether the thread is in a function of ``foreachBatch``.
_in_batch = threading.local()


class QueryHost(Protocol):
    """What a script's queries belong to. Called on the script's threads."""

    def start(self, query: StartedQuery) -> StreamingQuery:
        """Add a query, and return its handle; raises what Spark or Weir refuses."""
        ...

    def look(self) -> None:
        """The script waits for its queries or looks at them: they must run."""
        ...

    def look_at_tables(self) -> None:
        """The script reads a table, perhaps that of a query."""
        ...

    def sleep(self) -> None:
        """The script's main thread sleeps."""
        ...

    def active(self) -> Sequence[StreamingQuery]:
        """The queries that run; none before the first."""
        ...

    def await_any(self, timeout: float | None) -> bool | None:
        """Wait until a query has ended, as ``awaitAnyTermination`` does."""
        ...

    def forget_ended(self) -> None:
        """Ignore the queries that have ended in ``await_any``."""
        ...

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener of the queries from now on."""
        ...

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener no longer."""
        ...

    def stop_session(self) -> None:
        """The script is done with its session."""
        ...


@dataclass
class _Noted:
    """What was asked of a writer so far."""

    mode: str = "append"
    name: str | None = None
    trigger: Trigger = _DEFAULT_TRIGGER
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    #: As in Spark, the last of these counts.
    format: str | None = None
    each_batch: Callable[[DataFrame, int], object] | None = None
    each_row: object | None = None

    def write_with(
        self,
        *,
        format: str | None = None,
        each_batch: Callable[[DataFrame, int], object] | None = None,
        each_row: object | None = None,
    ) -> None:
        self.format, self.each_batch, self.each_row = format, each_batch, each_row

    def query(self, frame: DataFrame, place: Place, table: str | None) -> StartedQuery:
        return StartedQuery(
            frame=frame,
            place=place,
            name=self.name,
            format=self.format,
            output_mode=self.mode,
            trigger=self.trigger,
            partition_by=self.partition_by,
            cluster_by=self.cluster_by,
            options=dict(self.options),
            table=table,
            each_batch=None if self.each_batch is None else _inside_batch(self.each_batch),
            each_row=self.each_row,
        )


class StandIns:
    """Replaces PySpark's methods while it is entered."""

    def __init__(
        self,
        host: QueryHost,
        session: ScriptSession,
        places: Places,
        *,
        refuse_writes: bool = False,
    ) -> None:
        """``refuse_writes``: the script is only executed to be looked at."""
        self._host = host
        self._session = session
        self._places = places
        self._refuse_writes = refuse_writes
        #: What was there before; None for what an owner inherits.
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> StandIns:
        self._stand_in_for_writers()
        self._stand_in_for_sessions()
        self._stand_in_for_queries()
        if self._refuse_writes:
            self._stand_in_for_writes()
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            owner, name, method = self._before.pop()
            setattr(owner, name, method)

    def _replace(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Let ``ours`` be called with the original method, except for Weir's own calls."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            if is_own_call():
                return original(*arguments, **keywords)
            return ours(original, *arguments, **keywords)

        self._set(owner, name, stand_in)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    # -- DataStreamWriter

    def _stand_in_for_writers(self) -> None:
        for name, note in _NOTES.items():
            self._replace(DataStreamWriter, name, functools.partial(_noting, note))
        for name, keep in _KEPT.items():
            self._replace(DataStreamWriter, name, functools.partial(_keeping, keep))
        self._replace(DataStreamWriter, "start", self._start)
        self._replace(DataStreamWriter, "toTable", self._to_table)

    def _start(
        self, _: Any, writer: DataStreamWriter, path: str | None = None, *given: Any, **options: Any
    ) -> StreamingQuery:
        _apply(writer, *given, **options)
        noted = _noted(writer)
        if path is not None:
            if "path" in noted.options:
                raise PipelineError(
                    f"{self._places.of_caller()}: the path is given twice, as an option and to"
                    " start(): give it once."
                )
            noted.options["path"] = path
        return self._started(writer, None)

    def _to_table(
        self, _: Any, writer: DataStreamWriter, tableName: str, *given: Any, **options: Any
    ) -> StreamingQuery:
        _apply(writer, *given, **options)
        return self._started(writer, tableName)

    def _started(self, writer: DataStreamWriter, table: str | None) -> StreamingQuery:
        place, frame = self._places.of_caller(), writer._df
        if getattr(_in_batch, "is_called", False):
            raise PipelineError(
                f"{place}: a query is started in a function of foreachBatch: start it before, since"
                " a job's queries are known when it starts."
            )
        session: Any = self._session.session
        own: Any = frame.sparkSession
        if session is None or not own._jsparkSession.equals(session._jsparkSession):
            raise PipelineError(f"{place}: {_SESSIONS}")
        return self._host.start(_noted(writer).query(frame, place, table))

    # -- sessions

    def _stand_in_for_sessions(self) -> None:
        self._replace(SparkSession.Builder, "getOrCreate", self._get_or_create)
        self._replace(SparkContext, "__init__", self._init_context)
        self._replace(RuntimeConfig, "set", self._set_conf)
        for owner in (SparkSession, SparkContext):
            self._replace(owner, "stop", lambda *_: self._host.stop_session())

    def _get_or_create(
        self, original: Callable[..., SparkSession], builder: SparkSession.Builder
    ) -> SparkSession:
        kept = self._session.make(builder._options, self._places.of_caller())
        own = type(builder)()
        own._options = dict(kept)
        return original(own)

    def _init_context(
        self,
        original: Callable[..., None],
        context: SparkContext,
        master: str | None = None,
        appName: str | None = None,
        *arguments: Any,
        **keywords: Any,
    ) -> None:
        if SparkContext._active_spark_context is not None:
            original(context, master, appName, *arguments, **keywords)
            return
        conf = keywords.get("conf")
        options = {} if conf is None else dict(conf.getAll())
        options |= {
            key: value
            for key, value in (("spark.master", master), ("spark.app.name", appName))
            if value is not None
        }
        self._session.make(options, self._places.of_caller())
        session = self._session.session
        if session is not None:
            # A process has one context: the script's object is another name for it.
            vars(context).update(vars(session.sparkContext))

    def _set_conf(
        self, original: Callable[..., None], conf: RuntimeConfig, key: str, value: Any
    ) -> None:
        if self._session.set_later(key, value, self._places.of_caller()):
            original(conf, key, value)

    # -- what waits and looks

    def _stand_in_for_queries(self) -> None:
        manager = StreamingQueryManager
        self._replace(manager, "awaitAnyTermination", self._await_any)
        self._replace(manager, "resetTerminated", lambda *_: self._host.forget_ended())
        self._replace(manager, "get", self._get)
        self._replace(manager, "addListener", self._add_listener)
        self._replace(manager, "removeListener", self._remove_listener)
        active: Any = vars(manager)["active"]

        def active_queries(found: StreamingQueryManager) -> list[StreamingQuery]:
            return active.fget(found) if is_own_call() else list(self._host.active())

        self._set(manager, "active", property(active_queries))
        self._replace(time, "sleep", self._sleep)
        self._replace(SparkSession, "sql", self._sql)
        for owner in (SparkSession, DataFrameReader):
            self._replace(owner, "table", self._look_at_tables)

    def _await_any(self, _: Any, __: Any, timeout: float | None = None) -> bool | None:
        return self._host.await_any(timeout)

    def _add_listener(self, _: Any, __: Any, listener: StreamingQueryListener) -> None:
        self._host.add_listener(listener)

    def _remove_listener(self, _: Any, __: Any, listener: StreamingQueryListener) -> None:
        self._host.remove_listener(listener)

    def _get(self, _: Any, manager: StreamingQueryManager, id: str) -> StreamingQuery | None:
        return next((query for query in self._host.active() if query.id == id), None)

    def _sleep(self, original: Callable[..., None], seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self._host.sleep()
        original(seconds)

    def _sql(
        self, original: Callable[..., Any], session: Any, query: str, *more: Any, **keywords: Any
    ) -> Any:
        if self._refuse_writes and query.strip().lower().startswith(_WRITING):
            raise self._refused("the statement")
        return self._look_at_tables(original, session, query, *more, **keywords)

    def _look_at_tables(
        self, original: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> Any:
        if threading.current_thread() is threading.main_thread():
            self._host.look_at_tables()
        return original(*arguments, **keywords)

    # -- writes

    def _stand_in_for_writes(self) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise self._refused("the write")

        for owner, names in _WRITES.items():
            for name in names:
                self._replace(owner, name, refuse)

    def _refused(self, what: str) -> PipelineError:
        return PipelineError(
            f"{self._places.of_caller()}: {what} is not executed, since the plan of a script must"
            " change nothing: put it below 'if __name__' after the queries, or use weir run."
        )


def _noted(writer: DataStreamWriter) -> _Noted:
    found = vars(writer).get(_NOTED)
    if found is None:
        found = _Noted()
        setattr(writer, _NOTED, found)
    return found


def _apply(
    writer: DataStreamWriter,
    format: str | None = None,
    outputMode: str | None = None,
    partitionBy: str | list[str] | None = None,
    queryName: str | None = None,
    **options: Any,
) -> None:
    """The arguments of ``start`` and ``toTable``, as PySpark applies them."""
    writer.options(**options)
    if outputMode is not None:
        writer.outputMode(outputMode)
    if partitionBy is not None:
        writer.partitionBy(partitionBy)
    if format is not None:
        writer.format(format)
    if queryName is not None:
        writer.queryName(queryName)


def _noting(
    note: Callable[..., None],
    original: Callable[..., DataStreamWriter],
    writer: DataStreamWriter,
    *arguments: Any,
    **keywords: Any,
) -> DataStreamWriter:
    """Call PySpark's method, which checks the arguments, and note them."""
    returned = original(writer, *arguments, **keywords)
    note(_noted(writer), *arguments, **keywords)
    return returned


def _keeping(
    keep: Callable[..., None],
    _: Any,
    writer: DataStreamWriter,
    *arguments: Any,
    **keywords: Any,
) -> DataStreamWriter:
    keep(_noted(writer), *arguments, **keywords)
    return writer


def _note_format(noted: _Noted, source: str) -> None:
    noted.write_with(format=source.lower())


def _note_option(noted: _Noted, key: str, value: Any) -> None:
    text = to_str(value)
    if text is not None:
        noted.options[key.lower()] = text


def _note_options(noted: _Noted, **options: Any) -> None:
    for key, value in options.items():
        _note_option(noted, key, value)


def _note_mode(noted: _Noted, outputMode: str) -> None:
    noted.mode = outputMode.strip().lower()


def _note_name(noted: _Noted, queryName: str) -> None:
    noted.name = queryName


def _note_trigger(noted: _Noted, **kinds: Any) -> None:
    name, value = next((name, value) for name, value in kinds.items() if value is not None)
    interval = value.strip() if isinstance(value, str) else None
    noted.trigger = Trigger(kind=TriggerKind(name), interval=interval)


def _note_partitions(noted: _Noted, *columns: Any) -> None:
    noted.partition_by = _columns(columns)


def _note_clusters(noted: _Noted, *columns: Any) -> None:
    noted.cluster_by = _columns(columns)


def _keep_batch(noted: _Noted, func: Callable[[DataFrame, int], object]) -> None:
    noted.write_with(each_batch=func)


def _keep_row(noted: _Noted, f: Any) -> None:
    # PySpark's own check of what it is.
    DataStreamWriter._construct_foreach_function(f)
    noted.write_with(each_row=f)


_NOTES: Mapping[str, Callable[..., None]] = {
    "format": _note_format,
    "option": _note_option,
    "options": _note_options,
    "outputMode": _note_mode,
    "queryName": _note_name,
    "trigger": _note_trigger,
    "partitionBy": _note_partitions,
    "clusterBy": _note_clusters,
}
_KEPT: Mapping[str, Callable[..., None]] = {"foreachBatch": _keep_batch, "foreach": _keep_row}


def _columns(columns: tuple[Any, ...]) -> tuple[str, ...]:
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        return tuple(columns[0])
    return columns


def _inside_batch(
    function: Callable[[DataFrame, int], object],
) -> Callable[[DataFrame, int], object]:
    """The function of a ``foreachBatch``, in which no query can be started."""

    @functools.wraps(function)
    def call(frame: DataFrame, batch: int) -> object:
        _in_batch.is_called = True
        try:
            # What it prints is the script's output.
            with nowhere():
                return function(frame, batch)
        finally:
            _in_batch.is_called = False

    return call
