"""The graph of a simulated job: sources of numbered records, and vertices that pass on what they read of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from weir.core.types import VertexId

#: Numbers of two sources never meet.
_NUMBERS_OF_A_SOURCE = 1_000


@dataclass(frozen=True, kw_only=True)
class SimVertex:
    """A vertex of the simulated job: a bounded source of numbered records, or a reader of channels; and two sinks.

    ``<name>-rows`` gets every record; ``<name>-total`` gets one row when the input has ended: count and sum.
    """

    name: VertexId
    #: Of a source; the numbers begin with ``base``.
    records: int
    batch: int
    #: One record lands in so many microseconds.
    pace_us: int
    base: int = 0
    #: Vertices whose channels it reads; none for a source.
    inputs: tuple[VertexId, ...] = ()

    @property
    def sinks(self) -> tuple[str, str]:
        """Names of its sinks."""
        return f"{self.name}-rows", f"{self.name}-total"

    def landed(self, now_us: int) -> int:
        """Records that can be read now."""
        return min(self.records, now_us // self.pace_us)

    def numbers(self, first: int, last: int) -> list[int]:
        """A source's records from ``first`` up to, not including, ``last``."""
        return list(range(self.base + first, self.base + last))


def expected_rows(vertices: Sequence[SimVertex]) -> Mapping[VertexId, list[int]]:
    """What each vertex has processed when the job has finished, sorted. A record that comes over two ways comes twice."""
    rows: dict[VertexId, list[int]] = {}
    for vertex in vertices:
        read = [row for name in vertex.inputs for row in rows[name]]
        rows[vertex.name] = sorted(read if vertex.inputs else vertex.numbers(0, vertex.records))
    return rows


def draw_vertices(random: Random, graph: Random) -> list[SimVertex]:
    """A small acyclic graph with any edges that it allows; half of the runs have none. ``graph`` draws the edges."""
    linked = graph.random() < 0.5
    vertices: list[SimVertex] = []
    for number in range(random.choice((1, 1, 2, 2, 3))):
        reads = linked and vertices and graph.random() < 0.7
        chosen = graph.sample(vertices, graph.randint(1, min(2, len(vertices)))) if reads else []
        vertices.append(
            SimVertex(
                name=f"v{number}",
                records=random.randrange(1, 40),
                batch=random.randrange(1, 6),
                pace_us=random.choice((1, 2_000, 10_000, 25_000)),
                base=number * _NUMBERS_OF_A_SOURCE,
                inputs=tuple(sorted(one.name for one in chosen)),
            )
        )
    return vertices
