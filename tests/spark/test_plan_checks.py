"""Sources that could lose or duplicate rows are refused by name before a batch runs (P24, P33)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.rig import SCHEMA, Collected, Landing, Rig
from tests.kit.sink import sink_context

from weir.core.messages.task import BatchStaged, PlanningCalled, TaskErrored
from weir.errors import PipelineError
from weir.job import Job, definition_of
from weir.sinks.foreach.sink import BatchInfo, Foreach
from weir.spark.java import Jvm
from weir.spark.query.plan_checks import check_result, check_source

pytestmark = pytest.mark.spark

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """Two files."""
    made = Landing(tmp_path / "in")
    made.land(2)
    return made


def files(spark: SparkSession, landing: Landing, **options: str) -> DataFrame:
    """A file source with options."""
    return spark.readStream.schema(SCHEMA).options(**options).parquet(str(landing.directory))


@pytest.mark.parametrize("value", ["delete", "archive", "DELETE"])
def test_a_source_that_removes_its_files_is_refused(
    spark: SparkSession, landing: Landing, value: str
) -> None:
    """Spark would remove what a restore must read again; the option and the source are named."""
    frame = files(spark, landing, cleanSource=value, sourceArchiveDir="/archive")
    with pytest.raises(PipelineError, match=f"Source 'numbers' has cleanSource='{value}'"):
        check_source("numbers", frame)


def test_the_name_of_an_option_may_be_spelled_in_any_case(
    spark: SparkSession, landing: Landing
) -> None:
    """As Spark itself does."""
    with pytest.raises(PipelineError, match="cleanSource"):
        check_source("numbers", files(spark, landing, CLEANSOURCE="delete"))


def test_a_source_that_removes_nothing_is_fine(spark: SparkSession, landing: Landing) -> None:
    """Without the option, and with it off."""
    for frame in (files(spark, landing), files(spark, landing, cleanSource="off")):
        assert check_source("numbers", frame) is frame


def test_a_refused_source_is_found_below_other_operations(
    spark: SparkSession, landing: Landing
) -> None:
    """Filters, watermarks and unions do not hide it."""
    clean = (
        files(spark, landing, cleanSource="delete").filter("id > 1").withWatermark("ts", "1 minute")
    )
    with pytest.raises(PipelineError, match="cleanSource"):
        check_source("numbers", files(spark, landing).union(clean))


def test_the_socket_source_is_refused(spark: SparkSession) -> None:
    """It cannot read anything twice."""
    frame = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", "1").load()
    with pytest.raises(PipelineError, match=r"Source 'lines' reads 'socket'.*durable log"):
        check_source("lines", frame)


def test_a_static_dataframe_is_refused_as_a_source(spark: SparkSession) -> None:
    """The error names the right reader."""
    with pytest.raises(
        PipelineError, match=r"Source 'numbers'.*not streaming: use spark\.readStream"
    ):
        check_source("numbers", spark.range(3))


@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), ([1], "list"), ("in/", "str")])
def test_anything_but_a_dataframe_is_refused_as_a_source(value: object, kind: str) -> None:
    """For example a function that forgot its return."""
    with pytest.raises(PipelineError, match=f"Source 'numbers' returned a {kind}"):
        check_source("numbers", value)


def test_a_transformation_returns_a_streaming_dataframe(
    spark: SparkSession, landing: Landing
) -> None:
    """Anything else is reported with its type."""
    frame = files(spark, landing)
    assert check_result("clean", frame) is frame
    with pytest.raises(
        PipelineError, match="Step 'clean' returned a DataFrame that is not streaming"
    ):
        check_result("clean", spark.range(3))
    with pytest.raises(PipelineError, match="Step 'clean' returned a NoneType"):
        check_result("clean", None)


# -- sources that cannot be bounded ----------------------------------------------------------------


def one_source(function: Callable[[SparkSession], Any], *, bounded: bool) -> tuple[Job, Collected]:
    """A job that copies the source."""
    job, sink = Job("checks"), Collected()
    job.source("numbers", function, bounded=bounded).sink("out", sink)
    return job, sink


def counting(spark: SparkSession) -> DataFrame:
    """A source that cannot be bounded, and that Spark reads without a Python process of its own.

    Spark gives such a process ten seconds to start, however busy the machine is.
    """
    return spark.readStream.format("rate").load()


def test_a_bounded_source_that_spark_cannot_bound_fails_the_job_for_good(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The error is one sentence, without a hang or one huge batch: a retry cannot help (P33)."""
    job, sink = one_source(counting, bounded=True)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda _: False) as rig:
        error = rig.wait_for(TaskErrored)
    assert error.fatal
    assert "chain ending in 'numbers'" in error.message
    assert "does not support Trigger.AvailableNow" in error.message
    assert sink.steps == {}


@pytest.mark.slow
def test_the_same_source_may_be_unbounded(spark: SparkSession, tmp_path: Path) -> None:
    """Only the end of its input would be unknown."""
    job, sink = one_source(counting, bounded=False)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda position: position < 1) as rig:
        rig.wait_held(1)
    assert sorted(sink.steps) == [0, 1]


