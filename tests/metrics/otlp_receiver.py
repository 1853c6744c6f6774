"""An OpenTelemetry collector that keeps what it gets, decoded from OTLP's protobuf."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, list[tuple[Any, str]]]]:
    """The address of a collector, and what it gets: requests, and their header ``api-key``."""
    got: list[tuple[Any, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            got.append((ExportMetricsServiceRequest.FromString(body), self.headers["api-key"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


def metrics_of(request: Any) -> list[Any]:
    return [
        metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def series_of(request: Any) -> Series:
    """All series under the names that a receiver for Prometheus makes of them."""
    found: Series = {}
    for metric in metrics_of(request):
        kind = metric.WhichOneof("data")
        end = "_total" if kind == "sum" else ""
        for point in getattr(metric, kind).data_points:
            labels = {one.key: one.value.string_value for one in point.attributes}
            value = point.as_double if point.HasField("as_double") else point.as_int
            found[metric.name + end, tuple(sorted(labels.items()))] = float(value)
    return found
