"""A job with each kind of state that Spark keeps, and that of a Python operator.

It runs in the directory of a ``Place``, as ``weir run`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.e2e.test_draining import pipeline, timed
from tests.kit.live_job import numbers
from tests.kit.place import Place

import weir
from weir.operators import Operator
from weir.operators.state.store import StateStore

KEYS = 7


class Totals(Operator):
    """Counts the rows of a key, and emits the counts when the input ends."""

    output_schema = "key long, n long"

    def initialize_state(self, state: StateStore) -> None:
        super().initialize_state(state)
        self._counts = state.keyed_state("counts", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = pc.unique(batch["key"])
        before = self._counts.get(keys).to_pylist()
        more = [pc.sum(pc.equal(batch["key"], key)).as_py() for key in keys]
        counts = [one + other for one, other in zip(before, more, strict=True)]
        self._counts.put(keys, pa.array(counts, pa.int64()))
        yield from ()

    def finish(self) -> Iterator[pa.RecordBatch]:
        for part in self._counts.items():
            yield pa.RecordBatch.from_arrays([part["key"], part["value"]], ["key", "n"])


def paired(frame: DataFrame) -> DataFrame:
    """An inner join, in which no id is null: of each number with itself."""
    other = frame.select(F.col("id").alias("same"), F.col("ts").alias("at"))
    return frame.join(other, F.expr("id = same AND ts = at")).select("id")


def keyed(frame: DataFrame) -> DataFrame:
    """The numbers with a key each."""
    return frame.select((F.col("id") % KEYS).alias("key"))


place = Place(Path.cwd())
job = pipeline(place)
numbers_twice = job.source("numbers_twice", numbers(place)).transform("timed_twice", timed)
pairs = numbers_twice.transform("paired", paired)
pairs.sink("paired_files", weir.sinks.Files("out/paired"))
totals = (
    job.source("more_numbers", numbers(place))
    .transform("keyed", keyed)
    .process("totals", Totals(), key_by="key")
)
totals.sink("totals_files", weir.sinks.Files("out/totals"))
