"""The counters of a job's vertices are read beside those who look at them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from tests.kit.clock import ManualClock
from tests.kit.waiting import wait_until

from weir.monitoring.counters import Counters
from weir.runtime.ports import TaskPort, VertexMetrics

SERVE_MS = 1_000


class Reads:
    """A JVM whose counter is the number of reads; from the second on, each read waits for leave."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.count = 0
        self.leave = threading.Semaphore(1)
        port = cast(TaskPort, SimpleNamespace(metrics=self._metrics))
        self.counters = Counters(["a"], port, self.clock)

    def _metrics(self, vertex: str) -> VertexMetrics:
        self.leave.acquire()
        self.count += 1
        return VertexMetrics(records_in=self.count)

    def records(self) -> int:
        """What the newest counters say."""
        return self.counters.newest["a"].records_in


@pytest.fixture
def reads() -> Iterator[Reads]:
    made = Reads()
    yield made
    made.leave.release(20)


def test_the_first_to_look_waits_for_the_counters(reads: Reads) -> None:
    """There are none before."""
    reads.counters.read(threading.TIMEOUT_MAX, serve_ms=SERVE_MS)
    assert reads.records() == 1


def test_counters_of_a_moment_ago_serve_a_reader_without_waiting(reads: Reads) -> None:
    """They are read meanwhile, once for all who look."""
    reads.counters.read(threading.TIMEOUT_MAX)
    reads.clock.ms = SERVE_MS - 1
    for _ in range(3):
        reads.counters.read(threading.TIMEOUT_MAX, serve_ms=SERVE_MS)
        assert reads.records() == 1
    reads.leave.release()
    wait_until(lambda: reads.records() == 2, "the counters that were read meanwhile")


def test_counters_that_are_too_old_are_waited_for(reads: Reads) -> None:
    """However long the JVM takes, up to the caller's patience."""
    reads.counters.read(threading.TIMEOUT_MAX)
    reads.clock.ms = SERVE_MS
    threading.Timer(0.1, reads.leave.release).start()
    reads.counters.read(threading.TIMEOUT_MAX, serve_ms=SERVE_MS)
    assert reads.records() == 2
    reads.clock.ms = 2 * SERVE_MS
    reads.counters.read(0.05, serve_ms=SERVE_MS)
    assert reads.records() == 2


def test_the_last_look_of_a_run_waits_for_what_is_so_now(reads: Reads) -> None:
    """What another look has begun to read may be older."""
    reads.counters.read(threading.TIMEOUT_MAX)
    reads.counters.read(threading.TIMEOUT_MAX, serve_ms=SERVE_MS)
    reads.leave.release(2)
    reads.counters.read_again(threading.TIMEOUT_MAX)
    assert reads.records() == 3
