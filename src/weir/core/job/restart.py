"""Restart strategies (``restart-strategy.*``), repeated failures and final checkpoint retries.

The job master calls ``notify_failure`` when it starts to fail and, once every task has stopped,
``can_restart`` and ``delay_ms`` (how long to wait before the next attempt). The three strategies
are Flink's, named as in its configuration:

``none``
    Every failure is final.
``fixed-delay``
    The same delay each time, for a limited number of attempts over the whole life of the driver.
``exponential-delay``
    The delay starts at the initial backoff and is multiplied with each failure, up to the maximum.
    A job that then ran for the reset threshold starts over: initial backoff, all attempts left.

Worked timeline for ``exponential-delay`` with 1 s initial backoff, multiplier 2, maximum 3 s,
threshold 60 s::

    failure at  0 s                                      -> delay 1 s
    failure at  5 s                                      -> delay 2 s
    failure at 10 s                                      -> delay 3 s (the maximum)
    failure at 80 s (restarted at 13 s, ran for 67 s)    -> delay 1 s

``RepeatedFailures`` counts failures of one cause without progress in between. Trying again cannot
help there, since the next attempt starts where the last attempt did, or meets the same input. Only
what contains the failing input is progress. Checkpoints may well complete before it is reached::

    restored from checkpoint 7    checkpoint 8    file x cannot be read   -> failure 1 of file x
    restored from checkpoint 8    checkpoint 9    file x cannot be read   -> failure 2 of file x

``FinalCheckpointRetry`` spaces out final checkpoints that fail (MISSION E3, PROTOCOL P29). Tasks
that have ended their records wait for a checkpoint, which the job master requests on its own, so a
failed checkpoint would be followed by the next at once. Without a delay, a master hook that refuses
at the end of the input would be called thousands of times, and the tolerable failures would be used
up before a user could act. The delay doubles with each consecutive failure; a completed checkpoint
or a new attempt resets it. A periodic checkpoint, or a user's, may come sooner and serves as well.

Nothing here reads a clock or draws a random number: the time and the jitter's chance are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from weir.core.settings import RestartConfig, RestartStrategyType
from weir.core.types import Cause
from weir.errors import InvariantError, invariant


class RestartStrategy(Protocol):
    """Decides on another attempt; call ``notify_failure`` first, the answers refer to it."""

    def can_restart(self) -> bool:
        """Whether the job gets another attempt after the last reported failure."""
        ...

    def notify_failure(self, now_ms: int) -> None:
        """Count a failure at ``now_ms`` (monotonic milliseconds that never decrease)."""
        ...

    def delay_ms(self, chance: float) -> int:
        """Milliseconds to wait before the next attempt. ``chance`` in [0, 1) places the jitter."""
        ...

    def describe(self) -> str:
        """The strategy with its settings and count, for messages such as "not restarted: ..."."""
        ...


def make_restart_strategy(config: RestartConfig) -> RestartStrategy:
    """A new strategy of type ``restart-strategy.type``, with no failure counted yet."""
    if config.type is RestartStrategyType.NONE:
        return NoRestartStrategy()
    if config.type is RestartStrategyType.FIXED_DELAY:
        return FixedDelayRestartStrategy(config)
    return ExponentialDelayRestartStrategy(config)


class NoRestartStrategy:
    """``none``: the first failure is final."""

    def can_restart(self) -> bool:
        """Never."""
        return False

    def notify_failure(self, now_ms: int) -> None:
        """Nothing is counted, since nothing depends on it."""

    def delay_ms(self, chance: float) -> int:
        """Zero: there is no next attempt to wait for."""
        _check_chance(chance)
        return 0

    def describe(self) -> str:
        """The name of the strategy."""
        return "restart strategy none"


class FixedDelayRestartStrategy:
    """``fixed-delay``: at most ``fixed_delay_attempts`` restarts, each after ``fixed_delay_ms``."""

    def __init__(self, config: RestartConfig) -> None:
        self._config = config
        #: Failures since the driver started; never reset.
        self._failures = 0

    def can_restart(self) -> bool:
        """Whether there were at most as many failures as allowed attempts."""
        return self._failures <= self._config.fixed_delay_attempts

    def notify_failure(self, now_ms: int) -> None:
        """Count a failure."""
        self._failures += 1

    def delay_ms(self, chance: float) -> int:
        """The fixed delay, without jitter."""
        _check_chance(chance)
        return self._config.fixed_delay_ms

    def describe(self) -> str:
        """Name, allowed attempts, delay and failures so far."""
        return (
            f"restart strategy fixed-delay (attempts {self._config.fixed_delay_attempts},"
            f" delay {self._config.fixed_delay_ms} ms, failures so far {self._failures})"
        )


class ExponentialDelayRestartStrategy:
    """``exponential-delay`` (Flink's default): a growing delay with jitter, reset by a long run.

    Failures within the shortest possible delay after a counted failure belong to the same attempt,
    since the next has not begun by then: they count once, as in Flink.
    """

    def __init__(self, config: RestartConfig) -> None:
        self._config = config
        #: Failures since the last reset; each is one attempt used.
        self._failures = 0
        #: Backoff after the last counted failure, without jitter; in [initial, maximum]. Not
        #: rounded, so that a backoff of a few milliseconds also grows.
        self._backoff_ms = float(config.initial_backoff_ms)
        #: Monotonic milliseconds of the last counted failure; None before the first.
        self._last_failure_ms: int | None = None

    def can_restart(self) -> bool:
        """Whether failures since the last reset are within ``attempts_before_reset_backoff``."""
        limit = self._config.attempts_before_reset_backoff
        return limit is None or self._failures <= limit

    def notify_failure(self, now_ms: int) -> None:
        """Raise the backoff; reset it if the job has run for ``reset_backoff_threshold_ms``.

        A failure within the shortest possible delay after the last counted one is not counted.
        """
        config = self._config
        last_ms = self._last_failure_ms
        if last_ms is None:
            self._failures = 1
        else:
            invariant(
                now_ms >= last_ms,
                f"failure at {now_ms} ms reported after a failure at {last_ms} ms",
            )
            if now_ms < last_ms + self._bounded(self._backoff_ms - self._jitter_ms):
                return
            if now_ms - (last_ms + self._backoff_ms) >= config.reset_backoff_threshold_ms:
                self._failures = 1
                self._backoff_ms = float(config.initial_backoff_ms)
            else:
                self._failures += 1
                self._backoff_ms = self._bounded(self._backoff_ms * config.backoff_multiplier)
        self._last_failure_ms = now_ms

    def delay_ms(self, chance: float) -> int:
        """The backoff with up to ``jitter_factor`` of it as jitter, kept in [initial, maximum]."""
        _check_chance(chance)
        jitter_ms = self._jitter_ms
        return int(self._bounded(self._backoff_ms - jitter_ms + int(chance * (2 * jitter_ms + 1))))

    def describe(self) -> str:
        """Name, settings and failures since the last reset."""
        limit = self._config.attempts_before_reset_backoff
        return (
            f"restart strategy exponential-delay (backoff {int(self._backoff_ms)} ms of at most"
            f" {self._config.max_backoff_ms} ms, attempts"
            f" {'unlimited' if limit is None else limit}, failures since the last reset"
            f" {self._failures})"
        )

    @property
    def _jitter_ms(self) -> int:
        return int(self._backoff_ms * self._config.jitter_factor)

    def _bounded(self, delay_ms: float) -> float:
        return max(
            float(self._config.initial_backoff_ms),
            min(delay_ms, float(self._config.max_backoff_ms)),
        )


#: From this failure of one cause on, the message says that it repeats.
REPORTED_FROM = 3
#: A job is not given up before this many failures of one cause, however long they took.
GIVEN_UP_FROM = 5
#: How many causes are remembered between two checkpoints; the newest are kept.
_CAUSES = 100


@dataclass
class _Streak:
    """Failures of one cause, and of one input if it has one, without progress in between."""

    first_ms: int
    last_ms: int
    count: int = 1


class RepeatedFailures:
    """Detects a job that keeps failing at the same point with the same cause.

    After ``give_up_after_ms`` and at least ``GIVEN_UP_FROM`` failures without progress in between
    the job is given up. Progress depends on what failed:

    - Without an input (``Cause.input``), any completed checkpoint is progress: until then every
      attempt starts where the last attempt did.
    - With one, a checkpoint is progress only if it contains the input. No attempt meets such an
      input again, so a streak of an input ends by itself, and no checkpoint resets it.

    Cause and input are texts made by the code that saw the failure. Failures of unknown cause
    (``Cause.key`` is "") neither count nor end a streak, and nor do failures of another cause or
    input: two steps may fail in turn.
    """

    def __init__(self, give_up_after_ms: int | None) -> None:
        self._give_up_after_ms = give_up_after_ms
        #: By input and cause. Law: only those of inputs after a checkpoint; at most ``_CAUSES``.
        self._streaks: dict[tuple[str, str], _Streak] = {}
        #: The streak of the last reported failure; None if its cause is unknown.
        self._newest: _Streak | None = None
        #: Whether that failure is that of an input.
        self._of_input = False

    def notify_failure(self, cause: Cause, now_ms: int) -> None:
        """Count a failure; later queries refer to it."""
        identity = (cause.input, cause.key)
        known = self._streaks.pop(identity, None)
        self._newest, self._of_input = None, bool(cause.input)
        if not cause.key:
            return
        if known is None:
            known = _Streak(first_ms=now_ms, last_ms=now_ms)
        else:
            known.last_ms, known.count = now_ms, known.count + 1
        self._newest = self._streaks[identity] = known
        if len(self._streaks) > _CAUSES:
            del self._streaks[next(iter(self._streaks))]

    def notify_checkpoint(self) -> None:
        """A checkpoint completed, from which the next attempt continues."""
        self._streaks = {
            (input, key): streak for (input, key), streak in self._streaks.items() if input
        }
        if not self._of_input:
            self._newest = None

    @property
    def is_worth_reporting(self) -> bool:
        """Whether the last failure has repeated often enough for its message to say so."""
        return self._newest is not None and self._newest.count >= REPORTED_FROM

    @property
    def gives_up(self) -> bool:
        """Whether to give the job up after the last failure."""
        newest, limit_ms = self._newest, self._give_up_after_ms
        if newest is None or limit_ms is None:
            return False
        return newest.count >= GIVEN_UP_FROM and newest.last_ms - newest.first_ms >= limit_ms

    def describe(self) -> str:
        """How often and for how long the failure has repeated, and the limit; for messages."""
        newest, limit_ms = self._newest, self._give_up_after_ms
        if newest is None:
            raise InvariantError("a failure of unknown cause is not counted as repeated")
        lasted_s = (newest.last_ms - newest.first_ms) // 1_000
        limit = "never given up" if limit_ms is None else f"given up after {limit_ms // 1_000} s"
        without = (
            "at the same input, which no completed checkpoint contains"
            if self._of_input
            else "without a completed checkpoint"
        )
        return (
            f"failure {newest.count} with the same cause in {lasted_s} s {without}; the job is"
            f" {limit}: see weir.restart.give-up-after"
        )


class RestartPolicy:
    """Decides what follows a failure: another attempt, and when, or none, and why."""

    def __init__(self, config: RestartConfig) -> None:
        self._strategy = make_restart_strategy(config)
        self._repeated = RepeatedFailures(config.give_up_after_ms)
        #: When the next attempt begins, in monotonic ms; None if none is scheduled.
        self._at_ms: int | None = None

    @property
    def at_ms(self) -> int | None:
        """When the next attempt begins, in monotonic ms; None if none is scheduled."""
        return self._at_ms

    def notify_failure(self, message: str, cause: Cause, now_ms: int, *, passing: bool) -> str:
        """Count a failure; returns ``message``, with a hint if it is ``passing`` and repeats.

        ``passing``: the job is to be restarted after it.
        """
        self._strategy.notify_failure(now_ms)
        self._repeated.notify_failure(cause, now_ms)
        repeats = passing and self._repeated.is_worth_reporting
        return f"{message} ({self._repeated.describe()})" if repeats else message

    def notify_checkpoint(self) -> None:
        """A checkpoint completed, from which the next attempt continues."""
        self._repeated.notify_checkpoint()

    def can_restart(self) -> bool:
        """Whether the job gets another attempt after the last reported failure."""
        return not self._repeated.gives_up and self._strategy.can_restart()

    def schedule(self, now_ms: int, chance: float) -> None:
        """The tasks have stopped: the next attempt begins after the strategy's delay."""
        self._at_ms = now_ms + self._strategy.delay_ms(chance)

    def is_due(self, now_ms: int) -> bool:
        """Whether the next attempt begins now; if so, it is no longer scheduled."""
        if self._at_ms is None or now_ms < self._at_ms:
            return False
        self._at_ms = None
        return True

    def cancel(self) -> None:
        """Cancel the scheduled attempt."""
        self._at_ms = None

    def why_not(self) -> str:
        """The suffix for a final failure's message; empty for repeated failures, which say so."""
        return "" if self._repeated.gives_up else f" (not restarted: {self._strategy.describe()})"


def _check_chance(chance: float) -> None:
    invariant(0.0 <= chance < 1.0, f"jitter chance is {chance}, but must be in [0, 1)")


#: The least and the greatest delay before a final checkpoint is tried again.
FIRST_RETRY_MS = 100
LAST_RETRY_MS = 10_000


def final_retry_ms(failures: int) -> int:
    """How long to wait for the next final checkpoint after this many consecutive failures."""
    return min(LAST_RETRY_MS, FIRST_RETRY_MS << min(failures - 1, 30))


class FinalCheckpointRetry:
    """Counts consecutive failures of final checkpoints and delays the next try."""

    def __init__(self) -> None:
        self._failures = 0
        #: Monotonic ms. Law: None unless the last try has failed.
        self._at_ms: int | None = None

    @property
    def at_ms(self) -> int | None:
        """When the next try may come, in monotonic ms; None: at once."""
        return self._at_ms

    def failed(self, now_ms: int) -> None:
        """A request for a final checkpoint failed."""
        self._failures += 1
        self._at_ms = now_ms + final_retry_ms(self._failures)

    def on_deadline(self, now_ms: int) -> None:
        """Stop delaying the next try if its time has come."""
        if self._at_ms is not None and self._at_ms <= now_ms:
            self._at_ms = None

    def reset(self) -> None:
        """A checkpoint completed, or an attempt begins."""
        self._failures, self._at_ms = 0, None

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(
            self._at_ms is None or self._failures > 0,
            "a final checkpoint is delayed without a failure",
        )
