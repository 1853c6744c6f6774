"""Lets kills and other drivers come between any two statements of the user's code.

The loader (``loader.py``) puts a call of ``step`` before each statement of the user's functions. In
a run, some of these calls yield to the loop for a while. What is killed meanwhile is not resumed
before the run has been judged: like after SIGKILL, no ``except`` and no ``finally`` of the user
runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from greenlet import getcurrent

from weir.sim.engine.loop import Loop

#: The longest pause between two statements, in virtual microseconds.
_LONGEST_US = 3_000


class Interleaving:
    """The interruptions of one run."""

    def __init__(self, loop: Loop, random: Random, share: float) -> None:
        """``share``: the probability that a statement is interrupted."""
        self._loop = loop
        self._random = random
        self._share = share
        self._held = 0

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Interrupt nothing meanwhile."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def pause(self) -> None:
        """Perhaps yield to the loop, if the caller is code of a simulated process."""
        if self._held or self._random.random() >= self._share:
            return
        process = getattr(getcurrent(), "process", None)
        if process is not None:
            self._loop.sleep(process, self._random.randrange(1, _LONGEST_US))


_current: list[Interleaving] = []


def step() -> None:
    """Called before each statement of the user's functions."""
    if _current:
        _current[-1].pause()


@contextmanager
def interleaved(interleaving: Interleaving) -> Iterator[None]:
    """Interrupt the user's code in this way meanwhile."""
    _current.append(interleaving)
    try:
        yield
    finally:
        _current.pop()
