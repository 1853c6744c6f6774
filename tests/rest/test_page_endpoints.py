"""The web page's files and its endpoints below ``/weir``, over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.kit.clock import ManualClock
from tests.kit.gateway import FakeGateway, served
from tests.rest.page_job import page_gateway

import weir.rest
from weir.rest.flink.job_answers import vertex_id
from weir.rest.server.server import RestSecurity
from weir.rest.web import answers as page_answers
from weir.rest.web.files import PATHS

FILES = sorted((Path(weir.rest.__file__).parent / "web" / "page").iterdir())


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def job(clock: ManualClock) -> FakeGateway:
    return page_gateway(clock=clock)


@pytest.fixture(scope="module")
def client(job: FakeGateway, clock: ManualClock) -> Iterator[httpx.Client]:
    with served(job, clock=clock) as client:
        yield client


def test_every_file_of_the_page_is_served_with_its_type(client: httpx.Client) -> None:
    """The page itself at the root, the others below /weir/page."""
    types = {path: client.get(path).headers["content-type"] for path in PATHS}
    assert types["/"] == "text/html; charset=utf-8"
    assert types["/weir/page/app.js"] == "text/javascript; charset=utf-8"
    assert types["/weir/page/style.css"] == "text/css; charset=utf-8"
    assert len(types) == len(FILES)


def test_the_policy_allows_the_servers_own_files_and_nothing_else(client: httpx.Client) -> None:
    """No inline script or style, no other machine, no frame around the page."""
    policy = client.get("/").headers["content-security-policy"]
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_the_page_needs_nothing_that_the_policy_forbids() -> None:
    """No inline script, handler or style; no HTML from text; no address of another machine."""
    for file in FILES:
        text = file.read_text()
        assert not re.search(r"\s(on[a-z]+|style)\s*=\s*[\"']", text), file
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
        )
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file
    page = next(file for file in FILES if file.name == "index.html").read_text()
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/weir/page/app.js">']


def test_a_vertex_shows_rejects_and_broken_rules_beside_late_rows(client: httpx.Client) -> None:
    """By step or operator, each with its rule."""
    detail = client.get(f"/weir/vertices/{vertex_id('audit')}").json()
    assert [tuple(one.values()) for one in detail["counted"]] == [
        ("0 stateStoreSave", "late", "", 1_204),
        ("price", "rejected", "", 100),
        ("valid", "broken", "has an id", 7),
    ]


def test_a_checkpoint_shows_the_rows_that_were_counted_in_it(client: httpx.Client) -> None:
    """By task; late rows are Spark's."""
    tasks = client.get("/weir/checkpoints/40").json()["tasks"]
    counted = {task["vertex"]: task["live"]["counted"] for task in tasks}
    assert [tuple(one.values()) for one in counted.pop("audit")] == [
        ("price", "rejected", "", 100),
        ("valid", "broken", "has an id", 7),
    ]
    assert not any(counted.values())


def test_the_pages_files_need_no_token_but_its_figures_do(job: FakeGateway) -> None:
    """The files are the same for every job; the page asks for the token itself."""
    with served(job, security=RestSecurity(token="secret")) as client:
        assert client.get("/").status_code == 200
        assert client.get("/weir/page/app.js").status_code == 200
        assert client.post("/").status_code == 401
        assert client.get("/weir/state").status_code == 401
        assert client.get("/weir/page/../state").status_code == 401
        given = client.get("/weir/state", headers={"Authorization": "Bearer secret"})
    assert given.status_code == 200


