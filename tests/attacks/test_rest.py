"""Attacks on a job's REST server: each test is one attack, and its name gives the outcome.

The attackers: a page in the user's browser, another user of the machine, a client that sends too
much or nothing at all, and those who can choose the address that a command connects to.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway, completed
from tests.kit.waiting import wait_until

import weir
from weir.config import Configuration
from weir.errors import ConfigurationError, RestError
from weir.rest import client, tokens
from weir.rest.client import JobClient
from weir.rest.handling import guard
from weir.rest.server import connections
from weir.rest.server.server import RestSecurity, RestServer

JOB = f"/v1/jobs/{JOB_ID}"
TOKEN = "a-token-of-thirty-two-characters"
JSON = "application/json"

#: Every request that changes something, with its body.
CHANGES = [
    ("PATCH", f"{JOB}?mode=cancel", b""),
    ("POST", f"{JOB}/checkpoints", b"{}"),
    ("POST", f"{JOB}/savepoints", b'{"target-directory":"/d"}'),
    ("POST", f"{JOB}/stop", b'{"drain":true}'),
    ("POST", f"{JOB}/coordinators/score", b'{"request":{"set":{}}}'),
    ("POST", "/v1/savepoint-disposal", b'{"savepoint-path":"/d/savepoint-1"}'),
]

StartServer = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory and an environment without a token."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(client.TOKEN_VARIABLE, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[FakeGateway, str]]:
    """A server with default settings and its job, for tests that change nothing in it."""
    gateway = FakeGateway()
    server = RestServer(port=0)
    yield gateway, server.start(gateway)
    server.stop()


@pytest.fixture
def gateway(plain: tuple[FakeGateway, str]) -> FakeGateway:
    plain[0].__init__()  # type: ignore[misc]
    return plain[0]


@pytest.fixture
def start(gateway: FakeGateway) -> Iterator[StartServer]:
    """Start a server with these ``RestSecurity`` fields; return its address."""
    running: list[RestServer] = []

    def start_one(bind_address: str = "127.0.0.1", **security: object) -> str:
        server = RestServer(
            bind_address=bind_address,
            port=0,
            security=RestSecurity(**security),  # type: ignore[arg-type]
        )
        running.append(server)
        return server.start(gateway)

    yield start_one
    for server in running:
        server.stop()


@pytest.fixture
def http(plain: tuple[FakeGateway, str], gateway: FakeGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=plain[1], trust_env=False, verify=False) as one:
        yield one


def send(
    http: httpx.Client, method: str, path: str, body: bytes = b"", **headers: str
) -> httpx.Response:
    """Send a request with these headers (underscores for hyphens); a body is JSON unless stated."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        sent.setdefault("content-type", JSON)
    return http.request(method, path, content=body, headers=sent)


def is_refused(response: httpx.Response, status: int = 403) -> bool:
    """Whether the answer is a one-sentence refusal in Flink's format."""
    (sentence,) = response.json()["errors"]
    return response.status_code == status and sentence.endswith((".", ")."))


def talk(address: str, *parts: bytes, wait_s: float | None = None) -> bytes:
    """What a server answers to raw bytes until it closes the connection or stays silent.

    It closes each connection that has said nothing for a while.
    """
    url = httpx.URL(address)
    with closing(
        socket.create_connection((url.host, url.port or 80), timeout=wait_s)
    ) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while more := connection.recv(65_536):
                answer += more
        except (TimeoutError, ConnectionError):
            pass
        return answer


# -- a page in the user's browser ------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "0.0.0.0", "", "["]
)
def test_a_page_whose_name_is_rebound_to_this_machine_reads_and_changes_nothing(
    http: httpx.Client, gateway: FakeGateway, host: str
) -> None:
    """DNS rebinding: the browser connects to loopback as the page's own server, with that name in
    Host."""
    assert is_refused(send(http, "GET", "/v1/jobs/overview", host=host))
    for method, path, body in CHANGES:
        assert is_refused(send(http, method, path, body, host=host))
    assert gateway.calls == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:8081", "[::1]:8081"]
)
def test_every_name_of_loopback_is_answered(http: httpx.Client, host: str) -> None:
    """Also through a tunnel with another port."""
    assert send(http, "GET", "/v1/jobs/overview", host=host).status_code == 200


