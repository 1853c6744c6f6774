"""A job whose only storage is an S3 server: killed, stopped with a savepoint, restored, ended.

``s3:`` for checkpoints and savepoints, or ``s3a:``; ``s3a:`` for the input, the working directory
and the sinks.
"""

from __future__ import annotations

import random
import re

import pytest
from tests.cluster.s3.far_place import PIPELINE, FarPlace
from tests.cluster.s3.server import S3Server
from tests.kit.place import Place
from tests.soak.deaths import kill_executor

pytestmark = [pytest.mark.cluster, pytest.mark.kill]


@pytest.fixture
def far(s3: S3Server, place: Place) -> FarPlace:
    """Below a directory that is named after the test."""
    return FarPlace(s3, place)


def test_a_killed_job_on_s3_goes_on_and_its_savepoint_is_restored(far: FarPlace) -> None:
    """Every row is there once, and the short commands read the job without Spark."""
    place, settings = far.place, far.settings()
    how = {"environment": {**far.environment, "NUMBERS": "unbounded"}, "pipeline": PIPELINE}
    far.land(8)
    place.die_at("within-one-commit", 2, *settings, **how)

    directory = f"{far.root}/checkpoints"
    listed = place.weir("list", directory)
    assert "far" in listed.stdout, listed.stderr
    shown = place.weir("checkpoints", "far", "--directory", directory)
    assert shown.returncode == 0, shown.stderr

    run = place.start(*settings, **how)
    run.wait_for(r"recovered from checkpoint")
    run.wait_for(r"checkpoint \d+ completed")
    stopped = place.weir("stop", "far", "--address", run.address)
    assert stopped.returncode == 0, stopped.stderr
    assert run.wait() == 0, run.story()
    run.assert_no_stack_trace()
    savepoint = re.search(rf"{far.root}/savepoints/\S+", stopped.stdout)
    assert savepoint is not None, stopped.stdout
    inspected = place.weir("inspect", savepoint[0])
    assert savepoint[0] in inspected.stdout, inspected.stderr

    far.land(2)
    last = place.start("--from-savepoint", savepoint[0], *settings, **how)
    last.wait_for(r"checkpoint \d+ completed")
    far.wait_for_all()
    drained = place.weir("stop", "far", "--drain", "--address", last.address)
    assert drained.returncode == 0, drained.stderr
    assert last.wait() == 0, last.story()
    far.assert_exact()
    assert far.local_files() == []


def test_an_executor_that_dies_leaves_state_on_s3_from_which_another_goes_on(
    far: FarPlace,
) -> None:
    """That of windows, and that of a Python operator's workers."""
    place, settings = far.place, far.settings()
    how = {"environment": far.environment, "pipeline": PIPELINE}
    far.land(10)
    run = place.start("--master", "local-cluster[2,1,1024]", *settings, **how)
    run.wait_for(r"checkpoint 2 completed")
    assert kill_executor(run, random.Random(1))
    assert run.wait() == 0, run.story()
    far.assert_exact()


def test_checkpoints_on_s3a_are_as_exact_and_are_read_without_spark(far: FarPlace) -> None:
    """By Hadoop's client in the job, and by obstore in the short commands."""
    place, settings = far.place, far.settings(checkpoints=far.hadoop)
    how = {"environment": far.environment, "pipeline": PIPELINE}
    far.land(6)
    place.die_at("after-the-record", 3, *settings, **how)
    directory = f"{far.hadoop}/checkpoints"
    assert "far" in place.weir("list", directory).stdout
    shown = place.weir("checkpoints", "far", "--directory", directory)
    newest = re.search(rf"{directory}/\S+/chk-3", shown.stdout)
    assert newest is not None, shown.stderr
    assert newest[0] in place.weir("inspect", newest[0]).stdout
    resumed = place.finish(*settings, **how)
    assert "recovered from checkpoint" in resumed.output, resumed.story()
    far.assert_exact()
