"""A real query under test: the vertex of a small job as a ``QueryTask`` that the test answers.

Rows come from Parquet files with the columns ``id`` and ``ts``, one file per batch. The sink's rows
are kept in memory by position.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.kit.waiting import PATIENCE_S

from weir.core.graph import Vertex
from weir.core.messages.task import (
    AnswerPlanning,
    PlanningCalled,
    StartDrain,
    StreamTaskEvent,
    TaskErrored,
)
from weir.core.types import Payload
from weir.demo.landing import write_atomically
from weir.job import Job, definition_of
from weir.runtime.concurrency import SystemClock
from weir.sinks.base import Batch, Sink, SinkContext
from weir.spark.failures import TaskFailures
from weir.spark.pipeline import Pipeline
from weir.spark.query.frames import Frames
from weir.spark.query.staging import BatchStaging
from weir.spark.query.task import QueryTask
from weir.spark.query.vertex_query import VertexQuery
from weir.spark.state.directory import QueryDirectory
from weir.storage.local import LocalFileSystem

E = TypeVar("E")
Rows = Counter[tuple[Any, ...]]

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "id long, ts timestamp"


class Landing:
    """A directory of input files whose rows are ten seconds apart: six per minute."""

    def __init__(
        self, directory: Path, *, rows_per_file: int = 12, step: timedelta = timedelta(seconds=10)
    ):
        self.directory = directory
        self.rows_per_file = rows_per_file
        self._step = step
        self._files = 0
        directory.mkdir(parents=True)

    def rows(self, file: int) -> list[tuple[int, datetime]]:
        """The rows of a file."""
        ids = range(file * self.rows_per_file, (file + 1) * self.rows_per_file)
        return [(number, START + self._step * number) for number in ids]

    def ids(self, *files: int) -> list[int]:
        """The ids of the rows of some files."""
        return [number for file in files for number, _ in self.rows(file)]

    def land(self, files: int) -> None:
        """Add this many files; they are read in order."""
        for _ in range(files):
            self.land_rows(self.rows(self._files))

    def land_rows(self, rows: Sequence[tuple[int, datetime]]) -> None:
        """Add one file of these rows."""
        number, self._files = self._files, self._files + 1
        columns = {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "ts": pa.array([row[1] for row in rows], pa.timestamp("us", tz="UTC")),
        }
        # Spark reads in the order of modification times.
        write_atomically(pa.table(columns), self.path(number), mtime_s=1_700_000_000 + number)

    def path(self, file: int) -> Path:
        """The path of a file."""
        return self.directory / f"{file:03}.parquet"

    def source(self, session: SparkSession) -> DataFrame:
        """A source function over these files."""
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))

    def table(self, session: SparkSession, files: int | None = None) -> DataFrame:
        """The first files (all if None) as a static DataFrame."""
        paths = [
            str(self.path(number)) for number in range(self._files if files is None else files)
        ]
        return session.read.schema(SCHEMA).parquet(*paths)


class Collected(Sink):
    """Keeps the rows of each batch."""

    def __init__(self) -> None:
        self.steps: dict[int, list[tuple[Any, ...]]] = {}

    def describe(self) -> str:
        return "Collected()"

    def check(self, context: SinkContext) -> None:
        """Nothing to check."""

    def open(self, context: SinkContext) -> None:
        """Nothing to open."""

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        self.steps[batch.batch_id] = [tuple(row) for row in frame.collect()]
        return {"position": batch.batch_id}

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        return 0

    def newest_committed(self) -> int | None:
        return None

    def clean(self, attempt: int) -> None:
        """Nothing to clean."""

    def rows(self) -> Rows:
        """All rows of all batches."""
        return Counter(row for rows in self.steps.values() for row in rows)


def one_vertex(job: Job) -> Vertex:
    """The only vertex of a job."""
    (vertex,) = definition_of(job).vertices()
    return vertex


def frames_of(session: SparkSession, job: Job) -> Frames:
    """The plans of a job's queries, none of which runs. Release them in the end."""
    definition = definition_of(job)
    return Frames(
        session=session,
        pipeline=Pipeline(
            vertices={vertex.name: vertex for vertex in definition.vertices()},
            functions=definition.functions,
            sinks=definition.sinks,
        ),
        on_call=lambda vertex, call: None,
        token="test",
        clock=SystemClock(),
    )


class Rig:
    """Runs a job's only vertex; ``on_plan(position)`` says whether to answer a planning call."""

    def __init__(
        self,
        session: SparkSession,
        job: Job,
        directory: Path,
        *,
        position: int = -1,
        on_plan: Callable[[int], bool] = lambda _: True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = QueryDirectory(LocalFileSystem(), str(directory))
        self.path = directory
        self.events: list[StreamTaskEvent] = []
        self._changed = threading.Condition()
        self._on_plan = on_plan
        self.held: int | None = None
        vertex = self._vertex = one_vertex(job)
        pipeline = Pipeline(
            vertices={vertex.name: vertex},
            functions=definition_of(job).functions,
            sinks=definition_of(job).sinks,
        )
        self._frames = Frames(
            session=session,
            pipeline=pipeline,
            on_call=lambda vertex, call: self.task.planning(call),
            token="test",
            clock=SystemClock(),
        )
        query = VertexQuery(
            session=session,
            vertex=vertex,
            attempt=1,
            frames=self._frames,
            directory=self.directory,
        )
        self.task = QueryTask(
            query,
            BatchStaging(
                query,
                sinks=definition_of(job).sinks,
                output=None,
                finish=lambda position: (),
            ),
            position=position,
            watermark_ms=None,
            failures=TaskFailures(session, vertex, pipeline, None),
            post=self._post,
        )

    def __enter__(self) -> Rig:
        self.task.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.task.stop()
        self._frames.release()

    def wait_for(self, kind: type[E]) -> E:
        """Wait for the first event of this type; fail if the task fails."""
        return self._wait(lambda: [event for event in self.events if isinstance(event, kind)])[0]

    def drain(self, position: int) -> None:
        """Let the query, which has ended, run its batch with MAX_WATERMARK."""
        self.task.drain(StartDrain(vertex=self._vertex.name, position=position))

    def wait_held(self, position: int) -> None:
        """Wait until the planning call at this position is held."""
        self._wait(lambda: self.held is not None and self._position() == position)

    def answer(self) -> None:
        """Answer the held call."""
        with self._changed:
            call, self.held = self.held, None
        assert call is not None
        self.task.answer(AnswerPlanning(call=call))

    def newest(self, log: str) -> int:
        """The newest entry of ``offsets`` or ``commits``; -1 without any."""
        return max(
            (int(name.name) for name in (self.path / log).glob("*") if name.name.isdigit()),
            default=-1,
        )

    def _position(self) -> int:
        return max(
            (event.position for event in self.events if isinstance(event, PlanningCalled)),
            default=-2,
        )

    def _post(self, event: StreamTaskEvent) -> None:
        answered = isinstance(event, PlanningCalled) and self._on_plan(event.position)
        with self._changed:
            self.events.append(event)
            if isinstance(event, PlanningCalled) and not answered:
                self.held = event.call
            self._changed.notify_all()
        if isinstance(event, PlanningCalled) and answered:
            self.task.answer(AnswerPlanning(call=event.call))

    def _wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not (found := condition()):
                errors = [event for event in self.events if isinstance(event, TaskErrored)]
                assert not errors, errors
                left = deadline - time.monotonic()
                assert left > 0, self.events
                self._changed.wait(left)
        return found


def hashes(directory: Path) -> dict[str, str]:
    """The checksum of every file below a directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
