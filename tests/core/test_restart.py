"""The contract of the restart strategies, one test per sentence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weir.core.job.restart import (
    GIVEN_UP_FROM,
    REPORTED_FROM,
    RepeatedFailures,
    RestartStrategy,
    make_restart_strategy,
)
from weir.core.settings import RestartConfig, RestartStrategyType
from weir.core.types import Cause
from weir.errors import InvariantError

MIDDLE = 0.5


def exponential(*, attempts: int | None = None, jitter_factor: float = 0.0) -> RestartStrategy:
    return make_restart_strategy(
        RestartConfig(
            type=RestartStrategyType.EXPONENTIAL_DELAY,
            initial_backoff_ms=1_000,
            max_backoff_ms=3_000,
            backoff_multiplier=2.0,
            reset_backoff_threshold_ms=60_000,
            jitter_factor=jitter_factor,
            attempts_before_reset_backoff=attempts,
        )
    )


def delays(strategy: RestartStrategy, failures_ms: list[int]) -> list[int]:
    found = []
    for now_ms in failures_ms:
        strategy.notify_failure(now_ms)
        found.append(strategy.delay_ms(MIDDLE))
    return found


def test_the_strategy_none_never_restarts() -> None:
    """With ``none`` the first failure is final."""
    strategy = make_restart_strategy(RestartConfig(type=RestartStrategyType.NONE))
    strategy.notify_failure(0)
    assert not strategy.can_restart()
    assert strategy.delay_ms(MIDDLE) == 0


def test_a_fixed_delay_allows_exactly_its_attempts() -> None:
    """With two allowed attempts the third failure is final, however late it comes."""
    strategy = make_restart_strategy(
        RestartConfig(type=RestartStrategyType.FIXED_DELAY, fixed_delay_attempts=2)
    )
    answers = []
    for now_ms in (0, 10_000_000, 20_000_000):
        strategy.notify_failure(now_ms)
        answers.append(strategy.can_restart())
    assert answers == [True, True, False]


def test_a_fixed_delay_with_no_attempts_never_restarts() -> None:
    """Zero is a valid setting."""
    strategy = make_restart_strategy(
        RestartConfig(type=RestartStrategyType.FIXED_DELAY, fixed_delay_attempts=0)
    )
    strategy.notify_failure(0)
    assert not strategy.can_restart()


def test_a_fixed_delay_is_the_same_each_time_and_has_no_jitter() -> None:
    """Neither the number of failures nor chance changes it."""
    strategy = make_restart_strategy(
        RestartConfig(
            type=RestartStrategyType.FIXED_DELAY, fixed_delay_attempts=9, fixed_delay_ms=700
        )
    )
    assert delays(strategy, [0, 1_000, 2_000]) == [700, 700, 700]
    assert strategy.delay_ms(0.0) == strategy.delay_ms(0.999) == 700


def test_an_exponential_delay_starts_at_the_initial_backoff_and_multiplies_up_to_the_maximum() -> (
    None
):
    """1 s, 2 s, then always the maximum of 3 s."""
    assert delays(exponential(), [0, 5_000, 10_000, 15_000]) == [1_000, 2_000, 3_000, 3_000]


def test_a_backoff_of_one_millisecond_grows_too() -> None:
    """Rounding must not cancel the multiplier."""
    strategy = make_restart_strategy(
        RestartConfig(
            initial_backoff_ms=1, max_backoff_ms=100, backoff_multiplier=1.5, jitter_factor=0.0
        )
    )
    assert delays(strategy, [0, 100, 200, 300]) == [1, 1, 2, 3]


def test_the_first_failure_waits_the_initial_backoff_whatever_the_clock_says() -> None:
    """The monotonic clock's zero is arbitrary, so the first failure must not be compared with
    it."""
    assert delays(exponential(), [5]) == [1_000]
    assert delays(exponential(), [9_000_000]) == [1_000]


def test_an_exponential_delay_is_reset_after_a_run_of_the_threshold() -> None:
    """The job restarted at 13 s; a failure at 73 s comes after 60 s of health and waits the initial
    backoff."""
    assert delays(exponential(), [0, 5_000, 10_000, 73_000]) == [1_000, 2_000, 3_000, 1_000]


def test_an_exponential_delay_is_not_reset_one_millisecond_before_the_threshold() -> None:
    """The threshold counts from the restart, not from the failure before it."""
    assert delays(exponential(), [0, 5_000, 10_000, 72_999]) == [1_000, 2_000, 3_000, 3_000]


def test_attempts_are_limited_between_two_resets() -> None:
    """With two allowed attempts the third failure is final."""
    strategy = exponential(attempts=2)
    answers = []
    for now_ms in (0, 5_000, 10_000):
        strategy.notify_failure(now_ms)
        answers.append(strategy.can_restart())
    assert answers == [True, True, False]


def test_a_reset_gives_all_attempts_back() -> None:
    """After a healthy run the count restarts; the failure that ended the run is the first."""
    strategy = exponential(attempts=1)
    strategy.notify_failure(0)
    strategy.notify_failure(100_000)
    assert strategy.can_restart()
    strategy.notify_failure(105_000)
    assert not strategy.can_restart()


def test_without_a_limit_there_is_always_another_attempt() -> None:
    """``attempts_before_reset_backoff`` None means unlimited."""
    strategy = exponential()
    for failure in range(1_000):
        strategy.notify_failure(failure * 4_000)
    assert strategy.can_restart()


def test_failures_within_one_attempt_count_once() -> None:
    """Until the delay has passed no new attempt exists, so a second failure belongs to the
    first."""
    strategy = exponential(attempts=1)
    strategy.notify_failure(0)
    strategy.notify_failure(999)
    assert strategy.can_restart()
    assert strategy.delay_ms(MIDDLE) == 1_000
    strategy.notify_failure(1_000)
    assert not strategy.can_restart()


def test_jitter_varies_the_delay_by_at_most_its_factor() -> None:
    """A backoff of 2 s with a factor of 0.1 gives 1.8 s to 2.2 s, centred on the backoff itself."""
    strategy = exponential(jitter_factor=0.1)
    strategy.notify_failure(0)
    strategy.notify_failure(5_000)
    assert strategy.delay_ms(0.0) == 1_800
    assert strategy.delay_ms(MIDDLE) == 2_000
    assert strategy.delay_ms(0.999_999) == 2_200


def test_jitter_never_leaves_the_range_from_initial_to_maximum_backoff() -> None:
    """The first delay is never shortened, the longest never lengthened."""
    strategy = exponential(jitter_factor=0.5)
    strategy.notify_failure(0)
    assert strategy.delay_ms(0.0) == 1_000
    strategy.notify_failure(5_000)
    strategy.notify_failure(10_000)
    assert strategy.delay_ms(0.999_999) == 3_000


@pytest.mark.parametrize("kind", list(RestartStrategyType))
def test_a_chance_outside_of_its_range_is_a_bug(kind: RestartStrategyType) -> None:
    """Chance is drawn from [0, 1); anything else is an invariant error."""
    strategy = make_restart_strategy(RestartConfig(type=kind))
    with pytest.raises(InvariantError, match="must be in"):
        strategy.delay_ms(1.0)


def test_time_never_runs_backwards() -> None:
    """A failure earlier than the previous one is a bug of the caller."""
    strategy = exponential()
    strategy.notify_failure(5_000)
    with pytest.raises(InvariantError, match="at 4999 ms reported after a failure at 5000 ms"):
        strategy.notify_failure(4_999)


@pytest.mark.parametrize("kind", list(RestartStrategyType))
def test_a_description_names_the_strategy_as_the_configuration_does(
    kind: RestartStrategyType,
) -> None:
    """So that a message shows which setting to change."""
    assert kind.value in make_restart_strategy(RestartConfig(type=kind)).describe()


# -- failures that come again and again ------------------------------------------------------------


def repeated(
    causes: list[str],
    *,
    every_ms: int = 1_000,
    give_up_after_ms: int | None = 10_000,
    inputs: Sequence[str] = ("",),
    checkpoints: bool = False,
) -> RepeatedFailures:
    """Report one failure per cause, in turn, of these inputs in turn.

    With ``checkpoints`` one completes after each failure but the last.
    """
    failures = RepeatedFailures(give_up_after_ms)
    for number, cause in enumerate(causes):
        if checkpoints and number:
            failures.notify_checkpoint()
        of = inputs[number % len(inputs)]
        failures.notify_failure(Cause(key=cause, input=of), number * every_ms)
    return failures


def test_a_failure_counts_as_repeated_from_the_third_of_its_cause_on() -> None:
    """The message gives the count, the time and the key that limits how long the job retries."""
    assert not repeated(["a"] * (REPORTED_FROM - 1)).is_worth_reporting
    third = repeated(["a"] * REPORTED_FROM)
    assert third.is_worth_reporting
    assert third.describe() == (
        "failure 3 with the same cause in 2 s without a completed checkpoint;"
        " the job is given up after 10 s: see weir.restart.give-up-after"
    )


def test_a_job_is_given_up_after_the_time_and_at_least_five_failures() -> None:
    """The count protects slow attempts, the time quick ones."""
    assert not repeated(["a"] * 10).gives_up
    assert repeated(["a"] * 11).gives_up
    assert not repeated(["a"] * (GIVEN_UP_FROM - 1), every_ms=60_000).gives_up
    assert repeated(["a"] * GIVEN_UP_FROM, every_ms=60_000).gives_up


def test_a_completed_checkpoint_ends_every_streak() -> None:
    """The job made progress, so the next failure counts as the first."""
    failures = repeated(["a"] * 20)
    failures.notify_checkpoint()
    assert not failures.gives_up
    failures.notify_failure(Cause(key="a"), 60_000)
    assert not failures.is_worth_reporting
    assert not failures.gives_up
    assert not repeated(["a"] * 20, checkpoints=True).gives_up


def test_a_checkpoint_without_the_failing_input_is_no_progress() -> None:
    """Each attempt completes a checkpoint, then meets the same file: the job is given up."""
    failures = repeated(["a"] * 11, inputs=["file x"], checkpoints=True)
    assert failures.gives_up
    assert failures.describe() == (
        "failure 11 with the same cause in 10 s at the same input, which no completed checkpoint"
        " contains; the job is given up after 10 s: see weir.restart.give-up-after"
    )
    failures.notify_checkpoint()
    assert failures.gives_up, "a checkpoint that is recorded while the job fails lacks it as well"


def test_failures_of_other_inputs_are_counted_each() -> None:
    """A job that fails at one input after another makes progress; two that take turns do not."""
    passed = repeated(["a"] * 40, inputs=[f"file {n}" for n in range(40)], checkpoints=True)
    assert not passed.is_worth_reporting
    assert repeated(["a"] * 22, inputs=["file x", "file y"], checkpoints=True).gives_up
    assert not repeated(["a", "b"] * 2, inputs=["file x"], checkpoints=True).is_worth_reporting
    assert not repeated(["a"] * 4, inputs=["file x", ""]).is_worth_reporting


def test_a_checkpoint_forgets_the_failures_without_an_input_only() -> None:
    """Those of an input wait for a checkpoint that contains it."""
    failures = repeated(["a"] * 20, inputs=["file x", ""])
    failures.notify_checkpoint()
    failures.notify_failure(Cause(key="a"), 60_000)
    assert not failures.is_worth_reporting
    failures.notify_failure(Cause(key="a", input="file x"), 61_000)
    assert failures.gives_up


def test_causes_that_take_turns_are_counted_each() -> None:
    """Two steps that fail alternately do not hide each other."""
    assert not repeated(["a", "b"] * 2).is_worth_reporting
    assert repeated(["a", "b"] * 3).is_worth_reporting
    assert repeated(["a", "b"] * 8).gives_up


def test_a_failure_of_unknown_cause_is_never_one_too_many() -> None:
    """Transient failures are retried as long as the strategy allows, and end no other cause's
    streak."""
    unknown = repeated([""] * 100)
    assert not unknown.is_worth_reporting
    assert not unknown.gives_up
    assert not repeated(["a"] * 20 + [""]).gives_up
    assert repeated(["a"] * 20 + ["", "a"]).gives_up


def test_without_a_time_a_job_is_never_given_up() -> None:
    """With ``weir.restart.give-up-after: never`` a failure is still reported as repeated."""
    failures = repeated(["a"] * 1_000, give_up_after_ms=None)
    assert failures.is_worth_reporting
    assert not failures.gives_up
    assert "never given up" in failures.describe()


def test_causes_are_remembered_up_to_a_limit() -> None:
    """Failures that all differ do not fill the driver's memory."""
    failures = repeated([str(number) for number in range(1_000)])
    failures.notify_failure(Cause(key="0"), 1_000_000)
    assert not failures.is_worth_reporting
    assert len(failures._streaks) == 100