def test_a_name_that_is_configured_is_answered(start: StartServer) -> None:
    """weir.rest.allowed-hosts: lets a proxy pass requests on unchanged."""
    with httpx.Client(base_url=start(allowed_hosts=("weir.example",)), trust_env=False) as http:
        assert send(http, "GET", "/v1/jobs", host="Weir.example:443").status_code == 200
        assert is_refused(send(http, "GET", "/v1/jobs", host="evil.example"))


def test_two_hosts_in_one_request_are_refused(http: httpx.Client) -> None:
    """A proxy in front of the server could use the other one."""
    head = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 403 " in talk(str(http.base_url), head).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
)
def test_a_head_without_end_is_refused_before_it_fills_the_memory(
    http: httpx.Client, start: bytes
) -> None:
    """The parser would collect it; so would it the trailers of a body in chunks."""
    url = http.base_url
    with closing(socket.create_connection((url.host, url.port or 80))) as connection:
        connection.sendall(start)
        sent = 0
        with suppress(OSError):
            while sent < 64 << 20:
                connection.sendall(b"x" * 65_536)
                sent += 65_536
        # What is in the buffers of the system counts as sent.
        assert sent < 16 << 20


@pytest.mark.parametrize("site", ["cross-site", "same-site", "unheard-of"])
@pytest.mark.parametrize("mode", ["no-cors", "cors", "navigate"])
def test_a_request_that_another_site_makes_is_refused(
    http: httpx.Client, gateway: FakeGateway, site: str, mode: str
) -> None:
    """Images, scripts, frames, forms and fetch: browsers name the page's site, also for another
    port."""
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": "image"}
    assert is_refused(send(http, "GET", "/v1/jobs/overview", **headers))
    for method, path, body in CHANGES:
        assert is_refused(
            send(http, method, path, body, **{**headers, "sec-fetch-dest": "document"})
        )
    assert gateway.calls == []


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://localhost"]
)
def test_a_request_with_the_origin_of_another_page_is_refused(
    http: httpx.Client, gateway: FakeGateway, origin: str
) -> None:
    """Browsers without Sec-Fetch-Site send Origin with every request that can change something."""
    for method, path, body in CHANGES:
        assert is_refused(send(http, method, path, body, origin=origin))
    assert gateway.calls == []


def test_the_servers_own_pages_and_typed_addresses_are_answered(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """So is a link to it that somebody follows: the linking page cannot read the answer."""
    own = str(http.base_url).rstrip("/")
    same = {"sec-fetch-site": "same-origin", "origin": own}
    assert send(http, "PATCH", f"{JOB}?mode=cancel", **same).status_code == 202
    assert send(http, "GET", "/v1/jobs", **{"sec-fetch-site": "none"}).status_code == 200
    link = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert send(http, "GET", "/v1/jobs", **link).status_code == 200
    assert gateway.calls == [("cancel", None)]


@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", "text/json", ""],
)
def test_a_form_changes_nothing(
    http: httpx.Client, gateway: FakeGateway, content_type: str
) -> None:
    """Pages can send forms and plain text without a preflight, so neither is parsed as JSON."""
    for method, path, body in CHANGES:
        assert is_refused(
            send(http, method, path, body or b"{}", **{"content-type": content_type}), 415
        )
    assert gateway.calls == []


def test_an_empty_form_cancels_nothing(http: httpx.Client, gateway: FakeGateway) -> None:
    """A form without fields has a content type and no body."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert is_refused(send(http, "PATCH", f"{JOB}?mode=cancel", **form), 415)
    assert is_refused(send(http, "POST", f"{JOB}/stop", **form), 415)
    assert gateway.calls == []


def test_no_get_changes_anything(http: httpx.Client, gateway: FakeGateway) -> None:
    """Images and links can only send GETs; Flink's GETs that cancel and stop do not exist here."""
    for path in (
        "yarn-cancel",
        "yarn-stop",
        "cancel",
        "stop",
        "savepoints",
        "cancel-with-savepoint",
    ):
        assert send(http, "GET", f"{JOB}/{path}").status_code in (404, 405)
    assert send(http, "GET", f"{JOB}?mode=cancel").status_code == 200
    assert send(http, "GET", "/v1/savepoint-disposal").status_code == 405
    assert gateway.calls == []


