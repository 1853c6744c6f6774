"""Events from operators to their coordinators."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from weir.errors import OperatorStateError
from weir.subtasks.context import Context


def context(subtask: int = 0, parallelism: int = 1) -> Context:
    return Context(
        operator_id="score",
        subtask=subtask,
        parallelism=parallelism,
        has_coordinator=True,
        output_schema=pa.schema([]),
    )


def test_an_event_is_as_it_was_when_it_was_sent() -> None:
    """Whatever the operator does to it afterwards."""
    one, event = context(), {"seen": [1]}
    one.send_event_to_coordinator(event)
    event["seen"].append(2)
    assert one.sent == [{"seen": [1]}]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"at": [float("nan")]}, r"JSON cannot represent nan (float) at ['at'][0]"),
        ({"by": {1: 2}}, r"JSON cannot represent the key 1 (int) at ['by']"),
        ({"pair": (1, 2)}, r"JSON cannot represent (1, 2) (tuple) at ['pair']"),
        ([1], "it is a list, not a map"),
    ],
)
def test_an_event_that_json_would_change_is_refused_by_its_place(event: Any, why: str) -> None:
    """The coordinator would get a different one, now or after a restore."""
    with pytest.raises(OperatorStateError) as refused:
        context().send_event_to_coordinator(event)
    expected = (
        f"Operator 'score' sent an event that cannot be stored, since {why}: make it a map of text,"
        " finite numbers"
    )
    assert str(refused.value).startswith(expected)
