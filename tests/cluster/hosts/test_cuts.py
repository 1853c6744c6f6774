"""Links that go down and come back, while a job runs whose only storage is an S3 server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cluster.hosts.standalone import (
    DRIVERS,
    LEASE_TIMEOUT_S,
    NETWORK_TIMEOUT_S,
    S3,
    WORKER_TIMEOUT_S,
    WORKERS,
    Standalone,
)
from tests.cluster.s3.far_place import FarPlace
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.kill, pytest.mark.timeout(1200)]

_SHORT_S = 30.0
#: Longer than every time-out of the cluster and the job.
_LONG_S = WORKER_TIMEOUT_S + NETWORK_TIMEOUT_S + LEASE_TIMEOUT_S
_FILES = 14
_ENDS_S = 400.0


def test_a_worker_that_is_off_the_network_for_half_a_minute_is_waited_for(
    cluster: Standalone, far: FarPlace
) -> None:
    """Nothing is lost, its executor included: the network's time-out is Spark's own."""
    far.land(_FILES)
    run = cluster.start(far, DRIVERS[0], "--conf", "spark.network.timeout=120s")
    run.wait_for(r"checkpoint 2 completed")
    cluster.net.unplug(WORKERS[0])
    time.sleep(_SHORT_S)
    cluster.net.plug(WORKERS[0])
    assert run.wait(_ENDS_S) == 0, run.story()
    far.assert_exact()


def test_a_worker_that_is_off_for_longer_than_every_time_out_is_replaced(
    cluster: Standalone, far: FarPlace
) -> None:
    """The master gives it up, the job goes on elsewhere, and it may come back."""
    far.land(_FILES)
    run = cluster.start(far, DRIVERS[0])
    run.wait_for(r"checkpoint 2 completed")
    gone = rf"{cluster.net.hosts[WORKERS[0]].address}-\d+ because we got no heartbeat"
    before = cluster.logged(gone)
    cluster.net.unplug(WORKERS[0])
    wait_until(lambda: cluster.logged(gone) > before, "the worker is given up", within_s=_ENDS_S)
    time.sleep(NETWORK_TIMEOUT_S)
    cluster.net.plug(WORKERS[0])
    assert run.wait(_ENDS_S) == 0, run.story()
    far.assert_exact()


def test_a_driver_that_is_off_for_longer_than_every_time_out_goes_on(
    cluster: Standalone, far: FarPlace
) -> None:
    """By itself, or by the same command."""
    far.land(_FILES)
    run = cluster.start(far, DRIVERS[0])
    run.wait_for(r"checkpoint 2 completed")
    cluster.net.unplug(DRIVERS[0])
    time.sleep(_LONG_S)
    cluster.net.plug(DRIVERS[0])
    if run.wait(_ENDS_S) != 0:
        again = cluster.start(far, DRIVERS[0])
        assert again.wait(_ENDS_S) == 0, again.story()
    far.assert_exact()


def test_of_two_drivers_the_one_that_is_cut_off_from_the_storage_is_fenced(
    cluster: Standalone, far: FarPlace
) -> None:
    """It reaches its executors all the time. Once it is back, it ends, and no file that matters
    has another content."""
    far.land(_FILES)
    cut_off = cluster.start(far, DRIVERS[0])
    cut_off.wait_for(r"checkpoint 2 completed")
    cluster.net.part(DRIVERS[0], S3)
    time.sleep(LEASE_TIMEOUT_S)
    other = cluster.start(far, DRIVERS[1])
    assert other.wait(_ENDS_S) == 0, other.story()
    assert "recovered from checkpoint" in other.output, other.story()
    far.assert_exact()
    before = _durable(far.objects)
    cluster.net.join(DRIVERS[0], S3)
    assert cut_off.wait(_ENDS_S) != 0, cut_off.story()
    assert "Another driver has taken over" in cut_off.output, cut_off.story()
    assert _durable(far.objects) == before
    far.assert_exact()


_UNIMPORTANT = frozenset({"ids", "archive", "committed"})


def _durable(directory: Path) -> dict[str, bytes]:
    """What readers of the sinks and a later start go by.

    The driver that comes back takes a number that nothing else has, and may say once more that
    the last epoch it knows of is committed. Its archive of the job decides nothing.
    """
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for part in ("out", "checkpoints")
        for file in sorted((directory / part).rglob("*"))
        if file.is_file() and not _UNIMPORTANT.intersection(file.parts)
    }
