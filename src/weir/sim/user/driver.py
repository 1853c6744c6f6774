"""What all drivers of a run of a user's job share, and what each of them loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from weir.core.graph import MAIN_OUTPUT, GraphStep
from weir.core.task.plan import TaskPlan
from weir.core.types import CompletedCheckpoint, OperatorId
from weir.definition import task_plan
from weir.job import definition_of
from weir.operators.base import Operator
from weir.sim.engine.code import Environment, Shown
from weir.sim.engine.disk import Disk
from weir.sim.engine.faults import Fault
from weir.sim.engine.job import SimJob
from weir.sim.stores.audit import AuditedSink, Ledger, Shape, difference, shaped
from weir.sim.stores.placing import Stores, kind_of
from weir.sim.user.coordinators import changed_by_restore
from weir.sim.user.interleaving import Interleaving
from weir.sim.user.loader import Pipeline
from weir.sim.user.plan import REJECTS_MAX, Rows, UserJob, planned
from weir.sim.user.subtasks import Workers
from weir.sinks.base import Sink
from weir.sources.operator import SourceOperator
from weir.subtasks.chain import ProcessStep, process_steps
from weir.subtasks.worker import SubtaskFunction, key_columns

#: How many coordinators' states of a run are restored and compared.
_MOST_RESTORED = 6

#: The rows that each sink shows at the end.
Content = dict[OperatorId, Counter[Shape]]


@dataclass
class Traced:
    """The values that went into a step of a run, and those that came out, by column."""

    given: dict[str, list[Any]] = field(default_factory=dict)
    emitted: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What distinguishes one run of a pipeline from others."""

    pipeline: Pipeline
    #: Of each source.
    records: int
    #: The most rows of a source in one batch.
    batch_rows: int
    #: The longest time in which a row lands, in virtual microseconds.
    pace_us: int
    #: The probability that a statement of the user's code is interrupted.
    share: float
    #: What the sinks must show; of those that it lacks, nothing is known.
    expected: Content
    random: Random
    #: The parallelism of operators that do not say theirs, in every driver; None: each draws its
    #: own.
    parallelism: int | None = None
    #: Nothing fails.
    calm: bool = False


@dataclass(kw_only=True)
class UserRun:
    """What all drivers of one run share."""

    draws: Draws
    settings: SimJob
    ledger: Ledger
    interleaving: Interleaving
    disk: Disk
    #: Those of the product's sinks; None: there are none.
    stores: Stores | None = None
    #: By step; kept in calm runs only.
    traced: dict[OperatorId, Traced] = field(default_factory=dict)
    _restored: set[str] = field(default_factory=set)

    def load(self) -> UserJob:
        """Load the job, as a new process does."""
        with self.interleaving.undisturbed():
            return planned(definition_of(self.draws.pipeline.job()), self.draws.records)

    # -- ``code.RowLaws``

    def disagreement(self, checkpoint: CompletedCheckpoint) -> str | None:
        """Whether a coordinator does not come back as it was."""
        for name, state in checkpoint.coordinator_states.items():
            key = f"{name} {json.dumps(state, sort_keys=True)}"
            if key in self._restored or len(self._restored) >= _MOST_RESTORED:
                continue
            self._restored.add(key)
            job = self.load()
            one = job.steps.operators.get(name)
            if one is None or one.coordinator is None:
                continue
            with self.interleaving.undisturbed():
                wrong = changed_by_restore(
                    name, one.coordinator, one.parallelism or 2, checkpoint.checkpoint_id, state
                )
            if wrong is not None:
                return wrong
        return None

    def incomplete(self, shown: Shown, *, drained: bool) -> str | None:
        """Whether a sink shows something else than was committed, or than was expected."""
        wrong = self.gaps(shown)
        if wrong is not None:
            return wrong
        for name, content in self.content(shown, self.load()).items():
            expected = self.draws.expected.get(name)
            if expected is None or drained or content == expected:
                continue
            lost, surplus = expected - content, content - expected
            some = next(iter(lost or surplus))
            return (
                f"sink {name!r} shows other rows than a run in which nothing failed:"
                f" {lost.total()} are missing, {surplus.total()} are there too often, such as"
                f" {some}. What a source or an operator has done was lost, or done twice, in a"
                " restore"
            )
        return None

    def behind(self, shown: Shown) -> str | None:
        """As for a job that has ended otherwise: no user's job is stopped with a checkpoint."""
        return self.gaps(shown)

    def gaps(self, shown: Shown) -> str | None:
        """Whether a sink shows something else than was committed."""
        job = self.load()
        for name, sink in job.steps.sinks.items():
            rows = None if kind_of(sink) is not None else self._read(job, name)
            wrong = None if rows is None else difference(self.ledger.account(name), rows)
            if wrong is not None:
                return f"sink {name!r}, when the job has ended: {wrong[1]}"
        return None

    def content(self, shown: Shown, job: UserJob) -> Content:
        """The rows of every sink whose target can be read."""
        found: Content = {}
        for name, sink in job.steps.sinks.items():
            rows = shown(name) if kind_of(sink) is not None else self._read(job, name)
            if rows is not None:
                named = all(isinstance(row, dict) for row in rows)
                found[name] = Counter(shaped(row, named=named) for row in rows)
        return found

    def _read(self, job: UserJob, name: OperatorId) -> list[Any] | None:
        """The rows that the user's function reads; None if there is no such function."""
        visible = self.visible(job, name)
        if visible is None:
            return None
        with self.interleaving.undisturbed():
            return list(visible(job.steps.sinks[name]))

    def visible(self, job: UserJob, name: OperatorId) -> Callable[[Sink], Any] | None:
        """The user's function that reads the target of a sink."""
        for vertex in job.vertices.values():
            for one, shown in zip(vertex.sinks, vertex.sink_names, strict=True):
                if one == name:
                    return job.simulation.visible.get(shown)
        return None


