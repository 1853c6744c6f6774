"""Specs and results of benchmark runs, which processes exchange as JSON."""

from __future__ import annotations

import enum
import statistics

import msgspec


class Side(enum.Enum):
    """The side that runs the query."""

    WEIR = "weir"
    #: Plain Structured Streaming with the state store provider that Weir uses.
    PLAIN = "plain"
    #: Plain Structured Streaming with its default, HDFS-backed provider.
    PLAIN_DEFAULT = "plain-default"


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the query in a process of its own."""

    side: Side
    #: Directories of input files: a small one for the warm-up, and the measured one.
    warm_up: str
    input: str
    files_per_batch: int
    #: An empty directory for everything that the run writes; tables go to ``<directory>/table``.
    directory: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch, as Spark's progress reports it."""

    rows: int
    #: Its end, in milliseconds since the Unix epoch.
    end_ms: float
    #: Spark's phases (``triggerExecution`` is the whole) in milliseconds.
    duration_ms: dict[str, int]

    @property
    def busy_ms(self) -> float:
        """Its duration without the planning phase, in which a query of Weir may wait."""
        return float(self.duration_ms["triggerExecution"] - self.duration_ms.get("latestOffset", 0))

    @property
    def planned_ms(self) -> float:
        """The end of its first phase, planning, in milliseconds since the Unix epoch."""
        return self.end_ms - self.busy_ms


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one run."""

    #: From the start of the query or job until every row is committed.
    elapsed_ms: float
    #: When the clock started, in milliseconds since the Unix epoch.
    begun_ms: float
    batches: list[Batch]
    #: Durations of periodic checkpoints, from trigger to completion; empty on the plain sides.
    checkpoint_ms: list[int] = msgspec.field(default_factory=list)

    @property
    def batch_median_ms(self) -> float:
        """Median duration of the batches with rows."""
        return statistics.median(
            batch.duration_ms["triggerExecution"] for batch in self.batches if batch.rows
        )

    @property
    def first_batch_ms(self) -> float:
        """From the start of the clock to the end of the first batch; independent of input size."""
        return self.batches[0].end_ms - self.begun_ms

    @property
    def ms_per_batch(self) -> float:
        """The whole time divided by the number of batches."""
        return self.elapsed_ms / len(self.batches)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One completed checkpoint of a job."""

    #: When it was triggered, in milliseconds since the Unix epoch.
    triggered_ms: int
    #: From trigger to completion.
    duration_ms: int
    #: For each query, in milliseconds: the time from the trigger until its snapshot began
    #: (``delay``), and the snapshot's synchronous and asynchronous parts.
    tasks: dict[str, dict[str, int]]


class GraphResult(msgspec.Struct, frozen=True, kw_only=True):
    """The measured graph of two queries. Times are in milliseconds since the Unix epoch."""

    #: When the job or the queries were started.
    started_ms: float
    #: When the last input row was committed to both tables.
    committed_ms: float
    #: Every batch of each query until then.
    batches: dict[str, list[Batch]]
    #: Periodic checkpoints; empty on the plain side.
    checkpoints: list[Checkpoint] = msgspec.field(default_factory=list)
    #: How long each of Weir's sinks took to stage each batch.
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
