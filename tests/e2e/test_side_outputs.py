"""Side outputs of Python operators on real Spark (MISSION B7; PROTOCOL P25)."""

from __future__ import annotations

import sys
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.kit.live_job import RESTARTED, LiveJob, numbers, settings
from tests.kit.place import ROWS_PER_FILE, Place, delta_rows, files_rows

import weir
from weir.core.status import JobStatus
from weir.operators import Operator

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Sorted(Operator):
    """Passes even numbers on; odd ones go to a side output, every third one to another."""

    side_outputs = {  # noqa: RUF012
        "odd": "ts timestamp, number long not null",
        "third": "text string",
    }

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ids = batch["id"]
        odd = batch.filter(pc.equal(pc.bit_wise_and(ids, 1), 1))
        self.context.output("odd", odd.rename_columns(["number", "ts"]))
        third = [f"number {one}" for one in ids.to_pylist() if one % 3 == 0]
        self.context.output("third", pa.record_batch({"text": third}))
        return [batch.filter(pc.equal(pc.bit_wise_and(ids, 1), 0))]


class Doubled(Operator):
    """An operator behind a side output."""

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        doubled = pc.multiply(batch["number"], 2)
        return [batch.set_column(batch.schema.get_field_index("number"), "number", doubled)]


def by_minute(frame: DataFrame) -> DataFrame:
    """Their count by the minute; the watermark comes with the side output."""
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("minute"), "n")


def sorted_numbers(place: Place, *, bounded: bool) -> tuple[weir.Job, weir.job.Stream]:
    job = weir.Job("sorted")
    read = job.source("numbers", numbers(place), bounded=bounded)
    timed = read.transform("timed", lambda frame: frame.withWatermark("ts", "5 seconds"))
    return job, timed.process("sorted", Sorted(), parallelism=2)


def test_every_output_of_an_operator_feeds_sinks_steps_and_operators(place: Place) -> None:
    """Over a failover, each row is in its outputs exactly once, and windows on a side output get
    the watermark of the operator's input (P25)."""
    place.land(3)
    out = place.directory / "out"
    job, stream = sorted_numbers(place, bounded=True)
    stream.sink("even_out", weir.sinks.Files(str(out / "even")))
    odd = stream.side_output("odd")
    odd.sink("odd_out", weir.sinks.DeltaTable(str(out / "odd")))
    odd.transform("by_minute", by_minute).sink("minutes", weir.sinks.Files(str(out / "minutes")))
    odd.process("doubled", Doubled(), parallelism=2).sink(
        "doubled_out", weir.sinks.Files(str(out / "doubled"))
    )
    stream.side_output("third").sink("third", weir.sinks.Files(str(out / "third")))
    with LiveJob(job, settings(place, RESTARTED, interval="300ms")) as live:
        assert live.result().status is JobStatus.FINISHED
    rows = place.rows()
    assert files_rows(out / "even") == Counter(one for one in rows.elements() if one[0] % 2 == 0)
    odd_rows = [one for one in rows.elements() if one[0] % 2 == 1]
    assert {row[1]: n for row, n in delta_rows(out / "odd").items()} == {
        number: 1 for number, _ in odd_rows
    }
    assert {row[1] for row in files_rows(out / "doubled")} == {2 * number for number, _ in odd_rows}
    third = Counter((f"number {number}",) for number, _ in rows.elements() if number % 3 == 0)
    assert files_rows(out / "third") == third
    minutes = Counter(at.replace(second=0, microsecond=0) for _, at in odd_rows)
    assert dict(files_rows(out / "minutes")) == dict.fromkeys(minutes.items(), 1)


def test_side_outputs_come_and_go_with_a_savepoint(place: Place) -> None:
    """They have no state: the restored job has one sink fewer and one more."""
    out = place.directory / "out"
    place.land(2)
    job, stream = sorted_numbers(place, bounded=False)
    stream.sink("even_out", weir.sinks.Files(str(out / "even")))
    with LiveJob(job, settings(place)) as live:
        live.wait_for_records(2 * ROWS_PER_FILE)
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
    place.land(1)
    job, stream = sorted_numbers(place, bounded=True)
    stream.sink("even_out", weir.sinks.Files(str(out / "even")))
    stream.side_output("third").sink("third", weir.sinks.Files(str(out / "third")))
    with LiveJob(job, settings(place), from_savepoint=savepoint) as live:
        assert live.result().status is JobStatus.FINISHED
    rows = place.rows()
    assert files_rows(out / "even") == Counter(one for one in rows.elements() if one[0] % 2 == 0)
    last = [number for number, _ in rows.elements() if number >= 2 * ROWS_PER_FILE]
    third = Counter((f"number {number}",) for number in last if number % 3 == 0)
    assert files_rows(out / "third") == third
