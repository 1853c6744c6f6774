"""Answers that several readers need are made once."""

from __future__ import annotations

import asyncio

from weir.rest.handling.shared import FRESH_MS, KEPT, SharedAnswers


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


def test_callers_share_a_running_and_a_fresh_answer() -> None:
    """A later call makes it again."""
    clock, made = SetClock(), []

    async def make() -> int:
        made.append(clock.ms)
        await asyncio.sleep(0)
        return len(made)

    async def ask() -> list[int]:
        shared = SharedAnswers(clock)
        found = [*await asyncio.gather(shared.get("k", make), shared.get("k", make))]
        clock.ms = FRESH_MS - 1
        found.append(await shared.get("k", make))
        clock.ms = FRESH_MS
        found.append(await shared.get("k", make))
        clock.ms = 10 * FRESH_MS
        found.append(await shared.get("k", make, fresh_ms=100 * FRESH_MS))
        return found

    assert asyncio.run(ask()) == [1, 1, 1, 2, 2]
    assert made == [0, FRESH_MS]


def test_the_oldest_answers_are_forgotten() -> None:
    """Memory is bounded, whatever is asked for."""

    async def ask() -> int:
        shared = SharedAnswers(SetClock())
        for number in range(10 * KEPT):
            await shared.get(number, lambda: asyncio.sleep(0))
        return len(shared._answers)

    assert asyncio.run(ask()) == KEPT
