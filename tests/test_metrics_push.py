"""When metrics are pushed by OTLP, and what a push of a running job reads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import wait_until

from weir.config import Configuration
from weir.errors import ConfigurationError
from weir.launch import metrics_push
from weir.launch.metrics_push import check, pushing
from weir.monitoring.cluster import JvmView
from weir.runtime.concurrency import SystemClock

sys.path.insert(0, str(Path(__file__).parent / "rest"))

from fake_job import FakeCluster, FakeGateway

ENDPOINT = {"weir.metrics.otlp.endpoint": "http://127.0.0.1:1"}


def reader(cluster: FakeCluster) -> metrics_push._Reader:
    return metrics_push._Reader(FakeGateway(), cluster, SystemClock())


def test_nothing_is_pushed_by_default() -> None:
    """Nor are the libraries asked for."""
    check(Configuration({}))
    with pushing(Configuration({}), FakeGateway(), FakeCluster(), SystemClock()) as push:
        assert push is None


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra."""
    monkeypatch.setitem(sys.modules, "weir.metrics.otlp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'weir-spark\[otlp\]'"):
        check(Configuration(ENDPOINT))


def test_headers_are_pairs_and_never_shown() -> None:
    """A value may have an equals sign."""
    given = Configuration({"weir.metrics.otlp.headers": "api-key=a=b, tenant = x"})
    assert given.value(metrics_push.OTLP_HEADERS) == {"api-key": "a=b", "tenant": "x"}
    assert "a=b" not in str(given.in_force())
    with pytest.raises(ConfigurationError):
        Configuration({"weir.metrics.otlp.headers": "api-key"})


def test_a_push_reads_the_job_and_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is one that exists, or is left out."""
    monkeypatch.setattr(metrics_push, "_PATIENCE_S", None)
    found = reader(FakeCluster()).readings()
    assert found.view.name == "orders"
    assert found.jvm is not None


def test_a_jvm_that_hangs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once, and not again while it hangs."""
    monkeypatch.setattr(metrics_push, "_PATIENCE_S", 0.05)
    never, asked = threading.Event(), []

    class Hanging(FakeCluster):
        def jvm(self) -> JvmView:
            asked.append(1)
            never.wait()
            return super().jvm()

    one = reader(Hanging())
    assert one.readings().jvm is None
    assert one.readings().jvm is None
    wait_until(lambda: asked, "it is asked")
    assert len(asked) == 1
    never.set()
