"""Writes docs/METRICS.md from the table of metrics (``weir.metrics.definitions``).

``python scripts/metrics.py`` rewrites the page; a test fails if page and table differ.
"""

from __future__ import annotations

from pathlib import Path

from weir.metrics.definitions import METRICS, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "METRICS.md"

HEAD = """# Metrics

`GET /metrics` of a job's REST server answers in Prometheus' format:

```yaml
scrape_configs:
  - job_name: weir
    static_configs:
      - targets: ["127.0.0.1:8081"]
    # Only if the server has a token:
    authorization:
      credentials_file: /etc/prometheus/weir-token
```

A scrape reads the job's published view and, at most every 5 s, its JVM; batches do not notice.
Its figures are those of the look before (at most 10 s old) while the next one is under way.
[alerts.yml](../monitoring/alerts.yml) has alerts, and [grafana.json](../monitoring/grafana.json) is
a dashboard for Grafana.

A job that ends before anything scrapes it leaves its last metrics in a file:
`--conf weir.metrics.file=/var/lib/node_exporter/orders.prom`. When the job has finished, or was
stopped, cancelled or suspended, or has failed, its driver replaces that file with the same page. It
writes beside the file and renames, so the textfile collector of Prometheus' node exporter, or a
step in CI, never reads half of it. If that fails, the log says so and the job ends as it would
have. A driver that is killed writes nothing.

For OpenTelemetry, let the collector scrape: its `prometheus` receiver takes the `scrape_configs`
above.

The same figures answer the queries of Flink's REST API under Flink's names, in Flink's units
(milliseconds, nanoseconds): `/jobs/ID/metrics`, `/jobs/ID/vertices/ID/metrics` and the others of
[REST](REST.md). There a vertex also has rates over the newest minute, such as
`numRecordsInPerSecond` and `busyTimeMsPerSecond`.

Every series has the labels `job_name` and `job_id`, which stay the same when the job is run again,
and those named below. A label is a name of the graph, a topic with its partition, a status or a
pool, so their number is bounded. Counters start again with the driver. The driver's Python process
has the standard metrics `process_resident_memory_bytes`, `process_cpu_seconds_total`,
`process_open_fds` and so on.

<!-- Written by scripts/metrics.py from the table that the server uses. -->

| metric | type | labels | in Flink | |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page, as Markdown."""
    return HEAD + "\n".join(_row(metric) for metric in METRICS) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    flink = f"`{metric.flink}`" if metric.flink else ""
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {flink} | {metric.help} |"


if __name__ == "__main__":
    PAGE.write_text(page())
