"""Every endpoint as a whole: what Flink's own tools ask for, methods, headers, the document."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from tests.kit.gateway import JOB_ID

from weir.rest.flink.job_answers import vertex_id
from weir.rest.schema.base import Endpoint, Text
from weir.rest.schema.endpoints import ENDPOINTS

PARTS = {
    "job_id": JOB_ID,
    "application_id": JOB_ID,
    "vertex": vertex_id("clean"),
    "subtask": "0",
    "attempt": "1",
    "checkpoint_id": "7",
    "executor": "driver",
}
#: What can be asked for without having triggered an operation.
READABLE = [
    one
    for one in ENDPOINTS
    if one.method == "GET"
    and not any(part in one.path for part in ("{trigger_id}", "{rescale}", "{file}"))
]

#: What a stock Flink 2.3 command line, its dashboard and OpenTelemetry's receiver were seen to ask
#: for, apart from what needs a body.
ASKED = [
    "/config",
    "/overview",
    "/jobs",
    "/jobs/overview",
    "/applications/overview",
    "/applications/{job}",
    "/applications/{job}/exceptions",
    "/jobs/{job}",
    "/jobs/{job}/config",
    "/jobs/{job}/plan",
    "/jobs/{job}/status",
    "/jobs/{job}/accumulators",
    "/jobs/{job}/exceptions?maxExceptions=10",
    "/jobs/{job}/execution-result",
    "/jobs/{job}/checkpoints",
    "/jobs/{job}/checkpoints/config",
    "/jobs/{job}/checkpoints/details/7",
    "/jobs/{job}/checkpoints/details/7/subtasks/{vertex}",
    "/jobs/{job}/vertices/{vertex}",
    "/jobs/{job}/vertices/{vertex}/subtasktimes",
    "/jobs/{job}/vertices/{vertex}/taskmanagers",
    "/jobs/{job}/vertices/{vertex}/backpressure",
    "/jobs/{job}/vertices/{vertex}/accumulators",
    "/jobs/{job}/vertices/{vertex}/subtasks/accumulators",
    "/jobs/{job}/vertices/{vertex}/subtasks/0",
    "/jobs/{job}/vertices/{vertex}/flamegraph?type=full",
    "/jobs/{job}/resource-requirements",
    "/jobs/{job}/jobmanager/config",
    "/jobs/{job}/rescales/overview",
    "/jobs/{job}/rescales/history",
    "/jobs/{job}/rescales/summary",
    "/jobs/{job}/rescales/config",
    "/taskmanagers",
    "/taskmanagers/driver",
    "/taskmanagers/driver/logs",
    "/taskmanagers/driver/log",
    "/taskmanagers/driver/thread-dump",
    "/jobmanager/config",
    "/jobmanager/environment",
    "/jobmanager/logs",
    "/jobmanager/log",
    "/jobmanager/stdout",
    "/jobmanager/thread-dump",
    "/jobs/{job}/metrics?get=numRestarts,uptime",
    "/jobs/metrics?get=numRestarts&agg=sum",
    "/jobs/{job}/vertices/{vertex}/metrics",
    "/jobs/{job}/vertices/{vertex}/subtasks/metrics?get=busyTimeMsPerSecond",
    "/jobs/{job}/vertices/{vertex}/subtasks/0/metrics",
    "/jobs/{job}/vertices/{vertex}/watermarks",
    "/jobmanager/metrics",
    "/taskmanagers/metrics?get=Status.JVM.Memory.Heap.Max",
    "/taskmanagers/driver/metrics",
    "/jars",
    "/datasets",
]


@pytest.mark.parametrize("path", ASKED)
def test_what_flinks_tools_ask_for_is_there(reader: httpx.Client, path: str) -> None:
    """With the two-byte body and the headers that Flink's client sends with every GET."""
    headers = {"content-type": "application/json; charset=UTF-8", "connection": "close"}
    asked = "/v1" + path.format(job=JOB_ID, vertex=vertex_id("clean"))
    response = reader.request("GET", asked, content=b"{}", headers=headers)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("endpoint", READABLE, ids=lambda one: one.path)
def test_an_answer_is_what_the_schema_says(reader: httpx.Client, endpoint: Endpoint[Any]) -> None:
    """GET and HEAD, with a slash at the end and without; the body decodes by type."""
    path = endpoint.path.format(**PARTS)
    response = reader.get(path)
    assert response.status_code == 200, response.text
    if endpoint.answer is Text:
        assert response.headers["content-type"].startswith("text/plain")
    else:
        assert response.headers["content-type"] == "application/json; charset=UTF-8"
        msgspec.json.decode(response.content, type=endpoint.answer)
    assert response.headers["x-content-type-options"] == "nosniff"
    head = reader.head(f"{path}/")
    assert (head.status_code, head.content) == (200, b"")


def test_the_openapi_document_names_every_endpoint(reader: httpx.Client) -> None:
    """It is made from the schema; every reference in it leads somewhere."""
    document = reader.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    named = {(path, way) for path, ways in document["paths"].items() for way in ways}
    assert named == {(one.path, one.method.lower()) for one in ENDPOINTS}
    schemas = document["components"]["schemas"]
    assert {"JobInfo", "Errors", "SavepointRequest", "SubtaskAttempt"} <= set(schemas)
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    stop = document["paths"]["/jobs/{job_id}/stop"]["post"]
    assert [one["name"] for one in stop["parameters"]] == ["job_id"]
    assert "202" in stop["responses"] and "requestBody" in stop


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [one for value in node.values() for one in _references(value)]
    if isinstance(node, list):
        return [one for value in node for one in _references(value)]
    return []


def test_a_get_that_cancels_stays_refused(reader: httpx.Client) -> None:
    """Flink's dashboard has such a button, which ``web-cancel: false`` hides."""
    for path in ("yarn-cancel", "yarn-stop"):
        assert reader.get(f"/jobs/{JOB_ID}/{path}").status_code == 404
    assert reader.get("/config").json()["features"]["web-cancel"] is False
