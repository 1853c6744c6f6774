"""What a drain left of a job's input, in a line for each source.

A drain ends the input where it is. A user who takes a drained job for a complete one should know
that some of the input is in no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weir.core.graph import Vertex
from weir.core.types import VertexId
from weir.definition import JobDefinition
from weir.runtime.ports import Unread


def unread_lines(job: JobDefinition, left: Callable[[VertexId], Unread]) -> Iterator[str]:
    """The sources with unread input, once the drained job has closed its coordinators."""
    for vertex in job.vertices():
        found = left(vertex.name)
        yield from _of_readers(job, vertex, found)
        if found.records:
            yield f"not read: {found.records:,} records of the sources of {vertex.name}"


def _of_readers(job: JobDefinition, vertex: Vertex, found: Unread) -> Iterator[str]:
    for step in vertex.steps:
        source = job.operators[step.operator_id] if step.enumerated else None
        if source is None or source.reads is None:
            continue
        splits = found.splits.get(step.operator_id, 0) + (source.unassigned() or 0)
        if splits:
            what = f"{splits:,} splits" if splits > 1 else "1 split"
            yield f"not read to the end: {what} of source {step.name} ({source.reads.identity})"
