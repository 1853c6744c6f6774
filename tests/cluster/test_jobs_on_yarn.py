"""Jobs on a real YARN whose nodes share nothing with this machine but HDFS: killed, and exact.

Nodes run as another user, and their Python has no package of the project (``yarn.py``).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cluster.yarn import YarnCluster
from tests.cluster.yarn_job import YarnJob
from tests.kit.place import Place

pytestmark = [pytest.mark.cluster, pytest.mark.kill, pytest.mark.timeout(600)]


@pytest.fixture
def job(yarn: YarnCluster, place: Place, lean_python: Path) -> YarnJob:
    """Below a directory of HDFS that is named after the test."""
    return YarnJob(yarn, place, lean_python)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run nodes as another user")
def test_nodes_share_nothing_with_who_starts_jobs(job: YarnJob, lean_python: Path) -> None:
    """What the other tests rest on: no file of the job's, and no package, is within their reach."""
    for path in (job.place.directory, lean_python):
        assert job.cluster.run_as_node("ls", str(path)).returncode != 0
    for package in ("weir", "pyspark", "pyarrow", "msgspec", "hdfs_native"):
        found = job.cluster.run_as_node("python3.11", "-c", f"import {package}")
        assert f"No module named '{package}'" in found.stderr


def test_a_killed_application_master_goes_on_by_itself(job: YarnJob) -> None:
    """The lease says where YARN has started the driver again; it answers who has the token."""
    job.land(8)
    run = job.start("unbounded", "--deploy-mode", "cluster")
    job.wait_for(run, r"checkpoint 2 completed")
    first = job.address()
    asked = job.place.weir("checkpoints", "numbers", "--address", first, "--token-file", "/none")
    assert asked.returncode == 1
    assert "token" in asked.stderr
    job.kill_master()
    job.wait_for(run, r"recovered from checkpoint")
    job.land(4)
    job.drain(run)
    job.assert_exact()


def test_a_killed_client_goes_on_when_it_is_run_again(job: YarnJob) -> None:
    """And an executor that is killed meanwhile is replaced while it runs."""
    job.land(12)
    run = job.start("bounded")
    run.wait_for(r"checkpoint 2 completed")
    job.kill_executor()
    run.wait_for(r"checkpoint 4 completed")
    run.process.kill()
    run.wait()
    again = job.start("bounded")
    again.wait_for(r"recovered from checkpoint")
    assert "uploading" not in again.output, "the archives are there"
    job.finish(again)
    job.assert_exact()
