"""Vertices with their one subtask, as Flink's dashboard and exporters read them."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway

from weir.core.status import JobStatus
from weir.core.types import TaskStatus
from weir.rest.flink.job_answers import vertex_id

JOB = f"/v1/jobs/{JOB_ID}"
CLEAN = f"{JOB}/vertices/{vertex_id('clean')}"

IO = {
    "read-bytes", "read-bytes-complete", "write-bytes", "write-bytes-complete", "read-records",
    "read-records-complete", "write-records", "write-records-complete",
    "accumulated-backpressured-time", "accumulated-idle-time", "accumulated-busy-time",
}  # fmt: skip
ATTEMPT = {
    "subtask", "status", "attempt", "endpoint", "start-time", "start_time", "end-time", "duration",
    "metrics", "taskmanager-id", "status-duration",
}  # fmt: skip
SPREAD = {"min", "max", "avg", "sum", "median", "p25", "p75", "p95"}


def test_a_vertex_has_its_one_subtask_with_flinks_fields(reader: httpx.Client) -> None:
    """Without it, the dashboard's page of a checkpoint waits for ever."""
    vertex = reader.get(CLEAN).json()
    assert set(vertex) == {
        "id", "name", "parallelism", "maxParallelism", "now", "aggregated", "subtasks",
    }  # fmt: skip
    (subtask,) = vertex["subtasks"]
    assert set(subtask) == ATTEMPT
    assert set(subtask["metrics"]) == IO
    assert (subtask["status"], subtask["attempt"], subtask["start-time"]) == ("RUNNING", 1, 2_000)
    assert subtask["start_time"] == 2_000  # the name that the dashboard reads
    assert subtask["metrics"]["read-records"] == 1_000
    aggregated = vertex["aggregated"]
    assert set(aggregated) == {"metrics", "status-duration"}
    assert all(set(one) == SPREAD for part in aggregated.values() for one in part.values())
    assert aggregated["metrics"]["read-records"]["p95"] == 1_000


@pytest.mark.parametrize("spelled", [vertex_id("clean").upper(), "clean", vertex_id("clean") + "/"])
def test_a_vertex_is_found_by_its_id_and_by_its_name(reader: httpx.Client, spelled: str) -> None:
    """Flink's clients know the id, people the name."""
    assert reader.get(f"{JOB}/vertices/{spelled}").json()["name"] == "clean"


def test_a_vertex_that_does_not_exist_is_answered_with_those_that_do(reader: httpx.Client) -> None:
    """The sentence names them."""
    response = reader.get(f"{JOB}/vertices/{'0' * 32}")
    assert (response.status_code, "clean, revenue" in response.text) == (404, True)


def test_times_of_a_subtask_follow_the_job(reader: httpx.Client, gateway: FakeGateway) -> None:
    """A finished task has the time of its end; states that it never had are 0."""
    times = reader.get(f"{CLEAN}/subtasktimes").json()
    assert set(times) == {"id", "name", "now", "subtasks"}
    (subtask,) = times["subtasks"]
    assert set(subtask) == {"subtask", "host", "endpoint", "duration", "timestamps"}
    assert subtask["host"] == subtask["endpoint"]  # the name that the dashboard reads
    assert (subtask["timestamps"]["RUNNING"], subtask["timestamps"]["FINISHED"]) == (2_000, 0)
    finished = tuple(replace(one, status=TaskStatus.FINISHED) for one in VIEW.vertices)
    gateway.current = replace(VIEW, vertices=finished)
    gateway.set_status(JobStatus.FINISHED)
    (subtask,) = reader.get(f"{CLEAN}/subtasktimes").json()["subtasks"]
    assert (subtask["timestamps"]["FINISHED"], subtask["duration"]) == (10_000, 8_000)


