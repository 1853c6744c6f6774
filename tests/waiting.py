"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

#: As long as pytest waits for a test (``pyproject.toml``): how long something takes depends on what
#: else the machine does.
PATIENCE_S = 300.0
_POLL_S = 0.01


def wait_until(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; fails with ``what`` should have come true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it never came true: {what}"
        time.sleep(_POLL_S)
