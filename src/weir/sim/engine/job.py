"""The job of one run, drawn from a seed: what all drivers of the run share.

Its graph has sources of numbered records, and vertices that forward what they read from channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from weir.core.settings import (
    CheckpointConfig,
    RestartConfig,
    RestartStrategyType,
    RetainExternalized,
)
from weir.core.task.output_channels import DEFAULT_BOUND, ChannelBound
from weir.core.types import OperatorId, OperatorState, VertexId

#: Distance between the first numbers of two sources, so that their numbers never overlap.
_NUMBERS_OF_A_SOURCE = 1_000
#: The share of runs with a large graph. Such a run takes ten times as long as another.
_LARGE = 0.05
_MOST_VERTICES = 20
#: The most vertices of the other graphs.
MOST_SMALL = 3
#: A record arrives once for each path to a vertex; this bounds how many records one vertex reads.
_MOST_ROWS = 300


@dataclass(frozen=True, kw_only=True)
class SimVertex:
    """A bounded source of numbered records or a reader of channels, with two sinks.

    ``<name>-rows`` gets every record; ``<name>-total`` gets one row when the input has ended: count
    and sum. A vertex that only forwards has no sinks, and needs no final checkpoint (MISSION E6).
    """

    name: VertexId
    #: How many records a source has; they are numbered from ``base``.
    records: int
    #: The most records in one batch.
    batch: int
    #: Microseconds in which one record lands.
    pace_us: int
    base: int = 0
    #: Vertices whose channels it reads; empty for a source.
    inputs: tuple[VertexId, ...] = ()
    #: Subtasks of its operator with a coordinator (``own/counting.py``); 0: it has none.
    subtasks: int = 0
    #: The longest time between two sends of that coordinator.
    event_pace_ms: int = 0
    #: Whether that operator prepares for barriers.
    prepares: bool = False
    #: For a source: whether its readers (``weir.sources``), not Spark, report the end of its input.
    enumerated: bool = False
    #: Whether those readers say when a checkpoint is due (``own/marks.py``).
    induced: bool = False
    #: Whether its state can only be read while it rests.
    rests_for_snapshots: bool = False
    #: Whether it has no sinks.
    only_forwards: bool = False

    @property
    def sinks(self) -> tuple[str, ...]:
        """The names of its sinks."""
        return () if self.only_forwards else (f"{self.name}-rows", f"{self.name}-total")

    @property
    def operators(self) -> tuple[OperatorState, ...]:
        """One operator, named after the vertex."""
        return (OperatorState(operator_id=self.name, name=self.name),)

    def landed(self, now_us: int) -> int:
        """How many records can be read now."""
        return min(self.records, now_us // self.pace_us)

    def numbers(self, first: int, last: int) -> list[int]:
        """A source's records from ``first`` to ``last``, exclusive."""
        return list(range(self.base + first, self.base + last))


def expected_rows(vertices: Sequence[SimVertex]) -> Mapping[VertexId, list[int]]:
    """The sorted records that each vertex has processed when the job has finished.

    A record that arrives over two paths is there twice.
    """
    rows: dict[VertexId, list[int]] = {}
    for vertex in vertices:
        read = [row for name in vertex.inputs for row in rows[name]]
        rows[vertex.name] = sorted(read if vertex.inputs else vertex.numbers(0, vertex.records))
    return rows


