"""One query's checkpoint directory: the place where Spark's words are translated into Weir's.

A *position* is Spark's batch id. To restart after batch b Spark needs ``metadata``, ``offsets/b-1``, ``offsets/b``,
``commits/b``, the state that ``commits/b`` names (``weir/spark/state_files.py``), and of each ``sources/K`` the
entries up to the ``logOffset`` that ``offsets/b`` names, not one more: Spark's file source takes its newest log entry
for admitted, so an entry above the pin would lose or shift rows without an error (PROTOCOL P3).

Draining (MISSION E1) is one more entry of the offset log, written by us: the offsets of the last batch again, with
the maximal watermark. A restarted query replays it as it would replay a batch that a crash cut short: without data,
firing every window and timer. No source is asked, so nothing that arrived after the end of the input slips in.

*Inboxes.* A query that reads channels reads each with a file source over an inbox (``weir/spark/channel_input.py``). After
a restore its inboxes are new and empty, and so are their source logs: they name no file and end where ``offsets/b``
says. While the query runs, what its batches have read is in these logs, and may be forgotten there once it is known and
has left the inbox; else they would grow with every segment. Never a root source's log: it would read everything again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from weir.errors import StorageError, invariant
from weir.state.filesystem import FileSystem, join

#: The last millisecond of the year 9999: Spark's timestamps end there (Flink: MAX_WATERMARK).
MAX_WATERMARK_MS = 253402300799000

#: Larger entries of a source's log are kept as files (Flink: ``data-inline-threshold``).
_INLINE_BYTES = 20 * 1024

#: The setting whose value an entry of the offset log keeps: how many partitions the state of the query has.
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_COMPACT = ".compact"

#: An entry of a file source's log that names no file: the version line alone.
_EMPTY_ENTRY = b"v1"

#: Each tenth entry of the logs that are written here is a compacted one. Spark goes on with the interval that it finds.
_COMPACT_INTERVAL = 10


class QueryDirectory:
    """Reads and edits the logs of a query that rests or has ended."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        #: The directory below ``sources/`` of each offset in the offset log (``source_ids``), once the query has told it;
        #: before that each offset has its own.
        self.source_ids: tuple[int, ...] | None = None

    def file(self, key: str) -> str:
        """The full path of an entry such as ``offsets/7``."""
        return join(self.path, key)

    def log_entries(self, position: int) -> dict[str, str]:
        """The log entries needed to restart after the batch, by their keys. Empty before the first batch.

        Raises ``StorageError`` if one is missing: then the batch is not committed.
        """
        if position < 0:
            return {}
        keys = ["metadata", f"offsets/{position}", f"commits/{position}"]
        if position > 0:
            keys.append(f"offsets/{position - 1}")
        return {key: self._read(key) for key in keys}

    def source_entries(self, position: int, *, inboxes: bool = False) -> tuple[dict[str, str], list[str]]:
        """The entries of ``sources/`` up to the batch: small ones as text by key, and the keys of larger files.

        With ``inboxes`` the query's file sources read inboxes: none of their entries outlives the attempt.
        """
        inline: dict[str, str] = {}
        files: list[str] = []
        for source, offset in self._sources(position).items():
            if inboxes and log_offset(offset) is not None:
                continue
            for key in self._source_keys(source, offset):
                status = self.fs.status(self.file(key))
                if status is None:
                    raise StorageError(f"{self.file(key)} has vanished, though {self.path}/offsets names it.")
                if status.size <= _INLINE_BYTES and not key.endswith(_COMPACT):
                    inline[key] = self._read(key)
                else:
                    files.append(key)
        return inline, files

    def commit_entry(self, position: int) -> dict[str, Any]:
        """The batch's entry in the commit log, decoded."""
        return decode_commit(self._read(f"commits/{position}"))

    def prune_sources(self, position: int) -> None:
        """Remove entries of file sources' logs above what the batch admitted (PROTOCOL P3)."""
        for source, newest in self.log_offsets(position).items():
            for status in self.fs.list(self.file(f"sources/{source}")):
                name = status.name.removesuffix(_COMPACT)
                if name.isdigit() and int(name) > newest:
                    self.fs.delete(self.file(f"sources/{source}/{status.name}"))

    def write_empty_source_logs(self, position: int) -> None:
        """Give each inbox of a restored query a log that names no file and ends where the batch's offset says.

        Spark derives the interval of compacted entries from those that it finds: from two, their distance; from one, a
        divisor of its number that may be far larger. So there are two as soon as there can be. It also reads again what
        the last batch read, which is one entry at most: the newest.
        """
        for source, newest in self.log_offsets(position).items():
            directory = f"sources/{source}"
            self.fs.make_directory(self.file(directory))
            compacted = (newest + 1) // _COMPACT_INTERVAL * _COMPACT_INTERVAL - 1
            before = [compacted - _COMPACT_INTERVAL] if compacted > _COMPACT_INTERVAL else []
            for number in (*before, *range(max(0, compacted), newest + 1)):
                is_compacted = (number + 1) % _COMPACT_INTERVAL == 0
                name = f"{number}{_COMPACT}" if is_compacted else str(number)
                self.fs.write(self.file(f"{directory}/{name}"), _EMPTY_ENTRY)

    def log_offsets(self, position: int) -> dict[int, int]:
        """Up to which entry of its log each file source's files belong to batches up to ``position``, by source."""
        offsets = ((source, log_offset(offset)) for source, offset in self._sources(position).items())
        return {source: newest for source, newest in offsets if newest is not None}

    def source_entry(self, source: int, number: int) -> tuple[str, bool]:
        """One entry of a file source's log, and whether it is a compacted one, which holds all before it."""
        key = f"sources/{source}/{number}"
        try:
            return self.fs.read(self.file(key)).decode(), False
        except FileNotFoundError:
            return self._read(key + _COMPACT), True

    def write_drain_entry(self, position: int) -> None:
        """Write the offset-log entry of one more batch without data and with the maximal watermark."""
        fields = self._batch_metadata(position)
        invariant("batchWatermarkMs" in fields, f"{self.path}/offsets/{position} has no batchWatermarkMs")
        fields["batchWatermarkMs"] = MAX_WATERMARK_MS
        self._write_offsets(position + 1, fields, like=position)

    def state_partitions(self, position: int) -> int:
        """How many state partitions the query has after the batch, and will have, whatever its session says."""
        return int(self._batch_metadata(position)["conf"][SHUFFLE_PARTITIONS])

    def set_state_partitions(self, position: int, partitions: int) -> None:
        """Let a query without state go on with this number of partitions."""
        fields = self._batch_metadata(position)
        fields["conf"][SHUFFLE_PARTITIONS] = str(partitions)
        self._write_offsets(position, fields, like=position)

    def _batch_metadata(self, position: int) -> dict[str, Any]:
        """What the entry of the offset log says of its batch, beside the offsets."""
        fields = json.loads(self._read(f"offsets/{position}").split("\n")[1])
        invariant(isinstance(fields, dict), f"{self.path}/offsets/{position} has no metadata")
        return dict(fields)

    def _write_offsets(self, position: int, metadata: dict[str, Any], *, like: int) -> None:
        """Write an entry of the offset log with this metadata, and otherwise like that of the batch ``like``."""
        version, _, *offsets = self._read(f"offsets/{like}").split("\n")
        entry = "\n".join((version, json.dumps(metadata, separators=(",", ":")), *offsets))
        self.fs.write(self.file(f"offsets/{position}"), entry.encode())

    def _offsets(self, position: int) -> list[str]:
        """The offset of each source at the end of the batch, as Spark wrote it."""
        if position < 0:
            return []
        return self._read(f"offsets/{position}").split("\n")[2:]

    def _sources(self, position: int) -> dict[int, str]:
        """The offset at the end of the batch of each directory below ``sources/``."""
        offsets = self._offsets(position)
        ids = range(len(offsets)) if self.source_ids is None else self.source_ids
        # Before the first batch there is no offset at all.
        return dict(zip(ids, offsets, strict=True)) if offsets else {}

    def _source_keys(self, index: int, offset: str) -> Iterator[str]:
        directory = f"sources/{index}"
        newest = log_offset(offset)
        if newest is None:
            # Other sources keep at most a few small files there (an initial offset).
            for status in self.fs.list(self.file(directory)):
                if not status.is_directory and not status.name.startswith("."):
                    yield f"{directory}/{status.name}"
            return
        # The newest compacted entry holds all before it.
        for number in range(newest, -1, -1):
            plain = f"{directory}/{number}"
            if self.fs.status(self.file(plain)) is not None:
                yield plain
            else:
                yield plain + _COMPACT
                return

    def _read(self, key: str) -> str:
        path = self.file(key)
        try:
            return self.fs.read(path).decode()
        except FileNotFoundError as error:
            raise StorageError(f"{path} is missing, so the query's progress cannot be saved.") from error


