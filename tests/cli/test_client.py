"""``JobClient`` against servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.kit.gateway import JOB_ID, OTHER_ID, FakeGateway, completed

from weir.core.status import JobStatus
from weir.core.types import CheckpointType
from weir.errors import JobNotFoundError, RestError
from weir.rest import client
from weir.rest.client import JobClient
from weir.rest.server.server import RestServer

Answer = tuple[int, bytes]


class Stub(ThreadingHTTPServer):
    """Sends the given answers, in order, and records the requests."""

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.requests: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.command, self.path, body))
        status, answer = self.server.answers.pop(0)
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Callable[[list[Answer]], Stub]]:
    """Starts a stub server with these answers; status 0 closes the connection without an answer."""
    running: list[Stub] = []

    def start(answers: list[Answer]) -> Stub:
        server = Stub(answers)
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


MakeStub = Callable[[list[Answer]], Stub]


def overview(*jobs: tuple[str, str]) -> Answer:
    """The overview of jobs with these ids and names."""
    fields = {
        "start-time": 1,
        "end-time": -1,
        "duration": 1,
        "state": "RUNNING",
        "last-modification": 1,
        "tasks": {"total": 1},
    }
    return 200, json.dumps(
        {"jobs": [fields | {"jid": job, "name": name} for job, name in jobs]}
    ).encode()


@pytest.mark.parametrize("status", [503, 0])
def test_an_unavailable_server_and_a_lost_connection_are_tried_again(
    stub: MakeStub, status: int
) -> None:
    """Both failures may be temporary."""
    server = stub([(status, b""), overview((JOB_ID, "orders"))])
    assert [job.name for job in client.list_jobs(server.url)] == ["orders"]


def test_another_error_is_not_tried_again(stub: MakeStub) -> None:
    """The server would refuse again."""
    server = stub([(500, b'{"errors":["broken for a reason"]}')])
    with pytest.raises(RestError, match=r"^broken for a reason$"):
        client.list_jobs(server.url)
    assert len(server.requests) == 1


def test_a_repeated_post_carries_the_same_trigger_id(stub: MakeStub) -> None:
    """The server then joins it to the lost request's operation, and takes one savepoint."""
    server = stub(
        [
            (0, b""),
            (202, b'{"request-id":"abc"}'),
            (200, b'{"status":{"id":"IN_PROGRESS"}}'),
            (200, b'{"status":{"id":"COMPLETED"},"operation":{"location":"/d/s"}}'),
        ]
    )
    with JobClient(server.url, JOB_ID) as job:
        assert job.trigger_savepoint("/d") == "/d/s"
    first, second = (json.loads(body) for _, _, body in server.requests[:2])
    assert first["triggerId"] == second["triggerId"]
    assert len(first["triggerId"]) == 32
    assert [path for _, path, _ in server.requests[2:]] == [f"/v1/jobs/{JOB_ID}/savepoints/abc"] * 2


@pytest.mark.parametrize("answer", [b"<html>", b'{"something": "else"}'])
def test_a_server_that_is_not_a_weir_job_is_reported_as_such(stub: MakeStub, answer: bytes) -> None:
    """Any program may be listening at the address."""
    server = stub([(200, answer), (404, answer)])
    for _ in range(2):
        with pytest.raises(RestError, match=server.url):
            client.list_jobs(server.url)


def test_a_name_of_several_jobs_is_refused_with_their_ids(stub: MakeStub) -> None:
    """Ambiguous names and id prefixes are refused; a whole id is always unique."""
    two = overview((JOB_ID, "orders"), (JOB_ID[:31] + "0", "orders"))
    server = stub([two, two, two])
    with pytest.raises(JobNotFoundError, match=JOB_ID):
        client.connect("orders", server.url)
    with pytest.raises(JobNotFoundError, match="several"):
        client.connect("0123", server.url)
    with client.connect(JOB_ID, server.url) as job:
        assert job.job_id == JOB_ID


