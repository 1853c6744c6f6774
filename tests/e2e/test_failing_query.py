"""A failing query: the job is restored from its newest completed checkpoint, or fails for good."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.place import PIPELINE, Place

pytestmark = pytest.mark.spark

FILES = 9

#: Placed before the copies: raises in the sixth file while the file ``healed`` does not exist.
PICKY = """
import pathlib

HEALED, ONCE = pathlib.Path({healed!r}), {once}

def picky(batches):
    for batch in batches:
        if 220 in batch.column("id").to_pylist() and not HEALED.exists():
            if ONCE:
                HEALED.touch()
            raise ValueError("the number 220 is not to my taste")
        yield batch

copied = copied.transform("picky", lambda frame: frame.mapInArrow(picky, frame.schema))
"""


def failing_pipeline(place: Place, *, once: bool) -> Path:
    """The pipeline with a function that fails before the copies; with ``once`` it heals itself."""
    steps, sink, sinks = PIPELINE.read_text().partition("copied.sink")
    picky = PICKY.format(healed=str(place.directory / "healed"), once=once)
    return place.write("pipeline.py", f"{steps}{picky}{sink}{sinks}")


@pytest.mark.slow
def test_a_query_that_fails_once_is_restored_and_the_result_is_exact(place: Place) -> None:
    """The function raises once: the output has the cause and the restored checkpoint; every sink is
    exact."""
    place.land(FILES)
    pipeline = failing_pipeline(place, once=True)
    settings = ("restart-strategy.type=fixed-delay", "restart-strategy.fixed-delay.delay=100ms")
    run = place.finish(*(word for one in settings for word in ("--conf", one)), pipeline=pipeline)
    assert run.output.count("the number 220 is not to my taste") == 1
    where = f"(in picky, {pipeline}, line "
    assert (
        f"FAILING: Task 'picky' failed: ValueError: the number 220 is not to my taste {where}"
        in run.output
    )
    assert "; step 'picky'; batch 5; log: " in run.output
    run.assert_no_stack_trace()
    before, _, after = run.output.partition("FAILING: Task 'picky' failed")
    assert "recovered from checkpoint" not in before
    assert "recovered from checkpoint" in after
    place.assert_exact()


@pytest.mark.slow
def test_a_query_that_fails_without_a_restart_strategy_fails_the_job(place: Place) -> None:
    """With restart-strategy.type none: exit code 1 with the cause; once healed, the job resumes."""
    place.land(FILES)
    pipeline = failing_pipeline(place, once=False)
    run = place.start("--conf", "restart-strategy.type=none", pipeline=pipeline)
    assert "the number 220 is not to my taste" in run.error()
    place.write("healed", "")
    assert "recovered from checkpoint" in place.finish(pipeline=pipeline).output
    place.assert_exact()
