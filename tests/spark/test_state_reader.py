"""Keyed state of real queries, read from snapshots and compared with a computation in Python.

Each query runs over 36 rows, ten seconds apart, with a watermark that is 128 seconds behind: at its
end that stands at 222 seconds. The snapshot is read from a copy elsewhere, after the query's
directory and the original were deleted.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.rig import START, Landing
from typer.testing import CliRunner

import weir
from weir.cli.app import app
from weir.core.messages.task import TakeSnapshot
from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind
from weir.durable.task_snapshots import TaskSnapshots
from weir.readers.savepoint import Savepoint
from weir.runtime.concurrency import SystemClock, ThreadWaits
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.snapshots import QueryState
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

FILES = LocalFileSystem()
JOB = "0123456789abcdef" * 2
DELAY_S = 128
DELAY = f"{DELAY_S} seconds"
#: Seconds from the first row: the time of each row and, at the end, the watermark.
TIMES = {one: one * 10 for one in range(36)}
WATERMARK_S = max(TIMES.values()) - DELAY_S
#: A time in the far future, in milliseconds.
TIMER_MS = 2_000_000_000_000


def windows(frame: DataFrame) -> DataFrame:
    """Count and sum of the ids per minute, by the id modulo 3."""
    keyed = frame.withColumn("k", F.col("id") % 3).withWatermark("ts", DELAY)
    return keyed.groupBy(F.window("ts", "1 minute"), "k").agg(
        F.count("*").alias("n"), F.sum("id").alias("ids")
    )


def sessions(frame: DataFrame) -> DataFrame:
    """Sessions of keys with five consecutive ids each."""
    keyed = frame.withColumn("k", (F.col("id") / 5).cast("long")).withWatermark("ts", DELAY)
    return keyed.groupBy(F.session_window("ts", "30 seconds"), "k").agg(F.count("*").alias("n"))


def distinct(frame: DataFrame) -> DataFrame:
    """One row for every two ids."""
    keyed = frame.select("ts", (F.col("id") / 2).cast("long").alias("k"))
    return keyed.withWatermark("ts", DELAY).dropDuplicatesWithinWatermark(["k"])


def joined(frame: DataFrame) -> DataFrame:
    """Every row with the even one of its id, within half a minute."""
    left, right = frame.withWatermark("ts", DELAY).alias("l"), frame.filter("id % 2 = 0")
    near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 30 SECONDS AND l.ts + INTERVAL 30 SECONDS"
    return left.join(right.withWatermark("ts", DELAY).alias("r"), F.expr(near), "leftOuter").select(
        "l.id"
    )


def processed(frame: DataFrame) -> DataFrame:
    """A processor with a value, a map and a timer per id modulo 3.

    Its class travels to the workers by value.
    """
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "n long")
            self.newest = handle.getMapState("newest", "parity long", "id long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803
            for part in rows:
                before = self.count.get()[0] if self.count.exists() else 0
                self.count.update((before + len(part),))
                for one in sorted(part["id"]):
                    self.newest.updateValue((int(one) % 2,), (int(one),))
            self.handle.registerTimer(TIMER_MS)
            yield pd.DataFrame({"k": [key[0]]})

        def close(self) -> None:
            pass

    keyed = frame.withWatermark("ts", DELAY).select("ts", "id", (F.col("id") % 3).alias("k"))
    return keyed.groupBy("k").transformWithStateInPandas(
        Processor(), outputStructType="k long", outputMode="append", timeMode="eventTime"
    )


def chained(frame: DataFrame) -> DataFrame:
    """Two stateful operators in one query."""
    return (
        windows(frame)
        .groupBy(F.window(F.window_time("window"), "2 minutes"))
        .agg(F.sum("n").alias("n"))
    )


class Saved:
    """Takes a snapshot of a query's files and moves it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        landing = Landing(directory / "in")
        landing.land(3)
        self._landing = landing

    def of(
        self,
        function: Callable[[DataFrame], DataFrame],
        kind: SnapshotKind = SnapshotKind.SAVEPOINT,
    ) -> Path:
        """The final place of the snapshot; nothing else of the query is left."""
        work = self._directory / "work"
        writer = (
            function(self._landing.source(self._spark))
            .writeStream.format("noop")
            .outputMode("append")
        )
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(work)).start()
        query.awaitTermination()
        position = max(
            int(file.name) for file in (work / "commits").iterdir() if file.name.isdigit()
        )
        storage = CheckpointStorage(
            fs=lambda _: FILES, base_directory=str(self._directory / "c"), job_id=JOB
        )
        storage.make_job_directory()
        snapshots = TaskSnapshots(
            vertex="query",
            operators=(
                OperatorState(operator_id="in", name="source in"),
                OperatorState(operator_id="u1", name="transform query"),
            ),
            inputs=(),
            query=QueryState(
                QueryDirectory(FILES, str(work)),
                Transfer(lambda _: FILES),
                restored=None,
                watermark_ms=lambda position: None,
                snapshot_operators=None,
                layout=lambda: None,
                entries={},
            ),
            storage=storage,
            flush=lambda committables, *_: tuple(committables),
            base=(),
            clock=SystemClock(),
            waits=ThreadWaits(),
        )
        target = None
        if kind.is_savepoint:
            target = storage.make_savepoint_directory(str(self._directory))
        snapshots.take(
            TakeSnapshot(
                vertex="query",
                checkpoint_id=7,
                kind=kind,
                timestamp_ms=0,
                target=target,
                position=position,
                finished=False,
                committables=(),
            )
        )
        state, _ = snapshots.proceed(7)
        path = target or storage.checkpoint_directory(7)
        storage.write_metadata(
            CompletedCheckpoint(
                job_id=JOB,
                checkpoint_id=7,
                kind=kind,
                timestamp_ms=1_000,
                completion_timestamp_ms=2_000,
                attempt=1,
                tasks=(state,),
                external_path=path,
            )
        )
        whole = Path(target or storage.job_directory)
        copied = shutil.copytree(whole, self._directory / "elsewhere")
        shutil.rmtree(whole)
        shutil.rmtree(work)
        return copied if target else copied / "chk-7"


