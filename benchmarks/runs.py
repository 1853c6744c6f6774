"""What one run of a benchmark is told and what it answers: values that travel between processes as JSON."""

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
        """From the start of the clock to the end of the first batch: what does not grow with the input."""
        return self.batches[0].end_ms - self.begun_ms

    @property
    def ms_per_batch(self) -> float:
        """The whole time, spread over the batches."""
        return self.elapsed_ms / len(self.batches)
