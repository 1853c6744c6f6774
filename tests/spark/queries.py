"""Stateful transformations with the batch computation that each equals once all windows fired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.kit.rig import Collected, Landing, Rows

from weir.job import Job

MINUTE = "1 minute"


def windows(frame: DataFrame) -> DataFrame:
    """Rows by minute."""
    counted = (
        frame.withWatermark("ts", "20 seconds")
        .groupBy(F.window("ts", MINUTE))
        .agg(F.count("*").alias("n"))
    )
    return counted.select(F.col("window.start").alias("start"), "n")


def sessions(frame: DataFrame) -> DataFrame:
    """Sessions of seven keys, ended by a gap: ids of one key come in runs."""
    key = (F.col("id") / 5).cast("long") % 7
    grouped = frame.withWatermark("ts", "20 seconds").groupBy(
        F.session_window("ts", "30 seconds"), key.alias("k")
    )
    return grouped.agg(F.count("*").alias("n")).select(
        "session_window.start", "session_window.end", "k", "n"
    )


def chained(frame: DataFrame) -> DataFrame:
    """The largest minute of each five minutes."""
    minutes = (
        frame.withWatermark("ts", "20 seconds")
        .groupBy(F.window("ts", MINUTE))
        .agg(F.count("*").alias("n"))
    )
    fives = minutes.groupBy(F.window(F.window_time("window"), "5 minutes"))
    return fives.agg(F.max("n").alias("n"), F.count("*").alias("minutes")).select(
        "window.start", "n", "minutes"
    )


def distinct(frame: DataFrame) -> DataFrame:
    """Each number modulo 5 once per minute: duplicates follow soon."""
    key = F.date_trunc("minute", "ts").alias("minute")
    keyed = frame.select("ts", key, (F.col("id") % 5).alias("k")).withWatermark("ts", "10 minutes")
    streaming = keyed.isStreaming
    columns = ["minute", "k"]
    once = (
        keyed.dropDuplicatesWithinWatermark(columns) if streaming else keyed.dropDuplicates(columns)
    )
    return once.select("minute", "k")


def outer_join(left: DataFrame, right: DataFrame) -> DataFrame:
    """Every left row, with the right side's even numbers that are near in time."""
    lefts = left.withWatermark("ts", "20 seconds").alias("l")
    evens = right.filter("id % 2 = 0").withWatermark("ts", "20 seconds").alias("r")
    near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 30 SECONDS AND l.ts + INTERVAL 30 SECONDS"
    return lefts.join(evens, F.expr(near), "leftOuter").select("l.id", F.col("r.id").alias("other"))


@dataclass(frozen=True)
class Query:
    """A transformation over one or two inputs."""

    function: Callable[..., DataFrame]
    inputs: int = 1

    def job(self, landing: Landing, *, bounded: bool = True) -> tuple[Job, Collected]:
        """The transformation as a job over the files."""
        job, sink = Job("facts"), Collected()
        names = ["numbers", "others"][: self.inputs]
        sources = [job.source(name, landing.source, bounded=bounded) for name in names]
        job.transform("query", sources, self.function).sink("out", sink)
        return job, sink

    def batch(self, table: DataFrame) -> Rows:
        """Its result over the whole input at once."""
        return Counter(tuple(row) for row in self.function(*[table] * self.inputs).collect())


QUERIES = {
    "windows": Query(windows),
    "session windows": Query(sessions),
    "a left outer join": Query(outer_join, inputs=2),
    "duplicates within the watermark": Query(distinct),
    "two chained aggregations": Query(chained),
}