@pytest.mark.parametrize("status", [TaskStatus.INITIALIZING, TaskStatus.RUNNING])
def test_the_timeline_of_a_subtask_ends_with_its_state(
    reader: httpx.Client, gateway: FakeGateway, status: TaskStatus
) -> None:
    """The dashboard sorts the states by time, and draws the last one as what lasts until now."""
    vertices = tuple(replace(one, status=status) for one in VIEW.vertices)
    gateway.current = replace(VIEW, vertices=vertices)
    (subtask,) = reader.get(f"{CLEAN}/subtasktimes").json()["subtasks"]
    passed = {state: time for state, time in subtask["timestamps"].items() if time > 0}
    assert sorted(passed, key=passed.__getitem__)[-1] == status.value


def test_no_figure_of_a_vertex_is_still_being_loaded(reader: httpx.Client) -> None:
    """The dashboard shows "loading..." until a figure is complete: bytes never would be."""
    (vertex, _) = reader.get(JOB).json()["vertices"]
    for name in ("read-bytes", "write-bytes", "read-records", "write-records"):
        assert vertex["metrics"][f"{name}-complete"] is True


def test_the_driver_is_the_task_manager_of_a_vertex(reader: httpx.Client) -> None:
    """It runs the query; its endpoint is the server's."""
    answer = reader.get(f"{CLEAN}/taskmanagers").json()
    assert set(answer) == {"id", "name", "now", "taskmanagers"}
    (one,) = answer["taskmanagers"]
    assert set(one) == {
        "endpoint", "status", "start-time", "end-time", "duration", "metrics", "status-counts",
        "taskmanager-id", "aggregated",
    }  # fmt: skip
    assert (one["taskmanager-id"], one["status-counts"]["RUNNING"]) == ("driver", 1)
    assert reader.get(f"/taskmanagers/{one['taskmanager-id']}").status_code == 200
    assert f"http://{one['endpoint']}" == str(reader.base_url).rstrip("/")


def test_a_subtask_is_shown_by_its_index_and_its_newest_attempt(reader: httpx.Client) -> None:
    """Exporters ask for each; older attempts are not known."""
    subtask = reader.get(f"{CLEAN}/subtasks/0").json()
    assert set(subtask) == ATTEMPT
    newest = reader.get(f"{CLEAN}/subtasks/0/attempts/1").json()
    assert newest["start-time"] == subtask["start-time"]
    statuses = {
        path: reader.get(f"{CLEAN}/subtasks/{path}").status_code
        for path in ("1", "x", "0/attempts/0", "0/attempts/y", "9" * 30)
    }
    assert statuses == {"1": 404, "x": 400, "0/attempts/0": 404, "0/attempts/y": 400, "9" * 30: 404}


def test_accumulators_are_empty_as_of_a_job_that_has_none(reader: httpx.Client) -> None:
    """All four paths of the dashboard."""
    ids = {"id": vertex_id("clean")}
    assert reader.get(f"{CLEAN}/accumulators").json() == {**ids, "user-accumulators": []}
    answer = reader.get(f"{CLEAN}/subtasks/accumulators").json()
    assert (set(answer), answer["subtasks"][0]["user-accumulators"]) == (
        {"id", "parallelism", "subtasks"},
        [],
    )
    answer = reader.get(f"{CLEAN}/subtasks/0/attempts/1/accumulators").json()
    assert answer == {"subtask": 0, "attempt": 1, **ids, "user-accumulators": []}
    assert reader.get(f"{JOB}/accumulators").json()["job-accumulators"] == []


def test_a_flame_graph_is_empty_as_where_flink_has_it_switched_off(reader: httpx.Client) -> None:
    """The dashboard says so, instead of waiting for samples that never come."""
    graph = reader.get(f"{CLEAN}/flamegraph?type=on_cpu").json()
    assert graph == {"endTimestamp": -2, "data": None, "graphType": "ON_CPU"}
    assert reader.get(f"{CLEAN}/flamegraph?type=hot").status_code == 400
