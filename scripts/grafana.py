"""Writes monitoring/grafana.json, a dashboard over the metrics of Weir's jobs.

``python scripts/grafana.py`` rewrites the file; a test fails if it differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "monitoring" / "grafana.json"

_JOB = 'job_name=~"$job"'
_TASK = "{{job_name}} {{vertex}}"
#: Title, unit, and expressions with their legends. A row of the page has two panels.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Status", "none", ((f"weir_job_status{{{_JOB}}} == 1", "{{job_name}} {{status}}"),)),
    (
        "Age of the newest checkpoint",
        "s",
        ((f"weir_checkpoint_age_seconds{{{_JOB}}}", "{{job_name}}"),),
    ),
    (
        "Rows read",
        "rowsps",
        ((f"rate(weir_task_records_in_total{{{_JOB}}}[1m])", _TASK),),
    ),
    (
        "Rows committed",
        "rowsps",
        ((f"rate(weir_task_records_committed_total{{{_JOB}}}[1m])", _TASK),),
    ),
    (
        "Checkpoint duration",
        "s",
        ((f"weir_checkpoint_duration_seconds{{{_JOB}}}", "{{job_name}}"),),
    ),
    (
        "Checkpoints",
        "short",
        (
            (f"increase(weir_checkpoints_completed_total{{{_JOB}}}[5m])", "{{job_name}} completed"),
            (f"increase(weir_checkpoints_failed_total{{{_JOB}}}[5m])", "{{job_name}} failed"),
        ),
    ),
    (
        "Parts of the newest checkpoint",
        "s",
        (
            (f"weir_task_checkpoint_start_delay_seconds{{{_JOB}}}", f"{_TASK} start"),
            (f"weir_task_checkpoint_alignment_seconds{{{_JOB}}}", f"{_TASK} alignment"),
            (f"weir_task_checkpoint_sync_seconds{{{_JOB}}}", f"{_TASK} sync"),
            (f"weir_task_checkpoint_async_seconds{{{_JOB}}}", f"{_TASK} async"),
        ),
    ),
    (
        "State",
        "bytes",
        (
            (f"weir_checkpoint_full_size_bytes{{{_JOB}}}", "{{job_name}}"),
            (f"weir_task_state_bytes{{{_JOB}}}", _TASK),
        ),
    ),
    (
        "Rows dropped as late",
        "short",
        ((f"increase(weir_task_late_records_dropped_total{{{_JOB}}}[5m])", _TASK),),
    ),
    ("Watermark lag", "s", ((f"weir_task_watermark_lag_seconds{{{_JOB}}}", _TASK),)),
    ("Batch duration", "s", ((f"weir_task_batch_duration_seconds{{{_JOB}}}", _TASK),)),
    (
        "Held up by a consumer",
        "percentunit",
        ((f"rate(weir_task_backpressured_seconds_total{{{_JOB}}}[1m])", _TASK),),
    ),
    ("Busy", "percentunit", ((f"rate(weir_task_busy_seconds_total{{{_JOB}}}[1m])", _TASK),)),
    (
        "In channels",
        "bytes",
        ((f"weir_channel_bytes{{{_JOB}}}", "{{vertex}} to {{consumer}}"),),
    ),
    ("Waiting in sources", "short", ((f"weir_source_backlog_records{{{_JOB}}}", _TASK),)),
    ("Commit duration", "s", ((f"weir_task_commit_duration_seconds{{{_JOB}}}", _TASK),)),
    (
        "Memory",
        "bytes",
        (
            (f"weir_jvm_memory_used_bytes{{{_JOB}}}", "{{job_name}} {{area}}"),
            (f"weir_jvm_resident_memory_bytes{{{_JOB}}}", "{{job_name}} JVM"),
        ),
    ),
    (
        "Restarts",
        "short",
        ((f"increase(weir_job_restarts_total{{{_JOB}}}[5m])", "{{job_name}}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "Weir",
        "uid": "weir",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "query": "label_values(weir_job_status, job_name)",
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "panels": [_panel(place, *panel) for place, panel in enumerate(PANELS)],
    }


def _panel(
    place: int, title: str, unit: str, targets: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": title,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (place % 2), "y": 8 * (place // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(targets)
        ],
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
