"""What Spark would refuse when a query starts, refused by Spark's own code and in its own words.

Spark checks a query where the script calls ``start()``. A job starts later and elsewhere, so the
same checks are called here, on the script's line: of the plan and its output mode, and of the sink
that would have been made. The exceptions are those that a script may already catch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.errors import PipelineError
from weir.spark.java import Jvm
from weir.spark.query.plan_checks import check_cleaning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.spark.adopt.query import StartedQuery

_PLAN_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
#: Sinks that need no class of Spark's or a connector's, since Weir has its own.
_OWN_SINKS = ("console", "delta", "foreach", "foreachbatch", "iceberg", "kafka", "memory")
_FILES = ("csv", "json", "orc", "parquet", "text")


def check_frame(frame: object) -> None:
    """Raise ``PipelineError`` unless the frame is a DataFrame of a session that runs here."""
    from pyspark.sql.classic.dataframe import DataFrame

    if not isinstance(frame, DataFrame):
        raise PipelineError(
            "the query belongs to a Spark Connect session, whose plans are elsewhere: make the"
            " session without remote(...)."
        )
    context: Any = frame.sparkSession.sparkContext
    if context._jsc is None or context._jsc.sc().isStopped():
        raise PipelineError(
            "the query's DataFrame belongs to a session that was stopped: make it again in the"
            " session that runs."
        )


def is_one_session(query: StartedQuery, other: StartedQuery) -> bool:
    """Whether two queries belong to one session."""
    first, second = (one.frame.sparkSession for one in (query, other))
    return first is second or bool(first._jsparkSession == second._jsparkSession)


def check_sources(frame: DataFrame) -> None:
    """Raise ``PipelineError`` for a source whose files a restore could not read again."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        check_cleaning("a source", leaves.apply(number))


def check_as_spark_does(query: StartedQuery) -> None:
    """Raise what Spark's ``start()`` would raise for the query."""
    _check_plan(query.frame, query.output_mode)
    if query.each_batch is None and query.each_row is None:
        _check_sink(query)


def why_not_in_update_mode(frame: DataFrame) -> str | None:
    """Why Spark does not run a query in update mode; None if it does."""
    from pyspark.errors import AnalysisException

    try:
        _check_plan(frame, "update")
    except AnalysisException as error:
        return str(error.getMessage()).partition(";")[0].strip().removesuffix(".")
    return None


def _check_plan(frame: DataFrame, output_mode: str) -> None:
    session = frame.sparkSession
    if session.conf.get(_PLAN_CHECK, "true") == "true":
        jvm = Jvm(session)
        jvm.sql_class("catalyst.analysis.UnsupportedOperationChecker").checkForStreaming(
            frame._jdf.queryExecution().analyzed(), _mode(jvm, output_mode)
        )


def _mode(jvm: Jvm, output_mode: str) -> Any:
    return getattr(jvm.sql_class("streaming.OutputMode"), output_mode.capitalize())()


def _check_sink(query: StartedQuery) -> None:
    jvm = Jvm(query.frame.sparkSession)
    compilation = jvm.sql_class("errors.QueryCompilationErrors")
    kind = query.format or query.frame.sparkSession.conf.get("spark.sql.sources.default") or ""
    if kind == "memory" and query.name is None:
        _raise(compilation.queryNameNotSpecifiedForMemorySinkError())
    columns = {column.lower() for column in query.frame.columns}
    for column in query.partition_by:
        if column.lower() not in columns:
            _raise(
                compilation.partitionColumnNotFoundInSchemaError(
                    column, query.frame.schema.simpleString()
                )
            )
    if kind in _OWN_SINKS:
        return
    if kind not in _FILES:
        _look_up(kind, jvm)
    elif query.table is None and "path" not in query.options:
        _raise(jvm.sql_class("errors.QueryExecutionErrors").dataPathNotSpecifiedError())
    elif query.output_mode != "append":
        mode = _mode(jvm, query.output_mode)
        _raise(compilation.dataSourceOutputModeUnsupportedError(kind, mode))


def _look_up(kind: str, jvm: Jvm) -> None:
    """Raise Spark's error for a format that it does not have."""
    state = jvm.java_session.sessionState()
    if not state.dataSourceManager().dataSourceExists(kind):
        jvm.sql_class("execution.datasources.DataSource").lookupDataSource(kind, state.conf())


def _raise(error: Any) -> None:
    """Raise an exception of the JVM as PySpark does."""
    from pyspark.errors.exceptions.captured import convert_exception

    raise convert_exception(error)
