"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

#: As long as pytest waits for a test (``pyproject.toml``): how long something takes depends on what
#: else the machine does.
PATIENCE_S = 300.0
_POLL_S = 0.01
#: A pause is this many times as long as the look before it, up to a second: a look that reads a
#: table must not take the core from what it waits for.
_PAUSE_PER_LOOK = 4
_PAUSE_MAX_S = 1.0


def wait_until(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds; fails with ``what`` should have come true."""
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"it never came true: {what}"
        time.sleep(min(_PAUSE_MAX_S, max(_POLL_S, _PAUSE_PER_LOOK * (now - began))))
