"""Some readers of a source have ended while others run: their state is kept (MISSION D4).

A task is one query, so no operator is ever partly finished: a subtask whose reader has nothing left
still runs in each batch. Flink refuses a checkpoint of an operator with union list state if a part
of its subtasks has finished; here every subtask is there to give its part.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from tests.kit import ranges as ranges_module
from tests.kit.live_job import LiveJob, metadata_of, settings
from tests.kit.place import Place, Rows, files_rows
from tests.kit.ranges import Ranges, ranges
from tests.kit.waiting import wait_until

import weir
from weir.core.status import JobStatus
from weir.operators import Operator
from weir.operators.state.store import StateStore

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.slow]

# Spark's workers do not have these modules.
for module in (sys.modules[__name__], ranges_module):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

SHORT, LONG = 4, 40


class Seen(Operator):
    """Keeps the numbers that it has seen in a union list, and leaves what it was restored with."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def initialize_state(self, state: StateStore) -> None:
        self._seen = state.union_list_state("seen")
        numbers = sorted(self._seen.get())
        if numbers:
            # Other processes may take the subtask over later.
            path = self._directory / f"{self.context.subtask}"
            with suppress(FileExistsError), path.open("x") as file:
                file.write(" ".join(map(str, numbers)))

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        for number in batch["n"].to_pylist():
            self._seen.add(number)
        return [batch]


def job_of(place: Place, source: Ranges, parallelism: int) -> weir.Job:
    job = weir.Job("ended")
    restored = place.directory / f"restored-{parallelism}"
    restored.mkdir()
    read = job.source("numbers", source, parallelism=parallelism)
    seen = read.process("seen", Seen(restored), parallelism=parallelism)
    seen.sink("out", weir.sinks.Files(str(place.directory / "out")))
    return job


@pytest.mark.timeout(300)
def test_the_state_of_subtasks_whose_readers_have_ended_is_kept(place: Place) -> None:
    """Each of three restored subtasks has what both had seen, and the splits are read on."""
    waits = Ranges(*ranges(SHORT, LONG))
    waits.there = SHORT + LONG // 2
    with LiveJob(job_of(place, waits, 2), settings(place)) as live:
        live.wait_for_records(waits.there)
        asked = {("request", 0), ("request", 1)}
        wait_until(
            lambda: sum(call in asked for call in waits.calls) == 3,
            "the reader of the short range has asked again, and was told that there are no more",
        )
        live.checkpoint()
        savepoint = live.gateway.stop_with_savepoint(None, drain=False).result().external_path
    flags = [
        one["fully_finished"]
        for task in metadata_of(Path(savepoint))["tasks"]
        for one in task["operators"]
    ]
    assert flags == [False, False, False]
    rest = Ranges(*ranges(SHORT, LONG))
    with LiveJob(job_of(place, rest, 3), settings(place), from_savepoint=savepoint) as live:
        assert live.result().status is JobStatus.FINISHED
    seen = " ".join(map(str, range(waits.there)))
    for subtask in range(3):
        assert (place.directory / "restored-3" / f"{subtask}").read_text() == seen
    numbers = Rows(row[0] for row in files_rows(place.directory / "out").elements())
    assert numbers == Rows(range(SHORT + LONG))
