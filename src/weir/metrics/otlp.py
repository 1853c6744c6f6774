"""The metrics by OpenTelemetry's protocol (OTLP over HTTP), pushed at an interval.

They are those of ``GET /metrics``, family by family, under OpenTelemetry's mapping of Prometheus'
names: a counter is a monotonic sum without ``_total`` at the end of its name, which a receiver for
Prometheus puts back, and the unit is that of the name. Labels are attributes. The resource is the
job: ``service.name`` its name, ``service.instance.id`` its id.

Readings and requests are made on a thread of their own. While the endpoint does not answer, the
figures are not kept: the log says so once, and the next push has newer ones.

Needs ``opentelemetry-sdk`` and the exporter, so it is imported only if an endpoint is given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family

from weir import __version__
from weir.metrics.prometheus import families
from weir.metrics.readings import Readings

_log = logging.getLogger(__name__)

_PATH = "/v1/metrics"
_NS_PER_MS = 1_000_000
#: The unit by the end of a name, as in UCUM.
_UNITS = {"seconds": "s", "bytes": "By"}
#: How long the end waits for an endpoint that has failed, in seconds.
_GIVEN_UP_S = 0.5
#: It logs every failed request, and each of its retries.
_EXPORTER_LOG = "opentelemetry.exporter"


def url_of(endpoint: str) -> str:
    """Where metrics go: an endpoint for all signals gets the path of metrics."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def metrics_data(readings: Readings) -> MetricsData:
    """All metrics with their values at one moment."""
    view = readings.view
    resource = Resource(
        {
            "service.name": view.name,
            "service.instance.id": view.job_id,
            "service.version": __version__,
        }
    )
    times = view.start_time_ms * _NS_PER_MS, readings.now_ms * _NS_PER_MS
    scope = ScopeMetrics(
        scope=InstrumentationScope("weir", __version__),
        metrics=[_metric(family, *times) for family in families(readings)],
        schema_url="",
    )
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")]
    )


def _metric(family: Family, start_ns: int, now_ns: int) -> Metric:
    points = [
        NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=start_ns,
            time_unix_nano=now_ns,
            value=sample.value,
        )
        for sample in family.samples
    ]
    data = (
        Sum(
            data_points=points,
            aggregation_temporality=AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
        if family.type == "counter"
        else Gauge(data_points=points)
    )
    return Metric(
        name=family.name,
        description=family.documentation,
        unit=_UNITS.get(family.name.rpartition("_")[2], "1"),
        data=data,
    )


class OtlpPush:
    """Pushes the metrics until it is left, and once more then. A context manager."""

    def __init__(
        self,
        readings: Callable[[], Readings],
        *,
        endpoint: str,
        headers: Mapping[str, str],
        interval_ms: int,
        timeout_ms: int,
    ) -> None:
        """``readings`` is called on the push's own thread, and may block."""
        self._readings = readings
        self._interval_s = interval_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._exporter = OTLPMetricExporter(
            endpoint=url_of(endpoint), headers=dict(headers), timeout=self._timeout_s
        )
        #: Pushes that have failed, and whether the newest one has.
        self.failed = 0
        self._is_failing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weir-otlp", daemon=True)

    def __enter__(self) -> OtlpPush:
        logging.getLogger(_EXPORTER_LOG).setLevel(logging.CRITICAL)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        # An endpoint that did not answer before is not waited for at the end.
        self._thread.join(_GIVEN_UP_S if self._is_failing else self._timeout_s)
        self._exporter.shutdown()
        if self.failed > 1:
            _log.warning("%d pushes of metrics failed.", self.failed)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(self._interval_s)
            try:
                done = self._exporter.export(metrics_data(self._readings()))
                sent = done is MetricExportResult.SUCCESS
                why = "" if sent else "the endpoint did not take them"
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            self._is_failing = bool(why)
            if why:
                self.failed += 1
                if self.failed == 1:
                    _log.warning("Metrics were not pushed, and the job goes on without: %s", why)
