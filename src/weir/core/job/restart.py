"""Restart strategies (Flink's ``restart-strategy.*``), repeated failures, and retries of a final
checkpoint.

The job master calls ``notify_failure`` when it begins to fail, asks ``can_restart``, and, when
every task has stopped, asks ``delay_ms`` how long to rest before the next attempt begins. Three
strategies exist, named as in Flink's configuration:

``none``
    Every failure is final.
``fixed-delay``
    The same delay each time, for a limited number of attempts over the whole life of the driver.
``exponential-delay``
    The delay starts at the initial backoff and is multiplied with each failure, up to the maximum.
    A job that then ran for the reset threshold starts over: initial backoff, all attempts left.

Worked timeline for ``exponential-delay`` with 1 s initial backoff, multiplier 2, maximum 3 s,
threshold 60 s::

    failure at 0 s -> delay 1 s     failure at 5 s -> delay 2 s     failure at 10 s -> delay 3 s (the maximum)
    failure at 80 s: restarted at 13 s, ran for 67 s -> delay 1 s

``RepeatedFailures`` counts failures of one cause without a completed checkpoint between them: there
trying again helps nobody, since the next attempt goes on from where the last one did.

``FinalCheckpointRetry`` spaces out final checkpoints that fail (MISSION E3, PROTOCOL P29). Tasks
that have ended their records wait for a checkpoint, and the job master asks for one by itself, so a
failed one is followed by the next at once. Without a delay, a master hook that refuses at the end
of the input would be asked thousands of times, and tolerance would be used up before anybody could
act. The delay doubles with each failure in a row; a completed checkpoint, and each attempt, resets
it. A periodic checkpoint, or one that a user asks for, may come sooner and serves as well.

Nothing here reads a clock or draws a random number: the time and the jitter's chance are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from weir.core.config import RestartConfig, RestartStrategyType
from weir.errors import invariant


class RestartStrategy(Protocol):
    """The decision over another attempt. Call ``notify_failure`` first: the answers are about that
    failure."""

    def can_restart(self) -> bool:
        """Whether the job gets another attempt after the failure that was notified last."""
        ...

    def notify_failure(self, now_ms: int) -> None:
        """Count a failure at ``now_ms`` (monotonic milliseconds, never before an earlier
        call's)."""
        ...

    def delay_ms(self, chance: float) -> int:
        """Milliseconds to rest before the next attempt. ``chance`` in [0, 1) places the jitter."""
        ...

    def describe(self) -> str:
        """The strategy with its settings and count, for messages such as "not restarted by ..."."""
        ...


def make_restart_strategy(config: RestartConfig) -> RestartStrategy:
    """The strategy that ``restart-strategy.type`` names, fresh: no failure counted yet."""
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
        """Whether the failures so far are no more than the attempts that are allowed."""
        return self._failures <= self._config.fixed_delay_attempts

    def notify_failure(self, now_ms: int) -> None:
        """Count one failure."""
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
    """``exponential-delay``: a growing delay with jitter, reset after a long healthy run (Flink's
    default).

    Failures inside the shortest possible delay of the one before belong to the same attempt, since
    the next has not begun by then: they count once, as in Flink.
    """

    def __init__(self, config: RestartConfig) -> None:
        self._config = config
        #: Failures since the last reset; each is one attempt used.
        self._failures = 0
        #: Backoff for the last counted failure, without jitter; in [initial, maximum]. Kept with
        #: its fraction, so that a backoff of few milliseconds grows too.
        self._backoff_ms = float(config.initial_backoff_ms)
        #: Monotonic milliseconds of the last counted failure; None before the first.
        self._last_failure_ms: int | None = None

    def can_restart(self) -> bool:
        """Whether the failures since the last reset are within
        ``attempts_before_reset_backoff``."""
        limit = self._config.attempts_before_reset_backoff
        return limit is None or self._failures <= limit

    def notify_failure(self, now_ms: int) -> None:
        """Raise the backoff, or reset it if the job ran for ``reset_backoff_threshold_ms`` since
        its restart."""
        config = self._config
        last_ms = self._last_failure_ms
        if last_ms is None:
            self._failures = 1
        else:
            invariant(
                now_ms >= last_ms, f"a failure at {now_ms} ms is reported after one at {last_ms} ms"
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
        """The backoff, varied by up to ``jitter_factor`` of it either way, kept in [initial,
        maximum]."""
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


#: From this failure of one cause on the message says that it comes again and again.
TOLD_FROM = 3
#: A job is not given up before so many failures of one cause, however long they took.
GIVEN_UP_FROM = 5
#: Causes that are remembered between two checkpoints, the newest ones.
_CAUSES = 100


@dataclass
class _Streak:
    """Failures of one cause since the last completed checkpoint."""

    first_ms: int
    last_ms: int
    count: int = 1


class RepeatedFailures:
    """Whether the job fails at the same point with the same cause again and again: no checkpoint
    completes, so every attempt begins where the last one did. After ``give_up_after_ms``, and
    ``GIVEN_UP_FROM`` failures, the job is given up.

    A cause is a text that whoever saw the failure made; failures of unknown cause ("") neither
    count nor end a streak, and nor do those of another cause: two steps may take turns.
    """

    def __init__(self, give_up_after_ms: int | None) -> None:
        self._give_up_after_ms = give_up_after_ms
        #: By cause. Law: empty after a checkpoint; at most ``_CAUSES``.
        self._streaks: dict[str, _Streak] = {}
        #: That of the failure that was notified last; None if its cause is unknown.
        self._newest: _Streak | None = None

    def notify_failure(self, cause: str, now_ms: int) -> None:
        """Count a failure; what is asked next is about it."""
        known = self._streaks.pop(cause, None)
        self._newest = None
        if not cause:
            return
        if known is None:
            known = _Streak(first_ms=now_ms, last_ms=now_ms)
        else:
            known.last_ms, known.count = now_ms, known.count + 1
        self._newest = self._streaks[cause] = known
        if len(self._streaks) > _CAUSES:
            del self._streaks[next(iter(self._streaks))]

    def notify_checkpoint(self) -> None:
        """A checkpoint completed, from which the next attempt goes on: the job gets further."""
        self._streaks.clear()
        self._newest = None

    @property
    def is_worth_telling(self) -> bool:
        """Whether the last failure has come often enough to be told so."""
        return self._newest is not None and self._newest.count >= TOLD_FROM

    @property
    def gives_up(self) -> bool:
        """Whether the last failure is one too many."""
        newest, limit_ms = self._newest, self._give_up_after_ms
        if newest is None or limit_ms is None:
            return False
        return newest.count >= GIVEN_UP_FROM and newest.last_ms - newest.first_ms >= limit_ms

    def describe(self) -> str:
        """For messages: how often, for how long, and what is done about it."""
        newest, limit_ms = self._newest, self._give_up_after_ms
        invariant(newest is not None, "a failure of unknown cause is not repeated")
        count, lasted_ms = (
            (0, 0) if newest is None else (newest.count, newest.last_ms - newest.first_ms)
        )
        limit = "never" if limit_ms is None else f"after {limit_ms // 1_000} s"
        return (
            f"failure {count} of the same cause in {lasted_ms // 1_000} s without a completed"
            f" checkpoint between; the job is given up {limit}: weir.restart.give-up-after"
        )


class RestartPolicy:
    """What follows a failure: another attempt, when, or none, and why."""

    def __init__(self, config: RestartConfig) -> None:
        self._strategy = make_restart_strategy(config)
        self._repeated = RepeatedFailures(config.give_up_after_ms)
        #: When the next attempt begins, in monotonic ms; None if none is scheduled.
        self._at_ms: int | None = None

    @property
    def at_ms(self) -> int | None:
        """When the next attempt begins, in monotonic ms; None if none is scheduled."""
        return self._at_ms

    def notify_failure(self, message: str, cause: str, now_ms: int, *, passing: bool) -> str:
        """Count a failure. Returns ``message``, with a hint if it is ``passing`` and comes again
        and again."""
        self._strategy.notify_failure(now_ms)
        self._repeated.notify_failure(cause, now_ms)
        repeats = passing and self._repeated.is_worth_telling
        return f"{message} ({self._repeated.describe()})" if repeats else message

    def notify_checkpoint(self) -> None:
        """A checkpoint completed, from which the next attempt goes on."""
        self._repeated.notify_checkpoint()

    def can_restart(self) -> bool:
        """Whether the job gets another attempt after the failure that was notified last."""
        return not self._repeated.gives_up and self._strategy.can_restart()

    def schedule(self, now_ms: int, chance: float) -> None:
        """The tasks have stopped: the next attempt begins after the strategy's delay."""
        self._at_ms = now_ms + self._strategy.delay_ms(chance)

    def is_due(self, now_ms: int) -> bool:
        """Whether the next attempt begins now; if so, it is scheduled no longer."""
        if self._at_ms is None or now_ms < self._at_ms:
            return False
        self._at_ms = None
        return True

    def cancel(self) -> None:
        """No attempt is to begin."""
        self._at_ms = None

    def why_not(self) -> str:
        """To be appended to the message of a failure that is final. Repeated failures say so
        themselves."""
        return "" if self._repeated.gives_up else f" (not restarted: {self._strategy.describe()})"


def _check_chance(chance: float) -> None:
    invariant(0.0 <= chance < 1.0, f"the chance of a jitter is {chance}, but must be in [0, 1)")


INITIAL_DELAY_MS = 100
MAX_DELAY_MS = 10_000


def delay_ms(failures: int) -> int:
    """How long after the last of so many failures in a row the next try comes."""
    return min(MAX_DELAY_MS, INITIAL_DELAY_MS << min(failures - 1, 30))


class FinalCheckpointRetry:
    """The failures in a row, and until when the next try waits."""

    def __init__(self) -> None:
        self._failures = 0
        #: Monotonic ms. Law: None unless the last try has failed.
        self._at_ms: int | None = None

    @property
    def at_ms(self) -> int | None:
        """When the next try may come, in monotonic ms; None: at once."""
        return self._at_ms

    def failed(self, now_ms: int) -> None:
        """A final checkpoint was asked for, and there is none."""
        self._failures += 1
        self._at_ms = now_ms + delay_ms(self._failures)

    def on_deadline(self, now_ms: int) -> None:
        """The next try need not wait any more, if it is late enough."""
        if self._at_ms is not None and self._at_ms <= now_ms:
            self._at_ms = None

    def reset(self) -> None:
        """A checkpoint completed, or an attempt begins."""
        self._failures, self._at_ms = 0, None

    def validate(self) -> None:
        """Check the laws of the fields; raises ``InvariantError``."""
        invariant(
            self._at_ms is None or self._failures > 0, "a final checkpoint waits after no failure"
        )