class InboxLogs:
    """What a query's batches have read of its inboxes, from Spark's own logs (PROTOCOL P7).

    Files in an inbox are named ``<channel>/<position>-<part>.parquet``. Each log entry is read once: a batch costs its
    entry of ``offsets/`` and one of ``sources/`` for each inbox that had files.
    """

    def __init__(self, directory: QueryDirectory) -> None:
        self._directory = directory
        #: The newest log entry that was read, by source.
        self._read: dict[int, int] = {}
        #: Compacted entries that name files, by source: each holds all before it.
        self._full: dict[int, int] = {}
        self._consumed: dict[str, int] = {}

    def consumed(self, position: int) -> dict[str, int]:
        """The highest position that batches up to ``position`` have read of each channel, since this run began.

        Channels of which nothing was read are missing. Called between two batches.
        """
        for source, newest in self._directory.log_offsets(position).items():
            for number in range(newest, self._read.get(source, -1), -1):
                if self._learn(source, number):
                    break
            self._read[source] = newest
        return dict(self._consumed)

    def trim(self) -> None:
        """Forget files of which ``consumed`` has told, so that the logs stay small. Called between two batches.

        These files must have left the inbox: a query that is started again on its directory would read them again.
        """
        for source, number in self._full.items():
            base = self._directory.file(f"sources/{source}")
            fs = self._directory.fs
            # A checksum of the old content would make the new one unreadable.
            fs.delete(f"{base}/.{number}{_COMPACT}.crc")
            fs.write(f"{base}/{number}{_COMPACT}", _EMPTY_ENTRY)
            for status in fs.list(base):
                name = status.name.removeprefix(".").removesuffix(".crc").removesuffix(_COMPACT)
                if name.isdigit() and int(name) < number:
                    fs.delete(f"{base}/{status.name}")
        self._full.clear()

    def _learn(self, source: int, number: int) -> bool:
        """Read one entry; whether it holds all before it."""
        text, is_compacted = self._directory.source_entry(source, number)
        paths = [json.loads(line)["path"] for line in text.splitlines()[1:]]
        for path in paths:
            channel, name = unquote(path).rsplit("/", 2)[-2:]
            self._consumed[channel] = max(self._consumed.get(channel, -1), int(name.split("-", 1)[0]))
        if is_compacted and paths:
            self._full[source] = max(number, self._full.get(source, -1))
        return is_compacted


def log_offset(offset: str) -> int | None:
    """The ``logOffset`` of a file source's offset, or None for other sources."""
    if not re.match(r"\s*\{", offset):
        return None
    fields = json.loads(offset)
    return int(fields["logOffset"]) if set(fields) == {"logOffset"} else None


def decode_commit(text: str) -> dict[str, Any]:
    """An entry of the commit log: a version line, then JSON."""
    _, _, body = text.partition("\n")
    fields = json.loads(body)
    invariant(isinstance(fields, dict), "an entry of the commit log is no JSON object")
    return dict(fields)


def is_stateful(commit: dict[str, Any]) -> bool:
    """Whether the query keeps state, and so may have windows or timers to fire."""
    return bool(commit.get("stateUniqueIds"))
