"""The pipeline whose state is recorded: one job with every kind of state and sink.

Numbers are read from ``in``, one file per batch. A window and a keyed operator with rules read them
through channels. With a connection string in ``WEIR_TEST_DSN``, or given as ``dsn``, the sinks that
need a database, a catalog or a Spark session are there too. A file named ``fail`` makes the next
batch fail, once. A recorded snapshot must find its steps here: add some, but rename none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import weir
from weir.coordinators import BroadcastRules
from weir.operators import RulesOperator
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers
from weir.sinks.foreach.sink import BatchInfo, CommitInfo, SinkInfo

if TYPE_CHECKING:
    from weir.core.types import Payload

#: 2030-01-01: after every event, so that the timers fire at the end of the input.
_LAST_MS = 1_893_456_000_000
#: What the catalog of the Iceberg table is called, and the table in it.
CATALOG, TABLE = "recorded", "shop.numbers"


class Counts(RulesOperator):
    """Emits each number's place among those of its key, and all counts at the end of the input."""

    output_schema = "key long, n long, label string"

    def initialize_state(self, state: StateStore) -> None:
        super().initialize_state(state)
        self._counts = state.keyed_state("counts", pa.int64(), 0)
        self._odd = state.map_state("odd", pa.bool_(), pa.int64(), 0)
        self._rows = state.list_state("rows")
        self._ends = state.event_timers("ends")

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._rows.update([sum(self._rows.get()) + batch.num_rows])
        for key in pc.unique(batch["key"]).to_pylist():
            ids = batch.filter(pc.equal(batch["key"], key))["id"]
            keys = pa.array([key], pa.int64())
            before = self._counts.get(keys)[0].as_py()
            self._counts.put(keys, pa.array([before + len(ids)], pa.int64()))
            odd = pc.sum(pc.bit_wise_and(ids, 1)).as_py()
            is_odd = pa.array([True])
            known = self._odd.get(keys, is_odd)[0].as_py()
            self._odd.put(keys, is_odd, pa.array([known + odd], pa.int64()))
            self._ends.register(keys, pa.array([_LAST_MS], pa.int64()))
            yield from _rows(*((key, before + one, "place") for one in range(1, len(ids) + 1)))

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        del timers
        keys = due["key"]
        counts = self._counts.get(keys)
        odd = self._odd.get(keys, pa.array([True] * len(keys)))
        for key, all_of_it, odd_ones in zip(
            keys.to_pylist(), counts.to_pylist(), odd.to_pylist(), strict=True
        ):
            yield from _rows((key, all_of_it, self.rules["label"]), (key, odd_ones, "odd"))

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield from _rows((-1, sum(self._rows.get()), "subtask"))


class Journal:
    """The functions of ``Foreach``: rows lie in the payload, and each epoch becomes a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "out" / "journal"
        self._fails = directory / "fail"

    def stage(self, frame: DataFrame, info: BatchInfo) -> list[list[int]] | None:
        """Keep the rows as values."""
        del info
        rows = [[row.id, row.key] for row in frame.select("id", "key").collect()]
        if self._fails.exists():
            self._fails.unlink()
            raise ValueError("the journal is full")
        return rows or None

    def commit(self, info: CommitInfo, values: list[Any]) -> int:
        """Write the epoch's rows, in place of those of an earlier try."""
        self._directory.mkdir(parents=True, exist_ok=True)
        rows = [row for value in values for row in value]
        self._file(info, info.epoch).write_text(json.dumps(rows))
        return len(rows)

    def newest(self, info: SinkInfo) -> int | None:
        """The newest epoch that has a file."""
        files = self._directory.glob(self._file(info, "*").name)
        return max((int(path.name.rpartition("-")[2]) for path in files), default=None)

    def _file(self, info: SinkInfo, epoch: int | str) -> Path:
        return self._directory / f"{info.job_id}-{epoch}"


class Calls:
    """The function of ``ForeachEpoch``: each call becomes a file that is named after its key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "out" / "calls"

    def write(self, frame: DataFrame, info: CommitInfo) -> None:
        """Write the epoch's rows."""
        self._directory.mkdir(parents=True, exist_ok=True)
        rows = [[row.id, row.key] for row in frame.collect()]
        (self._directory / info.key.replace("/", "-")).write_text(json.dumps(rows))


class Ledger(weir.MasterHook):
    """A hook whose state is the number of each checkpoint; remembers what it was restored with."""

    identifier = "ledger"
    restored: Payload | None = None

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload:
        del timestamp_ms
        return {"checkpoint": checkpoint_id}

    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        del checkpoint_id
        self.restored = state


def _rows(*rows: tuple[int, int, str]) -> list[pa.RecordBatch]:
    keys, numbers, labels = zip(*rows, strict=True)
    columns = {"key": list(keys), "n": list(numbers), "label": list(labels)}
    return [pa.RecordBatch.from_pydict(columns)]


def with_key(frame: DataFrame) -> DataFrame:
    """Seven keys; numbers come in order, so that any delay would do."""
    return frame.withWatermark("ts", "10 seconds").withColumn("key", F.col("id") % 7)


def by_minute(frame: DataFrame) -> DataFrame:
    """The count of numbers per minute."""
    counted = frame.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))
    return counted.select(F.col("window.start").alias("start"), "n")


def catalog(directory: Path) -> dict[str, str]:
    """An Iceberg catalog in a file, as pyiceberg describes it."""
    return {
        "name": CATALOG,
        "type": "sql",
        "uri": f"sqlite:///{directory / 'catalog.db'}",
        "warehouse": str(directory / "warehouse"),
    }


def built(directory: Path, *, hook: Ledger, dsn: str | None = None) -> weir.Job:
    """The job in this directory."""
    out = directory / "out"
    job = weir.Job("recorded")
    job.master_hook(hook)
    source = weir.sources.FileSource(
        str(directory / "in"),
        format="parquet",
        schema="id long, ts timestamp",
        discovery_interval=0.2,
        max_bytes_per_split_batch=1,
    )
    numbers = job.source("numbers", source, parallelism=1).transform("with_key", with_key)
    numbers.sink("raw", weir.sinks.DeltaTable(str(out / "raw"), partition_by=["key"]))
    numbers.sink("raw_files", weir.sinks.Files(str(out / "raw_files")))
    seldom = weir.sinks.Files(str(out / "seldom"), format="json")
    numbers.sink("seldom", seldom, min_commit_interval="365 d")
    journal = Journal(directory)
    numbers.sink(
        "journal",
        weir.sinks.Foreach(
            journal.stage,
            commit=journal.commit,
            newest_committed=journal.newest,
            describe="journal",
        ),
    )
    minutes = numbers.transform("by_minute", by_minute)
    minutes.sink("minutes", weir.sinks.Files(str(out / "minutes")))
    counts = numbers.process(
        "counts",
        Counts(),
        key_by="key",
        parallelism=2,
        coordinator=BroadcastRules({"label": "initial"}),
    )
    counts.sink("counted", weir.sinks.Files(str(out / "counted")))
    if dsn is not None:
        calls = Calls(directory)
        postgres = weir.sinks.PostgresTable(dsn, "numbers", create=True)
        iceberg = weir.sinks.IcebergTable(catalog(directory), TABLE, partition_by=["key"])
        called = weir.sinks.ForeachEpoch(
            calls.write, staging=str(out / "staging"), describe="calls"
        )
        numbers.sink("postgres", postgres)
        numbers.sink("iceberg", iceberg)
        numbers.sink("calls", called)
    return job


job = built(Path.cwd(), hook=Ledger(), dsn=os.environ.get("WEIR_TEST_DSN"))
