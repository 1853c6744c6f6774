"""Answers that serve the same request again for a moment, as a driver's do."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import httpx
import pytest
from tests.rest.fake_job import JOB_ID, VIEW, FakeGateway, completed

from weir.monitoring.views import JobView
from weir.rest.server.recent import ANSWER_MAX, KEPT, RecentAnswers
from weir.rest.server.server import RestServer

#: Long enough that no answer is too old within a test, but for one that waits.
LONG_MS = 60_000


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@contextmanager
def served(gateway: FakeGateway, share_ms: int, refresh_ms: int = 1) -> Iterator[httpx.Client]:
    server = RestServer(port=0, share_ms=share_ms, refresh_ms=refresh_ms)
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


@pytest.fixture
def older(gateway: FakeGateway) -> Iterator[httpx.Client]:
    """A client of a server whose answers serve beyond the moment."""
    with served(gateway, 1, LONG_MS) as client:
        yield client


def test_figures_may_be_as_old_as_a_dashboard_asks_for_them(
    older: httpx.Client, gateway: FakeGateway
) -> None:
    """In Flink too."""
    before = name_of(older)
    gateway.current = replace(VIEW, name="renamed")
    time.sleep(0.01)
    assert name_of(older) == before
    assert older.get("/config").json()["refresh-interval"] == LONG_MS


def test_news_of_the_job_are_told_at_once(older: httpx.Client, gateway: FakeGateway) -> None:
    """A change of its status, or the answer to a request."""
    name_of(older)
    gateway.current = replace(VIEW, name="renamed")
    gateway.news += 1
    time.sleep(0.01)
    assert name_of(older) == "renamed"


def test_the_end_of_an_operation_is_told_at_once(older: httpx.Client, gateway: FakeGateway) -> None:
    """Clients poll for it."""
    trigger = older.post(f"/jobs/{JOB_ID}/savepoints", json={}).json()["request-id"]
    path = f"/jobs/{JOB_ID}/savepoints/{trigger}"
    assert older.get(path).json()["status"]["id"] == "IN_PROGRESS"
    gateway.futures[0].set_result(completed(7, "/s"))
    time.sleep(0.01)
    assert older.get(path).json()["status"]["id"] == "COMPLETED"


@pytest.mark.parametrize(
    "header", [{"Cache-Control": "max-age=0, no-cache"}, {"pragma": "no-cache"}]
)
def test_who_asks_for_the_newest_gets_it(
    older: httpx.Client, gateway: FakeGateway, header: dict[str, str]
) -> None:
    """As the web page and Weir's commands do."""
    older.headers.update(header)
    name_of(older)
    gateway.current = replace(VIEW, name="renamed")
    time.sleep(0.01)
    assert name_of(older) == "renamed"


def test_a_refusal_serves_for_a_moment_only(older: httpx.Client, gateway: FakeGateway) -> None:
    """What was not found may be there soon."""
    path = f"/jobs/{JOB_ID}/vertices/new"
    assert older.get(path).status_code == 404
    first = VIEW.vertices[0]
    gateway.current = replace(VIEW, vertices=(replace(first, vertex="new"),))
    time.sleep(0.01)
    assert older.get(path).status_code == 200


def test_metrics_are_those_of_now(older: httpx.Client, gateway: FakeGateway) -> None:
    """The rates that Prometheus makes of them would be wrong."""
    assert "weir_job_restarts_total{" in older.get("/metrics").text
    gateway.current = replace(VIEW, restarts=77)
    time.sleep(0.01)
    assert " 77" in older.get("/metrics").text


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
    """And the connection stays."""

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    gateway.view = broken  # type: ignore[assignment,method-assign]
    for _ in range(2):
        answer = http.get(f"/jobs/{JOB_ID}")
        assert answer.status_code == 500
        assert "a bug" in answer.json()["errors"][0]


# ---- connections that ask at the same moment


