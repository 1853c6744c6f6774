"""Metrics over REST: Prometheus' page, and the queries of Flink's dashboard and exporters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from tests.kit.clock import ManualClock
from tests.kit.gateway import (
    JOB_ID,
    OTHER_ID,
    VIEW,
    FakeCluster,
    FakeGateway,
    completed,
    served,
)
from tests.kit.waiting import wait_until

from weir.core.status import JobStatus
from weir.monitoring.cluster import JvmView
from weir.rest.flink.job_answers import vertex_id
from weir.rest.handling import looks
from weir.rest.server.server import RestServer

JOB = f"/v1/jobs/{JOB_ID}"
CLEAN = f"{JOB}/vertices/{vertex_id('clean')}"


def test_prometheus_gets_its_text_format(reader: httpx.Client) -> None:
    """With the content type that Prometheus expects, and the JVM's memory."""
    response = reader.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    series = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if line[0] != "#")
    own = f'job_id="{JOB_ID}",job_name="orders"'
    assert float(series[f'weir_jvm_memory_used_bytes{{area="heap",{own}}}']) == 59_000_000
    assert float(series[f'weir_task_records_in_total{{{own},vertex="clean"}}']) == 1_000
    assert float(series[f"weir_jvm_resident_memory_bytes{{{own}}}"]) > 1_000_000


def test_a_query_without_names_lists_them_and_with_names_gives_values(
    reader: httpx.Client, gateway: FakeGateway
) -> None:
    """As Flink: unknown names are left out, values are text."""
    gateway.current = replace(VIEW, latest_completed=completed(7, "/data/chk-7"), restarts=3)
    names = reader.get(f"{JOB}/metrics").json()
    assert all(set(one) == {"id"} for one in names)
    assert {
        "uptime", "numRestarts", "totalNumberOfCheckpoints", "numberOfInProgressCheckpoints",
        "numberOfCompletedCheckpoints", "numberOfFailedCheckpoints", "lastCheckpointDuration",
        "lastCheckpointSize", "lastCheckpointFullSize", "lastCheckpointPersistedData",
        "lastCheckpointRestoreTimestamp", "lastCheckpointExternalPath",
        "lastCompletedCheckpointId", "lastCheckpointCompletedTimestamp",
    } <= {one["id"] for one in names}  # fmt: skip
    asked = "numRestarts,nothing,lastCheckpointDuration,lastCheckpointExternalPath,numRestarts"
    assert reader.get(f"{JOB}/metrics", params={"get": asked}).json() == [
        {"id": "numRestarts", "value": "3"},
        {"id": "lastCheckpointDuration", "value": "123"},
        {"id": "lastCheckpointExternalPath", "value": "/data/chk-7"},
    ]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed_job(clock: ManualClock) -> FakeGateway:
    """A job by the clock that moves by hand."""
    return FakeGateway(clock=clock)


@pytest.fixture
def timed(clock: ManualClock, timed_job: FakeGateway) -> Iterator[httpx.Client]:
    """A client of a server for that job, by the same clock."""
    with served(timed_job, clock=clock) as client:
        yield client


def test_the_uptime_counts_while_the_job_runs(
    timed: httpx.Client, timed_job: FakeGateway, clock: ManualClock
) -> None:
    """Milliseconds; 0 while it restarts."""
    timed_job.current = replace(VIEW, timestamps_ms={"RUNNING": clock.wall_ms()})
    clock.ms += 5_000
    assert timed.get(f"{JOB}/metrics?get=uptime").json() == [{"id": "uptime", "value": "5000"}]
    timed_job.current = replace(timed_job.current, status=JobStatus.RESTARTING)
    assert timed.get(f"{JOB}/metrics?get=uptime").json() == [{"id": "uptime", "value": "0"}]


