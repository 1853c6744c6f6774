"""Layers of keyed state in memory, and state that is compacted early and lies in files."""

from __future__ import annotations

import io

import pytest

from weir.operators.state import keyed
from weir.operators.state import memory as module
from weir.operators.state.keyed import KeyedState
from weir.operators.state.memory import StateMemory


def next_layer(state: KeyedState) -> tuple[int, bytes | None] | None:
    """How many layers stay, and the one that follows; see ``KeyedState.next_layer``."""
    sink = io.BytesIO()
    written = state.next_layer(sink)
    return None if written is None else (written[0], sink.getvalue() if written[1] else None)


def spill_all(patch: pytest.MonkeyPatch) -> None:
    """Let memory with a bound of 0 have every array in a file."""
    patch.setattr(module, "_SPILLED_BYTES_MIN", 1)
    patch.setattr(module, "_TRIMMED_BYTES_MIN", 1)


def deal_with(patch: pytest.MonkeyPatch, items: int) -> None:
    """State goes through so many keys in one go. With few, it is compacted early and spilled."""
    patch.setattr(keyed, "_ITEMS", items)
    if items < 100:
        spill_all(patch)
        patch.setattr(keyed, "StateMemory", lambda: StateMemory(0))
