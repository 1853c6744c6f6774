"""A worker process keeps the subtasks that it has run, so that the next batch need not restore them
(weir/subtasks/worker.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.operators.test_sent_events import context

from weir.errors import OperatorStateError, PipelineError, WeirError
from weir.operators import Operator
from weir.operators.state.store import StateStore
from weir.operators.state.timers import Timers
from weir.subtasks.messages import BatchOrder, SubtaskSetup
from weir.subtasks.worker import BatchRun, LocalStateFiles, WorkerProcess


class Counting(Operator):
    """Notes how often its instances are opened and closed."""

    transient = ("calls",)

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __deepcopy__(self, _: object) -> Counting:
        copy = Counting()
        copy.calls = self.calls
        return copy

    def open(self, context: Any) -> None:
        super().open(context)
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")


def new_process() -> WorkerProcess:
    return WorkerProcess(LocalStateFiles())


def order_of(directory: Path, batch: int, **changes: Any) -> BatchOrder:
    """What the driver orders for a batch without records. ``changes``: of it, or of its setup."""
    setup: dict[str, Any] = {
        "token": "t",
        "version": batch - 1,
        "runs": {},
        "directory": str(directory),
        "lists": {},
        "keyed": {},
        "groups": {},
        "restored_checkpoint_id": None,
        "state_memory_bytes": 1 << 20,
        "has_coordinator": True,
        "has_event_time": True,
        "now_ms": 1_000,
        "watermark_ms": None,
    }
    order: dict[str, Any] = {
        "batch": batch,
        "completed": (),
        "aborted": (),
        "events": {},
        "ended_inputs": (),
        "moves_to_ms": None,
        "finish": False,
        "barrier": None,
        "may_read": True,
        "induced_over": 0,
        "slowest_ms": None,
    }
    for name, value in changes.items():
        (setup if name in setup else order)[name] = value
    return BatchOrder(setup=SubtaskSetup(**setup), **order)


def test_two_subtasks_of_one_process_are_opened_once_and_stay(tmp_path: Path) -> None:
    """With more subtasks than worker processes each process runs several in every batch."""
    operator, process = Counting(), new_process()
    runs: dict[int, str] = {}
    for batch in range(3):
        order = order_of(tmp_path, batch, runs=dict(runs))
        for subtask in range(2):
            run = BatchRun(order, context(subtask, 2), process)
            one = run.begin(operator)
            assert list(run.batches(one, [])) == []
            runs[subtask] = run.handed_over(one).run
    assert operator.calls == ["open", "open"]


class Stuck(Counting):
    """Cannot be closed."""

    def __deepcopy__(self, _: object) -> Counting:
        copy = Stuck()
        copy.calls = self.calls
        return copy

    def close(self) -> None:
        super().close()
        raise RuntimeError("is closed already")


@pytest.mark.parametrize("other", [1, 0])
def test_a_subtask_of_another_attempt_harms_no_batch_when_it_is_closed(
    tmp_path: Path, other: int
) -> None:
    """Its error is logged: the batch does not need it, whichever subtask it runs."""
    operator, process = Stuck(), new_process()
    run = BatchRun(order_of(tmp_path, 0, token="before"), context(0, 2), process)
    run.handed_over(run.begin(operator))
    BatchRun(order_of(tmp_path, 0), context(other, 2), process).begin(operator)
    assert sorted(operator.calls) == ["close", "open", "open"]


class Timed(Operator):
    """Notes when the watermark moves, and emits nothing."""

    transient = ("seen",)

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None, int]] = []

    def __deepcopy__(self, _: object) -> Timed:
        return self

    def on_watermark(self, watermark_ms: int) -> None:
        context = self.context
        self.seen.append((watermark_ms, context.watermark_ms, context.processing_time_ms))


def test_an_operator_sees_the_watermark_when_it_moves(tmp_path: Path) -> None:
    """In between, the context has the one before."""
    operator, process, runs = Timed(), new_process(), dict[int, str]()
    for batch, (before, after) in enumerate([(None, None), (None, 7), (7, None), (7, 9)]):
        times = {"watermark_ms": before, "moves_to_ms": after, "now_ms": batch}
        order = order_of(tmp_path, batch, runs=dict(runs), token="timed", **times)
        run = BatchRun(order, context(0, 1), process)
        one = run.begin(operator)
        assert one.context.watermark_ms == before
        assert list(run.batches(one, [])) == []
        runs[0] = run.handed_over(one).run
    assert operator.seen == [(7, 7, 1), (9, 9, 3)]


class WithTimers(Operator):
    """Asks for timers, but could not handle one."""

    def initialize_state(self, state: StateStore) -> None:
        self._timers = state.event_timers()

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._timers.register(batch["key"], batch["at"])


@pytest.mark.parametrize(
    ("has_event_time", "error", "message"),
    [
        (True, PipelineError, "'score' asks for timers, but has no on_timer"),
        (
            False,
            OperatorStateError,
            "'score' asks for event-time timers, but its input has no event",
        ),
    ],
)
def test_timers_that_could_never_be_handled_are_refused_at_once(
    tmp_path: Path, has_event_time: bool, error: type[WeirError], message: str
) -> None:
    """Not when the first is due, which may be much later."""
    order = order_of(tmp_path, 0, has_event_time=has_event_time, token="refused")
    with pytest.raises(error, match=message):
        BatchRun(order, context(0, 1), new_process()).begin(WithTimers())


class Ringing(Operator):
    """Each timer of ``second`` sets one of ``first`` for a second before."""

    transient = ("fired",)

    def __init__(self) -> None:
        self.fired: list[tuple[str, int]] = []

    def __deepcopy__(self, _: object) -> Ringing:
        return self

    def initialize_state(self, state: StateStore) -> None:
        self._first = state.event_timers("first")
        self._second = state.event_timers("second")

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._second.register(batch["key"], batch["at"])

    def on_timer(self, timers: Timers, due: pa.RecordBatch) -> None:
        self.fired += [(timers.name, one) for one in due["time_ms"].to_pylist()]
        if timers is self._second:
            self._first.register(
                due["key"], pa.array([one - 1_000 for one in due["time_ms"].to_pylist()])
            )


def test_a_timer_in_the_past_fires_at_once(tmp_path: Path) -> None:
    """In the batch that registers it, though the watermark stands still, and whichever timer of the
    operator registers it."""
    operator = Ringing()
    order = order_of(tmp_path, 0, watermark_ms=5_000, token="ringing")
    run = BatchRun(order, context(0, 1), new_process())
    one = run.begin(operator)
    batch = pa.record_batch({"key": [1], "at": pa.array([4_000], pa.int64())})

    def records() -> Iterator[pa.RecordBatch]:
        one.state.begin_batch(batch["key"], pa.array([1], pa.int32()))
        yield batch

    assert list(run.batches(one, records())) == []
    assert operator.fired == [("second", 4_000), ("first", 3_000)]


class PreCommitting(Operator):
    """Notes what it could commit when it starts in a process."""

    transient = ("started",)

    def __init__(self) -> None:
        self.started: list[tuple[int | None, list[int]]] = []

    def __deepcopy__(self, _: object) -> PreCommitting:
        return self

    def initialize_state(self, state: StateStore) -> None:
        self._pending = state.list_state("pending")
        self.started.append((state.restored_checkpoint_id, self._pending.get()))

    def process_batch(self, batch: pa.RecordBatch) -> None:
        self._pending.add(7)


def test_an_operator_that_moves_knows_which_checkpoint_is_complete(tmp_path: Path) -> None:
    """The state that it takes along may be that of a checkpoint which never completes: it must not
    commit for that, as it would after a restore from it."""
    operator = PreCommitting()
    order = order_of(tmp_path, 0, restored_checkpoint_id=6)
    run = BatchRun(order, context(0, 1), new_process())
    one = run.begin(operator)
    assert list(run.batches(one, [pa.record_batch({"id": [1]})])) == []
    lists = {0: run.handed_over(one).lists}
    moved = order_of(tmp_path, 1, restored_checkpoint_id=6, lists=lists)
    BatchRun(moved, context(0, 1), new_process()).begin(operator)
    assert operator.started == [(6, []), (6, [7])]
