"""The web page of a history server, in a real, headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.kit.browser import chromium, watched_page
from tests.kit.gateway import VIEW
from tests.kit.stored_jobs import (
    ALIVE,
    DAMAGED,
    DRIVER,
    FAILED,
    FS,
    STOPPED,
    leave_job,
    leave_jobs,
)

from weir.core.status import JobStatus
from weir.monitoring.views import ExceptionView
from weir.rest.past.archive import JobArchive
from weir.rest.past.history import StoredJobs
from weir.rest.server.server import RestServer
from weir.runtime.concurrency import SystemClock

PHONE = {"width": 390, "height": 800}

#: What each view shows of the failed job, by its address.
VIEWS = {
    "overview": "KeyError: 'amount'",
    "graph": "3 vertices, as the job last had them",
    "graph/per_minute": "4 partitions, the largest 90 kB",
    "checkpoints": "Those that the job retained",
    "checkpoints/3": "Task by task",
    "exceptions": "The job failed for good.",
    "coordinators": '"often": 5',
    "configuration": "left no archive",
}
#: And where a directory has nothing to show.
UNKNOWN = ("timeline", "logs")

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with chromium() as browser:
        yield browser.new_page()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return leave_jobs(tmp_path)


@pytest.fixture
def open_page(tab: Page, base: Path) -> Iterator[Open]:
    """Opens a view; whatever the browser complains of fails the test."""
    server = RestServer(port=0)
    address = server.start_history(StoredJobs(str(base), lambda _: FS, SystemClock()))
    with watched_page(tab) as show:
        yield lambda view, **options: show(f"{address}/#/{view}", **options)
    server.stop()


def go(page: Page, view: str) -> None:
    """Open another view in the same tab."""
    page.goto(f"{page.url.partition('#')[0]}#/{view}")


def test_every_job_is_in_a_list_with_how_it_stands_and_what_is_wrong(open_page: Open) -> None:
    """The one that a driver runs leads to that driver's page."""
    page = open_page("", viewport=PHONE)
    rows = page.locator("main tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("DAMAGED")
    expect(rows.nth(0)).to_contain_text("The job record")
    failed, stopped, alive = (rows.filter(has_text=name) for name in ("orders", "paym", "flights"))
    expect(failed).to_contain_text("FAILED")
    expect(failed).to_contain_text("KeyError: 'amount'")
    expect(failed).to_contain_text(re.compile(r"No\. 3, (59 min|1 h).* old"))
    expect(stopped).to_contain_text("FINISHED")
    expect(alive.get_by_role("link", name="driver on")).to_have_attribute("href", DRIVER)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_job_is_found_by_its_name_and_opened_without_a_mouse(open_page: Open) -> None:
    """Its views have addresses that a colleague can open, and lead back to the list."""
    page = open_page("")
    page.get_by_role("searchbox", name="Find").fill("fini")
    expect(page.locator("main tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="payments", exact=True)).to_be_visible()
    page.get_by_role("searchbox", name="Find").fill("ORD")
    expect(page.get_by_role("link", name="payments", exact=True)).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="1 of 4 jobs")).to_be_visible()
    page.get_by_role("link", name="orders", exact=True).press("Enter")
    expect(page).to_have_url(re.compile(f"#/jobs/{FAILED}/overview$"))
    expect(page.locator("#job-name")).to_have_text("orders")
    page.get_by_role("link", name="Graph").press("Enter")
    page.get_by_role("link", name=re.compile("^per_minute: 99 kB of state")).press("Enter")
    expect(page.get_by_role("heading", name="per_minute")).to_be_focused()
    expect(page).to_have_url(re.compile(f"#/jobs/{FAILED}/graph/per_minute$"))
    page.get_by_role("link", name="Jobs").press("Enter")
    expect(page.locator("main tbody tr")).to_have_count(4)
    expect(page.locator("#job-state")).to_be_hidden()


def test_each_view_of_a_job_has_an_address_and_fits_a_phone(open_page: Open) -> None:
    """It shows what the directory has, and makes nothing up."""
    page = open_page(f"jobs/{FAILED}/overview", viewport=PHONE)
    for view, text in VIEWS.items():
        go(page, f"jobs/{FAILED}/{view}")
        found = page.locator("main").get_by_text(text).or_(page.get_by_role("img", name=text))
        expect(found.first).to_be_visible()
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute(
            "href", f"#/jobs/{FAILED}/{view.partition('/')[0]}"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view
        expect(page.locator("main")).not_to_contain_text(re.compile(r"undefined|NaN|null|rows/s"))
    assert set(page.locator("nav a").all_inner_texts()).isdisjoint(map(str.capitalize, UNKNOWN))
    for view in UNKNOWN:
        go(page, f"jobs/{FAILED}/{view}")
        expect(page.locator("main")).to_contain_text("driver")


def test_what_its_driver_knew_is_shown_of_a_job(open_page: Open, base: Path) -> None:
    """Its configuration, and a checkpoint and a task that failed, beside what is on disk."""
    archived = replace(
        VIEW,
        job_id=FAILED,
        status=JobStatus.FAILED,
        exceptions=(
            ExceptionView(timestamp_ms=3_000, message="the network is down", attempt=0),
            ExceptionView(timestamp_ms=4_000, message="no such key", vertex="clean", attempt=1),
        ),
    )
    JobArchive(FS, str(base), FAILED).write(archived)
    page = open_page(f"jobs/{FAILED}/configuration", viewport=PHONE)
    expect(page.get_by_role("row").filter(has_text="checkpointing.interval")).to_contain_text("5 s")
    go(page, f"jobs/{FAILED}/checkpoints")
    expect(page.get_by_text("expired before completing").first).to_be_visible()
    expect(page.get_by_role("link", name="3", exact=True)).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Tolerable failures")).to_be_visible()
    go(page, f"jobs/{FAILED}/exceptions")
    expect(page.get_by_text("Task clean, attempt 1")).to_be_visible()
    expect(page.get_by_text("The job was restarted.")).to_be_visible()
    go(page, f"jobs/{FAILED}/graph")
    expect(page.get_by_text("2 vertices, as the job last had them")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_job_that_runs_elsewhere_cannot_be_changed_here(open_page: Open) -> None:
    """Its driver's page can; this one says where that is."""
    page = open_page(f"jobs/{ALIVE}/overview")
    expect(page.get_by_text("It runs now, and only its driver")).to_be_visible()
    expect(page.get_by_role("link", name="driver on")).to_have_attribute("href", DRIVER)
    go(page, f"jobs/{ALIVE}/checkpoints")
    expect(page.get_by_text("Those that the job retained")).to_be_visible()
    expect(page.get_by_role("button").locator("visible=true")).to_have_count(0)
    go(page, f"jobs/{ALIVE}/coordinators")
    expect(page.get_by_text('"often": 5')).to_be_visible()
    expect(page.get_by_role("button").locator("visible=true")).to_have_count(0)


def test_one_job_is_never_shown_as_another(open_page: Open) -> None:
    """While the figures of the other are on their way."""
    page = open_page(f"jobs/{FAILED}/graph/score")
    expect(page.get_by_role("heading", name="score")).to_be_visible()
    page.route(f"**/weir/state?job={STOPPED}", lambda _: None)
    go(page, f"jobs/{STOPPED}/graph/clean")
    expect(page.get_by_text("Asking the history server ...")).to_be_visible()
    expect(page.locator(".graph")).to_have_count(0)


def test_a_job_that_was_stopped_shows_its_savepoint(open_page: Open, tmp_path: Path) -> None:
    """Beside the checkpoints that it retained."""
    page = open_page(f"jobs/{STOPPED}/checkpoints")
    expect(page.get_by_role("link", name="Savepoint 4").first).to_be_visible()
    expect(page.get_by_text(str(tmp_path / "savepoint-1")).first).to_be_visible()
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_role("heading", name="Checkpoint 3")).to_be_visible()


def test_a_savepoint_that_was_moved_is_said_to_be_missing(open_page: Open, tmp_path: Path) -> None:
    """The rest of the job is shown all the same."""
    (tmp_path / "savepoint-1").rename(tmp_path / "moved")
    page = open_page(f"jobs/{STOPPED}/checkpoints")
    expect(page.locator(".why.warn")).to_contain_text(f"{tmp_path}/savepoint-1")
    expect(page.get_by_role("link", name="3", exact=True)).to_be_visible()
    go(page, f"jobs/{STOPPED}/overview")
    expect(page.locator(".why.warn")).to_contain_text(f"{tmp_path}/savepoint-1")
    expect(page.get_by_role("link", name="per_minute")).to_be_visible()


def test_a_job_that_is_damaged_says_what_is_wrong_in_every_view(open_page: Open) -> None:
    """And nothing else, since nothing else is known of it."""
    page = open_page(f"jobs/{DAMAGED}/overview")
    for view in ("overview", "graph", "checkpoints", "exceptions", "coordinators"):
        go(page, f"jobs/{DAMAGED}/{view}")
        expect(page.locator("main h1")).to_have_text(view.capitalize())
        expect(page.locator("main")).to_contain_text("The job record")
        expect(page.locator("#job-state")).to_have_text("DAMAGED")
        expect(page.locator("main .panel")).to_have_count(0)


def test_the_list_is_live(open_page: Open, base: Path) -> None:
    """A job that starts meanwhile appears."""
    page = open_page("")
    expect(page.locator("main tbody tr")).to_have_count(4)
    leave_job(base, "e" * 32, name="newcomer")
    expect(page.get_by_role("link", name="newcomer", exact=True)).to_be_visible()
