"""The graph of a simulated job: sources of numbered records, and vertices that pass on what they read of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from weir.core.types import OperatorState, VertexId

#: Numbers of two sources never meet.
_NUMBERS_OF_A_SOURCE = 1_000
#: How many runs have a large graph. Such a run takes ten times as long as another.
_LARGE = 0.05
_MOST_VERTICES = 20
#: Vertices of the other graphs.
MOST_SMALL = 3
#: Records that come over several ways are as many as there are ways; this bounds what one vertex reads.
_MOST_ROWS = 300


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
    #: Of its operator with a coordinator (``operators.py``); 0: it has none.
    subtasks: int = 0
    #: Between two events of that coordinator at most.
    event_pace_ms: int = 0
    #: Whether that operator prepares for barriers.
    prepares: bool = False
    #: Of a source: whether its readers end it (``weir.sources``), and not Spark.
    enumerated: bool = False

    @property
    def sinks(self) -> tuple[str, str]:
        """Names of its sinks."""
        return f"{self.name}-rows", f"{self.name}-total"

    @property
    def operators(self) -> tuple[OperatorState, ...]:
        """One, of the vertex's name."""
        return (OperatorState(operator_id=self.name, name=self.name),)

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
    """An acyclic graph with any edges that it allows; half of the runs have none. ``graph`` draws the edges, all of a large
    graph, and a vertex that joins two others, since alignment happens only there."""
    linked = graph.random() < 0.5
    vertices: list[SimVertex] = []
    for number in range(random.choice((1, 1, 2, 2, 3))):
        reads = linked and vertices and graph.random() < 0.7
        chosen = graph.sample(vertices, graph.randint(1, min(2, len(vertices)))) if reads else []
        vertices.append(_draw_vertex(random, number, chosen, most_records=40))
    if linked and len(vertices) == 2 and graph.random() < 0.5:
        vertices.append(_draw_vertex(graph, 2, vertices, most_records=40))
    return _draw_large(graph) if graph.random() < _LARGE else vertices


def _draw_large(graph: Random) -> list[SimVertex]:
    """A graph of many vertices, in one of many shapes: long chains, stars, trees, diamonds, dense ones, several at once.

    How many vertices are sources, among which a vertex looks for its producers, and how many it has, make the shape.
    """
    sources = graph.choice((0.05, 0.2, 0.5))
    among = graph.choice((slice(-1, None), slice(-2, None), slice(-4, None), slice(None), slice(2)))
    most_inputs = graph.choice((1, 2, 4))
    vertices: list[SimVertex] = []
    for number in range(graph.randint(4, _MOST_VERTICES)):
        near = vertices[among]
        reads = near and graph.random() >= sources
        chosen = graph.sample(near, graph.randint(1, min(most_inputs, len(near)))) if reads else []
        while len(chosen) > 1 and _rows_of(chosen, vertices) > _MOST_ROWS:
            chosen.pop()
        vertices.append(_draw_vertex(graph, number, chosen, most_records=20))
    return vertices


def _draw_vertex(random: Random, number: int, inputs: Sequence[SimVertex], *, most_records: int) -> SimVertex:
    return SimVertex(
        name=f"v{number}",
        records=random.randrange(1, most_records),
        batch=random.randrange(1, 6),
        pace_us=random.choice((1, 2_000, 10_000, 25_000)),
        base=number * _NUMBERS_OF_A_SOURCE,
        inputs=tuple(sorted(one.name for one in inputs)),
    )


def _rows_of(chosen: Sequence[SimVertex], vertices: Sequence[SimVertex]) -> int:
    rows = expected_rows(vertices)
    return sum(len(rows[one.name]) for one in chosen)
