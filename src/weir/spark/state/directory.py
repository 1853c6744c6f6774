"""One query's checkpoint directory, where Spark's terms are translated into Weir's.

A *position* is Spark's batch id. To restart after batch b Spark needs ``metadata``,
``offsets/b-1``, ``offsets/b``, ``commits/b``, the state that ``commits/b`` names
(``rocksdb_files.py``), and from each ``sources/K`` the entries up to the ``logOffset`` in
``offsets/b`` and no further: Spark's file source treats every log entry as admitted, so an entry
above the pin would lose or shift rows without an error (PROTOCOL P3).

To drain a query (MISSION E1), Weir writes one more entry to the offset log: the offsets of the last
batch again, with the maximal watermark. A restarted query replays it like a batch cut short by a
crash: without data, firing every window and timer. No source is asked, so nothing that arrived
after the end of the input slips in.

A query that reads channels has no ``sources/``: what it has read is in its offsets
(``weir/spark/channels.py``).

Editing the watermark in Spark's commit log and forcing a batch would fire the windows too. But
Spark would then ask the sources, and records that arrived after the end of the input would meet the
maximal watermark and be dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from weir.errors import StorageError, invariant
from weir.spark.offsets import is_control
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.spark.state.log_entries import (
    CommitEntry,
    OffsetEntry,
    StateIds,
    decode_commit,
    decode_offsets,
    edited_commit,
    log_offset,
)
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join
from weir.subtasks.worker import END_OF_TIME_MS

#: The last second of the year 9999: Spark's timestamps end there (Flink: MAX_WATERMARK).
SPARK_MAX_WATERMARK_MS = END_OF_TIME_MS

#: Larger entries of a source's log are kept as files (Flink: ``data-inline-threshold``).
_INLINE_BYTES = 20 * 1024

_COMPACT = ".compact"
_COMPACTED = re.compile(r"[0-9]+\.compact")
#: A compacted entry of a source's log, without any file.
_EMPTY_LOG = b"v1"


class QueryDirectory:
    """Reads a query's logs up to a complete batch, and edits them once the query has ended."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        #: For each offset in the offset log, the number of its directory below ``sources/``
        #: (``source_ids``). None until read from the running query: each offset has its own.
        self.source_ids: tuple[int, ...] | None = None

    def file(self, key: str) -> str:
        """The full path of a key such as ``offsets/7``."""
        return join(self.path, key)

    def log_entries(self, position: int) -> dict[str, str]:
        """The log entries needed to restart after the batch, by key.

        Empty before the first batch. Raises ``StorageError`` if an entry is missing: then the
        batch is not committed.
        """
        if position < 0:
            return {}
        keys = ["metadata", f"offsets/{position}", f"commits/{position}"]
        if position > 0:
            keys.append(f"offsets/{position - 1}")
        return {key: self._read(key) for key in keys}

    def source_entries(self, position: int) -> tuple[dict[str, str], list[str]]:
        """The entries of ``sources/`` up to the batch: small ones as text by key, and other keys.

        Larger and compacted entries are kept as files. Raises ``StorageError`` if some have
        vanished.
        """
        inline: dict[str, str] = {}
        files: list[str] = []
        for source, offset in self._sources(position).items():
            for key in self._source_keys(source, offset):
                status = self.fs.status(self.file(key))
                if status is None:
                    raise StorageError(
                        f"{self.file(key)} is missing, but {self.path}/offsets names it."
                    )
                if status.size <= _INLINE_BYTES and not key.endswith(_COMPACT):
                    inline[key] = self._read(key)
                else:
                    files.append(key)
        return inline, files

    def commit_entry(self, position: int) -> CommitEntry:
        """The batch's entry in the commit log. Raises ``StorageError`` if it cannot be read."""
        try:
            return decode_commit(self._read(f"commits/{position}"))
        except ValueError as error:
            raise self._unreadable(f"commits/{position}", error) from error

    def watermark_ms(self, position: int) -> int | None:
        """The watermark of the batch; None or 0 before any event time was known."""
        return self._offset_entry(position).metadata.watermark_ms

    def rows_before(self, position: int) -> tuple[str, ...]:
        """Where Spark's sources and the channels stood before the batch; without Weir's own input.

        Empty for the first batch. The same before and after a batch without rows.
        """
        if position <= 0:
            return ()
        offsets = self._offset_entry(position - 1).offsets
        return tuple(offset for offset in offsets if not is_control(offset))

    def offsets(self, position: int) -> tuple[str, ...]:
        """The offset of each source after the batch; empty before the first batch."""
        return () if position < 0 else self._offset_entry(position).offsets

    def replace_offsets(self, position: int, offsets: Sequence[str]) -> None:
        """Make the query go on from other offsets after the batch."""
        entry = self._offset_entry(position)
        self._write_offsets(position, replace(entry, offsets=tuple(offsets)))

    def prune_sources(self, position: int) -> None:
        """Remove entries of file sources' logs above those the batch admitted (PROTOCOL P3)."""
        for source, offset in self._sources(position).items():
            newest = log_offset(offset)
            if newest is None:
                continue
            for status in self.fs.list(self.file(f"sources/{source}")):
                name = status.name.removesuffix(_COMPACT)
                if name.isdigit() and int(name) > newest:
                    self.fs.delete(self.file(f"sources/{source}/{status.name}"))

    def keep_compaction(self, default: int) -> None:
        """Make Spark keep the compact interval of the restored logs of file sources.

        Spark derives the interval from the names of the two newest compacted entries. A snapshot
        has only the newest, from which Spark may derive another interval and then miss an entry
        that was never written. So an older compacted entry is written, of which only the name is
        read. ``default`` is the interval of new logs
        (``spark.sql.streaming.fileSource.log.compactInterval``).
        """
        for source in self.fs.list(self.file("sources")):
            directory = join(self.file("sources"), source.name)
            names = [entry.name for entry in self.fs.list(directory)]
            numbers = [
                int(number) for name in names if (number := name.removesuffix(_COMPACT)).isdigit()
            ]
            compacted = max(
                (int(name.removesuffix(_COMPACT)) for name in names if _COMPACTED.fullmatch(name)),
                default=-1,
            )
            if compacted < 0:
                continue
            before = compacted - compaction_distance(compacted, max(numbers), default)
            # Spark accepts the name -1.compact too.
            self.fs.write(join(directory, f"{before}{_COMPACT}"), _EMPTY_LOG)

    def write_drain_entry(self, position: int) -> None:
        """Write the offset-log entry of a further batch, without data, at the maximal watermark."""
        entry = self._offset_entry(position)
        invariant(
            entry.metadata.watermark_ms is not None,
            f"{self.path}/offsets/{position} has no batchWatermarkMs",
        )
        self._write_offsets(position + 1, entry.with_watermark(SPARK_MAX_WATERMARK_MS))

    def state_partitions(self, position: int) -> int:
        """The number of the query's state partitions after the batch.

        A restarted query keeps it, whatever its session says.
        """
        conf = self.query_conf(position)
        try:
            return int(conf[SHUFFLE_PARTITIONS])
        except (ValueError, KeyError) as error:
            raise self._unreadable(f"offsets/{position}", error) from error

    def query_conf(self, position: int) -> Mapping[str, str]:
        """The settings of the batch that the query keeps when it is started again."""
        return self._offset_entry(position).metadata.conf

    def set_state_partitions(self, position: int, partitions: int) -> None:
        """Set the number of state partitions with which a query without state goes on."""
        entry = self._offset_entry(position)
        self._write_offsets(position, entry.with_state_partitions(partitions))

    def copy_offsets(self, position: int, to: int) -> None:
        """Write the offset-log entry of a batch again as that of a later batch."""
        self._write_offsets(to, self._offset_entry(position))

    def add_state_ids(self, position: int, ids: StateIds) -> None:
        """Add the ids of operators' states to the batch's commit-log entry."""
        key = f"commits/{position}"
        entry = self._read(key)
        try:
            known = decode_commit(entry).state_ids or {}
            edited = edited_commit(entry, state_ids=known | ids)
        except ValueError as error:
            raise self._unreadable(key, error) from error
        self.fs.write(self.file(key), edited.encode())

    def _offset_entry(self, position: int) -> OffsetEntry:
        key = f"offsets/{position}"
        try:
            return decode_offsets(self._read(key))
        except ValueError as error:
            raise self._unreadable(key, error) from error

    def _write_offsets(self, position: int, entry: OffsetEntry) -> None:
        self.fs.write(self.file(f"offsets/{position}"), entry.encode().encode())

    def _sources(self, position: int) -> dict[int, str]:
        """The offset after the batch, by the number of the source's directory in ``sources/``."""
        if position < 0:
            return {}
        offsets = self._offset_entry(position).offsets
        ids = range(len(offsets)) if self.source_ids is None else self.source_ids
        return dict(zip(ids, offsets, strict=True)) if offsets else {}

    def _source_keys(self, index: int, offset: str) -> Iterator[str]:
        directory = f"sources/{index}"
        newest = log_offset(offset)
        if newest is None:
            # Other sources keep at most a few small files there, such as an initial offset.
            for status in self.fs.list(self.file(directory)):
                if not status.is_directory and not status.name.startswith("."):
                    yield f"{directory}/{status.name}"
            return
        # The newest compacted entry includes all earlier entries.
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
            raise StorageError(
                f"{path} is missing, so the query's progress cannot be saved."
            ) from error

    def _unreadable(self, key: str, error: Exception) -> StorageError:
        return StorageError(
            f"{self.file(key)} is not an entry of Spark's log ({error}): restore from another"
            " checkpoint or savepoint."
        )


def compaction_distance(compacted: int, newest: int, default: int) -> int:
    """The compact interval of a log, from its newest compacted and its newest entry.

    An entry is compacted if the interval divides its number plus one, so the interval is greater
    than the number of entries since ``compacted``. Takes the smallest that fits, from
    ``default`` up.
    """
    total = compacted + 1
    fitting = range(max(default, newest - compacted + 1), total)
    return next((distance for distance in fitting if total % distance == 0), total)