def test_metrics_of_a_vertex_have_the_subtask_in_front(reader: httpx.Client) -> None:
    """Of a subtask they have not; over the subtasks they are numbers."""
    asked = {"get": "0.numRecordsIn,numRecordsIn"}
    assert reader.get(f"{CLEAN}/metrics", params=asked).json() == [
        {"id": "0.numRecordsIn", "value": "1000"}
    ]
    assert reader.get(f"{CLEAN}/subtasks/0/metrics?get=numRecordsIn,numRecordsOut").json() == [
        {"id": "numRecordsIn", "value": "1000"},
        {"id": "numRecordsOut", "value": "800"},
    ]
    everything = reader.get(f"{CLEAN}/subtasks/metrics?get=numRecordsIn").json()
    spread = {"min": 1000.0, "max": 1000.0, "avg": 1000.0, "sum": 1000.0, "skew": 0.0}
    assert everything == [{"id": "numRecordsIn", **spread}]
    names = {one["id"] for one in reader.get(f"{CLEAN}/subtasks/0/metrics").json()}
    assert {
        "busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond",
        "numRecordsInPerSecond", "numRecordsOutPerSecond", "currentInputWatermark",
        "buffers.outputQueueLength", "isBackPressured",
    } <= names  # fmt: skip


def test_the_backlog_of_a_source_has_flinks_name(
    reader: httpx.Client, gateway: FakeGateway
) -> None:
    """A vertex whose sources do not say how much waits has no such metric."""
    asked = f"{CLEAN}/subtasks/0/metrics?get=pendingRecords"
    assert reader.get(asked).json() == []
    first, *rest = VIEW.vertices
    gateway.current = replace(VIEW, vertices=(replace(first, pending_records=75), *rest))
    assert reader.get(asked).json() == [{"id": "pendingRecords", "value": "75"}]


def test_aggregations_and_subtasks_can_be_chosen(reader: httpx.Client) -> None:
    """What is asked for and nothing else; a wrong wish is refused in a sentence."""
    query = f"{CLEAN}/subtasks/metrics?get=numRecordsIn"
    assert reader.get(f"{query}&agg=max,SUM&subtasks=0-3").json() == [
        {"id": "numRecordsIn", "max": 1000.0, "sum": 1000.0}
    ]
    assert reader.get(f"{query}&subtasks=1,3").json() == []
    for wrong in ("agg=median", "subtasks=x", "subtasks=0-y"):
        response = reader.get(f"{query}&{wrong}")
        assert (response.status_code, len(response.json()["errors"])) == (400, 1)


def test_metrics_over_the_jobs(reader: httpx.Client) -> None:
    """This job, unless others were asked for."""
    query = "/jobs/metrics?get=numberOfCompletedCheckpoints&agg=sum"
    assert reader.get(query).json() == [{"id": "numberOfCompletedCheckpoints", "sum": 1.0}]
    assert reader.get(f"{query}&jobs={OTHER_ID}").json() == []
    assert len(reader.get(f"{query}&jobs={JOB_ID.upper()},{OTHER_ID}").json()) == 1


def test_metrics_of_the_driver_and_the_executors_have_flinks_names(reader: httpx.Client) -> None:
    """Those that OpenTelemetry's receiver, the autoscaler and the dashboard ask for."""
    asked = (
        "Status.JVM.Memory.Heap.Used,Status.JVM.Memory.NonHeap.Committed,Status.JVM.Threads.Count,"
        "Status.JVM.GarbageCollector.G1_Young_Generation.Time,Status.JVM.Memory.Direct.MemoryUsed,"
        "Status.JVM.Memory.Direct.Count,Status.JVM.Memory.Direct.TotalCapacity"
    )
    for path in ("/jobmanager/metrics", "/taskmanagers/driver/metrics"):
        answer = {one["id"]: one["value"] for one in reader.get(path, params={"get": asked}).json()}
        assert list(answer.values()) == [
            *("59000000", "90000000", "47", "335", "24577"),
            *("5", "24576"),
        ]
    query = "/taskmanagers/metrics?get=Status.JVM.Memory.Heap.Max&agg=min,max"
    (both,) = reader.get(query).json()
    assert (both["min"], both["max"]) == (455_501_414, 1_073_741_824)
    (one,) = reader.get(f"{query}&taskmanagers=0").json()
    assert one["min"] == one["max"] == 455_501_414
    assert reader.get("/taskmanagers/7/metrics").status_code == 404


