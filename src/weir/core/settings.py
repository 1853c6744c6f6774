"""The core's settings; ``weir/config`` reads them from Flink's keys, and checks them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RetainExternalized(enum.Enum):
    """What happens to a cancelled job's checkpoints (``externalized-checkpoint-retention``).

    A failed or suspended job resumes when its command is run again (PROTOCOL P20), so its
    checkpoints are kept whatever is configured; NO_EXTERNALIZED_CHECKPOINTS therefore means the
    same as DELETE_ON_CANCELLATION.
    """

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    @property
    def deletes_on_cancellation(self) -> bool:
        """Whether the checkpoints of a cancelled job are deleted."""
        return self is not RetainExternalized.RETAIN_ON_CANCELLATION


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Flink's ``execution.checkpointing.*``.

    Defaults are Flink's except for interval, retention and incremental (PROTOCOL P42).
    """

    #: None: no periodic checkpoints.
    interval_ms: int | None = 10_000
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent_checkpoints: int = 1
    #: How many consecutive failed checkpoints the job survives.
    tolerable_failed_checkpoints: int = 0
    num_retained: int = 1
    #: Whether a checkpoint may refer to files of earlier checkpoints.
    incremental: bool = True
    #: How long a task aligns after a checkpoint's first barrier before the checkpoint's barriers
    #: may overtake records; None: they never may.
    aligned_timeout_ms: int | None = None
    retention: RetainExternalized = RetainExternalized.RETAIN_ON_CANCELLATION
    #: Entries in the checkpoint history (``web.checkpoints.history``).
    history_size: int = 10

    @property
    def effective_interval_ms(self) -> int | None:
        """The interval, or the minimum pause if that is longer (PROTOCOL P38)."""
        return None if self.interval_ms is None else max(self.interval_ms, self.min_pause_ms)


@dataclass(frozen=True, kw_only=True)
class UntilIdle:
    """The job stops by itself once it has read what its sources had when the attempt began."""

    #: Let every window and timer fire before it stops: the job is then finished.
    drain: bool = False


class RestartStrategyType(enum.Enum):
    """``restart-strategy.type``."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"


@dataclass(frozen=True, kw_only=True)
class RestartConfig:
    """Flink's ``restart-strategy.*`` with Flink's defaults.

    With checkpointing on, Flink defaults to exponential-delay. ``give_up_after_ms`` is Weir's own.
    """

    type: RestartStrategyType = RestartStrategyType.EXPONENTIAL_DELAY
    fixed_delay_attempts: int = 1
    fixed_delay_ms: int = 1_000
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    backoff_multiplier: float = 1.5
    #: After a run this long, the next failure starts over with the initial backoff.
    reset_backoff_threshold_ms: int = 3_600_000
    #: Maximum jitter in either direction, as a fraction of the delay.
    jitter_factor: float = 0.1
    #: None: unlimited.
    attempts_before_reset_backoff: int | None = None
    #: How long failures of one cause may repeat without a completed checkpoint in between before
    #: the job is given up; None: forever.
    give_up_after_ms: int | None = 600_000
