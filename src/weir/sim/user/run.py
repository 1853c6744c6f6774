"""Runs seeds of a user's pipeline: the runs in which nothing fails first, then those with faults.

What a job must show at the end is what it shows if nothing fails. A few *calm* runs find that out,
with different batches and parallelism. If they do not agree, the rows of a sink depend on how the
records are cut into batches, and only what was staged in the batches that count is compared with
what the sink shows.

A calm run over more records tells whether ``finish`` forgets rows: a row that an operator emits
only if more records follow was held back, and must be emitted at the end too.
"""

from __future__ import annotations

import random as global_random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from random import Random

from weir.core.settings import CheckpointConfig
from weir.core.types import OperatorId
from weir.errors import PipelineError
from weir.sim.engine.code import Code, RowLaws
from weir.sim.engine.faults import Fault
from weir.sim.engine.job import SimJob
from weir.sim.stores.audit import Ledger
from weir.sim.stores.placing import kind_of, patient
from weir.sim.user.code import UserCode, enumerators
from weir.sim.user.coordinators import splits_lost
from weir.sim.user.driver import Content, Draws, Traced, UserRun
from weir.sim.user.files import CrashingFiles, machine
from weir.sim.user.interleaving import Interleaving, interleaved
from weir.sim.user.loader import LoadJob, Pipeline
from weir.sim.world import RunResult, Stage, World

#: The numbers of records of each source.
_RECORDS = (11, 29)
#: Calm runs: rows of a batch, parallelism where none is given, and a seed.
_CALM = ((1, 1, 0), (4, 2, 1), (1_000, 3, 2))
#: The shares of interrupted statements.
_SHARES = (0.0, 0.01, 0.05, 0.2)
_PACES_US = (1, 10_000, 50_000)
#: The share of runs in which drivers are killed, of those in which the machine crashes, and of
#: those in which executors outlive their batches.
_KILLED = 0.7


@dataclass
class Simulated:
    """A pipeline with what its calm runs have shown."""

    pipeline: Pipeline
    #: By number of records: what the sinks show at the end.
    expected: dict[int, Content] = field(default_factory=dict)
    #: Sentences for the output.
    notes: list[str] = field(default_factory=list)
    #: A law that is broken without any fault.
    violation: str | None = None


def prepared(load: LoadJob, spec: str) -> Simulated:
    """The pipeline, once its calm runs are done.

    Raises ``PipelineError`` if the simulator cannot run it.
    """
    simulated = Simulated(Pipeline(load, spec))
    runs: dict[int, list[UserRun]] = {}
    contents: dict[int, list[Content]] = {}
    for records, (batch_rows, parallelism, seed) in product(_RECORDS, _CALM):
        draws = Draws(
            pipeline=simulated.pipeline,
            records=records,
            batch_rows=batch_rows,
            pace_us=1,
            share=0.0,
            expected={},
            random=Random(seed),
            parallelism=parallelism,
            calm=True,
        )
        stage = UserStage(draws)
        with stage.running(), closing(World(seed, seconds=0.2, stage=stage)) as world:
            result = world.run()
            if result.violation is not None:
                simulated.violation = f"without any fault: {result.violation}"
                return simulated
            assert stage.run is not None
            job = stage.run.load()
            contents.setdefault(records, []).append(stage.run.content(world.auditor.shown, job))
            runs.setdefault(records, []).append(stage.run)
            if not simulated.notes:
                simulated.notes = [*job.stand_ins, *_unread(stage.run)]
    for records in _RECORDS:
        first, *others = contents[records]
        same = {
            name: rows
            for name, rows in first.items()
            if all(other.get(name) == rows for other in others)
        }
        for name in first.keys() - same.keys():
            note = f"sink {name}: its rows depend on how records are cut into batches or ordered"
            if note not in simulated.notes:
                simulated.notes.append(note)
        simulated.expected[records] = same
    fewer, more = (runs[one][1].traced for one in _RECORDS)
    simulated.violation = _forgotten(fewer, more) or _lost_splits(runs[_RECORDS[0]][0])
    return simulated


def run_pipeline_seed(simulated: Simulated, seed: int) -> RunResult:
    """Run one seed of a pipeline."""
    random = Random(f"pipeline {seed}")
    records = random.choice(_RECORDS)
    draws = Draws(
        pipeline=simulated.pipeline,
        records=records,
        batch_rows=random.choice((1, 3, 10)),
        pace_us=random.choice(_PACES_US),
        share=random.choice(_SHARES),
        expected=simulated.expected[records],
        random=random,
    )
    stage = UserStage(draws)
    with stage.running(), closing(World(seed, seconds=3.0, stage=stage)) as world:
        return world.run()


