"""An Iceberg catalog on the simulated disk: the real ``IcebergTable`` and pyiceberg run over it.

What the sink assumes of a catalog, and what may happen there:

1. A commit replaces the pointer to the table's metadata if the table is as the commit's
   requirements say, else it meets a conflict. Of any number of writers, exactly one wins.
2. A commit may land and say that nobody knows, or that it met a conflict (a proxy has repeated a
   request that had landed). It may land later.
3. The table may be rolled back to an older state.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from weir.sim.engine.disk import Disk, DiskFile
from weir.sim.stores.faults import Network, Outcome
from weir.sim.stores.store import Store, lacks_of_tables
from weir.sinks.iceberg.sink import IcebergTable

NAME = ("shop", "out")
#: How many commits a roll-back undoes at most.
_BACK_MAX = 3


class _File(InputFile, OutputFile):
    """One file on the simulated disk, durable once it is written, as ``DurableFileIO`` makes it."""

    def __init__(self, disk: Disk, location: str) -> None:
        super().__init__(location)
        self._disk = disk

    def __len__(self) -> int:
        return len(self._disk.files[self.location])

    def exists(self) -> bool:
        """Whether it is there."""
        return self.location in self._disk.files

    def open(self, seekable: bool = True) -> Any:
        """The content. Raises ``FileNotFoundError``."""
        if self.location not in self._disk.files:
            raise FileNotFoundError(self.location)
        return io.BytesIO(self._disk.files[self.location])

    def create(self, overwrite: bool = False) -> Any:
        """A stream that writes the file when it is closed."""
        return DiskFile(self._disk, self.location, durable=True)

    def to_input_file(self) -> InputFile:
        """The file itself."""
        return self


class DiskIO(FileIO):
    """pyiceberg's file access on the simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__({})
        self._disk = disk

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _File(self._disk, location)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return _File(self._disk, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        self._disk.delete(location if isinstance(location, str) else location.location)


class IcebergCatalog(Store, NoopCatalog):
    """A catalog with at most one table, whose files are on the simulated disk."""

    def __init__(
        self, network: Network, disk: Disk, root: str, changed: Callable[[], object]
    ) -> None:
        """See ``Store``."""
        Store.__init__(self, network, disk, root, changed)
        NoopCatalog.__init__(self, "sim")
        self._io = DiskIO(disk)
        #: The states of the table, the newest last.
        self.states: list[TableMetadata] = []
        #: By snapshot, what ``files`` has found.
        self._files: dict[int, list[str]] = {}

    def sink(self) -> IcebergTable:
        """See ``Store``."""
        return IcebergTable("sim", ".".join(NAME))

    def attach(self, sink: Any) -> None:
        """See ``Store``."""
        sink.target._client = lambda *_, **__: self

    def rows(self) -> list[dict[str, Any]]:
        """See ``Store``; a file that is gone has no rows."""
        names = [path.removeprefix(f"{self._root}/") for path in self.files()]
        return [row for name in names for row in self.rows_in(name)]

    @classmethod
    def lacks(cls, sink: Any) -> str | None:
        """See ``Store``."""
        return "partitions" if sink._partition_by else lacks_of_tables(sink)

    def strike(self) -> str | None:
        """Roll the table back, if it has an older state."""
        back = min(self.network.random.randint(1, _BACK_MAX), len(self.states) - 1)
        if back < 1:
            return None
        del self.states[-back:]
        self.goes_back(lost=True)
        return "the table is rolled back"

    def load_table(self, identifier: Any) -> Table:
        """The table as it is now. Raises ``NoSuchTableError``."""
        self._ask("load the table")
        if not self.states:
            raise NoSuchTableError("Simulated: there is no table")
        self.network.travel()
        return self._table(self.states[-1])

    def namespace_exists(self, namespace: Any) -> bool:
        """Always True."""
        return True

    def create_table(  # type: ignore[override]
        self, identifier: Any, schema: Schema, *, partition_spec: PartitionSpec, properties: Any
    ) -> Table:
        """Create the table. Raises ``TableAlreadyExistsError``."""
        self._ask("create the table")
        if self.states:
            raise TableAlreadyExistsError("Simulated: the table exists")
        metadata = new_table_metadata(
            schema,
            partition_spec,
            UNSORTED_SORT_ORDER,
            self._root,
            dict(properties),
            # Payloads name it.
            UUID(int=self.network.random.getrandbits(128)),
        )
        self._put(metadata)
        return self._table(metadata)

    def create_table_transaction(self, identifier: Any, schema: Any, *_: Any, **__: Any) -> Any:
        """What a new table would look like."""
        metadata = new_table_metadata(
            schema, PartitionSpec(), UNSORTED_SORT_ORDER, self._root, {"format-version": "2"}
        )
        return SimpleNamespace(table_metadata=metadata)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Replace the table's state, if the requirements hold."""

        def land() -> TableMetadata:
            newest = self.states[-1]
            for requirement in requirements:
                requirement.validate(newest)
            self._put(update_table_metadata(newest, updates))
            self._changed()
            return self.states[-1]

        self.network.travel()
        outcome = self.network.outcome("a commit in the catalog")
        if outcome is Outcome.REFUSED:
            raise ServiceUnavailableError("Simulated: the catalog does not answer")
        if outcome is not Outcome.ANSWERED:
            # The catalog refuses a commit by either error.
            self.network.unanswered(outcome, land, CommitFailedException, ValueError)
            if outcome is Outcome.LATE:
                raise CommitStateUnknownException("Simulated: nobody knows")
            says = (CommitStateUnknownException, CommitFailedException)
            raise self.network.random.choice(says)("Simulated: the answer was lost")
        if self.network.others_commit():
            self._other_commit()
        metadata = land()
        self.network.travel()
        return _response(metadata, f"{self._root}/metadata/v")

    def _other_commit(self) -> None:
        """Somebody else adds a snapshot without rows."""
        table = Table(NAME, self.states[-1], f"{self._root}/metadata/v", self._io, _AtOnce(self))
        transaction = table.transaction()
        transaction.update_snapshot().fast_append().commit()
        transaction.commit_transaction()

    def _put(self, metadata: TableMetadata) -> None:
        """Point to a new state, whose file stands for all the metadata files."""
        self._disk.put(f"{self._root}/metadata/v", b"", durable=True)
        self.states.append(metadata)

    def _ask(self, what: str) -> None:
        self.network.travel()
        if self.network.outcome(what) is not Outcome.ANSWERED:
            raise ServiceUnavailableError("Simulated: the catalog does not answer")

    def _table(self, metadata: TableMetadata) -> Table:
        return Table(NAME, metadata, f"{self._root}/metadata/v", self._io, self)

    def files(self) -> list[str]:
        """The paths of the files that readers of the table see."""
        if not self.states or (snapshot := self.states[-1].current_snapshot()) is None:
            return []
        if snapshot.snapshot_id not in self._files:
            self._files[snapshot.snapshot_id] = [
                entry.data_file.file_path
                for manifest in snapshot.manifests(self._io)
                for entry in manifest.fetch_manifest_entry(self._io)
            ]
        return self._files[snapshot.snapshot_id]


class _AtOnce(NoopCatalog):
    """The catalog for somebody whose commits always land."""

    def __init__(self, catalog: IcebergCatalog) -> None:
        super().__init__("sim")
        self._catalog = catalog

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit."""
        self._catalog._put(update_table_metadata(self._catalog.states[-1], updates))
        return _response(self._catalog.states[-1], table.metadata_location)


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})
