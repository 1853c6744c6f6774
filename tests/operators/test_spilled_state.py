"""Keyed state beyond its memory (operators/state/memory.py), and what leaves its checkpoints."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.disk import broken_call
from tests.operators.layers import next_layer
from tests.operators.test_sent_events import context
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.errors import OperatorStateError
from weir.operators import Operator
from weir.operators.state.keyed import KeyedState
from weir.operators.state.memory import StateMemory
from weir.operators.state.store import StateStore
from weir.operators.state.types import Layer
from weir.subtasks.messages import LayerLocation
from weir.subtasks.worker import BatchRun

MANY = 300_000


def filled(memory: StateMemory, kind: pa.DataType) -> KeyedState:
    """A state with values of many keys."""
    state = KeyedState("s", kind, None if pa.types.is_string(kind) else 0, memory=memory)
    for start in range(0, MANY, 50_000):
        keys = pa.array(np.arange(start, start + 50_000))
        state.begin_batch(keys, keys.cast(pa.int32(), safe=False))
        state.put(keys, keys.cast(kind))
    return state


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_memory_holds_no_more_than_its_bound_and_files_hold_the_rest(
    kind: pa.DataType, tmp_path: Path
) -> None:
    """Filled, and restored from what was handed over; files have no name, and go with the state."""
    bound = 1 << 20
    memory = StateMemory(bound, str(tmp_path))
    state = filled(memory, kind)
    written = next_layer(state)
    assert written is not None
    assert written[1] is not None
    for one in (
        state,
        KeyedState("s", kind, state._default.as_py(), [Layer(written[1], (0, 128))], memory=memory),
    ):
        assert len(one) <= MANY
        assert memory.in_memory <= bound
        assert memory.in_files > 8 * len(one)
    assert list(tmp_path.iterdir()) == []
    del state, one
    assert memory.in_memory < bound / 100
    assert memory.in_files == 0


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written: never a signal for a page that has no room."""
    monkeypatch.setattr(os, "posix_fallocate", broken_call(errno.ENOSPC))
    with pytest.raises(
        OperatorStateError, match=f"cannot be spilled to {tmp_path}: No space left on device"
    ):
        filled(StateMemory(1 << 20, str(tmp_path)), pa.int64())


def test_a_layer_that_is_cut_short_is_damage(tmp_path: Path) -> None:
    """It is mapped, not read, so its length is checked first."""

    class Counts(Operator):
        def initialize_state(self, state: StateStore) -> None:
            state.keyed_state("s", pa.int64(), 0)

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"short")
    layer = LayerLocation(file="a/file", offset=0, length=9, groups=(0, 128))
    order = order_of(tmp_path, 0, keyed={"s": {0: (layer,)}})
    with pytest.raises(OperatorStateError, match="shorter than 9 bytes"):
        BatchRun(order, context(0, 1), new_process()).begin(Counts())


class Texts(Operator):
    """Keeps a long text and a number by key; forgets texts by deletion, or when they expire."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    transient = ("texts", "numbers")

    def initialize_state(self, state: StateStore) -> None:
        self.texts = state.keyed_state("texts", pa.string(), ttl_ms=self._ttl_ms)
        self.numbers = state.keyed_state("numbers", pa.int64(), 0)

    def end_batch(self) -> None:
        pass


@pytest.mark.parametrize("ttl_ms", [None, 10])
def test_the_bytes_of_dropped_values_leave_the_checkpoint(
    ttl_ms: int | None, tmp_path: Path
) -> None:
    """Of full and incremental ones; numbers that stay do not keep the file of dropped texts."""
    runs: dict[int, str] = {}
    process = new_process()
    named: dict[str, LayerLocation] = {}
    keys = pa.array(np.arange(2_000))

    def batch(number: int, now_ms: int) -> tuple[int, int]:
        """Run a batch; return the bytes of a full and of an incremental checkpoint after it."""
        before = {one.file for one in named.values()}
        order = order_of(tmp_path, number, runs=dict(runs), now_ms=now_ms)
        run = BatchRun(order, context(0, 1), process)
        one = run.begin(Texts(ttl_ms))
        one.state.begin_batch(keys, pa.array(np.zeros(2_000, np.int32)))
        if number == 0:
            one.operator.texts.put(keys, pa.array([f"{key:01000}" for key in range(2_000)]))
            one.operator.numbers.put(keys, keys)
        elif ttl_ms is None:
            one.operator.texts.delete(keys.slice(100))
        list(run.batches(one, []))
        result = run.handed_over(one)
        runs[0] = result.run
        for name, change in result.keyed.items():
            assert change.stay == 0
            named.pop(name, None)
            if change.follows is not None:
                named[name] = change.follows
        files = {one.file for one in named.values()}
        size = {file: (tmp_path / file).stat().st_size for file in files}
        return sum(size.values()), sum(size[file] for file in files - before)

    full, incremental = batch(0, 1_000)
    assert full == incremental > 2_000_000
    full, incremental = batch(1, 2_000)
    assert full < 200_000
    assert incremental < 150_000
