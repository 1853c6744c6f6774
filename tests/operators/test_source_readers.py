"""What the readers of a source report, on the driver."""

from __future__ import annotations

import pytest
from tests.kit.clock import ManualClock

from weir.core.messages.coordination import DeliverEvent
from weir.sources.operator import ReaderReport
from weir.sources.watermarks import ReaderTime
from weir.subtasks.messages import BatchResult, Location, NextTimers, SubtaskState
from weir.subtasks.source_readers import SourceReaders


@pytest.fixture
def readers() -> SourceReaders:
    return SourceReaders([("in", 0), ("in", 1)], ManualClock())


def reported(report: ReaderReport | None, *, rows: int) -> BatchResult:
    """A result with this report."""
    state = SubtaskState(
        run="r",
        lists=Location(inline=b""),
        keyed={},
        groups={},
        timers=NextTimers(event=None, processing=None),
    )
    return BatchResult(state=state, sent=[], rows=rows, reader=report)


def result(*, ended: bool) -> BatchResult:
    time = ReaderTime(watermark_ms=None, is_active=False)
    report = ReaderReport(
        wake_in_ms=None, time=time, ended=ended, has_splits=False, unread=0, stands_at=None
    )
    return reported(report, rows=3)


def test_the_input_ends_when_all_readers_have_ended(readers: SourceReaders) -> None:
    """And not before all of them have reported."""
    assert readers.take("in", 0, result(ended=True)) == 3
    assert not readers.input_ended
    readers.take("in", 1, result(ended=True))
    assert readers.input_ended


def test_a_reader_that_gets_splits_again_has_not_ended(readers: SourceReaders) -> None:
    """It had ended in the checkpoint, and its first batch ran before the new enumerator woke it."""
    readers.take("in", 0, result(ended=True))
    readers.take("in", 0, result(ended=False))
    readers.take("in", 1, result(ended=True))
    assert not readers.input_ended


def test_an_end_from_the_checkpoint_does_not_count_where_more_may_be_available_now() -> None:
    """The enumerator wakes each reader first; then what the reader reports is of this attempt."""
    readers = SourceReaders([("in", 0), ("in", 1)], ManualClock(), available_now=True)
    for subtask in (0, 1):
        readers.take("in", subtask, result(ended=True))
    assert not readers.input_ended
    for subtask in (0, 1):
        readers.got(
            DeliverEvent(operator="in", subtask=subtask, number=1, payload={"attempt": "7-2"})
        )
    assert readers.input_ended
