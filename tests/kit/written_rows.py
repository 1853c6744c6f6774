"""Steps with rows already in Parquet files, as written for other tasks: no Spark stages them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from weir.core.types import Payload
from weir.sinks.base import Batch, Sink

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}


class WrittenRows:
    """Stands for a frame whose rows are in the step's files."""

    @property
    def schema(self) -> WrittenRows:
        return self

    def json(self) -> str:
        return json.dumps(SCHEMA)


def stage_rows(sink: Sink, position: int, directory: Path) -> Payload:
    """Stage the rows ``position`` and ``position + 100`` as separate files of a directory."""
    written = []
    directory.mkdir(exist_ok=True)
    for row in (position, position + 100):
        path = directory / f"part-{row}-c000.parquet"
        pq.write_table(pa.table({"id": pa.array([row], pa.int64())}), path)
        written.append(path)
    frame: Any = WrittenRows()
    payload = sink.stage(frame, Batch(batch_id=position, files=tuple(map(str, written))))
    for path in written:
        path.unlink()
    assert payload is not None
    return payload


def rows_of_delta(path: Path) -> list[int]:
    """The rows that readers of a Delta table see."""
    if not deltalake.DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(deltalake.DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def rows_of_files(path: Path) -> list[int]:
    """The rows that readers of a directory of Parquet files see."""
    found = ds.dataset(path, format="parquet")
    return sorted(found.to_table()["id"].to_pylist()) if found.files else []
