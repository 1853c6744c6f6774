"""What readers of REST cost a job: ``python -m benchmarks.rest``.

``benchmarks/jobs/rest_weir.py`` runs as a user runs it, with ``weir run``: two queries, the first
of which always has rows to read, on two cores. While it runs, a minute without requests is compared
with a minute in which a hundred requests are sent at once each second, over as many connections, by
a process of its own: what the web page, Flink's dashboard and a scraper ask for. Both minutes of a
pair are cut into slices that alternate, every other two in reverse order, since Spark's compiler
gains from minute to minute, and machines change their speed.

- ``rest_cpu`` is the CPU time that the requests take, of driver (Python) and client together, as a
  part of the machine's. Connecting, once for each slice, does not count.
- ``rest_loss`` is the part of the rows per second that the requests cost, by the median of the
  pairs; at most 0.01. The client's own work is part of it, since it shares the cores with the job.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.commands import JOBS, weir_run
from benchmarks.machine import make_parser, working_directory
from benchmarks.processes import LOG, check_alive, end_on_sigterm, started
from benchmarks.tables import has_rows

LOSS_TARGET = 0.01

#: How long requests are sent, or not sent, at a time.
_SLICE_S = 5
#: How long a server may take to close the connections of a period, or to accept those of the next.
_SETTLE_S = 0.3
_PATIENCE_S = 300.0
_LOOK_S = 0.1
_INTERVAL = "1 s"
_REQUESTS_PER_S = 100
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


def paths_of(job: str, vertex: str) -> list[str]:
    """What is asked for, in turn."""
    return [
        "/jobs/overview",
        f"/jobs/{job}",
        f"/jobs/{job}/checkpoints",
        f"/jobs/{job}/exceptions",
        f"/jobs/{job}/vertices/{vertex}",
        f"/jobs/{job}/vertices/{vertex}/backpressure",
        f"/jobs/{job}/metrics?get=uptime,numRestarts,lastCheckpointDuration",
        "/overview",
        "/taskmanagers",
        "/metrics",
    ]


class Client:
    """Sends the requests, over connections that stay open. It costs as little as it can."""

    def __init__(self, address: str, paths: Sequence[str]) -> None:
        self._url = urlsplit(address)
        self._requests = [
            f"GET {path} HTTP/1.1\r\nHost: {self._url.netloc}\r\n\r\n".encode() for path in paths
        ]

    @contextmanager
    def connected(self) -> Iterator[list[socket.socket]]:
        """The connections for a period. The server closes those that are idle for long."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._connection()) for _ in range(_REQUESTS_PER_S)]

    def send(self, opened: Sequence[socket.socket], seconds: float) -> None:
        """Send the requests of a period, and read their answers.

        Raises ``RuntimeError`` if an answer is not 200, or none comes.
        """
        begun = time.perf_counter()
        for second in range(round(seconds)):
            time.sleep(max(0.0, begun + second - time.perf_counter()))
            self._burst(opened, second)

    def _connection(self) -> socket.socket:
        opened = socket.create_connection((self._url.hostname, self._url.port), _PATIENCE_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _burst(self, opened: Sequence[socket.socket], second: int) -> None:
        answers: dict[socket.socket, bytes] = {}
        complete = 0
        with selectors.DefaultSelector() as selector:
            for number, one in enumerate(opened):
                selector.register(one, selectors.EVENT_READ, one)
                answers[one] = b""
                one.sendall(self._requests[(number + second) % len(self._requests)])
            while complete < len(opened):
                ready = selector.select(_PATIENCE_S)
                for key, _ in ready:
                    one = key.data
                    part = one.recv(1 << 20)
                    answers[one] += part
                    if is_complete(answers[one]):
                        complete += 1
                    elif not part:
                        raise RuntimeError("the server closed a connection")
                if not ready:
                    raise RuntimeError("no answer")


def is_complete(answer: bytes) -> bool:
    """Whether an answer has come whole. Raises ``RuntimeError`` if it is not 200."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not end:
        return False
    if not head.startswith(b"HTTP/1.1 200 ") or length is None:
        raise RuntimeError(head.decode())
    return len(body) == int(length[1])


def serve(address: str, ours: Connection) -> None:
    """The client's process: it gets its paths.

    Then, for each number of seconds that it gets, it says that it is connected, and later that all
    answers have come.
    """
    client = Client(address, ours.recv())
    while (seconds := ours.recv()) is not None:
        with client.connected() as opened:
            time.sleep(_SETTLE_S)
            ours.send(None)
            client.send(opened, seconds)
        ours.send(None)
    ours.close()


@dataclass
class Period:
    """What was counted in slices of one kind, with or without requests."""

    seconds: float = 0.0
    rows: int = 0
    #: CPU time of the driver's Python process and of the client.
    cpu_s: float = 0.0

    def add(self, other: Period) -> None:
        """Count another slice."""
        self.seconds += other.seconds
        self.rows += other.rows
        self.cpu_s += other.cpu_s

    @property
    def rows_per_s(self) -> float:
        """Rows that the sources have read."""
        return self.rows / self.seconds

    @property
    def cpu(self) -> float:
        """CPU time as a part of the machine's."""
        return self.cpu_s / self.seconds / len(os.sched_getaffinity(0))


class Job:
    """The running job, as its REST server shows it, and the client that asks it."""

    def __init__(
        self, address: str, driver: psutil.Process, client: psutil.Process, ours: Connection
    ) -> None:
        """``ours``: the end of the client's pipe."""
        self._http = httpx.Client(base_url=address, trust_env=False, timeout=30)
        self._processes = (driver, client)
        self._ours = ours
        self._id = self._http.get("/jobs").json()["jobs"][0]["id"]

    def vertices(self) -> list[dict[str, Any]]:
        """The job's vertices."""
        found: list[dict[str, Any]] = self._http.get(f"/jobs/{self._id}").json()["vertices"]
        return found

    def paths(self) -> list[str]:
        """What the client asks for."""
        return paths_of(self._id, self.vertices()[0]["id"])

    def run(self, seconds: float, *, asked: bool) -> Period:
        """Let it run, and count."""
        if asked:
            # The server closes the connections of the period before first. A client that asks for a
            # minute connects once, so that does not count.
            time.sleep(_SETTLE_S)
            self._ours.send(seconds)
            self._ours.recv()
        before, begun = self._now()
        if asked:
            self._ours.recv()
        else:
            time.sleep(seconds)
        after, ended = self._now()
        return Period(ended - begun, after.rows - before.rows, after.cpu_s - before.cpu_s)

    def _now(self) -> tuple[Period, float]:
        rows = max(int(one["metrics"]["read-records"]) for one in self.vertices())
        cpu = [one.cpu_times() for one in self._processes]
        return Period(0.0, rows, sum(one.user + one.system for one in cpu)), time.perf_counter()


def compare(job: Job, seconds: float, *, turned: bool) -> dict[bool, Period]:
    """A pair: a period of each kind, slice by slice. ``turned``: requests come first."""
    periods = {False: Period(), True: Period()}
    for number in range(max(1, round(seconds / _SLICE_S))):
        for asked in (False, True) if (number % 2 == 0) != turned else (True, False):
            periods[asked].add(job.run(min(seconds, _SLICE_S), asked=asked))
    return periods


def measure(
    address: str, driver: psutil.Process, pairs: int, seconds: float
) -> list[dict[bool, Period]]:
    """The periods of each pair."""
    ours, theirs = multiprocessing.Pipe()
    # It starts before the first period, which does not count.
    client = multiprocessing.get_context("spawn").Process(
        target=serve, args=(address, theirs), daemon=True
    )
    client.start()
    theirs.close()
    job = Job(address, driver, psutil.Process(client.pid), ours)
    ours.send(job.paths())
    # Spark's compiler is still at work in the first period.
    job.run(seconds, asked=True)
    results = []
    for number in range(1, pairs + 1):
        periods = compare(job, seconds, turned=number % 2 == 0)
        results.append(periods)
        print(
            f"pair {number}: {periods[False].rows_per_s:,.0f} rows/s without requests, "
            f"{periods[True].rows_per_s:,.0f} with; "
            f"CPU of driver and client {periods[False].cpu:.4f} and {periods[True].cpu:.4f}",
            flush=True,
        )
    ours.send(None)
    client.join()
    return results


def address_of(directory: Path) -> str | None:
    """The address of the REST server, once the job's output tells it."""
    log = directory / LOG
    found = _ADDRESS.search(log.read_text(errors="replace")) if log.exists() else None
    return None if found is None else found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether the target is met: the exit code."""
    parser = make_parser("benchmarks.rest", __doc__)
    parser.add_argument("--pairs", type=int, default=3, help="pairs of periods")
    parser.add_argument("--seconds", type=float, default=60, help="length of a period")
    options = parser.parse_args(arguments)
    end_on_sigterm()
    with working_directory(options) as directory:
        command = weir_run(JOBS / "rest_weir.py", interval=_INTERVAL)
        with started(command, directory) as process:
            deadline_s = time.monotonic() + _PATIENCE_S
            while not (has_rows(directory / "table") and has_rows(directory / "digits")):
                check_alive(process, directory, deadline_s)
                time.sleep(_LOOK_S)
            address = address_of(directory)
            assert address is not None
            driver = psutil.Process(process.pid)
            results = measure(address, driver, options.pairs, options.seconds)
    loss = 1 - statistics.median(one[True].rows_per_s / one[False].rows_per_s for one in results)
    cpu = statistics.median(one[True].cpu - one[False].cpu for one in results)
    print(f"rest_cpu part={cpu:.4f}")
    print(f"rest_loss ratio={loss:.4f} target={LOSS_TARGET}")
    return 0 if loss <= LOSS_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