def test_a_vertex_without_a_watermark_has_javas_smallest_number(
    reader: httpx.Client, gateway: FakeGateway
) -> None:
    """The dashboard takes it for "no watermark"."""
    watermark = {"id": "0.currentInputWatermark", "value": str(-(2**63))}
    assert reader.get(f"{CLEAN}/watermarks").json() == [watermark]
    first, *rest = VIEW.vertices
    gateway.current = replace(VIEW, vertices=(replace(first, watermark_ms=1_500), *rest))
    assert reader.get(f"{CLEAN}/watermarks").json() == [{**watermark, "value": "1500"}]


@pytest.mark.parametrize(("held_ms", "level"), [(2_000, "ok"), (12_000, "low"), (45_000, "high")])
def test_back_pressure_is_the_share_of_the_newest_minute(
    timed: httpx.Client, timed_job: FakeGateway, clock: ManualClock, held_ms: int, level: str
) -> None:
    """Levels are Flink's: at most 10 %, at most 50 %, more."""
    timed_job.recorder.sample(VIEW)
    clock.ms += 59_000
    first, *rest = VIEW.vertices
    timed_job.current = replace(VIEW, vertices=(replace(first, held_ms=held_ms), *rest))
    answer = timed.get(f"{CLEAN}/backpressure").json()
    assert set(answer) == {
        "status", "backpressure-level", "backpressureLevel", "end-timestamp", "subtasks",
    }  # fmt: skip
    (subtask,) = answer["subtasks"]
    assert (answer["status"], answer["backpressure-level"]) == ("ok", level)
    assert answer["backpressureLevel"] == subtask["backpressureLevel"] == level
    assert subtask["ratio"] == pytest.approx(held_ms / 59_000, rel=0.01)


def test_a_jvm_that_hangs_or_is_gone_costs_its_own_metrics_only(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape must not fail when people need it most."""
    monkeypatch.setattr(looks, "_PATIENCE_S", 0.1)

    class Broken(FakeCluster):
        def jvm(self) -> JvmView:
            raise OSError("the JVM is gone")

    over = threading.Event()

    class Hanging(FakeCluster):
        def jvm(self) -> JvmView:
            over.wait()
            return super().jvm()

    for cluster in (Broken(), Hanging()):
        server = RestServer(port=0)
        address = server.start(gateway, cluster=cluster)
        try:
            text = httpx.get(f"{address}/metrics", trust_env=False, verify=False).text
            assert "weir_job_attempt" in text and "weir_jvm_threads" not in text
        finally:
            server.stop()
    over.set()


def test_figures_of_the_jvm_serve_until_newer_ones_are_there(
    timed_job: FakeGateway, clock: ManualClock
) -> None:
    """On a busy machine the JVM takes its time; a dashboard that looks each second never waits."""

    class Slow(FakeCluster):
        looks = 0

        def jvm(self) -> JvmView:
            self.looks += 1
            if self.looks == 2:
                asked_again.wait()
            return replace(super().jvm(), threads=self.looks)

    asked_again = threading.Event()
    cluster = Slow()
    with served(timed_job, cluster=cluster, clock=clock) as client:
        path = "/jobmanager/metrics?get=Status.JVM.Threads.Count"

        def threads() -> str:
            (found,) = client.get(path).json()
            return str(found["value"])

        assert threads() == "1"
        clock.ms += 4_900
        assert threads() == "1" and cluster.looks == 1
        clock.ms += 200
        assert threads() == "1"
        asked_again.set()
        wait_until(lambda: threads() == "2", "the newer figures are shown")
        clock.ms += 60_000
        assert threads() == "3"


def test_what_no_jvm_is_needed_for_does_not_wait_for_it(gateway: FakeGateway) -> None:
    """The metrics of the job, its vertices and their back pressure."""

    class Forbidden(FakeCluster):
        looks = 0

        def jvm(self) -> JvmView:
            self.looks += 1
            return super().jvm()

    cluster = Forbidden()
    with served(gateway, cluster=cluster) as client:
        for path in (f"/jobs/{JOB_ID}/metrics", f"{CLEAN}/metrics", f"{CLEAN}/backpressure"):
            assert client.get(path).status_code == 200
        assert cluster.looks == 0
        assert client.get("/jobmanager/metrics").status_code == 200
        assert cluster.looks == 1
