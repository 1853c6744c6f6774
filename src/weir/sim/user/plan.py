"""The user's job as the simulator runs it: columns of each step, rows between steps, stand-ins."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from weir.core.graph import MAIN_OUTPUT, GraphStep, StepKind, Vertex
from weir.core.types import OperatorId
from weir.definition import JobDefinition, ProcessFunction, Simulation
from weir.errors import InvariantError, PipelineError
from weir.operators.connected import INPUT, CoOperator
from weir.operators.output import OUTPUT, tagged_column
from weir.operators.state.types import KEY_GROUPS
from weir.sim.stores.placing import shown_by_a_store
from weir.sim.user.rows import RowMaker
from weir.sim.user.schemas import schema_of
from weir.sim.user.sources import StandInSource
from weir.sources.coordinator import SourceCoordinator
from weir.sources.files import FileSource
from weir.sources.operator import SourceOperator
from weir.subtasks.worker import key_columns

#: The rows of a step, by tag of its outputs.
Rows = dict[str, list[pa.RecordBatch]]

_ROW = "id long"
#: How many rows of a batch an operator may set aside, and what these rows have.
REJECTS_MAX = 100_000
REJECTS = pa.schema(
    [
        *((name, pa.string()) for name in ("step", "error", "position")),
        ("event_time", pa.timestamp("us", "UTC")),
        ("row", pa.string()),
    ]
)


@dataclass
class UserJob:
    """One load of the user's job."""

    steps: JobDefinition
    vertices: Mapping[str, Vertex]
    simulation: Simulation
    rows: RowMaker
    #: By step: the schema of each output, and the column with its event time.
    schemas: dict[OperatorId, dict[str, pa.Schema]] = field(default_factory=dict)
    event_time: dict[OperatorId, str | None] = field(default_factory=dict)
    #: What the simulator puts in place of the user's own, for the output.
    stand_ins: list[str] = field(default_factory=list)

    def schema_of_sink(self, name: OperatorId) -> pa.Schema:
        """The schema of a sink's rows."""
        for vertex in self.vertices.values():
            for sink, tag in zip(vertex.sinks, vertex.sink_tags, strict=True):
                if sink == name:
                    return self.schemas[vertex.name][tag]
        raise InvariantError(f"no vertex has the sink {name}")

    def step(self, name: OperatorId) -> GraphStep:
        """A step by its id."""
        return next(
            step
            for vertex in self.vertices.values()
            for step in vertex.steps
            if step.operator_id == name
        )

    def has_event_time(self, step: GraphStep) -> bool:
        """Whether a step's input has one."""
        return any(self.event_time.get(one) for one in step.inputs)


def planned(steps: JobDefinition, records: int) -> UserJob:
    """The job, with stand-ins and the schemas of all steps.

    Raises ``PipelineError`` if something must be declared for the simulator.
    """
    until_idle = steps.graph.available_now
    if until_idle:
        steps = steps.reading(available_now=False)
    vertices = {vertex.name: vertex for vertex in steps.vertices()}
    keys = {name for one in steps.operators.values() for columns in one.key_by for name in columns}
    job = UserJob(steps=steps, vertices=vertices, simulation=steps.simulation, rows=RowMaker(keys))
    _check_names(job)
    if until_idle:
        job.stand_ins.append(
            "available_now: each run of the job reads until all rows have come, and then ends"
        )
    for name, one in list(steps.operators.items()):
        if isinstance(one.operator, SourceOperator) and isinstance(one.operator.source, FileSource):
            steps.operators[name] = _file_stand_in(job, name, one, records)
    done: set[OperatorId] = set()
    while len(done) < sum(len(vertex.steps) for vertex in vertices.values()):
        for vertex in vertices.values():
            for step in vertex.steps:
                if step.operator_id not in done and done.issuperset(step.inputs):
                    _describe(job, step)
                    done.add(step.operator_id)
    for name, sink in steps.sinks.items():
        steps.sinks[name], lacking = shown_by_a_store(sink)
        if lacking is not None:
            job.stand_ins.append(
                f"sink {name} ({type(sink).__name__}): its rows are appended to files, since no"
                f" simulated store has {lacking}"
            )
    return job


def _check_names(job: UserJob) -> None:
    steps = {step.name for vertex in job.vertices.values() for step in vertex.steps}
    sinks = {name for vertex in job.vertices.values() for name in vertex.sink_names}
    for declared, known, what in (
        (job.simulation.rows, steps, "rows"),
        (job.simulation.event_time, steps, "event_time"),
        (job.simulation.visible, sinks, "visible"),
    ):
        for name in declared:
            if name not in known:
                raise PipelineError(
                    f"job.simulation({what}=...) names {name!r}, but the job has"
                    f" {', '.join(sorted(known))}: give one of these."
                )


def _file_stand_in(
    job: UserJob, name: OperatorId, one: ProcessFunction, records: int
) -> ProcessFunction:
    operator: Any = one.operator
    source = operator.source
    declared = job.simulation.rows.get(name, source.schema)
    job.stand_ins.append(f"source {name} ({type(source).__name__}): rows of its schema")
    made = StandInSource(source, lambda numbers: job.rows.source(declared, numbers, name), records)
    return replace(
        one,
        operator=SourceOperator(made, operator.watermarks),
        coordinator=SourceCoordinator(made),
    )


