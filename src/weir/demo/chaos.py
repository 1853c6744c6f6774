"""When to kill: N kills at random moments of a job that is at work, and all N before it is done.

Kill *i* of N comes at latest when the part ``0.8 * i / N`` of the job is committed, so that something is left for every
life after it. Within that the moment is random: some progress is drawn, and when a checkpoint has completed in this
life and that much is committed, a delay of up to one checkpoint interval, so that every phase of a checkpoint can be
hit. If the part is committed already when a life begins, its kill comes within a second after the driver was submitted:
such a life hardly brings the job forward.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from weir.demo.driver import Driver

#: The part of the job by which all kills have come.
_KILLED_BY = 0.8
#: The longest random delay of a kill: the checkpoint interval of the demo.
_DELAY_LIMIT_S = 1.0
#: How often the progress is looked at.
_POLL_S = 0.1
#: A life that lasts longer than this hangs.
_LIFE_LIMIT_S = 300.0


@dataclass(kw_only=True)
class Outcome:
    """What happened over all lives."""

    kills: int = 0
    lives: int = 0
    #: End-to-end milliseconds of each completed checkpoint, by id.
    completed_ms: dict[int, int] = field(default_factory=dict)
    #: Of each life: seconds from the command to its first completed checkpoint; None if it did not live that long.
    recovery_s: list[float | None] = field(default_factory=list)
    wall_s: float = 0.0
    #: None if the job finished and every kill took place, else what went wrong, in a sentence.
    problem: str | None = None


class Chaos:
    """Runs a job through its kills to its end.

    ``start`` starts the job's command once more, ``done`` says which part of the job is committed (0 to 1), ``tell``
    says something to the reader.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Driver],
        done: Callable[[], float],
        tell: Callable[[str], None],
        generator: random.Random,
    ) -> None:
        self._start = start
        self._done = done
        self._tell = tell
        self._random = generator

    def run(self, kills: int) -> Outcome:
        """Kill the job so many times, then let it finish. Leaves no process behind, whatever happens."""
        outcome = Outcome()
        began_s = time.monotonic()
        while outcome.problem is None:
            driver = self._start()
            outcome.lives += 1
            try:
                if outcome.kills < kills:
                    self._live_and_die(driver, outcome, kills)
                else:
                    self._live_to_the_end(driver, outcome)
                    break
            finally:
                driver.kill()
                outcome.recovery_s.append(driver.recovery_s)
                outcome.completed_ms |= driver.phase.completed_ms
        outcome.wall_s = time.monotonic() - began_s
        return outcome

    def _live_and_die(self, driver: Driver, outcome: Outcome, kills: int) -> None:
        limit_s = time.monotonic() + _LIFE_LIMIT_S
        number = f"kill {outcome.kills + 1} of {kills}"
        done, due = self._done(), _KILLED_BY * (outcome.kills + 1) / kills
        if done < due:
            ready = driver.watch_until(lambda phase: bool(phase.completed_ms), deadline_s=limit_s)
            target = self._random.uniform(done, due)
            while ready and self._done() < target and driver.exit_code is None:
                driver.watch_until(lambda _: False, deadline_s=time.monotonic() + _POLL_S)
                ready = time.monotonic() < limit_s
        else:
            ready = driver.watch_until(lambda phase: phase.submitted, deadline_s=limit_s)
        if ready:
            delay_s = self._random.uniform(0.0, _DELAY_LIMIT_S)
            driver.watch_until(lambda _: False, deadline_s=time.monotonic() + delay_s)
        if not ready or not driver.kill():
            outcome.problem = _early_end(driver, number)
            return
        outcome.kills += 1
        took = f", {driver.recovery_s:.1f} s after the command" if driver.recovery_s is not None else " never"
        self._tell(f"{number}: SIGKILL {driver.phase}; first checkpoint of this life completed{took}")

    def _live_to_the_end(self, driver: Driver, outcome: Outcome) -> None:
        driver.watch_until(lambda _: False, deadline_s=time.monotonic() + _LIFE_LIMIT_S)
        if driver.exit_code is None:
            outcome.problem = f"The job did not finish within {_LIFE_LIMIT_S:.0f} s."
        elif driver.exit_code != 0:
            outcome.problem = f"The job ended with exit code {driver.exit_code}."


def _early_end(driver: Driver, number: str) -> str:
    if driver.exit_code == 0:
        return f"The job had finished before {number}: ask for fewer kills."
    if driver.exit_code is None:
        return f"The job came no further within {_LIFE_LIMIT_S:.0f} s before {number}."
    return f"The job ended with exit code {driver.exit_code} before {number}."
