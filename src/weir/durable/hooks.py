"""Master hooks: something outside of the job whose state is part of its checkpoints (MISSION A8, PROTOCOL P44).

Such as a position in a system that Spark knows nothing of, or a lock that must be taken anew. A hook has a trigger and
a restore, and no call at completion: what must happen then is a sink's business.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weir.core.types import CompletedCheckpoint, Payload
from weir.errors import HookError, JobError
from weir.kernel.concurrency import Waits

if TYPE_CHECKING:
    from weir.core.messages.job import TriggerHook


class MasterHook(abc.ABC):
    """Called in the driver, never two calls of one hook at once (Flink's ``MasterTriggerRestoreHook``).

    A call that has not come back when its checkpoint times out goes on by itself; until it ends the hook fails every
    further checkpoint, and no attempt can begin.
    """

    @property
    @abc.abstractmethod
    def identifier(self) -> str:
        """Names the hook's state in checkpoints: unique in the job, and the same in every run."""

    @abc.abstractmethod
    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload | None:
        """The hook's state as JSON values, or None for nothing. Called before the checkpoint's barriers start.

        May block, at most for the checkpoint's timeout. An exception fails the checkpoint.
        """

    @abc.abstractmethod
    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        """An attempt goes on from this checkpoint; ``state`` is what ``trigger`` returned for it, or None."""

    def reset(self) -> None:
        """An attempt begins without a checkpoint."""
        return


class MasterHooks:
    """The hooks of one job, by identifier."""

    def __init__(self, hooks: Iterable[MasterHook], *, allow_non_restored_state: bool, waits: Waits) -> None:
        self._hooks: Mapping[str, MasterHook] = {hook.identifier: hook for hook in hooks}
        self._allow_non_restored_state = allow_non_restored_state
        self._lock = waits.lock()
        #: Hooks that are being called.
        self._called: set[str] = set()

    def trigger(self, effect: TriggerHook) -> Payload | None:
        """Ask one hook for its state. Raises what the hook raises, and ``HookError`` if it has not come back from an
        earlier call."""
        with self._calling(effect.identifier) as hook:
            return hook.trigger(effect.checkpoint_id, effect.timestamp_ms)

    def restore(self, checkpoint: CompletedCheckpoint | None) -> None:
        """Bring every hook to the checkpoint. Raises ``JobError`` for a state that no hook claims, unless allowed."""
        if checkpoint is None:
            for identifier in self._hooks:
                with self._calling(identifier) as hook:
                    hook.reset()
            return
        unclaimed = sorted(checkpoint.hook_states.keys() - self._hooks.keys())
        if unclaimed and not self._allow_non_restored_state:
            raise JobError(
                f"Checkpoint {checkpoint.checkpoint_id} ({checkpoint.external_path}) has a state of the master hook"
                f" {unclaimed[0]!r}, which the job does not have: give it back with Job.master_hook, or leave the state"
                " out with --allow-non-restored-state."
            )
        for identifier in self._hooks:
            with self._calling(identifier) as hook:
                hook.restore(checkpoint.checkpoint_id, checkpoint.hook_states.get(identifier))

    @contextmanager
    def _calling(self, identifier: str) -> Iterator[MasterHook]:
        """The hook, for one call."""
        with self._lock:
            if identifier in self._called:
                raise HookError(
                    f"Master hook {identifier!r} has not come back from an earlier call: let its methods return within"
                    " execution.checkpointing.timeout."
                )
            self._called.add(identifier)
        try:
            yield self._hooks[identifier]
        finally:
            self._called.discard(identifier)
