"""Which step owns which of Spark's numbers, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.rig import Collected, Landing, Rig

from weir.core.messages.task import RecordsEnded
from weir.job import Job
from weir.spark.state.plan_layout import decode_layout, encode_layout

pytestmark = pytest.mark.spark


def once(frame: DataFrame) -> DataFrame:
    """Each row once."""
    return frame.withWatermark("ts", "20 seconds").dropDuplicates(["id", "ts"])


def paired(frame: DataFrame) -> DataFrame:
    """Each row with itself."""
    other = frame.select(F.col("id").alias("other"), F.col("ts").alias("at"))
    return frame.join(other, F.expr("id = other AND ts = at")).select("id", "ts")


def by_minute(frame: DataFrame) -> DataFrame:
    """Rows by minute."""
    return frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))


def test_spark_numbers_state_from_the_root_of_the_plan_down_and_from_left_to_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Marks on the logical plan survive a self-join, and each operator says what it let through."""
    landing = Landing(tmp_path / "in")
    landing.land(3)
    job = Job("facts")
    read = job.source("numbers", landing.source, bounded=True)
    counted = read.transform("once", once).transform("paired", paired)
    counted.transform("by_minute", by_minute).sink("out", Collected())
    with Rig(spark, job, tmp_path / "query") as rig:
        rig.wait_for(RecordsEnded)
        layout = rig.task.layout()
    assert layout is not None
    assert [(operator.step, operator.number, operator.kind) for operator in layout.operators] == [
        ("by_minute", 0, "Aggregate"),
        ("paired", 0, "Join"),
        ("once", 0, "Deduplicate"),
        ("once", 0, "Deduplicate"),
    ]
    assert all(operator.watermark_ms for operator in layout.operators)
    assert [place.owner for place in layout.inputs] == ["", "numbers", "", "numbers"]
    directories = tuple(place.directory for place in layout.inputs)
    assert directories == rig.directory.source_ids
    assert decode_layout(encode_layout(layout)) == layout
