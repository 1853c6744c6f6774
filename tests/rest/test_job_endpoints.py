"""The job endpoints that Flink's clients read: field names, codes and conventions are Flink's."""

from __future__ import annotations

import re
from dataclasses import replace

import httpx
import pytest
from tests.kit.gateway import JOB_ID, OTHER_ID, FakeGateway, completed

from weir.core.status import JobStatus

JOB = f"/v1/jobs/{JOB_ID}"


def test_the_overview_has_exactly_the_fields_of_flinks_job_details(http: httpx.Client) -> None:
    """No release of Flink's client refuses one that it does not know, here or in Flink."""
    (job,) = http.get("/v1/jobs/overview").json()["jobs"]
    assert set(job) == {
        "jid", "name", "start-time", "end-time", "duration", "state", "last-modification", "tasks",
        "pending-operators", "jobType", "schedulerType",
    }  # fmt: skip
    assert (job["jobType"], job["schedulerType"]) == ("STREAMING", "Default")
    assert (job["jid"], job["name"], job["state"], job["end-time"]) == (
        JOB_ID,
        "orders",
        "RUNNING",
        -1,
    )


def test_what_sources_could_not_read_is_listed_by_operator(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The list comes from the newest completed checkpoint; other coordinators have no rejects."""
    assert http.get(f"{JOB}/rejects").json() == {"checkpointId": None, "operators": []}
    rejects = [{"file": "a", "line": 7, "why": "broken"}, {"file": "b", "why": "gone"}]
    states = {"in": {"rejected": 5, "rejects": rejects}, "score": {"rules": {}}}
    newest = replace(completed(7, "/data/chk-7"), coordinator_states=states)
    gateway.current = replace(gateway.current, latest_completed=newest)
    operators = [{"operator": "in", "rejected": 5, "rejects": rejects}]
    assert http.get(f"{JOB}/rejects").json() == {"checkpointId": 7, "operators": operators}


def test_the_overview_counts_tasks_by_lower_case_state_with_their_total(http: httpx.Client) -> None:
    """For Flink's clients a task that waits for its final checkpoint is running."""
    tasks = http.get("/v1/jobs/overview").json()["jobs"][0]["tasks"]
    assert set(tasks) == {
        "running", "canceling", "canceled", "total", "created", "scheduled", "deploying",
        "reconciling", "finished", "initializing", "failed",
    }  # fmt: skip
    assert (tasks["running"], tasks["total"], tasks["finished"]) == (2, 2, 0)


@pytest.mark.parametrize(
    "path",
    ["/config", "/overview", "/jobs", "/jobs/overview", f"/jobs/{JOB_ID}", f"/jobs/{JOB_ID}/status"]
    + [
        f"/jobs/{JOB_ID}/{part}"
        for part in ("config", "exceptions", "execution-result", "checkpoints")
    ]
    + [f"/jobs/{JOB_ID}/checkpoints/{part}" for part in ("config", "details/7")],
)
def test_every_path_is_served_with_and_without_the_version(http: httpx.Client, path: str) -> None:
    """Clients send /v1; people and dashboards do not."""
    plain, versioned = http.get(path), http.get(f"/v1{path}")
    assert (plain.status_code, versioned.status_code) == (200, 200)
    assert plain.json().keys() == versioned.json().keys()


def test_a_get_with_the_two_byte_body_of_flinks_client_is_answered(http: httpx.Client) -> None:
    """Flink's client sends `{}` with GET and PATCH and closes the connection."""
    headers = {"content-type": "application/json; charset=UTF-8", "connection": "close"}
    response = http.request("GET", "/v1/jobs/overview", content=b"{}", headers=headers)
    assert response.status_code == 200


def test_job_details_have_flinks_fields(http: httpx.Client) -> None:
    """The fields of GET /jobs/:jobid and of its vertices and plan."""
    job = http.get(JOB).json()
    assert set(job) >= {
        "jid", "name", "isStoppable", "state", "job-type", "schedulerType", "start-time",
        "end-time", "duration", "maxParallelism", "application-id", "now", "timestamps", "vertices",
        "status-counts", "plan", "stream-graph", "pending-operators",
    }  # fmt: skip
    assert set(job["plan"]) == {"jid", "name", "type", "nodes"}
    assert job["timestamps"]["RUNNING"] == 2_000
    assert job["timestamps"]["FAILED"] == 0
    assert job["status-counts"]["RUNNING"] == 2
    assert [vertex["name"] for vertex in job["vertices"]] == ["clean", "revenue"]
    assert [vertex["parallelism"] for vertex in job["vertices"]] == [4, 2]
    assert job["vertices"][0]["metrics"]["read-records"] == 1_000
    assert job["vertices"][0]["metrics"]["write-records"] == 800


def test_vertices_have_stable_ids_of_32_hexadecimal_digits(http: httpx.Client) -> None:
    """Flink's clients parse vertex ids; plan, vertices and checkpoints use the same id for a
    vertex."""
    first, second = http.get(JOB).json(), http.get(JOB).json()
    ids = [vertex["id"] for vertex in first["vertices"]]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    assert ids == [vertex["id"] for vertex in second["vertices"]]
    assert ids == [node["id"] for node in first["plan"]["nodes"]]
    assert set(ids) == set(http.get(f"{JOB}/checkpoints/details/7").json()["tasks"])


def test_the_status_and_the_list_of_jobs_show_the_status(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """GET /jobs and GET /jobs/:jobid/status follow the view."""
    gateway.set_status(JobStatus.RESTARTING)
    assert http.get("/v1/jobs").json() == {"jobs": [{"id": JOB_ID, "status": "RESTARTING"}]}
    assert http.get(f"{JOB}/status").json() == {"status": "RESTARTING"}


def test_the_duration_of_an_ended_job_stands_still(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Once the job has ended, its duration is the time from start to end."""
    gateway.set_status(JobStatus.FINISHED)
    job = http.get("/v1/jobs/overview").json()["jobs"][0]
    assert (job["end-time"], job["duration"]) == (10_000, 9_000)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (JobStatus.FINISHED, "SUCCEEDED"),
        (JobStatus.FAILED, "FAILED"),
        (JobStatus.CANCELED, "CANCELED"),
    ],
)
def test_the_execution_result_is_there_once_the_job_has_ended(
    http: httpx.Client, gateway: FakeGateway, status: JobStatus, told: str
) -> None:
    """While the job runs the result is IN_PROGRESS; afterwards it is COMPLETED with Flink's
    application status."""
    assert http.get(f"{JOB}/execution-result").json()["status"] == {"id": "IN_PROGRESS"}
    gateway.set_status(status)
    answer = http.get(f"{JOB}/execution-result").json()
    assert answer["status"] == {"id": "COMPLETED"}
    assert answer["job-execution-result"]["application-status"] == told
    assert answer["job-execution-result"]["net-runtime"] == 9_000


def test_exceptions_are_listed_newest_first(http: httpx.Client) -> None:
    """The newest failure is the root exception and the first in the history, with its stack trace,
    its task and its log."""
    answer = http.get(f"{JOB}/exceptions").json()
    told = "second failure (log: /w/spark.log)\nTraceback:\nKeyError"
    assert answer["root-exception"] == told
    assert answer["timestamp"] == 3_500
    entries = answer["exceptionHistory"]["entries"]
    assert [entry["exceptionName"] for entry in entries] == [
        "second failure (log: /w/spark.log)",
        "first failure",
    ]
    assert [entry["stacktrace"] for entry in entries] == [told, "first failure"]
    assert [entry["taskName"] for entry in entries] == ["clean", None]


@pytest.mark.parametrize(("limit", "listed"), [("1", 1), ("0", 0), ("2", 2), ("99", 2)])
def test_at_most_max_exceptions_are_listed(http: httpx.Client, limit: str, listed: int) -> None:
    """`truncated` says that there are more; the root exception stays."""
    answer = http.get(f"{JOB}/exceptions", params={"maxExceptions": limit}).json()
    assert len(answer["exceptionHistory"]["entries"]) == listed
    assert answer["exceptionHistory"]["truncated"] is (listed < 2)
    assert answer["root-exception"].startswith("second failure")


def test_max_exceptions_is_a_number(http: httpx.Client) -> None:
    """Anything else is a bad request."""
    assert http.get(f"{JOB}/exceptions?maxExceptions=all").status_code == 400


def test_the_plan_is_served_by_itself(http: httpx.Client) -> None:
    """It is the one in the job's details."""
    assert http.get(f"{JOB}/plan").json() == {"plan": http.get(JOB).json()["plan"]}


def test_there_are_no_accumulators(http: httpx.Client) -> None:
    """Flink's Java client asks for them when the job has ended."""
    assert http.get(f"{JOB}/accumulators?includeSerializedValue=true").json() == {
        "job-accumulators": [],
        "user-task-accumulators": [],
        "serialized-user-task-accumulators": {},
    }


def test_the_plan_says_which_vertices_a_vertex_reads(http: httpx.Client) -> None:
    """Flink's dashboard draws the graph from the inputs of the plan's nodes."""
    clean, revenue = http.get(JOB).json()["plan"]["nodes"]
    assert clean["inputs"] == []
    assert revenue["inputs"] == [
        {"num": 0, "id": clean["id"], "ship_strategy": "FORWARD", "exchange": "pipelined_bounded"}
    ]


@pytest.mark.parametrize("path", [f"/v1/jobs/{JOB_ID.upper()}", f"{JOB}/", "/jobs/", "/v1/config/"])
def test_capitals_and_a_trailing_slash_are_the_same_path(http: httpx.Client, path: str) -> None:
    """Flink's server reads job ids in either case, and ignores a slash at the end."""
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("job_id", ["orders", "0" * 31, "0" * 33, "g" * 32])
def test_a_malformed_job_id_is_a_bad_request(http: httpx.Client, job_id: str) -> None:
    """404 is for jobs that could exist."""
    assert http.get(f"/v1/jobs/{job_id}").status_code == 400


def test_every_answer_is_json_in_utf_8(http: httpx.Client) -> None:
    """Answers and errors have the content type that Flink sends."""
    for path in ("/config", "/nothing"):
        assert http.get(path).headers["content-type"] == "application/json; charset=UTF-8"


def test_the_dashboards_button_that_cancels_is_hidden(http: httpx.Client) -> None:
    """It sends a GET, which must not change anything."""
    assert http.get("/config").json()["features"]["web-cancel"] is False
    assert http.get(f"{JOB}/yarn-cancel").status_code == 404


def test_the_configuration_in_force_is_shown(http: httpx.Client) -> None:
    """GET /jobs/:jobid/config has the keys as user configuration."""
    answer = http.get(f"{JOB}/config").json()
    assert set(answer) == {"jid", "name", "execution-config"}
    assert answer["execution-config"]["user-config"]["execution.checkpointing.interval"] == "5 s"


def test_the_dashboard_configuration_and_the_cluster_overview_have_flinks_fields(
    http: httpx.Client,
) -> None:
    """GET /config and GET /overview have Flink's fields."""
    config, overview = http.get("/v1/config").json(), http.get("/v1/overview").json()
    assert set(config) == {
        "refresh-interval", "timezone-name", "timezone-offset", "flink-version", "flink-revision",
        "features",
    }  # fmt: skip
    assert set(config["features"]) == {"web-submit", "web-cancel", "web-rescale", "web-history"}
    assert set(overview) == {
        "taskmanagers", "slots-total", "slots-available", "taskmanagers-blocked",
        "slots-free-and-blocked", "jobs-running", "jobs-finished", "jobs-cancelled", "jobs-failed",
        "flink-version", "flink-commit",
    }  # fmt: skip
    assert overview["jobs-running"] == 1


def test_the_overview_counts_the_executors_that_are_listed(reader: httpx.Client) -> None:
    """The dashboard's first view has them beside the list of task managers."""
    overview = reader.get("/overview").json()
    listed = reader.get("/taskmanagers").json()["taskmanagers"]
    assert overview["taskmanagers"] == len(listed) == 2
    assert overview["slots-total"] == sum(one["slotsNumber"] for one in listed) == 4
    assert overview["slots-available"] == sum(one["freeSlots"] for one in listed) == 1


@pytest.mark.parametrize(
    "part", ["", "/status", "/checkpoints", "/exceptions", "/savepoints/" + "0" * 32]
)
def test_an_unknown_job_is_answered_with_404_and_the_known_id(
    http: httpx.Client, part: str
) -> None:
    """The message names the job that this driver runs."""
    response = http.get(f"/v1/jobs/{OTHER_ID}{part}")
    assert response.status_code == 404
    assert JOB_ID in response.json()["errors"][0]


def test_an_unknown_path_and_a_wrong_method_are_answered_in_flinks_shape(
    http: httpx.Client,
) -> None:
    """Even an answer outside all routes is an object with the list `errors`."""
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/nothing").json() == {"errors": ["Not Found: GET /v1/nothing"]}
    assert http.delete("/v1/jobs/overview").status_code == 405
    assert http.delete("/v1/jobs/overview").json()["errors"]


def test_a_failure_inside_is_answered_with_500_and_its_name(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """A bug does not close the connection without an answer."""

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    gateway.view = broken  # type: ignore[assignment,method-assign]
    response = http.get("/v1/jobs")
    assert response.status_code == 500
    assert "a bug" in response.json()["errors"][0]


def test_a_heartbeat_of_a_client_is_accepted(http: httpx.Client) -> None:
    """PATCH /jobs/:jobid/clientHeartbeat is answered with 202."""
    response = http.patch(f"{JOB}/clientHeartbeat", json={"expiredTimestamp": 1})
    assert (response.status_code, response.json()) == (202, {})