def test_a_page_of_another_site_gets_no_figures(client: httpx.Client) -> None:
    """A browser says which page asks."""
    answer = client.get("/weir/state", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_an_answer_that_is_known_is_not_sent_again(client: httpx.Client) -> None:
    """As long as nothing has changed."""
    first = client.get("/weir/failures")
    again = client.get("/weir/failures", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_state_has_rates_and_shares_of_the_last_half_minute(client: httpx.Client) -> None:
    """The slow vertex is busy, the others are held by its full channel."""
    state = client.get("/weir/state").json()
    vertices = {one["name"]: one["live"] for one in state["vertices"]}
    assert vertices["audit"]["busy"] > 0.9
    assert 0.3 < vertices["clean"]["held"] < 0.5
    assert 1_500 < vertices["clean"]["rateIn"] < 2_500
    live = state["live"]
    assert (state["status"], live["restarts"], state["completed"]["id"]) == ("RUNNING", 1, 40)
    assert [one["id"] for one in live["running"]] == [41]


def test_rates_are_computed_once_per_sample(client: httpx.Client) -> None:
    """An open page asks every second, and a sample is taken every five."""
    page_answers._series.cache_clear()
    asked = [client.get("/weir/rates").json() for _ in range(5)]
    assert asked[1:] == asked[:-1]
    assert page_answers._series.cache_info().misses == 1


def test_rates_come_after_a_time_and_of_one_vertex(client: httpx.Client) -> None:
    """A page that has some asks for the newer ones only."""
    rates = client.get("/weir/rates", params={"vertex": "audit"}).json()
    assert len(rates["times"]) == len(rates["rowsIn"]) == len(rates["busy"]) == 719
    newer = client.get("/weir/rates", params={"since": rates["times"][-3]}).json()
    assert newer["times"] == rates["times"][-2:]
    assert newer["busy"] == []


def test_a_timeline_has_the_bars_of_its_window(client: httpx.Client, clock: ManualClock) -> None:
    """Batches and parts of checkpoints, each as kind, start, end, number and whether it failed."""
    end = clock.wall_ms()
    timeline = client.get("/weir/timeline", params={"start": end - 60_000, "end": end}).json()
    lane = next(one for one in timeline["lanes"] if one["vertex"] == "audit")
    assert {kind for kind, *_ in lane["query"]} == {"batch", "rested"}
    assert {kind for kind, *_ in lane["parts"]} >= {"catch-up", "sync", "async", "commit"}
    assert all(stop >= end - 60_000 for _, _, stop, _, _ in lane["query"])


def test_short_bars_are_joined(job: FakeGateway, client: httpx.Client, clock: ManualClock) -> None:
    """An answer is bounded, however many bars its window has."""
    end = clock.wall_ms()
    hour = client.get("/weir/timeline", params={"start": end - 3_600_000, "end": end}).json()
    assert all(len(one["query"]) <= 1_501 for one in hour["lanes"])
    kept = job.recorder.timelines["audit"].query.maxlen
    assert kept == 4_000


def test_a_checkpoint_says_which_task_held_it_up_and_by_what(client: httpx.Client) -> None:
    """Waiting for a barrier is never a task's own doing."""
    found = client.get("/weir/checkpoints/40").json()
    assert found["why"] == (
        "Task audit took longest by itself: 8.0 s of 9.1 s. The reason: it had to read what was"
        " before the barrier in its channels (its batches take 4.0 s on average)."
    )
    task = next(one["live"] for one in found["tasks"] if one["vertex"] == "audit")
    assert (task["catchUpMs"], task["syncMs"], task["progress"]) == (8_000, 40, "committed")


def test_a_running_checkpoint_names_the_tasks_that_it_waits_for(client: httpx.Client) -> None:
    """With what each of them is at."""
    assert client.get("/weir/checkpoints/41").json()["why"] == (
        "Not acknowledged yet: audit (no barrier yet)."
    )


def test_a_skewed_subtask_is_named(client: httpx.Client) -> None:
    """And the state of the vertex by partition."""
    found = client.get("/weir/vertices/audit").json()
    assert found["finding"] == (
        "Subtask 2 took 900 ms, the median of the others is 10 ms; it read 9,000 of 9,300 rows:"
        " most rows have keys of one partition (a skewed key)."
    )
    assert found["state"][0]["partitions"] == [3_000, 3_000, 90_000, 3_000]
    assert len(found["failures"]) == 1


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        (100, ", with as many rows: look at its host"),
        (300, "; it read 300 rows, the median of the others is 100."),
    ],
)
def test_a_slow_subtask_with_more_rows_is_not_said_to_have_as_many(
    job: FakeGateway, rows: int, finding: str
) -> None:
    """Only with about the rows of the others is its host the suspect."""
    one = job.spread[0]
    quick = [replace(one, index=number, duration_ms=10, rows=100) for number in range(3)]
    slow = replace(one, index=3, duration_ms=900, rows=rows)
    assert finding in page_answers._skew([*quick, slow])


def test_a_vertex_is_found_by_flinks_digits_in_either_case(client: httpx.Client) -> None:
    """As everywhere."""
    digits = vertex_id("audit")
    assert client.get(f"/weir/vertices/{digits.upper()}").status_code == 200


