"""Two operators behind one source, for drivers that are killed (``test_killed_operators.py``).

``publisher`` writes each number exactly once by itself, in two phases. ``summing`` emits its sum in
front of each barrier. All paths are relative to the directory in which the command runs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import weir
from weir.operators import Operator, SnapshotContext
from weir.operators.state.store import StateStore

DIRECTORY = Path.cwd() / "out" / "published"


class Publisher(Operator):
    """Stages numbers in a file per batch, and publishes files whose checkpoint is complete.

    Odd numbers go to a side output as well.
    """

    side_outputs = {"odd": "id long, ts timestamp"}  # noqa: RUF012

    def initialize_state(self, state: StateStore) -> None:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        #: Names of files since the newest snapshot, and [checkpoint, name] of those before it.
        self._staged = state.list_state("staged")
        self._pending = state.list_state("pending")
        # Nobody may have published the files of the restored checkpoint, which is complete.
        if state.restored_checkpoint_id is not None:
            self.notify_checkpoint_complete(state.restored_checkpoint_id)

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        name = uuid.uuid4().hex
        with (DIRECTORY / f"staged-{name}").open("w") as file:
            file.writelines(f"{one}\n" for one in batch["id"].to_pylist())
            file.flush()
            os.fsync(file.fileno())
        self._staged.add(name)
        odd = pc.equal(pc.bit_wise_and(batch["id"], 1), 1)
        self.context.output("odd", batch.filter(odd))
        return [batch]

    def snapshot_state(self, context: SnapshotContext) -> None:
        staged = [[context.checkpoint_id, name] for name in self._staged.get()]
        self._pending.update([*self._pending.get(), *staged])
        self._staged.clear()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for number, name in self._pending.get():
            if number <= checkpoint_id:
                self._publish(name)
        self._pending.update(one for one in self._pending.get() if one[0] > checkpoint_id)

    @staticmethod
    def _publish(name: str) -> None:
        staged = DIRECTORY / f"staged-{name}"
        if staged.exists():
            staged.rename(DIRECTORY / f"published-{name}")


class SumsBeforeBarriers(Operator):
    """Emits the number and the sum of what came since the barrier before, in front of each one."""

    output_schema = "checkpoint long, subtask int, n long, total long"

    def initialize_state(self, state: StateStore) -> None:
        self._since = state.list_state("since")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        n, total = self._since.get() or (0, 0)
        self._since.update([n + batch.num_rows, total + pc.sum(batch["id"]).as_py()])

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[pa.RecordBatch]:
        yield self._row(checkpoint_id)

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield self._row(0)

    def _row(self, checkpoint_id: int) -> pa.RecordBatch:
        n, total = self._since.get() or (0, 0)
        self._since.clear()
        return pa.RecordBatch.from_pydict(
            {
                "checkpoint": [checkpoint_id],
                "subtask": [self.context.subtask],
                "n": [n],
                "total": [total],
            }
        )


def numbers(spark: SparkSession) -> DataFrame:
    """The numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet("in")


job = weir.Job("operators")
read = job.source("numbers", numbers, bounded=os.environ["NUMBERS"] == "bounded")
publisher = read.process("publisher", Publisher(), parallelism=2)
publisher.sink("copy", weir.sinks.Files("out/copy"))
publisher.side_output("odd").sink("odd", weir.sinks.Files("out/odd"))
sums = read.process("summing", SumsBeforeBarriers(), parallelism=2)
sums.sink("sums", weir.sinks.DeltaTable("out/sums"))
