"""What the job master and its master hooks say to each other (MISSION A8, PROTOCOL P44).

A master hook (Flink's ``MasterTriggerRestoreHook``) lets something outside of the data flow take part in every
checkpoint: a system that a source reads from can, for example, make a snapshot of its own. The core knows a hook by its
identifier only; the kernel calls it. A hook has a trigger and a restore, and no call for completion.

In each checkpoint and savepoint the hooks come after the location and before the tasks::

    M  TriggerHook, one for each hook .... kernel calls it ............ HookTriggered or HookFailed   M
    M  (all hooks are done) TriggerCheckpoint, one for each task

What a hook returns becomes part of the metadata (``CompletedCheckpoint.hook_states``) and is handed back to it by the
attempt that is restored from it, before any task starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.core.types import Payload


@dataclass(frozen=True, kw_only=True)
class TriggerHook:
    """Effect: call the trigger of one master hook. Owes ``HookTriggered`` or ``HookFailed``.

    The checkpoint's id and location are ours BEFORE this. No task is triggered while a hook has not answered.
    """

    identifier: str
    checkpoint_id: int
    #: Milliseconds since the Unix epoch, the same for every hook and task of the checkpoint.
    timestamp_ms: int


@dataclass(frozen=True, kw_only=True)
class HookTriggered:
    """Event: the hook has done its part. ``state`` is what it wants back on restore; None for nothing."""

    identifier: str
    checkpoint_id: int
    state: Payload | None


@dataclass(frozen=True, kw_only=True)
class HookFailed:
    """Event: the hook could not do its part, so the checkpoint is aborted (MISSION A9)."""

    identifier: str
    checkpoint_id: int
    message: str
