"""A source of a simulated job whose readers say when a checkpoint is due (MISSION B4).

The system outside puts a *mark* for each checkpoint among the source's records, behind those that
have landed and a few more, when the coordinator asks for it; sometimes it forgets. Each reader
meets the mark in a batch of its own, and nothing is read beyond the mark until all have met it and
the checkpoint is over. The law: a checkpoint that is taken before the end of the records contains
exactly the records in front of its mark, and all readers have met the mark.
"""

from __future__ import annotations

from random import Random

from weir.core.messages.task import InducedCheckpoint

#: How far behind the newest record that has landed a mark may be.
_BEHIND = 5
#: The share of marks that are forgotten: their checkpoints expire.
_FORGOTTEN = 0.1
#: The share of readers at a mark that meet it in one batch.
_MEETS = 0.6


class Marks:
    """The marks of one source, by checkpoint: how many records are in front of each."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._at: dict[int, int] = {}

    def put(self, checkpoint_id: int, landed: int) -> None:
        """A checkpoint is wanted, and this many records have landed."""
        if self._random.random() >= _FORGOTTEN:
            self._at[checkpoint_id] = landed + self._random.randrange(_BEHIND)

    def at(self, checkpoint_id: int) -> int | None:
        """How many records are in front of a mark; None if it was forgotten."""
        return self._at.get(checkpoint_id)

    def ahead(self, offset: int, over: int) -> dict[int, int]:
        """The marks from a record on, without those of checkpoints that are over."""
        return {n: at for n, at in self._at.items() if n > over and at >= offset}


class MarkedReaders:
    """The readers of one query."""

    def __init__(self, marks: Marks, readers: int, random: Random) -> None:
        self._marks = marks
        self._random = random
        #: The checkpoint at whose mark each stands; 0 for none.
        self._stand_at = [0] * readers

    def limit(self, offset: int, end: int, over: int) -> int:
        """How far may be read, at most up to ``end``."""
        return min((end, *self._marks.ahead(offset, over).values()))

    def want_batch(self, offset: int, over: int) -> bool:
        """Whether a reader has yet to meet the mark that has been reached."""
        return bool(self._here(offset, over)) and min(self._stand_at) <= over

    def read(self, offset: int, over: int) -> InducedCheckpoint:
        """A batch ends: some readers meet the mark, if one has been reached."""
        here = self._here(offset, over)
        for reader, at in enumerate(self._stand_at):
            if at <= over:
                meets = here and self._random.random() < _MEETS
                self._stand_at[reader] = self._random.choice(here) if meets else 0
        newest = max(self._stand_at)
        return InducedCheckpoint(newest, by_all=newest > 0 and min(self._stand_at) == newest)

    def broken_law(self, checkpoint_id: int, offset: int) -> str | None:
        """How a checkpoint that is taken here breaks the law; None if it does not."""
        at = self._marks.at(checkpoint_id)
        if offset != at:
            return (
                f"checkpoint {checkpoint_id} is taken after {offset} records, but its mark is"
                f" behind {at}"
            )
        if set(self._stand_at) != {checkpoint_id}:
            return (
                f"checkpoint {checkpoint_id} is taken while its readers stand at the marks"
                f" {self._stand_at}"
            )
        return None

    def _here(self, offset: int, over: int) -> list[int]:
        return sorted(n for n, at in self._marks.ahead(offset, over).items() if at == offset)
