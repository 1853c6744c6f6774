"""Requests to operator coordinators over REST.

The endpoint is Weir's own and follows Flink's convention for asynchronous operations.
"""

from __future__ import annotations

import httpx
from tests.kit.gateway import JOB_ID, FakeGateway

from weir.errors import CoordinatorError
from weir.runtime.ports import CoordinatorAnswer

SCORE = f"/v1/jobs/{JOB_ID}/coordinators/score"
TRIGGER = "0123456789abcdef" * 2


def test_a_request_is_in_progress_until_a_checkpoint_has_it(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The poll then has the answer and the id of that checkpoint."""
    asked = http.post(SCORE, json={"request": {"set": {"limit": 5}}, "triggerId": TRIGGER})
    assert (asked.status_code, asked.json()) == (202, {"request-id": TRIGGER})
    assert http.get(f"{SCORE}/{TRIGGER}").json()["status"] == {"id": "IN_PROGRESS"}
    gateway.futures[0].set_result(CoordinatorAnswer(answer={"rules": {}}, checkpoint_id=7))
    answered = http.get(f"{SCORE}/{TRIGGER}").json()
    assert answered == {
        "status": {"id": "COMPLETED"},
        "operation": {"answer": {"rules": {}}, "checkpointId": 7},
    }


def test_the_answer_of_one_coordinator_is_not_that_of_another(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Though the request has the same id."""
    http.post(SCORE, json={"request": {}, "triggerId": TRIGGER})
    gateway.futures[0].set_result(CoordinatorAnswer(answer={}, checkpoint_id=7))
    other = http.get(f"{SCORE.replace('score', 'other')}/{TRIGGER}")
    assert (other.status_code, "No coordinator other request" in other.text) == (404, True)
    assert http.get(f"{SCORE}/{TRIGGER}").json()["status"] == {"id": "COMPLETED"}


def test_a_request_that_is_repeated_with_its_id_is_made_once(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """A client repeats a request that may not have arrived."""
    for _ in range(2):
        http.post(SCORE, json={"request": {}, "triggerId": TRIGGER})
    assert gateway.calls == [("send", "{}")]


def test_what_the_coordinator_refuses_is_its_sentence(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The refusal has the shape of a failed operation of Flink's."""
    gateway.prepared = [CoordinatorError("there is no rule 'x'")]
    http.post(SCORE, json={"request": {}, "triggerId": TRIGGER})
    answer = http.get(f"{SCORE}/{TRIGGER}")
    assert answer.status_code == 200
    assert answer.json()["operation"]["failure-cause"]["stack-trace"] == "there is no rule 'x'"


def test_an_operator_without_a_coordinator_is_not_found(http: httpx.Client) -> None:
    """The message names the operators that have one."""
    answer = http.post(SCORE.replace("score", "scores"), json={"request": {}})
    assert answer.status_code == 404
    assert "those with a coordinator: score" in answer.json()["errors"][0]


def test_a_body_that_is_malformed_is_refused_with_what_it_may_hold(http: httpx.Client) -> None:
    """The body is checked before the coordinator is called."""
    for body in ({}, {"request": 5}, {"request": {}, "triggerId": "x"}):
        answer = http.post(SCORE, json=body)
        assert answer.status_code == 400
        assert "request is an object" in answer.json()["errors"][0]
