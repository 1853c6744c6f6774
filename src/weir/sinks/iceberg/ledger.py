"""Weir's ledger in an Iceberg table: what was committed, in the table's properties.

Each commit sets one property, in the transaction that adds its snapshot::

    weir.commit.<job id>.<sink> = {"epoch": 41, "snapshot": "7312..", "sequence": 388, ...}

Snapshots have the same facts in their summaries, for people and tools. But snapshots expire, and an
epoch that nobody remembers would be committed twice. The property stays.

A table that was rolled back still has the property. So the ledger also says which snapshot was the
commit, and the table has gone back if that is no longer an ancestor of the current snapshot.

A marker file beside the table could not change with the table in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from weir.core.types import AbsolutePath, Count, JobId, OperatorId, Ordinal, Position, Timestamp
from weir.errors import SinkError
from weir.sinks.base import Commit, SinkContext
from weir.storage.records import converted, decoded

_PREFIX = "weir.commit."
#: Of how many attempts the ledger knows what they had committed; older ones are not cleaned.
_ATTEMPTS_MAX = 100


class Record(msgspec.Struct, kw_only=True):
    """The newest commit of one sink of one job."""

    job_id: JobId
    job_name: str
    #: Empty if unknown.
    job_directory: str
    sink: OperatorId
    epoch: Ordinal
    attempt: Count
    timestamp_ms: Timestamp
    #: The id of the snapshot; text, since it may exceed what JSON's readers take.
    snapshot: str = msgspec.field(default="")
    #: The sequence number of the snapshot.
    sequence: Count
    #: Attempts of this job and sink, each with the highest position that was committed of it.
    marks: list[tuple[Count, Position]] = []
    #: Attempts up to this number have no mark any more.
    forgotten: Count = 0

    def commit(self) -> Commit:
        """The commit, as the contract of sinks has it."""
        return Commit(
            timestamp_ms=self.timestamp_ms,
            job_id=self.job_id,
            job_name=self.job_name,
            job_directory=self.job_directory and converted(self.job_directory, AbsolutePath),
            sink=self.sink,
            checkpoint_id=self.epoch,
            attempt=self.attempt,
        )

    def mark(self, attempt: int) -> int | None:
        """The highest committed position of an attempt; -1 if there is none, None if forgotten."""
        known = dict(self.marks)
        return known.get(attempt, None if attempt <= self.forgotten else -1)


def key_of(context: SinkContext) -> str:
    """The property that has this sink's newest commit."""
    return f"{_PREFIX}{context.job_id}.{context.sink}"


def record_of(metadata: TableMetadata, context: SinkContext, *, place: str) -> Record | None:
    """This sink's newest commit; None if there is none. Raises ``SinkError`` if it is damaged."""
    text = metadata.properties.get(key_of(context))
    return None if text is None else _decoded(key_of(context), text, place)


def records(properties: Mapping[str, str], *, place: str) -> list[Record]:
    """The newest commit of each job and sink, newest first. Raises ``SinkError`` for damage."""
    found = [
        _decoded(key, text, place) for key, text in properties.items() if key.startswith(_PREFIX)
    ]
    return sorted(found, key=lambda record: (record.sequence, record.timestamp_ms), reverse=True)


def next_record(
    context: SinkContext,
    last: Record | None,
    *,
    epoch: int,
    snapshot_id: int,
    sequence: int,
    batches: Sequence[tuple[int, int]],
) -> Record:
    """The record of a commit after ``last``.

    ``batches`` are those of this job and sink in the commit, by attempt and position.
    """
    marks = {} if last is None else dict(last.marks)
    for attempt, position in batches:
        marks[attempt] = max(marks.get(attempt, -1), position)
    forgotten = 0 if last is None else last.forgotten
    for attempt in sorted(marks)[:-_ATTEMPTS_MAX]:
        del marks[attempt]
        forgotten = max(forgotten, attempt)
    return Record(
        job_id=context.job_id,
        job_name=context.job_name,
        job_directory=context.job_directory or "",
        sink=context.sink,
        epoch=epoch,
        attempt=context.attempt,
        timestamp_ms=context.kernel.wall_ms(),
        snapshot=str(snapshot_id),
        sequence=sequence,
        marks=sorted(marks.items()),
        forgotten=forgotten,
    )


def as_property(record: Record) -> str:
    """The text of the property."""
    return msgspec.json.encode(record).decode()


def summary(record: Record, *, joins: bool) -> dict[str, str]:
    """What the snapshot's summary says of the commit. ``joins``: as ``Commit.joins``."""
    return {
        "weir.joins": "true" if joins else "false",
        "weir.job-id": record.job_id,
        "weir.job-name": record.job_name,
        "weir.sink": record.sink,
        "weir.epoch": str(record.epoch),
        "weir.attempt": str(record.attempt),
        "weir.timestamp-ms": str(record.timestamp_ms),
        "weir.job-directory": record.job_directory,
    }


def has_gone_back(metadata: TableMetadata, record: Record) -> bool:
    """Whether the table is known to have lost the rows of a commit since.

    Rows that were deleted or rewritten by later snapshots are not lost in this sense. Sequence
    numbers grow along the history of the current snapshot. So the commit is lost if that history
    has an older snapshot but not the commit's, or if it begins with a newer one. Where snapshots
    have expired, the rest of the history is unknown.
    """
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return True
    while str(snapshot.snapshot_id) != record.snapshot:
        if (snapshot.sequence_number or 0) <= record.sequence:
            return True
        if snapshot.parent_snapshot_id is None:
            return _is_first(snapshot) and any(
                str(known.snapshot_id) == record.snapshot for known in metadata.snapshots
            )
        before = metadata.snapshot_by_id(snapshot.parent_snapshot_id)
        if before is None:
            return False
        snapshot = before
    return False


def _is_first(snapshot: Snapshot) -> bool:
    """Whether a snapshot without a parent was the first of its table.

    pyiceberg takes the parent away from a snapshot whose parent it expires.
    """
    summary = snapshot.summary
    said = {} if summary is None else summary.additional_properties
    total, added = said.get("total-data-files"), said.get("added-data-files", "0")
    return total == added and said.get("deleted-data-files", "0") == "0"


def _decoded(key: str, text: str, place: str) -> Record:
    try:
        record = decoded(text, Record)
        if key != f"{_PREFIX}{record.job_id}.{record.sink}" or not re.fullmatch(
            r"[0-9]{1,19}", record.snapshot
        ):
            raise ValueError("it names another job, sink or snapshot")
        record.commit()
    except ValueError as error:
        raise SinkError(
            f"The property {key!r} of {place} cannot be read ({error}): only Weir writes it, so"
            " restore the table's metadata, or write to a new table."
        ) from error
    return record
