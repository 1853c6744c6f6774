"""What delta-rs is asked, and how long for: a call may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import deltalake
import pytest

from weir.sinks.delta import client
from weir.sinks.delta.client import DeltaClient, within


def test_what_a_call_returns_or_raises_is_passed_on() -> None:
    """Also a ``TimeoutError`` of its own, with its own words."""

    def fail(error: Exception) -> None:
        raise error

    assert within(60, lambda: 7) == 7
    with pytest.raises(KeyError, match="gone"):
        within(60, lambda: fail(KeyError("gone")))
    with pytest.raises(TimeoutError, match=r"^the socket's$"):
        within(60, lambda: fail(TimeoutError("the socket's")))


def test_a_call_that_never_returns_is_given_up() -> None:
    """Its thread keeps no process alive."""
    never, before = threading.Event(), {*threading.enumerate()}
    with pytest.raises(TimeoutError, match=r"there was no answer within 0\.01 s"):
        within(0.01, never.wait)
    [left] = {*threading.enumerate()} - before
    assert left.daemon
    never.set()
    left.join()


class _Hanging:
    """A table of which no reading returns before ``go`` is set."""

    go = threading.Event()

    def __init__(self, *_: object, **__: object) -> None:
        type(self).go.wait()

    @classmethod
    def is_deltatable(cls, *_: object) -> bool:
        """It is there."""
        return True


_READS: dict[str, Callable[[DeltaClient, Any], object]] = {
    "load": lambda reading, _: reading.load("hdfs://nn/t", None),
    "update": lambda reading, table: reading.update("hdfs://nn/t", table),
    "version": lambda reading, table: reading.version_in("hdfs://nn/t", table, "weir"),
}


@pytest.mark.parametrize("name", _READS)
def test_a_reading_of_a_delta_table_on_hdfs_is_given_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the commit is repeated; as an ``OSError``, which the sink takes for an outage."""
    monkeypatch.setattr(client, "HDFS_READ_S", 0.01)
    monkeypatch.setattr(deltalake, "DeltaTable", _Hanging)
    monkeypatch.setattr(_Hanging, "go", threading.Event())

    class Table:
        """One that was loaded."""

        def update_incremental(self) -> None:
            """Hang."""
            _Hanging.go.wait()

        def transaction_version(self, _: str) -> None:
            """Hang."""
            _Hanging.go.wait()

    with pytest.raises(OSError, match="no answer within"):
        _READS[name](DeltaClient(), Table())
    _Hanging.go.set()
