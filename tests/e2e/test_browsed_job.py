"""The web page in front of a real Spark job, in a real browser, and nothing else."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession, functions
from tests.kit.browser import PATIENCE_MS, chromium
from tests.kit.live_job import (
    RESTARTED,
    LiveJob,
    RaiseOnce,
    both_jobs,
    numbers_job,
    raw_rows,
    settings,
)
from tests.kit.place import Place, assert_same

import weir
from weir.core.status import JobStatus
from weir.operators import Operator

pytestmark = pytest.mark.spark

# The workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    context.close()


def view(live: LiveJob, page: Page, name: str) -> None:
    """Open a view of the job."""
    page.goto(f"{live.address}/#/{name}")
    page.locator("main h1").wait_for()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_job_is_watched_and_drained_in_the_browser(place: Place, page: Page) -> None:
    """Graph, checkpoint, timeline and state are shown; then the button drains it, exactly once."""
    place.land(4)
    with LiveJob(both_jobs(place, bounded=False), settings(place)) as live:
        live.wait_until_it_runs()
        view(live, page, "graph")
        expect(page.get_by_role("link", name=re.compile("^by_minute: running"))).to_be_visible()
        view(live, page, "checkpoints")
        page.get_by_role("button", name="Checkpoint now").click()
        page.get_by_role("button", name="Take a checkpoint").click()
        expect(page.get_by_role("status")).to_contain_text("Checkpoint 1 is complete.")
        page.get_by_role("link", name="1", exact=True).click()
        expect(page.get_by_role("heading", name="Checkpoint 1")).to_be_visible()
        expect(page.get_by_text(re.compile("took longest by itself"))).to_be_visible()
        view(live, page, "timeline")
        expect(page.locator("svg .k-batch").first).to_be_visible()
        expect(page.locator("svg .k-async, svg .k-commit").first).to_be_visible()
        view(live, page, "graph/by_minute")
        expect(page.get_by_text("Subtasks of its longest part")).to_be_visible()
        expect(page.get_by_text("Spark's state operator 0")).to_be_visible()
        view(live, page, "checkpoints")
        page.get_by_role("button", name="Drain and stop").click()
        page.locator("#question-yes").click()
        expect(page.get_by_role("status")).to_contain_text("Savepoint: /")
        assert live.result().status is JobStatus.FINISHED
    assert_same(raw_rows(place), place.rows(), "the copy")


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_failure_is_told_with_its_task_and_what_followed(place: Place, page: Page) -> None:
    """The sink of one task raises once: the page shows where, why, and that the job goes on."""
    place.land(4)
    raising = RaiseOnce(ConnectionError("no route to the warehouse"))
    job = numbers_job(place, bounded=False, stage=raising)
    with LiveJob(job, settings(place, RESTARTED)) as live:
        live.wait_for_steps(3)
        view(live, page, "exceptions")
        expect(
            page.get_by_role("heading", name=re.compile("Task numbers, attempt 1"))
        ).to_be_visible()
        expect(page.get_by_text("no route to the warehouse").first).to_be_visible()
        expect(page.get_by_text("It ran again at")).to_be_visible()
        page.get_by_text("The story before it").click()
        expect(page.get_by_text("The job is RUNNING (attempt 1).")).to_be_visible()
        page.get_by_role("link", name="See it in the timeline").click()
        expect(page.locator("svg .mark").first).to_be_attached()
        view(live, page, "timeline")
        page.get_by_label("What happened at").fill(time.strftime("%H:%M:%S"))
        page.get_by_role("button", name="Show", exact=True).click()
        happened = page.locator("section", has=page.get_by_role("heading", name="What happened"))
        for told in ("no route to the warehouse", "The job is RESTARTING", "The job is RUNNING"):
            expect(happened).to_contain_text(told)
        view(live, page, "logs?task=numbers")
        expect(page.get_by_text(re.compile("no route to the warehouse")).first).to_be_visible()


class SlowFiles(weir.sinks.Files):
    """Files on a disk that takes two seconds for each batch."""

    def stage(self, frame: DataFrame, batch: weir.sinks.Batch) -> dict[str, object] | None:
        time.sleep(2)
        return super().stage(frame, batch)


def rate(spark: SparkSession) -> DataFrame:
    """Rows for as long as anybody reads them."""
    return spark.readStream.format("rate").option("rowsPerSecond", 100).load()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_slow_sink_is_found_with_nothing_but_the_page(place: Place, page: Page) -> None:
    """From the checkpoint to the task that held it up, and from there to its sink."""
    out = place.directory / "out"
    job = weir.Job("slow")
    rows = job.source("rows", rate).transform("rows_seen", lambda frame: frame)
    rows.sink("fast", weir.sinks.Files(str(out / "fast")))
    audit = rows.transform("audit", lambda frame: frame.filter("value % 2 = 0"))
    audit.sink("audit_log", SlowFiles(str(out / "slow")))
    with LiveJob(job, settings(place)) as live:
        live.wait_for_steps(2)
        live.checkpoint()
        live.checkpoint()
        view(live, page, "checkpoints/2")
        why = page.get_by_text(re.compile("Task audit took longest by itself"))
        expect(why).to_contain_text("read what was before the barrier")
        page.get_by_role("link", name="audit").first.click()
        found = page.get_by_text(re.compile(r"Sink audit_log staged the newest batch for 2\.\d s"))
        expect(found).to_contain_text("the sink itself is slow")


def clicks(frame: DataFrame) -> DataFrame:
    """Clicks of users, of whom one (a robot, say) makes nearly all."""
    user = functions.when(functions.col("value") % 50 > 0, 7).otherwise(
        functions.col("value") % 1000
    )
    return frame.select(user.alias("user"), "timestamp", functions.col("value").alias("click"))


class Paths(Operator):
    """Takes long over each click."""

    output_schema = "user long, timestamp timestamp, click long, path binary"

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        path = [
            hashlib.pbkdf2_hmac("sha256", b"click", b"", one % 7 + 9)
            for one in batch["click"].to_pylist()
        ]
        return [batch.append_column("path", pa.array(path))]


def many(spark: SparkSession) -> DataFrame:
    """Two hundred thousand rows in each batch."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 200_000)
    return reader.option("numPartitions", 2).load()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_skewed_key_is_found_with_nothing_but_the_page(place: Place, page: Page) -> None:
    """From the checkpoint to the task that held it up, and from there to its subtask's rows."""
    job = weir.Job("skewed")
    rows = job.source("rows", many).transform("clicks", clicks)
    rows.sink("raw", weir.sinks.Files(str(place.directory / "raw")))
    paths = rows.process("paths", Paths(), key_by="user", parallelism=4)
    paths.sink("visits", weir.sinks.Files(str(place.directory / "visits")))
    with LiveJob(job, settings(place)) as live:
        live.wait_for_steps(3)
        live.checkpoint()
        live.checkpoint()
        view(live, page, "checkpoints/2")
        expect(page.get_by_text(re.compile("Task paths took longest by itself"))).to_be_visible()
        page.get_by_role("link", name="paths").first.click()
        found = page.get_by_text(re.compile(r"most rows have keys of one partition"))
        expect(found).to_contain_text(re.compile(r"it read [\d,]+ of [\d,]+ rows"))
