"""The graphs that runs draw: most are small, and the large ones come in every shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from weir.sim.engine.job import MOST_SMALL, SimVertex, draw_vertices, expected_rows

GRAPHS = [draw_vertices(Random(seed), Random(f"graph {seed}")) for seed in range(2_000)]
LARGE = [graph for graph in GRAPHS if len(graph) > MOST_SMALL]


def depth(graph: Sequence[SimVertex]) -> int:
    """The number of vertices on the longest path."""
    depths: dict[str, int] = {}
    for vertex in graph:
        depths[vertex.name] = 1 + max((depths[name] for name in vertex.inputs), default=0)
    return max(depths.values())


def components(graph: Sequence[SimVertex]) -> int:
    """The number of connected components."""
    part = {vertex.name: vertex.name for vertex in graph}
    for vertex in graph:
        for name in vertex.inputs:
            old, new = part[name], part[vertex.name]
            part = {known: new if other == old else other for known, other in part.items()}
    return len(set(part.values()))


def has_diamond(graph: Sequence[SimVertex]) -> bool:
    """Whether records of one vertex reach another over two paths."""
    return any(max(Counter(rows).values()) > 1 for rows in expected_rows(graph).values())


def test_one_run_in_twenty_has_a_large_graph() -> None:
    """More large graphs would make the simulator too slow."""
    assert 70 < len(LARGE) < 130
    assert {len(graph) for graph in LARGE} == set(range(4, 21))


def test_large_graphs_have_every_shape() -> None:
    """Long chains, wide fans, diamonds, and several components."""
    consumers = [Counter(name for vertex in graph for name in vertex.inputs) for graph in LARGE]
    assert sum(depth(graph) > 7 for graph in LARGE) > 5
    assert sum(max(one.values(), default=0) > 5 for one in consumers) > 5
    assert sum(any(len(vertex.inputs) > 2 for vertex in graph) for graph in LARGE) > 2
    assert sum(map(has_diamond, LARGE)) > 10
    assert sum(components(graph) > 3 for graph in LARGE) > 10


def test_no_vertex_has_too_much_to_read() -> None:
    """A record arrives once for each path, so the number of rows is bounded."""
    assert max(len(rows) for graph in LARGE for rows in expected_rows(graph).values()) <= 300
