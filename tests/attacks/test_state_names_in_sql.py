"""Names of state variables come with a snapshot and become columns and views in Spark SQL."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from weir.spark.state.reader import query_frames, rows_as_json, with_store

pytestmark = pytest.mark.spark

NAMES = [
    "x' || reflect('java.lang.System', 'getProperty', 'user.home') || '",
    "a`b",
    "a``; drop table t",
    'a"b',
    "a b",
    "ä",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_store_is_a_value_and_no_expression(spark: SparkSession, name: str) -> None:
    """``weir inspect --json`` puts it in a column."""
    (row,) = with_store(spark.range(1), name).collect()
    assert (row["store"], row["id"]) == (name, 0)
    assert len(list(rows_as_json(with_store(spark.range(2), name), None))) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_view_is_a_name_whatever_is_in_it(spark: SparkSession, name: str) -> None:
    """``weir inspect --sql`` creates a view for each store."""
    quoted = name.replace("`", "``")
    answer = query_frames({name: spark.range(3)}, f"select count(*) as n from `{quoted}`")
    assert answer.collect()[0]["n"] == 3
