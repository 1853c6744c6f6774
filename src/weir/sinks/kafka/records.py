"""Reads staged records back, in the order in which they are published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

from weir.sinks.kafka.client import Headers, Outgoing
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime.fromtimestamp(0, UTC)


def staged_records(
    file_system: FileSystem, paths: Sequence[str], topic: str | None
) -> Iterator[Outgoing]:
    """The records of these files, one after the other; ``topic``: of those that name none."""
    for path in paths:
        for batch in _batches(file_system, path):
            yield from _of_batch(batch, topic)


def newest_of_each_key(
    file_system: FileSystem, paths: Sequence[str], topic: str | None
) -> Iterator[Outgoing]:
    """Like ``staged_records``, of each key in a topic only the last.

    The keys are held in memory, and the files are read twice.
    """
    last: dict[tuple[str | None, bytes | None], int] = {}
    for number, (named, key) in enumerate(_keys(file_system, paths)):
        last[named or topic, key] = number
    for number, record in enumerate(staged_records(file_system, paths, topic)):
        if last[record.topic, record.key] == number:
            yield record


def topics_of(file_system: FileSystem, path: str) -> set[str]:
    """The topics that the records of a file name; none if the sink's own is meant."""
    topics: set[str] = set()
    for batch in _batches(file_system, path, ["topic"]):
        if "topic" in batch.schema.names:
            topics.update(filter(None, batch.column("topic").unique().to_pylist()))
    return topics


def _keys(
    file_system: FileSystem, paths: Sequence[str]
) -> Iterator[tuple[str | None, bytes | None]]:
    for path in paths:
        for batch in _batches(file_system, path, ["topic", "key"]):
            pairs = zip(_values(batch, "topic", None), _values(batch, "key", None), strict=False)
            yield from islice(pairs, batch.num_rows)


def _batches(
    file_system: FileSystem, path: str, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(file_system.read(path)))
    names = file.schema_arrow.names
    wanted = names if columns is None else [name for name in columns if name in names]
    if wanted:
        yield from file.iter_batches(columns=wanted)


def _of_batch(batch: pa.RecordBatch, own: str | None) -> Iterator[Outgoing]:
    """Its records. A column that is not there costs nothing for each of them."""
    columns = (
        _values(batch, "topic", own or "", lambda topic: topic or own or ""),
        _values(batch, "value", None),
        _values(batch, "key", None),
        _values(batch, "partition", -1, lambda number: -1 if number is None else number),
        _values(batch, "headers", None, _headers),
        _values(batch, "timestamp", 0, lambda at: 0 if at is None else _milliseconds(at)),
    )
    return map(Outgoing._make, islice(zip(*columns, strict=False), batch.num_rows))


def _values(
    batch: pa.RecordBatch,
    name: str,
    absent: Any,
    made: Callable[[Any], Any] | None = None,
) -> Iterable[Any]:
    """What ``made`` makes of each value of a column; ``absent`` without end if it is not there."""
    if name not in batch.schema.names:
        return repeat(absent)
    values: list[Any] = batch.column(name).to_pylist()
    return values if made is None else map(made, values)


def _headers(pairs: list[dict[str, Any]] | None) -> Headers:
    return None if pairs is None else [(each["key"], each["value"]) for each in pairs]


def _milliseconds(timestamp: datetime) -> int:
    at = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