def test_no_answer_allows_other_pages_to_read_it(http: httpx.Client) -> None:
    """A preflight is refused, and every answer tells browsers not to share it."""
    asked = {"origin": "http://evil.example", "access-control-request-method": "PATCH"}
    assert is_refused(send(http, "OPTIONS", f"{JOB}?mode=cancel", **asked))
    for answer in (
        send(http, "GET", "/v1/jobs"),
        send(http, "GET", "/none"),
        send(http, "GET", "/", host="x"),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_command_lines_are_answered_as_ever(http: httpx.Client, gateway: FakeGateway) -> None:
    """Flink's sends a charset, and `{}` with every GET and PATCH; curl sends no body, or declares
    JSON."""
    flink = {"content-type": "application/json; charset=UTF-8", "connection": "close"}
    assert send(http, "GET", "/v1/jobs/overview", b"{}", **flink).status_code == 200
    assert send(http, "PATCH", f"{JOB}?mode=cancel", b"{}", **flink).status_code == 202
    assert send(http, "PATCH", f"{JOB}?mode=cancel", accept="*/*").status_code == 202
    assert send(http, "POST", f"{JOB}/checkpoints", b"{}", accept="*/*").status_code == 202
    assert [name for name, _ in gateway.calls] == ["cancel", "cancel", "checkpoint"]


# -- another user of the machine, and the network --------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        TOKEN,
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        "Bearer \xff",
    ],
)
def test_without_the_token_nothing_is_read_or_changed(
    start: StartServer, gateway: FakeGateway, sent: str | None
) -> None:
    """Not the version, not the list of paths, not even whether such a job exists."""
    headers = {} if sent is None else {"authorization": sent}
    with httpx.Client(base_url=start(token=TOKEN), trust_env=False) as http:
        for method, path, body in [*CHANGES, ("GET", "/v1/config", b""), ("GET", "/nothing", b"")]:
            response = http.request(
                method,
                path,
                content=body,
                headers={
                    "content-type": JSON,
                    **{k: v.encode("latin-1") for k, v in headers.items()},
                },
            )
            assert is_refused(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
    assert gateway.calls == []


def test_two_tokens_are_none(start: StartServer) -> None:
    """Someone who adds a header on the way must not choose the token."""
    with httpx.Client(base_url=start(token=TOKEN), trust_env=False) as http:
        both = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer other")]
        assert is_refused(http.get("/v1/jobs", headers=both), 401)
        assert http.get("/v1/jobs", headers=both[:1]).status_code == 200


@pytest.mark.parametrize("bind_address", ["0.0.0.0", "::"])
def test_a_server_that_others_can_reach_does_not_start_without_a_token(bind_address: str) -> None:
    """The error gives both ways out, and the port is free again."""
    server = RestServer(bind_address=bind_address, port=0)
    with pytest.raises(RestError, match=r"rest\.authentication\.token-file.*127\.0\.0\.1"):
        server.bind()


def test_a_run_that_others_could_reach_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """So is a run whose token file is unusable: the run's server gets what is configured."""
    job = weir.Job("orders")
    job.source("orders", lambda spark: spark).sink("out", weir.sinks.Files(str(tmp_path / "out")))
    file = tmp_path / "token"
    file.write_text("short")
    for conf, told in (
        ({"rest.bind-address": "0.0.0.0"}, "without a token"),
        ({"rest.authentication.token-file": str(file)}, "token file"),
        (
            {
                "security.ssl.rest.enabled": "true",
                "security.ssl.rest.certificate": "/none",
                "security.ssl.rest.key": "/n",
            },
            "/none",
        ),
    ):
        with pytest.raises(RestError, match=told):
            job.run(
                conf={
                    "rest.port": "0",
                    "execution.checkpointing.dir": str(tmp_path / "chk"),
                    **conf,
                }
            )
    assert not (tmp_path / "chk").exists()


@pytest.mark.parametrize("bind_address", ["0.0.0.0", ""])
def test_with_a_token_it_listens_anywhere(start: StartServer, bind_address: str) -> None:
    """Any address of the machine then reaches it, but only configured names do."""
    address = start(bind_address, token=TOKEN)
    with httpx.Client(
        base_url=address, trust_env=False, headers={"authorization": f"Bearer {TOKEN}"}
    ) as http:
        assert send(http, "GET", "/v1/jobs", host="192.0.2.7:8081").status_code == 200
        for host in ("evil.example", "0.0.0.0", ""):
            assert is_refused(send(http, "GET", "/v1/jobs", host=host))


def test_the_token_is_shown_nowhere(
    start: StartServer, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the configuration shown by REST nor in errors, logs or printed values."""
    caplog.set_level(logging.DEBUG)
    configuration = Configuration({"rest.authentication.token": TOKEN})
    assert TOKEN not in str(configuration.in_force())
    assert (
        Configuration(configuration.in_force()).checkpoint_config()
        == Configuration({}).checkpoint_config()
    )
    with pytest.raises(ConfigurationError) as told:
        Configuration({"rest.authentication.token": "not so secret"})
    assert "not so" not in str(told.value)
    security = RestSecurity(token=TOKEN)
    assert TOKEN not in repr(security)
    with JobClient(start(token=TOKEN), JOB_ID) as job:
        job.status()
    assert TOKEN not in caplog.text


def test_tokens_that_could_be_guessed_are_refused() -> None:
    """Too short, or with characters that no header can carry."""
    for text in ("short", "", "x" * 15, "with a blank in it, and long", "ü" * 20):
        with pytest.raises(ConfigurationError, match=r"rest\.authentication\.token"):
            Configuration({"rest.authentication.token": text})


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Someone may have read it already."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(RestError, match="chmod 600"):
        tokens.read_token(str(file))
    file.chmod(0o640)
    assert tokens.read_token(str(file)) == TOKEN


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"two words of a token"])
def test_a_token_file_without_a_token_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """An empty one would admit everybody; its content is not shown."""
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(RestError, match=str(file)) as told:
        tokens.read_token(str(file))
    assert "two words" not in str(told.value)


def test_a_token_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """It contains a new token, which the next run finds."""
    file = tmp_path / "token"
    made = tokens.read_or_make_token(str(file))
    assert len(made) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert tokens.read_or_make_token(str(file)) == made
    assert [one.name for one in tmp_path.iterdir()] == ["token"]
    with pytest.raises(RestError, match="cannot be made"):
        tokens.read_or_make_token(str(tmp_path / "none" / "token"))


def test_a_link_in_place_of_the_token_file_is_not_written_through(tmp_path: Path) -> None:
    """A dangling link left by another user would put the token where that user can read it."""
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RestError, match="cannot be read"):
        tokens.read_or_make_token(str(tmp_path / "token"))
    assert not (tmp_path / "elsewhere").exists()


def test_commands_of_the_jobs_owner_find_the_token(start: StartServer, home: Path) -> None:
    """In a file that only they can read and that is deleted with the server; localhost counts as
    its address."""
    server = RestServer(port=0, security=RestSecurity(token=TOKEN))
    address = server.start(FakeGateway())
    assert [job.name for job in client.list_jobs(address)] == ["orders"]
    assert [job.name for job in client.list_jobs(address.replace("127.0.0.1", "localhost"))] == [
        "orders"
    ]
    (file,) = (home / "state").rglob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    server.stop()
    assert not file.exists()


def test_other_ways_to_give_the_token(
    start: StartServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an argument and in the environment."""
    address = start(token=TOKEN)
    for file in (home / "state").rglob("*.json"):
        file.unlink()
    with pytest.raises(RestError, match="--token-file"):
        client.list_jobs(address)
    assert client.list_jobs(address, token=TOKEN)
    monkeypatch.setenv(client.TOKEN_VARIABLE, TOKEN)
    assert client.list_jobs(address)


def test_what_a_dead_job_left_is_given_to_nobody(start: StartServer, home: Path) -> None:
    """Another user may listen on its port by now."""
    address = start(token=TOKEN)
    (file,) = (home / "state").rglob("*.json")
    assert tokens.find_own_server(address) is not None
    entry = file.read_bytes()
    file.write_bytes(entry.replace(b'"pid_started":', b'"pid_started":1'))
    assert tokens.find_own_server(address) is None


def test_what_others_left_in_place_of_the_token_is_not_used(start: StartServer, home: Path) -> None:
    """A file that others can write to, a link, and something that is not an entry."""
    address = start(token=TOKEN)
    (file,) = (home / "state").rglob("*.json")
    file.chmod(0o620)
    assert tokens.find_own_server(address) is None
    file.chmod(0o600)
    moved = file.rename(file.with_name("moved"))
    file.symlink_to(moved)
    assert tokens.find_own_server(address) is None
    file.unlink()
    file.write_bytes(b"\xff")
    file.chmod(0o600)
    assert tokens.find_own_server(address) is None


# -- who chooses the address that a command speaks to ----------------------------------------------


@pytest.mark.parametrize(
    "address", ["http://192.0.2.1:8081", "evil.example:8081", "http://127.0.0.1.evil.example"]
)
def test_a_token_is_not_sent_where_it_can_be_read_on_the_way(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example to the address in a forged lease: without HTTPS it must be on this machine."""
    monkeypatch.setenv(client.TOKEN_VARIABLE, TOKEN)
    with pytest.raises(RestError, match="token was not sent") as told:
        client.list_jobs(address)
    assert TOKEN not in str(told.value)


@pytest.mark.parametrize("token", ["short", "ü" * 20, "two\nlines of a header", "x" * 15 + "\x00"])
def test_an_invalid_token_is_not_sent(start: StartServer, token: str) -> None:
    """It cannot be valid, and may be a password pasted into the wrong place."""
    with pytest.raises(RestError, match="is malformed: it must have at least 16") as told:
        client.list_jobs(start(token=TOKEN), token=token)
    assert token not in str(told.value)


def test_a_server_of_another_port_does_not_get_the_token_of_this_one(start: StartServer) -> None:
    """The token of the owner's job is for its own address, whatever listens on another port."""
    start(token=TOKEN)
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            for _ in range(2):
                connection, _ = other.accept()
                asked.append(connection.recv(65_536))
                location = b"Location: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(b"HTTP/1.1 307 Temporary Redirect\r\n" + location)
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        for token in (None, TOKEN):
            # Redirects are not followed, with or without a token.
            with pytest.raises(RestError, match="status 307"):
                client.list_jobs(f"http://127.0.0.1:{other.getsockname()[1]}", token=token)
        thread.join()
    assert [TOKEN.encode() in request for request in asked] == [False, True]


# -- HTTPS -----------------------------------------------------------------------------------------

CERTIFICATE, KEY = (Path(__file__).with_name(f"localhost.{kind}") for kind in ("crt", "key"))


def test_over_https_nothing_is_sent_in_clear(start: StartServer, gateway: FakeGateway) -> None:
    """A client that knows the certificate is answered, and one that does not sends nothing."""
    address = start(token=TOKEN, certificate=str(CERTIFICATE), key=str(KEY))
    assert address.startswith("https://127.0.0.1:")
    gateway.prepared = [completed(7, "/data/chk-7")]
    with client.connect("orders", address, ca_file=str(CERTIFICATE)) as job:
        assert job.trigger_checkpoint() == 7
    with pytest.raises(RestError, match=r"certificate .* --ca-file"):
        client.list_jobs(address)
    assert b"HTTP/1.1 200" not in talk(
        address, b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", wait_s=1
    )


def test_old_versions_of_tls_are_refused(start: StartServer) -> None:
    """TLS 1.2 is the minimum."""
    url = httpx.URL(start(certificate=str(CERTIFICATE), key=str(KEY)))
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    with pytest.deprecated_call():
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection((url.host, url.port or 0)) as raw,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        context.wrap_socket(raw, server_hostname="localhost")


def test_a_certificate_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    """Before the port is bound: no file, no certificate in it, or a key that does not match."""
    other = tmp_path / "empty.pem"
    other.write_text("")
    for certificate, key in ((tmp_path / "none", KEY), (other, KEY), (CERTIFICATE, other)):
        security = RestSecurity(certificate=str(certificate), key=str(key))
        with pytest.raises(RestError, match=r"security\.ssl\.rest\.certificate"):
            RestServer(port=0, security=security).bind()
    with pytest.raises(ConfigurationError, match=r"security\.ssl\.rest\.certificate is unset"):
        Configuration({"security.ssl.rest.enabled": "true"})
    with pytest.raises(RestError, match="--ca-file"):
        client.list_jobs("https://127.0.0.1:1", ca_file=str(other))


# -- too much, too slow, and nonsense --------------------------------------------------------------


def test_a_body_without_end_is_refused(http: httpx.Client, gateway: FakeGateway) -> None:
    """Whether its length is declared or it arrives in endless chunks."""
    body = b'{"request":{"x":"' + b"x" * guard.MAX_BODY + b'"}}'
    for content in (body, iter([body[:1_000_000], body[1_000_000:]])):
        response = http.post(
            f"{JOB}/coordinators/score", content=content, headers={"content-type": JSON}
        )
        assert is_refused(response, 413)
    assert send(http, "GET", "/v1/jobs", body).status_code == 413
    assert gateway.calls == []


def test_a_large_body_that_is_allowed_is_taken(http: httpx.Client, gateway: FakeGateway) -> None:
    """A megabyte of rules."""
    body = b'{"request":{"x":"' + b"x" * 1_000_000 + b'"}}'
    assert send(http, "POST", f"{JOB}/coordinators/score", body).status_code == 202
    assert len(gateway.calls[0][1] or "") > 1_000_000


def test_a_body_that_does_not_come_is_not_waited_for(
    http: httpx.Client, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets an error, and the connection is closed."""
    monkeypatch.setattr(guard, "BODY_S", 0.2)
    head = (
        f"POST {JOB}/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length:"
        " 9\r\n\r\n{"
    )
    answer = talk(str(http.base_url), head.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()
    assert gateway.calls == []


def test_a_client_that_says_next_to_nothing_is_cut_off(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing at all, or one header byte at a time: both hold one of the driver's file
    descriptors."""
    monkeypatch.setattr(connections, "STALL_S", 0.4)
    address = start()
    assert talk(address) == b""
    url = httpx.URL(address)
    with (
        closing(socket.create_connection((url.host, url.port or 80))) as slow,
        pytest.raises(ConnectionError),
    ):
        while True:
            slow.sendall(b"X")
            time.sleep(0.05)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not keep the response forever."""
    monkeypatch.setattr(connections, "STALL_S", 0.4)
    lost: list[None] = []
    lose = connections.BoundedProtocol.connection_lost
    monkeypatch.setattr(
        connections.BoundedProtocol,
        "connection_lost",
        lambda self, exc: (lost.append(None), lose(self, exc)),
    )
    size = 30_000_000
    gateway = FakeGateway(replace(VIEW, configuration={"key": "x" * size}))
    server = RestServer(port=0)
    url = httpx.URL(server.start(gateway))
    with closing(socket.create_connection((url.host, url.port or 80))) as deaf:
        deaf.sendall(f"GET {JOB}/config HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: lost, "the connection is cut")
        read = 0
        with suppress(ConnectionError):
            while part := deaf.recv(1_000_000):
                read += len(part)
    assert read < size
    server.stop()


def test_connections_are_counted(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those above the limit are closed at once; when others end, there is room again."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    address = start()
    url = httpx.URL(address)
    held = [socket.create_connection((url.host, url.port or 80)) for _ in range(3)]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address}/v1/jobs", trust_env=False)
    for one in held:
        one.close()

    def is_answered() -> bool:
        try:
            return httpx.get(f"{address}/v1/jobs", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_answered, "there is room again")


def test_connections_are_counted_before_their_handshake(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has shown nothing yet cannot use up the driver's file descriptors over TLS either."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    url = httpx.URL(start(certificate=str(CERTIFICATE), key=str(KEY)))
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(socket.create_connection((url.host, url.port or 0)))
        with socket.create_connection((url.host, url.port or 0)) as late:
            assert late.recv(1) == b""


def test_a_handshake_that_does_not_come_is_not_waited_for(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio alone would wait for a minute."""
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.3)
    url = httpx.URL(start(certificate=str(CERTIFICATE), key=str(KEY)))
    with socket.create_connection((url.host, url.port or 0)) as silent:
        assert silent.recv(1) == b""


def test_a_head_without_end_is_refused(http: httpx.Client) -> None:
    """A path and headers of many kilobytes; far beyond that nothing is even read."""
    assert is_refused(send(http, "GET", f"/v1/jobs/{'x' * 9_000}"), 414)
    assert is_refused(send(http, "GET", f"/v1/jobs?{'x' * 9_000}"), 414)
    assert is_refused(send(http, "GET", "/v1/jobs", cookie="x" * 20_000), 431)
    answer = talk(str(http.base_url), b"GET /", *[b"x" * 100_000] * 20, b" HTTP/1.1\r\n\r\n")
    assert b"200 OK" not in answer


@pytest.mark.parametrize(
    "ids", ["9" * 5_000, "٣" * 20, "9" * 19, "7x", "-7", "%00", "%ff", "..%2f.."]
)
@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{}",
        f"{JOB}/checkpoints/details/{{}}",
        f"{JOB}/checkpoints/details/7/subtasks/{{}}",
        f"{JOB}/checkpoints/{{}}",
        f"{JOB}/savepoints/{{}}",
        "/savepoint-disposal/{}",
    ],
)
def test_an_invalid_id_is_one_sentence(http: httpx.Client, path: str, ids: str) -> None:
    """No traceback, and no more than a line, however many digits the id has."""
    answer = http.get(path.format(ids))
    assert is_refused(answer, answer.status_code) or answer.json()["errors"][0].startswith(
        "Not Found: "
    )
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 300


@pytest.mark.parametrize(
    "body",
    [
        b'{"target-directory":"\xff\xfe"}',
        b"\xff\xfe{}",
        b'{"target-directory":"/d\\u0000/e"}',
        b'{"target-directory":"/\\ud800"}',
        b'{"target-directory":"/' + b"x" * 5_000 + b'"}',
        b"[" * 100_000,
        b'{"x":' * 100_000,
        b'{"triggerId":"' + b"9" * 5_000 + b'"}',
        b"9" * 5_000,
        b"null",
        b"{",
    ],
)
def test_a_body_that_is_nonsense_is_one_sentence(
    http: httpx.Client, gateway: FakeGateway, body: bytes
) -> None:
    """Not UTF-8, half a character, a path with a zero byte, endless brackets: 400 each."""
    answer = send(http, "POST", f"{JOB}/savepoints", body)
    assert answer.status_code == 400
    assert len(answer.json()["errors"]) == 1
    assert "Error" not in answer.text
    assert len(answer.content) < 500
    assert gateway.calls == []


def test_bytes_that_are_not_a_request_are_refused(http: httpx.Client) -> None:
    """The next client is answered."""
    for junk in (
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01",
    ):
        assert b"200 OK" not in talk(str(http.base_url), junk, wait_s=0.5)
    assert send(http, "GET", "/v1/jobs").status_code == 200


def test_a_disposal_of_something_else_deletes_nothing(http: httpx.Client, tmp_path: Path) -> None:
    """Neither a directory of the user's nor what a link in a savepoint points to."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for path in (str(precious), f"{precious}/../precious", str(tmp_path)):
        sent = http.post("/v1/savepoint-disposal", json={"savepoint-path": path})
        poll = f"/v1/savepoint-disposal/{sent.json()['request-id']}"
        wait_until(lambda poll=poll: "IN_PROGRESS" not in http.get(poll).text, "it is answered")
        assert "failure-cause" in http.get(poll).json()["operation"]
    assert (precious / "file").read_text() == "mine"
