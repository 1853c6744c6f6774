"""Answers that serve the same request again for a moment, as a driver's do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from tests.rest.fake_job import JOB_ID, VIEW, FakeGateway

from weir.rest.server import RestServer

#: Long enough that no answer is too old within a test, but for one that waits.
LONG_MS = 60_000


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@contextmanager
def served(gateway: FakeGateway, share_ms: int) -> Iterator[httpx.Client]:
    server = RestServer(port=0, share_ms=share_ms)
    try:
        with httpx.Client(base_url=server.start(gateway), trust_env=False) as client:
            yield client
    finally:
        server.stop()


@pytest.fixture
def http(gateway: FakeGateway) -> Iterator[httpx.Client]:
    with served(gateway, LONG_MS) as client:
        yield client


def name_of(http: httpx.Client, query: str = "") -> str:
    name: str = http.get(f"/jobs/{JOB_ID}{query}").json()["name"]
    return name


def test_the_same_request_has_the_same_answer_for_a_moment(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Another path or query has its own."""
    before = name_of(http)
    gateway.current = replace(VIEW, name="renamed")
    assert name_of(http) == before
    assert name_of(http, "?other=1") == "renamed"
    assert http.get("/jobs/overview").json()["jobs"][0]["name"] == "renamed"


def test_after_the_moment_the_answer_is_made_again(gateway: FakeGateway) -> None:
    """A tenth of a second for a driver."""
    with served(gateway, 50) as http:
        name_of(http)
        gateway.current = replace(VIEW, name="renamed")
        time.sleep(0.06)
        assert name_of(http) == "renamed"


def test_who_asks_for_a_change_sees_what_it_did(http: httpx.Client, gateway: FakeGateway) -> None:
    """A request other than GET ends the moment."""
    before = name_of(http)
    gateway.current = replace(VIEW, name="renamed")
    assert name_of(http) == before
    http.post(f"/jobs/{JOB_ID}/savepoints", json={})
    assert name_of(http) == "renamed"


def test_a_client_that_has_the_answer_is_told_so(http: httpx.Client) -> None:
    """Also if another client's request has made it."""
    tag = http.get("/jobs").headers["etag"]
    for _ in range(2):
        again = http.get("/jobs", headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
    assert http.get("/jobs", headers={"if-none-match": '"other"'}).status_code == 200


def test_a_refusal_is_shared_too(http: httpx.Client) -> None:
    """It is the same sentence each time."""
    refusals = [http.get(f"/jobs/{'e' * 32}") for _ in range(2)]
    assert [one.status_code for one in refusals] == [404, 404]
    assert refusals[0].json() == refusals[1].json()


def test_asking_for_the_head_alone_gets_no_body(http: httpx.Client) -> None:
    """Before and after the whole answer."""
    for _ in range(2):
        assert http.head("/jobs").content == b""
        assert http.get("/jobs").json()["jobs"][0]["id"] == JOB_ID


def test_a_failure_inside_is_answered_with_its_name(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Starlette raises after it has answered; the answer counts."""

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    gateway.view = broken  # type: ignore[assignment,method-assign]
    for _ in range(2):
        answer = http.get(f"/jobs/{JOB_ID}")
        assert answer.status_code == 500
        assert "a bug" in answer.json()["errors"][0]
