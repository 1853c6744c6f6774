"""Lineage: which events a run sends, what they say, and that a failing transport costs nothing."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde
from tests.kit.clock import ManualClock
from tests.kit.gateway import completed as completed_at

from weir.config import Configuration
from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.job import JobEnded, JobStatusChanged
from weir.core.messages.protocol import (
    NotifyCheckpointComplete,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, SnapshotKind, TaskStatus
from weir.errors import ConfigurationError
from weir.lineage import reporter as lineage
from weir.lineage.datasets import Dataset, JobDatasets, StepDatasets
from weir.lineage.events import RunIdentity
from weir.lineage.reporter import RUNNING_MS, LineageReporter, configured, is_on
from weir.runtime.watching import Watchers

RUN_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
IDENTITY = RunIdentity(
    run_id=RUN_ID,
    namespace="shop",
    job_name="orders",
    job_id="0" * 32,
    bounded=False,
    spark_version="4.2.0",
)
DATASETS = JobDatasets(
    inputs=(
        StepDatasets(
            step="read",
            datasets=(Dataset(namespace="kafka://a:9092", name="orders"),),
            columns={"id": "bigint"},
        ),
        StepDatasets(step="rate"),
    ),
    outputs=(StepDatasets(step="out", datasets=(Dataset(namespace="file", name="/out"),)),),
)


def completed_checkpoint(number: int) -> CompletedCheckpoint:
    return completed_at(number, f"/data/chk-{number}")


class Kept:
    """A transport that keeps what it gets, as JSON."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: object) -> None:
        self.events.append(json.loads(Serde.to_json(event)))

    @property
    def states(self) -> list[str]:
        return [one["eventType"] for one in self.events]


class Failing:
    """A transport that never gets through."""

    def emit(self, event: object) -> None:
        raise OSError("no route to host")


def reporter(
    *transports: Any,
    clock: ManualClock | None = None,
    datasets: Callable[[], JobDatasets] = lambda: DATASETS,
    patience_s: float = 10.0,
    attempt: int = 1,
    latest: CompletedCheckpoint | None = None,
) -> LineageReporter:
    return LineageReporter(
        IDENTITY,
        transports=transports,
        vertices=("clean", "revenue"),
        datasets=datasets,
        clock=clock or ManualClock(),
        patience_s=patience_s,
        attempt=lambda: attempt,
        latest=lambda: latest,
    )


def runs(vertex: str) -> TaskStatusChanged:
    return TaskStatusChanged(vertex=vertex, attempt=1, status=TaskStatus.RUNNING)


def triggered(checkpoint_id: int, kind: SnapshotKind) -> TriggerCheckpoint:
    barrier = CheckpointBarrier(checkpoint_id=checkpoint_id, timestamp_ms=0, kind=kind)
    return TriggerCheckpoint(vertex="clean", barrier=barrier)


def completed(checkpoint_id: int) -> list[NotifyCheckpointComplete]:
    return [
        NotifyCheckpointComplete(vertex=vertex, checkpoint_id=checkpoint_id)
        for vertex in ("clean", "revenue")
    ]


def play(one: LineageReporter, *effects: object) -> None:
    watchers = Watchers()
    one.watch(watchers)
    for effect in effects:
        for watch in watchers.of_effect(None, type(effect)):
            watch(effect)


def test_a_run_starts_when_all_tasks_run_and_completes_with_the_job() -> None:
    """The time of START is that at which the job started."""
    kept, clock = Kept(), ManualClock(0, epoch_ms=1_000_000)
    with reporter(kept, clock=clock) as one:
        clock.ms += 5_000
        play(one, runs("clean"))
        assert one._queue.empty()
        play(one, runs("revenue"), JobEnded(status=JobStatus.FINISHED))
    assert kept.states == ["START", "COMPLETE"]
    assert [event["eventTime"] for event in kept.events] == [
        "1970-01-01T00:16:40.000Z",
        "1970-01-01T00:16:45.000Z",
    ]
    assert {event["run"]["runId"] for event in kept.events} == {RUN_ID}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (JobStatus.FINISHED, "COMPLETE"),
        (JobStatus.FAILED, "FAIL"),
        (JobStatus.CANCELED, "ABORT"),
        (JobStatus.SUSPENDED, "ABORT"),
    ],
)
def test_a_run_ends_as_its_job_does(status: JobStatus, state: str) -> None:
    """Even if no task ever ran: then it starts and ends at once."""
    kept = Kept()
    with reporter(kept) as one:
        play(one, JobEnded(status=status))
    assert kept.states == ["START", state]


