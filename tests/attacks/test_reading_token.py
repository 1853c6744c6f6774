"""Those who may look at a job, but not change it: the token of ``weir.rest.reading-token-file``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.attacks.test_rest import CHANGES
from tests.kit.gateway import JOB_ID, FakeGateway, served

from weir.config import Configuration
from weir.errors import ConfigurationError, RestError
from weir.launch.runner import _rest_server
from weir.rest.server.server import RestSecurity
from weir.runtime.concurrency import SystemClock

TOKEN = "the-token-of-those-who-change"
READING = "the-token-of-those-who-look"


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def http(gateway: FakeGateway) -> Iterator[httpx.Client]:
    with served(gateway, security=RestSecurity(token=TOKEN, reading_token=READING)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


@pytest.mark.parametrize("path", ["/jobs", f"/jobs/{JOB_ID}/checkpoints", "/metrics", "/config"])
def test_a_reader_sees_what_others_see(http: httpx.Client, path: str) -> None:
    """The answers say that it is one, so that the web page shows no buttons."""
    seen = http.get(path, headers=bearer(READING))
    assert seen.status_code == 200
    assert seen.headers["weir-access"] == "read"
    assert "weir-access" not in http.get(path, headers=bearer(TOKEN)).headers


def test_a_reader_changes_nothing(http: httpx.Client, gateway: FakeGateway) -> None:
    """Whatever it sends is refused, and the sentence names the token to use."""
    for method, path, body in CHANGES:
        refused = http.request(method, path, content=body, headers=bearer(READING))
        assert refused.status_code == 403
        assert "rest.authentication.token-file" in refused.json()["errors"][0]
    assert gateway.calls == []


def test_a_token_that_is_neither_is_refused(http: httpx.Client) -> None:
    """Also both of them at once."""
    for token in ("guessed", READING[:-1], f"{READING} {TOKEN}", f"{TOKEN}{READING}"):
        refused = http.get("/jobs", headers=bearer(token))
        assert refused.status_code == 401
        assert "weir-access" not in refused.headers


def test_a_readers_token_without_that_of_the_owner_is_one_sentence(tmp_path: Path) -> None:
    """Everybody could change the job."""
    reading = {"weir.rest.reading-token-file": str(tmp_path / "reading")}
    with pytest.raises(ConfigurationError, match=r"set rest\.authentication\.token-file too"):
        Configuration(reading)
    Configuration({**reading, "rest.authentication.token-file": str(tmp_path / "token")})


def test_one_token_for_both_is_one_sentence(tmp_path: Path) -> None:
    """Who may look could change the job."""
    conf = {
        "weir.rest.reading-token-file": str(tmp_path / "token"),
        "rest.authentication.token-file": str(tmp_path / "token"),
    }
    with pytest.raises(RestError, match="name another file"):
        _rest_server(Configuration(conf), SystemClock())
