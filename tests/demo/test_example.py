"""The flights example's transformations against an independent batch computation in Spark."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from weir.demo.landing import land
from weir.demo.reference import expected_tables
from weir.demo.run import PIPELINE
from weir.demo.verify import compare
from weir.job import definition_of

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
def spark(spark: SparkSession) -> SparkSession:
    """A separate session with a time zone other than UTC: results must not depend on it."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def by_rule(example: ModuleType, candidates: pa.Table) -> pa.Table:
    """The rows that the example's operator passes under its first rule, batch by batch."""
    operator = example.AnomaliesByRule()
    operator.rules = {"minutes": example.ANOMALY_MINUTES}
    batches = candidates.to_batches(max_chunksize=1_000)
    return pa.Table.from_batches(
        [out for batch in batches for out in operator.process_batch(batch)]
    )


@pytest.mark.slow
def test_the_example_computes_in_batch_what_is_expected_of_it(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    """Every row of all four tables, over all flights, from Spark's batch engine and from
    pyarrow."""
    landing = land(tmp_path)
    expected = expected_tables(landing.directory)
    flights = spark.read.schema(example.FLIGHTS_SCHEMA).parquet(str(landing.flights.path))
    weather = spark.read.schema(example.WEATHER_SCHEMA).parquet(str(landing.weather.path))
    clean = example.clean(flights)
    actual = {
        "flights_clean": clean,
        "carrier_delays": example.daily_delays(clean),
        "flights_weather": example.with_weather(clean, example.hourly_weather(weather)),
        "anomalies": example.extreme_delays(clean),
    }
    assert actual.keys() == expected.keys()
    found = {name: frame.toArrow() for name, frame in actual.items()}
    found["anomalies"] = by_rule(example, found["anomalies"])
    reports = [compare(name, rows, found[name]) for name, rows in expected.items()]
    assert [report for report in reports if not report.exact] == []


def test_the_example_is_one_graph_that_is_cut_where_its_streams_part_and_meet(
    example: ModuleType,
) -> None:
    """The flights are cleaned once, for a table and three readers; only the join reads two
    channels."""
    vertices = definition_of(example.job).vertices()
    assert {vertex.name: (vertex.sinks, vertex.inputs) for vertex in vertices} == {
        "clean": (("flights_clean",), ()),
        "hourly_weather": ((), ()),
        "daily_delays": (("carrier_delays",), ("clean",)),
        "with_weather": (("flights_weather",), ("clean", "hourly_weather")),
        "anomalies_by_rule": (("anomalies",), ("clean",)),
    }
    assert all(vertex.bounded for vertex in vertices)
