"""Writes the last metrics of a job to a file (``weir.metrics.file``), for jobs that end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from weir.config import Configuration
from weir.config.options import METRICS_FILE
from weir.gateway.job_gateway import JobGateway
from weir.metrics.readings import probe, read
from weir.monitoring.cluster import Cluster
from weir.runtime.concurrency import Clock, in_background
from weir.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)

#: How long a JVM may take, in seconds; it is left out otherwise.
_PATIENCE_S = 1.0


def write_metrics(
    configuration: Configuration,
    file_system: Callable[[str], FileSystem],
    gateway: JobGateway,
    cluster: Cluster,
    clock: Clock,
) -> None:
    """Replace the file, atomically, with what a scrape would read now; a failure is only logged."""
    path = configuration.value(METRICS_FILE)
    if path is None:
        return
    from weir.metrics.prometheus import exposition

    jvm, process = None, None
    try:
        jvm, process = in_background(lambda: probe(cluster)).result(_PATIENCE_S)
    except Exception:
        _log.debug("The JVM does not answer.", exc_info=True)
    try:
        readings = read(
            gateway.view(),
            tuple(gateway.recorder.samples),
            now_ms=clock.wall_ms(),
            jvm=jvm,
            jvm_process=process,
        )
        file_system(path).write(path, exposition(readings).encode())
    except Exception as error:
        _log.warning("The metrics were not written to %s: %s", path, error)
