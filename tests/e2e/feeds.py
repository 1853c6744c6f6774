"""The HTTP API that the sources in ``docs/`` read, and the pipelines on their pages."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.kit.place import Place, Rows, assert_same, files_rows
from tests.kit.waiting import wait_until

import weir
from weir.cli.loading.load import load_job

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("SOURCES.md", "MARKED_SOURCES.md"))
FROM_NOTHING = "A source from nothing"


class Feeds:
    """A server with feeds that grow, and with marks in them."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: The most rows of a page.
        self.page = 7
        #: Mark -> feed -> how many rows are in front of it.
        self.marks: dict[int, dict[str, int]] = {}
        #: A feed that gets no marks.
        self.unmarked = ""
        #: How many rows come to each feed together with a mark, behind it.
        self.behind_marks = 0
        feeds = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path)
                self._say(feeds.answer(path.path, parse_qs(path.query)))

            def do_POST(self) -> None:
                feeds.mark(int(self.path.rpartition("/")[2]))
                self._say({})

            def _say(self, answer: dict[str, Any]) -> None:
                body = json.dumps(answer).encode()
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
            rows = [row for row in self._rows[feed] if row["id"] > after][: min(limit, self.page)]
            mark = None
            if "over" in query:
                mark, rows = self._up_to_mark(feed, after, int(query["over"][0]), rows)
            return {"rows": rows, "mark": mark}

    def _up_to_mark(
        self, feed: str, after: int, over: int, rows: list[dict[str, Any]]
    ) -> tuple[int | None, list[dict[str, Any]]]:
        """The next mark, if the rows reach it, and the rows in front of it."""
        marks = sorted((n, at[feed]) for n, at in self.marks.items() if n > over and feed in at)
        ahead = [(n, at) for n, at in marks if at >= after]
        if not ahead:
            return None, rows
        mark, at = ahead[0]
        rows = [row for row in rows if row["id"] <= at]
        return (mark if after + len(rows) == at else None), rows

    def mark(self, number: int) -> None:
        """Put a mark behind the rows of each feed, and more rows behind the mark."""
        with self._lock:
            marked = {one: len(rows) for one, rows in self._rows.items() if one != self.unmarked}
            self.marks[number] = marked
            self._grow(dict.fromkeys(marked, self.behind_marks))

    def grow(self, **by: int) -> None:
        """Add this many rows to each of these feeds."""
        with self._lock:
            self._grow(by)

    def _grow(self, by: Mapping[str, int]) -> None:
        for feed, rows in by.items():
            known = self._rows.setdefault(feed, [])
            for n in range(len(known) + 1, len(known) + rows + 1):
                ts = (FIRST + timedelta(seconds=n)).isoformat()
                known.append({"id": n, "feed": feed, "ts": ts, "value": n / 2})

    def wait_for_requests(self, feed: str, number: int) -> None:
        """Wait until a feed has been asked for so many more pages."""
        until = self._asked[feed] + number
        wait_until(lambda: self._asked[feed] >= until, f"{feed} is asked again")

    def rows(self, mark: int | None = None) -> Rows:
        """All rows, or those in front of a mark, as a sink has them."""
        return Rows(
            (row["id"], row["feed"], datetime.fromisoformat(row["ts"]), row["value"])
            for feed, rows in self._rows.items()
            for row in rows[: None if mark is None else self.marks[mark][feed]]
        )

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _code(title: str) -> str:
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(code)


def written(place: Place, title: str, *changes: tuple[str, str]) -> Path:
    """The pipeline below a heading, with changes, as a file."""
    code = _code(title)
    if "class Readings" not in code:
        code = _code(FROM_NOTHING).partition("\nurl = ")[0] + code
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
