"""``weir plan``: shows a pipeline's vertices and the channels between them, without running it.

The file is executed up to its ``job.run()``, and the graph is checked as in ``weir run``, with the
same errors. The steps' functions are not called, so no JVM starts, unless the file itself needs
Spark or a step sets rows aside (``guarded_steps.py``). A script is executed up to where it waits
for its queries (``script.py``). Steps and vertices are shown by name, and as ``name [uid]`` if the
id differs.

In Mermaid, steps have their own ids and their names are quoted, since a step may be named like a
Mermaid keyword, such as ``end``. Names need no other escaping: the graph allows only letters,
digits, ``_``, ``-`` and ``.``, also in a uid.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.cli.guarded_steps import check_rows_apart
from weir.cli.loading.load import checked
from weir.cli.loading.needed_session import session_beside
from weir.cli.loading.program import Program
from weir.core.graph import ChainEnd, GraphStep, StepKind, Vertex
from weir.core.types import CompletedCheckpoint, OperatorId
from weir.job import Job, definition_of
from weir.spark.kafka.code import UNCOMMITTED, is_uncommitted

#: Width of the label column, so that the values of all vertices line up.
_LABEL_WIDTH = 24


@contextmanager
def loaded(spec: str, arguments: Sequence[str]) -> Iterator[tuple[Job, RenderableType | None]]:
    """The job of a file, which is the main program meanwhile, and what else there is to show.

    Raises what ``load_job`` raises, and says what an exit leaves undone.
    """
    with ExitStack() as stack:
        program = stack.enter_context(Program(spec, arguments))
        if program.imports_weir:
            stack.enter_context(session_beside(program))
        try:
            found = _executed(program)
            check_rows_apart(found[0])
        except SystemExit as error:
            early = program.early_exit(error)
            if early is not None:
                print(early, file=sys.stderr)
            raise
        yield found


def _executed(program: Program) -> tuple[Job, RenderableType | None]:
    if program.imports_weir:
        program.execute()
    else:
        # Not at the top: it imports Spark.
        from weir.cli.script import planned_script

        planned = planned_script(program, lambda line: print(line, file=sys.stderr))
        if planned is not None:
            return planned.job, planned.details
    return checked(program.chosen()), None


def plan_text(job: Job) -> Group:
    """``weir plan FILE``: a paragraph for each vertex, producers first.

    Raises ``PipelineError`` like ``weir run``.
    """
    definition = definition_of(job)
    vertices = definition.vertices()
    shown = _shown(vertices)
    channels = sum(len(vertex.inputs) for vertex in vertices)
    head = (
        f"Job {job.name}: {_count(len(vertices), 'vertex', 'vertices')},"
        f" {_count(channels, 'channel', 'channels')}"
    )
    parts: list[RenderableType] = [Text(head)]
    for vertex in vertices:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=_LABEL_WIDTH)
        table.add_column(overflow="fold")
        for label, value in _rows(vertex, vertices, shown):
            table.add_row(f"  {label}", Text(value))
        for step in vertex.steps:
            if step.kind is StepKind.SOURCE and is_uncommitted(
                definition.functions.get(step.operator_id)
            ):
                table.add_row("  note", Text(f"{shown[step.operator_id]} {UNCOMMITTED}"))
        title = f"\n{shown[vertex.name]} ({_extent(vertex)})"
        parts += [Text(title, style="bold"), table]
    return Group(*parts)


def start_text(start: CompletedCheckpoint) -> Text:
    """From what the job would go on, and what is not known of it without Spark."""
    kind = "savepoint" if start.kind.is_savepoint else "checkpoint"
    return Text(
        f"\nGoes on from {kind} {start.checkpoint_id} ({start.external_path}): nothing of it is"
        " missing here. Windows, keys and aggregates are compared when the job starts."
    )


def plan_mermaid(job: Job) -> str:
    """``weir plan --mermaid FILE``: a subgraph per vertex, and arrows for channels to readers."""
    vertices = definition_of(job).vertices()
    shown = _shown(vertices)
    ids = {uid: f"s{number}" for number, uid in enumerate(shown)}
    lines, channels = ["flowchart LR"], []
    for number, vertex in enumerate(vertices):
        lines.append(f'  subgraph v{number}["{shown[vertex.name]} ({_extent(vertex)})"]')
        steps = [step.operator_id for step in vertex.steps]
        lines += [f'    {ids[step]}["{shown[step]}"]' for step in steps]
        lines += [f'    {ids[sink]}[("{shown[sink]}")]' for sink in vertex.sinks]
        for rejects in vertex.rejects:
            channels.append(f"  {ids[vertex.name]} ==>|rejects| {ids[rejects]}")
        for step in vertex.steps:
            for name in dict.fromkeys(step.inputs):
                if name in vertex.inputs:
                    channels.append(f"  {ids[name]} ==>|channel| {ids[step.operator_id]}")
                else:
                    lines.append(f"    {ids[name]} --> {ids[step.operator_id]}")
        lines += [f"    {ids[vertex.name]} --> {ids[sink]}" for sink in vertex.sinks]
        lines.append("  end")
    return "\n".join(lines + channels)


def plan_json(job: Job) -> str:
    """``weir plan --json FILE``: the job's name, and the vertices as the graph has them."""
    fields: dict[str, Any] = {"job": job.name, "vertices": definition_of(job).vertices()}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def _shown(vertices: Sequence[Vertex]) -> dict[OperatorId, str]:
    """The label of each step and sink, by id."""
    names: dict[OperatorId, str] = {}
    for vertex in vertices:
        names |= {step.operator_id: step.name for step in vertex.steps}
        names |= zip(vertex.sinks, vertex.sink_names, strict=True)
    return {uid: name if name == uid else f"{name} [{uid}]" for uid, name in names.items()}