def test_an_unknown_job_id_is_a_job_not_found(address: str) -> None:
    """The server's 404 names the job that it knows."""
    with JobClient(address, OTHER_ID) as job, pytest.raises(JobNotFoundError, match=JOB_ID):
        job.status()


@pytest.mark.parametrize("address", ["ftp://host:1", "http://[bad", "http://host:port"])
def test_an_invalid_address_is_one_sentence(address: str) -> None:
    """A wrong scheme or a malformed host is a RestError."""
    with pytest.raises(RestError):
        client.list_jobs(address)


def test_a_driver_that_is_gone_after_it_accepted_the_cancellation_counts_as_cancelled(
    stub: MakeStub,
) -> None:
    """The driver of a cancelled job exits, perhaps before the client polls again."""
    server = stub([(202, b"{}")] + [(0, b"")] * 50)
    with JobClient(server.url, JOB_ID) as job:
        assert job.cancel() is JobStatus.CANCELED


def test_a_driver_that_dies_before_it_reports_the_savepoint_is_one_sentence(
    stub: MakeStub,
) -> None:
    """It is unknown whether the savepoint exists, so the message claims neither."""
    server = stub([(202, b'{"request-id":"abc"}')] + [(0, b"")] * 50)
    with JobClient(server.url, JOB_ID) as job, pytest.raises(RestError, match="went away before"):
        job.stop("/d")


def test_a_stopping_server_still_answers_how_the_job_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a cancel and a stop of the server coincide, the client reads the last status, not a closed
    port."""
    monkeypatch.setattr("weir.rest.handling.operations.COLLECT_WITHIN_MS", 300_000)
    gateway = FakeGateway()
    server = RestServer(port=0)
    told: list[JobStatus] = []
    with JobClient(server.start(gateway), JOB_ID) as job:
        cancelling = threading.Thread(target=lambda: told.append(job.cancel()))
        cancelling.start()
        while not gateway.futures:
            threading.Event().wait(0.01)
        gateway.set_status(JobStatus.FAILED)
        gateway.futures[0].set_result(None)
        server.stop()
        cancelling.join()
    assert told == [JobStatus.FAILED]


def test_the_details_of_a_checkpoint_name_each_vertex_with_its_figures(address: str) -> None:
    """Vertices are in the order of the graph; one that has not acknowledged has no figures."""
    with JobClient(address, JOB_ID) as job:
        details = job.checkpoint_details(8)
    assert (details.checkpoint.status, details.checkpoint.is_savepoint) == ("FAILED", True)
    assert [vertex.name for vertex in details.vertices] == ["clean", "revenue"]
    (taken,), (missing,) = (vertex.subtasks for vertex in details.vertices)
    assert taken.checkpoint is not None
    assert taken.alignment is not None
    assert (taken.checkpoint.sync_ms, taken.checkpoint.async_ms, taken.alignment.duration_ms) == (
        7,
        40,
        3,
    )
    assert (taken.start_delay_ms, taken.checkpointed_size, taken.state_size) == (11, 4_500, 9_000)
    assert missing.ack_timestamp_ms is None


def test_a_full_checkpoint_is_requested_by_flinks_name(address: str, gateway: FakeGateway) -> None:
    """The request carries the type."""
    gateway.prepared = [completed(7, "/data/chk-7")]
    with JobClient(address, JOB_ID) as job:
        assert job.trigger_checkpoint(CheckpointType.FULL) == 7
    assert gateway.calls == [("checkpoint", "FULL")]


def test_checkpoints_of_a_stock_answer_are_read(address: str, gateway: FakeGateway) -> None:
    """A checkpoint taken over REST and the history are values with units in their names."""
    gateway.prepared = [completed(7, "/data/chk-7")]
    with JobClient(address, JOB_ID) as job:
        assert job.trigger_checkpoint() == 7
        assert job.status() is JobStatus.RUNNING
        assert [one.checkpoint_id for one in job.checkpoints().history] == [9, 8, 7]
