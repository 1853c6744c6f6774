"""The targets of simulated runs: the product's sinks over each, and what readers see there."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from weir.sim.engine.disk import Disk
from weir.sim.stores.delta import DeltaLog, DeltaTableOverLog
from weir.sim.stores.faults import Network
from weir.sim.stores.frame import rows_of
from weir.sim.stores.iceberg import IcebergCatalog, IcebergTableInCatalog
from weir.sim.stores.postgres import PostgresTableAtServer, Server
from weir.sinks.base import Sink
from weir.sinks.files.sink import Files

ROOT = "/target"


class Kind(enum.Enum):
    """The sink of a run."""

    POSTGRES = "PostgresTable"
    FILES = "Files"
    DELTA = "DeltaTable"
    ICEBERG = "IcebergTable"

    @property
    def weight(self) -> int:
        """How often a seed draws it, beside the others."""
        weights = {Kind.POSTGRES: 4, Kind.FILES: 3, Kind.DELTA: 2}
        return weights.get(self, 1)


class StoreTarget(Protocol):
    """A target of one run."""

    #: Whether it has gone back to an older state, which a sink may have to report.
    has_gone_back: bool
    #: Whether rows that readers saw went with that.
    has_lost_rows: bool

    @property
    def age(self) -> int:
        """How often it has gone back; 0 where ``held`` does not say what it holds."""
        ...

    def held(self) -> set[int] | None:
        """The rows that it shows or will show once they are committed; None if a disk has them."""
        ...

    def sink(self) -> Sink:
        """The sink of a new driver."""
        ...

    def rows(self) -> list[int]:
        """What readers see."""
        ...

    def sessions(self, before: int) -> set[object]:
        """The sessions of attempts before the given attempt."""
        ...

    def strike(self) -> None:
        """Something happens to the store itself."""
        ...


class PostgresTarget:
    """A table on a PostgreSQL server. Half of what strikes it is a standby that lags behind."""

    def __init__(self, network: Network, committed: Callable[[], object]) -> None:
        self.server = Server(network, committed)
        self._network = network
        self.has_gone_back = self.has_lost_rows = False

    def sink(self) -> Sink:
        """See ``StoreTarget``."""
        return PostgresTableAtServer(self.server, "host=db dbname=shop", "out")

    def rows(self) -> list[int]:
        """See ``StoreTarget``."""
        return list(self.server.database.target)

    @property
    def age(self) -> int:
        """See ``StoreTarget``."""
        return self.server.takeovers

    def held(self) -> set[int]:
        """See ``StoreTarget``."""
        database = self.server.database
        staged = [row for rows in database.staging.values() for _, row in rows]
        return {*database.target, *staged}

    def sessions(self, before: int) -> set[object]:
        """See ``StoreTarget``."""
        return {session for session in self.server.live() if 0 < _number(session.name) < before}

    def strike(self) -> None:
        """Restart the server, or let an older state take over."""
        if self._network.random.random() < 0.5:
            self._network.tell("FAULT the server restarts")
            self.server.restart()
            return
        self._network.tell("FAULT a standby that lagged behind takes over")
        self.has_gone_back = True
        self.has_lost_rows |= self.server.fail_over()


def _number(session: str) -> int:
    """The attempt in a session's name; 0 if there is none."""
    number = session.rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


class _OnDisk:
    """What targets on the simulated disk have in common: it has faults of its own."""

    age = 0

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.has_gone_back = self.has_lost_rows = False

    def sessions(self, before: int) -> set[object]:
        """See ``StoreTarget``."""
        return set()

    def held(self) -> None:
        """See ``StoreTarget``."""

    def strike(self) -> None:
        """See ``StoreTarget``."""


class FilesTarget(_OnDisk):
    """A directory of JSON files on the simulated disk."""

    def sink(self) -> Sink:
        """See ``StoreTarget``."""
        return Files(ROOT, format="json")

    def rows(self) -> list[int]:
        """See ``StoreTarget``."""
        return [
            row
            for path in self._disk.below(ROOT)
            if not path.startswith(f"{ROOT}/_")
            for row in rows_of(self._disk.files[path])
        ]


class DeltaTarget(_OnDisk):
    """A Delta table on the simulated disk; its log has faults of its own, too."""

    def __init__(self, network: Network, disk: Disk, committed: Callable[[], object]) -> None:
        super().__init__(disk)
        self._log = DeltaLog(network, disk, ROOT, committed)

    def sink(self) -> Sink:
        """See ``StoreTarget``."""
        return DeltaTableOverLog(ROOT, self._log)

    def rows(self) -> list[int]:
        """See ``StoreTarget``; a file that is gone has no rows."""
        paths = [f"{ROOT}/{file}" for version in self._log.versions() for file in version.files]
        return [row for path in paths for row in rows_of(self._disk.files.get(path, b""))]


class IcebergTarget:
    """An Iceberg table on the simulated disk, which may be rolled back."""

    age = 0

    def __init__(self, network: Network, disk: Disk, committed: Callable[[], object]) -> None:
        self.catalog = IcebergCatalog(network, disk, ROOT, committed)
        self._network = network
        self._disk = disk
        self.has_gone_back = self.has_lost_rows = False

    def sink(self) -> Sink:
        """See ``StoreTarget``."""
        return IcebergTableInCatalog(self.catalog)

    def rows(self) -> list[int]:
        """See ``StoreTarget``; a file that is gone has no rows."""
        paths = self.catalog.files()
        return [row for path in paths for row in rows_of(self._disk.files.get(path, b""))]

    def sessions(self, before: int) -> set[object]:
        """See ``StoreTarget``."""
        return set()

    def held(self) -> None:
        """See ``StoreTarget``."""

    def strike(self) -> None:
        """Roll the table back."""
        if self.catalog.roll_back():
            self._network.tell("FAULT the table is rolled back")
            self.has_gone_back = self.has_lost_rows = True


def new_target(
    kind: Kind, network: Network, disk: Disk, committed: Callable[[], object]
) -> StoreTarget:
    """The target of a run. ``committed`` is called whenever its rows may have changed."""
    if kind is Kind.POSTGRES:
        return PostgresTarget(network, committed)
    if kind is Kind.DELTA:
        return DeltaTarget(network, disk, committed)
    if kind is Kind.ICEBERG:
        return IcebergTarget(network, disk, committed)
    return FilesTarget(disk)