class UserDriver:
    """What one driver has loaded."""

    def __init__(self, run: UserRun, environment: Environment) -> None:
        self._run = run
        self.name = environment.process.name
        self.job = run.load()
        self.draws = run.draws
        #: What the attempt started from.
        self.restored_checkpoint_id: int | None = None
        who = f"{environment.job_id} {environment.number}"
        self._default = run.draws.parallelism or Random(f"parallelism {who}").choice((1, 2, 3))
        self.workers = Workers(
            load=self._load_operators,
            disk=run.disk,
            random=Random(f"workers {who}"),
            failures=Random(f"failing subtasks {who}"),
            interleaving=run.interleaving,
            broken=environment.broken,
            calm=run.draws.calm,
        )
        self.session = None if run.stores is None else run.stores.session
        self.sinks: dict[OperatorId, Sink] = {}
        for name, sink in self.job.steps.sinks.items():
            fails = environment.strikes[Fault.COMMIT_FAILED]
            kind = kind_of(sink)
            if kind is not None and run.stores is not None:
                self.sinks[name] = run.stores.sink(
                    name, kind, environment, own=sink, schema=self.job.schema_of_sink(name)
                )
            else:
                self.sinks[name] = AuditedSink(
                    name,
                    sink,
                    ledger=run.ledger,
                    visible=run.visible(self.job, name),
                    random=Random(f"sink {name} {who}"),
                    fails=fails,
                    late=environment.strikes[Fault.LATE_WRITE],
                    load=partial(self._load_sink, name),
                )

    def plan(self, name: str) -> TaskPlan:
        """What the core knows of a vertex."""
        settings = self._run.settings
        vertex = self.job.vertices[name]
        plan = task_plan(self.job.steps, vertex, settings.config.aligned_timeout_ms)
        # No source is idle here: the simulated queries check that no row is late.
        return replace(
            plan, bound=settings.bound, bounded=not self.is_endless(name), idle_after_ms=None
        )

    def is_endless(self, name: str) -> bool:
        """Whether the records of a vertex end with a drain only."""
        vertex = self.job.vertices[name]
        for step in vertex.steps:
            one = self.job.steps.operators.get(step.operator_id)
            if step.enumerated and one is not None and isinstance(one.operator, SourceOperator):
                return not one.operator.source.bounded
        return any(self.is_endless(one) for one in vertex.inputs)

    def process_steps(self, name: str) -> dict[OperatorId, ProcessStep]:
        """The Python operators of a vertex."""
        return {
            step: ProcessStep(
                operator=one.operator,
                parallelism=one.parallelism or self._default,
                key_by=one.key_by,
                has_coordinator=one.coordinator is not None,
                # Never reached: the rows of a simulation are few.
                state_memory_bytes=1 << 30,
            )
            for step in process_steps(self.job.vertices[name])
            for one in [self.job.steps.operators[step]]
        }

    def function(self, name: OperatorId, operator: Operator) -> SubtaskFunction:
        """What runs the subtasks of a step."""
        schemas, one = dict(self.job.schemas[name]), self.job.steps.operators[name]
        return SubtaskFunction(
            name,
            operator,
            output_schema=schemas.pop(MAIN_OUTPUT),
            side_outputs=schemas,
            parallelism=one.parallelism or self._default,
            keys=key_columns(one.key_by),
            rejects_max=None if self.job.step(name).on_error is None else REJECTS_MAX,
        )

    def landed(self, now_us: int) -> int:
        """How many records of each source can be read now."""
        return min(self.draws.records, now_us // self.draws.pace_us)

    def saw(self, step: GraphStep, inputs: list[list[pa.RecordBatch]], made: Rows) -> None:
        """Keep what went through an operator."""
        if not self.draws.calm:
            return
        traced = self._run.traced.setdefault(step.operator_id, Traced())
        _add(traced.given, [batch for batches in inputs for batch in batches])
        _add(traced.emitted, [batch for batches in made.values() for batch in batches])

    def _load_sink(self, name: OperatorId) -> Sink:
        return self._run.load().steps.sinks[name]

    def _load_operators(self) -> Mapping[OperatorId, Operator]:
        return {name: one.operator for name, one in self._run.load().steps.operators.items()}


def _add(values: dict[str, list[Any]], batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        for column in batch.schema.names:
            values.setdefault(column, []).extend(batch.column(column).to_pylist())
