"""A chain of operators whose subtasks run in this process, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tests.kit.clock import ManualClock

from weir.core.graph import ChainEnd, GraphStep, StepKind, Vertex
from weir.core.messages.task import AnswerPlanning, StartDrain, TakeSnapshot
from weir.core.types import SnapshotKind
from weir.operators import Operator
from weir.storage.file_systems import FileSystems
from weir.subtasks.chain import ENTRY, OperatorChain, ProcessStep
from weir.subtasks.messages import (
    BATCH_ORDERS,
    BATCH_RESULTS,
    CALL_RESULTS,
    CALLS,
    AbandonCall,
    BatchOrder,
    BatchResult,
    Call,
    CallResult,
    encoded,
    received,
)
from weir.subtasks.worker import AnyStateFiles, SubtaskFunction, WorkerProcess

SCHEMA = pa.schema([("id", pa.int64())])


class LocalSubtasks:
    """Implements ``weir.subtasks.chain.SubtaskPort``: one process runs all subtasks."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self.process = WorkerProcess(AnyStateFiles())
        self.orders: dict[str, BatchOrder] = {}
        #: The records of each batch, for each operator.
        self.records: list[pa.RecordBatch] = []
        self._functions = {
            name: SubtaskFunction(
                name, one, output_schema=SCHEMA, side_outputs={}, parallelism=1, keys={}
            )
            for name, one in operators.items()
        }

    def order(self, name: str, order: BatchOrder) -> None:
        self.orders[name] = received(encoded(order), BATCH_ORDERS, name)

    def results(self, name: str, batch: int) -> dict[int, BatchResult]:
        results: list[BatchResult] = []
        function = self._functions[name]
        list(function.batch(self.process, self.orders[name], 0, self.records, results.append))
        return {0: received(encoded(results[0]), BATCH_RESULTS, name)}

    def call(self, name: str, call: Call) -> dict[int, CallResult]:
        call = received(encoded(call), CALLS, name)
        if isinstance(call, AbandonCall):
            return {}
        here = self.process.current(name, call.setup) if call.restore is None else call.restore
        answers = {one: self._functions[name].call(self.process, call, one) for one in here}
        return {one: received(encoded(two), CALL_RESULTS, name) for one, two in answers.items()}


class LocalChain:
    """A chain with one subtask per operator, in a directory."""

    def __init__(
        self, directory: object, *operators: Operator, timed: bool = False, version: int = -1
    ) -> None:
        """``directory`` is a path or URI. The operators are named ``a``, ``b``, and so on."""
        named = dict(zip("abc", operators, strict=False))
        self.subtasks = LocalSubtasks(named)
        self._fs = FileSystems()(str(directory))
        self._directory: Any = SimpleNamespace(fs=self._fs, file=lambda key: f"{directory}/{key}")
        self._entry = f"{directory}/{ENTRY}"
        steps = tuple(GraphStep(name=name, kind=StepKind.PROCESS, inputs=("in",)) for name in named)
        vertex = Vertex(
            name=steps[-1].name,
            steps=steps,
            sinks=(),
            sink_names=(),
            sink_tags=(),
            bounded=False,
            end=ChainEnd.ONLY_SINKS,
            inputs=("in",),
        )
        self.chain = OperatorChain(
            vertex,
            {
                name: ProcessStep(
                    state_memory_bytes=1 << 20,
                    operator=one,
                    parallelism=1,
                    key_by=(),
                    has_coordinator=True,
                )
                for name, one in named.items()
            },
            subtasks=self.subtasks,
            token=f"from {version}",
            clock=ManualClock(),
        )
        for name in named if timed else ():
            self.chain.add_timed(name)
        self.version = version
        self.chain.open(self._directory, version, None if version < 0 else 1)

    def batch(self, *, finish: bool = False) -> None:
        """A batch, without records unless the subtasks were given some."""
        effect: AnswerPlanning | StartDrain = (
            StartDrain(vertex="v", position=self.version) if finish else AnswerPlanning(call=1)
        )
        self.chain.take_orders(effect)
        self.version += 1
        self.chain.begin_batch(self.version)
        self.chain.end_batch(self.version)

    def snapshot(self, number: int, *, finished: bool = False, position: int | None = None) -> None:
        """Take a snapshot, and keep its entry where a restore finds it."""
        entries, _ = self.chain.snapshot(
            TakeSnapshot(
                vertex="v",
                checkpoint_id=number,
                kind=SnapshotKind.CHECKPOINT,
                timestamp_ms=0,
                target=None,
                position=self.version if position is None else position,
                finished=finished,
                committables=(),
            )
        )
        self._fs.write(self._entry, entries[ENTRY].encode())

    def entry(self) -> dict[str, Any]:
        """The kept entry, by operator."""
        kept: dict[str, Any] = json.loads(self._fs.read(self._entry))
        return kept

    def changed_entry(self, **changes: Any) -> None:
        """Write other values into the kept entry of operator ``a``."""
        kept = self.entry()
        kept["a"] |= changes
        self._fs.write(self._entry, json.dumps(kept).encode())
