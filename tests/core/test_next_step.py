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
DUE: dict[str, Any] = {
    "first": TriggerCheckpoint(
        vertex="v",
        barrier=CheckpointBarrier(checkpoint_id=5, kind=SnapshotKind.CHECKPOINT, timestamp_ms=9),
    )
}
WATERMARK: dict[str, Any] = {"has_untold_watermark": True, "watermark_takes_effect": True}
REST: dict[str, Any] = {"has_nothing_to_do": True}
ENDS: dict[str, Any] = {"records_become": Records.ENDED}

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
        Situation(overtaking=5, prepares_for=5, **HELD, **DUE),
    ),
    "a barrier overtakes before its checkpoint is taken": (
        Step.OVERTAKE,
        Situation(overtaking=5, **HELD, **ENDS),
    ),
    "operators get watermarks before they prepare for a barrier": (
        Step.ANSWER,
        Situation(prepares_for=5, waits_for_watermarks=True, **HELD, **DUE, **WATERMARK, **ENDS),
    ),
    "operators prepare for a barrier before records end": (
        Step.ANSWER_BARRIER,
        Situation(prepares_for=5, **HELD, **DUE, **WATERMARK, **ENDS),
    ),
    "operators have a first batch before records end": (
        Step.ANSWER_EVENTS,
        Situation(operators_want_batch=True, **HELD, **DUE, **ENDS),
    ),
    "records end before the checkpoint is taken": (
        Step.END_RECORDS,
        Situation(waits_for_watermarks=True, **HELD, **DUE, **WATERMARK, **ENDS),
    ),
    "watermarks take effect before an aligned checkpoint is taken": (
        Step.ANSWER,
        Situation(waits_for_watermarks=True, is_full=True, **HELD, **DUE, **WATERMARK),
    ),
    "a checkpoint is taken before the drain": (
        Step.TAKE,
        Situation(records=Records.ENDED, **HELD, **DUE),
    ),
    "records that have ended are drained before the savepoint of a stop": (
        Step.DRAIN,
        Situation(records=Records.ENDED, drains_before=True, **HELD, **DUE),
    ),
    "a task whose query is not held waits": (Step.WAIT, Situation(is_full=True, **DUE)),
    "a batch carries events though a consumer lags": (
        Step.ANSWER_EVENTS,
        Situation(is_full=True, carries_events=True, **HELD),
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
    """While a batch runs, a checkpoint is taken at the last complete one, or waits."""
    waits = Situation(**DUE)
    assert next_step(waits) is Step.WAIT
    assert next_step(replace(waits, may_take_beside_batch=True)) is Step.TAKE


def test_operators_prepare_in_the_drain_for_the_savepoint_of_a_stop() -> None:
    """No batch of their own comes before the records end."""
    stop = Situation(prepares_for=5, drains_with=True, **HELD, **DUE, **ENDS)
    assert next_step(stop) is Step.END_RECORDS


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
