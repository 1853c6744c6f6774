"""What a disk does to files beside what it loses in a crash: wrong content, and slow phases.

A file may come out torn, with a wrong byte, or with what was meant for another file (a misdirected
write). And a disk that is slow is not dead: in a *slow phase* every operation of every process is
late, by up to seconds, so that snapshots outlive their checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

#: The share of runs with slow phases, the most of them, how long they last, and by how much an
#: operation is late.
_SLOW = 0.05
_MOST_PHASES = 2
_PHASE_US = (100_000, 3_000_000)
_LATE_US = (20_000, 200_000, 1_500_000)


def damaged(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """What a disk may make of a file: torn, with a wrong byte, or one of the ``others``."""
    others = [other for other in others if other != data]
    if others and random.random() < 0.5:
        return random.choice(others)
    where = random.randrange(len(data))
    if random.random() < 0.5:
        return data[:where]
    return data[:where] + bytes([data[where] ^ 1 << random.randrange(8)]) + data[where + 1 :]


class SlowPhases:
    """When a disk is slow in one run, and by how much."""

    def __init__(self, random: Random, until_us: int) -> None:
        """``until_us``: when faults cease, in virtual microseconds."""
        self._random = random
        count = random.randint(1, _MOST_PHASES) if until_us and random.random() < _SLOW else 0
        #: When they begin; empty in a run without any.
        self.begin_us = [random.randrange(until_us) for _ in range(count)]
        self._phases = [
            (begin, min(until_us, begin + random.randrange(*_PHASE_US)), random.choice(_LATE_US))
            for begin in self.begin_us
        ]

    def late_us(self, now_us: int) -> int:
        """By how much an operation that begins now is late."""
        most = [late for begin, end, late in self._phases if begin <= now_us < end]
        return self._random.randrange(max(most)) if most else 0
