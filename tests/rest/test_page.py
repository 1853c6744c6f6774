"""The web page in a real, headless Chromium, in front of a fake job."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.kit.browser import chromium, watched_page
from tests.kit.gateway import FakeGateway, completed
from tests.rest.page_job import ended, page_gateway

from weir.errors import JobError
from weir.rest.server.server import RestSecurity, RestServer
from weir.runtime.ports import CoordinatorAnswer

#: What each view shows of the job, by its address.
VIEWS = {
    "overview": "Rows committed by sinks",
    "graph": "5 vertices, as weir plan cuts them",
    "graph/audit": "most rows have keys of one partition (a skewed key)",
    "timeline": "The longest bars",
    "checkpoints": "Not acknowledged yet: audit",
    "checkpoints/40": "Task audit took longest by itself",
    "exceptions": "ConnectionError: connection refused by db:5432",
    "logs": "Failure: Task 'audit' failed: connection refused",
    "coordinators": '"often": 5',
    "configuration": "execution.checkpointing.interval",
}

#: Nobody else on this machine takes a port of it while the driver is gone.
ADDRESS = "127.0.77.1"

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    return browser.new_page()


@pytest.fixture
def job() -> FakeGateway:
    return page_gateway()


@pytest.fixture
def driver(job: FakeGateway) -> Iterator[RestServer]:
    server = RestServer(bind_address=ADDRESS, port=0)
    server.start(job)
    yield server
    server.stop()


@pytest.fixture
def open_page(tab: Page, driver: RestServer) -> Iterator[Open]:
    """Opens a view; what the browser complains of fails the test."""
    # What a test provokes: a refusal, and a driver that is gone.
    provoked = r"Failed to load resource: (the server responded with|net::ERR_CONNECTION)"
    with watched_page(tab, provoked=provoked) as show:
        yield lambda view, **options: show(f"{driver.bind()}/#/{view}", **options)


def test_each_view_has_an_address_and_fits_a_phone(open_page: Open) -> None:
    """Each shows its part of the job, says where it is, and never scrolls sideways."""
    page = open_page("overview", viewport={"width": 390, "height": 800})
    for view, text in VIEWS.items():
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(page.locator("main").get_by_text(text).first).to_be_visible()
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute(
            "href", f"#/{view.partition('/')[0]}"
        )
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view


def test_the_page_is_live_and_keeps_what_the_reader_has_opened(
    open_page: Open, job: FakeGateway
) -> None:
    """New figures come without reloading; an opened table stays open."""
    page = open_page("overview")
    page.get_by_text("As a table").first.click()
    expect(page.get_by_text("Rows in, the newest 15 minutes")).to_be_visible()
    job.current = replace(job.current, name="orders two")
    expect(page.locator("#job-name")).to_have_text("orders two")
    expect(page.get_by_text("Rows in, the newest 15 minutes")).to_be_visible()


@pytest.mark.slow
def test_what_waits_in_sources_is_part_of_the_backlog(open_page: Open, job: FakeGateway) -> None:
    """If they say so; a source that does not is not said to be empty."""
    page = open_page("overview")
    backlog = page.locator(".cards > div").filter(has_text="Backlog")
    expect(backlog).to_have_text(re.compile("6 segments.*; 1,200 records wait in sources"))
    page.goto(f"{page.url.partition('#')[0]}#/graph/clean")
    expect(page.get_by_text("1,200 wait in its sources")).to_be_visible()
    silent = [replace(one, pending_records=None) for one in job.current.vertices]
    job.current = replace(job.current, vertices=tuple(silent))
    expect(page.get_by_text("wait in its sources")).to_have_count(0)
    page.goto(f"{page.url.partition('#')[0]}#/overview")
    expect(backlog).to_contain_text("6 segments")
    expect(backlog).not_to_contain_text("sources")


def test_a_savepoint_is_taken_after_a_question(open_page: Open, job: FakeGateway) -> None:
    """Who says no has asked for nothing; the path of the savepoint is shown."""
    page = open_page("checkpoints")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("heading", name="Cancel the job?")).to_be_visible()
    page.get_by_role("button", name="No, go back").click()
    assert job.calls == []
    job.prepared.append(completed(50, "/backup/savepoint-1"))
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.get_by_label("Directory").fill("/backup")
    page.get_by_role("button", name="Take a savepoint").click()
    expect(page.get_by_role("status")).to_contain_text("Savepoint: /backup/savepoint-1")
    assert job.calls == [("savepoint", "/backup")]


def test_a_failed_request_says_why(open_page: Open, job: FakeGateway) -> None:
    """With the driver's own sentence."""
    page = open_page("checkpoints")
    job.prepared.append(JobError("The disk of /backup is full."))
    page.get_by_role("button", name="Drain and stop").click()
    page.locator("#question-yes").click()
    expect(page.get_by_role("status")).to_contain_text("The disk of /backup is full.")
    assert job.calls == [("drain", None)]


