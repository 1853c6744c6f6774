"""The source in ``docs/SOURCES.md`` works: it is run as it stands on the page, on real Spark.

A server in this process has the feeds, and all of their rows: what the jobs wrote is compared with
them, row by row.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.e2e.live_job import LiveJob, settings
from tests.e2e.support import Place, Rows, assert_same, files_rows
from tests.waiting import wait_until

import weir
from weir.cli.load import load_job
from weir.core.status import JobStatus

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "SOURCES.md").read_text()
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Feeds:
    """A server with feeds that grow."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: The most rows of a page.
        self.page = 7
        feeds = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path)
                body = json.dumps(feeds.answer(path.path, parse_qs(path.query))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """What a request gets."""
        with self._lock:
            if path == "/feeds":
                return {"feeds": list(self._rows)}
            after, limit = int(query["after"][0]), int(query["limit"][0])
            feed = path.rpartition("/")[2]
            self._asked[feed] += 1
            rows = self._rows[feed]
            return {"rows": [row for row in rows if row["id"] > after][: min(limit, self.page)]}

    def grow(self, **by: int) -> None:
        """Add this many rows to each of these feeds."""
        with self._lock:
            for feed, rows in by.items():
                known = self._rows.setdefault(feed, [])
                for n in range(len(known) + 1, len(known) + rows + 1):
                    ts = (FIRST + timedelta(seconds=n)).isoformat()
                    known.append({"id": n, "feed": feed, "ts": ts, "value": n / 2})

    def wait_for_requests(self, feed: str, number: int) -> None:
        """Wait until a feed has been asked for so many more pages."""
        until = self._asked[feed] + number
        wait_until(lambda: self._asked[feed] >= until, f"{feed} is asked again")

    def rows(self) -> Rows:
        """All rows, as a sink has them."""
        return Rows(
            (row["id"], row["feed"], datetime.fromisoformat(row["ts"]), row["value"])
            for rows in self._rows.values()
            for row in rows
        )

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feeds]:
    """A server that the page's pipeline finds."""
    served = Feeds()
    monkeypatch.setenv("READINGS", served.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield served
    served.close()


def written(place: Place, title: str, *changes: tuple[str, str]) -> Path:
    """The pipeline below a heading, with changes, as a file."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for before, after in (*changes, ('Files("out")', f'Files("{place.directory / "out"}")')):
        assert before in code
        code = code.replace(before, after)
    return place.write("pipeline.py", code)


def loaded(place: Place, monkeypatch: pytest.MonkeyPatch, pipeline: Path) -> weir.Job:
    """The job of a pipeline, which Spark's workers find as well."""
    monkeypatch.syspath_prepend(str(place.directory))
    monkeypatch.setenv("PYTHONPATH", "")
    return load_job(str(pipeline))


def assert_exact(place: Place, feeds: Feeds) -> None:
    """Each row of the feeds is there once."""
    assert_same(files_rows(place.directory / "out"), feeds.rows(), "the readings")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_bounded_source_is_read_to_its_end(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each feed by pages; the job finishes when both readers have."""
    feeds.grow(north=40, south=3, west=15)
    bounded = ("Readings(url)", "Readings(url, bounded=True)")
    job = loaded(place, monkeypatch, written(place, "A source from nothing", bounded))
    with LiveJob(job, settings(place)) as live:
        assert live.result().status is JobStatus.FINISHED
        assert live.gateway.view().vertices[0].records_in == 58
    assert_exact(place, feeds)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_reader_that_raises_fails_the_job_by_its_split(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its position, the subtask, the source's step, and the line of the pipeline."""
    feeds.grow(north=10)
    broken = (
        "if not rows:",
        'if split.after:\n            raise KeyError("ts")\n        if not rows:',
    )
    pipeline = written(place, "A source from nothing", broken)
    with LiveJob(loaded(place, monkeypatch, pipeline), settings(place)) as live:
        result = live.result()
    assert result.status is JobStatus.FAILED
    said = result.failure or ""
    assert "KeyError: 'ts' (in fetch, " in said
    assert (
        "reading split 'north' at Feed(split_id='north', after=7); subtask 0 of 'readings'" in said
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(300)
def test_a_split_that_is_ahead_makes_no_row_of_another_late(
    place: Place, feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows over both feeds: one lags by an hour of event time, and counts when it comes."""
    feeds.page = 300
    feeds.grow(north=3_600, south=5)
    timed = (
        "Readings(url), parallelism=2)",
        "Readings(url), parallelism=2, watermarks=weir.sources.Watermarks(column='ts'))"
        ".transform('minutes', lambda df: df.groupBy(F.window('ts', '1 minute'))"
        ".agg(F.count('*').alias('n')).select('window.start', 'n'))",
    )
    imported = ("import weir\n", "import weir\nfrom pyspark.sql import functions as F\n")
    pipeline = written(place, "A source from nothing", timed, imported)
    with LiveJob(loaded(place, monkeypatch, pipeline), settings(place)) as live:
        live.wait_for(lambda view: view.vertices[0].records_in >= 3_605, "north is ahead")
        # What has been read has taken effect a few batches later.
        feeds.wait_for_requests("south", 4)
        feeds.grow(south=70)
        feeds.wait_for_requests("south", 4)
        feeds.grow(south=3_700)
        closed = Rows(
            Counter(
                ts.replace(second=0)
                for _, _, ts, _ in feeds.rows().elements()
                if ts < FIRST + timedelta(seconds=3_600)
            ).items()
        )

        def all_are_there() -> bool:
            live.checkpoint()
            return files_rows(place.directory / "out").total() == closed.total()

        wait_until(all_are_there, "every minute up to the slower feed's newest row is there")
    assert_same(files_rows(place.directory / "out"), closed, "the counts")


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(600)
def test_no_row_is_lost_or_doubled_when_drivers_are_killed_and_readers_become_more(
    place: Place, feeds: Feeds
) -> None:
    """Two drivers die by SIGKILL while feeds grow and new ones come; the third stops with a
    savepoint, from which three readers go on."""
    pipeline = written(place, "A source from nothing")
    feeds.grow(north=40, south=3)
    for number in range(2):
        run = place.start(pipeline=pipeline)
        wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "rows come")
        feeds.grow(north=25, **{f"new{number}": 30})
        run.wait_for(r"checkpoint \d+ completed")
        run.end()
    run = place.start(pipeline=pipeline)
    wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "all rows are there")
    assert place.weir("stop", "readings", "-m", run.address).returncode == 0
    assert run.wait() == 0, run.story()
    [savepoint] = place.directory.glob(".weir/savepoints/savepoint-*")
    feeds.grow(north=10, south=10, new0=10, last=10)
    more = written(place, "A source from nothing", ("parallelism=2", "parallelism=3"))
    run = place.start("--from-savepoint", str(savepoint), pipeline=more)
    wait_until(lambda: files_rows(place.directory / "out") == feeds.rows(), "all rows are there")
    assert place.weir("stop", "--drain", "readings", "-m", run.address).returncode == 0
    assert_exact(place, feeds)
