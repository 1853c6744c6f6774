"""Queries as a script would start them, and the jobs that they become.

Each shape is written once, for a DataFrame of the place's numbers (``id``, ``ts``): streaming, it
is a query; as a batch, it says what the query's table must be in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from tests.kit.place import Place, Rows, delta_rows, files_rows
from tests.kit.started_queries import started as made

import weir
from weir.adopt.identity import Before
from weir.adopt.job import AdoptedJob, job_of
from weir.adopt.outputs.sinks import AdoptedSink
from weir.spark.adopt.query import Place as ScriptPlace
from weir.spark.adopt.query import StartedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, ts timestamp"
NAME = "script"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One query of a script."""

    #: From the numbers, which all queries share, and a function that loads them again.
    query: Callable[[DataFrame, Callable[[], DataFrame]], DataFrame]
    mode: str = "append"
    key: tuple[str, ...] = ()


def _counts(numbers: DataFrame) -> DataFrame:
    return numbers.groupBy((F.col("id") % 7).alias("key")).agg(
        F.count("*").alias("n"), F.sum("id").alias("sum")
    )


def _minutes(numbers: DataFrame) -> DataFrame:
    windowed = numbers.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"))
    counted = windowed.agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").cast("long").alias("start"), "n")


def _pairs(left: DataFrame, right: DataFrame) -> DataFrame:
    after = right.select((F.col("id") + 1).alias("next"), "ts")
    joined = (
        left.withWatermark("ts", "1 minute")
        .alias("l")
        .join(
            after.withWatermark("ts", "1 minute").alias("r"),
            F.expr("l.id = r.next AND l.ts >= r.ts AND l.ts <= r.ts + INTERVAL 10 SECONDS"),
        )
    )
    return joined.select("id", "next")


SHAPES = {
    "all": Shape(query=lambda numbers, again: numbers.select("*").select("id", "ts")),
    "itself": Shape(query=lambda numbers, again: numbers),
    "evens": Shape(query=lambda numbers, again: numbers.where("id % 2 = 0").select("id")),
    "counts": Shape(query=lambda numbers, again: _counts(numbers), mode="update", key=("key",)),
    "ranked": Shape(
        query=lambda numbers, again: _counts(numbers).orderBy(F.desc("n")),
        mode="complete",
        key=("key",),
    ),
    "minutes": Shape(query=lambda numbers, again: _minutes(numbers)),
    "once": Shape(
        query=lambda numbers, again: (
            numbers.union(numbers)
            .withWatermark("ts", "1 hour")
            .dropDuplicates(["id", "ts"])
            .select("id")
        ),
        mode="update",
    ),
    "paired": Shape(query=lambda numbers, again: _pairs(numbers, numbers)),
    "paired_twice": Shape(query=lambda numbers, again: _pairs(numbers, again())),
    "named": Shape(
        query=lambda numbers, again: numbers.sparkSession.sql(
            "WITH some AS (SELECT id FROM {numbers} WHERE id > 5)"
            " SELECT a.id FROM some AS a WHERE id < 1000 UNION ALL SELECT id FROM some",
            numbers=numbers,
        )
    ),
    "again": Shape(query=lambda numbers, again: again().select("id")),
}


def stream(spark: SparkSession, place: Place) -> DataFrame:
    """The place's numbers as a script loads them, one file for each batch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place.directory / "in"))


def batch(spark: SparkSession, place: Place) -> DataFrame:
    """The same numbers, all at once."""
    return spark.read.schema(SCHEMA).parquet(str(place.directory / "in"))


def started(frame: DataFrame, line: int = 1, **asked: Any) -> StartedQuery:
    """What a script asks by ``start()`` in this line, without a name unless it is given."""
    return made(frame, **{"name": None, "place": ScriptPlace("script.py", line), **asked})


@dataclass
class TableSinks:
    """Makes the sinks, and keeps what they were asked for."""

    asked: dict[str, tuple[bool, tuple[str, ...] | None]] = field(default_factory=dict)

    def __call__(
        self,
        query: StartedQuery,
        *,
        uid: str,
        updates: bool,
        keys: tuple[str, ...] | None,
        directory: str,
    ) -> AdoptedSink:
        """Files for final rows, and a table with the newest row of each key for updates."""
        del directory
        self.asked[query.name or uid] = (updates, keys)
        path = query.options["path"]
        if not updates:
            return AdoptedSink(sink=weir.sinks.Files(path))
        if keys:
            return AdoptedSink(sink=weir.sinks.DeltaTable(path, mode="upsert", key=keys))
        return AdoptedSink(sink=weir.sinks.Foreach(lambda frame, info: None))


def no_socket(
    host: str, port: int, include_timestamp: bool, directory: str
) -> Callable[[SparkSession], DataFrame]:
    """Lands no socket's lines."""
    raise NotImplementedError(host, port, include_timestamp, directory)


def adopted(
    spark: SparkSession,
    place: Place,
    shapes: Iterable[str],
    *,
    before: Before | None = None,
    read_apart: frozenset[str] = frozenset(),
) -> AdoptedJob:
    """The job of some shapes, which share one load of the place's numbers."""
    numbers = stream(spark, place)
    queries = [
        started(
            SHAPES[shape].query(numbers, lambda: stream(spark, place)),
            line,
            name=shape,
            output_mode=SHAPES[shape].mode,
            options={"path": str(place.directory / "out" / shape)},
        )
        for line, shape in enumerate(shapes, 10)
    ]
    return job_of(
        queries,
        name=NAME,
        conf={},
        sink_of=TableSinks(),
        landed=no_socket,
        directory=str(place.directory / "own"),
        before=before or Before(),
        read_apart=read_apart,
    )


def wanted(spark: SparkSession, place: Place, shape: str) -> Rows:
    """What the table of a shape must be in the end."""
    frame = SHAPES[shape].query(batch(spark, place), lambda: batch(spark, place))
    rows = Rows()
    for row in frame.collect():
        rows[tuple(one.astimezone(UTC) if isinstance(one, datetime) else one for one in row)] += 1
    return rows


def table(place: Place, shape: str) -> Rows:
    """What the table of a shape is."""
    path = place.directory / "out" / shape
    return delta_rows(path) if SHAPES[shape].key else files_rows(path)
