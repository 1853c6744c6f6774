"""A table with a transaction log, as a sink: a small Delta on the simulated disk.

::

    <root>/staged/<job id[:8]>-<sink>-<attempt>/<position>   the rows of one batch, JSON
    <root>/log/<version>                                     transactions so far, visible files
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from weir.core.types import JobId, OperatorId, Payload
from weir.errors import SinkError, invariant
from weir.sim.engine.disk import ProcessFileSystem
from weir.sinks.base import Batch, Commit, Sink, SinkContext
from weir.sinks.staging import damaged_file, dead_attempts, staging_prefix
from weir.storage.filesystem import CreateResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COMMIT_TRIES = 4

#: What an executor writes that outlives its query. No table may ever show it.
LATE_ROWS = b"[-1]"


class TableVersion(msgspec.Struct, frozen=True):
    """One entry of the log: the whole state of the table."""

    #: The newest epoch of each ``<job id>/<sink>``.
    transactions: dict[str, int]
    #: Paths of the visible files, in the order of their commits.
    files: list[str]
    #: The job that wrote this version.
    job_id: str = ""
    #: Where the job whose driver wrote it keeps its records.
    job_directory: str = ""
    epoch: int = 0
    attempt: int = 0


class EmptyEpoch(NamedTuple):
    """An epoch that a job has committed to a table without rows."""

    root: str
    job_id: JobId
    sink: OperatorId
    epoch: int


class SimTable(Sink):
    """Implements ``weir.sinks.base.Sink``. The frame of a batch is a list of rows."""

    def __init__(
        self,
        root: str,
        file_system: ProcessFileSystem,
        *,
        fails: Callable[[], bool] = lambda: False,
        empty: set[EmptyEpoch] | None = None,
    ) -> None:
        """Open a table. ``fails`` decides whether a commit fails before it has done anything.

        ``empty``: the epochs that were committed without rows, by any driver.
        """
        self._empty = set() if empty is None else empty
        self.root = root
        self._fs = file_system
        self._fails = fails
        file_system.provide_directory(f"{root}/log")
        self._opened: SinkContext | None = None
        self._closed = False
        self._held_back: list[Any] = []

    def describe(self) -> str:
        """The kind and location of the table."""
        return f"SimTable({self.root!r})"

    def check(self, context: SinkContext) -> None:
        """Do nothing: there is nothing to check."""

    def open(self, context: SinkContext) -> None:
        """Begin the attempt."""
        self._opened = context
        self._closed = False
        self._held_back = []

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Write the rows to a file that no reader sees."""
        rows: Any = frame
        if not rows:
            return None
        path, data = self.staged_path(batch.batch_id), msgspec.json.encode(rows)
        self._fs.put(path, data)
        file = path.removeprefix(f"{self.root}/")
        return {"file": file, "size": len(data), "rows": len(rows), "flushed": False}

    def hold_back(self, rows: list[Any]) -> None:
        """Keep rows that ``finish`` stages."""
        self._held_back = rows

    def finish(self, batch: Batch) -> Payload | None:
        """Stage what was held back (MISSION E2)."""
        rows: Any = self._held_back
        self._held_back = []
        return self.stage(rows, batch)

    def staged_path(self, batch_id: int) -> str:
        """The file with the rows of a batch of this attempt."""
        return f"{self._staged(self._context.attempt)}/{batch_id}"

    def close(self) -> None:
        """Close the table: nothing may be staged or committed after this (PROTOCOL P37)."""
        self._closed = True

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Sync the staged files."""
        invariant(not self._closed, f"{self.describe()} is flushed after it was closed")
        self._fs.sync([self._path(payload) for payload in payloads if not payload["flushed"]])
        return [{**payload, "flushed": True} for payload in payloads]

    def staged_files(self, payload: Payload) -> list[str]:
        """The one file of a payload."""
        return [self._path(payload)]

    def damaged(self, payload: Payload) -> str | None:
        """Whether the payload's file is gone or has another size."""
        return damaged_file(self._fs, {self._path(payload): payload["size"]})

    def landmark(self) -> str:
        """The log, which every commit with rows makes longer."""
        return f"{self.root}/log"

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Add the files in one transaction, unless the table has that epoch."""
        invariant(not self._closed, f"{self.describe()} commits after it was closed")
        key = EmptyEpoch(self.root, self._context.job_id, self._context.sink, epoch)
        if not payloads:
            self._empty.add(key)
            return 0
        # A sink may keep a ledger of all epochs, and ignore what it has there.
        invariant(key not in self._empty, f"{self.describe()} has committed {epoch} without rows")
        if self._fails():
            raise SinkError(f"Simulated: {self.describe()} rejects the commit.")
        for _ in range(_COMMIT_TRIES):
            number, version = self._newest()
            if version.transactions.get(self._transaction, 0) >= epoch:
                return 0
            for payload in payloads:
                if self._fs.status(self._path(payload)) is None:
                    raise SinkError(f"{self.describe()} lacks {payload['file']} of epoch {epoch}.")
            following = TableVersion(
                transactions={**version.transactions, self._transaction: epoch},
                files=[*version.files, *map(self._path, payloads)],
                job_id=self._context.job_id,
                job_directory=self._context.job_directory or "",
                epoch=epoch,
                attempt=self._context.attempt,
            )
            path = f"{self.root}/log/{number + 1:08d}"
            if self._fs.create(path, msgspec.json.encode(following)) is CreateResult.CREATED:
                return sum(payload["rows"] for payload in payloads)
        raise SinkError(f"{self.describe()} has too many concurrent writers.")

    def newest_committed(self) -> int | None:
        """The newest epoch of this job."""
        return self._newest()[1].transactions.get(self._transaction)

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """Every version of the log, newest first."""
        names = [entry.name for entry in self._fs.list(f"{self.root}/log")]
        for name in reversed(names):
            version = msgspec.json.decode(
                self._fs.read(f"{self.root}/log/{name}"), type=TableVersion
            )
            yield Commit(
                timestamp_ms=int(name),
                job_id=version.job_id,
                job_name=context.job_name,
                job_directory=version.job_directory,
                sink=context.sink,
                checkpoint_id=version.epoch,
                attempt=version.attempt,
            )

    def clean(self, attempt: int) -> None:
        """Delete files that earlier attempts staged and that were never committed."""
        base, prefix = f"{self.root}/staged", staging_prefix(self._context)
        for directory in dead_attempts(self._fs, base, prefix, attempt):
            path = f"{base}/{directory}"
            committed = {file for file in self._newest()[1].files if file.startswith(f"{path}/")}
            if not committed:
                self._fs.delete(path)
                continue
            for entry in self._fs.list(path):
                if f"{path}/{entry.name}" not in committed:
                    self._fs.delete(f"{path}/{entry.name}")

    def _newest(self) -> tuple[int, TableVersion]:
        names = [entry.name for entry in self._fs.list(f"{self.root}/log")]
        if not names:
            return 0, TableVersion(transactions={}, files=[])
        data = self._fs.read(f"{self.root}/log/{names[-1]}")
        return int(names[-1]), msgspec.json.decode(data, type=TableVersion)

    def _path(self, payload: Payload) -> str:
        return f"{self.root}/{payload['file']}"

    def _staged(self, attempt: int) -> str:
        return f"{self.root}/staged/{staging_prefix(self._context)}-{attempt}"

    @property
    def _context(self) -> SinkContext:
        assert self._opened is not None
        return self._opened

    @property
    def _transaction(self) -> str:
        return f"{self._context.job_id}/{self._context.sink}"
