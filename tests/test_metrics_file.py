"""The file that gets the last metrics of a job (``weir.metrics.file``)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.kit.gateway import FakeCluster, FakeGateway

from weir.config import Configuration
from weir.core.status import JobStatus
from weir.launch import metrics_file
from weir.launch.metrics_file import write_metrics
from weir.monitoring.cluster import JvmView
from weir.runtime.concurrency import SystemClock
from weir.storage.file_systems import FileSystems


def write(path: Path, cluster: FakeCluster | None = None) -> None:
    """As a job that has finished does it."""
    gateway = FakeGateway()
    gateway.set_status(JobStatus.FINISHED)
    configuration = Configuration({"weir.metrics.file": str(path)})
    write_metrics(configuration, FileSystems(), gateway, cluster or FakeCluster(), SystemClock())


def test_the_file_has_what_a_scrape_would_read(tmp_path: Path) -> None:
    """How the job has ended, its vertices and its JVM, in place of what was there before."""
    file = tmp_path / "orders.prom"
    file.write_text("of the run before")
    write(file)
    text = file.read_text()
    assert 'weir_job_status{job_id="' in text
    assert 'job_name="orders",status="FINISHED"} 1.0\n' in text
    assert "\nweir_task_records_in_total{" in text
    assert "\nweir_jvm_threads{" in text
    assert "of the run before" not in text
    assert list(tmp_path.iterdir()) == [file]


def test_a_jvm_that_hangs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a job does not wait for it."""
    monkeypatch.setattr(metrics_file, "_PATIENCE_S", 0.05)
    never = threading.Event()

    class Hanging(FakeCluster):
        def jvm(self) -> JvmView:
            never.wait()
            return super().jvm()

    write(tmp_path / "orders.prom", Hanging())
    text = (tmp_path / "orders.prom").read_text()
    assert ("weir_job_status" in text, "weir_jvm_threads" in text) == (True, False)
    never.set()


def test_a_file_that_cannot_be_written_is_only_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The job has ended as it has."""
    write(tmp_path / "missing" / "orders.prom")
    assert f"The metrics were not written to {tmp_path}/missing/orders.prom: " in caplog.text
