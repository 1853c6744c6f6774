"""What a user asks of a running job, and how that is answered: events and the one effect of ``JobMaster``."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weir.core.types import CheckpointType, CompletedCheckpoint


class RequestKind(enum.Enum):
    """What a user asks for."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    #: Stop with savepoint at a clean point between two steps (MISSION E2).
    STOP = "STOP"


@dataclass(frozen=True, kw_only=True)
class SnapshotRequested:
    """A user asks for a checkpoint, a savepoint or a stop. Answered once, by ``AnswerRequest``."""

    request: str
    kind: RequestKind
    #: Parent directory of the savepoint; None for the configured one.
    target: str | None = None
    #: Of a stop: let every window and timer fire first (MISSION E1).
    drain: bool = False
    #: Of a checkpoint; a savepoint is always full.
    checkpoint_type: CheckpointType = CheckpointType.CONFIGURED


@dataclass(frozen=True, kw_only=True)
class CancelRequested:
    """A user asks the job to be cancelled: no savepoint, nothing more is committed."""

    request: str


@dataclass(frozen=True, kw_only=True)
class SuspendRequested:
    """The driver is told to go (SIGINT, SIGTERM): stop the tasks and leave the job resumable."""


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """Answer a user's request: exactly one of ``checkpoint`` and ``failure`` is set, or neither for a cancel."""

    request: str
    checkpoint: CompletedCheckpoint | None = None
    failure: str | None = None
