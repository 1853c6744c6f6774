"""A source of a simulated job that rests, and sources that wait for it meanwhile (PROTOCOL P25).

After its first records, a *resting* source has no more until a task that reads it, and other
sources, has a watermark beyond its next record. The others keep their last record until then. So
the job ends only if the idle source holds no watermark back. What it reads afterwards may be late
for that task, and for all downstream of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from weir.core.types import VertexId
from weir.sim.engine.job import SimVertex

#: The share of jobs with a resting source, of those that can have one.
_SHARE = 0.15
#: After how many milliseconds without rows it is idle.
_IDLE_AFTER_MS = (1, 20, 100)


@dataclass(kw_only=True)
class RestingSource:
    """The resting source of one job."""

    name: VertexId
    idle_after_ms: int
    #: How many records it has before it rests.
    records: int
    #: The task that must go on without it, and a watermark that shows it.
    reader: VertexId
    beyond_ms: int
    #: The sources that keep their last record.
    others: frozenset[VertexId]
    #: The source, and all downstream of it: their rows may be late.
    late: frozenset[VertexId]
    is_over: bool = field(default=False, repr=False)

    def seen(self, reader: VertexId, watermark_ms: int | None) -> None:
        """A task's watermark, over all its channels, has come so far."""
        self.is_over |= reader == self.reader and (watermark_ms or 0) > self.beyond_ms

    def most(self, vertex: SimVertex) -> int:
        """How many records a source may have now."""
        if self.is_over:
            return vertex.records
        if vertex.name == self.name:
            return self.records
        return vertex.records - (vertex.name in self.others)


def draw_resting(vertices: Sequence[SimVertex], random: Random) -> RestingSource | None:
    """Let a source rest, if a task reads it, and others that have later records, apart from it."""
    known = {one.name: one for one in vertices}
    sources: dict[VertexId, frozenset[VertexId]] = {}
    found: list[tuple[SimVertex, VertexId, frozenset[VertexId]]] = []
    for reader in vertices:
        above = [sources[name] for name in reader.inputs] or [frozenset({reader.name})]
        sources[reader.name] = frozenset[VertexId]().union(*above)
        for source in (known[name] for name in sorted(sources[reader.name])):
            others = frozenset[VertexId]().union(*(one for one in above if one != {source.name}))
            if (
                others
                and all(known[one].base > source.base for one in others)
                and not any(known[one].induced or known[one].records < 2 for one in others)
                and not source.induced
            ):
                found.append((source, reader.name, others))
    if not found or random.random() >= _SHARE:
        return None
    source, reader_name, others = random.choice(found)
    records = random.randrange(source.records)
    return RestingSource(
        name=source.name,
        idle_after_ms=random.choice(_IDLE_AFTER_MS),
        records=records,
        reader=reader_name,
        beyond_ms=source.base + records,
        others=others,
        late=frozenset(name for name, above_it in sources.items() if source.name in above_it),
    )
