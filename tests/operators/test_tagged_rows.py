"""What an operator may emit to side outputs, and how their rows are kept apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.operators.test_sent_events import context
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.errors import OperatorStateError, PipelineError
from weir.operators import Operator, SnapshotContext
from weir.operators.output import Outputs
from weir.subtasks.messages import SnapshotCall
from weir.subtasks.worker import BatchRun, SubtaskRun

NUMBERS = pa.schema([("id", pa.int64())])
LATE = pa.schema([("id", pa.int64()), ("why", pa.string())])


class Sorting(Operator):
    """Emits even numbers, and odd ones to a side output; both in every call that may emit."""

    def process_batch(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        even = [one for one in batch["id"].to_pylist() if one % 2 == 0]
        odd = [one for one in batch["id"].to_pylist() if one % 2 == 1]
        self.context.output("odd", pa.record_batch({"id": odd}))
        return [pa.record_batch({"id": even})] if even else []

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.context.output("odd", pa.record_batch({"id": [-checkpoint_id]}))

    def snapshot_state(self, snapshot: SnapshotContext) -> None:
        self.context.output("odd", pa.record_batch({"id": [0]}))


def test_rows_of_both_outputs_leave_in_the_order_in_which_they_were_emitted(tmp_path: Path) -> None:
    """Also those of a call that emits to the side output alone (PROTOCOL P6: before a barrier)."""
    one = context()
    one.side_outputs = ("odd",)
    run = BatchRun(order_of(tmp_path, 1, barrier=7), one, new_process())
    warm = run.begin(Sorting())
    records = [pa.record_batch({"id": ids}) for ids in ([1, 2], [3])]
    emitted = [(tag, rows["id"].to_pylist()) for tag, rows in run.batches(warm, records)]
    assert emitted == [("odd", [1]), ("", [2]), ("odd", [3]), ("odd", [-7])]


def test_rows_that_no_batch_would_take_are_refused(tmp_path: Path) -> None:
    """``snapshot_state`` comes between two batches."""
    one = context()
    one.side_outputs = ("odd",)
    setup = order_of(tmp_path, 1).setup
    call = SnapshotCall(setup=setup, checkpoint_id=7, timestamp_ms=0)
    run = SubtaskRun(call, one, new_process())
    warm = run.begin(Sorting())
    with pytest.raises(OperatorStateError, match="to the side output 'odd' outside of a batch"):
        run.handed_over(warm, SnapshotContext(checkpoint_id=7, timestamp_ms=0))


def test_a_side_output_that_was_not_declared_is_refused() -> None:
    """The message names those that were."""
    one = context()
    one.side_outputs = ("late",)
    with pytest.raises(PipelineError, match="side output 'lat', but declares 'late': add it to"):
        one.output("lat", pa.record_batch({"id": [1]}))


def test_the_outputs_of_an_operator_share_a_schema() -> None:
    """The columns of the other outputs are null."""
    outputs = Outputs("score", NUMBERS, {"late": LATE})
    main = outputs.rows("", pa.record_batch({"id": [1]}))
    late = outputs.rows("late", pa.record_batch({"why": ["old"], "id": [2]}))
    columns = ["id", "__weir_output", "__weir_late/id", "__weir_late/why"]
    assert main.schema.names == late.schema.names == columns
    assert [list(row.values()) for row in main.to_pylist()] == [[1, None, None, None]]
    assert [list(row.values()) for row in late.to_pylist()] == [[None, "late", 2, "old"]]


def test_rows_of_a_side_output_are_checked_against_its_own_schema() -> None:
    """The message names the declaration."""
    outputs = Outputs("score", NUMBERS, {"late": LATE})
    with pytest.raises(PipelineError, match=r"declares id, why: change its side_outputs\['late'\]"):
        outputs.rows("late", pa.record_batch({"id": [1]}))
