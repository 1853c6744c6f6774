"""The pipeline of the soak: every kind of output and state that must survive a kill, in one graph.

Numbers with times are copied into a Delta table and into files, counted by minute (Spark's state),
and numbered by key in a Python operator (Weir's state). Each sink can be checked against the input
alone. All paths are relative to the directory in which the command runs; the soak fills ``disk``
and takes its directories away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.numbers_pipeline import by_minute, timed

import weir
from weir.operators import Operator

if TYPE_CHECKING:
    from weir.operators.state.store import StateStore

KEYS = 7


def numbers(spark: SparkSession) -> DataFrame:
    """The files landed since the last batch; after a long outage, in a few batches."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 20)
    return reader.parquet("in")


def keyed(frame: DataFrame) -> DataFrame:
    """The numbers with a few keys, each with many numbers."""
    return frame.select("id", (F.col("id") % KEYS).alias("key"))


class Numbered(Operator):
    """Gives each row of a key the next number, so a doubled or lost row stays visible."""

    output_schema = "id long, n long"

    def initialize_state(self, state: StateStore) -> None:
        """Declare the newest number of each key."""
        self._newest = state.keyed_state("newest", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Number the rows of a batch one after another."""
        keys = batch.column("key").unique()
        newest = dict(zip(keys.to_pylist(), self._newest.get(keys).to_pylist(), strict=True))
        numbered = []
        for key in batch.column("key").to_pylist():
            newest[key] += 1
            numbered.append(newest[key])
        self._newest.put(keys, pa.array([newest[key] for key in keys.to_pylist()], pa.int64()))
        return [
            pa.RecordBatch.from_pydict(
                {"id": batch.column("id"), "n": pa.array(numbered, pa.int64())}
            )
        ]


job = weir.Job("soak")
copied = job.source("numbers", numbers).transform("timed", timed)
copied.sink("raw", weir.sinks.DeltaTable("disk/out/raw"))
copied.sink("raw_files", weir.sinks.Files("disk/out/raw_files"))
copied.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files("disk/out/minutes"))
copied.transform("keyed", keyed).process("numbering", Numbered(), key_by="key").sink(
    "numbered", weir.sinks.DeltaTable("disk/out/numbered")
)
