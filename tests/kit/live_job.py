"""One job in this process, on the tests' own Spark session: many checkpoints are cheap to inspect.

Rules of these tests:

1. A test never guesses how long something takes. It holds a sink at a ``Gate``, looks at the job,
   and lets it go on.
2. What a job left on disk is checked by code that knows the file formats, but shares nothing with
   Weir's own.
3. Leaving ``LiveJob`` suspends a job that still runs, so that none survives its test. A gate is
   entered after it: it is opened before, and nothing hangs there.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.kit.numbers_pipeline import by_minute, timed
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import PATIENCE_S, wait_until

import weir
from weir.core.checkpoints.stats import CheckpointStats
from weir.core.types import CompletedCheckpoint, Payload, TaskStatus
from weir.gateway.job_gateway import JobGateway
from weir.job import definition_of
from weir.launch.options import JobResult, RunOptions
from weir.launch.runner import run_job
from weir.monitoring.views import JobView
from weir.sinks.base import Batch

_POLL_S = 0.02

#: For a job that is supposed to fail and be restored.
RESTARTED = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "5",
    "restart-strategy.fixed-delay.delay": "100ms",
}


def settings(
    place: Place, changes: dict[str, str] | None = None, **checkpointing: str
) -> dict[str, str]:
    """The configuration of a job with all its files in the place; ``min_pause`` is ``min-pause``.

    Unless told otherwise there are no periodic checkpoints, and a job that fails is not restarted.
    """
    given = {
        "interval": "disabled",
        "dir": str(place.directory / "checkpoints"),
        "savepoint-dir": str(place.directory / "savepoints"),
        **{name.replace("_", "-"): value for name, value in checkpointing.items()},
    }
    return {
        "weir.working-dir": str(place.directory / "work"),
        "parallelism.default": "2",
        "rest.port": "0",
        "restart-strategy.type": "none",
        "web.checkpoints.history": "1000",
        # The session is shared with other tests, which need it so.
        "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
        **{f"execution.checkpointing.{name}": value for name, value in given.items()},
        **(changes or {}),
    }


# -- jobs ------------------------------------------------------------------------------------------


class Gate:
    """Holds the Nth caller until it is opened; all others pass."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._lock = threading.Lock()
        self._opened = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            held = self._left == 0
        if held:
            assert self._opened.wait(PATIENCE_S), "the gate was never opened"

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def open(self) -> None:
        """Let every caller pass from now on."""
        self._opened.set()


class RaiseOnce:
    """Raises the error at its first call only."""

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop()


def pass_by() -> None:
    """Neither holds nor raises."""


class WatchedFiles(weir.sinks.Files):
    """``Files`` that calls a function of the test before a batch is staged or flushed."""

    def __init__(
        self,
        path: Path,
        *,
        stage: Callable[[], None] = pass_by,
        flush: Callable[[], None] = pass_by,
    ) -> None:
        super().__init__(str(path))
        self._before_stage = stage
        self._before_flush = flush

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        self._before_stage()
        return super().stage(frame, batch)

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        self._before_flush()
        return super().flush(payloads)


def numbers_job(
    place: Place, *, bounded: bool, name: str = "numbers", **watched: Callable[[], None]
) -> weir.Job:
    """The place's numbers, one file per batch, into the ``WatchedFiles`` ``out/raw``."""
    job = weir.Job(name)
    raw = WatchedFiles(place.directory / "out" / "raw", **watched)
    job.source("numbers", numbers(place), bounded=bounded).sink("raw", raw)
    return job


def minutes_job(place: Place, *, bounded: bool, name: str = "numbers") -> weir.Job:
    """A query with state: the count of the place's numbers per minute, into ``out/minutes``."""
    job = weir.Job(name)
    _count(place, job, bounded=bounded)
    return job


