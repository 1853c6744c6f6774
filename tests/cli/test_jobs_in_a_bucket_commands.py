"""Commands read jobs, checkpoints and savepoints in an object store, without a JVM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.cli.conftest import Weir
from tests.kit.durable_job import Driver
from tests.kit.object_store import ObjectStore
from tests.kit.place import environment_of
from tests.kit.sample_checkpoint import checkpoint

from weir.core.types import SnapshotKind
from weir.storage.file_systems import FileSystems
from weir.storage.paths import parent

JOB = "1" * 32


@pytest.fixture
def base(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint directory with a job that has one checkpoint. No JVM can be started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = f"{object_store.bucket()}/checkpoints"
    driver = Driver(tmp_path, JOB, files=FileSystems(), checkpoints=made)
    driver.job.begin_attempt()
    driver.complete()
    return made


def test_a_job_and_its_checkpoint_are_shown(weir: Weir, base: str) -> None:
    """``weir list``, ``checkpoints`` and ``inspect``."""
    assert "orders" in weir("list", base).output
    shown = weir("checkpoints", "orders", "--directory", base, "--id", "1")
    assert (shown.exit_code, f"{base}/{JOB}/chk-1" in shown.output.replace("\n", "")) == (0, True)
    inspected = weir("inspect", f"{base}/{JOB}/chk-1")
    assert f"checkpoint 1 of job {JOB}" in inspected.output.lower()
    missing = weir("inspect", f"{base}/{JOB}/chk-2")
    assert missing.exit_code == 1
    assert "has chk-1" in str(missing.output) + str(missing.exception)


def test_hadoops_name_for_s3_shows_the_same(weir: Weir, base: str) -> None:
    """A job whose directories are ``s3a:`` is read without Spark, too."""
    far = base.replace("s3:", "s3a:")
    assert "orders" in weir("list", far).output
    assert weir("checkpoints", "orders", "--directory", far, "--id", "1").exit_code == 0
    assert f"checkpoint 1 of job {JOB}" in weir("inspect", f"{far}/{JOB}/chk-1").output.lower()


def test_a_savepoint_is_disposed_of(weir: Weir, base: str) -> None:
    """Nothing else is."""
    storage = Driver(Path(), JOB, files=FileSystems(), checkpoints=base).storage
    directory = storage.make_savepoint_directory(f"{parent(base)}/savepoints")
    storage.write_metadata(checkpoint(2, directory, kind=SnapshotKind.SAVEPOINT))
    result = weir("savepoint", "--dispose", directory)
    assert (result.exit_code, result.stdout) == (0, f"Savepoint {directory} disposed.\n")
    fs = storage.fs(base)
    assert [entry.name for entry in fs.list(parent(base))] == ["checkpoints"]


def test_the_history_server_serves_the_directory(base: str) -> None:
    """Like a local one; a directory that does not exist is refused."""
    command = [sys.executable, "-m", "weir", "history"]
    nothing = subprocess.run(
        [*command, f"{base}/none"],
        env=environment_of({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"There is no directory {base}/none" in nothing.stderr
    server = subprocess.Popen(
        [*command, base, "--port", "0"], env=environment_of({}), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().rpartition(" ")[2].strip().rstrip("/")
        (job,) = httpx.get(f"{address}/jobs/overview", trust_env=False).json()["jobs"]
        assert (job["jid"], job["name"]) == (JOB, "orders")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
