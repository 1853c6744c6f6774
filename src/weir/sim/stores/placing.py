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
from weir.sim.engine.code import Environment
from weir.sim.engine.disk import Disk
from weir.sim.engine.faults import TIMED, Fault
from weir.sim.engine.job import SimJob
from weir.sim.engine.loop import Loop
from weir.sim.stores.audit import Ledger, StoreSink, shaped
from weir.sim.stores.faults import Network, Rates
from weir.sim.stores.frame import Executors, SimSession
from weir.sim.stores.store import Store
from weir.sinks.base import Sink
from weir.sinks.files.sink import Files
from weir.storage.filesystem import FileSystem

#: By the name of the product's sink, the class of its store. Loaded when needed: the clients'
#: libraries take a while.
KINDS: Mapping[str, str] = {
    "PostgresTable": "postgres.Server",
    "Files": "files.Directory",
    "DeltaTable": "delta.DeltaLog",
    "IcebergTable": "iceberg.IcebergCatalog",
    "ForeachEpoch": "files.Calls",
    "ForeachBatch": "files.BatchCalls",
    "KafkaTopic": "kafka.Cluster",
}
#: How often seeds draw each; ``ForeachBatch`` is only in pipelines of users.
_WEIGHTS = (4, 3, 2, 1, 1, 0, 3)
#: The root of all stores on the simulated disk.
ROOT = "/stores"
#: Where the records of a job are if they are in an object store.
BUCKET = "s3://weir"

#: The shares of jobs that have stores, of their other tables that are in one too, and of those
#: whose records are in an object store.
_SHARE = 0.125
_ALSO = 0.3
_IN_BUCKET = 0.6
#: Such jobs commit often, and for long: the intervals of their checkpoints, and the paces of their
#: sources.
_INTERVALS_MS = (20, 50, 100)
_PACES_US = (10_000, 40_000, 100_000)
#: A checkpoint takes so many requests that it needs some time.
_TIMEOUT_MS_MIN = 5_000
#: The share of jobs in which a fault is more frequent, and the mean times between two.
_MORE_FAULTS = 0.5
_FAULTS_MS = (300.0, 1_000.0, 3_000.0)
#: Kills, crashes, pauses and second drivers.
_FREQUENT = TIMED[:4]
#: The mean times between two strikes at a store, in virtual microseconds.
STRIKES_US = (200_000.0, 1_000_000.0, 5_000_000.0)


def kind_of(sink: Sink) -> str | None:
    """The kind of store that a sink of the product's needs; None for a sink of the user's."""
    name = type(sink).__name__
    return name if type(sink).__module__.startswith("weir.sinks.") and name in KINDS else None


def shown_by_a_store(sink: Sink) -> tuple[Sink, str | None]:
    """A sink that a store can show, and what is not simulated of the given sink.

    What no store shows is appended to files instead.
    """
    kind = kind_of(sink)
    lacking = None if kind is None else class_of(kind).lacks(sink)
    return (sink, None) if lacking is None else (Files("/files", format="json"), lacking)


def class_of(kind: str) -> type[Store]:
    """The store of a kind of sink."""
    module, _, name = KINDS[kind].partition(".")
    found: type[Store] = getattr(import_module(f"weir.sim.stores.{module}"), name)
    return found


@cache
def has_clients() -> bool:
    """Whether the extras of the product's sinks and of the object store are installed."""
    names = ("obstore", "psycopg", "pyiceberg", "sqlalchemy", "confluent_kafka")
    return all(map(find_spec, names))


def with_stores(job: SimJob, random: Random, kind: str | None) -> SimJob:
    """Put some tables of a job into stores.

    ``kind``: of the first table, in a job that reads no channels; None: the seed decides. Without
    the clients no seed has a store.
    """
    if kind is not None:
        job = replace(job, vertices=[one for one in job.vertices if not one.inputs][:2])
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
        vertices=[replace(one, pace_us=random.choice(_PACES_US)) for one in job.vertices],
        config=replace(patient(job.config), interval_ms=random.choice(_INTERVALS_MS)),
    )