def both_jobs(place: Place, *, bounded: bool, name: str = "numbers") -> weir.Job:
    """Two tasks in one job: ``numbers_job`` and ``minutes_job``."""
    job = numbers_job(place, bounded=bounded, name=name)
    _count(place, job, bounded=bounded)
    return job


def numbers(place: Place) -> Callable[[SparkSession], DataFrame]:
    """A source function: the place's numbers, one file per batch."""

    def read(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(place.directory / "in"))

    return read


def _count(place: Place, job: weir.Job, *, bounded: bool) -> None:
    minutes = weir.sinks.Files(str(place.directory / "out" / "minutes"))
    again = job.source("numbers_again", numbers(place), bounded=bounded)
    again.transform("by_minute", lambda frame: by_minute(timed(frame))).sink("minutes", minutes)


def assert_copied(place: Place) -> None:
    """Check that ``out/raw`` has exactly the input."""
    assert_same(raw_rows(place), place.rows(), "the copy")


def assert_counted(place: Place) -> None:
    """Check that ``out/minutes`` has exactly the input's minutes after the job's end."""
    assert_same(files_rows(place.directory / "out" / "minutes"), place.minutes(), "the minutes")


def wait_until_copied(place: Place) -> None:
    """Wait until checkpoints have committed every row that has landed."""
    wait_until(lambda: raw_rows(place).total() == place.rows().total(), "every row is committed")


def raw_rows(place: Place) -> Rows:
    """The copied rows as readers see them."""
    return files_rows(place.directory / "out" / "raw")


class LiveJob:
    """Runs a job on a separate thread while the test observes it. Implements ``RunListener``."""

    def __init__(self, job: weir.Job, conf: dict[str, str], **options: Any) -> None:
        self._job = job
        self._options = RunOptions(conf=conf, **options)
        self._result: Future[JobResult] = Future()
        self._known: Future[tuple[str, JobGateway, str]] = Future()
        self._thread = threading.Thread(target=self._run, name="live-job", daemon=True)
        self.notes: list[str] = []
        #: The phases of the start in order; None marks its end.
        self.phases: list[str | None] = []
        #: Ids of the checkpoints that attempts were restored from.
        self.restored_ids: list[int] = []

    def __enter__(self) -> LiveJob:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._result.done():
            self.gateway.suspend()
        elif error is not None and (ended := self._result.exception()) is not None:
            error.add_note(f"The job had ended: {ended}")
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the job does not end: {self.notes}"

    # -- what the run tells ------------------------------------------------------------------------

    def submitted(self, job_id: str, gateway: JobGateway, rest_address: str) -> None:
        """The run has started."""
        self._known.set_result((job_id, gateway, rest_address))

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """An attempt was restored from a checkpoint."""
        self.restored_ids.append(checkpoint.checkpoint_id)

    def phase(self, name: str | None) -> None:
        """What the start is waiting for."""
        self.phases.append(name)

    def note(self, message: str) -> None:
        """A line for the user."""
        self.notes.append(message)

    # -- what the test asks ------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._known.result(PATIENCE_S)[0]

    @property
    def gateway(self) -> JobGateway:
        """The running job; raises the reason if it could not start."""
        return self._known.result(PATIENCE_S)[1]

    @property
    def address(self) -> str:
        """The address of its REST server."""
        return self._known.result(PATIENCE_S)[2]

    def result(self) -> JobResult:
        """Wait for the job's outcome; raise the reason if it could not start."""
        return self._result.result(PATIENCE_S)

    def wait_for(self, condition: Callable[[JobView], bool], what: str) -> JobView:
        """Return the first view that satisfies the condition; fail if the job ends without one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self._result.done()
            view = self.gateway.view()
            if condition(view):
                return view
            assert not ended, f"the job ended, but never: {what}; {view}; {self.notes}"
            assert time.monotonic() < deadline, f"never: {what}; {view}; {self.notes}"
            time.sleep(_POLL_S)

    def wait_until_it_runs(self) -> None:
        """Wait until every task is running."""
        running = TaskStatus.RUNNING
        self.wait_for(
            lambda view: all(v.status is running for v in view.vertices), "every task runs"
        )

    def wait_for_steps(self, steps: int) -> None:
        """Wait until every task has run this many steps."""
        self.wait_for(
            lambda view: min(v.position for v in view.vertices) >= steps - 1, f"{steps} steps"
        )

    def wait_for_records(self, records: int) -> None:
        """Wait until every task has read this many records.

        Steps cannot tell: Spark adds some without data.
        """
        self.wait_for(
            lambda view: min(v.records_in for v in view.vertices) >= records, f"{records} records"
        )

    def checkpoint(self) -> CompletedCheckpoint:
        """Take a checkpoint once the tasks run; raise ``JobError`` with the reason if it fails."""
        self.wait_until_it_runs()
        return self.gateway.trigger_checkpoint().result(PATIENCE_S)

    def savepoint(self) -> Path:
        """Take a savepoint once the tasks run."""
        self.wait_until_it_runs()
        return Path(self.gateway.trigger_savepoint(None).result(PATIENCE_S).external_path)

    def cancel(self) -> None:
        """Cancel the job and wait for its end."""
        self.gateway.cancel().result(PATIENCE_S)
        self.result()

    def history(self, status: str) -> list[CheckpointStats]:
        """The job's checkpoints of this status (IN_PROGRESS, COMPLETED, FAILED), oldest first."""
        known = reversed(self.gateway.view().checkpoints.history)
        return [checkpoint for checkpoint in known if checkpoint.status == status]

    def _run(self) -> None:
        try:
            self._result.set_result(run_job(definition_of(self._job), self._options, self))
        except BaseException as error:
            self._result.set_exception(error)
            if not self._known.done():
                self._known.set_exception(error)


