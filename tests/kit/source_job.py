"""A source between its two halves without Spark: events, batches, checkpoints, kills, restores.

``FakeJob`` follows the protocol of operator events (MISSION C2 to C7): a checkpoint first lets the
coordinator take its snapshot, then has the readers handle all that was sent before it, then takes
their snapshots. Each batch runs in a process of its own if the test says so. What it keeps of a
checkpoint is what real ones keep: JSON and bytes.
"""

from __future__ import annotations

import copy
import pickle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir.core.types import OperatorId, Payload
from weir.json_values import read_back
from weir.operators.state.store import StateStore, decode_lists, redistributed
from weir.sources import Source
from weir.sources.coordinator import SourceCoordinator
from weir.sources.operator import ReaderReport, SourceOperator
from weir.sources.watermarks import Watermarks, lowest_of, slowest_of


@dataclass
class TaskContext:
    """``ReaderTaskContext`` of one subtask."""

    subtask: int
    parallelism: int
    output_schema: pa.Schema
    operator_id: OperatorId = "numbers"
    watermark_ms: int | None = None
    processing_time_ms: int = 0
    may_read: bool = True
    induced_over: int = 0
    slowest_ms: int | None = None
    sent: list[Payload] = field(default_factory=list)
    reported: ReaderReport | None = None
    #: What the process would leave behind if it died.
    left: str = ""

    def send_event_to_coordinator(self, event: Payload) -> None:
        self.sent.append(read_back(event))

    def report(self, report: ReaderReport) -> None:
        self.reported = report

    def trace(self, text: str) -> None:
        self.left = text


class EnumeratorRun:
    """``CoordinatorContext``: what the coordinator wants done waits until the job steps."""

    operator_id: OperatorId = "numbers"

    def __init__(self, parallelism: int) -> None:
        self.current_parallelism = parallelism
        self.sent: deque[tuple[int, Payload]] = deque()
        self.work: deque[Callable[[], None]] = deque()
        self.timers: deque[Callable[[], None]] = deque()
        self.failures: list[str] = []

    def send_event(self, subtask: int, event: Payload) -> None:
        assert 0 <= subtask < self.current_parallelism
        self.sent.append((subtask, read_back(event)))

    def fail_job(self, message: str) -> None:
        self.failures.append(message)

    def run_in_coordinator(self, function: Callable[[], None]) -> None:
        self.work.append(function)

    def call_async(
        self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]
    ) -> None:
        def run() -> None:
            try:
                result, error = work(), None
            except Exception as raised:
                result, error = None, raised
            then(result, error)

        self.work.append(run)

    def schedule(self, delay_ms: int, function: Callable[[], None]) -> None:
        self.timers.append(function)


class FakeGateway:
    """``SubtaskGateway`` of one subtask's attempt, whose events never fail."""

    def __init__(self, run: EnumeratorRun, subtask: int, attempt: int) -> None:
        self._run = run
        self.subtask = subtask
        self.attempt = attempt

    def send_event(self, event: Payload) -> Future[None]:
        self._run.send_event(self.subtask, event)
        return Future()


@dataclass(frozen=True)
class Checkpoint:
    """A completed checkpoint: the coordinator's state, and each subtask's lists and events."""

    number: int
    state: Payload
    lists: list[bytes]
    unacknowledged: list[tuple[int, Payload]]
    #: What the sinks had committed with it.
    rows: list[dict[str, Any]]


