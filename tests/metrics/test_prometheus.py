"""Debian's Prometheus scrapes a running job that is killed and comes back (apt install prometheus).

The alerts are those of ``monitoring/alerts.yml``, with shorter times.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(600)]

ALERTS = Path(__file__).resolve().parent.parent.parent / "monitoring" / "alerts.yml"
PATIENCE_S = 180.0
PIPELINE = """
import weir

def landing(spark):
    return spark.readStream.schema("id long").parquet("landing")

job = weir.Job("watched", conf={"execution.checkpointing.interval": "1 s"})
job.source("in", landing).transform("kept", lambda df: df).sink("out", weir.sinks.Files("out"))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """A Prometheus that scrapes the port every second; a function that asks it a query."""
    rules = ALERTS.read_text().replace("> 600", "> 6").replace("for: 1m", "for: 0s")
    (directory / "alerts.yml").write_text(rules)
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    scraped = {"job_name": "weir", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    configuration = {"global": every, "rule_files": ["alerts.yml"], "scrape_configs": [scraped]}
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(query: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}, trust_env=False
            )
        except httpx.TransportError:
            return []
        found: list[dict[str, Any]] = answer.json().get("data", {}).get("result", [])
        return found

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def driver(directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """``weir run`` in the directory."""
    with (directory / "run.log").open("ab") as log:
        options = ["--rest-port", str(port), "--conf", "weir.rest.linger=5min"]
        process = subprocess.Popen(
            [sys.executable, "-m", "weir", "run", "pipeline.py", *options],
            cwd=directory,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def land(directory: Path, number: int) -> None:
    (directory / "landing").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(range(100))}), directory / "landing" / f"{number}.parquet")


def test_alerts_are_valid_rules() -> None:
    """By Prometheus' own checker."""
    checked = subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=False)
    assert checked.returncode == 0


def test_series_go_on_after_a_kill_and_the_alert_fires_and_clears(tmp_path: Path) -> None:
    """The age of the newest checkpoint counts the time without a driver; then a checkpoint comes.
    At the end the driver lingers, so that clients see that the job is finished."""
    assert shutil.which("prometheus"), "install it: apt-get install prometheus"
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    land(tmp_path, 0)
    port = free_port()
    old = 'ALERTS{alertname="WeirCheckpointTooOld",alertstate="firing"}'

    def value(ask: Callable[[str], list[dict[str, Any]]], query: str) -> float:
        found = ask(query)
        return float(found[0]["value"][1]) if found else -1.0

    with prometheus(tmp_path, port) as ask:
        with driver(tmp_path, port) as first:
            wait_until(
                lambda: value(ask, "weir_checkpoints_completed_total") >= 2,
                "checkpoints are scraped",
                within_s=PATIENCE_S,
            )
            (series,) = ask("weir_job_attempt")
            assert value(ask, "sum(weir_task_records_committed_total)") == 100
            # A slow start is no alert of its own here.
            wait_until(lambda: not ask(old), "no alert fires", within_s=PATIENCE_S)
            first.send_signal(signal.SIGKILL)
        killed = time.time()
        wait_until(lambda: value(ask, "up") == 0, "the kill is seen", within_s=PATIENCE_S)
        time.sleep(max(0.0, 7 - (time.time() - killed)))
        land(tmp_path, 1)
        with driver(tmp_path, port) as second:
            wait_until(
                lambda: value(ask, f"max_over_time({old}[5m])") == 1,
                "the alert fires",
                within_s=PATIENCE_S,
            )
            wait_until(lambda: not ask(old), "the alert clears", within_s=PATIENCE_S)
            wait_until(
                lambda: value(ask, "sum(weir_task_records_committed_total)") >= 100,
                "the new rows are committed",
                within_s=PATIENCE_S,
            )
            (again,) = ask("weir_job_attempt")
            assert again["metric"] == series["metric"]
            assert float(again["value"][1]) > float(series["value"][1])
            stop = [sys.executable, "-m", "weir", "stop", "watched", "-m", f"127.0.0.1:{port}"]
            subprocess.run(stop, check=True, cwd=tmp_path)
            (job,) = httpx.get(f"http://127.0.0.1:{port}/jobs/overview").json()["jobs"]
            assert job["state"] == "FINISHED"
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
