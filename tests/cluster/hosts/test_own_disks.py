"""Sinks on a disk that the hosts do not share."""

from __future__ import annotations

import pytest
from tests.cluster.hosts.standalone import DRIVERS, WORKERS, Standalone
from tests.cluster.s3.far_place import FarPlace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_sink_on_the_drivers_own_disk_is_refused_at_the_start(
    cluster: Standalone, far: FarPlace
) -> None:
    """Executors can write to the same path of their own disks, where nobody would look."""
    far.land(1)
    run = cluster.start(far, DRIVERS[0], environment={"OUT": "/tmp/out"})
    assert "The driver does not see what executors wrote to the directory of sink" in run.error()
    assert not (cluster.net.hosts[DRIVERS[0]].own / "out").exists()


def test_a_sink_where_executors_may_not_write_is_refused_at_the_start(
    cluster: Standalone, far: FarPlace
) -> None:
    """Such a job used to restart without end."""
    far.land(1)
    for name in WORKERS:
        (cluster.net.hosts[name].own / "closed").touch()
    run = cluster.start(far, DRIVERS[0], environment={"OUT": "/tmp/closed/out"})
    message = run.error()
    assert "The executors cannot " in message and "the directory of sink 'raw'" in message
    assert "such as a mount that all have, or one of hdfs: or s3a:" in message
    assert not (cluster.net.hosts[DRIVERS[0]].own / "closed").exists()