def _describe(job: UserJob, step: GraphStep) -> None:
    """Find the schemas of one step, whose inputs are described."""
    name = step.operator_id
    declared = job.simulation.rows.get(step.name)
    given = [job.schemas[one][tag] for one, tag in step.outputs_read if one in job.schemas]
    timed = [job.event_time[one] for one in step.inputs]
    event_time = next((one for one in timed if one), None)
    if step.kind is StepKind.PROCESS or step.enumerated:
        operator = job.steps.operators[name].operator
        main = operator.output_schema
        schemas = {MAIN_OUTPUT: given[0] if main is None else schema_of(main, step.name)}
        for tag, side in operator.side_outputs.items():
            schemas[tag] = schema_of(side, step.name)
        job.schemas[name] = schemas
        if isinstance(operator, SourceOperator) and operator.watermarks is not None:
            event_time = operator.watermarks.column
    elif step.kind is StepKind.REJECTS:
        job.schemas[name] = {MAIN_OUTPUT: REJECTS}
    elif step.kind is StepKind.SOURCE:
        job.schemas[name] = {MAIN_OUTPUT: job.rows.source(declared or _ROW, [0], step.name).schema}
        if declared is None:
            job.stand_ins.append(f"source {step.name}: rows of {_ROW!r}, since none are declared")
    elif declared is None:
        job.schemas[name] = {MAIN_OUTPUT: given[0]}
        if step.kind is StepKind.TRANSFORM:
            aside = ", and sets none aside" if step.on_error else ""
            job.stand_ins.append(
                f"step {step.name}: passes its rows on, since none are declared{aside}"
            )
    else:
        sample = pa.RecordBatch.from_pylist([], schema=given[0])
        job.schemas[name] = {MAIN_OUTPUT: job.rows.transformed(declared, sample, step.name).schema}
    event_time = job.simulation.event_time.get(step.name, event_time)
    main_schema = job.schemas[name][MAIN_OUTPUT]
    here = event_time is not None and event_time in main_schema.names
    if step.name in job.simulation.event_time and not here:
        raise PipelineError(
            f"job.simulation(event_time=...) names the column {event_time!r} for step"
            f" {step.name!r}, whose rows have {', '.join(main_schema.names)}: give one of these."
        )
    job.event_time[name] = event_time if here else None


def partitioned(
    job: UserJob, step: GraphStep, inputs: Sequence[Sequence[pa.RecordBatch]], parallelism: int
) -> list[list[pa.RecordBatch]]:
    """The records of each subtask, as ``spark/operators/inputs.py`` makes them."""
    one = job.steps.operators[step.operator_id]
    if isinstance(one.operator, CoOperator):
        records = [
            _connected(job, step, number, batch)
            for number, batches in enumerate(inputs, start=1)
            for batch in batches
        ]
    else:
        records = list(inputs[0]) if inputs else []
    keys = list(key_columns(one.key_by))
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(parallelism)]
    for number, batch in enumerate(records):
        if not batch.num_rows:
            continue
        if not keys:
            parts[number % parallelism].append(batch)
            continue
        columns = [batch.column(name).to_pylist() for name in keys]
        groups = [zlib.crc32(repr(key).encode()) % KEY_GROUPS for key in zip(*columns, strict=True)]
        grouped = batch.append_column("__weir_key_group", pa.array(groups, pa.int32()))
        owners = [group * parallelism // KEY_GROUPS for group in groups]
        for subtask in range(parallelism):
            mine = grouped.filter(pa.array([owner == subtask for owner in owners]))
            if mine.num_rows:
                parts[subtask].append(mine)
    return parts


def _connected(job: UserJob, step: GraphStep, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {INPUT: pa.array([number] * len(batch), pa.int32())}
    for other, (name, tag) in enumerate(step.outputs_read, start=1):
        for field_ in job.schemas[name][tag]:
            columns[tagged_column(str(other), field_.name)] = (
                batch.column(field_.name) if other == number else pa.nulls(len(batch), field_.type)
            )
    key_by = job.steps.operators[step.operator_id].key_by
    if key_by:
        own = zip(key_columns(key_by), key_by[number - 1], strict=True)
        columns |= {key: batch.column(name) for key, name in own}
    return pa.RecordBatch.from_pydict(columns)


def outputs(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> Rows:
    """An operator's rows by tag, as ``spark/operators/outputs.py`` selects them."""
    found: Rows = {}
    for batch in batches:
        names = batch.schema.names
        if OUTPUT not in names:
            found.setdefault(MAIN_OUTPUT, []).append(batch)
            continue
        column = batch.column(OUTPUT)
        main = batch.filter(pc.is_null(column)).select(names[: names.index(OUTPUT)])
        if main.num_rows:
            found.setdefault(MAIN_OUTPUT, []).append(main)
        for tag in pc.unique(column).to_pylist():
            if tag is None:
                continue
            prefix = tagged_column(tag, "")
            own = [name for name in names if name.startswith(prefix)]
            side = batch.filter(pc.equal(column, tag)).select(own)
            side = side.rename_columns([name.removeprefix(prefix) for name in own])
            found.setdefault(tag, []).append(side)
    return found


def encoded(rows: Rows) -> bytes:
    """Rows as the bytes of a segment."""
    parts: list[bytes] = []
    for tag, batches in rows.items():
        for batch in batches:
            buffer = pa.BufferOutputStream()
            named = batch.schema.with_metadata({"tag": tag})
            with pa.ipc.new_stream(buffer, named) as stream:
                stream.write_batch(batch.cast(named))
            data = buffer.getvalue().to_pybytes()
            parts += [len(data).to_bytes(8, "big"), data]
    return b"".join(parts)


def decoded(data: bytes) -> Rows:
    """The rows of a segment."""
    rows: Rows = {}
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        with pa.ipc.open_stream(data[at + 8 : at + 8 + size]) as stream:
            tag = stream.schema.metadata[b"tag"].decode()
            plain = stream.schema.remove_metadata()
            rows.setdefault(tag, []).extend(one.cast(plain) for one in stream)
        at += 8 + size
    return rows
