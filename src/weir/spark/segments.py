"""Channels on disk: what a query writes for others, and the inboxes in which they find it.

::

    <attempt>/_channels/<producer>/<position>/part-*.parquet    a segment, written by Spark in the producer's batch
    <attempt>/_inboxes/<consumer>/<producer>/<position>-<part>.parquet    links to what the consumer may read

Where the file system has no links, the inbox gets a copy. A link is removed when its batch is committed, a segment when
no consumer needs it any more. Nothing here is durable: a restored job has a new attempt directory, and an aligned
checkpoint leaves nothing in a channel. What an unaligned one has overtaken is in the snapshot of the consumer, and after a
restore below its own directory (PROTOCOL P27)::

    <attempt>/<consumer>/in-flight/<producer>/<position>-<part>.parquet

So the payload of a segment has the paths of its files, or, restored, their keys below that directory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weir.core.channel import Segment
from weir.core.input_gate import Admission
from weir.core.types import InFlightSegment, Payload, VertexId
from weir.sinks.parquet import count_rows
from weir.sinks.staging import visible_files, write_frame
from weir.spark.hadoop import as_spark_path
from weir.spark.query_directory import InboxLogs, QueryDirectory
from weir.state.filesystem import FileSystem, join
from weir.state.transfer import Transfer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _file_name(position: int, part: int) -> str:
    return f"{position:020d}-{part}.parquet"


def _paths(payload: Payload, directory: str) -> list[str]:
    """Where the files of a segment are that the query in ``directory`` reads."""
    return payload.get("files") or [join(directory, key) for key in payload["keys"]]


def keyed_files(segment: InFlightSegment, directory: str) -> dict[str, str]:
    """Where the files of a segment in flight are, by the keys that they have in the state of the query in ``directory``."""
    paths = _paths(segment.payload, directory)
    names = [_file_name(segment.position, part) for part in range(len(paths))]
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
        written = frame.sparkSession.read.schema(frame.schema).parquet(as_spark_path(path))
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


class Inboxes:
    """The inboxes of one query, by channel."""

    def __init__(self, directory: QueryDirectory, transfer: Transfer, paths: Mapping[VertexId, str]) -> None:
        """``directory`` is the query's own."""
        self._fs = directory.fs
        self._directory = directory.path
        self._transfer = transfer
        self._paths = paths
        self._logs = InboxLogs(directory)
        #: Names in each inbox with their positions, ascending.
        self._links: dict[VertexId, deque[tuple[int, str]]] = {name: deque() for name in paths}

    def admit(self, admitted: Sequence[Admission]) -> None:
        """Put segments where the next batch finds them. Called while the query waits in its planning call."""
        for one in admitted:
            inbox, links = self._paths[one.channel], self._links[one.channel]
            for segment in one.segments:
                for part, file in enumerate(_paths(segment.payload, self._directory)):
                    name = _file_name(segment.position, part)
                    self._transfer.link_or_copy(file, join(inbox, name))
                    links.append((segment.position, name))

    def settle(self, position: int) -> dict[VertexId, int]:
        """How far the batches up to ``position`` have read each channel (PROTOCOL P7); what they have read is removed.

        Called while the query waits in its planning call.
        """
        consumed = self._logs.consumed(position)
        for name, last in consumed.items():
            links = self._links[name]
            while links and links[0][0] <= last:
                self._fs.delete(join(self._paths[name], links.popleft()[1]))
        self._logs.trim()
        return consumed
