"""A fan-out job's tables agree at every checkpoint, as ``read_consistent`` shows them (MISSION G1).

One source feeds three Delta tables, each written by a query of its own: the rows as they are, the
same rows behind a channel, and behind another channel a count by windows. The tables' commits are
not simultaneous, and nothing makes them so: the test holds the commit of the second table while the
others go on, so that their newest versions differ for certain. Some rounds close no window: the
job's records tell that such an epoch was empty, or the cut would wait for the next.

A window is in its table as soon as its end is not above the watermark with which the last batch of
its query ran. Which one that was says the batch's entry in the offset log, inside ``_metadata``;
the entry in the commit log has the watermark of the batch after it, by which nothing has been
emitted yet.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.live_job import LiveJob, metadata_of, settings
from tests.kit.place import Place, Rows, assert_same, delta_rows
from tests.kit.waiting import PATIENCE_S

import weir
from weir.core.types import Payload

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

_WINDOW = timedelta(seconds=30)
_ROUNDS = 6
_READS_BETWEEN_COMMITS = 4
_READS = 50


class HeldTable(weir.sinks.DeltaTable):
    """A Delta table whose next commit with rows can be held until the test releases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.is_waiting = False
        self._may_pass = threading.Event()
        self._may_pass.set()

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        if any(payload["files"] for payload in payloads) and not self._may_pass.is_set():
            self.is_waiting = True
            assert self._may_pass.wait(PATIENCE_S), "the commit was never let go on"
            self.is_waiting = False
        return super().commit(epoch, payloads)

    def __enter__(self) -> HeldTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def hold(self) -> None:
        """Hold the next commit with rows."""
        self._may_pass.clear()

    def let_go(self) -> None:
        """Release every commit."""
        self._may_pass.set()


class Tables:
    """The three tables of the job, and reads of them at one cut."""

    def __init__(self, place: Place) -> None:
        out = place.directory / "out"
        self.paths = {name: str(out / name) for name in ("raw", "copies", "windows")}
        self._checkpoints = place.directory / "checkpoints"
        self.reads = 0

    def newest(self, name: str) -> Rows:
        """The rows that a reader of the newest version sees."""
        return delta_rows(Path(self.paths[name]))

    def read(self) -> Rows:
        """The raw rows of a cut; fails unless all tables agree there."""
        cut = weir.read_consistent(self.paths)
        assert cut.fallback is None
        raw, copies, windows = (rows_at(cut, name) for name in self.paths)
        what = f"at checkpoint {cut.checkpoint_id}, versions {cut.versions}"
        assert_same(copies, raw, f"the copies {what}")
        watermark = self._watermark(cut)
        closed = Rows({row: 1 for row in counted(raw).items() if row[0] + _WINDOW <= watermark})
        assert_same(windows, closed, f"the windows {what}, watermark {watermark}")
        self.reads += 1
        return raw

    def _watermark(self, cut: weir.ConsistentCut) -> datetime:
        """The watermark of the last batch of the windows' query in the cut's checkpoint."""
        metadata = metadata_of(self._checkpoints / cut.job_id / f"chk-{cut.checkpoint_id}")
        (task,) = (one for one in metadata["tasks"] if one["vertex"] == "counted")
        offsets = task["entries"][f"offsets/{task['position']}"].splitlines()
        return datetime.fromtimestamp(json.loads(offsets[1])["batchWatermarkMs"] / 1000, UTC)


def rows_at(cut: weir.ConsistentCut, name: str) -> Rows:
    """All rows of a table of the cut."""
    return Rows(tuple(row.values()) for row in cut.table(name).to_pyarrow_table().to_pylist())


