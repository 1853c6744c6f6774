"""The metrics of a real job, with those of its JVM, pushed to a collector."""

from __future__ import annotations

import pytest
from tests.e2e.support import ROWS_PER_FILE, Place
from tests.metrics.otlp_receiver import receiver, series_of

pytestmark = pytest.mark.spark


def test_the_last_push_has_what_the_job_did(place: Place) -> None:
    """Rows, commits and the JVM's memory, under the names of a scrape."""
    place.land(2)
    with receiver() as (address, got):
        place.finish(
            "--conf", f"weir.metrics.otlp.endpoint={address}",
            "--conf", "weir.metrics.otlp.interval=500ms",
            environment={"NUMBERS": "bounded", "NO_PROXY": "127.0.0.1"},
        )  # fmt: skip
    assert len(got) > 1
    last = {
        (name, dict(labels).get("vertex")): value
        for (name, labels), value in series_of(got[-1][0]).items()
    }
    read = [value for (name, _), value in last.items() if name == "weir_task_records_in_total"]
    assert 2 * ROWS_PER_FILE in read
    assert any(name == "weir_jvm_threads" for name, _ in last)
    assert any(name == "process_resident_memory_bytes" for name, _ in last)
