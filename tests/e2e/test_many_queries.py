"""Forty queries in one job on any number of cores: one source, and 39 readers of its channel."""

from __future__ import annotations

import json
import re

import pytest
from tests.kit.place import PIPELINE, Place, assert_same, files_rows
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

READERS = 39

MANY = f"""
for number in range({READERS}):
    part = copied.transform(
        f"part_{{number}}",
        lambda frame, number=number: frame.filter(f"id % {READERS} = {{number}}"),
    )
    part.sink(f"rows_{{number}}", weir.sinks.Files(f"out/{{number}}"))
"""


def test_forty_queries_come_up_are_checkpointed_drained_and_stopped(place: Place) -> None:
    """No query has a separate process, every reader gets its rows exactly once, and the drain
    reaches all of them."""
    head, _, _ = PIPELINE.read_text().partition("copied.sink")
    pipeline = place.write("many.py", head + MANY)
    place.land(4)
    run = place.start(
        "--conf",
        "execution.checkpointing.interval=2s",
        pipeline=pipeline,
        environment={"NUMBERS": "unbounded"},
    )

    def rows_out() -> int:
        return sum(
            files_rows(place.directory / "out" / str(number)).total() for number in range(READERS)
        )

    wait_until(lambda: rows_out() == place.rows().total(), "every row is committed")
    assert not [
        one
        for one in run.processes()
        if "python_streaming_source_runner" in " ".join(one.cmdline())
    ]
    plan = json.loads(place.weir("plan", str(pipeline), "--json").stdout)
    assert len(plan["vertices"]) == READERS + 1
    place.land(2)
    stopped = place.weir("stop", "numbers", "--drain", "--address", run.address)
    assert re.search(r"Savepoint: (\S+)", stopped.stdout), stopped.stderr + run.story()
    assert run.wait() == 0, run.story()
    run.assert_no_stack_trace()
    assert "FAILING: " not in run.output, run.story()
    read = [files_rows(place.directory / "out" / str(number)) for number in range(READERS)]
    for number, rows in enumerate(read):
        assert {row[0] % READERS for row in rows} <= {number}
    everything = sum(read[1:], read[0])
    # What landed just before the stop may come after its drain.
    assert everything.total() >= 4 * 40
    assert_same(everything, everything & place.rows(), "what was committed")
