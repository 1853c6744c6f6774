"""Starts the push of metrics by OTLP, if an endpoint is configured (``weir/metrics/otlp.py``)."""

from __future__ import annotations

import contextlib
import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from weir.config import Configuration
from weir.config.options import OTLP_ENDPOINT, OTLP_HEADERS, OTLP_INTERVAL, OTLP_TIMEOUT
from weir.errors import ConfigurationError
from weir.gateway.job_gateway import JobGateway
from weir.metrics.readings import Readings, probe, read
from weir.monitoring.cluster import Cluster
from weir.runtime.concurrency import Clock, in_background

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)

#: A JVM that takes longer is left out of the push.
_PATIENCE_S = 1.0


def check(configuration: Configuration) -> None:
    """Raise ``ConfigurationError`` if metrics are to be pushed and a library is missing."""
    if configuration.value(OTLP_ENDPOINT) is None:
        return
    try:
        import weir.metrics.otlp  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{OTLP_ENDPOINT.key} needs OpenTelemetry's SDK and exporter, which are not installed"
            f" ({error}): pip install 'weir-spark[otlp]'."
        ) from error


def pushing(
    configuration: Configuration, gateway: JobGateway, cluster: Cluster, clock: Clock
) -> AbstractContextManager[Any]:
    """Pushes the job's metrics while it is entered; does nothing without an endpoint."""
    endpoint = configuration.value(OTLP_ENDPOINT)
    if endpoint is None:
        return contextlib.nullcontext()
    from weir.metrics.otlp import OtlpPush

    headers = configuration.value(OTLP_HEADERS)
    return OtlpPush(
        _Reader(gateway, cluster, clock).readings,
        endpoint=endpoint,
        headers=headers,
        interval_ms=configuration.value(OTLP_INTERVAL),
        timeout_ms=configuration.value(OTLP_TIMEOUT),
    )


class _Reader:
    """Reads what a scrape would read."""

    def __init__(self, gateway: JobGateway, cluster: Cluster, clock: Clock) -> None:
        self._gateway = gateway
        self._cluster = cluster
        self._clock = clock
        #: The latest call of the JVM: while it hangs, there is no other.
        self._probe: Future[Any] | None = None

    def readings(self) -> Readings:
        """The readings now; without the JVM's if it does not answer in time."""
        jvm, process = None, None
        if self._probe is None or self._probe.done():
            self._probe = in_background(lambda: probe(self._cluster))
        try:
            jvm, process = self._probe.result(_PATIENCE_S)
        except Exception:
            _log.debug("The JVM does not answer.", exc_info=True)
        return read(
            self._gateway.view(),
            tuple(self._gateway.recorder.samples),
            now_ms=self._clock.wall_ms(),
            jvm=jvm,
            jvm_process=process,
        )
