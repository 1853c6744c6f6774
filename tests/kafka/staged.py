"""A sink whose records are in Parquet files already, so that no Spark stages them; and its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.kafka.server import KafkaServer
from tests.kit.sink import JOB, sink_context

from weir.core.types import Payload
from weir.sinks.base import Batch, SinkContext
from weir.sinks.kafka.sink import KafkaTopic
from weir.sinks.staging import StagedFile, write_frame
from weir.storage.job_log import JobLog, JobRecord
from weir.storage.local import LocalFileSystem

_TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


class StagedTopic(KafkaTopic):
    """Stages the files of a batch as they are."""

    def _write(self, frame: Any, path: str, written: Sequence[str]) -> list[StagedFile]:
        return write_frame(frame, self._file_system, path, format_name="parquet", written=written)


def opened(server: KafkaServer, topic: str | None, directory: Path, **given: Any) -> StagedTopic:
    """A sink that is checked and opened for the first attempt of a job."""
    context = given.pop("context", None) or sink_context()
    sink = made(server, topic, directory, **given)
    sink.check(context)
    sink.open(context)
    return sink


def made(server: KafkaServer, topic: str | None, directory: Path, **given: Any) -> StagedTopic:
    """A sink."""
    return StagedTopic(topic, servers=server.address, staging=str(directory / "staged"), **given)


def flushed(
    sink: KafkaTopic, position: int, rows: Sequence[Mapping[str, Any]], directory: Path
) -> list[Payload]:
    """The payloads of a batch with these records, as a checkpoint has them."""
    path = directory / f"part-{position}-c000.parquet"
    names = rows[0].keys()
    columns = {name: pa.array([row[name] for row in rows], _TYPES[name]) for name in names}
    pq.write_table(pa.table(columns), path)
    frame: Any = None
    payload = sink.stage(frame, Batch(batch_id=position, files=(str(path),)))
    path.unlink()
    assert payload is not None
    return sink.flush([payload])


def values(*given: str) -> list[dict[str, bytes]]:
    """Records with only a value."""
    return [{"value": each.encode()} for each in given]


def attempt(number: int, **changes: Any) -> SinkContext:
    """What the sink is given in an attempt."""
    return sink_context(attempt=number, **changes)


class JobRecords:
    """The records of a job, in which attempts begin."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._log = JobLog(LocalFileSystem(), f"{directory}/log", job_id=JOB)

    def begin(self) -> None:
        """An attempt begins."""
        newest = self._log.newest()
        given: dict[str, Any] = {"writer": "0" * 16, "timestamp_ms": 1}
        if newest is None:
            began = JobRecord.first_attempt(job_id=JOB, job_name="orders", **given)
        else:
            began = newest.attempt_began(**given)
        self._log.begin_attempt(began)
