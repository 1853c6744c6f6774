"""State follows its step into other queries: chains that are cut or joined between two runs.

MISSION D5, on real Spark. The first run stops with a savepoint in the middle of its input; the
second one has the same steps in other chains. Whatever the change, the tables equal the batch
computation over the whole input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.e2e.test_chaining import CUTS, expected, land, pipeline
from tests.e2e.test_operator_time import MinuteCounts
from tests.kit.live_job import LiveJob, settings
from tests.kit.place import Place, Rows, assert_same, delta_rows, files_rows

import weir
from weir.core.status import JobStatus

pytestmark = pytest.mark.spark


def stopped(place: Place, job: weir.Job, records: int) -> Path:
    """Run the job until all tasks have read, one of them this much; stop it with a savepoint."""
    with LiveJob(job, settings(place)) as live:
        live.wait_for(
            lambda view: (
                max(one.records_in for one in view.vertices) >= records
                and min(one.records_in for one in view.vertices) > 0
            ),
            f"{records} records",
        )
        savepoint = live.gateway.stop_with_savepoint(None).result().external_path
        live.result()
    return Path(savepoint)


def finish(place: Place, job: weir.Job, savepoint: Path) -> None:
    """Run the job from the savepoint to the end of its input."""
    with LiveJob(job, settings(place, interval="1s"), from_savepoint=str(savepoint)) as live:
        assert live.result().status is JobStatus.FINISHED, live.notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), CUTS),
        ((), ("sessions",)),
    ],
    ids=["cut everywhere", "cut at one step"],
)
def test_chains_that_are_cut_elsewhere_go_on_with_their_state(
    place: Place, spark: SparkSession, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Windows, sessions and a left outer join, each in a query with other numbers."""
    land(place.directory / "orders", files=8, rows=60, every=1)
    land(place.directory / "payments", files=3, rows=60, every=7)
    wanted = expected(spark, place)
    savepoint = stopped(place, pipeline(place, before), 20)
    finish(place, pipeline(place, after), savepoint)
    for name, rows in wanted.items():
        assert_same(delta_rows(place.directory / "out" / name), rows, name)


# -- one chain with state of every kind ------------------------------------------------------------

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
FILES, ROWS = 12, 60


def counted(length: str) -> Callable[[DataFrame], DataFrame]:
    """The sums of ``n`` in windows of this length."""

    def count(frame: DataFrame) -> DataFrame:
        summed = frame.groupBy(F.window("ts", length)).agg(F.sum("n").alias("n"))
        return summed.select(F.window_time("window").alias("ts"), "n")

    return count


def chain(place: Place, *changes: str, bounded: bool) -> weir.Job:
    """Numbers, counted by minute in Python, then by two and by four minutes in Spark.

    Each change is a cut (a step's name), ``+step`` for a further reader of a step, or one of those
    named below.
    """
    out = place.directory / "out"
    job = weir.Job("counted")
    steps = {
        "numbers": job.source(
            "numbers",
            lambda spark: (
                spark.readStream.schema("id long, ts timestamp")
                .option("maxFilesPerTrigger", 1)
                .parquet(str(place.directory / "in"))
            ),
            bounded=bounded,
        )
    }

    def add(step: str, function: Callable[[DataFrame], DataFrame], after: str) -> str:
        steps[step] = steps[after].transform(step, function, uid=uids.get(step))
        return step

    uids = {"pairs": "twos"} if "renamed" in changes else {}
    twos = "pairs" if "renamed" in changes else "twos"
    timed = add(
        "timed",
        lambda frame: frame.withWatermark("ts", "30 seconds").withColumn(
            "minute", F.date_trunc("minute", "ts")
        ),
        "numbers",
    )
    if "watched" in changes:
        timed = add("watched", lambda frame: frame.filter("id >= 0"), timed)
    steps["counts"] = steps[timed].process("counts", MinuteCounts(), key_by="minute", parallelism=2)
    add(twos, counted("2 minutes"), "counts")
    last = add("fours", counted("4 minutes"), twos)
    if "labelled" in changes:
        last = add("labelled", lambda frame: frame.select("ts", "n"), last)
    if "named" in changes:
        last = add("named", lambda frame: frame.select("ts", "n"), last)
    steps[last].sink("table", weir.sinks.Files(str(out / "table")))
    for change in changes:
        if change.startswith("+"):
            sink = weir.sinks.Files(str(out / change[1:]))
            steps[change[1:]].sink(f"{change[1:]}_rows", sink)
        elif change in steps and change not in ("watched", "labelled", "named"):
            steps[change].start_new_chain()
    return job


def fours() -> Rows:
    """What the table must hold at the end."""
    times = (FIRST + timedelta(seconds=one) for one in range(FILES * ROWS))
    found = Counter(int((ts - FIRST).total_seconds()) // 240 for ts in times)
    last = timedelta(minutes=4) - timedelta(microseconds=1)
    return Counter((FIRST + timedelta(minutes=4 * window) + last, n) for window, n in found.items())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((), ("fours",), marks=pytest.mark.slow),
        pytest.param((), ("labelled",), marks=pytest.mark.slow),
        pytest.param(("labelled",), ("named",), marks=pytest.mark.slow),
        pytest.param((), ("renamed", "watched"), marks=pytest.mark.slow),
        pytest.param((), ("+numbers",), marks=pytest.mark.slow),
        pytest.param((), ("+twos",), marks=pytest.mark.slow),
        pytest.param((), ("counts",), marks=pytest.mark.slow),
        pytest.param((), ("twos", "labelled"), marks=pytest.mark.slow),
        pytest.param(("twos",), ("fours", "labelled"), marks=pytest.mark.slow),
        pytest.param((), ("timed", "counts", "twos", "fours"), marks=pytest.mark.slow),
        pytest.param(("counts",), (), marks=pytest.mark.slow),
        pytest.param(("twos",), (), marks=pytest.mark.slow),
        pytest.param(("fours",), (), marks=pytest.mark.slow),
    ],
    ids=lambda changes: ",".join(changes) or "whole",
)
def test_state_follows_its_step(
    place: Place, spark: SparkSession, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """Timers and keyed state in Python, and windows in Spark: the table has each count once."""
    del spark
    land(place.directory / "all", files=FILES, rows=ROWS, every=1)
    landed = place.directory / "in"
    landed.mkdir()
    files = sorted((place.directory / "all").iterdir())
    for file in files[:7]:
        (landed / file.name).hardlink_to(file)
    savepoint = stopped(place, chain(place, *before, bounded=False), 7 * ROWS)
    for file in files[7:]:
        (landed / file.name).hardlink_to(file)
    committed = files_rows(place.directory / "out" / "table").total()
    assert committed < fours().total()
    finish(place, chain(place, *after, bounded=True), savepoint)
    assert_same(files_rows(place.directory / "out" / "table"), fours(), "the table")
