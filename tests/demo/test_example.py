"""The flights example's transformations against the independent batch computation, in plain Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from weir.demo.landing import land
from weir.demo.reference import expected_tables
from weir.demo.run import PIPELINE
from weir.demo.verify import compare

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("flights_example", PIPELINE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session of its own whose time zone is not UTC: results must not depend on it."""
    before = SparkSession.getActiveSession()
    local = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        local = local.config(key, "127.0.0.1")
    session = (before or local.getOrCreate()).newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield session
    if before is None:
        session.stop()


def test_the_example_computes_in_batch_what_is_expected_of_it(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    """Every row of both tables, over all flights, from Spark's batch engine and from pyarrow."""
    landing = land(tmp_path)
    expected = expected_tables(landing.flights)
    clean = example.clean(spark.read.schema(example.SCHEMA).parquet(str(landing.flights)))
    reports = [
        compare("flights_clean", expected["flights_clean"], clean.toArrow()),
        compare("carrier_delays", expected["carrier_delays"], example.carrier_delays(clean).toArrow()),
    ]
    assert [report for report in reports if not report.exact] == []


def test_the_example_is_two_vertices_with_a_source_each(example: ModuleType) -> None:
    """Two root vertices read the landing directory on their own, and share only the checkpoints."""
    vertices = example.job.vertices()
    assert [vertex.sinks for vertex in vertices] == [("flights_clean",), ("carrier_delays",)]
    assert all(vertex.bounded for vertex in vertices)
