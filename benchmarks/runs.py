"""What one run of a benchmark is told and what it answers: values that travel between processes as
JSON."""

from __future__ import annotations

import enum
import statistics

import msgspec


class Side(enum.Enum):
    """Who runs the query."""

    WEIR = "weir"
    #: Plain Structured Streaming with the state store provider that Weir uses.
    PLAIN = "plain"
    #: Plain Structured Streaming as it comes, with the HDFS-backed provider.
    PLAIN_DEFAULT = "plain-default"


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the query in a process of its own."""

    side: Side
    #: Directories of input files: a small one for the warm-up, and the one that is measured.
    warm_up: str
    input: str
    files_per_batch: int
    #: An empty directory for everything that the run writes; tables go to ``<directory>/table``.
    directory: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch, as Spark's progress tells it."""

    rows: int
    #: Milliseconds since the Unix epoch at its end.
    end_ms: float
    #: Spark's phases (``triggerExecution`` is the whole) in milliseconds.
    duration_ms: dict[str, int]

    @property
    def busy_ms(self) -> float:
        """Its duration without the phase in which it is planned, which for a query of Weir may be a
        wait."""
        return float(self.duration_ms["triggerExecution"] - self.duration_ms.get("latestOffset", 0))

    @property
    def planned_ms(self) -> float:
        """Milliseconds since the Unix epoch when it knew what to read: the first phase is the
        planning."""
        return self.end_ms - self.busy_ms


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    #: From the start of the query or job until every row is committed.
    elapsed_ms: float
    #: Milliseconds since the Unix epoch when the clock started.
    begun_ms: float
    batches: list[Batch]
    #: Of periodic checkpoints, from trigger to completion; none on the plain sides.
    checkpoint_ms: list[int] = msgspec.field(default_factory=list)

    @property
    def batch_median_ms(self) -> float:
        """Median duration of the batches that carried rows."""
        return statistics.median(
            batch.duration_ms["triggerExecution"] for batch in self.batches if batch.rows
        )

    @property
    def first_batch_ms(self) -> float:
        """From the start of the clock to the end of the first batch: what does not grow with the
        input."""
        return self.batches[0].end_ms - self.begun_ms

    @property
    def ms_per_batch(self) -> float:
        """The whole time, spread over the batches."""
        return self.elapsed_ms / len(self.batches)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One completed checkpoint of a job."""

    #: Milliseconds since the Unix epoch.
    triggered_ms: int
    #: From trigger to completion.
    duration_ms: int
    #: Of each query, in milliseconds: from the trigger until its snapshot began (``delay``), its
    #: two parts.
    tasks: dict[str, dict[str, int]]


class GraphResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a graph of two queries. Times are milliseconds since the Unix epoch."""

    #: When the job or the queries were started.
    started_ms: float
    #: When the last input row was committed at both tables.
    committed_ms: float
    #: Of each query every batch until then.
    batches: dict[str, list[Batch]]
    #: Periodic checkpoints; none on the plain side.
    checkpoints: list[Checkpoint] = msgspec.field(default_factory=list)
    #: Of each of Weir's sinks how long it took to stage each batch.
    stage_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)

    @property
    def begun_ms(self) -> float:
        """When a query first knew what to read."""
        return min(batch.planned_ms for batch in self.batches_with_rows())

    @property
    def elapsed_ms(self) -> float:
        """From the first row to the last."""
        return self.committed_ms - self.begun_ms

    @property
    def elapsed_from_start_ms(self) -> float:
        """From the start of the job or the queries to the last row."""
        return self.committed_ms - self.started_ms

    @property
    def checkpoints_under_way(self) -> list[Checkpoint]:
        """The checkpoints that were triggered while rows flowed."""
        return [one for one in self.checkpoints if one.triggered_ms >= self.begun_ms]

    def batches_with_rows(self, query: str | None = None) -> list[Batch]:
        """The batches that read rows, of one query or of all."""
        return [
            batch
            for name, batches in self.batches.items()
            if query in (None, name)
            for batch in batches
            if batch.rows
        ]
