"""Marks Weir's own calls of PySpark, which what stands in for PySpark's methods must let through.

While a user's script runs, some of PySpark's methods are replaced (``adopt/capture.py``), and Weir
itself runs queries by the same methods. So its calls are marked, for the thread that makes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_calls = threading.local()


@contextmanager
def own_calls() -> Iterator[None]:
    """What this thread calls meanwhile, Weir calls."""
    before = is_own_call()
    _calls.are_own = True
    try:
        yield
    finally:
        _calls.are_own = before


def is_own_call() -> bool:
    """Whether Weir makes the call that this thread is in."""
    return getattr(_calls, "are_own", False)
