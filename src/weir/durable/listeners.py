"""Checkpoint listeners: user functions that are told how checkpoints ended (MISSION E6; PROTOCOL P13, P36).

A function of a step takes part by being a ``CheckpointListener``, or a bound method of one. A function that was wrapped,
with ``functools.partial`` or ``functools.wraps``, is unwrapped until one takes part (P43).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weir.core.types import VertexId
from weir.errors import ListenerError
from weir.kernel.concurrency import Waits
from weir.kernel.failures import describe


class CheckpointListener:
    """Derive the function of a source or transformation from it, to be told in the driver how checkpoints ended::

        class Enrich(weir.CheckpointListener):
            def __call__(self, frame):
                return frame.join(self.prices, "product")

            def notify_checkpoint_complete(self, checkpoint_id):
                self.audit.write(f"checkpoint {checkpoint_id} is complete")

    Calls to the listeners of one query never overlap, and completed checkpoints come in the order of their ids. A call can
    be missing after a failure, so a later one must make up for it; what must not be missing belongs in a sink. An
    exception fails the task. ``requires_final_checkpoint``: whether a bounded job must not end before the listener was
    told of a checkpoint that has the last records.
    """

    requires_final_checkpoint: bool = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable, and the sinks of the same query have committed it. Not called for a savepoint that the
        job goes on after (PROTOCOL P14)."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete. What it was to have belongs to the next one."""


def listener_of(function: Callable[..., Any]) -> CheckpointListener | None:
    """The listener that a user's function is, is a method of, or wraps; None if there is none."""
    while True:
        for candidate in (function, getattr(function, "__self__", None)):
            if isinstance(candidate, CheckpointListener):
                return candidate
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return None


class CheckpointListeners:
    """The listeners of one job, in the order of each vertex's chain."""

    def __init__(self, listeners: Mapping[VertexId, Iterable[CheckpointListener]], waits: Waits) -> None:
        self._listeners = {vertex: tuple(known) for vertex, known in listeners.items()}
        self._locks = {vertex: waits.lock() for vertex in listeners}

    def complete(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Tell those of a vertex. Raises ``ListenerError`` if one of them raises."""
        for listener in self._listeners.get(vertex, ()):
            self._tell(vertex, listener.notify_checkpoint_complete, checkpoint_id, "completed")

    def aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Tell those of a vertex. Raises ``ListenerError`` if one of them raises."""
        for listener in self._listeners.get(vertex, ()):
            self._tell(vertex, listener.notify_checkpoint_aborted, checkpoint_id, "was aborted")

    def _tell(self, vertex: VertexId, call: Callable[[int], None], checkpoint_id: int, what: str) -> None:
        try:
            with self._locks[vertex]:
                call(checkpoint_id)
        except Exception as error:
            raise ListenerError(
                f"{call.__qualname__} of a step of the chain that ends in {vertex!r} failed when it was told that checkpoint"
                f" {checkpoint_id} {what}: {describe(error)}"
            ) from error
