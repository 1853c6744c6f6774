"""Python workers are forked from a daemon that has imported what they need
(weir/spark/session/worker_daemon.py)."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest

from weir.spark.session import worker_daemon
from weir.spark.session.start import plan_session
from weir.spark.session.worker_daemon import MODULE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAEMON_SETTING = "spark.python.daemon.module"


def reported(spark: SparkSession) -> list[dict[str, object]]:
    """What two workers say of themselves; each task waits for the other, so there are two."""

    def report(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = "pandas" in sys.modules
        import numpy as np
        from pyspark import BarrierTaskContext

        BarrierTaskContext.get().barrier()
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "pid": os.getpid(),
                    "daemon": parent[parent.index("-m") + 1],
                    "loaded": loaded,
                    "drawn": float(np.random.random()),
                }
            ]
        )

    schema = "pid long, daemon string, loaded boolean, drawn double"
    frame = spark.range(0, 2, 1, 2).mapInArrow(report, schema, barrier=True)
    return [row.asDict() for row in frame.collect()]


@pytest.mark.spark
def test_workers_have_imported_pandas_before_they_begin_and_draw_different_numbers(
    spark: SparkSession,
) -> None:
    """Forked from one process, they would share the state of NumPy's generator."""
    one, other = reported(spark)
    assert one["pid"] != other["pid"]
    assert one["daemon"] == other["daemon"] == MODULE
    assert one["loaded"] and other["loaded"]
    assert one["drawn"] != other["drawn"]


@pytest.mark.parametrize(
    ("pandas", "module"),
    [
        ("print('welcome')", MODULE),
        ("raise RuntimeError('broken')", MODULE),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "pyspark.daemon",
        ),
    ],
)
def test_the_daemon_starts_whatever_an_import_does(
    tmp_path: Path, pandas: str, module: str
) -> None:
    """It prints, fails or starts a thread: Spark still reads a port, of its own daemon if there is
    a second thread, with which no process may be forked."""
    (tmp_path / "pandas.py").write_text(pandas)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        process = psutil.Process(daemon.pid)
        assert port in {one.laddr.port for one in process.net_connections()}
        assert process.cmdline()[1:] == ["-m", module, "pyspark.worker"]
        # The end of the JVM is the end of its daemon.
        daemon.stdin.close()
        daemon.wait()


def test_where_threads_cannot_be_counted_sparks_own_daemon_starts_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on macOS."""
    become: list[list[str]] = []

    def execv(_: str, arguments: list[str]) -> None:
        become.append(arguments)
        raise SystemExit

    monkeypatch.setattr(worker_daemon, "_THREADS", tmp_path / "proc")
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.worker"])
    with pytest.raises(SystemExit):
        worker_daemon.main()
    assert become == [[sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]]


def planned(master: str, **conf: str) -> str | None:
    """The daemon of a session, by its settings."""
    plan = plan_session(
        name="tests",
        master=master,
        conf=conf,
        parallelism=None,
        fast_working_directory=True,
        log_file=None,
    )
    return plan.settings.get(DAEMON_SETTING)


def test_sparks_own_daemon_forks_workers_where_weir_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster, and for another Python; a daemon that the user has set stays."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert planned("local[2]") == MODULE
    assert planned("local[2]", **{DAEMON_SETTING: "mine"}) == "mine"
    assert planned("spark://127.0.0.1:7077") is None
    assert planned("local-cluster[1,1,1024]") is None
    assert planned("local[2]", **{"spark.pyspark.python": "/usr/bin/python3"}) is None
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert planned("local[2]") is None
