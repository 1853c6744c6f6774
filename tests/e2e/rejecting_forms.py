"""Every form of step that may set rows aside, for drivers that are killed.

Each form is a branch of its own, with a source, a table of good rows and one of bad ones. A row has
a number as text and what it is divided by; of each hundred rows, the first has either a text that
is not a number, or 0. Every form computes the same quotients, so ``test_rejects_killed.py`` knows
them all. All paths are relative to the directory in which the command runs; ``FORMS`` names the
forms that it takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import weir
from weir.operators import Operator
from weir.operators.state.store import StateStore

KEYS = 8
SCHEMA = "id long, text string, parts long"
QUOTIENTS = "id long, quotient long"


def quotient(text: str, parts: int) -> int:
    """What every form computes."""
    return int(text) // parts


def quotients_in_pandas(text: pd.Series, parts: pd.Series) -> pd.Series:
    """The same for many rows; raises for all of them if one is bad."""
    if (parts == 0).any():
        raise ZeroDivisionError("division by zero")
    return text.astype("int64") // parts


def quotients_in_arrow(text: pa.Array, parts: pa.Array) -> pa.Array:
    """The same for many rows; raises for all of them if one is bad."""
    return pc.divide(pc.cast(text, pa.int64()), parts)


def computed_by(udf: Any) -> Callable[[DataFrame], DataFrame]:
    """The step with this function."""
    return lambda frame: frame.select("id", udf("text", "parts").alias("quotient"))


def mapped_in_pandas(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """For ``mapInPandas``."""
    for frame in frames:
        quotients = quotients_in_pandas(frame["text"], frame["parts"])
        yield pd.DataFrame({"id": frame["id"], "quotient": quotients})


def mapped_in_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow``; what it has emitted of a batch before it raises is dropped."""
    for batch in batches:
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            quotients = quotients_in_arrow(part["text"], part["parts"])
            yield pa.record_batch({"id": part["id"], "quotient": quotients})


class Dividing(Operator):
    """A stateless operator."""

    output_schema = QUOTIENTS

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        quotients = quotients_in_arrow(batch["text"], batch["parts"])
        return [pa.record_batch({"id": batch["id"], "quotient": quotients})]


class Summing(Operator):
    """Emits for each row how many its key has had by then, and the sum of their quotients.

    State has changed before a row raises.
    """

    output_schema = "id long, quotient long, nth long, total long"
    transient = ("_nth", "_totals")

    def initialize_state(self, state: StateStore) -> None:
        self._nth = state.keyed_state("nth", pa.int64(), 0)
        self._totals = state.keyed_state("totals", pa.int64(), 0)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        rows = []
        for row in batch.to_pylist():
            key = pa.array([row["key"]], pa.int64())
            nth = self._nth.get(key)[0].as_py() + 1
            self._nth.put(key, pa.array([nth]))
            found = quotient(row["text"], row["parts"])
            total = self._totals.get(key)[0].as_py() + found
            self._totals.put(key, pa.array([total]))
            rows.append({"id": row["id"], "quotient": found, "nth": nth, "total": total})
        return [pa.RecordBatch.from_pylist(rows)]


@dataclass(frozen=True)
class Form:
    """One form of step."""

    #: Adds the step to the stream; the second argument gets what it sets aside.
    add: Callable[[weir.Stream, weir.Stream], weir.Stream]
    #: What its errors say of a text that is not a number, and of a division by 0.
    errors: tuple[str, str]
    #: The directory of its input.
    reads: str = "in"


def function(
    step: Any, not_a_number: str, division: str = "ZeroDivisionError", reads: str = "in"
) -> Form:
    """A form that is a function of the step's frame."""
    return Form(
        lambda stream, bad: stream.transform(stream.name + "_step", step, on_error=bad),
        (not_a_number, division),
        reads,
    )


def expressions(frame: DataFrame) -> DataFrame:
    """An ANSI cast and arithmetic."""
    return frame.select("id", F.expr("cast(text as long) div parts").alias("quotient"))


def expected(stream: weir.Stream, bad: weir.Stream) -> weir.Stream:
    """A rule that bad rows break because it raises."""
    rules = weir.expect(reject={"a quotient": "cast(text as long) div parts >= 0"})
    return stream.transform("expected", rules, on_error=bad).transform("computed", expressions)


def summed(stream: weir.Stream, bad: weir.Stream) -> weir.Stream:
    """An operator that counts by key."""
    keyed = stream.transform("keyed", lambda frame: frame.withColumn("key", F.col("id") % KEYS))
    return keyed.process("summed", Summing(), parallelism=2, key_by="key", on_error=bad)


def divided(stream: weir.Stream, bad: weir.Stream) -> weir.Stream:
    """A stateless operator."""
    return stream.process("divided", Dividing(), parallelism=2, on_error=bad)


PANDAS = F.pandas_udf(quotients_in_pandas, LongType())
ARROW = F.arrow_udf(quotients_in_arrow, LongType())


def in_pandas(frame: DataFrame) -> DataFrame:
    """``mapInPandas``."""
    return frame.mapInPandas(mapped_in_pandas, QUOTIENTS)


def in_arrow(frame: DataFrame) -> DataFrame:
    """``mapInArrow``."""
    return frame.mapInArrow(mapped_in_arrow, QUOTIENTS)


FORMS = {
    "expressions": function(expressions, "CAST_INVALID_INPUT", "DIVIDE_BY_ZERO"),
    "python_udf": function(computed_by(F.udf(quotient, LongType(), useArrow=False)), "ValueError"),
    "python_udf_in_arrow": function(
        computed_by(F.udf(quotient, LongType(), useArrow=True)), "ValueError"
    ),
    "pandas_udf": function(computed_by(PANDAS), "ValueError"),
    "arrow_udf": function(computed_by(ARROW), "ArrowInvalid", "ArrowInvalid"),
    "map_in_pandas": function(in_pandas, "ValueError"),
    "map_in_arrow": function(in_arrow, "ArrowInvalid", "ArrowInvalid"),
    "stateless_operator": Form(divided, ("ArrowInvalid", "ArrowInvalid")),
    "keyed_operator": Form(summed, ("ValueError", "ZeroDivisionError")),
    "expect": Form(expected, ("breaks 'a quotient'", "breaks 'a quotient'")),
    # One bad row of 10,000, which the function gets at once.
    "one_in_pandas_udf": function(computed_by(PANDAS), "ValueError", reads="large"),
    "one_in_arrow_udf": function(computed_by(ARROW), "ArrowInvalid", "ArrowInvalid", reads="large"),
    "one_in_map_in_pandas": function(in_pandas, "ValueError", reads="large"),
    "one_in_map_in_arrow": function(in_arrow, "ArrowInvalid", "ArrowInvalid", reads="large"),
}


def reading(directory: str) -> Callable[[SparkSession], DataFrame]:
    """A source that reads one file in each batch."""
    return lambda spark: (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(directory)
    )


def rejecting(names: Iterable[str], *, bounded: bool) -> weir.Job:
    """A job with these forms."""
    job = weir.Job("forms")
    for name in names:
        bad = job.rejects(f"{name}_bad")
        bad.sink(f"{name}_bad_out", weir.sinks.DeltaTable(f"out/{name}_bad"))
        read = job.source(name, reading(FORMS[name].reads), bounded=bounded)
        good = FORMS[name].add(read, bad)
        good.sink(f"{name}_out", weir.sinks.Files(f"out/{name}"))
    return job


if __name__ == "__main__":
    is_bounded = os.environ.get("NUMBERS", "bounded") == "bounded"
    job = rejecting(os.environ["FORMS"].split(","), bounded=is_bounded)
