"""Jobs on a real YARN whose nodes share nothing with this machine but HDFS: killed, and exact.

Nodes run as another user, and their Python has no package of the project (``yarn.py``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.yarn import YarnCluster
from tests.cluster.yarn_job import YarnJob
from tests.kit.place import Place

pytestmark = [pytest.mark.cluster, pytest.mark.kill]

MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"


@pytest.fixture
def job(yarn: YarnCluster, place: Place, lean_python: Path) -> YarnJob:
    """Below a directory of HDFS that is named after the test."""
    return YarnJob(yarn, place, lean_python)


def test_a_killed_application_master_goes_on_by_itself(job: YarnJob) -> None:
    """YARN starts the driver again, which resumes; no row is lost or doubled."""
    job.land(12)
    run = job.start("bounded", "--deploy-mode", "cluster")
    job.wait_for(run, r"checkpoint 3 completed")
    [master] = [one for one in job.cluster.containers(MASTER) if one.name() == "java"]
    master.kill()
    log = job.finish(run)
    assert "recovered from checkpoint" in log, log
    job.assert_exact()