@pytest.fixture
def saved(spark: SparkSession, tmp_path: Path) -> Saved:
    return Saved(spark, tmp_path)


@pytest.fixture(scope="module")
def of_windows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint of the windowed aggregation for tests that only read it."""
    return Saved(spark, tmp_path_factory.mktemp("windows")).of(windows)


def rows(frame: DataFrame, *columns: str) -> Counter[tuple[Any, ...]]:
    """Some columns of a frame, times as seconds from the first row."""
    epoch = F.lit(START.timestamp())
    selected = [F.expr(column) for column in columns]
    types = dict(frame.select(*selected).dtypes)
    shown = frame.select(
        *[
            (one.cast("double") - epoch).cast("long") if kind.startswith("timestamp") else one
            for one, kind in zip(selected, types.values(), strict=True)
        ]
    )
    return Counter(tuple(row) for row in shown.collect())


def test_the_state_of_a_windowed_aggregation_is_the_windows_that_are_open(
    spark: SparkSession, of_windows: Path
) -> None:
    """With the count and sum of each; the snapshot has position, watermark, partitions and source
    offset."""
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    for one, time in TIMES.items():
        start = time // 60 * 60
        if start + 60 > WATERMARK_S:
            count, total = expected.get((start, one % 3), (0, 0))
            expected[start, one % 3] = (count + 1, total + one)
    with weir.read_savepoint(str(of_windows), spark) as savepoint:
        state = savepoint.keyed_state("query")
        found = rows(
            state["state"], "key.window.start AS start", "key.k AS k", "value.count", "value.sum"
        )
        source, query = savepoint.operators
    assert list(state) == ["state"]
    assert found == Counter((*key, *value) for key, value in expected.items())
    assert len(found) == 9
    assert (source.uid, query.uid, query.name, query.vertex) == ("in", "u1", "query", "query")
    # Three batches of one file each, and one without data that closed windows.
    assert (query.partitions, query.position, query.source_offsets) == (2, 3, ('{"logOffset":2}',))
    assert query.watermark_ms == (START + timedelta(seconds=WATERMARK_S)).timestamp() * 1_000
    assert (savepoint.checkpoint_id, savepoint.kind, savepoint.drained) == (
        7,
        SnapshotKind.SAVEPOINT,
        False,
    )


@pytest.mark.slow
def test_the_state_of_session_windows_is_the_sessions_that_are_open(
    spark: SparkSession, saved: Saved
) -> None:
    """A session ends half a minute after its last row."""
    keys: dict[int, list[int]] = {}
    for one, time in TIMES.items():
        keys.setdefault(one // 5, []).append(time)
    expected = Counter(
        (key, times[0], times[-1] + 30, len(times))
        for key, times in keys.items()
        if times[-1] + 30 > WATERMARK_S
    )
    with weir.read_savepoint(str(saved.of(sessions)), spark) as savepoint:
        frame = savepoint.keyed_state("query")["state"]
        columns = (
            "value.k AS k",
            "value.session_window.start AS a",
            "value.session_window.end AS z",
            "value.count",
        )
        assert rows(frame, *columns) == expected
    assert len(expected) == 4


@pytest.mark.slow
def test_the_state_of_duplicates_within_the_watermark_is_the_keys_that_may_come_again(
    spark: SparkSession, saved: Saved
) -> None:
    """Each until the watermark passes its first row's time plus the delay."""
    first = {one // 2: time for one, time in reversed(TIMES.items())}
    expected = {key: time + DELAY_S for key, time in first.items() if time + DELAY_S > WATERMARK_S}
    with weir.read_savepoint(str(saved.of(distinct)), spark) as savepoint:
        frame = savepoint.keyed_state("query")["state"]
        found = rows(frame, "key.k", "timestamp_micros(value.expiresAtMicros) AS until")
    assert found == Counter(expected.items())
    assert 0 not in expected


@pytest.mark.slow
def test_both_sides_of_a_join_are_read_from_a_checkpoint_of_a_copied_job(
    spark: SparkSession, saved: Saved
) -> None:
    """The rows near enough to the watermark to be joined: all of the left, the even ones of the
    right."""
    # The watermark is that of the slower side: the newest even row is ten seconds older.
    kept = [one for one, time in TIMES.items() if time + 30 >= WATERMARK_S - 10]
    with weir.read_savepoint(str(saved.of(joined, SnapshotKind.CHECKPOINT)), spark) as checkpoint:
        state = checkpoint.keyed_state("query")
        left, right = rows(state["left"], "value.id"), rows(state["right"], "value.id")
    assert sorted(state) == ["left", "right"]
    assert left == Counter((one,) for one in kept)
    assert right == Counter((one,) for one in kept if one % 2 == 0)


def test_state_variables_and_timers_of_a_processor_are_read_by_their_names(
    spark: SparkSession, saved: Saved
) -> None:
    """Although Spark's own metadata names their schema files at the old location."""
    with weir.read_savepoint(str(saved.of(processed)), spark) as savepoint:
        state = savepoint.keyed_state("query")
        counts = rows(state["count"], "key.k", "value.n")
        newest = rows(state["newest"], "key.k", "user_map_key.parity", "user_map_value.id")
        timers = rows(state["timers"], "key.k", "expiration_timestamp_ms")
    assert sorted(state) == ["count", "newest", "timers"]
    assert counts == Counter(Counter(one % 3 for one in TIMES).items())
    expected = {(one % 3, one % 2): one for one in TIMES}
    assert newest == Counter((*key, one) for key, one in expected.items())
    assert timers == Counter((key, TIMER_MS) for key in range(3))


@pytest.mark.slow
def test_two_stateful_operators_of_one_query_are_distinguished_by_their_numbers(
    spark: SparkSession, saved: Saved
) -> None:
    """Open minutes in one; in the other the pairs of minutes with a closed minute."""
    with weir.read_savepoint(str(saved.of(chained)), spark) as savepoint:
        state = savepoint.keyed_state("query")
        assert sorted(state) == ["state_0", "state_1"]
        minutes = {
            tuple(row) for row in rows(state["state_1"], "key.window.start AS start", "key.k")
        }
        (pair,) = rows(state["state_0"], "key.window.start AS start", "value.sum")
    assert minutes == {(start, k) for start in (180, 240, 300) for k in range(3)}
    assert pair == (120, 6)


def test_inspect_answers_sql_over_a_real_savepoint_and_leaves_nothing_behind(
    spark: SparkSession, of_windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JSON lines and as a table, in a session without Weir's settings, which keeps its own."""
    path = of_windows
    before = {file: file.read_bytes() for file in path.iterdir()}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    key = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    monkeypatch.setattr(Savepoint, "close", _checking_close(spark, key, Savepoint.close))
    spark.conf.set(key, "1")
    try:
        sql = (
            "SELECT key.k, sum(value.count) AS n, max(value.sum) AS most, null AS none FROM state"
            " GROUP BY 1 ORDER BY 1"
        )
        arguments = ["inspect", str(path), "--operator", "u1", "--sql", sql]
        as_json = CliRunner().invoke(app, [*arguments, "--json"])
        as_table = CliRunner().invoke(app, [*arguments, "--limit", "2"])
        whole = CliRunner().invoke(app, ["inspect", str(path), "--operator", "query", "--json"])
        wrong = CliRunner().invoke(
            app, ["inspect", str(path), "--operator", "query", "--sql", "SELECT nope FROM state"]
        )
    finally:
        spark.conf.set(key, "2")
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == [
        {"k": k, "n": 6, "most": 30 + k + 33 + k, "none": None} for k in range(3)
    ]
    assert as_table.stdout.split("\n")[1].split() == ["0", "6", "63", "NULL"]
    assert "first 2 rows" in as_table.stdout
    first = json.loads(whole.stdout.splitlines()[0])
    assert (first["store"], sorted(first)) == ("state", ["key", "partition_id", "store", "value"])
    assert len(whole.stdout.splitlines()) == 9
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
    assert "state has the columns key, value, partition_id" in wrong.stderr
    assert list(tmp_path.iterdir()) == []
    assert {file: file.read_bytes() for file in path.iterdir()} == before


def _checking_close(
    spark: SparkSession, key: str, close: Callable[[Savepoint], None]
) -> Callable[[Savepoint], None]:
    """``close``, after checking that the session's setting is unchanged."""

    def checked(savepoint: Savepoint) -> None:
        assert spark.conf.get(key) == "1"
        close(savepoint)

    return checked
