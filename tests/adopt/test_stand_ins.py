"""What the stand-ins for PySpark's methods note, let through, refuse, and put back."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from weir.errors import PipelineError
from weir.spark.adopt.capture import StandIns
from weir.spark.adopt.places import Places
from weir.spark.adopt.query import StartedQuery, TriggerKind
from weir.spark.adopt.session import ScriptSession
from weir.spark.own_calls import own_calls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


class Host:
    """Notes what it is called for."""

    def __init__(self) -> None:
        self.queries: list[StartedQuery] = []
        self.calls: list[str] = []

    def start(self, query: StartedQuery) -> Any:
        self.queries.append(query)
        return f"handle {len(self.queries)}"

    def await_any(self, timeout: float | None) -> bool | None:
        self.calls.append(f"await_any {timeout}")
        return None if timeout is None else False

    def active(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class KnownSession:
    """The session of the tests, for a script that has asked for it."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.later: list[str] = []

    def make(self, options: dict[str, Any], place: object) -> dict[str, Any]:
        return {}

    def set_later(self, key: str, value: Any, place: object) -> bool:
        self.later.append(f"{place}: {key}={value}")
        return False


@pytest.fixture
def host() -> Host:
    """What the queries belong to."""
    return Host()


@pytest.fixture
def known(spark: SparkSession) -> KnownSession:
    """The script's session."""
    return KnownSession(spark)


@pytest.fixture
def stand_ins(host: Host, known: KnownSession) -> Iterator[None]:
    """This file is the script."""
    places = Places(__file__)
    with StandIns(cast(Any, host), cast(ScriptSession, known), places):
        yield


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A streaming DataFrame."""
    return spark.readStream.format("rate").load()


@pytest.mark.usefixtures("stand_ins")
def test_what_a_script_asks_of_a_writer_is_noted(host: Host, rows: DataFrame) -> None:
    """Everything that a writer can be asked, with the line of ``start``."""
    writer = (
        rows.writeStream.format("JSON")
        .option("Compression", "gzip")
        .options(maxRecords=5, header=True, nothing=None)
        .outputMode("Append")
        .queryName("the name")
        .trigger(processingTime=" 10 seconds ")
        .partitionBy("value", "timestamp")
    )
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    handle = writer.start("out", checkpointLocation="ck")
    assert handle == "handle 1"
    (query,) = host.queries
    assert (query.place.file, query.place.line) == (__file__, line)
    assert (query.format, query.output_mode, query.name) == ("json", "append", "the name")
    assert (query.trigger.kind, query.trigger.interval) == (
        TriggerKind.PROCESSING_TIME,
        "10 seconds",
    )
    assert query.partition_by == ("value", "timestamp")
    assert query.options == {
        "compression": "gzip",
        "maxrecords": "5",
        "header": "true",
        "checkpointlocation": "ck",
        "path": "out",
    }
    assert query.table is None and query.each_batch is None and query.each_row is None


@pytest.mark.usefixtures("stand_ins")
def test_tables_triggers_and_keywords_are_noted(host: Host, rows: DataFrame) -> None:
    """``toTable``, and ``start`` with everything as keywords."""
    rows.writeStream.trigger(availableNow=True).toTable("db.t", format="parquet")
    rows.writeStream.clusterBy(["value"]).start(
        format="console", outputMode="update", queryName="q"
    )
    rows.writeStream.start("out", partitionBy=["value"])
    table, console, files = host.queries
    assert (table.table, table.format, table.trigger.kind) == (
        "db.t",
        "parquet",
        TriggerKind.AVAILABLE_NOW,
    )
    assert (console.format, console.output_mode, console.name) == ("console", "update", "q")
    assert files.partition_by == console.cluster_by == ("value",)


@pytest.mark.usefixtures("stand_ins")
def test_functions_are_kept_and_the_last_way_to_write_counts(host: Host, rows: DataFrame) -> None:
    """``foreachBatch`` and ``foreach`` call nothing in the JVM; a later format replaces them."""
    seen: list[object] = []
    rows.writeStream.foreachBatch(lambda frame, batch: seen.append(batch)).start()
    rows.writeStream.foreach(print).start()
    rows.writeStream.foreach(print).format("noop").start()
    batch, row, plain = host.queries
    assert batch.each_batch is not None and batch.format is None
    batch.each_batch(rows, 7)
    assert seen == [7]
    assert row.each_row is print
    assert plain.format == "noop" and plain.each_row is None


@pytest.mark.usefixtures("stand_ins")
def test_what_pyspark_refuses_it_refuses_itself(rows: DataFrame) -> None:
    """An empty name, two triggers, a function that is none: PySpark's own exceptions."""
    with pytest.raises(PySparkValueError):
        rows.writeStream.queryName("")
    with pytest.raises(PySparkValueError):
        rows.writeStream.trigger(processingTime="1 second", availableNow=True)
    with pytest.raises(Exception, match="process"):
        rows.writeStream.foreach(object())  # type: ignore[arg-type]


