"""What delta-rs is asked, and how long for: a call may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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


class _Table:
    """A table of which no reading returns before ``go`` is set."""

    go = threading.Event()

    def __init__(self, *_: object, **__: object) -> None:
        self.update_incremental()

    def update_incremental(self) -> None:
        """Read."""
        self.go.wait()

    def transaction_version(self, _: str) -> int:
        """Read."""
        self.go.wait()
        return 7

    @classmethod
    def is_deltatable(cls, *_: object) -> bool:
        """It is there."""
        return True


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that was loaded."""
    monkeypatch.setattr(deltalake, "DeltaTable", _Table)
    monkeypatch.setattr(_Table, "go", threading.Event())
    yield object.__new__(_Table)
    _Table.go.set()


_READS: dict[str, Callable[[DeltaClient, Any], object]] = {
    "load": lambda reading, _: reading.load("hdfs://nn/t", None),
    "update": lambda reading, table: reading.update("hdfs://nn/t", table),
    "version": lambda reading, table: reading.version_in("hdfs://nn/t", table, "weir"),
}


@pytest.mark.parametrize(
    ("name", "tried"), [("load", [0.01, 0.02, 0.04, 0.05]), ("update", [0.01]), ("version", [0.01])]
)
def test_a_reading_of_a_delta_table_on_hdfs_is_given_up(
    name: str, tried: list[float], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the commit is repeated; as an ``OSError``, which the sink takes for an outage. What
    shares nothing with the call that hangs was tried before with more and more time."""
    limits: list[float] = []

    def noted(limit_s: float, call: Callable[[], Any]) -> Any:
        limits.append(limit_s)
        return within(limit_s, call)

    monkeypatch.setattr(client, "within", noted)
    monkeypatch.setattr(client, "HDFS_READ_S", 0.01)
    monkeypatch.setattr(client, "HDFS_READ_MAX_S", 0.05)
    with pytest.raises(OSError, match="no answer within"):
        _READS[name](DeltaClient(), table)
    assert limits == tried


def test_a_reading_that_hangs_is_repeated_with_more_and_more_time(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is loaded in spite of it, and the next hang costs no more than the first."""
    limits: list[float] = []

    def hangs_twice(limit_s: float, call: Callable[[], Any]) -> Any:
        limits.append(limit_s)
        if len(limits) <= 2:
            raise TimeoutError
        return call()

    monkeypatch.setattr(client, "within", hangs_twice)
    table.go.set()
    reading = DeltaClient()
    assert reading.load("hdfs://nn/t", None) is not None
    assert reading.version_in("hdfs://nn/t", table, "weir") == 7
    assert limits == [15, 30, 60, 15]


def test_elsewhere_nothing_is_given_up(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other stores have clients with limits of their own, whose errors are passed on."""

    def fail(_: str) -> int:
        raise TimeoutError("the store's")

    monkeypatch.setattr(table, "transaction_version", fail)
    with pytest.raises(TimeoutError, match=r"^the store's$"):
        DeltaClient().version_in("s3://bucket/t", table, "weir")
