"""Each number's rank among those with the same last digit, counted by a Python operator.

What it writes is below the URI in ``NUMBERS_RAW``, its input at that in ``NUMBERS_IN``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import weir
from weir.operators import Operator


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(os.environ["NUMBERS_IN"]).select((F.col("id") % 10).alias("digit"))


class Ranks(Operator):
    """The count so far of each digit, in keyed state."""

    output_schema = "digit long, rank long"

    def initialize_state(self, state: Any) -> None:
        self._counts = state.keyed_state("counts", pa.int64(), default=0)

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        digits = batch.column("digit").unique()
        counts = dict(zip(digits.to_pylist(), self._counts.get(digits).to_pylist(), strict=True))
        ranks = []
        for digit in batch.column("digit").to_pylist():
            counts[digit] += 1
            ranks.append(counts[digit])
        self._counts.put(digits, pa.array([counts[digit] for digit in digits.to_pylist()]))
        yield pa.RecordBatch.from_pydict({"digit": batch.column("digit"), "rank": pa.array(ranks)})


job = weir.Job("ranks")
ranked = job.source("numbers", numbers, bounded=True).process(
    "ranks", Ranks(), key_by="digit", parallelism=2
)
ranked.sink("ranked", weir.sinks.Files(f"{os.environ['NUMBERS_RAW']}/ranks"))
