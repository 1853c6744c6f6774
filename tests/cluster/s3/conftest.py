"""One S3 server for the tests of this folder, and others that tests kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.s3.server import S3Server, running_s3


@pytest.fixture(scope="session")
def _s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture
def s3(_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, which this process and those that it starts find. Nobody kills it."""
    for name, value in _s3.environment.items():
        monkeypatch.setenv(name, value)
    return _s3