def test_a_driver_that_breaks_aborts_its_run() -> None:
    """Without an end of the job."""
    kept = Kept()
    with pytest.raises(RuntimeError), reporter(kept):
        raise RuntimeError
    assert kept.states == ["START", "ABORT"]


def test_a_failure_says_why() -> None:
    """In OpenLineage's facet for it."""
    kept = Kept()
    with reporter(kept) as one:
        play(one, JobEnded(status=JobStatus.FAILED, failure="KeyError: 'JP'"))
    facets = kept.events[-1]["run"]["facets"]
    assert facets["errorMessage"]["message"] == "KeyError: 'JP'"
    assert "errorMessage" not in kept.events[0]["run"]["facets"]


def test_a_run_that_fails_again_and_again_has_started() -> None:
    """At its first failure, since all tasks may never run."""
    kept = Kept()
    with reporter(kept) as one:
        play(one, *[JobStatusChanged(status=JobStatus.FAILING, message="no")] * 2)
        play(one, JobEnded(status=JobStatus.CANCELED))
    assert kept.states == ["START", "ABORT"]


def test_running_is_sent_per_checkpoint_and_at_most_once_a_minute() -> None:
    """However many tasks are notified of a checkpoint."""
    kept, clock = Kept(), ManualClock()
    with reporter(kept, clock=clock) as one:
        play(one, runs("clean"), runs("revenue"))
        for number in range(1, 8):
            play(one, *completed(number))
            clock.ms += RUNNING_MS // 3
    assert kept.states == ["START", "RUNNING", "RUNNING", "RUNNING", "ABORT"]
    at = [event["run"]["facets"]["weir_checkpoint"].get("checkpointId") for event in kept.events]
    assert at == [None, 1, 4, 7, 7]


def test_an_event_says_where_the_run_stands() -> None:
    """A savepoint after which the job goes on is no epoch, since sinks do not commit it."""
    kept, clock = Kept(), ManualClock()
    with reporter(kept, clock=clock) as one:
        play(one, triggered(3, SnapshotKind.CHECKPOINT), *completed(3))
        clock.ms += RUNNING_MS
        play(one, triggered(4, SnapshotKind.SAVEPOINT), *completed(4))
    facet = kept.events[2]["run"]["facets"]["weir_checkpoint"]
    assert (facet["checkpointId"], facet["epoch"], facet["attempt"]) == (4, 3, 1)
    assert facet["jobId"] == "0" * 32


def test_an_event_has_all_datasets_with_their_columns() -> None:
    """One that nobody knows is named by its step."""
    kept = Kept()
    with reporter(kept) as one:
        play(one, JobEnded(status=JobStatus.FINISHED))
    for event in kept.events:
        assert [(found["namespace"], found["name"]) for found in event["inputs"]] == [
            ("kafka://a:9092", "orders"),
            ("shop", "orders.rate"),
        ]
        fields = event["inputs"][0]["facets"]["schema"]["fields"]
        assert [(field["name"], field["type"]) for field in fields] == [("id", "bigint")]
        assert [(found["namespace"], found["name"]) for found in event["outputs"]] == [
            ("file", "/out")
        ]
        assert event["job"]["namespace"] == "shop"
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


