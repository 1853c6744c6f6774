"""A Python worker is killed in the middle of a batch, and Spark tries its task again (P39).

A retried task is not a failed subtask: it begins again with the state and the events that its batch
began with, and what the killed worker has sent never leaves the batch. So each event still takes
effect once, in both directions, and the coordinator need not know.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.kit.place import Place, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.slow]

COUNT = 60

PIPELINE = """
import os
import signal
from pathlib import Path

import pyarrow as pa

import weir
from weir.coordinators import OperatorCoordinator
from weir.operators import Operator


class Numbers(OperatorCoordinator):
    def reset_to_checkpoint(self, checkpoint_id, state):
        assert checkpoint_id is None, "the job was restored"
        self.back = [0] * self.context.current_parallelism
        for number in range(COUNT):
            for subtask in range(self.context.current_parallelism):
                self.context.send_event(subtask, {"number": number})

    def handle_event_from_operator(self, subtask, attempt, event):
        with open("back.txt", "a") as file:
            print(subtask, event["back"], file=file)
        if event["back"] != self.back[subtask]:
            raise ValueError(f"{event} comes after {self.back}")
        self.back[subtask] += 1

    def checkpoint_coordinator(self, checkpoint_id):
        return {"back": list(self.back)}


class Keeper(Operator):
    output_schema = "subtask int, at long, number long"

    def initialize_state(self, state):
        self.got = state.list_state("got")

    def handle_operator_event(self, event):
        self.got.add(event["number"])
        self.context.send_event_to_coordinator({"back": event["number"]})
        if self.context.subtask == 1 and event["number"] == COUNT // 2:
            mark = Path(HERE, "killed")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def process_batch(self, batch):
        return []

    def finish(self):
        got = list(self.got.get())
        yield pa.RecordBatch.from_pydict(
            {
                "subtask": pa.array([self.context.subtask] * len(got), pa.int32()),
                "at": pa.array(range(len(got)), pa.int64()),
                "number": pa.array(got, pa.int64()),
            }
        )


def numbers(spark):
    return spark.readStream.schema("id long, ts timestamp").parquet("in")


job = weir.Job("retried", conf={"restart-strategy.type": "none"})
kept = job.source("numbers", numbers, bounded=True).process(
    "keep", Keeper(), coordinator=Numbers(), parallelism=2
)
kept.sink("out", weir.sinks.Files("out"))
"""


@pytest.mark.timeout(300)
def test_events_of_a_batch_whose_worker_is_killed_take_effect_once_in_both_directions(
    place: Place,
) -> None:
    """P39: with SIGKILL after half of the events are handled and sent back."""
    place.land(2)
    head = f"COUNT = {COUNT}\nHERE = {str(place.directory)!r}\n"
    pipeline: Path = place.write("pipeline.py", head + PIPELINE)
    run = place.start("--master", "local[2,4]", pipeline=pipeline)
    assert run.wait() == 0, run.story()
    assert (place.directory / "killed").exists()
    every = Counter((subtask, at, at) for subtask in range(2) for at in range(COUNT))
    assert files_rows(place.directory / "out") == every
    back = Counter((place.directory / "back.txt").read_text().splitlines())
    assert back == Counter(f"{subtask} {number}" for subtask, number, _ in every)