def test_a_bounded_file_source_is_not_taken_for_one_that_cannot_be_bounded(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    """Files and the control input both know the end of their data."""
    job, _ = one_source(landing.source, bounded=True)
    with Rig(spark, job, tmp_path / "query", on_plan=lambda _: False) as rig:
        rig.wait_for(PlanningCalled)
        assert not [event for event in rig.events if isinstance(event, TaskErrored)]


# -- the user's functions --------------------------------------------------------------------------


def test_a_function_that_raises_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The step, the error's first line and its location, as the user's mistake."""

    def broken(_: SparkSession) -> DataFrame:
        raise KeyError("amount")

    job, _ = one_source(broken, bounded=False)
    with (
        pytest.raises(
            PipelineError,
            match=r"step 'numbers' raised KeyError: 'amount' \(in broken, .*py, line \d+\)",
        ),
        Rig(spark, job, tmp_path / "q"),
    ):
        pass


def strict(one: int) -> int:
    """A UDF that accepts even numbers only."""
    return {0: 0, 2: 2}[one]


def by_udf(frame: DataFrame) -> DataFrame:
    """The frame with the strict column."""
    return frame.withColumn("strict", F.udf(strict, "int")("id"))


def by_arrow(frame: DataFrame) -> DataFrame:
    """The frame as Arrow batches, the first of which raises."""

    def strict_batches(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            raise KeyError(batch.column("id")[1].as_py())
            yield batch

    return frame.mapInArrow(strict_batches, frame.schema)


def by_cast(frame: DataFrame) -> DataFrame:
    """The frame with a column that the JVM cannot compute."""
    return frame.withColumn("strict", F.concat(F.lit("x"), "id").cast("int"))


@pytest.mark.parametrize(
    ("step", "report"),
    [
        (by_udf, ("KeyError: 1", "strict")),
        (by_arrow, ("KeyError: 1", "strict_batches")),
        (by_cast, ("[CAST_INVALID_INPUT] The value 'x0'", "cast")),
    ],
)
def test_an_error_of_the_user_in_a_batch_is_reported_with_its_line_its_step_and_its_batch(
    spark: SparkSession,
    landing: Landing,
    tmp_path: Path,
    step: Callable[[DataFrame], DataFrame],
    report: tuple[str, str],
) -> None:
    """It may be transient, and has a trace of both languages; the next attempt would recognize
    it."""
    said, where = report
    job = Job("checks")
    job.source("numbers", landing.source).transform("strictly", step).sink("out", Collected())
    with Rig(spark, job, tmp_path / "query") as rig:
        error = rig.wait_for(TaskErrored)
    assert error.message.startswith(said)
    assert f" (in {where}, {__file__}, line " in error.message
    assert error.message.endswith("; step 'strictly'; batch 0)")
    assert not error.fatal
    assert f" in {where}, {__file__}, line " in error.cause.key
    assert "\tat org.apache.spark." in error.cause.trace


def test_a_function_of_the_user_finds_the_active_session_in_any_thread(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    """Otherwise PySpark omits where an expression was written: 'line 6' is missing in the
    message."""
    found: list[SparkSession | None] = []

    def note(frame: DataFrame) -> DataFrame:
        found.append(SparkSession.getActiveSession())
        return frame

    def run() -> None:
        Jvm(spark).sql_class("classic.SparkSession").clearActiveSession()
        job = Job("checks")
        job.source("numbers", landing.source).transform("noted", note).sink("out", Collected())
        with Rig(spark, job, tmp_path / "query") as rig:
            rig.wait_for(BatchStaged)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
    assert [session is not None for session in found] == [True]


def test_a_column_that_the_function_of_a_sink_does_not_find_fails_the_job_for_good(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    """A retry cannot help; the error has the sink and the line of its function."""

    def stage(frame: DataFrame, _: BatchInfo) -> None:
        frame.select("amount").collect()

    job = Job("checks")
    job.source("numbers", landing.source).sink("out", Foreach(stage))
    definition_of(job).sinks["out"].open(sink_context(job_id="0" * 32, job_name="checks"))
    with Rig(spark, job, tmp_path / "query") as rig:
        error = rig.wait_for(TaskErrored)
    assert error.fatal
    assert error.message.startswith("[UNRESOLVED_COLUMN.WITH_SUGGESTION] ")
    assert f" (in stage, {__file__}, line " in error.message
    assert error.message.endswith("; sink 'out'; batch 0)")


def test_a_plan_that_spark_refuses_is_named(
    spark: SparkSession, landing: Landing, tmp_path: Path
) -> None:
    """An aggregation without a watermark cannot be appended: that is the plan's fault, not the
    storage's."""
    job = Job("checks")
    total = job.source("numbers", landing.source).transform(
        "total", lambda frame: frame.groupBy("id").count()
    )
    total.sink("out", Collected())
    with (
        pytest.raises(PipelineError, match=r"chain ending in 'total'.*watermark"),
        Rig(spark, job, tmp_path / "q"),
    ):
        pass
