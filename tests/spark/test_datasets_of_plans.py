"""Which datasets Spark's plan shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.lineage.datasets import Dataset
from weir.spark.query.datasets import columns_of, named, read_datasets


def test_a_kafka_source_has_its_topics_as_datasets() -> None:
    """Subscribed, assigned or matched by a pattern; Spark's names of options have no case."""
    servers = {"kafka.bootstrap.servers": "a:1,b:1"}
    orders = Dataset(namespace="kafka://a:1", name="orders")
    prices = Dataset(namespace="kafka://a:1", name="prices")
    assert named("kafka", servers | {"subscribe": "orders,prices"}) == (orders, prices)
    assert named("kafka", servers | {"assign": '{"orders": [0, 1]}'}) == (orders,)
    pattern = Dataset(namespace="kafka://a:1", name="or.*")
    assert named("kafka", servers | {"subscribepattern": "or.*"}) == (pattern,)


def test_a_source_without_a_convention_has_no_dataset() -> None:
    """Such as rows by a clock, or a path that cannot be one."""
    assert named("rate", {"rowspersecond": "1"}) == ()
    assert named("parquet", {"path": "\0"}) == ()


def test_delta_is_named_by_its_location() -> None:
    """As other files are."""
    expected = (Dataset(namespace="s3://bucket", name="t"),)
    assert named("delta", {"path": "s3a://bucket/t"}) == expected


@pytest.mark.spark
def test_the_leaves_of_a_plan_tell_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Each dataset once; rows by a clock are none."""
    files = spark.readStream.schema("id long, name string").parquet(str(tmp_path))
    rate = spark.readStream.format("rate").load().selectExpr("value as id", "'x' as name")
    frame = files.union(files.filter("id > 1")).union(rate)
    assert read_datasets(frame) == (Dataset(namespace="file", name=str(tmp_path)),)
    assert columns_of(frame) == {"id": "bigint", "name": "string"}