class UserStage(Stage):
    """Implements ``weir.sim.world.Stage`` for one run of a pipeline."""

    def __init__(self, draws: Draws) -> None:
        self.calm = draws.calm
        self._draws = draws
        self._files: CrashingFiles | None = None
        self.run: UserRun | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have a fresh current directory, and chance that follows from the seed."""
        state = global_random.getstate()
        with tempfile.TemporaryDirectory(prefix="weir-sim-") as name, ExitStack() as stack:
            root, pins = Path(name).resolve() / "run", Path(name).resolve() / "pins"
            root.mkdir()
            pins.mkdir()
            self._files = CrashingFiles(root, pins)
            stack.enter_context(self._files.watched())
            stack.enter_context(machine(urandom=global_random.randbytes))
            stack.enter_context(chdir(root))
            yield
        global_random.setstate(state)

    def settings(self, job: SimJob) -> SimJob:
        """The settings of the run, without Weir's own vertices."""
        config = patient(job.config)
        if config.aligned_timeout_ms is not None:
            config = replace(config, max_concurrent_checkpoints=1)
        if self.calm:
            config = CheckpointConfig(interval_ms=50, timeout_ms=60_000)
        return replace(job, vertices=(), config=config, claims_snapshot=False)

    def rates(self, drawn: dict[Fault, float]) -> dict[Fault, float]:
        """More kills, crashes and late executors than in Weir's own jobs, which are far more."""
        if self.calm:
            return {}
        random = self._draws.random
        more = {
            one: random.uniform(100.0, 1_500.0)
            for one in (Fault.DRIVER_KILLED, Fault.MACHINE_CRASHED)
            if random.random() < _KILLED
        }
        if random.random() < _KILLED:
            more[Fault.LATE_WRITE] = random.random()
        return {**drawn, **more}

    def begin(self, world: World, settings: SimJob) -> tuple[Code, RowLaws]:
        """Make what all drivers of the run share."""
        assert self._files is not None
        self._files.tears = Random(f"tears {world.seed}")
        draws = self._draws
        interleaving = Interleaving(world.loop, Random(draws.random.random()), draws.share)
        ledger = Ledger(world.tell, world.auditor.broken, interleaving.undisturbed)
        self.run = UserRun(
            draws=draws,
            settings=settings,
            ledger=ledger,
            interleaving=interleaving,
            disk=world.disk,
        )
        sinks = self.run.load().steps.sinks
        at_stores = [name for name, sink in sinks.items() if kind_of(sink) is not None]
        if at_stores:
            self.run.stores = world.open_stores(at_stores, ledger)
        return UserCode(self.run), self.run

    def interleaved(self) -> AbstractContextManager[None]:
        """Interrupt the user's code while the world runs."""
        assert self.run is not None
        return interleaved(self.run.interleaving)

    def crashed(self, random: Random, repeated: set[int]) -> None:
        """Lose what was not synced."""
        assert self.run is not None and self._files is not None
        self.run.ledger.crashed(repeated, self._files.crash(random))


def _unread(run: UserRun) -> list[str]:
    job = run.load()
    return [
        f"sink {name}: nobody reads its target (job.simulation(visible=...) is not given)"
        for name, sink in job.steps.sinks.items()
        if kind_of(sink) is None and run.visible(job, name) is None
    ]


def _forgotten(fewer: dict[OperatorId, Traced], more: dict[OperatorId, Traced]) -> str | None:
    """Whether an operator emits a record only if more of them follow."""
    for name, traced in fewer.items():
        for column, values in traced.given.items():
            later = more[name]
            if column not in later.emitted or not _distinct(values):
                continue
            through = later.emitted[column]
            known = set(map(repr, later.given.get(column, ())))
            # Only of a column in which each record comes through once.
            if not (_distinct(through) and known.issuperset(map(repr, through))):
                continue
            if len(known) != len(later.given.get(column, ())):
                continue
            emitted = Counter(map(repr, traced.emitted.get(column, [])))
            would = Counter(map(repr, later.emitted[column]))
            held = [one for one in values if would[repr(one)] > emitted[repr(one)]]
            if held:
                return (
                    f"operator {name!r}: finish must emit what was held back, but {len(held)}"
                    f" records, such as the one with {column} = {held[0]!r}, are emitted only if"
                    " more records follow"
                )
    return None


def _distinct(values: list[object]) -> bool:
    return len(set(map(repr, values))) == len(values)


def _lost_splits(run: UserRun) -> str | None:
    """Whether an enumerator forgets splits that it gets back."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        try:
            for source, coordinator in enumerators(run.load()).items():
                wrong = splits_lost(source, coordinator.source)
                if wrong is not None:
                    return wrong
        except Exception as error:
            raise PipelineError(f"An enumerator cannot be simulated: {error}") from error
    return None