def patient(config: CheckpointConfig) -> CheckpointConfig:
    """The settings of a job with stores."""
    return replace(config, timeout_ms=max(_TIMEOUT_MS_MIN, config.timeout_ms))


def more_faults(random: Random) -> dict[Fault, float]:
    """More frequent kills, crashes and second drivers than in other jobs: commits are rare."""
    more = (fault for fault in _FREQUENT if random.random() < _MORE_FAULTS)
    return {fault: random.choice(_FAULTS_MS) for fault in more}


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
        commits: Callable[[OperatorId, JobId, int, int], None],
    ) -> None:
        """Faults strike until ``until_us``, and ``tell`` gets each.

        ``commits`` gets sink, job, epoch and attempt of each commit that begins.
        """
        self.ledger = ledger
        self._commits = commits
        self.network = Network(loop, random, _rates(random, until_us), tell)
        self.by_sink: dict[OperatorId, Store] = {}
        self._disk = disk
        self._sinks: dict[OperatorId, StoreSink] = {}
        self._bucket: Any = None

    def connect(self, kernel: Kernel) -> FileSystem:
        """The object store as one driver sees it."""
        from weir.sim.stores.bucket import Bucket, SimObjectStore

        self._bucket = self._bucket or Bucket(self.network, self._disk, BUCKET)
        return SimObjectStore(BUCKET, self._bucket, kernel)

    def session(self) -> SimSession:
        """What sinks get for a Spark session."""
        return SimSession(self._disk)

    def sink(
        self,
        name: OperatorId,
        kind: str,
        environment: Environment,
        *,
        own: Sink | None = None,
        schema: Any = None,
    ) -> StoreSink:
        """What a driver calls: ``own``, or a sink of the product's, over its store.

        ``schema``: the rows' Arrow schema; None: they are numbers.
        """
        if name not in self.by_sink:
            self.by_sink[name] = class_of(kind)(
                self.network, self._disk, f"{ROOT}/{name}", partial(self._look, name)
            )
        store = self.by_sink[name]
        if schema is not None:
            store.declare(schema)
        sink = own or store.sink()
        store.attach(sink)
        self._sinks[name] = StoreSink(
            name,
            sink,
            store=store,
            ledger=self.ledger,
            fails=environment.strikes[Fault.COMMIT_FAILED],
            executors=Executors(self.network, environment.executors),
            commits=partial(self._commits, name),
        )
        return self._sinks[name]

    def shown(self, name: OperatorId) -> list[dict[str, Any]] | None:
        """The rows that a store shows; None if nobody knows what it should show."""
        store = self.by_sink[name]
        return None if store.is_excused else store.rows()

    def shows_beyond(self, job_id: JobId, epoch: int) -> bool:
        """Whether readers see rows of a later epoch of a job."""
        for name, store in self.by_sink.items():
            shown = {shaped(row, named=True) for row in store.rows()}
            later = self.ledger.beyond(name, job_id, epoch)
            if any(shaped(row, named=True) in shown for row in later):
                return True
        return False

    @property
    def noticed(self) -> bool:
        """Whether the job has said that a store has lost rows: it cannot go on."""
        return any(store.noticed for store in self.by_sink.values())

    def strike(self) -> bool:
        """Something happens to one of the stores; whether it did."""
        name = self.network.random.choice(list(self.by_sink))
        if (what := self.by_sink[name].strike()) is not None:
            self.ledger.tell(f"FAULT {what}, of {name}")
        return what is not None

    def _look(self, name: OperatorId) -> None:
        self._sinks[name].look()


def _rates(random: Random, until_us: int) -> Rates:
    def drawn(most: float) -> float:
        return random.choice((0.0, most / 10, most))

    return Rates(
        refused=drawn(0.03),
        answer_lost=drawn(0.05),
        late=drawn(0.03),
        slow=drawn(0.01),
        others=drawn(0.3),
        until_us=until_us,
    )
