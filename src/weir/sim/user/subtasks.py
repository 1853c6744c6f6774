"""The worker processes of a simulated driver, and the subtasks that run in them.

Each worker has loaded the pipeline by itself, so nothing but state reaches another one. Batches of
a subtask go to any of them, and sometimes a worker is replaced by a new one. Some batches run
twice, as after a failure of Spark's: in the worker that has the subtask, and in a new one that
restores it; either run may count, and both workers go on. Law: both emit the same rows, send the
same events and leave the same state, or the operator keeps something that is not in its state.
Half of these batches come in another order the second time, as after a shuffle. Then the runs
differ, and must not be mixed. Calm runs reorder all batches, to find out what depends on the order.
In some drivers single subtasks fail on their way through a batch, and are tried again, perhaps in
another worker: nothing of the first try may be left.
"""

from __future__ import annotations

import random as global_random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import IOBase
from random import Random
from typing import Any

import pyarrow as pa

from weir.core.types import OperatorId
from weir.operators.base import Operator
from weir.operators.state.memory import StateMemory
from weir.operators.state.store import decode_lists
from weir.runtime.failures import describe
from weir.sim.engine.disk import Disk, DiskFile
from weir.sim.engine.snapshots import LostStateError
from weir.sim.user.interleaving import Interleaving
from weir.sources.operator import SourceOperator
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
    CloseCall,
    SnapshotCall,
    encoded,
    received,
)
from weir.subtasks.worker import SubtaskFunction, WorkerProcess

#: How many workers there are, how often one is replaced, and how often a batch runs twice.
_WORKERS = 2
_REPLACED = 0.05
_TWICE = 0.15
#: The share of drivers whose subtasks fail, and of their batches that do.
_FAILING = 0.3
_FAILS = 0.1

Load = Callable[[], Mapping[OperatorId, Operator]]


class DiskStateFiles:
    """``StateFiles`` on the simulated disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def create(self, directory: str, file: str) -> IOBase:
        """A file that is written when it is closed, without a sync."""
        return DiskFile(self._disk, f"{directory}/{file}", durable=False)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Part of a file. Raises ``LostStateError`` if it is gone."""
        if path not in self._disk.files:
            raise LostStateError(f"the state {path} is gone")
        return self._disk.files[path][offset : offset + length]

    def mapped(self, path: str, offset: int, length: int, memory: StateMemory) -> bytes:
        """Part of a file. Raises ``LostStateError`` if it is gone."""
        return self.read(path, offset, length)


@dataclass(frozen=True, eq=False)
class Worker:
    """One worker process."""

    process: WorkerProcess
    operators: Mapping[OperatorId, Operator]