def _rows(
    vertex: Vertex, vertices: Sequence[Vertex], shown: Mapping[OperatorId, str]
) -> Iterator[tuple[str, str]]:
    """The labelled facts about a vertex; those that do not apply are left out."""
    yield "chain", _chain(vertex, shown)
    if vertex.parallelism is not None:
        yield "parallelism", str(vertex.parallelism)
    if vertex.sinks:
        yield "sinks", ", ".join(shown[sink] for sink in vertex.sinks)
    for rejects in vertex.rejects:
        steps = [shown[one.operator_id] for one in vertex.steps if one.on_error == rejects]
        yield f"rejects to {shown[rejects]}", ", ".join(steps)
    if vertex.inputs:
        yield "reads channels of", ", ".join(shown[name] for name in vertex.inputs)
    readers = [other for other in vertices if vertex.name in other.inputs]
    if readers:
        yield "channel read by", ", ".join(shown[reader.name] for reader in readers)
    why = vertex.end.value
    if vertex.end is ChainEnd.SEVERAL_READERS:
        fed = [
            *(
                shown[step.operator_id]
                for reader in readers
                for step in reader.steps
                if vertex.name in step.inputs
            ),
            *(f"sink {shown[sink]}" for sink in vertex.sinks),
        ]
        why = f"{why} ({', '.join(fed)})"
    yield "chain ends because", why


def _chain(vertex: Vertex, shown: Mapping[OperatorId, str]) -> str:
    """The steps as arrows: ``orders -> clean``, or ``(orders -> clean, users) -> enrich``."""
    chains: dict[OperatorId, str] = {}

    def before(step: GraphStep) -> str:
        chained = [chains[name] for name in dict.fromkeys(step.inputs) if name in chains]
        if not chained:
            return ""
        return f"{chained[0]} -> " if len(chained) == 1 else f"({', '.join(chained)}) -> "

    for step in vertex.steps:
        chains[step.operator_id] = before(step) + shown[step.operator_id]
    return chains[vertex.name]


def _extent(vertex: Vertex) -> str:
    if vertex.available_now:
        return "available now"
    return "bounded" if vertex.bounded else "unbounded"


def _count(number: int, singular: str, several: str) -> str:
    return f"{number} {singular if number == 1 else several}"
