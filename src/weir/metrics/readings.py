"""``Readings``: what the values of all metrics are read from, at one moment.

They are made on request: from the job's published view, the recorded samples and, if it
answers, the driver's JVM. So a metric costs the batches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from weir.core.checkpoints.stats import TaskCheckpointStats
from weir.core.types import VertexId
from weir.monitoring.cluster import Cluster, JvmView
from weir.monitoring.recorder import COUNTERS, Sample
from weir.monitoring.views import JobView, VertexView

#: Rates are over this much of the newest past, as Flink's are.
RATE_MS = 60_000
#: The place of each counter among those of its task in a sample.
_PLACES = {name: place for place, name in enumerate(COUNTERS)}


@dataclass(frozen=True, kw_only=True)
class VertexReading:
    """A vertex, with its rates over the newest minute."""

    view: VertexView
    #: Per second.
    records_in_rate: float
    records_committed_rate: float
    #: Shares of the time, from 0 to 1.
    busy: float
    rested: float
    held: float
    #: Its part in the newest checkpoint that this driver completed; None before the first.
    snapshot: TaskCheckpointStats | None


@dataclass(frozen=True, kw_only=True)
class ProcessReading:
    """A process of this machine."""

    resident_bytes: int
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The job, its vertices and its driver at one moment."""

    view: JobView
    #: Milliseconds since the Unix epoch.
    now_ms: int
    vertices: tuple[VertexReading, ...]
    #: None if it is not known, or does not answer.
    jvm: JvmView | None = None
    jvm_process: ProcessReading | None = None


def probe(cluster: Cluster) -> tuple[JvmView, ProcessReading | None]:
    """The driver's JVM and its process; waits for the JVM."""
    jvm = cluster.jvm()
    try:
        process = psutil.Process(jvm.pid)
        used = process.cpu_times()
        reading = ProcessReading(
            resident_bytes=process.memory_info().rss, cpu_s=used.user + used.system
        )
    except psutil.Error:
        return jvm, None
    return jvm, reading


def read(
    view: JobView,
    samples: Sequence[Sample],
    *,
    now_ms: int,
    jvm: JvmView | None = None,
    jvm_process: ProcessReading | None = None,
) -> Readings:
    """The readings of a view. ``samples``: the recorded samples, oldest first."""
    newest = view.checkpoints.latest_completed
    parts = {} if newest is None else {part.vertex: part for part in newest.tasks}
    before = _before(samples, now_ms)
    return Readings(
        view=view,
        now_ms=now_ms,
        vertices=tuple(
            _vertex(vertex, place, before, now_ms, parts)
            for place, vertex in enumerate(view.vertices)
        ),
        jvm=jvm,
        jvm_process=jvm_process,
    )


def _before(samples: Sequence[Sample], now_ms: int) -> Sample | None:
    """The sample from which rates are taken: the oldest of the newest minute."""
    found = None
    for sample in reversed(samples):
        if now_ms - sample.time_ms > RATE_MS:
            break
        found = sample
    return found


def _vertex(
    vertex: VertexView,
    place: int,
    before: Sample | None,
    now_ms: int,
    parts: dict[VertexId, TaskCheckpointStats],
) -> VertexReading:
    start = place * len(COUNTERS)

    def rate(counter: str, now: int) -> float:
        """Per millisecond."""
        if before is None or now_ms <= before.time_ms:
            return 0.0
        then = before.values[start + _PLACES[counter]]
        return max(0, now - then) / (now_ms - before.time_ms)

    return VertexReading(
        view=vertex,
        records_in_rate=1000 * rate("records_in", vertex.records_in),
        records_committed_rate=1000 * rate("records_committed", vertex.records_committed),
        busy=min(1.0, rate("busy_ms", vertex.busy_ms)),
        rested=min(1.0, rate("rested_ms", vertex.rested_ms)),
        held=min(1.0, rate("held_ms", vertex.held_ms)),
        snapshot=parts.get(vertex.vertex),
    )
