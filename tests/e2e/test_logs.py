"""What the code of a job logs and prints is in the log of ``weir run``, with its step and subtask.

The code runs in Spark's Python workers (operators) and in the driver (functions of steps, sinks,
coordinators, hooks). Everything else that the JVM writes must not break the form of the log.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.kit.place import Place

pytestmark = pytest.mark.spark

PIPELINE = """
import logging
import sys

import weir
from weir.coordinators import OperatorCoordinator
from weir.operators import Operator
from weir.sinks import ForeachEpoch

log = logging.getLogger("talk")


class Talking(Operator):
    def process_batch(self, batch):
        if batch.num_rows:
            print("worker printed")
            print("worker error", file=sys.stderr)
            log.info("worker logged")
        return [batch]

    def snapshot_state(self, context):
        print("worker snapshot", end="")


class Coordinator(OperatorCoordinator):
    def reset_to_checkpoint(self, checkpoint_id, state):
        print("coordinator printed")

    def handle_event_from_operator(self, subtask, attempt, event):
        pass

    def checkpoint_coordinator(self, checkpoint_id):
        return {}


class Hook(weir.MasterHook):
    identifier = "offsets"

    def trigger(self, checkpoint_id, timestamp_ms):
        log.info("hook logged")

    def restore(self, checkpoint_id, state):
        pass


def read(spark):
    print("function printed")
    return spark.readStream.schema("id long, ts timestamp").parquet("in")


def write(frame, epoch):
    print("sink printed")


print("loaded")
job = weir.Job("talk")
job.master_hook(Hook())
talking = job.source("numbers", read, bounded=True).process(
    "talking", Talking(), coordinator=Coordinator(), parallelism=2
)
talking.sink("told", ForeachEpoch(write, staging="staged"))
"""

#: What is said, and where.
SAID = {
    "worker printed": ("talking", "talking", "talking/"),
    "worker error": ("talking", "talking", "talking/"),
    "worker logged": ("talking", "talking", "talking/"),
    "worker snapshot": ("talking", "talking", "talking/"),
    "coordinator printed": (None, "talking", "talking"),
    "hook logged": (None, "offsets", "offsets"),
    "function printed": ("talking", "numbers", "numbers"),
    "sink printed": (None, "told", "told"),
}


def pipeline(place: Place) -> Path:
    place.land(2)
    return place.write("talk.py", PIPELINE)


@pytest.mark.slow
def test_in_json_every_line_is_an_object_with_its_step_and_subtask(place: Place) -> None:
    """Of driver, workers and JVM; standard output stays empty."""
    run = place.finish("--log-format", "json", pipeline=pipeline(place))
    assert run.printed == ""
    found = [json.loads(line) for line in run.errors.splitlines()]
    by_message = {one["message"]: one for one in found}
    for message, (task, step, _) in SAID.items():
        one = by_message[message]
        assert (one.get("task"), one.get("step")) == (task, step), one
        assert ("subtask" in one) == message.startswith("worker"), one
    assert {one["subtask"] for one in found if one["message"] == "worker snapshot"} == {0, 1}
    assert by_message["loaded"]["logger"] == "stdout"
    assert by_message["worker logged"]["logger"] == "talk"
    assert by_message["Task talking is RUNNING."]["task"] == "talking"
    assert any(one.get("checkpoint") == 1 for one in found)
    assert "has finished" in found[-1]["message"]


@pytest.mark.slow
def test_in_text_a_line_has_its_time_its_level_and_its_step(place: Place) -> None:
    """Standard output is the program's."""
    run = place.finish(pipeline=pipeline(place))
    assert run.printed.splitlines() == ["loaded"]
    assert "has finished" in run.errors.splitlines()[-1]
    for message, (_, _, label) in SAID.items():
        line = next(one for one in run.errors.splitlines() if one.endswith(f": {message}"))
        told = rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}} INFO  \[{label}\d?\] \w+: {message}"
        assert re.fullmatch(told, line), line