class Workers:
    """The worker processes of one driver."""

    def __init__(
        self,
        *,
        load: Load,
        disk: Disk,
        random: Random,
        failures: Random,
        interleaving: Interleaving,
        broken: Callable[[str], None],
        calm: bool,
    ) -> None:
        """``load`` loads the operators, as a new process does.

        ``failures`` draws which subtasks fail. ``calm``: nothing is replaced, fails or runs twice.
        """
        self._load = load
        self._files = DiskStateFiles(disk)
        self.calm = calm
        self.random = random
        self.failures = failures
        #: The share of batches that fail.
        self.fails = 0.0 if calm or failures.random() >= _FAILING else _FAILS
        self.interleaving = interleaving
        self.broken = broken
        self._workers: list[Worker] = []

    def any(self) -> Worker:
        """Some worker, perhaps a new one."""
        if len(self._workers) < (1 if self.calm else _WORKERS):
            self._workers.append(self.new())
        elif not self.calm and self.random.random() < _REPLACED:
            self._workers[self.random.randrange(_WORKERS)] = self.new()
        return self.random.choice(self._workers)

    def new(self) -> Worker:
        """A new worker."""
        process = WorkerProcess(self._files, lambda: f"{self.random.getrandbits(64):016x}")
        return Worker(process, self._load())

    def go_on_with(self, *workers: Worker) -> None:
        """Go on with these."""
        self._workers = list(workers)

    @property
    def live(self) -> Sequence[Worker]:
        """Those that there are."""
        return self._workers

    def reordered(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The batches and their rows in another order."""
        shuffled = [
            one.take(pa.array(self.random.sample(range(one.num_rows), one.num_rows), pa.int64()))
            for one in batches
        ]
        self.random.shuffle(shuffled)
        return shuffled

    def replace(self, worker: Worker) -> Worker:
        """A new worker in the place of one that is gone."""
        new = self.new()
        self._workers = [new if one is worker else one for one in self._workers]
        return new

    @property
    def runs_twice(self) -> bool:
        """Whether this batch of a subtask does."""
        return not self.calm and self.random.random() < _TWICE


class SimSubtasks:
    """Implements ``weir.subtasks.chain.SubtaskPort`` for one query."""

    def __init__(
        self, workers: Workers, functions: Callable[[OperatorId, Operator], SubtaskFunction]
    ) -> None:
        """``functions`` makes the function that runs a step's operator."""
        self._workers = workers
        self._functions = functions
        self._orders: dict[OperatorId, BatchOrder] = {}
        self._results: dict[OperatorId, dict[int, BatchResult]] = {}

    def order(self, name: OperatorId, order: BatchOrder) -> None:
        """Keep the order for the batch."""
        self._orders[name] = received(encoded(order), BATCH_ORDERS, name)
        self._results[name] = {}

    def results(self, name: OperatorId, batch: int) -> dict[int, BatchResult]:
        """The results of the batch."""
        return self._results.pop(name)

    def call(self, name: OperatorId, call: Call) -> dict[int, CallResult]:
        """Call subtasks where they are, or restore them somewhere."""
        call = received(encoded(call), CALLS, name)
        if isinstance(call, AbandonCall):
            return {}
        found: dict[int, CallResult] = {}
        if call.restore is None:
            for worker in list(self._workers.live):
                for subtask in worker.process.current(name, call.setup):
                    found[subtask] = self._called(worker, name, call, subtask)
        else:
            for subtask in call.restore:
                found[subtask] = self._called(self._workers.any(), name, call, subtask)
        return found

    def run(
        self, name: OperatorId, subtask: int, batches: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Run a subtask's part of the batch; return what it emits."""
        setup = self._orders[name].setup
        worker = next(
            (one for one in self._workers.live if subtask in one.process.current(name, setup)),
            None,
        )
        if worker is None or self._workers.random.random() < 0.2:
            worker = self._workers.any()
        if self._workers.calm:
            batches = self._workers.reordered(batches)
        if self._workers.failures.random() < self._workers.fails:
            worker = self._failed(worker, name, subtask, batches)
        if not self._workers.runs_twice:
            emitted, result = self._run(worker, name, subtask, batches)
            self._results[name][subtask] = result
            return emitted
        other, same_order = self._workers.new(), self._workers.random.random() < 0.5
        again = batches if same_order else self._workers.reordered(batches)
        with self._workers.interleaving.undisturbed():
            chance = global_random.getstate()
            first = self._run(worker, name, subtask, batches)
            after = global_random.getstate()
            global_random.setstate(chance)
            try:
                second = self._run(other, name, subtask, again)
            except Exception as error:
                if same_order:
                    self._break(name, subtask, f"fails with {describe(error)}")
                second = first
            global_random.setstate(after)
        if same_order:
            self._compare(name, subtask, (worker, *first), (other, *second))
        emitted, result = first
        if second is not first and self._workers.random.random() < 0.5:
            emitted, result = second
            self._workers.go_on_with(worker, other)
        self._results[name][subtask] = result
        return emitted

    def _failed(
        self, worker: Worker, name: OperatorId, subtask: int, batches: Sequence[pa.RecordBatch]
    ) -> Worker:
        """Fail on the way through a batch; return the worker that tries again."""
        random = self._workers.failures
        read = random.randrange(len(batches) + 1)

        def given() -> Iterator[pa.RecordBatch]:
            yield from batches[:read]
            raise OSError("simulated failure of a subtask")

        chance = global_random.getstate()
        with self._workers.interleaving.undisturbed(), suppress(OSError):
            self._run(worker, name, subtask, given())
        global_random.setstate(chance)
        return self._workers.replace(worker) if random.random() < 0.5 else worker

    def _run(
        self, worker: Worker, name: OperatorId, subtask: int, batches: Iterable[pa.RecordBatch]
    ) -> tuple[list[pa.RecordBatch], BatchResult]:
        results: list[BatchResult] = []
        function = self._functions(name, worker.operators[name])
        emitted = list(
            function.batch(
                worker.process, self._orders[name], subtask, iter(batches), results.append
            )
        )
        return emitted, received(encoded(results[0]), BATCH_RESULTS, name)

    def _called(
        self, worker: Worker, name: OperatorId, call: SnapshotCall | CloseCall, subtask: int
    ) -> CallResult:
        function = self._functions(name, worker.operators[name])
        result = function.call(worker.process, call, subtask)
        return received(encoded(result), CALL_RESULTS, name)

    def _compare(
        self,
        name: OperatorId,
        subtask: int,
        first: tuple[Worker, list[pa.RecordBatch], BatchResult],
        second: tuple[Worker, list[pa.RecordBatch], BatchResult],
    ) -> None:
        if first[2] is second[2]:
            return
        # In any order: that of timers which are due at one time is not promised.
        rows = [
            sorted((row for batch in one[1] for row in batch.to_pylist()), key=repr)
            for one in (first, second)
        ]
        if rows[0] != rows[1]:
            self._break(name, subtask, f"emits {_some(rows[1])} instead of {_some(rows[0])}")
        states = [_state(one[0].process, name, subtask) for one in (first, second)]
        for kept in sorted(states[0].keys() | states[1].keys()):
            expected, found = (state.get(kept) for state in states)
            if found != expected:
                self._break(
                    name,
                    subtask,
                    f"leaves the state {kept!r} as {_some(found)} instead of {_some(expected)}",
                )
        is_source = isinstance(first[0].operators[name], SourceOperator)
        if not is_source and first[2].sent != second[2].sent:
            self._break(
                name,
                subtask,
                f"sends {_some(second[2].sent)} instead of {_some(first[2].sent)}",
            )

    def _break(self, name: OperatorId, subtask: int, what: str) -> None:
        self._workers.broken(
            f"operator {name!r}: what a subtask does must follow from its state, its records and"
            f" its events, but when a batch of subtask {subtask} runs again in a new process, it"
            f" {what}: it keeps something outside of its state"
        )


def _state(process: WorkerProcess, name: OperatorId, subtask: int) -> dict[str, Any]:
    """All states of a subtask, as they are after a batch."""
    store = process.state(name, subtask)
    if store is None:
        return {}
    found: dict[str, Any] = {
        one: list(saved.items) for one, saved in decode_lists(store.dump_lists()).items()
    }
    for one, keyed in store.keyed.items():
        found[one] = sorted(map(repr, _items(keyed.items())))
    for one, raw in store.raw.items():
        found[one] = {group: raw.get(group) for group in raw.groups}
    return found


def _items(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from batch.to_pylist()


def _some(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
