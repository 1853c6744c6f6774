"""The stores of one run: which job gets which, and what strikes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

from weir.core.settings import CheckpointConfig
from weir.core.types import JobId, OperatorId
from weir.kernel import Kernel
from weir.sim.engine.disk import Disk
from weir.sim.engine.job import SimJob
from weir.sim.engine.loop import Loop
from weir.sim.stores.audit import Ledger, StoreSink
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.store import Store
from weir.sinks.base import Sink
from weir.storage.filesystem import FileSystem

#: Gets sink, job, epoch and attempt of each commit that begins.
Commits = Callable[[OperatorId, JobId, int, int], None]

#: By the name of the product's sink, the class of its store. Loaded when needed: the clients'
#: libraries take a while.
KINDS: Mapping[str, str] = {
    "PostgresTable": "postgres.Server",
    "Files": "files.Directory",
    "DeltaTable": "delta.DeltaLog",
    "IcebergTable": "iceberg.IcebergCatalog",
}
_WEIGHTS = (4, 3, 2, 1)
#: The root of all stores on the simulated disk.
ROOT = "/stores"
#: Where the records of a job are if they are in an object store.
BUCKET = "s3://weir"

#: The shares of jobs that have stores, of their other tables that are in one too, and of those
#: whose records are in an object store.
_SHARE = 0.2
_ALSO = 0.3
_IN_BUCKET = 0.6
#: A checkpoint takes that many requests that it needs some time.
_TIMEOUT_MS_MIN = 5_000
#: The mean times between two strikes at a store, in virtual microseconds.
STRIKES_US = (40_000.0, 200_000.0, 1_000_000.0)


@cache
def has_clients() -> bool:
    """Whether the extras ``objectstore``, ``postgres`` and ``iceberg`` are installed."""
    return all(find_spec(name) for name in ("obstore", "psycopg", "pyiceberg", "sqlalchemy"))


def with_stores(job: SimJob, random: Random, kind: str | None) -> SimJob:
    """Put some tables of a job into stores. ``kind``: of the first table; None: the seed decides.

    Without the clients no seed has a store.
    """
    drawn = random.random() < _SHARE
    (chosen,) = random.choices(list(KINDS), weights=_WEIGHTS)
    tables = [vertex.sinks[0] for vertex in job.vertices if vertex.sinks]
    if not tables or not has_clients() or (kind is None and not drawn):
        return job
    first, *others = tables
    also = [name for name in others if random.random() < _ALSO][:1]
    return replace(
        job,
        stores=dict.fromkeys([first, *also], kind or chosen),
        bucket=BUCKET if random.random() < _IN_BUCKET else "",
        config=patient(job.config),
    )


def patient(config: CheckpointConfig) -> CheckpointConfig:
    """The settings of a job with stores."""
    return replace(config, timeout_ms=max(_TIMEOUT_MS_MIN, config.timeout_ms))


class Stores:
    """The stores of one run."""

    def __init__(
        self,
        *,
        loop: Loop,
        disk: Disk,
        random: Random,
        until_us: int,
        ledger: Ledger,
        tell: Callable[[str], None],
        calm: bool = False,
    ) -> None:
        """``tell`` gets each fault. ``calm``: there are none."""
        self.ledger = ledger
        self.network = Network(loop, random, _rates(random, 0 if calm else until_us), tell)
        self.by_sink: dict[OperatorId, Store] = {}
        self._disk = disk
        self._sinks: dict[OperatorId, StoreSink] = {}
        self._bucket: Any = None

    def connect(self, kernel: Kernel) -> FileSystem:
        """The object store as one driver sees it."""
        from weir.sim.stores.bucket import Bucket, SimObjectStore

        self._bucket = self._bucket or Bucket(self.network, self._disk, BUCKET)
        return SimObjectStore(BUCKET, self._bucket, kernel)

    def store(self, name: OperatorId, kind: str) -> Store:
        """The store of a sink."""
        if name not in self.by_sink:
            module, _, of_kind = KINDS[kind].partition(".")
            made = getattr(import_module(f"weir.sim.stores.{module}"), of_kind)
            root = f"{ROOT}/{name}"
            self.by_sink[name] = made(self.network, self._disk, root, partial(self._look, name))
        return self.by_sink[name]

    def sink(
        self,
        name: OperatorId,
        kind: str,
        own: Sink | None,
        *,
        fails: Callable[[], bool],
        commits: Commits,
    ) -> StoreSink:
        """What a driver calls: ``own``, or a sink of the product's, over its store."""
        store = self.store(name, kind)
        sink = own or store.sink()
        store.attach(sink)
        self._sinks[name] = StoreSink(
            name,
            sink,
            store=store,
            ledger=self.ledger,
            fails=fails,
            commits=partial(commits, name),
        )
        return self._sinks[name]

    def shown(self, name: OperatorId) -> list[dict[str, Any]] | None:
        """The rows that a store shows; None if nobody knows what it should show."""
        store = self.by_sink[name]
        return None if store.is_excused else store.rows()

    @property
    def noticed(self) -> bool:
        """Whether the job has said that a store has lost rows: it cannot go on."""
        return any(store.noticed for store in self.by_sink.values())

    def strike(self) -> None:
        """Something happens to one of the stores."""
        if not self.by_sink:
            return
        name = self.network.random.choice(list(self.by_sink))
        if (what := self.by_sink[name].strike()) is not None:
            self.network.tell(f"FAULT {what}, of {name}")

    def _look(self, name: OperatorId) -> None:
        if name in self._sinks:
            self._sinks[name].look()


def _rates(random: Random, until_us: int) -> Rates:
    def drawn(most: float) -> float:
        return random.choice((0.0, most / 10, most))

    return Rates(
        refused=drawn(0.05),
        answer_lost=drawn(0.1),
        late=drawn(0.05),
        slow=drawn(0.05),
        others=drawn(0.3),
        until_us=until_us,
    )
