"""What a user would bring to a simulated job beside its steps: a master hook and a checkpoint listener.

Each knows the law of its own calls, and raises when one is broken: the auditor takes that for a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.durable.hooks import MasterHook
from weir.durable.listeners import CheckpointListener
from weir.errors import invariant


class CountingHook(MasterHook):
    """A master hook that takes its time, and whose state says for which checkpoint it was made."""

    def __init__(self, identifier: str, pause: Callable[[], None], fails: Callable[[], bool]) -> None:
        self._identifier = identifier
        self._pause = pause
        self._fails = fails

    @property
    def identifier(self) -> str:
        """Its name."""
        return self._identifier

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> dict[str, Any]:
        """The id."""
        self._pause()
        if self._fails():
            raise RuntimeError("simulated failure of a hook")
        return {"id": checkpoint_id}

    def restore(self, checkpoint_id: int, state: dict[str, Any] | None) -> None:
        """It must be the state that was made for this checkpoint."""
        if state != {"id": checkpoint_id}:
            raise AssertionError(f"hook {self._identifier} gets {state} of checkpoint {checkpoint_id}")


class OrderedListener(CheckpointListener):
    """A checkpoint listener that knows the law of its calls: none is told of what is over or was told before."""

    def __init__(self) -> None:
        self._completed = 0
        self._aborted: set[int] = set()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Ids grow, and none was aborted."""
        invariant(
            checkpoint_id > self._completed and checkpoint_id not in self._aborted,
            f"a listener is told that checkpoint {checkpoint_id} completed after {self._completed}",
        )
        self._completed = checkpoint_id

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Once, and none that completed."""
        invariant(
            checkpoint_id != self._completed and checkpoint_id not in self._aborted,
            f"a listener is told that checkpoint {checkpoint_id} is over, which it knew",
        )
        self._aborted.add(checkpoint_id)
