"""When a query with Python operators runs a batch for a timer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.clock import ManualClock
from tests.operators.test_source_readers import reported

from weir.core.graph import ChainEnd, GraphStep, StepKind, Vertex
from weir.operators import Operator
from weir.storage.local import LocalFileSystem
from weir.subtasks.chain import ENTRY, OperatorChain, ProcessStep
from weir.subtasks.messages import BatchResult


def result() -> BatchResult:
    return reported(None, rows=0)


@pytest.mark.parametrize("parallelism", [1, 2, 6])
def test_timers_of_subtasks_removed_by_rescaling_are_not_due_for_ever(
    tmp_path: Path, parallelism: int
) -> None:
    """They are due in the first batch, and then where their keys went."""
    kept = {
        "parallelism": 4,
        "lists": {},
        "groups": {},
        "timers": {str(one): {"event": None, "processing": 900 + one} for one in range(4)},
    }
    subtasks: Any = SimpleNamespace(
        results=lambda name, batch: {one: result() for one in range(parallelism)}
    )
    step = ProcessStep(
        state_memory_bytes=1 << 20,
        operator=Operator(),
        parallelism=parallelism,
        key_by=(),
        has_coordinator=False,
    )
    vertex = Vertex(
        name="ring",
        steps=(GraphStep(name="ring", kind=StepKind.PROCESS, inputs=("in",)),),
        sinks=(),
        sink_names=(),
        sink_tags=(),
        bounded=False,
        end=ChainEnd.ONLY_SINKS,
        inputs=("in",),
    )
    chain = OperatorChain(vertex, {"ring": step}, subtasks=subtasks, token="t", clock=ManualClock())
    directory: Any = SimpleNamespace(
        fs=LocalFileSystem(), path=str(tmp_path), file=lambda key: f"{tmp_path}/{key}"
    )
    (tmp_path / ENTRY).write_text(json.dumps({"ring": kept}))
    chain.open(directory, 7, 3)
    assert chain.timer_in_ms == 0
    chain.end_batch(8)
    assert chain.timer_in_ms is None