def test_a_coordinator_gets_a_request(open_page: Open, job: FakeGateway) -> None:
    """Like ``weir send``; what is not a JSON object is not sent."""
    page = open_page("coordinators")
    form = page.get_by_label("Request for score")
    form.fill("[1")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("not a JSON object")
    job.prepared.append(CoordinatorAnswer(answer={"rules": 1}, checkpoint_id=51))
    form.fill('{"set": {"often": 10}}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text('score answered {"rules":1}')
    assert job.calls == [("send", json.dumps({"set": {"often": 10}}))]


def test_a_driver_that_is_gone_and_comes_back(
    open_page: Open, driver: RestServer, job: FakeGateway
) -> None:
    """The page says since when it has nothing new, and goes on by itself."""
    page = open_page("overview")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("#job-name")).to_have_text("orders")
    port = int(driver.bind().rpartition(":")[2])
    driver.stop()
    expect(page.get_by_role("alert")).to_contain_text("The driver does not answer.")
    expect(page.get_by_text("Rows committed by sinks").first).to_be_visible()
    again = RestServer(bind_address=ADDRESS, port=port)
    again.start(job)
    try:
        expect(page.get_by_role("alert")).to_be_hidden()
    finally:
        again.stop()


@pytest.mark.slow
def test_the_page_asks_for_the_token_and_keeps_it_for_the_tab(browser: Browser) -> None:
    """Without it there are neither figures nor buttons; a wrong one is refused."""
    server = RestServer(port=0, security=RestSecurity(token="secret"))
    address = server.start(page_gateway())
    page = browser.new_page()
    try:
        page.goto(f"{address}/#/checkpoints")
        expect(page.get_by_role("heading", name="This driver wants its token")).to_be_visible()
        assert page.get_by_text("Drain and stop").count() == 0
        page.get_by_role("textbox", name="Token").fill("guessed")
        page.get_by_role("textbox", name="Token").press("Enter")
        expect(page.get_by_text("The driver does not take this token.")).to_be_visible()
        page.get_by_role("textbox", name="Token").fill("secret")
        page.get_by_role("textbox", name="Token").press("Enter")
        expect(page.get_by_role("button", name="Drain and stop")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="Drain and stop")).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).length + document.cookie.length") == 0
    finally:
        page.close()
        server.stop()


def test_who_may_only_look_sees_no_buttons(browser: Browser) -> None:
    """Neither of the job nor of its coordinators."""
    server = RestServer(port=0, security=RestSecurity(token="secret", reading_token="looking"))
    address = server.start(page_gateway())
    page = browser.new_page()
    try:
        page.goto(f"{address}/#/checkpoints")
        page.get_by_role("textbox", name="Token").fill("looking")
        page.get_by_role("textbox", name="Token").press("Enter")
        expect(page.get_by_text("Your token lets you look, not change the job.")).to_be_visible()
        assert page.get_by_role("button", name="Cancel").count() == 0
        page.goto(f"{address}/#/coordinators")
        expect(page.get_by_text("Your token lets you look, not send").first).to_be_visible()
        assert page.get_by_role("button", name="Send").count() == 0
    finally:
        page.close()
        server.stop()


@pytest.mark.slow
def test_a_vertex_is_reached_and_read_without_a_mouse(open_page: Open) -> None:
    """By Tab and Enter, with a name that says what the picture shows."""
    page = open_page("graph")
    node = page.get_by_role("link", name=re.compile(r"^audit: running, .* busy 9\d %"))
    expect(node).to_be_visible()
    node.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="audit RUNNING")).to_be_focused()
    expect(page).to_have_url(re.compile("#/graph/audit$"))
    page.get_by_role("link", name=re.compile("^score: ")).press("Enter")
    expect(page.get_by_role("heading", name="score RUNNING")).to_be_visible()
    expect(page.get_by_role("heading", name="audit RUNNING")).to_have_count(0)


