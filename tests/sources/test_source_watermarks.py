"""Watermarks by split: the numbered rules of ``weir.sources.watermarks``, each by its number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.ranges import SCHEMA, Range, Ranges
from tests.kit.source_job import FakeJob

import weir
from weir.errors import PipelineError
from weir.sources import Watermarks
from weir.sources.watermarks import ReaderTime, SplitWatermarks, lowest_of, slowest_of


def job_of(*ranges: Range, rows: int = 2, **strategy: int) -> FakeJob:
    """One reader that has been assigned all ranges; the number n has the time n seconds."""
    job = FakeJob(
        Ranges(rows=rows, bounded=False),
        1,
        schema=SCHEMA,
        watermarks=Watermarks(column="ts", **strategy),
    )
    job.batch()
    job.coordinator.assign_splits(list(ranges), 0)
    return job


def reached(watermark_ms: int | None) -> ReaderTime:
    return ReaderTime(watermark_ms=watermark_ms, is_active=True)


IDLE = ReaderTime(watermark_ms=None, is_active=False)
EARLY, LATE = Range("early", 0, 100), Range("late", 500, 600)


def test_the_watermark_is_that_of_the_slowest_split() -> None:
    """Rules 1 and 2: the newest row minus the delay, and nothing before each split has rows."""
    job = job_of(EARLY, LATE, delay_ms=250)
    job.batch()
    assert job.time == reached(None)
    job.batch()
    assert job.time == reached(1_000 - 250)
    job.batch()
    assert job.time == reached(3_000 - 250)


def test_a_splits_watermark_is_part_of_its_state() -> None:
    """Rule 1: another process, and a restored job, know it."""
    job = job_of(EARLY, LATE)
    for _ in range(3):
        job.batch(new_processes=True)
    assert job.time == reached(3_000)
    checkpoint = job.checkpoint()
    job.restore(checkpoint)
    job.batch(may_read=False)
    assert job.time == reached(3_000)


def test_a_split_without_rows_becomes_idle_and_comes_back() -> None:
    """Rule 3, from the first time that it was read without a row."""
    time = SplitWatermarks(Watermarks(column="ts", idle_after_ms=100))
    time.add("a")
    time.add("b")
    time.read("a", 5_000)
    assert time.end_batch(900) == reached(None), "b has not been read yet"
    time.read_nothing("b", 1_000)
    time.read_nothing("b", 1_099)
    assert time.end_batch(1_099) == reached(None)
    assert time.end_batch(1_100) == reached(5_000), "b is idle"
    time.read_nothing("a", 1_100)
    assert time.end_batch(1_200) == IDLE, "so is a"
    time.read("b", 2_000)
    assert time.end_batch(1_300) == reached(2_000)


def test_a_split_may_have_rows_until_it_was_read_without_one() -> None:
    """A drain counts such splits as unread; a new attempt does not know."""
    time = SplitWatermarks(Watermarks(column="ts"))
    time.add("a")
    time.add("b")
    assert time.unread == 2
    time.read("a", 5_000)
    time.read_nothing("b", 1_000)
    assert time.unread == 1
    time.finish("a")
    time.end_batch(1_000)
    assert time.unread == 0
    time.begin_attempt()
    assert time.unread == 1


def test_time_without_a_driver_makes_no_split_idle() -> None:
    """Rule 3: rows may have come meanwhile, and wait to be read."""
    source = Ranges(rows=2, bounded=False)
    source.there = 2
    strategy = Watermarks(column="ts", idle_after_ms=100)
    job = FakeJob(source, 1, schema=SCHEMA, watermarks=strategy)
    job.batch()
    job.coordinator.assign_splits([EARLY], 0)
    job.batch()
    job.batch()
    assert job.splits()[0][0]["position"] == 2
    job.now_ms += 99
    checkpoint = job.checkpoint()
    assert job.time == reached(1_000)
    job.now_ms += 1
    job.batch()
    assert job.time == IDLE
    job.restore(checkpoint)
    job.now_ms += 1_000_000
    job.batch(may_read=False)
    assert job.time == reached(1_000)


def test_a_reader_without_splits_is_idle_and_one_without_rows_is_not() -> None:
    """Rules 2 and 3, over all readers."""
    assert lowest_of([reached(7), IDLE, reached(5)]) == reached(5)
    assert lowest_of([reached(7), reached(None)]) == reached(None)
    assert lowest_of([IDLE, IDLE]) == IDLE
    assert lowest_of([]) == IDLE


def test_a_finished_split_counts_once_more() -> None:
    """Rule 4: otherwise splits that are read in one batch would never move the watermark."""
    job = job_of(Range("a", 10, 12), LATE, rows=4)
    job.batch()
    assert job.time == reached(11_000)
    job.batch()
    assert job.time.watermark_ms > 500_000


def test_a_split_that_is_too_far_ahead_is_paused_until_the_others_have_come_closer() -> None:
    """Rule 6; nothing of it is read meanwhile, and in the end everything is."""
    job = job_of(Range("slow", 0, 50), Range("ahead", 1_000, 1_010), max_drift_ms=960_000)
    read: list[int] = []
    while job.batch():
        read = [row["n"] for row in job.rows]
    assert sorted(read) == [*range(50), *range(1_000, 1_010)]
    before = read[: read.index(1_002)]
    assert max(n for n in before if n < 50) + 960 >= 1_001


def test_splits_that_are_all_idle_wait_for_no_other() -> None:
    """Rules 3 and 6: rows that come after a quiet time are read, also in a restored job."""
    source = Ranges(rows=2, bounded=False)
    source.there = 502
    strategy = Watermarks(column="ts", idle_after_ms=100, max_drift_ms=10_000)
    job = FakeJob(source, 1, schema=SCHEMA, watermarks=strategy)
    job.batch()
    job.coordinator.assign_splits([LATE], 0)
    assert (job.batch(), job.batch()) == (2, 0)
    job.now_ms += 100
    job.batch()
    assert job.time == IDLE
    checkpoint = job.checkpoint()
    source.there = 504
    assert job.batch(new_processes=True) == 2
    job.restore(checkpoint)
    assert job.batch() == 2


def test_a_split_goes_on_when_the_one_that_it_waits_for_is_idle() -> None:
    """Rule 6: it is then the slowest of those that have rows; after a restore it waits again."""
    strategy = Watermarks(column="ts", idle_after_ms=100, max_drift_ms=10_000)
    time = SplitWatermarks(strategy)
    for name, newest_ms in (("a", 1_000), ("b", 50_000)):
        time.add(name)
        time.read(name, newest_ms)
    assert time.ahead(slowest_of([time.end_batch(0)])) == {"b"}
    time.read_nothing("a", 0)
    assert time.ahead(slowest_of([time.end_batch(99)])) == {"b"}
    assert time.ahead(slowest_of([time.end_batch(100)])) == frozenset()
    restored = SplitWatermarks(strategy)
    restored.add("a", 1_000, 0)
    restored.add("b", 50_000)
    restored.begin_attempt()
    assert restored.ahead(slowest_of([])) == frozenset(), "nobody has said anything yet"
    assert restored.ahead(slowest_of([restored.end_batch(9_000)])) == {"b"}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1_000)), max_size=40),
    st.integers(1, 300),
)
def test_no_split_gets_more_than_the_drift_and_one_read_ahead(
    reads: list[tuple[str, int]], drift_ms: int
) -> None:
    """Rule 6: a paused split is ahead, and the slowest is never paused."""
    time = SplitWatermarks(Watermarks(column="ts", max_drift_ms=drift_ms))
    for name in "abc":
        time.add(name)
    for name, newest_ms in reads:
        lowest = slowest_of([time.end_batch(0)])
        paused = time.ahead(lowest)
        assert len(paused) < 3
        if name in paused:
            mark = time.time_of(name).watermark_ms
            assert mark is not None
            assert lowest is None or mark > lowest + drift_ms
        else:
            time.read(name, newest_ms)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"delay_ms": -1}, "delay_ms=-1: set it to whole milliseconds, 0 or more"),
        ({"idle_after_ms": 0}, "idle_after_ms=0: set it to whole milliseconds, 1 or more"),
        ({"delay_ms": "10"}, "delay_ms='10': set it to whole milliseconds, 0 or more"),
        ({"delay_ms": None}, "delay_ms=None"),
        ({"max_drift_ms": 1.5}, "max_drift_ms=1.5"),
        ({"max_drift_ms": 0}, "max_drift_ms=0: set it to whole milliseconds, 1 or more"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    """When the pipeline is written."""
    with pytest.raises(PipelineError, match=message):
        Watermarks(column="ts", **wrong)


def test_sources_of_spark_take_no_watermarks_by_split() -> None:
    """They know no splits."""
    with pytest.raises(PipelineError, match="call withWatermark in its function"):
        weir.Job("job").source("in", lambda spark: spark, watermarks=Watermarks(column="ts"))
