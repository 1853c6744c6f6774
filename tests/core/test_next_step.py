"""Tests of the table that decides a task's next step: one situation for each row, in its order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.protocol import TriggerCheckpoint
from weir.core.status import Records
from weir.core.task.next_step import NEXT_STEPS, Situation, Step, next_step
from weir.core.types import SnapshotKind

HELD: dict[str, Any] = {"is_held": True}
BARRIER = CheckpointBarrier(checkpoint_id=5, kind=SnapshotKind.CHECKPOINT, timestamp_ms=9)
DUE: dict[str, Any] = {"first": TriggerCheckpoint(vertex="v", barrier=BARRIER)}
STOP_BARRIER = replace(BARRIER, kind=SnapshotKind.SYNC_SAVEPOINT)
STOP = TriggerCheckpoint(vertex="v", barrier=STOP_BARRIER)
DRAIN = replace(STOP, drain=True)
PREPARE: dict[str, Any] = {"operators_prepare": True}
WATERMARK: dict[str, Any] = {
    "is_aligned": True,
    "has_unsent_watermark": True,
    "watermark_takes_effect": True,
}
REST: dict[str, Any] = {"has_nothing_to_do": True}
ENDS: dict[str, Any] = {"input_end": Records.ENDED}

#: For each row of the table a situation in which it decides, though rows after it hold as well.
ROWS: dict[str, tuple[Step, Situation]] = {
    "a closing task finishes": (
        Step.FINISH,
        Situation(closing=True, is_done=True, is_busy=True, **HELD, **DUE),
    ),
    "a task that is done closes, even while it is busy": (
        Step.CLOSE,
        Situation(is_done=True, is_busy=True, **HELD),
    ),
    "a busy task waits": (Step.WAIT, Situation(is_busy=True, **HELD, **DUE)),
    "operators prepare for a barrier before it overtakes": (
        Step.ANSWER_BARRIER,
        Situation(overtaking=5, **HELD, **PREPARE),
    ),
    "a barrier overtakes before its checkpoint is taken": (
        Step.OVERTAKE,
        Situation(overtaking=5, **HELD, **ENDS),
    ),
    "operators get watermarks before they prepare for a barrier": (
        Step.ANSWER,
        Situation(**HELD, **DUE, **PREPARE, **WATERMARK, **ENDS),
    ),
    "operators prepare for a barrier before records end": (
        Step.ANSWER_BARRIER,
        Situation(is_late=True, **HELD, **DUE, **PREPARE, **WATERMARK, **ENDS),
    ),
    "operators have a first batch before records end": (
        Step.ANSWER_EVENTS,
        Situation(operators_want_batch=True, **HELD, **DUE, **ENDS),
    ),
    "if the job stops with a checkpoint, watermarks take effect before records are stopped": (
        Step.ANSWER,
        Situation(
            input_end=Records.STOPPED, stops_with_checkpoint=True, **HELD, **DUE, **WATERMARK
        ),
    ),
    "if the job stops with a checkpoint, a query is asked once more after its last records": (
        Step.ANSWER_IDLE,
        Situation(
            input_end=Records.STOPPED,
            stops_with_checkpoint=True,
            has_channels=True,
            is_aligned=True,
            **HELD,
            **DUE,
        ),
    ),
    "records end before the checkpoint is taken": (
        Step.END_RECORDS,
        Situation(**HELD, **DUE, **WATERMARK, **ENDS),
    ),
    "watermarks take effect before an aligned checkpoint is taken": (
        Step.ANSWER,
        Situation(**HELD, **DUE, **WATERMARK),
    ),
    "a checkpoint is taken before the drain": (
        Step.TAKE,
        Situation(records=Records.ENDED, **HELD, **DUE),
    ),
    "records that have ended are drained before the savepoint of a stop": (
        Step.DRAIN,
        Situation(records=Records.ENDED, first=DRAIN, **HELD),
    ),
    "a task whose query is not held waits": (Step.WAIT, Situation(is_full=True, **DUE)),
    "a batch carries events though a consumer lags": (
        Step.ANSWER_EVENTS,
        Situation(is_full=True, carries_events=True, **HELD),
    ),
    "a batch reads for events, beyond what a consumer that lags allows": (
        Step.ANSWER,
        Situation(is_full=True, reads_for_events=True, **HELD),
    ),
    "a task waits for a consumer that lags": (
        Step.WAIT,
        Situation(is_full=True, **HELD, **REST),
    ),
    "a query that has been asked rests": (Step.WAIT, Situation(was_idle=True, **HELD, **REST)),
    "a query with nothing to do is asked once": (Step.ANSWER_IDLE, Situation(**HELD, **REST)),
    "records flow": (Step.ANSWER, Situation(**HELD)),
}


@pytest.mark.parametrize("number", range(len(NEXT_STEPS)), ids=list(ROWS))
def test_each_row_decides_in_its_place(number: int) -> None:
    """The row holds, no earlier one does, and the task takes its step."""
    step, situation = list(ROWS.values())[number]
    holds = [condition(situation) for _, condition in NEXT_STEPS]
    assert holds.index(True) == number
    assert next_step(situation) is step


def test_every_row_has_a_situation() -> None:
    """No row is left out above."""
    assert [step for step, _ in ROWS.values()] == [step for step, _ in NEXT_STEPS]


def test_a_source_takes_a_checkpoint_beside_a_batch_only_if_its_state_outlives_it() -> None:
    """While a batch runs, a checkpoint is taken at the last complete one; a stop waits."""
    assert next_step(Situation(**DUE)) is Step.WAIT
    assert next_step(Situation(outlives_batch=True, **DUE)) is Step.TAKE
    assert next_step(Situation(outlives_batch=True, first=STOP)) is Step.WAIT


def test_operators_prepare_once_for_each_checkpoint() -> None:
    """Only in a held planning call, and only while records flow (P6)."""
    situation = Situation(**HELD, **DUE, **PREPARE)
    assert situation.prepares_for == 5
    assert replace(situation, prepared=4).prepares_for == 5
    assert replace(situation, prepared=5).prepares_for is None
    assert replace(situation, is_held=False).prepares_for is None
    assert replace(situation, records=Records.DRAINING).prepares_for is None
    assert replace(situation, operators_prepare=False).prepares_for is None


def test_operators_prepare_in_the_drain_for_the_savepoint_of_a_stop() -> None:
    """No batch of their own comes before the records end."""
    assert next_step(Situation(first=STOP, **HELD, **PREPARE)) is Step.ANSWER_BARRIER
    assert next_step(Situation(first=DRAIN, **HELD, **PREPARE)) is Step.END_RECORDS
    assert next_step(Situation(first=STOP, **HELD, **PREPARE, **ENDS)) is Step.END_RECORDS


def test_a_stop_ends_the_records_of_a_source() -> None:
    """A task with channels is stopped by the end of their records (P28)."""
    for stop, end in ((STOP, Records.STOPPED), (DRAIN, Records.ENDED)):
        situation = Situation(first=stop, **HELD)
        assert situation.records_become is end
        assert replace(situation, is_held=False).records_become is None
        assert replace(situation, has_channels=True).records_become is None
        stopped = replace(situation, has_channels=True, input_end=Records.STOPPED)
        assert stopped.records_become is Records.STOPPED


def test_rows_before_a_barrier_come_before_the_end_of_stopped_records() -> None:
    """Operators that prepare wait for the barrier first (P6, P28)."""
    stopped = Situation(has_channels=True, input_end=Records.STOPPED, **HELD, **PREPARE)
    assert stopped.records_become is None
    assert replace(stopped, first=STOP).records_become is Records.STOPPED
    assert replace(stopped, operators_prepare=False).records_become is Records.STOPPED


def test_a_stop_with_checkpoint_ends_records_after_what_the_last_watermarks_release() -> None:
    """So each run of a scheduler shows the windows that a query of its own would show."""
    stopped = Situation(
        has_channels=True, input_end=Records.STOPPED, stops_with_checkpoint=True, **HELD
    )
    assert stopped.records_become is None
    assert replace(stopped, first=STOP).records_become is Records.STOPPED


def test_a_query_is_asked_once_for_what_its_own_watermark_releases() -> None:
    """Not if a call after its last records was already answered so, not if its consumer lags, and
    not before a savepoint."""
    stopped = Situation(
        has_channels=True,
        input_end=Records.STOPPED,
        stops_with_checkpoint=True,
        is_aligned=True,
        first=STOP,
        **HELD,
    )
    assert next_step(stopped) is Step.ANSWER_IDLE
    for change in (
        {"was_idle": True},
        {"asked_again": True},
        {"is_full": True},
        {"is_late": True},
        {"stops_with_checkpoint": False},
    ):
        assert next_step(replace(stopped, **change)) is Step.END_RECORDS


def test_operators_with_code_of_their_own_take_no_snapshot_while_they_finish() -> None:
    """Any checkpoint waits for their drain, not only the savepoint of a stop."""
    ended = Situation(records=Records.ENDED, operators_take_part=True, **DUE)
    assert next_step(ended) is Step.DRAIN
    assert next_step(replace(ended, records=Records.DRAINING)) is Step.WAIT
    assert next_step(replace(ended, records=Records.DRAINED)) is Step.TAKE


@pytest.mark.parametrize("records", [Records.STOPPED, Records.DRAINED])
def test_a_checkpoint_is_taken_after_the_records_have_ended(records: Records) -> None:
    """Without a planning call the state is stable."""
    assert next_step(Situation(records=records, **DUE)) is Step.TAKE


def test_a_stopped_query_gets_no_answer() -> None:
    """Its windows and timers stay in the state (MISSION E2)."""
    assert next_step(Situation(records=Records.STOPPED, **HELD)) is Step.WAIT


def test_a_drain_is_answered_though_there_is_nothing_to_read() -> None:
    """Only a query whose records flow rests."""
    assert next_step(Situation(records=Records.DRAINING, **HELD, **REST)) is Step.ANSWER