class Slow:
    """A job whose first view takes until it is let go; later ones take no time."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.asked = 0
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self._view = gateway.view
        gateway.view = self.view  # type: ignore[method-assign]

    def view(self) -> JobView:
        self.asked += 1
        self.entered.set()
        assert self.let_go.wait(20)
        return self._view()


class Client:
    """A connection on which a test sends what it likes."""

    def __init__(self, http: httpx.Client) -> None:
        url = http.base_url
        self.socket = socket.create_connection((url.host, url.port or 80), timeout=20)
        self.close = self.socket.close

    def send(self, *lines: str, method: str = "GET", path: str = f"/jobs/{JOB_ID}") -> None:
        """Send the head of a request."""
        text = "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines))
        self.socket.sendall(f"{text}\r\n\r\n".encode())

    def answers(self, count: int = 1) -> list[str]:
        """The bodies of the next answers, each of which has a length."""
        bodies: list[str] = []
        with self.socket.makefile("rb") as stream:
            for _ in range(count):
                assert b" 200 " in stream.readline()
                length = 0
                while (line := stream.readline().lower()) != b"\r\n":
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                bodies.append(stream.read(length).decode())
        return bodies


@pytest.fixture
def slow(gateway: FakeGateway) -> Iterator[Slow]:
    made = Slow(gateway)
    yield made
    made.let_go.set()


@pytest.fixture
def clients(http: httpx.Client) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Client(http))) for _ in range(3)]


def test_those_who_ask_for_the_same_at_once_get_one_answer(
    slow: Slow, clients: list[Client]
) -> None:
    """It is made once."""
    for one in clients:
        one.send()
        assert slow.entered.wait(10)
    time.sleep(0.1)
    slow.let_go.set()
    bodies = [one.answers() for one in clients]
    assert bodies[0] == bodies[1] == bodies[2]
    assert slow.asked == 1


@pytest.mark.parametrize("line", ["Authorization: Bearer t", 'If-None-Match: "x"', "A: b"])
def test_a_request_that_differs_in_a_header_has_its_own_answer(
    slow: Slow, clients: list[Client], line: str
) -> None:
    """It may be another person's."""
    first, second, _ = clients
    slow.let_go.set()
    first.send()
    first.answers()
    slow.asked = 0
    second.send(line)
    second.answers()
    second.send(line)
    second.answers()
    assert slow.asked == 1


def test_whoever_waits_gets_an_answer_though_the_first_to_ask_is_gone(
    slow: Slow, clients: list[Client]
) -> None:
    """Also if it asked for more meanwhile, in the order of its requests."""
    first, second, third = clients
    first.send()
    assert slow.entered.wait(10)
    second.send()
    third.send()
    third.send(path="/jobs")
    time.sleep(0.1)
    first.close()
    time.sleep(0.1)
    slow.let_go.set()
    (body,) = second.answers()
    assert JOB_ID in body and "vertices" in body
    body, other = third.answers(2)
    assert "vertices" in body and "vertices" not in other


def test_whoever_leaves_while_it_waits_changes_nothing(slow: Slow, clients: list[Client]) -> None:
    """The others have their answers, and later ones too."""
    first, second, third = clients
    for one in clients:
        one.send()
        assert slow.entered.wait(10)
    time.sleep(0.1)
    second.close()
    time.sleep(0.1)
    slow.let_go.set()
    assert first.answers() == third.answers()
    third.send()
    assert len(third.answers()) == 1


def test_an_answer_after_which_the_connection_closes_is_not_shared(
    slow: Slow, clients: list[Client]
) -> None:
    """Others stay connected."""
    first, second, _ = clients
    slow.let_go.set()
    for _ in range(2):
        second.send()
        second.answers()
    first.send("Connection: close")
    first.answers()
    assert first.socket.recv(1) == b""
    second.send()
    assert len(second.answers()) == 1