@pytest.mark.slow
def test_rejects_and_broken_rules_stand_beside_late_rows(open_page: Open) -> None:
    """Of a vertex and of a checkpoint, by step and operator that has counted rows, and why."""
    page = open_page("graph/audit")
    table = page.get_by_role("table", name=re.compile("^Rows dropped as late, set aside"))
    rows = table.get_by_role("row")
    expect(rows.nth(1)).to_have_text(re.compile("0 stateStoreSave.*came late.*1,204"))
    expect(rows.nth(2)).to_have_text(re.compile("price.*were set aside.*100"))
    expect(rows.nth(3)).to_have_text(re.compile('valid.*broke "has an id".*7'))
    expect(page.get_by_text("1,204 rows dropped as late")).to_be_visible()
    page = open_page("checkpoints/40")
    rows = page.get_by_role("table", name=re.compile("set aside.*in its batches")).get_by_role(
        "row"
    )
    expect(rows.nth(1)).to_have_text(re.compile("price.*were set aside.*100"))


@pytest.mark.slow
def test_what_happened_at_a_time_of_day(open_page: Open, job: FakeGateway) -> None:
    """The timeline goes there; the checkpoint bars lead to their checkpoints."""
    page = open_page("timeline")
    when = page.evaluate("new Date(Date.now() - 60000).toTimeString().slice(0, 8)")
    page.get_by_label("What happened at").fill(when)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page).to_have_url(re.compile(r"at=\d+"))
    expect(page.get_by_role("button", name="Now")).to_have_attribute("aria-pressed", "false")
    expect(page.locator("svg .k-catch-up").first).to_be_visible()
    page.get_by_role("link", name=re.compile("Checkpoint 38,")).click()
    expect(page.get_by_role("heading", name="Checkpoint 38")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Now").click()
    expect(page.get_by_role("button", name="Now")).to_have_attribute("aria-pressed", "true")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("button", "yes", "call"),
    [
        ("Checkpoint now", "Take a checkpoint", ("checkpoint", "CONFIGURED")),
        ("Stop with savepoint", "Stop the job", ("stop", None)),
        ("Drain and stop", "Drain and stop", ("drain", None)),
        ("Cancel", "Cancel the job", ("cancel", None)),
    ],
)
def test_each_button_asks_before_it_acts(
    open_page: Open, job: FakeGateway, button: str, yes: str, call: tuple[str, str | None]
) -> None:
    """And does what it says, once."""
    page = open_page("checkpoints")
    job.prepared.append(None if call[0] == "cancel" else completed(60, "/s/savepoint-60"))
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert job.calls == []
    page.get_by_role("dialog").get_by_role("button", name=yes).click()
    expect(page.locator(".notice.good")).to_be_visible()
    assert job.calls == [call]


@pytest.mark.slow
def test_a_job_that_has_ended_offers_no_buttons(open_page: Open, job: FakeGateway) -> None:
    """It says how it ended, and why."""
    ended(job)
    page = open_page("checkpoints")
    expect(page.get_by_text("The job has ended: nothing can be triggered.")).to_be_visible()
    assert page.get_by_role("button", name="Savepoint").count() == 0
    page.goto(f"{page.url.partition('#')[0]}#/overview")
    expect(page.get_by_text("Disk full.")).to_be_visible()
    expect(page.locator("#job-state")).to_have_text("FAILED")


@pytest.mark.slow
def test_a_new_job_has_no_figures_yet(open_page: Open, job: FakeGateway) -> None:
    """Every view says so, instead of staying empty."""
    job.recorder.samples.clear()
    job.recorder.moments.clear()
    job.recorder.failures.clear()
    job.current = replace(
        job.current, checkpoints=type(job.current.checkpoints)(), latest_completed=None
    )
    page = open_page("overview")
    for view, text in (
        ("overview", "none yet"),
        ("checkpoints", "No checkpoint has been triggered yet."),
        ("exceptions", "Nothing has failed since the driver started."),
        ("timeline", "Nothing happened in this time."),
        ("coordinators", "no checkpoint has completed yet"),
    ):
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(page.locator("main").get_by_text(text).first).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_job_of_forty_vertices_can_be_read(browser: Browser, width: int) -> None:
    """No two boxes overlap, none is cut off, and each is in the table and in the timeline."""
    server = RestServer(port=0)
    address = server.start(page_gateway(40))
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.goto(f"{address}/#/graph")
        expect(page.locator(".graph .box")).to_have_count(40)
        boxes = [one.bounding_box() for one in page.locator(".graph .box").all()]
        places = [(b["x"], b["y"], b["width"], b["height"]) for b in boxes if b is not None]
        assert len(places) == 40
        for number, (x, y, wide, tall) in enumerate(places):
            assert wide > 110
            for left, top, other_wide, other_tall in places[:number]:
                apart = x >= left + other_wide or left >= x + wide
                assert apart or y >= top + other_tall or top >= y + tall
        expect(page.locator("main tbody tr")).to_have_count(40)
        page.goto(f"{address}/#/timeline")
        expect(page.locator(".timeline .row-back")).to_have_count(40)
    finally:
        page.close()
        server.stop()