def test_a_resumed_run_stands_where_the_last_one_ended() -> None:
    """From its first event on."""
    kept = Kept()
    with reporter(kept, attempt=2, latest=completed_checkpoint(9)) as one:
        play(one, JobStatusChanged(status=JobStatus.RUNNING), JobEnded(status=JobStatus.FINISHED))
    facet = kept.events[0]["run"]["facets"]["weir_checkpoint"]
    assert (facet["checkpointId"], facet["epoch"], facet["attempt"]) == (9, 9, 2)


def test_datasets_that_cannot_be_read_keep_no_event_back() -> None:
    """A later event has them."""
    answers = iter((RuntimeError("the JVM is busy"), DATASETS))

    def datasets() -> JobDatasets:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    kept = Kept()
    with reporter(kept, datasets=datasets) as one:
        play(one, JobEnded(status=JobStatus.FINISHED))
    assert [len(event["inputs"]) for event in kept.events] == [0, 2]


def test_a_failing_transport_is_logged_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other transport gets every event."""
    kept = Kept()
    with caplog.at_level(logging.WARNING), reporter(Failing(), kept) as one:
        play(one, runs("clean"), runs("revenue"), *completed(1))
        play(one, JobEnded(status=JobStatus.FINISHED))
    assert one.lost == 3
    assert kept.states == ["START", "RUNNING", "COMPLETE"]
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "A lineage event was not sent, and the job goes on without: OSError: no route to host"
    )
    assert last == "3 lineage events were not sent."


def test_a_transport_that_hangs_holds_up_neither_the_job_nor_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue is bounded; what does not fit is counted."""
    monkeypatch.setattr(lineage, "QUEUE", 2)
    never = threading.Event()

    class Hanging:
        def emit(self, event: object) -> None:
            never.wait()

    with reporter(Hanging(), patience_s=0.1) as one:
        play(one, JobStatusChanged(status=JobStatus.FAILING, message="no"))
        for _ in range(10):
            one._put("RUNNING")
    assert one.lost >= 8
    never.set()


@contextmanager
def lineage_server(status: int = 200) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """The address of a server, and its requests: the Authorization header and the event."""
    got: list[tuple[str, dict[str, Any]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/api/v1/lineage"
            got.append((self.headers.get("Authorization", ""), json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def made(settings: dict[str, str]) -> LineageReporter | None:
    return configured(
        Configuration(settings),
        job_name="orders",
        job_id="0" * 32,
        run_id=RUN_ID,
        spark_version="4.2.0",
        vertices=(),
        datasets=lambda: DATASETS,
        clock=ManualClock(),
        attempt=lambda: 1,
        latest=lambda: None,
    )


def test_it_is_off_by_default() -> None:
    """Nothing is loaded or sent."""
    assert made({}) is None


def test_events_go_to_a_file_as_lines_and_to_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once if both are given; the server gets the token."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    file = tmp_path / "lineage.jsonl"
    with lineage_server() as (url, got):
        settings = {
            "weir.lineage.url": url,
            "weir.lineage.file": str(file),
            "weir.lineage.token": "0123456789abcdef",
            "weir.lineage.namespace": "shop",
        }
        one = made(settings)
        assert one is not None
        with one:
            play(one, JobEnded(status=JobStatus.FINISHED))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["eventType"] for event in lines] == ["START", "COMPLETE"]
    assert [event for _, event in got] == lines
    assert {header for header, _ in got} == {"Bearer 0123456789abcdef"}
    assert lines[0]["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert one.lost == 0


def test_a_server_that_refuses_costs_only_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with lineage_server(status=404) as (url, _):
        one = made({"weir.lineage.url": url})
        assert one is not None
        with one:
            play(one, JobEnded(status=JobStatus.FINISHED))
    assert one.lost == 2


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra, before anything runs."""
    monkeypatch.setitem(sys.modules, "weir.lineage.events", None)
    assert not is_on(Configuration({}))
    with pytest.raises(ConfigurationError, match=r"pip install 'weir-spark\[lineage\]'"):
        is_on(Configuration({"weir.lineage.file": "/tmp/x"}))
