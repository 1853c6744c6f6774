"""The log of a Delta table, and what delta-rs is to a process: the real sink runs over it.

What the sink assumes of delta-rs, and what may happen there:

1. Version N of the log is created if it is absent; it shows all of its actions, or nothing. A
   writer who finds it taken looks at what was written meanwhile, and takes the next version. If
   that has one of its own application transactions, the commit is refused.
2. The create may succeed, and say that it failed.
3. An entry is on disk only once it is synced, which delta-rs leaves to the system. A crash before
   that may leave it empty: delta-rs then reads a version without actions. (A part of it is refused,
   and left to the user.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
from deltalake.exceptions import CommitFailedError

from weir.sim.engine.disk import Disk
from weir.sim.stores.faults import Network, Outcome
from weir.sim.stores.store import Store, lacks_of_tables
from weir.sinks.commit_log import CommitLog, Entry
from weir.sinks.delta.client import DeltaClient
from weir.sinks.delta.log import TableLog
from weir.sinks.delta.log import _commit as commit_of
from weir.sinks.delta.sink import DeltaTable

#: How often delta-rs takes the next version.
_TRIES = 15


class Version(msgspec.Struct, frozen=True):
    """One entry of the log."""

    transactions: dict[str, int]
    #: Paths below the table's root.
    files: list[str]
    #: What the entry says of itself.
    info: dict[str, str]


class DeltaLog(Store):
    """The log of one table, whose files are on the simulated disk."""

    def __init__(
        self, network: Network, disk: Disk, root: str, changed: Callable[[], object]
    ) -> None:
        """See ``Store``."""
        super().__init__(network, disk, root, changed)
        self._directory = f"{root}/_delta_log"
        #: As the first version has them: the schema as JSON, and the partition columns.
        self.schema = ""
        self.partition_by: list[str] = []

    def sink(self) -> DeltaTable:
        """See ``Store``."""
        return DeltaTable(self._root)

    def attach(self, sink: Any) -> None:
        """See ``Store``."""
        super().attach(sink)
        sink._client = SimDeltaClient(self)

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """See ``Store``."""
        if sink.takes_updates:
            return "updates by key"
        return lacks_of_tables(sink)

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``; a file that is gone has no rows."""
        paths = [file for version in self.versions() for file in version.files]
        return [row for path in paths for row in self.rows_in(path)]

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        names = [name for name in self._disk.names(self._directory) if name.endswith(".json")]
        return [_decoded(self._disk.files[f"{self._directory}/{name}"]) for name in names]

    def create(self, number: int, version: Version, *, durable: bool = False) -> bool:
        """Create a version if it is the next; whether that was so."""
        if number != len(self.versions()):
            return False
        path = f"{self._directory}/{number:020}.json"
        self._disk.put(path, msgspec.json.encode(version), durable=durable)
        self._changed()
        return True

    def append(self, number: int, version: Version) -> None:
        """Create a version, as the first that is free. Raises ``CommitFailedError``."""
        for _ in range(_TRIES):
            self.network.travel()
            outcome = self.network.outcome("a version of the log")
            if outcome is Outcome.REFUSED:
                raise CommitFailedError("Simulated: the log cannot be written")
            if outcome is Outcome.LATE:
                self.network.later(lambda at=number: self.create(at, version))  # type: ignore[misc]
                raise CommitFailedError("Simulated: the log does not answer")
            if self.network.others_commit():
                self.create(len(self.versions()), Version({}, [], {}), durable=True)
            created = self.create(number, version)
            self.network.travel()
            if outcome is Outcome.ANSWER_LOST:
                raise CommitFailedError("Simulated: nobody knows whether the log was written")
            if created:
                return
            between = self.versions()[number:]
            if any(other.transactions.keys() & version.transactions.keys() for other in between):
                raise CommitFailedError("Simulated: a concurrent transaction")
            number += len(between)
        raise CommitFailedError("Simulated: too many concurrent writers")


class SimDeltaTable:
    """Stands in for ``deltalake.DeltaTable``: the table as of one version."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._versions: list[Version] = []
        self.update_incremental()

    def update_incremental(self) -> None:
        """Look at the newest version."""
        self._log.network.travel()
        if self._log.network.outcome("the log") is not Outcome.ANSWERED:
            raise OSError("Simulated: the log cannot be read")
        self._versions = self._log.versions()

    def version(self) -> int:
        """The number of the version."""
        return len(self._versions) - 1

    def transaction_version(self, name: str) -> int | None:
        """The version of an application transaction."""
        found = [
            version.transactions[name] for version in self._versions if name in version.transactions
        ]
        return found[-1] if found else None

    def schema(self) -> Any:
        """The table's schema."""
        return SimpleNamespace(to_json=lambda: self._log.schema)

    def metadata(self) -> Any:
        """The table's partitions; it has no properties."""
        return SimpleNamespace(partition_columns=self._log.partition_by, configuration={})

    def protocol(self) -> Any:
        """The features that writers need: none."""
        return SimpleNamespace(writer_features=None)

    def get_add_actions(self) -> Any:
        """The table's files."""
        files = [file for version in self._versions for file in version.files]
        return SimpleNamespace(column=lambda _: SimpleNamespace(to_pylist=lambda: files))

    def create_write_transaction(
        self, actions: Sequence[Any], *_: object, commit_properties: Any, **__: object
    ) -> None:
        """Append a version after that which this handle knows."""
        self._log.append(len(self._versions), _version(actions, commit_properties))


class SimDeltaClient(DeltaClient):
    """Stands in for delta-rs: every process finds the one table."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    def load(self, *_: object) -> Any:
        """The table, if it has a version."""
        return SimDeltaTable(self._log) if self._log.versions() else None

    def create_with_files(
        self,
        uri: str,
        schema: Any,
        partition_by: Sequence[str],
        options: object,
        *,
        files: Sequence[Any],
        properties: Any,
    ) -> None:
        """Create the first version. Raises ``CommitFailedError``."""
        version, network = _version(files, properties), self._log.network
        network.travel()
        if network.outcome("the first version") is not Outcome.ANSWERED:
            raise CommitFailedError("Simulated: the log cannot be written")
        if self._log.versions():
            raise CommitFailedError("Simulated: the table exists")
        self._log.schema, self._log.partition_by = schema.to_json(), list(partition_by)
        self._log.create(0, version)
        network.travel()

    def log(self, name: str, path: str, options: object, table: Any) -> TableLog:
        """The log, as ``TableLog`` reads it."""
        return _SimLog(self._log, table)


class _SimLog(TableLog):
    """The log of a table that is loaded, as the product reads it."""

    def __init__(self, log: DeltaLog, table: Any) -> None:
        CommitLog.__init__(self, "sim", "the table", "")
        self._table = table
        self.oldest = 0
        self._entries = {}
        self._log = log

    def _read(self, version: int) -> Entry:
        info = self._log.versions()[version].info
        commit = commit_of(msgspec.json.encode(info))
        return Entry(version=version, commit=commit, changes_data=True)


@cache
def _decoded(data: bytes) -> Version:
    try:
        return msgspec.json.decode(data, type=Version)
    except msgspec.DecodeError:
        return Version({}, [], {})


def _version(actions: Sequence[Any], properties: Any) -> Version:
    return Version(
        transactions={each.app_id: each.version for each in properties.app_transactions},
        files=[action.path for action in actions],
        info=dict(properties.custom_metadata),
    )
