"""Master hooks and checkpoint listeners: user code that takes part in checkpoints.

A ``MasterHook`` adds the state of something outside the job to its checkpoints (MISSION A8,
PROTOCOL P44), such as a position in a system that Spark does not know, or a lock that must be
acquired again. It has ``trigger`` and ``restore``, and is not notified of completion: what must
happen on completion belongs in a sink.

A ``CheckpointListener`` is notified of completed and aborted checkpoints (MISSION E6; PROTOCOL P13,
P36). A step's function takes part if it is a listener or a bound method of a listener. A function
wrapped with ``functools.partial`` or ``functools.wraps`` is unwrapped until a listener is found
(P43).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weir.core.types import CompletedCheckpoint, Payload, VertexId
from weir.errors import HookError, JobError, ListenerError
from weir.monitoring.log_lines import place
from weir.runtime.concurrency import Waits
from weir.runtime.failures import describe

if TYPE_CHECKING:
    from weir.core.messages.job import TriggerHook


class MasterHook(abc.ABC):
    """A hook that is called in the driver (Flink's ``MasterTriggerRestoreHook``).

    Calls to one hook never overlap. A call that has not returned when its checkpoint times out
    keeps running; until it returns, the hook fails every further checkpoint, and no attempt can
    start.
    """

    #: Keys of its state that a restore or a snapshot may change, such as a count of calls. The
    #: simulator compares the others with the restored state.
    changed_by_reset: Sequence[str] = ()

    @property
    @abc.abstractmethod
    def identifier(self) -> str:
        """The key of the hook's state in checkpoints: unique in the job, and stable across runs."""

    @abc.abstractmethod
    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload | None:
        """Return the hook's state as JSON values, or None for no state.

        Called before the checkpoint's barriers are emitted. May block, at most for the checkpoint's
        timeout. An exception fails the checkpoint.
        """

    @abc.abstractmethod
    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        """An attempt resumes from this checkpoint.

        ``state`` is what ``trigger`` returned for it, or None.
        """

    def reset(self) -> None:
        """An attempt starts without a checkpoint."""
        return


class MasterHooks:
    """The hooks of one job, by identifier."""

    def __init__(
        self, hooks: Iterable[MasterHook], *, allow_non_restored_state: bool, waits: Waits
    ) -> None:
        self._hooks: Mapping[str, MasterHook] = {hook.identifier: hook for hook in hooks}
        self._allow_non_restored_state = allow_non_restored_state
        self._lock = waits.lock()
        #: Hooks with a call in progress.
        self._called: set[str] = set()

    def trigger(self, effect: TriggerHook) -> Payload | None:
        """Ask one hook for its state.

        Raises what the hook raises, and ``HookError`` if an earlier call has not returned.
        """
        with self._calling(effect.identifier) as hook:
            return hook.trigger(effect.checkpoint_id, effect.timestamp_ms)

    def restore(self, checkpoint: CompletedCheckpoint | None) -> None:
        """Restore every hook from the checkpoint, or reset it without a checkpoint.

        Raises ``JobError`` for a state that no hook claims, unless that is allowed.
        """
        if checkpoint is None:
            for identifier in self._hooks:
                with self._calling(identifier) as hook:
                    hook.reset()
            return
        unclaimed = sorted(checkpoint.hook_states.keys() - self._hooks.keys())
        if unclaimed and not self._allow_non_restored_state:
            raise JobError(
                f"Checkpoint {checkpoint.checkpoint_id} ({checkpoint.external_path}) has state of"
                f" master hook {unclaimed[0]!r}, which the job does not have: add the hook with"
                " Job.master_hook, or drop its state with --allow-non-restored-state."
            )
        for identifier in self._hooks:
            with self._calling(identifier) as hook:
                hook.restore(checkpoint.checkpoint_id, checkpoint.hook_states.get(identifier))

    @contextmanager
    def _calling(self, identifier: str) -> Iterator[MasterHook]:
        """The hook, for one call. Raises ``HookError`` if another call is in progress."""
        with self._lock:
            if identifier in self._called:
                raise HookError(
                    f"Master hook {identifier!r} has not returned from an earlier call: make its"
                    " methods return within execution.checkpointing.timeout."
                )
            self._called.add(identifier)
        try:
            with place(step=identifier):
                yield self._hooks[identifier]
        finally:
            self._called.discard(identifier)


class CheckpointListener:
    """Base class for functions of sources and transformations that follow checkpoints.

    The driver notifies it of completed and aborted checkpoints::

        class Enrich(weir.CheckpointListener):
            def __call__(self, frame):
                return frame.join(self.prices, "product")

            def notify_checkpoint_complete(self, checkpoint_id):
                self.audit.write(f"checkpoint {checkpoint_id} is complete")

    Calls to the listeners of one query never overlap, and completed checkpoints are reported in
    ascending order. A call can be lost in a failure, so a later call must make up for it; what must
    not be lost belongs in a sink. An exception fails the task. ``requires_final_checkpoint``:
    whether a bounded job must not end before the listener was notified of a checkpoint that covers
    the last records.
    """

    requires_final_checkpoint: bool = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable, and the sinks of the same query have committed it.

        Not called for a savepoint after which the job continues (PROTOCOL P14).
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete. The next one covers what it would have covered."""


def listener_of(function: Callable[..., Any]) -> CheckpointListener | None:
    """The listener that a user's function is, is a method of, or wraps; None otherwise."""
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

    def __init__(
        self, listeners: Mapping[VertexId, Iterable[CheckpointListener]], waits: Waits
    ) -> None:
        self._listeners = {vertex: tuple(known) for vertex, known in listeners.items()}
        self._locks = {vertex: waits.lock() for vertex in listeners}

    def complete(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify a vertex's listeners of completion.

        Raises ``ListenerError`` if a listener raises.
        """
        for listener in self._listeners.get(vertex, ()):
            self._notify(vertex, listener.notify_checkpoint_complete, checkpoint_id, "completed")

    def aborted(self, vertex: VertexId, checkpoint_id: int) -> None:
        """Notify a vertex's listeners of an abort. Raises ``ListenerError`` if any raises."""
        for listener in self._listeners.get(vertex, ()):
            self._notify(vertex, listener.notify_checkpoint_aborted, checkpoint_id, "was aborted")

    def _notify(
        self, vertex: VertexId, call: Callable[[int], None], checkpoint_id: int, what: str
    ) -> None:
        try:
            with self._locks[vertex], place(task=vertex):
                call(checkpoint_id)
        except Exception as error:
            raise ListenerError(
                f"{call.__qualname__} of a step in the chain ending in {vertex!r} failed when"
                f" notified that checkpoint {checkpoint_id} {what}: {describe(error)}"
            ) from error