def test_a_slow_sink_is_named(job: FakeGateway, client: httpx.Client) -> None:
    """It takes far longer than Spark needs for the rows."""
    slow = [replace(one, staging_ms={"audit_table": 4_000}) for one in job.current.vertices]
    before = job.current
    job.current = replace(before, vertices=tuple(slow))
    job.spread = ()
    try:
        found = client.get("/weir/vertices/clean").json()
    finally:
        job.current, job.spread = before, FakeGateway().spread
    assert found["finding"] == (
        "Sink audit_table staged the newest batch for 4.0 s, while no Spark task of the batch ran"
        " longer than 0 ms: the sink itself is slow."
    )


def test_failures_come_with_their_story_and_what_came_of_them(client: httpx.Client) -> None:
    """Newest first."""
    [failure] = client.get("/weir/failures").json()["failures"]
    assert failure["vertex"] == "audit"
    assert failure["story"][0]["text"] == "The job is RUNNING (attempt 1)."
    assert failure["outcome"] == "The restart strategy begins attempt 2 in 1.0 s."


def test_the_story_of_a_window_of_time(job: FakeGateway, client: httpx.Client) -> None:
    """What happened at 14:03."""
    moments = {one.text: one.time_ms for one in job.recorder.moments}
    end = moments["The job is RUNNING (attempt 2)."]
    window = {"start": end - 10_000, "end": end}
    now = client.get("/weir/story", params=window).json()
    assert [one["text"] for one in now["moments"]] == [
        "Failure: Task 'audit' failed: connection refused",
        "The job is RESTARTING (attempt 1).",
    ]
    before = client.get("/weir/story", params={"start": 0, "end": 1_000}).json()
    assert before["moments"] == []
    after = client.get("/weir/story", params={"after": now["moments"][-1]["number"]}).json()
    assert after["moments"][0]["text"] == "The job is RUNNING (attempt 2)."


def test_the_drivers_log_is_filtered_by_task(client: httpx.Client) -> None:
    """A line is of a task if its thread logged it, or if it names the task."""
    everything = client.get("/weir/logs").json()["lines"]
    of_audit = client.get("/weir/logs", params={"task": "audit"}).json()["lines"]
    assert 0 < len(of_audit) < len(everything)
    assert all("audit" in one["text"] for one in of_audit)


def test_sparks_log_is_read_from_its_end(
    job: FakeGateway, client: httpx.Client, tmp_path: Path
) -> None:
    """Records of several lines stay together."""
    log = tmp_path / "spark.log"
    job.engine_log = str(log)
    log.write_text(
        "2026-01-02 03:04:05.678 WARN MicroBatchExecution: clean: slow\n"
        "2026-01-02 03:04:06.000 ERROR Executor: failed\njava.lang.Exception\n\tat x\n"
    )
    first, second = client.get("/weir/logs", params={"source": "spark"}).json()["lines"]
    assert (first["level"], first["logger"]) == ("WARN", "MicroBatchExecution")
    assert second["text"] == "failed\njava.lang.Exception\n\tat x"
    job.engine_log = str(tmp_path / "gone.log")
    gone = client.get("/weir/logs", params={"source": "spark", "task": "gone"})
    assert gone.status_code == 500
    assert "cannot be read" in gone.json()["errors"][0]


def test_coordinators_have_the_state_of_the_newest_checkpoint(client: httpx.Client) -> None:
    """It is what a restore would hand back to them."""
    found = client.get("/weir/coordinators").json()
    assert (found["checkpoint"], found["coordinators"][0]["state"]) == (
        40,
        {"rules": {"often": 5, "rare": 1}},
    )


@pytest.mark.parametrize(
    "path",
    [
        "/weir/rates?since=yesterday",
        "/weir/timeline?start=5&end=4",
        "/weir/timeline?start=0&end=999999999999",
        "/weir/logs?source=other",
        "/weir/checkpoints/x",
    ],
)
def test_a_wrong_parameter_is_refused_with_a_sentence(client: httpx.Client, path: str) -> None:
    """Which says what is allowed."""
    answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["errors"][0].endswith(".")


def test_an_unknown_vertex_is_not_found(client: httpx.Client) -> None:
    """Its name is quoted."""
    answer = client.get("/weir/vertices/nobody")
    assert (answer.status_code, answer.json()["errors"]) == (
        404,
        ["The job has no vertex 'nobody'."],
    )
