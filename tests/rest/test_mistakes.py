"""A user's mistake is answered with 4xx and a sentence: 500 is for the server's own mistakes."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.gateway import JOB_ID, FakeCluster, FakeGateway, served
from tests.kit.running_job import RunningWorld
from tests.kit.stored_jobs import FAILED, FS, leave_jobs

from weir.rest.past.history import StoredJobs
from weir.rest.schema.base import Endpoint, Request
from weir.rest.schema.endpoints import ENDPOINTS
from weir.runtime.concurrency import SystemClock

EXAMPLES = 600

#: Any character, and those in which numbers, paths, lists and encodings go wrong.
ODD_TEXT = st.one_of(
    st.text(st.characters(), max_size=8),
    st.text("\0\n\r\t /\\.,:;-+%'\"²٣\ufeff\u2028\U0010ffff", min_size=1, max_size=4),
    st.text(string.digits, min_size=1, max_size=40),
    st.sampled_from(["-1", "1e9", "nan", "null", "true", "0x7", "9" * 300, "f" * 32, "0-", "-3"]),
)
#: What is right in some server, by the name of a part of a path, so that the other parts matter.
RIGHT = {
    "job_id": (JOB_ID, FAILED, JOB_ID.upper()),
    "application_id": (JOB_ID, FAILED),
    "vertex": ("clean", "v"),
    "checkpoint_id": ("7", "9"),
    "executor": ("driver",),
    "operator": ("score",),
    "subtask": ("0",),
    "attempt": ("1", "2"),
}
ANYTHING = ODD_TEXT | st.sampled_from(sorted({text for texts in RIGHT.values() for text in texts}))
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=5,
)
ODD_BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"{", b"[" * 5_000, b'{"x":' * 5_000, b"9" * 5_000, b'"\xff"', b"1e999"]),
)


@dataclass(frozen=True)
class Sent:
    """A request that somebody may send."""

    endpoint: Endpoint[Any]
    target: str
    body: bytes | None


def escaped(text: str) -> str:
    """A part of a path or query, also of what is not text: half a character is three bytes."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def fields_of(kind: type[Request]) -> list[str]:
    return list(kind.__struct_encode_fields__)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """A request to one of the endpoints, each part right, wrong or absurd."""
    endpoint = draw(st.sampled_from(ENDPOINTS))
    parts = {
        name: escaped(draw(ANYTHING if draw(st.booleans()) else st.sampled_from(right)))
        for _, name, _, _ in string.Formatter().parse(endpoint.path)
        if name
        for right in [RIGHT.get(name, ("f" * 32,))]
    }
    query = [
        f"{escaped(name)}={escaped(draw(ANYTHING))}"
        for name in endpoint.query
        if draw(st.booleans())
    ]
    target = draw(st.sampled_from(["", "/v1"])) + endpoint.path.format(**parts)
    if endpoint.body is None:
        return Sent(endpoint, "?".join([target, *["&".join(query)] * bool(query)]), None)
    known = st.dictionaries(st.sampled_from(fields_of(endpoint.body)), ODD_JSON)
    body = draw((known | ODD_JSON).map(lambda value: json.dumps(value).encode()) | ODD_BYTES)
    return Sent(endpoint, target, body)


@contextmanager
def fake_driver(place: Path) -> Iterator[httpx.Client]:
    with served(FakeGateway(), cluster=FakeCluster()) as client:
        yield client


@contextmanager
def live_driver(place: Path) -> Iterator[httpx.Client]:
    """A job that runs, until one of the requests ends it."""
    with RunningWorld() as world, served(world.job) as client:
        world.wait_running()
        yield client


@contextmanager
def history(place: Path) -> Iterator[httpx.Client]:
    with served(StoredJobs(str(leave_jobs(place)), lambda _: FS, SystemClock())) as client:
        yield client


@pytest.mark.parametrize("server", [fake_driver, live_driver, history])
def test_no_request_is_answered_with_500(
    tmp_path: Path, server: Callable[[Path], AbstractContextManager[httpx.Client]]
) -> None:
    """Every endpoint with wrong ids, numbers, lists, types, JSON and bytes: an answer, or one
    sentence for the one who asked."""
    with server(tmp_path) as client:

        @settings(max_examples=EXAMPLES)
        @given(requests())
        def check(sent: Sent) -> None:
            headers = {} if sent.body is None else {"content-type": "application/json"}
            answer = client.request(
                sent.endpoint.method, sent.target, content=sent.body, headers=headers
            )
            assert answer.status_code < 500, (sent, answer.text)
            if answer.status_code >= 400:
                (sentence,) = answer.json()["errors"]
                assert sentence
                assert "Traceback" not in sentence

        check()