def test_what_lies_within_a_request_is_not_taken_for_one(
    http: httpx.Client, clients: list[Client]
) -> None:
    """Neither in a body nor in a head that comes in parts."""
    one, two, _ = clients
    one.send()
    (known,) = one.answers()
    inner = f"GET /jobs/{JOB_ID} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    one.send(f"Content-Length: {len(inner)}", path="/jobs")
    one.socket.sendall(inner.encode())
    (body,) = one.answers()
    assert body != known and JOB_ID in body
    two.socket.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n")
    time.sleep(0.1)
    two.socket.sendall(inner.encode())
    assert two.socket.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_server_that_ends_answers_those_who_wait(gateway: FakeGateway, slow: Slow) -> None:
    """As it answers the one for whom they wait."""
    server = RestServer(port=0, share_ms=LONG_MS)
    with (
        httpx.Client(base_url=server.start(gateway), trust_env=False) as http,
        ExitStack() as stack,
    ):
        found = [stack.enter_context(closing(Client(http))) for _ in range(2)]
        for one in found:
            one.send()
            assert slow.entered.wait(10)
        time.sleep(0.1)
        ending = threading.Thread(target=server.stop)
        ending.start()
        time.sleep(0.3)
        slow.let_go.set()
        assert [JOB_ID in one.answers()[0] for one in found] == [True, True]
        ending.join(20)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which answers grow old; a test sets them."""
    found = [0.0]
    monkeypatch.setattr("weir.rest.server.recent._now_s", lambda: found[0])
    return found


def test_the_first_to_ask_after_a_while_makes_the_next_answer_for_all(now_s: list[float]) -> None:
    """The others have the one before meanwhile, unless it has become too old."""
    answers = RecentAnswers(100, 3_000, lambda: None)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    first = answers.begin(request)
    assert first is not None
    answers.complete(first, b"HTTP/1.1 200 OK\r\n\r\n1")
    now_s[0] = 1.9
    assert answers.find(request) is first
    now_s[0] = 2.1
    assert answers.find(request) is None
    second = answers.begin(request)
    assert second is not None
    assert answers.find(request) is first
    now_s[0] = 3.1
    assert answers.find(request) is second
    answers.complete(second, b"HTTP/1.1 200 OK\r\n\r\n2")
    assert answers.find(request) is second


def test_nobody_waits_for_the_next_answer_while_the_one_before_serves(
    now_s: list[float], gateway: FakeGateway
) -> None:
    """Whoever has it made gets the one before at once, and nothing after it."""
    with served(gateway, 100, 3_000) as http, closing(Client(http)) as first:
        before = name_of(http)
        first.send()
        first.answers()
        gateway.current = replace(VIEW, name="renamed")
        slow = Slow(gateway)
        now_s[0] = 2.5
        first.send()
        assert before in first.answers()[0]
        assert slow.entered.wait(20)
        slow.let_go.set()
        first.send(path="/config")
        assert "refresh-interval" in first.answers()[0]
        first.send()
        assert "renamed" in first.answers()[0]
        assert slow.asked == 1


def test_an_answer_serves_on_if_the_one_who_has_the_next_one_made_leaves(
    now_s: list[float], gateway: FakeGateway
) -> None:
    """As the command line does after its only request; whoever asks then has it made."""
    with served(gateway, 100, 3_000) as http, closing(Client(http)) as second:
        with closing(Client(http)) as first:
            first.send()
            (before,) = first.answers()
            gateway.current = replace(VIEW, name="renamed")
            slow = Slow(gateway)
            slow.let_go.set()
            now_s[0] = 2.5
            first.send()
            assert first.answers() == [before]
        time.sleep(0.1)
        assert slow.asked == 0
        second.send()
        assert second.answers() == [before]
        assert slow.entered.wait(20)
        deadline_s = time.monotonic() + 20
        while "renamed" not in name_of(http) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        second.send()
        assert "renamed" in second.answers()[0]


def test_those_who_need_a_new_answer_do_not_wait_for_those_who_have_one(
    monkeypatch: pytest.MonkeyPatch, now_s: list[float], gateway: FakeGateway
) -> None:
    """What is made for later is made a moment later."""
    monkeypatch.setattr("weir.rest.server.connections._LATER_S", 60.0)
    with served(gateway, 100, 3_000) as http, closing(Client(http)) as first:
        first.send()
        (before,) = first.answers()
        gateway.current = replace(VIEW, name="renamed")
        now_s[0] = 2.5
        first.send()
        assert first.answers() == [before]
        assert http.get(f"/jobs/{JOB_ID}?new").json()["name"] == "renamed"
        first.send()
        assert first.answers() == [before]
        first.send(path="/config")
        assert "refresh-interval" in first.answers()[0]
        first.send()
        assert "renamed" in first.answers()[0]


def test_no_more_is_remembered_than_a_moment_needs(now_s: list[float]) -> None:
    """Neither many answers, nor a large one, nor one that is too old."""

    async def look() -> None:
        recent = RecentAnswers(50, 1, lambda: None)
        requests = [f"GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for n in range(KEPT + 9)]
        begun = [recent.begin(one) for one in requests]
        for made in begun:
            assert made is not None
            recent.complete(made, b"x")
        assert [recent.find(one) is not None for one in requests] == [False] * 9 + [True] * KEPT
        large = recent.begin(b"GET /large HTTP/1.1\r\n\r\n")
        assert large is not None
        recent.complete(large, b"x" * (ANSWER_MAX + 1))
        assert recent.find(large.request) is None
        now_s[0] = 0.06
        assert recent.find(requests[-1]) is None
        assert recent.begin(b"POST / HTTP/1.1\r\n\r\n") is None
        assert recent.begin(requests[0] + requests[1]) is None

    asyncio.run(look())