# -- what lies on disk -----------------------------------------------------------------------------


def retained(job_directory: Path) -> list[Path]:
    """Directories of the checkpoints that the newest record of the job's log names, oldest first.

    Fails if the metadata of one is not what the record says.
    """
    record = json.loads(max((job_directory / "log").glob("[0-9]*")).read_bytes())
    for known in record["checkpoints"]:
        metadata = Path(known["path"], "_metadata").read_bytes()
        assert known["checksum"] == f"sha256:{hashlib.sha256(metadata).hexdigest()}", known
    return [Path(known["path"]) for known in record["checkpoints"]]


def metadata_of(snapshot: Path) -> dict[str, Any]:
    """The metadata file of the checkpoint or savepoint."""
    fields: dict[str, Any] = json.loads((snapshot / "_metadata").read_bytes())["checkpoint"]
    return fields


def files_of(checkpoint: Path) -> set[str]:
    """A checkpoint's files by their paths below its job's directory; fails if one is incomplete."""
    files = {f"{checkpoint.name}/_metadata"}
    for task in metadata_of(checkpoint)["tasks"]:
        for handle in task["files"]:
            content = (checkpoint.parent / handle["path"]).read_bytes()
            assert handle["size"] == len(content), handle
            assert handle["checksum"] == f"crc32:{zlib.crc32(content):08x}", handle
            files.add(handle["path"])
    return files


def retained_files(job_directory: Path) -> set[str]:
    """The files of all retained checkpoints; fails if one is incomplete."""
    return set().union(*(files_of(checkpoint) for checkpoint in retained(job_directory)))


def files_below(directory: Path) -> set[str]:
    """All files below a directory by their paths in it; some may vanish meanwhile."""
    return {
        str(Path(folder, name).relative_to(directory))
        for folder, _, names in os.walk(directory)
        for name in names
    }


def checkpoint_files(job_directory: Path) -> set[str]:
    """All files of a job's checkpoint directory except those for bookkeeping."""
    books = ("log/", "ids/", "lease", "archive")
    return {path for path in files_below(job_directory) if not path.startswith(books)}