@pytest.mark.usefixtures("stand_ins")
def test_subclasses_of_the_writer_are_noted_too(host: Host, rows: DataFrame) -> None:
    """Methods are replaced, so that what a script inherits and calls is noted."""

    class Writer(DataStreamWriter):
        def start(self, path: str | None = None, **options: Any) -> Any:
            return super().start(path, **{"mergeSchema": True, **options})

    Writer(rows).format("delta").start("out")
    assert host.queries[0].options == {"mergeschema": "true", "path": "out"}


@pytest.mark.usefixtures("stand_ins")
def test_a_query_of_another_session_or_in_a_batch_is_refused(
    host: Host, spark: SparkSession, rows: DataFrame
) -> None:
    """With the line of ``start``."""
    other = spark.newSession().readStream.format("rate").load()
    with pytest.raises(PipelineError, match=r"test_stand_ins\.py, line \d+: .*one session"):
        other.writeStream.format("noop").start()

    def starts(frame: DataFrame, _: int) -> None:
        rows.writeStream.format("noop").start()

    rows.writeStream.foreachBatch(starts).start()
    function = host.queries[0].each_batch
    assert function is not None
    with pytest.raises(PipelineError, match=r"line \d+: .*foreachBatch"):
        function(rows, 1)


@pytest.mark.usefixtures("stand_ins")
def test_waits_sleeps_and_tables_are_looks(host: Host, spark: SparkSession) -> None:
    """On the main thread; what other threads sleep and read is not."""
    spark.streams.resetTerminated()
    assert spark.streams.awaitAnyTermination(3) is False
    spark.streams.awaitAnyTermination(timeout=4)
    time.sleep(0)
    spark.sql("SELECT 1").collect()
    spark.range(1).createOrReplaceTempView("one")
    spark.table("one")
    spark.read.table("one")
    calls = [
        *("forget_ended", "await_any 3", "await_any 4", "sleep"),
        *["look_at_tables"] * 3,
    ]
    assert host.calls == calls
    other = threading.Thread(target=lambda: (time.sleep(0), spark.table("one")))
    other.start()
    other.join()
    assert host.calls == calls
    assert spark.streams.active == [] and spark.streams.get("id") is None


@pytest.mark.usefixtures("stand_ins")
def test_settings_and_stops_of_the_session_are_the_hosts(
    host: Host, known: KnownSession, spark: SparkSession
) -> None:
    """``spark.conf.set`` asks first, with its line; ``stop`` is put off."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "x")
    assert spark.conf.get("spark.sql.ansi.enabled") == before
    assert "test_stand_ins.py, line" in known.later[0]
    spark.stop()
    spark.sparkContext.stop()
    assert host.calls == ["stop_session", "stop_session"]
    assert spark.range(1).count() == 1


@pytest.mark.usefixtures("stand_ins")
def test_weirs_own_calls_reach_pyspark(host: Host, rows: DataFrame, tmp_path: Path) -> None:
    """A query that Weir starts runs in Spark, unseen."""
    with own_calls():
        query = (
            rows.writeStream.foreachBatch(lambda frame, batch: None)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        assert query.isActive
        assert [one.id for one in rows.sparkSession.streams.active] == [query.id]
    query.stop()
    assert host.queries == []


def test_at_the_end_every_method_is_pysparks_own_again(host: Host, known: KnownSession) -> None:
    """Also if the script has raised."""
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQueryManager

    owners: list[Any] = [DataStreamWriter, StreamingQueryManager, SparkSession, SparkContext, time]
    before = [dict(vars(owner)) for owner in owners]
    with (
        pytest.raises(ValueError, match="x"),
        StandIns(cast(Any, host), cast(ScriptSession, known), Places(__file__)),
    ):
        assert dict(vars(DataStreamWriter)) != before[0]
        raise ValueError("x")
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_script_that_is_only_looked_at_writes_nothing(
    host: Host, known: KnownSession, spark: SparkSession, tmp_path: Path
) -> None:
    """Writes and statements that change something are refused with their line; reads are not."""
    places = Places(__file__)
    with StandIns(cast(Any, host), cast(ScriptSession, known), places, refuse_writes=True):
        frame = spark.range(1)
        for write in (
            lambda: frame.write.parquet(str(tmp_path / "x")),
            lambda: frame.write.mode("append").format("json").save(str(tmp_path / "x")),
            lambda: frame.writeTo("t").append(),
            lambda: spark.sql("CREATE TABLE t (id INT)"),
        ):
            with pytest.raises(PipelineError, match=r"test_stand_ins\.py, line \d+: "):
                write()
        assert spark.sql("SELECT 1").count() == 1
    assert not (tmp_path / "x").exists()
