"""The metrics by OTLP, decoded by a receiver: the same as by Prometheus' format, and no harm."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.metrics.otlp_receiver import Series, metrics_of, receiver, series_of
from tests.waiting import wait_until

from weir.metrics.otlp import OtlpPush, url_of
from weir.metrics.prometheus import exposition
from weir.metrics.readings import Readings, read

sys.path.insert(0, str(Path(__file__).parent.parent / "rest"))

from fake_job import JOB_ID, FakeGateway


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def readings() -> Readings:
    return read(FakeGateway().current, (), now_ms=1_700_000_000_000)


def push(endpoint: str, answers: Callable[[], Readings] = readings, **changes: Any) -> OtlpPush:
    settings = {"headers": {}, "interval_ms": 60_000, "timeout_ms": 300_000} | changes
    return OtlpPush(answers, endpoint=endpoint, **settings)


def test_the_metrics_are_those_of_prometheus() -> None:
    """Every series with its name, its labels and its value."""
    with receiver() as (address, got), push(address):
        pass
    scraped: Series = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition(readings()))
        for sample in family.samples
    }
    ((request, _),) = got
    pushed = series_of(request)
    assert pushed.keys() == scraped.keys()
    of_weir = {key for key in scraped if key[0].startswith("weir_")}
    assert {key: pushed[key] for key in of_weir} == {key: scraped[key] for key in of_weir}
    assert len(of_weir) > 40


def test_a_counter_is_a_monotonic_sum_with_its_unit() -> None:
    """Cumulative since the job started; a gauge is a gauge."""
    with receiver() as (address, got), push(address):
        pass
    by_name = {metric.name: metric for metric in metrics_of(got[0][0])}
    busy = by_name["weir_task_busy_seconds"]
    assert (busy.unit, busy.sum.is_monotonic, busy.sum.aggregation_temporality) == ("s", True, 2)
    start_ms = FakeGateway().current.start_time_ms
    assert busy.sum.data_points[0].start_time_unix_nano == start_ms * 1_000_000
    assert busy.description == "Time in batches."
    size = by_name["weir_checkpoint_size_bytes"]
    assert (size.unit, size.WhichOneof("data")) == ("By", "gauge")


def test_the_resource_is_the_job() -> None:
    """By OpenTelemetry's names."""
    with receiver() as (address, got), push(address):
        pass
    (resource,) = got[0][0].resource_metrics
    found = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (found["service.name"], found["service.instance.id"]) == ("orders", JOB_ID)


def test_metrics_are_pushed_at_the_interval_and_at_the_end() -> None:
    """With the headers of the configuration."""
    with receiver() as (address, got), push(address, interval_ms=50, headers={"api-key": "s"}):
        wait_until(lambda: len(got) >= 3, "three pushes")
        before = len(got)
    assert len(got) > before
    assert {header for _, header in got} == {"s"}


def test_an_endpoint_may_have_the_path_of_metrics_or_not() -> None:
    """As OpenTelemetry's own variables have it."""
    assert url_of("http://collector:4318") == "http://collector:4318/v1/metrics"
    assert url_of("http://collector:4318/") == "http://collector:4318/v1/metrics"
    assert url_of("https://x.example/otlp/v1/metrics") == "https://x.example/otlp/v1/metrics"


def test_an_endpoint_that_refuses_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And counted at the end; the exporter's own lines are left out."""
    monkeypatch.setattr("weir.metrics.otlp._GIVEN_UP_S", None)
    with caplog.at_level(logging.WARNING), receiver(status=400) as (address, got):
        with push(address, interval_ms=20) as one:
            wait_until(lambda: one.failed >= 3, "three pushes are refused")
        assert [record.name for record in caplog.records] == ["weir.metrics.otlp"] * 2
    assert len(got) == one.failed


def test_readings_that_fail_end_no_push() -> None:
    """The next ones may not."""
    answers = iter((ValueError("the JVM is busy"), readings()))

    def answer() -> Readings:
        found = next(answers, None)
        if isinstance(found, Exception):
            raise found
        return found or readings()

    with receiver() as (address, got), push(address, answer, interval_ms=20) as one:
        wait_until(lambda: got, "a push")
    assert one.failed == 1


def test_an_endpoint_that_is_gone_does_not_hold_up_the_end() -> None:
    """At most the time-out."""
    with receiver() as (address, _):
        pass
    with push(address, timeout_ms=500):
        pass
