"""Flink's own web dashboard, view by view, in front of a real job and of a history server.

``make test-flink`` fetches it. No view may wait for ever, show what is not a number, or ask for
what Weir does not answer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import httpx
import pytest
from playwright.sync_api import ConsoleMessage, Page, Response
from tests.flink.dashboard import served_dashboard
from tests.flink.distribution import JARS
from tests.kit.browser import chromium
from tests.kit.place import Place
from tests.kit.waiting import wait_until

pytestmark = [
    pytest.mark.flink,
    pytest.mark.spark,
    pytest.mark.skipif(not JARS.exists(), reason="Flink is fetched by make test-flink"),
]

CLUSTER = (
    "overview", "job/running", "job/completed", "application/running", "application/completed",
    "submit", "job-manager/metrics", "job-manager/config", "job-manager/logs",
    "job-manager/stdout", "job-manager/log", "job-manager/log/driver.log",
    "job-manager/thread-dump", "job-manager/profiler", "task-manager",
    "task-manager/driver/metrics", "task-manager/driver/logs", "task-manager/driver/stdout",
    "task-manager/driver/log-list", "task-manager/driver/thread-dump",
    "task-manager/driver/profiler",
)  # fmt: skip
JOB = (
    "overview", "exceptions", "dataskew", "timeline", "checkpoints", "configuration", "rescales",
)  # fmt: skip
VERTEX = (
    "detail", "subtasks", "taskmanagers", "watermarks", "accumulators", "backpressure", "metrics",
    "flamegraph",
)  # fmt: skip

#: Flink too answers 404, unless ``rest.profiling.enabled`` is set.
UNANSWERED = re.compile(r"/profiler$")
#: What browser and dashboard say of an answer that is judged by its address, and Flink's chart, if
#: it is left while it is drawn.
BESIDE_THE_POINT = re.compile(r"Failed to load resource|^ERROR ye$|SVGLength")
WRONG = re.compile(r"\bNaN\b|\bundefined\b|Invalid date")
WAITING = ".ant-spin-spinning, .ant-card-loading, .ant-skeleton"


class Walker:
    """Goes through views in one page, and keeps what is wrong with them."""

    def __init__(self, page: Page, address: str) -> None:
        self._page = page
        self._address = address
        self._view = ""
        self.complaints: list[str] = []
        page.on("response", self._answered)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self._complain(str(error)))

    def visit(self, views: Iterable[str]) -> None:
        """Show each view until nothing in it waits."""
        for view in views:
            self._view = view
            self._page.goto(f"{self._address}/#/{view}")
            waiting = self._page.locator(WAITING)
            # It waits for its first answers as soon as it is shown.
            self._page.wait_for_timeout(300)
            wait_until(lambda waiting=waiting: not waiting.count(), f"{view} is shown")
            text = self._page.locator("body").inner_text()
            assert "Version: " in text, f"{view} shows no frame"
            assert self._page.url.endswith(f"#/{view}"), f"{view} leads to {self._page.url}"
            self.complaints += [f"{view} shows {one}" for one in WRONG.findall(text)]

    def leave(self) -> None:
        """Show nothing, and so ask for nothing more."""
        self._page.goto("about:blank")

    def _answered(self, answer: Response) -> None:
        if answer.status >= 400 and not UNANSWERED.search(answer.url):
            self._complain(f"{answer.status} from {answer.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not BESIDE_THE_POINT.search(message.text):
            self._complain(message.text)

    def _complain(self, what: str) -> None:
        self.complaints.append(f"{self._view}: {what}")


def views_of(job: str, vertex: str, state: str) -> list[str]:
    """A job's views, with those of one of its vertices."""
    path = f"job/{state}/{job}"
    return [
        *(f"{path}/{tab}" for tab in JOB),
        *(f"{path}/overview/{vertex}/{tab}" for tab in VERTEX),
        *(f"application/{state}/{job}/{tab}" for tab in ("overview", "exceptions")),
    ]


def test_each_view_shows_a_job_while_it_runs_after_its_end_and_in_history(place: Place) -> None:
    """It is cancelled; its driver lingers, then a history server reads its checkpoint directory."""
    run = place.start("--conf", "weir.rest.linger=10 min", environment={"NUMBERS": "unbounded"})
    (found,) = httpx.get(f"{run.address}/jobs").json()["jobs"]
    job = f"{run.address}/jobs/{found['id']}"
    wait_until(
        lambda: httpx.get(f"{job}/checkpoints").json()["counts"]["completed"], "a checkpoint"
    )
    vertex = httpx.get(job).json()["vertices"][0]["id"]
    with served_dashboard() as (dashboard, address), chromium() as browser:
        dashboard.target = run.address
        walker = Walker(browser.new_page(viewport={"width": 1600, "height": 1000}), address)
        walker.visit([*CLUSTER, *views_of(found["id"], vertex, "running")])

        httpx.patch(f"{job}?mode=cancel").raise_for_status()
        wait_until(
            lambda: httpx.get(f"{job}/status").json()["status"] == "CANCELED", "it is cancelled"
        )
        walker.visit(["overview", "job/completed", *views_of(found["id"], vertex, "completed")])
        walker.leave()
        run.end()

        dashboard.target = history(place)
        walker.visit(["overview", "job/completed", *views_of(found["id"], vertex, "completed")])
    assert walker.complaints == []


def test_each_view_shows_a_job_that_failed_before_its_first_checkpoint(place: Place) -> None:
    """In front of a history server: the driver is gone."""
    (place.directory / "in" / "000.parquet").write_bytes(b"no Parquet")
    assert place.start("--conf", "restart-strategy.type=none").wait() == 1
    with served_dashboard() as (dashboard, address), chromium() as browser:
        dashboard.target = history(place)
        (found,) = httpx.get(f"{dashboard.target}/jobs").json()["jobs"]
        assert found["status"] == "FAILED"
        vertex, *_ = httpx.get(f"{dashboard.target}/jobs/{found['id']}").json()["vertices"]
        walker = Walker(browser.new_page(viewport={"width": 1600, "height": 1000}), address)
        walker.visit(["job/completed", *views_of(found["id"], vertex["id"], "completed")])
    assert walker.complaints == []


def history(place: Place) -> str:
    """The address of a history server for the place's jobs."""
    checkpoints = place.directory / ".weir" / "checkpoints"
    words = [sys.executable, "-m", "weir", "history", str(checkpoints), "--port", "0"]
    return place.launch(words, {}).wait_for(r"(http://[^\s/]+)")[1]
