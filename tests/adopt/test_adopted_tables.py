"""``toTable``: where the session's catalog has the table, in its format."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.place import Place
from tests.kit.sink import sink_context
from tests.kit.started_queries import started

import weir
from weir.adopt.outputs.sinks import AdoptedSink, sink_of
from weir.core.status import JobStatus
from weir.errors import PipelineError

pytestmark = pytest.mark.spark


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A database of the test."""
    spark.sql(f"CREATE DATABASE adopted LOCATION '{tmp_path / 'warehouse'}'")
    yield "adopted"
    spark.sql("DROP DATABASE adopted CASCADE")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A directory with three files of numbers."""
    made = Place(tmp_path)
    made.land(3)
    return made


def rows(frame: Any) -> Any:
    return frame.select("id", (F.col("id") % 3).alias("part"))


def adopted(place: Place, spark: SparkSession, table: str, **asked: Any) -> AdoptedSink:
    return sink_of(
        started(rows(numbers(place)(spark)), table=table, **asked),
        uid="totals",
        updates=False,
        keys=None,
        directory=str(place.directory / "sinks"),
    )


def run(place: Place, sink: AdoptedSink) -> None:
    job = weir.Job("script")
    stream = job.source("numbers", numbers(place), bounded=True).transform("rows", rows)
    stream.sink("table", sink.sink)
    with LiveJob(job, settings(place, RESTARTED, interval="200ms")) as live:
        result = live.result()
        assert result.status is JobStatus.FINISHED, result.failure


def found(spark: SparkSession, table: str) -> list[tuple[int, int]]:
    return sorted((row.id, row.part) for row in spark.table(table).collect())


def expected(place: Place, spark: SparkSession) -> list[tuple[int, int]]:
    batch = rows(spark.read.parquet(str(place.directory / "in")))
    return sorted((row.id, row.part) for row in batch.collect())


@pytest.mark.parametrize("partition_by", [(), ("part",)])
def test_a_new_table_is_registered_and_shows_what_is_committed(
    place, spark, database, partition_by
):
    """In the default format, below the database's directory."""
    name = f"{database}.numbers"
    sink = adopted(place, spark, name, partition_by=partition_by)
    assert not spark.catalog.tableExists(name)
    run(place, sink)
    assert found(spark, name) == expected(place, spark)
    assert (place.directory / "warehouse" / "numbers" / "_weir").is_dir()


def test_a_table_that_exists_keeps_its_format_and_its_partitions(place, spark, database):
    """The script need not name them."""
    name = f"{database}.numbers"
    spark.sql(f"CREATE TABLE {name} (id long, part long) USING json PARTITIONED BY (part)")
    run(place, adopted(place, spark, name))
    assert found(spark, name) == expected(place, spark)
    assert list((place.directory / "warehouse" / "numbers" / "part=1").glob("*.json"))
    with pytest.raises(PipelineError, match="has the format 'json', not 'parquet'"):
        adopted(place, spark, name, format="parquet")
    with pytest.raises(PipelineError, match="is partitioned by part: remove partitionBy"):
        adopted(place, spark, name, partition_by=("id",))


def test_a_table_that_the_catalog_forgot_is_registered_over_its_files(place, spark, database):
    """A catalog in memory forgets it with the process."""
    run(place, adopted(place, spark, f"{database}.numbers", partition_by=("part",)))
    warehouse = place.directory / "warehouse"
    shutil.copytree(warehouse / "numbers", warehouse / "again")
    sink = adopted(place, spark, f"{database}.again", partition_by=("part",)).sink
    sink.check(sink_context())
    sink.open(sink_context())
    assert found(spark, f"{database}.again") == expected(place, spark)


def test_a_delta_table_lies_where_the_catalog_would_have_it(place, spark, database):
    """Without a connector Spark cannot have it in its catalog, which is said."""
    sink = adopted(place, spark, f"{database}.numbers", format="delta")
    path = place.directory / "warehouse" / "numbers"
    assert sink.says == (
        f"Query 'totals' (script.py, line 12): Spark has no Delta connector here, so"
        f" {database}.numbers is not in its catalog: the table is at {path}.",
    )
    run(place, sink)
    table = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["part"]) for row in table) == expected(place, spark)


def test_a_table_of_another_catalog_is_appended_to_by_spark(place, spark):
    """At least once, which is said. It must exist."""
    log = str(place.directory / "derby.log")
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", log)
    catalog = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    spark.conf.set("spark.sql.catalog.shop", catalog)
    spark.conf.set("spark.sql.catalog.shop.url", "jdbc:derby:memory:adopted;create=true")
    driver = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    spark.conf.set("spark.sql.catalog.shop.driver", driver)
    name = "shop.APP.numbers"
    with pytest.raises(PipelineError, match=f"line 12: table {name} does not exist: create it"):
        adopted(place, spark, name)
    spark.sql(f"CREATE TABLE {name} (id long, part long)")
    sink = adopted(place, spark, name)
    (said,) = sink.says
    assert f"table {name} is written by Spark's batch writer, at least once" in said
    run(place, sink)
    assert found(spark, name) == expected(place, spark)


def test_views_are_refused(place, spark, database):
    """Temporary ones and others."""
    spark.range(1).createOrReplaceTempView("seen")
    spark.sql(f"CREATE VIEW {database}.seen AS SELECT 1 AS id")
    for name in ("seen", f"{database}.seen"):
        with pytest.raises(PipelineError, match=f"toTable cannot write to the view {name}"):
            adopted(place, spark, name)
    spark.catalog.dropTempView("seen")
