"""The table of metrics, and how its values are read from a job's view and its samples."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.kit.gateway import COMPLETED, JOB_ID, VIEW, completed

from weir.core.status import JobStatus
from weir.core.types import Counted, RowCount
from weir.metrics import prometheus
from weir.metrics.definitions import METRICS, Kind
from weir.metrics.readings import Readings, read
from weir.monitoring.recorder import COUNTERS, Sample
from weir.monitoring.views import ChannelView, JobView

ROOT = Path(__file__).resolve().parent.parent.parent
NOW_MS = 100_000


def values(readings: Readings, name: str) -> dict[tuple[str, ...], float]:
    """The series of a metric by its labels."""
    (metric,) = [metric for metric in METRICS if metric.name == name]
    return {labels: value for labels, value in metric.read(readings) if value is not None}


def test_names_follow_prometheus_conventions() -> None:
    """Base units, counters end in ``_total``, and a name means one thing."""
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"weir_[a-z_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert not re.search(r"_(ms|millis|kb|mb|percent)\b", metric.name), metric.name
        assert metric.help.endswith("."), metric.name


def test_rates_are_over_the_newest_minute() -> None:
    """From the oldest sample of the minute; older samples do not count. Without samples it is 0."""

    def sample(time_ms: int, records: int, busy_ms: int) -> Sample:
        of_clean = [0] * len(COUNTERS)
        of_clean[COUNTERS.index("records_in")] = records
        of_clean[COUNTERS.index("busy_ms")] = busy_ms
        return Sample(time_ms=time_ms, values=array("q", of_clean + [0] * len(COUNTERS)))

    first, *rest = VIEW.vertices
    view = replace(VIEW, vertices=(replace(first, records_in=1_000, busy_ms=30_000), *rest))
    samples = [sample(30_000, 0, 0), sample(50_000, 500, 20_000), sample(95_000, 990, 29_000)]
    clean, revenue = read(view, samples, now_ms=NOW_MS).vertices
    assert (clean.records_in_rate, clean.busy, clean.held) == (10.0, 0.2, 0.0)
    assert revenue.records_in_rate == 10.0
    clean, _ = read(view, [], now_ms=NOW_MS).vertices
    assert (clean.records_in_rate, clean.busy) == (0.0, 0.0)


def test_the_age_of_a_checkpoint_counts_those_of_earlier_drivers() -> None:
    """A driver that crashes again and again before its first checkpoint must not look healthy."""

    def age(view: JobView) -> dict[tuple[str, ...], float]:
        return values(read(view, [], now_ms=NOW_MS), "weir_checkpoint_age_seconds")

    restored = replace(completed(7, "/data/chk-7"), completion_timestamp_ms=40_000)
    assert age(replace(VIEW, start_time_ms=90_000, latest_completed=restored)) == {(): 60.0}
    assert age(replace(VIEW, start_time_ms=90_000)) == {(): 10.0}
    assert age(replace(VIEW, status=JobStatus.FINISHED)) == {}


def test_series_of_a_vertex_a_channel_and_a_status() -> None:
    """Each has its labels; what is not known has no series."""
    first, *rest = VIEW.vertices
    outputs = (ChannelView(consumer="revenue", segments=3, size=300),)
    first = replace(
        first,
        watermark_ms=90_000,
        outputs=outputs,
        pending_records=75,
        lags={"orders": {"0": 75, "1": 0}},
        counted=(
            RowCount(kind=Counted.LATE, by="0 stateStoreSave", rule="", rows=4),
            RowCount(kind=Counted.REJECTED, by="price", rule="", rows=2),
            RowCount(kind=Counted.BROKEN, by="valid", rule="has an id", rows=3),
        ),
    )
    view = replace(VIEW, vertices=(first, *rest))
    readings = read(view, [], now_ms=NOW_MS)
    assert values(readings, "weir_source_backlog_records") == {("clean",): 75.0}
    assert values(readings, "weir_source_lag_records") == {
        ("clean", "orders", "0"): 75.0,
        ("clean", "orders", "1"): 0.0,
    }
    assert values(readings, "weir_task_late_records_dropped_total")[("clean",)] == 4
    assert values(readings, "weir_operator_late_records_dropped_total") == {
        ("clean", "0 stateStoreSave"): 4.0
    }
    assert values(readings, "weir_step_rejects_total") == {("clean", "price"): 2.0}
    assert values(readings, "weir_step_broken_rules_total") == {
        ("clean", "valid", "has an id"): 3.0
    }
    assert values(readings, "weir_task_watermark_lag_seconds") == {("clean",): 10.0}
    assert values(readings, "weir_channel_bytes") == {("clean", "revenue"): 300.0}
    assert values(readings, "weir_task_records_in_total")[("clean",)] == 1_000
    statuses = values(readings, "weir_job_status")
    assert (len(statuses), sum(statuses.values()), statuses[("RUNNING",)]) == (9, 1.0, 1.0)
    alignment = values(readings, "weir_task_checkpoint_alignment_seconds")
    assert alignment == {("clean",): 0.003, ("revenue",): 0.003}
    duration = values(readings, "weir_checkpoint_duration_seconds")
    assert duration == {(): COMPLETED.end_to_end_duration_ms / 1000}
    assert values(readings, "weir_jvm_threads") == {}


def test_prometheus_reads_the_page_back() -> None:
    """By its own parser: each family once, every series with the job, and the process beside it."""
    text = prometheus.exposition(read(VIEW, [], now_ms=NOW_MS))
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert "process_resident_memory" in " ".join(families)
    own = {name: one for name, one in families.items() if name.startswith("weir_")}
    assert {"weir_job_status", "weir_task_records_in", "weir_checkpoints_completed"} <= set(own)
    for family in own.values():
        assert family.samples
        for sample in family.samples:
            assert (sample.labels["job_id"], sample.labels["job_name"]) == (JOB_ID, "orders")
    assert families["weir_task_records_in"].type == "counter"


def test_alerts_and_dashboard_name_metrics_that_exist() -> None:
    """A renamed metric would silence an alert for ever."""
    known = {metric.name for metric in METRICS}
    for file in ("alerts.yml", "grafana.json"):
        text = (ROOT / "monitoring" / file).read_text()
        named = set(re.findall(r"weir_[a-z_]+", text))
        assert named and named <= known, named - known