class FakeJob:
    """One source in ``parallelism`` subtasks."""

    def __init__(
        self,
        source: Source[Any],
        parallelism: int = 2,
        *,
        schema: pa.Schema,
        watermarks: Watermarks | None = None,
        available_now: bool = False,
    ) -> None:
        self.source = source
        self.available_now = available_now
        self.schema = schema
        self.watermarks = watermarks
        #: The rows emitted, those of a restored checkpoint included.
        self.rows: list[dict[str, Any]] = []
        self.now_ms = 1_000
        self._attempt = 0
        self._checkpoint = 0
        self.coordinator: SourceCoordinator[Any]
        self.restore(None, parallelism)

    # -- life

    def restore(self, checkpoint: Checkpoint | None, parallelism: int | None = None) -> None:
        """Forget everything since the checkpoint and begin an attempt in another driver."""
        if parallelism is not None:
            self.parallelism = parallelism
        lists = [] if checkpoint is None else [decode_lists(one) for one in checkpoint.lists]
        if lists and len(lists) != self.parallelism:
            lists = redistributed(lists, self.parallelism)
        self._states = [
            StateStore(lists[one] if lists else None, operator_id="numbers").dump_lists()
            for one in range(self.parallelism)
        ]
        self.rows = [] if checkpoint is None else list(checkpoint.rows)
        self._attempt += 1
        self._operators: list[SourceOperator[Any] | None] = [None] * self.parallelism
        self._contexts: list[TaskContext] = []
        self._reported: dict[int, ReaderReport] = {}
        #: Checkpoints up to this one are over for readers that induce them.
        self.induced_over = 0 if checkpoint is None else self._checkpoint
        self.run = EnumeratorRun(self.parallelism)
        self.coordinator = SourceCoordinator(self.source, available_now=self.available_now)
        self.coordinator.start(self.run)
        self.coordinator.reset_to_checkpoint(
            None if checkpoint is None else checkpoint.number,
            None if checkpoint is None else read_back(checkpoint.state),
        )
        for subtask in range(self.parallelism):
            gateway = FakeGateway(self.run, subtask, self._attempt)
            self.coordinator.execution_attempt_ready(subtask, self._attempt, gateway)
        #: Events on their way to the coordinator.
        self._to_coordinator: deque[tuple[int, Payload]] = deque(
            [] if checkpoint is None else checkpoint.unacknowledged
        )

    def coordinate(self) -> None:
        """Let the coordinator handle what has come, and do what waits."""
        while self._to_coordinator:
            subtask, event = self._to_coordinator.popleft()
            self.coordinator.handle_event_from_operator(subtask, self._attempt, event)
        while self.run.work:
            self.run.work.popleft()()

    def batch(self, *, may_read: bool = True, new_processes: bool = False) -> int:
        """One batch of all subtasks with the events sent so far; returns the number of rows."""
        events, self.run.sent = list(self.run.sent), deque()
        before = len(self.rows)
        slowest = slowest_of(one.time for one in self._reported.values())
        for subtask in range(self.parallelism):
            operator, context = self._subtask(subtask, fresh=new_processes)
            context.may_read, context.processing_time_ms = may_read, self.now_ms
            context.slowest_ms = slowest
            context.induced_over = self.induced_over
            for to, event in events:
                if to == subtask:
                    operator.handle_operator_event(event)
            for one in operator.end_batch():
                self.rows += one.to_pylist()
            self._states[subtask] = self._stores[subtask].dump_lists()
            self._to_coordinator.extend((subtask, event) for event in context.sent)
            context.sent.clear()
            assert context.reported is not None
            self._reported[subtask] = context.reported
        return len(self.rows) - before

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint; it completes at once."""
        self._checkpoint += 1
        state = read_back(self.coordinator.checkpoint_coordinator(self._checkpoint))
        self.batch()
        self.coordinator.notify_checkpoint_complete(self._checkpoint)
        return Checkpoint(
            self._checkpoint,
            state,
            list(self._states),
            list(self._to_coordinator),
            list(self.rows),
        )

    def step(self) -> int:
        """Coordinate, then run a batch."""
        self.coordinate()
        return self.batch()

    def finish(self, limit: int = 1_000) -> None:
        """Step until every reader has ended."""
        for _ in range(limit):
            if len(self.ended) == self.parallelism:
                return
            self.step()
        raise AssertionError(f"the readers {self.ended} of {self.parallelism} have ended")

    @property
    def ended(self) -> set[int]:
        """The readers that have no splits and will get none."""
        return {subtask for subtask, one in self._reported.items() if one.ended}

    @property
    def time(self) -> Any:
        """How far the source is in event time."""
        return lowest_of(one.time for one in self._reported.values())

    def wakes(self) -> list[int | None]:
        """When each reader wants to read again."""
        return [self._reported[one].wake_in_ms for one in sorted(self._reported)]

    def stand_at(self) -> list[int | None]:
        """The checkpoint at whose point each reader stands."""
        return [self._reported[one].stands_at for one in sorted(self._reported)]

    def splits(self) -> list[list[Payload]]:
        """The splits in each subtask's state."""
        stores = [StateStore(decode_lists(one), operator_id="numbers") for one in self._states]
        return [[kept["split"] for kept in one.list_state("splits").get()] for one in stores]

    # -- inside

    def _subtask(self, subtask: int, *, fresh: bool) -> tuple[SourceOperator[Any], TaskContext]:
        if not self._contexts:
            self._contexts = [
                TaskContext(one, self.parallelism, self.schema) for one in range(self.parallelism)
            ]
            self._stores = [StateStore()] * self.parallelism
        operator = self._operators[subtask]
        if operator is None or fresh:
            if operator is not None:
                operator.close()
            # As the workers get it.
            source = pickle.loads(pickle.dumps(self.source))
            operator = SourceOperator(copy.deepcopy(source), self.watermarks)
            self._contexts[subtask] = TaskContext(subtask, self.parallelism, self.schema)
            self._contexts[subtask].processing_time_ms = self.now_ms
            self._stores[subtask] = StateStore(
                decode_lists(self._states[subtask]), operator_id="numbers"
            )
            operator.open(self._contexts[subtask])
            operator.initialize_state(self._stores[subtask])
            self._operators[subtask] = operator
        return operator, self._contexts[subtask]
