"""``SourceReaders``: what the readers of one query's source reported, on the driver.

Nothing of this is in a checkpoint: in each attempt the readers report again.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.core.messages.coordination import DeliverEvent
from weir.core.messages.task import InducedCheckpoint
from weir.core.types import OperatorId
from weir.runtime.concurrency import Clock
from weir.sources.operator import ReaderReport, is_wake
from weir.sources.watermarks import lowest_of, slowest_of
from weir.subtasks.messages import BatchResult


class SourceReaders:
    """The readers of one vertex in one attempt, by source and subtask."""

    def __init__(
        self,
        readers: Iterable[tuple[OperatorId, int]],
        clock: Clock,
        *,
        available_now: bool = False,
    ) -> None:
        """``available_now``: in each attempt they get what there is then, after being woken."""
        self._clock = clock
        self._available_now = available_now
        #: The readers that the enumerator has woken in this attempt.
        self._woken: set[tuple[OperatorId, int]] = set()
        self._readers = frozenset(readers)
        self._reported: dict[tuple[OperatorId, int], ReaderReport] = {}
        self._reads_at_ms: dict[tuple[OperatorId, int], int] = {}

    def take(self, source: OperatorId, subtask: int, result: BatchResult) -> int:
        """Take up a subtask's result of a batch; return the number of rows that it has read."""
        reader, report = (source, subtask), result.reader
        if reader not in self._readers or report is None:
            return 0
        self._reported[reader] = report
        self._reads_at_ms.pop(reader, None)
        if report.wake_in_ms is not None:
            self._reads_at_ms[reader] = self._clock.wall_ms() + report.wake_in_ms
        return result.rows

    @property
    def input_ended(self) -> bool:
        """Whether there are readers, and all of them have ended.

        What they reported last counts: a reader that had ended in the checkpoint may get splits
        again, since each attempt has a new enumerator. If more may be there than before, the end
        that is in the checkpoint does not count.
        """
        return bool(self._readers) and all(
            reader in self._reported
            and self._reported[reader].ended
            and (reader in self._woken or not self._available_now)
            for reader in self._readers
        )

    def got(self, event: DeliverEvent) -> None:
        """A batch has carried this event."""
        if is_wake(event.payload):
            self._woken.add((event.operator, event.subtask))

    @property
    def reads_at_ms(self) -> Iterable[int]:
        """When readers want to read again."""
        return self._reads_at_ms.values()

    @property
    def induced(self) -> InducedCheckpoint:
        """How far they are, if they induce checkpoints (MISSION B4)."""
        points = [report.stands_at for report in self._reported.values() if report.has_splits]
        newest = max((point for point in points if point is not None), default=0)
        return InducedCheckpoint(newest, by_all=all(point == newest for point in points))

    def unread(self, source: OperatorId) -> int:
        """How many splits that a source's readers have may have rows."""
        return sum(report.unread for (name, _), report in self._reported.items() if name == source)

    def may_go_on(self, induced_over: int) -> bool:
        """Whether a reader stands at the point of a checkpoint up to this id."""
        points = (report.stands_at for report in self._reported.values())
        return any(point is not None and point <= induced_over for point in points)

    @property
    def slowest_ms(self) -> int | None:
        """How far the slowest split is of all that are not idle (``slowest_of``)."""
        return slowest_of(report.time for report in self._reported.values())

    @property
    def watermark_ms(self) -> int | None:
        """The lowest watermark of all readers' splits; None if it is unknown."""
        return lowest_of(report.time for report in self._reported.values()).watermark_ms
