"""What goes wrong between a client and a store, drawn from the seed of a run."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import cast

from greenlet import getcurrent

from weir.sim.engine.auditor import AuditError
from weir.sim.engine.loop import Loop, Process

#: After how many virtual microseconds a late request is carried out.
_LATE_US = (2_000, 3_000_000)


class Outcome(enum.Enum):
    """What becomes of one request."""

    ANSWERED = "answered"
    #: It never arrives, and the client sees an error.
    REFUSED = "refused"
    #: It is carried out, and the client sees an error.
    ANSWER_LOST = "answer lost"
    #: The client sees an error, and the request is carried out later.
    LATE = "late"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often each outcome is drawn, and when faults cease."""

    refused: float
    answer_lost: float
    late: float
    slow: float
    #: Of commits: somebody else commits to the same table at the same moment.
    others: float
    #: Virtual microseconds.
    until_us: int


class Network:
    """The way from every process of a run to its stores."""

    def __init__(
        self, loop: Loop, random: Random, rates: Rates, tell: Callable[[str], None]
    ) -> None:
        """``tell`` adds to the story of the run."""
        self.loop = loop
        self.random = random
        #: Carries out what arrives whatever becomes of its sender.
        self.outside = Process("stores")
        self._rates = rates
        self.tell = tell
        #: How many requests will still be carried out, though their sender has given them up.
        self.in_flight = 0

    @property
    def over(self) -> bool:
        """Whether faults have ceased."""
        return self.loop.now_us >= self._rates.until_us

    def travel(self) -> None:
        """Let a request or an answer travel. The sender may be killed or paused meanwhile."""
        slow = not self.over and self.random.random() < self._rates.slow
        least, most = (50_000, 2_000_000) if slow else (50, 900)
        self.loop.sleep(calling_process(), self.random.randrange(least, most))

    def outcome(self, what: str, *, often: float = 1.0) -> Outcome:
        """Draw what becomes of a request. ``often``: less than 1 where there are many of a kind."""
        if self.over:
            return Outcome.ANSWERED
        rates = self._rates
        drawn = self.random.random() / often
        for outcome, rate in (
            (Outcome.REFUSED, rates.refused),
            (Outcome.ANSWER_LOST, rates.answer_lost),
            (Outcome.LATE, rates.late),
        ):
            if drawn < rate:
                self.tell(f"FAULT {outcome.value}: {what}")
                return outcome
            drawn -= rate
        return Outcome.ANSWERED

    def others_commit(self) -> bool:
        """Whether another writer, who is not Weir, commits first."""
        return not self.over and self.random.random() < self._rates.others

    def unanswered(
        self, outcome: Outcome, request: Callable[[], object], *refusals: type[Exception]
    ) -> None:
        """Carry out a request that gets no answer: now, later or never.

        ``refusals``: the errors that would be the answer.
        """

        def tried() -> None:
            with suppress(*refusals):
                request()

        if outcome is Outcome.LATE:
            self.later(tried)
        elif outcome is Outcome.ANSWER_LOST:
            tried()

    def later(self, function: Callable[[], object]) -> None:
        """Carry out a late request, whatever becomes of its sender."""

        def arrive() -> None:
            self.in_flight -= 1
            # The auditor has noted it.
            with suppress(AuditError):
                function()

        self.in_flight += 1
        self.loop.at(self.random.randrange(*_LATE_US), self.outside, arrive)


def calling_process() -> Process:
    """The simulated process in which the caller runs."""
    return cast("Process", getcurrent().process)  # type: ignore[attr-defined]