def counted(rows: Rows) -> Counter[datetime]:
    """The number of rows per window, by its start."""
    begins: Counter[datetime] = Counter()
    for (_, ts), times in rows.items():
        begins[ts.replace(second=ts.second // 30 * 30, microsecond=0)] += times
    return begins


def fan_out_job(place: Place, tables: Tables, copies: HeldTable) -> weir.Job:
    """numbers -> timed -> the raw table, and over two channels the copies and the windows."""
    job = weir.Job("numbers")

    def by_window(frame: DataFrame) -> DataFrame:
        windows = frame.groupBy(F.window("ts", f"{_WINDOW.seconds} seconds")).agg(
            F.count("*").alias("n")
        )
        return windows.select(F.col("window.start").alias("start"), "n")

    numbers = job.source("numbers", lambda spark: numbers_of(spark, place))
    timed = numbers.transform("timed", lambda frame: frame.withWatermark("ts", "5 seconds"))
    timed.sink("raw", weir.sinks.DeltaTable(tables.paths["raw"]))
    timed.transform("copied", lambda frame: frame).sink("copies", copies)
    timed.transform("counted", by_window).sink(
        "windows", weir.sinks.DeltaTable(tables.paths["windows"])
    )
    return job


@pytest.mark.slow
def test_tables_agree_at_every_checkpoint_while_the_job_runs_and_between_its_commits(
    place: Place,
) -> None:
    """In fifty or more reads the newest versions differ at least two dozen times; none sees half a
    checkpoint."""
    tables = Tables(place)
    copies = HeldTable(Path(tables.paths["copies"]))
    conf = settings(place, interval="200ms", num_retained="1000")
    place.land(3)
    with LiveJob(fan_out_job(place, tables, copies), conf) as live, copies:
        while not tables.newest("windows"):
            place.land(1)
            live.wait_for(
                lambda _: tables.newest("copies") == place.rows(), "what landed is copied"
            )
        for _ in range(_ROUNDS):
            copies.hold()
            place.land(1)
            landed = place.rows()
            live.wait_for(
                lambda _: copies.is_waiting and tables.newest("raw") == landed,  # noqa: B023
                "one is ahead",
            )
            for _ in range(_READS_BETWEEN_COMMITS):
                assert tables.read() != landed
            assert copies.is_waiting
            copies.let_go()
            live.wait_for(lambda _: tables.read() == landed, "the cut has come to what landed")  # noqa: B023
        while tables.reads < _READS:
            tables.read()


@pytest.mark.slow
def test_a_table_without_rows_since_a_stop_is_read_at_the_checkpoints_of_the_resumed_job(
    place: Place,
) -> None:
    """The new job's records name its tables and the savepoint, so the cut does not stay at the old
    job's."""
    paths = {name: str(place.directory / "out" / name) for name in ("all", "first")}
    conf = settings(place, interval="200ms")

    def job() -> weir.Job:
        made = weir.Job("numbers")
        numbers = made.source("numbers", lambda spark: numbers_of(spark, place))
        numbers.sink("all", weir.sinks.DeltaTable(paths["all"]))
        first = numbers.transform("few", lambda frame: frame.where("id < 3"))
        first.sink("first", weir.sinks.DeltaTable(paths["first"]))
        return made

    def shown() -> int:
        return sum(rows_at(weir.read_consistent(paths), "all").values())

    place.land(2)
    with LiveJob(job(), conf) as live:
        live.wait_for(
            lambda _: sum(delta_rows(Path(paths["all"])).values()) == len(place.rows()),
            "all is there",
        )
        savepoint = live.gateway.stop_with_savepoint(None).result(PATIENCE_S).external_path
        assert live.result().savepoint == savepoint
    old_id, old = live.job_id, shown()
    place.land(2)
    with LiveJob(job(), conf, from_savepoint=savepoint) as live:
        live.wait_for(
            lambda _: shown() == len(place.rows()) > old, "the cut has come to what landed"
        )
        cut = weir.read_consistent(paths)
        assert (cut.job_id, cut.fallback) == (live.job_id, None)
        assert cut.job_id != old_id
        assert sum(rows_at(cut, "first").values()) == 3


def numbers_of(spark: SparkSession, place: Place) -> DataFrame:
    """The landed numbers, one file per batch."""
    reader = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(place.directory / "in"))
