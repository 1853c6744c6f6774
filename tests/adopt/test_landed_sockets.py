"""A socket's lines: in files before anything reads them, exact from there on."""

from __future__ import annotations

import json
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kit.live_job import RESTARTED, LiveJob, RaiseOnce, WatchedFiles, settings
from tests.kit.place import Place
from tests.kit.waiting import wait_until

import weir
from weir.adopt.landing import Receiver, landed
from weir.errors import InputError, PipelineError

pytestmark = pytest.mark.spark


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that sends what the test has it send."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def accepted(server: socket.socket, live: LiveJob) -> socket.socket:
    """The connection of a running job; fails with what it says if it makes none."""
    server.settimeout(120)
    try:
        return server.accept()[0]
    except TimeoutError as error:
        raise AssertionError(f"no connection: {live.notes}; {live.gateway.view()}") from error


def address(server: socket.socket) -> tuple[str, int]:
    host, port = server.getsockname()
    return host, port


def landed_lines(directory: Path) -> list[str]:
    # What is still being written has a hidden name.
    files = sorted(directory.glob("[!.]*.json"))
    return [json.loads(line)["value"] for file in files for line in file.open()]


def test_lines_are_rows_once_through_a_failure_and_another_run(
    spark: SparkSession, tmp_path: Path, server: socket.socket
) -> None:
    """The job fails after the lines were received: nobody sends them again. Between the runs, the
    files that were read are deleted."""
    place = Place(tmp_path)
    out = tmp_path / "out"
    fails = RaiseOnce(OSError("the disk is away"))
    read = landed(*address(server), False, str(tmp_path / "landing"))
    job = weir.Job("words")
    job.source("lines", read).sink("out", WatchedFiles(out, flush=fails))
    expected: Counter[str] = Counter()
    conf = settings(place, RESTARTED, interval="200ms")
    with LiveJob(job, conf) as live, accepted(server, live) as peer:
        for number in range(20):
            peer.sendall(f"line {number}\nline again\n".encode())
            expected.update([f"line {number}", "line again"])
        wait_until(lambda: shown(spark, out) == expected, "every line is committed")
    for file in (tmp_path / "landing").glob("[!.]*.json"):
        file.unlink()
    again = landed(*address(server), False, str(tmp_path / "landing"))
    job = weir.Job("words")
    job.source("lines", again).sink("out", weir.sinks.Files(str(out)))
    with LiveJob(job, conf) as live, accepted(server, live) as peer:
        peer.sendall(b"more\n")
        expected["more"] += 1
        wait_until(lambda: shown(spark, out) == expected, "the new line is committed")


def shown(spark: SparkSession, out: Path) -> Counter[str]:
    if not list(out.glob("*.parquet")):
        return Counter()
    return Counter(
        row.value for row in spark.read.schema("value string").parquet(str(out)).collect()
    )


def test_lines_are_landed_as_they_are_and_the_end_is_said(
    spark: SparkSession,
    tmp_path: Path,
    server: socket.socket,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A last line without an end, and lines in pieces, are lines; a carriage return is part of a
    line's end. Each has the time of its receipt if asked for."""
    frame = landed(*address(server), True, str(tmp_path))(spark)
    assert frame.dtypes == [("value", "string"), ("timestamp", "timestamp")]
    peer, _ = server.accept()
    with caplog.at_level(logging.WARNING, "weir.adopt.landing"), peer:
        peer.sendall(b"a\r\n\nzwei W")
        wait_until(lambda: landed_lines(tmp_path) == ["a", ""], "whole lines are landed")
        peer.sendall('örter\n"quoted"\\\nlast'.encode())
        peer.shutdown(socket.SHUT_WR)
        wait_until(lambda: "has ended after 5 lines" in caplog.text, "the end is said")
    assert landed_lines(tmp_path) == ["a", "", "zwei Wörter", '"quoted"\\', "last"]
    rows = spark.read.schema(frame.schema).json(str(tmp_path)).collect()
    assert len(rows) == 5 and all(row.timestamp is not None for row in rows)


def test_lines_of_a_driver_that_was_replaced_and_goes_on_are_kept(
    tmp_path: Path, server: socket.socket
) -> None:
    """Both write to one directory; neither writes over the other's files."""
    peers = []
    for _ in range(2):
        Receiver(address(server), tmp_path)
        peers.append(server.accept()[0])
    for number in range(5):
        for peer in peers:
            peer.sendall(f"{number}\n".encode())
    wait_until(lambda: len(landed_lines(tmp_path)) == 10, "all lines are landed")
    for peer in peers:
        peer.close()
    assert Counter(landed_lines(tmp_path)) == {str(number): 2 for number in range(5)}


def test_a_socket_that_cannot_be_connected_is_named(spark, tmp_path):
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host, port = closed.getsockname()
    with pytest.raises(InputError, match=rf"{host}:{port} cannot be connected .*: start the pro"):
        landed(host, port, False, str(tmp_path))(spark)


def test_lines_are_landed_in_local_directories_only():
    """Of other file systems no thread of the driver knows whether a write is durable."""
    with pytest.raises(PipelineError, match="a job that reads a socket in a local directory"):
        landed("localhost", 9999, False, "s3a://bucket/landing")
