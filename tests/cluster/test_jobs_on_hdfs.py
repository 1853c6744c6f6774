"""A job whose files are all on a real HDFS, the input too: killed, stopped with a savepoint, ended.

All paths begin with ``hdfs:///``, as on a cluster whose configuration names the name node.
"""

from __future__ import annotations

import signal

import pytest
from tests.cluster.far_place import ON_HADOOP, FarPlace
from tests.cluster.hdfs import HdfsCluster
from tests.kit.place import Place, assert_same, files_rows

pytestmark = [pytest.mark.cluster, pytest.mark.kill]


@pytest.fixture
def far(hdfs: HdfsCluster, place: Place) -> FarPlace:
    """Below a directory that is named after the test."""
    return FarPlace(hdfs, place)


def test_a_killed_job_on_hdfs_goes_on_and_its_savepoint_is_restored(far: FarPlace) -> None:
    """Every row is there once, and the short commands read the job without Spark."""
    place, settings = far.place, far.settings()
    far.land(8)
    running = far.environment("unbounded")
    place.die_at("within-one-commit", 2, *settings, environment=running)

    directory = f"{far.root}/checkpoints"
    listed = place.weir("list", directory)
    assert "numbers" in listed.stdout, listed.stderr

    run = place.start(*settings, environment=running)
    run.wait_for(r"checkpoint 4 completed")
    far.land(4)
    run.wait_for(r"checkpoint 6 completed")
    stopped = place.weir("stop", "numbers", "--address", run.address)
    assert stopped.returncode == 0, stopped.stderr
    assert run.wait() == 0, run.story()
    run.assert_no_stack_trace()
    [savepoint] = far.fs.list(f"{far.full}/savepoints")

    inspected = place.weir("inspect", f"{far.root}/savepoints/{savepoint.name}")
    assert f"{far.full}/savepoints/{savepoint.name}" in inspected.stdout, inspected.stderr
    shown = place.weir("checkpoints", "numbers", "--directory", directory)
    assert shown.returncode == 0, shown.stderr

    source = f"{far.root}/savepoints/{savepoint.name}"
    done = place.finish(
        "--from-savepoint", source, *settings, environment=far.environment("bounded")
    )
    assert "hdfs:///" not in done.output, "one spelling"
    far.fetch("out")
    place.assert_exact()


def test_a_second_driver_of_a_job_on_hdfs_is_refused_before_its_spark(far: FarPlace) -> None:
    """By the lease, which is read without a JVM."""
    place, settings = far.place, far.settings()
    far.land(1)
    running = far.environment("unbounded")
    run = place.start(*settings, environment=running)
    run.wait_for(r"checkpoint 1 completed")
    second = place.start(*settings, environment=running)
    assert f"is running in process {run.process.pid}" in second.error()
    assert "starting Spark" not in second.output
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.story()


def test_the_state_of_python_operators_on_hdfs_survives_a_kill(far: FarPlace) -> None:
    """Their workers keep it in the working directory, which no mount shares."""
    place, given = far.place, (*far.settings(), *far.arguments("bounded"))
    far.land(8)
    place.die_at("after-the-record", 3, *given, pipeline=ON_HADOOP)
    resumed = place.finish(*given, pipeline=ON_HADOOP)
    assert "recovered from checkpoint" in resumed.output, resumed.story()
    found = files_rows(far.fetch("out") / "ranks")
    assert_same(found, place.ranks(), "the ranks")
