"""What the text of a script says before it is executed, and its packages and places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kit.started_queries import started

from weir.adopt.naming import checkpoint_directory, key_of
from weir.adopt.reading import check_names, expected_session, is_script
from weir.errors import PipelineError
from weir.spark.adopt.session import fitting


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nspark.range(3)", 2),
        ("def f():\n    return spark.range(3)\nf()", 2),
        ("spark = make()\nspark.range(3)", None),
        ("from common import spark\nspark.range(3)", None),
        ("from common import *\nspark.range(3)", None),
        ("from pyspark.sql.functions import *\nspark.range(3)", 2),
        ("def main(spark):\n    return spark.range(3)\nmain(make())", None),
        ("def init():\n    global spark\n    spark = make()\ninit()\nspark.range(3)", None),
        ("if test:\n    spark = make()\nspark.range(3)", None),
        ("print('spark')", None),
    ],
)
def test_a_script_expects_a_session_if_it_uses_one_without_making_it(
    tmp_path: Path, text: str, line: int | None
) -> None:
    """The line where ``spark`` is first used, if nothing in the file can have defined it."""
    path = tmp_path / "script.py"
    path.write_text(text)
    assert expected_session(path) == line


def test_what_only_a_vendors_notebooks_have_is_refused_with_its_line(tmp_path: Path) -> None:
    """``dbutils`` is refused, unless the script defines it."""
    path = tmp_path / "script.py"
    path.write_text("import sys\nx = dbutils.widgets.get('topic')\n")
    with pytest.raises(PipelineError, match=r"job\.py, line 2: dbutils"):
        check_names(path, "job.py")
    path.write_text("dbutils = None\nprint(dbutils)\n")
    check_names(path, "job.py")


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("from pyspark.sql import SparkSession", True),
        ("import pyspark.sql.functions as F", True),
        ("display = spark.range(3)", True),
        ("from shared import job", False),
        ("this is not Python", False),
    ],
)
def test_a_script_is_a_file_that_works_with_spark(tmp_path: Path, text: str, script: bool) -> None:
    """It imports PySpark, or uses a session."""
    path = tmp_path / "script.py"
    path.write_text(text)
    assert is_script(path) is script


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.12:3.3.0",
            "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
        ),
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:3.5.1",
            "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
        ),
        (
            "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.6.0",
            "org.apache.iceberg:iceberg-spark-runtime-{release}_2.13:1.6.0",
        ),
        ("io.delta:delta-core_2.12:2.4.0", "io.delta:delta-spark_2.13:VERSION"),
        ("org.postgresql:postgresql:42.7.3", "org.postgresql:postgresql:42.7.3"),
        (
            "com.datastax.spark:spark-cassandra-connector_2.13:3.5.1",
            "com.datastax.spark:spark-cassandra-connector_2.13:3.5.1",
        ),
    ],
)
def test_the_coordinate_of_a_package_that_fits_this_spark(given: str, right: str) -> None:
    """Scala, Spark's own version, and releases in names are corrected; the rest is left."""
    from pyspark import __version__ as spark

    release = ".".join(spark.split(".")[:2])
    assert fitting(given) == right.format(spark=spark, release=release)


@pytest.mark.parametrize(
    ("locations", "found"),
    [
        (["/data/ck/orders"], "/data/ck/_weir"),
        (["/data/ck/orders", "/data/ck/users"], "/data/ck/_weir"),
        (["/data/a/ck", "/data/b/ck"], "/data/_weir"),
        (["s3a://lake/ck/orders", "s3a://lake/ck/users"], "s3a://lake/ck/_weir"),
        (["s3a://lake/ck/orders", "/data/ck"], None),
        ([None, "/data/ck/orders"], "/data/ck/_weir"),
        ([None], None),
    ],
)
def test_checkpoints_lie_beside_the_locations_that_a_script_gives(
    locations: list[str | None], found: str | None
) -> None:
    """In ``_weir`` in the directory that all locations share."""
    queries = [
        started(None, options={} if one is None else {"checkpointlocation": one})
        for one in locations
    ]
    assert checkpoint_directory(queries, None) == found


def test_the_sessions_root_of_locations_counts_as_their_directory() -> None:
    """``spark.sql.streaming.checkpointLocation`` is where each query would have its own."""
    assert checkpoint_directory([started(None)], "/data/ck") == "/data/ck/_weir"


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({}, "name totals"),
        ({"name": None, "table": "db.t"}, "table db.t"),
        ({"name": None, "options": {"path": "out", "checkpointlocation": "ck"}}, "path out"),
        ({"name": None, "options": {"checkpointlocation": "ck"}}, "checkpointlocation ck"),
        ({"name": None, "format": "console"}, "a query of console"),
    ],
)
def test_what_tells_queries_apart(asked: dict[str, Any], key: str) -> None:
    """Name, else target, else location."""
    assert key_of(started(None, **asked)) == key