def draw_vertices(random: Random, graph: Random) -> list[SimVertex]:
    """Draw an acyclic graph with any of the possible edges; half of the runs have no edges.

    ``graph`` draws the edges, the whole of a large graph, and sometimes a third vertex that joins
    the other two, since alignment happens only where a vertex has two inputs.
    """
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
    """Draw a graph of many vertices: long chains, stars, trees, diamonds, dense graphs, several.

    Three draws make the shape: the share of sources, the range of earlier vertices from which a
    vertex picks its producers, and how many producers it has at most.
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


def _draw_vertex(
    random: Random, number: int, inputs: Sequence[SimVertex], *, most_records: int
) -> SimVertex:
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


#: The least checkpoint timeout of a large graph, or of a graph with coordinators: the slowest of
#: many tasks must have a chance to acknowledge in time.
_TIMEOUT_MS_MIN = 500
#: Aligned timeouts, after which barriers may overtake; None: never.
_ALIGNED_TIMEOUTS_MS = (None, None, None, 0, 5)
#: The longest batch of a consumer where barriers may overtake: slow consumers leave records to
#: overtake.
_READER_US = (0, 10_000, 100_000)
#: How long a job may fail of one cause; the supervisor restarts a job that was given up.
_GIVE_UP_AFTER_MS = (None, 200, 600_000)
_RETENTIONS = (
    RetainExternalized.RETAIN_ON_CANCELLATION,
    RetainExternalized.DELETE_ON_CANCELLATION,
)
#: The least times between two commits of a sink that does not commit at every checkpoint.
_COMMIT_INTERVALS_MS = (30, 200, 2_000)
#: How many drivers of a job stop by themselves.
_DRIVERS_UNTIL_IDLE = (*[0] * 21, 1, 3, 6)
#: The numbers of state partitions from which each driver of a job picks one.
_PARTITIONS = ((2,), (2,), (2, 3, 5))


@dataclass(frozen=True, kw_only=True)
class SimJob:
    """What all drivers of one run share."""

    vertices: Sequence[SimVertex]
    config: CheckpointConfig
    restart: RestartConfig
    #: Whether the working directory and the checkpoints are on one file system with links.
    links: bool
    #: The longest asynchronous part of a snapshot, not counting its disk operations, in virtual
    #: microseconds.
    upload_us: int
    hooks: tuple[str, ...]
    claims_snapshot: bool
    #: How far consumers may lag.
    bound: ChannelBound
    #: The longest batch of a query that reads channels, not counting its disk operations.
    reader_us: int
    #: The numbers of state partitions from which a driver picks one.
    partitions: Sequence[int]
    #: See ``TaskPlan.commit_intervals_ms``, for the sinks of all vertices.
    commit_intervals_ms: Mapping[OperatorId, int]
    #: How many drivers, from the first on, read what is available when an attempt begins, and then
    #: stop with a checkpoint.
    drivers_until_idle: int = 0
    #: The sinks that write to a simulated store, with the names of the product's classes.
    stores: Mapping[OperatorId, str] = field(default_factory=dict)
    #: The object store that has the job's records and savepoints; empty: the disk has them.
    bucket: str = ""

    @property
    def base_directory(self) -> str:
        """The directory of the jobs' records and checkpoints."""
        return f"{self.bucket}/checkpoints"

    @property
    def savepoint_directory(self) -> str:
        """The directory of savepoints."""
        return f"{self.bucket}/savepoints"

    @property
    def coordinated(self) -> list[SimVertex]:
        """The vertices with an operator that has a coordinator."""
        return [vertex for vertex in self.vertices if vertex.subtasks]


