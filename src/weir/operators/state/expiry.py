"""Time to live of keyed state, as Flink's ``StateTtlConfig`` has it (MISSION B7).

Each place of a state has the time of its last use, and expires ``ttl_ms`` later. Time is the
driver's clock or the watermark, and stands still while records are processed, so what has expired
is removed between the calls of the operator and never seen by it.

A place lies once in ``Runs``, under the time of a use. If it was used again by the time it is
due, it goes back under its new time. So a write costs nothing there, and no clean-up looks at what
is not due.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weir.errors import OperatorStateError
from weir.operators.state.key_index import Places
from weir.operators.state.memory import Column, StateMemory
from weir.operators.state.runs import Runs
from weir.operators.state.types import TimeDomain, TtlUpdate

#: The time of use of what was used before there was any time: no watermark has come yet.
UNKNOWN = np.iinfo(np.int64).min
#: A thousand years: sums with it stay within 64 bits.
_TTL_MS_MAX = 1000 * 366 * 24 * 3_600_000


@dataclass(frozen=True, kw_only=True)
class TimeToLive:
    """After how long without use an entry is gone.

    Raises ``OperatorStateError`` for a time that is not a positive number of milliseconds.
    """

    ttl_ms: int
    update: TtlUpdate
    domain: TimeDomain

    def __post_init__(self) -> None:
        if isinstance(self.ttl_ms, bool) or not isinstance(self.ttl_ms, int):
            raise OperatorStateError(f"ttl_ms is {self.ttl_ms!r}: give whole milliseconds.")
        if not 0 < self.ttl_ms <= _TTL_MS_MAX:
            raise OperatorStateError(
                f"ttl_ms is {self.ttl_ms}: give 1 to {_TTL_MS_MAX} milliseconds, or None if the"
                " state never expires."
            )

    @property
    def column(self) -> str:
        """The column of a layer with the times of use; another domain's mean nothing here."""
        return f"used_{self.domain.value}_ms"


class Expiry:
    """When each place of a keyed state was used, and which have expired."""

    def __init__(self, ttl: TimeToLive, memory: StateMemory) -> None:
        self.ttl = ttl
        #: The time; None before the first.
        self.now_ms: int | None = None
        self._memory = memory
        #: Places below it have room.
        self._count = 0
        self._clear()

    def restart(self) -> Column:
        """Places have new numbers. Returns when each old place was used."""
        before = self._used_ms
        self._clear()
        return before

    def grow(self, count: int) -> None:
        """Make room for places below this."""
        self._used_ms.grow(count)
        self._queued.grow(count)
        self._used_ms.values[self._count : count] = UNKNOWN
        self._count = count

    def used_ms(self, places: Places) -> Places:
        """When each place was used; ``UNKNOWN`` before there was any time."""
        used: Places = self._used_ms.values[places]
        return used

    def set(self, places: Places, used_ms: Places) -> None:
        """Places were used at these times, or ``UNKNOWN``, when they were saved."""
        self._used_ms.values[places] = used_ms
        self._queue(places[used_ms != UNKNOWN])

    def use(self, places: Places) -> Places:
        """Places are used now; return those whose time of use has changed by it."""
        if self.now_ms is None:
            self._used_ms.values[places] = UNKNOWN
            return places
        changed: Places = places[self._used_ms.values[places] < self.now_ms]
        # A clock that was set back takes no time away.
        self._used_ms.values[changed] = self.now_ms
        self._queue(places)
        return changed

    def take_expired(self) -> Places:
        """The places that have expired since the last call, also some without a value."""
        if self.now_ms is None:
            return np.empty(0, np.int64)
        end = self.now_ms - self.ttl.ttl_ms
        due = self._runs.take(end)
        self._queued.values[due] = False
        late = self._used_ms.values[due] <= end
        self._queue(due[~late])
        return due[late]

    def _clear(self) -> None:
        #: By place.
        self._used_ms = Column(self._memory, np.int64)
        self._queued = Column(self._memory, np.bool_)
        self._count = 0
        self._runs = Runs(lambda places: np.ones(len(places), bool), self._memory)

    def _queue(self, places: Places) -> None:
        new = places[~self._queued.values[places]]
        self._queued.values[new] = True
        if len(new):
            self._runs.add(self._used_ms.values[new], new)
