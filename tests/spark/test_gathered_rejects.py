"""What the driver makes of the rows that tasks have set aside (weir/spark/rejects/gathered.py)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from weir.core.graph import GraphStep, StepKind
from weir.errors import PipelineError
from weir.spark.rejects.gathered import GatheredRejects
from weir.spark.rejects.observation import REJECTS, GuardedStep

STEP = GraphStep(name="price", kind=StepKind.TRANSFORM, inputs=("in",), on_error="bad")


def gathered(rows: list[tuple[int, int | None, str]], rows_max: int = 9) -> list[str]:
    """The rows of these that are set aside; each has its partition and its task."""
    observed = [
        {"partition": partition, "task": task, "error": "no", "row": row}
        for partition, task, row in rows
    ]
    metrics = SimpleNamespace(json=lambda: json.dumps({REJECTS: observed}))
    found = SimpleNamespace(isDefined=lambda: True, get=lambda: metrics)
    execution = SimpleNamespace(observedMetrics=lambda: SimpleNamespace(get=lambda _: found))
    streaming = SimpleNamespace(lastExecution=lambda: execution)
    running: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: streaming))
    step = GuardedStep(step=STEP, event_time=None, observation="rejects")
    no_jvm: Any = None
    rejects, _ = GatheredRejects(no_jvm, [step], rows_max).of_batch(running, ())
    return [one.row for one in rejects]


def test_equal_rows_of_one_task_are_all_set_aside() -> None:
    """An input may have a row twice."""
    assert gathered([(0, 7, "a"), (0, 7, "a"), (1, 8, "a")]) == ["a", "a", "a"]


def test_a_row_that_two_tasks_computed_is_set_aside_once() -> None:
    """As when a task ran again. One that did not come to its end has fewer rows."""
    again = [(0, 7, "a"), (0, 7, "b"), (1, 8, "c"), (0, 9, "a"), (0, 9, "b"), (0, 9, "d")]
    assert gathered(again) == ["a", "b", "d", "c"]


def test_rows_that_do_not_all_fit_fail_the_batch_though_some_came_twice() -> None:
    """Which of them were left out cannot be known."""
    with pytest.raises(PipelineError, match="more than 2 rows of one batch"):
        gathered([(0, 7, "a"), (0, 7, "b"), (0, 9, "a")], rows_max=2)


def test_rows_that_the_driver_computed_itself_have_no_task() -> None:
    """Spark's optimizer evaluates projections of rows that it has already."""
    assert gathered([(0, None, "a"), (0, None, "b")]) == ["a", "b"]