def draw_job(random: Random, stream: Callable[[str], Random]) -> SimJob:
    """Draw a small job, and the settings that matter.

    ``stream`` makes the stream that draws what its name says. Barriers that may overtake limit the
    job to one concurrent checkpoint (PROTOCOL P27).
    """
    channels, unaligned, restarts = map(stream, ("channels", "unaligned", "restarts"))
    interval_ms = random.choice((None, 20, 50, 100, 200))
    min_pause_ms = random.choice((0, 0, 10, 60))
    restart = _draw_restart(random, restarts)
    vertices = draw_vertices(random, stream("graph"))
    timeout_ms_min = _TIMEOUT_MS_MIN if len(vertices) > MOST_SMALL else 0
    config = CheckpointConfig(
        interval_ms=interval_ms,
        timeout_ms=max(timeout_ms_min, random.choice((50, 500, 5_000))),
        min_pause_ms=min_pause_ms,
        max_concurrent_checkpoints=random.choice((1, 1, 2, 3)),
        tolerable_failed_checkpoints=random.choice((0, 2, 8)),
        num_retained=random.choice((1, 1, 2, 3)),
        incremental=restarts.random() < 0.7,
        retention=stream("retention").choice(_RETENTIONS),
    )
    vertices = _forwarding(_coordinated(vertices, stream("coordinators")), stream("forwarders"))
    if any(vertex.subtasks for vertex in vertices):
        config = replace(config, timeout_ms=max(_TIMEOUT_MS_MIN, config.timeout_ms))
    reader_us = 0
    aligned_timeout_ms = unaligned.choice(_ALIGNED_TIMEOUTS_MS)
    if aligned_timeout_ms is not None and any(vertex.inputs for vertex in vertices):
        reader_us = unaligned.choice(_READER_US)
        # Barriers overtake records, but not the batch in which a vertex's operators prepare for
        # them, or in which earlier watermarks take effect.
        batches = 5 * len(vertices)
        config = replace(
            config,
            aligned_timeout_ms=aligned_timeout_ms,
            max_concurrent_checkpoints=1,
            timeout_ms=max(config.timeout_ms, batches * reader_us // 1_000),
        )
    return SimJob(
        vertices=vertices,
        config=config,
        restart=restart,
        links=random.random() < 0.7,
        upload_us=random.choice((1, 1, 20_000, 100_000)),
        hooks=random.choice(((), (), ("h1",), ("h1", "h2"))),
        claims_snapshot=random.random() < 0.2,
        bound=ChannelBound(
            segments=channels.choice((1, 2, 8)),
            size=channels.choice((1, 100 << 20, DEFAULT_BOUND.size)),
        ),
        reader_us=reader_us,
        partitions=stream("partitions").choice(_PARTITIONS),
        commit_intervals_ms=_draw_commit_intervals(vertices, stream("commits")),
        drivers_until_idle=_draw_drivers_until_idle(vertices, stream("idle")),
    )


def _draw_commit_intervals(vertices: Sequence[SimVertex], random: Random) -> dict[OperatorId, int]:
    share = random.choice((0.0, 0.0, 0.5, 1.0))
    sinks = [sink for vertex in vertices for sink in vertex.sinks]
    return {sink: random.choice(_COMMIT_INTERVALS_MS) for sink in sinks if random.random() < share}


def _draw_drivers_until_idle(vertices: Sequence[SimVertex], random: Random) -> int:
    """None in most runs. Readers that induce checkpoints would have to reach every mark."""
    drawn = random.choice(_DRIVERS_UNTIL_IDLE)
    return 0 if any(vertex.induced for vertex in vertices) else drawn


def _draw_restart(random: Random, restarts: Random) -> RestartConfig:
    return RestartConfig(
        type=random.choice(
            (RestartStrategyType.FIXED_DELAY, RestartStrategyType.EXPONENTIAL_DELAY)
        ),
        fixed_delay_attempts=random.choice((1, 5, 1_000)),
        fixed_delay_ms=random.choice((1, 20)),
        initial_backoff_ms=5,
        max_backoff_ms=50,
        give_up_after_ms=restarts.choice(_GIVE_UP_AFTER_MS),
    )


def _forwarding(vertices: Sequence[SimVertex], random: Random) -> list[SimVertex]:
    """Take their sinks from some vertices between others."""
    share = random.choice((0.0, 0.5, 1.0))
    read = {name for vertex in vertices for name in vertex.inputs}
    return [
        replace(one, only_forwards=random.random() < share)
        if one.inputs and one.name in read and not one.subtasks
        else one
        for one in vertices
    ]


def _coordinated(vertices: Sequence[SimVertex], random: Random) -> list[SimVertex]:
    """Give some vertices an operator with a coordinator, of very different paces."""
    share = random.choice((0.0, 0.0, 0.5, 1.0))
    coordinated = [
        replace(
            one,
            subtasks=random.randint(1, 3),
            event_pace_ms=random.choice((2, 10, 100)),
            prepares=random.random() < 0.7,
            enumerated=random.random() < 0.4 and not one.inputs,
        )
        if random.random() < share
        else one
        for one in vertices
    ]
    return [replace(one, induced=one.enumerated and random.random() > 0.5) for one in coordinated]
