"""Channels on disk: what a query writes for others.

::

    <attempt>/_channels/<producer>/<position>/part-*.parquet    a segment, written by Spark in the producer's batch

A segment is deleted when no consumer needs it any more. Nothing here is durable: a restored job has a new attempt
directory, and an aligned checkpoint leaves nothing in a channel. What an unaligned one has overtaken is in the snapshot of
the consumer, and after a restore below its own directory (PROTOCOL P27)::

    <attempt>/<consumer>/in-flight/<producer>/<position>-<part>.parquet

So the payload of a segment has the paths of its files, or, restored, their keys below that directory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from weir.core.messages.channel import Segment
from weir.core.types import InFlightSegment, Payload
from weir.sinks.parquet import count_rows
from weir.sinks.staging import visible_files, write_frame
from weir.state.filesystem import FileSystem
from weir.state.paths import NO_PATTERNS, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def segment_files(payload: Payload, directory: str) -> list[str]:
    """Where the files of a segment are that the query in ``directory`` reads."""
    return payload.get("files") or [join(directory, key) for key in payload["keys"]]


def keyed_files(segment: InFlightSegment, directory: str) -> dict[str, str]:
    """Where the files of a segment in flight are, by the keys that they have in the state of the query in ``directory``."""
    paths = segment_files(segment.payload, directory)
    names = [f"{segment.position:020d}-{part}.parquet" for part in range(len(paths))]
    keys = segment.payload.get("keys") or [f"in-flight/{segment.channel}/{name}" for name in names]
    return dict(zip(keys, paths, strict=True))


def kept_payload(keys: Iterable[str]) -> Payload:
    """The payload of a segment whose files are in a snapshot under these keys."""
    return {"keys": list(keys)}


class OutputSegments:
    """The segments that one query writes."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        #: Positions that were written and not released, ascending.
        self._written: deque[int] = deque()

    def write(self, frame: DataFrame, position: int) -> tuple[Segment | None, DataFrame]:
        """Write a step's rows: one Spark job. The segment, None without rows; and the rows as they were written.

        Whatever else wants the rows takes them from there: reading them back costs less than computing them again, and a
        plan that is not deterministic would give a sink other rows than the channel.
        """
        path = self._directory(position)
        # With the session's codec, since a sink may make these very files part of its table.
        write_frame(frame, self._fs, path, format_name="parquet")
        self._written.append(position)
        # An empty frame is written as a file without rows.
        files = [
            file for file in visible_files(self._fs, path) if count_rows(self._fs, join(path, file.path)) > 0
        ]
        reader = frame.sparkSession.read.schema(frame.schema).option(*NO_PATTERNS)
        written = reader.parquet(as_spark_path(path))
        if not files:
            return None, written
        payload = {"files": [join(path, file.path) for file in files]}
        return Segment(position=position, size=sum(file.size for file in files), payload=payload), written

    def release(self, position: int) -> None:
        """Delete every segment up to ``position``."""
        while self._written and self._written[0] <= position:
            self._fs.delete(self._directory(self._written.popleft()))

    def _directory(self, position: int) -> str:
        return join(self._path, str(position))
