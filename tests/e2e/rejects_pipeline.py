"""Steps of every kind set rows aside, for drivers that are killed (``test_rejects.py``).

Of each ten numbers, 3 raises in an expression, 4 in a pandas UDF, 5 in an operator that counts by
key, 6 in ``mapInArrow`` and 7 breaks a rule. All paths are relative to the directory in which the
command runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.sinks.base import Sink

KEYS = 8


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


def divided(frame: DataFrame) -> DataFrame:
    """Expressions."""
    timed = frame.withWatermark("ts", "10 seconds")
    return timed.withColumn("part", 1 / (F.col("id") % 10 - 3)).withColumn("k", F.col("id") % KEYS)


def without_fours(ids: pd.Series) -> pd.Series:
    """The numbers; raises for some."""
    if (ids % 10 == 4).any():
        raise ValueError("a four")
    return ids


def in_pandas(frame: DataFrame) -> DataFrame:
    """A pandas UDF."""
    return frame.withColumn("same", F.pandas_udf(without_fours, "long")("id"))


def without_sixes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows; raises for some."""
    for batch in batches:
        for number in batch["id"].to_pylist():
            if number % 10 == 6:
                raise ValueError("a six")
        yield batch.select(["id", "k"])


class Counting(Operator):
    """Counts the numbers of each key."""

    output_schema = "id long, k long, n long"
    transient = ("_counts",)

    def initialize_state(self, state: StateStore) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        rows = []
        for number, key in zip(batch["id"].to_pylist(), batch["k"].to_pylist(), strict=True):
            keys = pa.array([key], pa.int64())
            n = self._counts.get(keys)[0].as_py() + 1
            self._counts.put(keys, pa.array([n]))
            rows.append({"id": number, "k": key, "n": n})
            if number % 10 == 5:
                raise ValueError("a five")
        return [pa.RecordBatch.from_pylist(rows)]


def rejecting(
    source: Callable[[SparkSession], DataFrame], out: str, last: Sink, *, bounded: bool
) -> weir.Job:
    """The job; ``last`` is the sink of its last step."""
    job = weir.Job("rejects")
    bad = job.rejects("bad")
    bad.sink("bad_out", weir.sinks.DeltaTable(f"{out}/bad"))
    read = job.source("numbers", source, bounded=bounded)
    same = read.transform("divided", divided, on_error=bad).transform(
        "pandas", in_pandas, on_error=bad
    )
    arrow = same.transform(
        "arrow", lambda frame: frame.mapInArrow(without_sixes, "id long, k long"), on_error=bad
    )
    rules = weir.expect(warn={"below 50": "id < 50"}, reject={"no seven": "id % 10 != 7"})
    kept = arrow.transform("expected", rules, on_error=bad)
    kept.process("counted", Counting(), parallelism=2, key_by="k", on_error=bad).sink("all", last)
    return job


if __name__ == "__main__":
    is_bounded = os.environ.get("NUMBERS", "bounded") == "bounded"
    job = rejecting(numbers, "out", weir.sinks.Files("out/all"), bounded=is_bounded)
