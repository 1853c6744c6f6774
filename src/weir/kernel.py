"""Time, waiting, chance and names, for code that must not ask the machine for them.

Storage, the durable part and sinks are given a ``Kernel``. In production it is ``MACHINE``; the
simulator passes its own, so that it runs that code unchanged in virtual time, and replays it.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What the machine supplies. It is also a ``runtime.concurrency.Clock``."""

    #: Monotonic milliseconds, from an arbitrary zero.
    now_ms: Callable[[], int]
    #: Milliseconds since the Unix epoch; for people and files, never for deadlines.
    wall_ms: Callable[[], int]
    #: Blocks for some seconds.
    sleep: Callable[[float], None]
    #: Draws a number from 0 up to, but not including, 1.
    chance: Callable[[], float]
    #: Draws 32 hexadecimal digits that are unique.
    new_name: Callable[[], str]


MACHINE = Kernel(
    now_ms=lambda: time.monotonic_ns() // 1_000_000,
    wall_ms=lambda: time.time_ns() // 1_000_000,
    sleep=time.sleep,
    chance=random.random,
    new_name=lambda: secrets.token_hex(16),
)
