"""The operator of ``docs/OUTPUTS.md`` that commits by itself, moved and restored meanwhile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.operators.test_sent_events import context
from tests.operators.test_warm_subtasks import new_process, order_of

from weir.operators import Operator, SnapshotContext
from weir.subtasks.worker import BatchRun

PAGE = Path(__file__).resolve().parents[2] / "docs" / "OUTPUTS.md"


class Subtask:
    """The operator's only subtask, in a new process for each batch and call."""

    def __init__(self, directory: Path, lists: Any = None, restored: int | None = None) -> None:
        section = PAGE.read_text().split("\n## An operator that commits by itself\n")[1]
        code = re.findall(r"```python\n(.*?)\n\n\ndef orders", section, re.DOTALL)[0]
        names: dict[str, Any] = {}
        exec(code, names)
        self.exports = directory / "exports"
        self._operator: Operator = names["Exports"](self.exports)
        self._directory = directory
        self._restored = restored
        self.lists = lists or {}

    def step(
        self, *orders: tuple[str, float], completed: int | None = None, snapshot: int | None = None
    ) -> None:
        """A batch with these orders; then the snapshot for a checkpoint, if one is given."""
        for call in (None, snapshot) if snapshot else (None,):
            order = order_of(
                self._directory,
                0,
                lists=self.lists,
                restored_checkpoint_id=self._restored,
                completed=() if completed is None or call else (completed,),
            )
            run = BatchRun(order, context(0, 1), new_process())
            one = run.begin(self._operator)
            taken = None
            if call is None:
                batch = pa.Table.from_pylist(
                    [{"customer": name, "amount": amount} for name, amount in orders]
                )
                assert len(list(run.batches(one, batch.to_batches()))) == bool(orders)
            else:
                taken = SnapshotContext(checkpoint_id=call, timestamp_ms=0)
            self.lists = {0: run.handed_over(one, taken).lists}

    @property
    def published(self) -> list[str]:
        files = self.exports.glob("[!.]*.csv")
        return sorted(line for file in files for line in file.read_text().splitlines())


def test_rows_are_published_once_their_checkpoint_is_complete(tmp_path: Path) -> None:
    """Not before, although each batch and the snapshot run in a new process."""
    subtask = Subtask(tmp_path)
    subtask.step(("a", 1.0), snapshot=1)
    subtask.step(("b", 2.0))
    assert subtask.published == []
    subtask.step(completed=1)
    assert subtask.published == ["a,1.0"]


@pytest.mark.parametrize("restored", [1, 2])
def test_a_restored_operator_publishes_what_its_checkpoint_names(
    tmp_path: Path, restored: int
) -> None:
    """What came after it is read again, and published with a later checkpoint."""
    subtask = Subtask(tmp_path)
    subtask.step(("a", 1.0), snapshot=1)
    states = {1: subtask.lists}
    subtask.step(("b", 2.0), snapshot=2)
    states[2] = subtask.lists
    again = Subtask(tmp_path, states[restored], restored)
    again.step(*[("b", 2.0)] * (2 - restored), snapshot=3)
    assert again.published == ["a,1.0", "b,2.0"][:restored]
    again.step(completed=3)
    assert again.published == ["a,1.0", "b,2.0"]
