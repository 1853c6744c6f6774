"""The snapshots of one Iceberg table, read for Weir's commits: which one shows which checkpoint.

They are the current snapshot of ``main`` and those before it, as far as they have not expired. What
a commit says of itself stands in its snapshot's summary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta
from pyiceberg.table.snapshots import Operation, Snapshot

from weir.core.types import AbsolutePath, JobId, OperatorId
from weir.errors import CutNotFoundError, SinkError, StorageError
from weir.sinks.base import Commit
from weir.sinks.commit_log import CommitLog, Entry
from weir.sinks.iceberg.ledger import has_gone_back, records
from weir.storage.paths import normalize
from weir.storage.records import converted

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from weir.sinks.iceberg.sink import IcebergTable

_EPOCH = "weir.epoch"


class _Summary(msgspec.Struct):
    job_id: JobId = msgspec.field(name="weir.job-id")
    job_name: str = msgspec.field(name="weir.job-name")
    job_directory: str = msgspec.field(name="weir.job-directory")
    sink: OperatorId = msgspec.field(name="weir.sink")
    epoch: Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,17}\Z")] = msgspec.field(name=_EPOCH)
    attempt: Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")] = msgspec.field(name="weir.attempt")
    timestamp_ms: Annotated[str, Meta(pattern=r"\A[0-9]{1,14}\Z")] = msgspec.field(
        name="weir.timestamp-ms"
    )
    joins: Literal["true", "false"] = msgspec.field(name="weir.joins", default="false")


class SnapshotLog(CommitLog):
    """The snapshots of one table as of the last ``look_again``."""

    def __init__(self, name: str, sink: IcebergTable) -> None:
        """Load the table.

        Raises ``CutNotFoundError`` if there is none, and ``StorageError`` if it cannot be read.
        """
        self._sink = sink
        self._has_expired = False
        self._table = self._loaded(f"table {name!r}, {sink.describe()}")
        super().__init__(
            name, f"table {name!r} ({sink.describe()})", normalize(self._table.location())
        )

    def look_again(self) -> None:
        """Load the table as it is now."""
        self._table = self._loaded(self.place)

    def entries(self) -> Iterator[Entry]:
        """All snapshots, newest first, back to where they have expired."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            yield self._entry(snapshot)
            before = snapshot.parent_snapshot_id
            snapshot = None if before is None else self._table.snapshot_by_id(before)
            self._has_expired = before is not None and snapshot is None

    def check_one_sink(self, job_id: str, job_name: str, sink: str) -> None:
        """Raise ``StorageError`` if another sink of the job has committed to the table.

        Also if the table has gone back since this sink's commit: a cut would lack its rows.
        """
        for record in records(self._table.properties, place=self.place):
            if record.job_id != job_id:
                continue
            if has_gone_back(self._table.metadata, record):
                raise StorageError(
                    f"{self.place[:1].upper()}{self.place[1:]} has gone back, though job"
                    f" {job_name!r} has committed checkpoint {record.epoch} there: the table was"
                    " rolled back, and rows are missing. Bring the newer state back, or read the"
                    " tables without it."
                )
            if record.sink != sink:
                raise StorageError(
                    f"Several sinks of job {job_name!r} write to {self.place} ({sink!r} and"
                    f" {record.sink!r}), so no snapshot of it belongs to a single checkpoint: give"
                    " each sink its own table."
                )

    def cleaned_up(self) -> str:
        """What to add to an error if older snapshots have expired."""
        if not self._has_expired:
            return ""
        return (
            f" (older snapshots of {self.place} have expired: they must reach back to the last"
            " common checkpoint)"
        )

    def _loaded(self, place: str) -> Table:
        try:
            table = self._sink.target.load()
        except SinkError as error:
            raise StorageError(str(error)) from error
        if table is None:
            raise CutNotFoundError(
                f"No Iceberg table found for {place}: check its name, or wait for the first batch,"
                " which creates it."
            )
        return table

    def _entry(self, snapshot: Snapshot) -> Entry:
        summary = snapshot.summary
        said = {} if summary is None else summary.additional_properties
        commit = None
        if _EPOCH in said:
            try:
                commit = _commit(converted(said, _Summary))
            except ValueError as error:
                raise StorageError(
                    f"Snapshot {snapshot.snapshot_id} of {self.place} cannot be read ({error}):"
                    " check the table and who writes to it."
                ) from error
        return Entry(
            version=snapshot.snapshot_id,
            commit=commit,
            changes_data=summary is None or summary.operation != Operation.REPLACE,
        )


def _commit(said: _Summary) -> Commit:
    return Commit(
        timestamp_ms=int(said.timestamp_ms),
        job_id=said.job_id,
        job_name=said.job_name,
        job_directory=said.job_directory and converted(said.job_directory, AbsolutePath),
        sink=said.sink,
        checkpoint_id=int(said.epoch),
        attempt=int(said.attempt),
        joins=said.joins == "true",
    )
