"""The metrics in Prometheus' text format, by ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from weir.metrics.definitions import METRICS, Kind
from weir.metrics.readings import Readings

#: Labels of every series.
COMMON = ("job_name", "job_id")
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class _OneScrape(Collector):
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        view = self._readings.view
        common = (view.name, view.job_id)
        for metric in METRICS:
            family_class = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
            family = family_class(metric.name, metric.help, labels=(*COMMON, *metric.labels))
            for labels, value in metric.read(self._readings):
                if value is not None:
                    family.add_metric((*common, *labels), value)
            if family.samples:
                yield family


def exposition(readings: Readings) -> str:
    """One scrape: the job's metrics, and the standard metrics of the driver's Python process."""
    registry = CollectorRegistry()
    registry.register(_OneScrape(readings))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode("utf-8")
