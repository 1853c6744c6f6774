"""A worker process keeps the subtasks that it has run, so that the next batch need not restore them
(weir/spark/operator_worker.py)."""

from __future__ import annotations

from typing import Any

from tests.operators.test_sent_events import context

from weir.operators import Operator
from weir.spark.operator_worker import _Run


class Counting(Operator):
    """Notes how often its instances are opened and closed."""

    transient = ("calls",)

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __deepcopy__(self, _: object) -> Counting:
        copy = Counting()
        copy.calls = self.calls
        return copy

    def open(self, context: Any) -> None:
        super().open(context)
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")


def test_two_subtasks_of_one_process_are_opened_once_and_stay(tmp_path: Any) -> None:
    """With more subtasks than worker processes each process runs several in every batch."""
    operator = Counting()
    runs: dict[str, str] = {}
    for batch in range(3):
        order = {
            "token": "t",
            "version": batch - 1,
            "batch": batch,
            "runs": dict(runs),
            "lists": {},
            "groups": {},
            "keyed": {},
            "events": {},
            "completed": [],
            "aborted": [],
            "finish": False,
            "barrier": None,
            "directory": str(tmp_path),
        }
        for subtask in range(2):
            run = _Run(order, context(subtask, 2))
            one = run.begin(operator)
            assert list(run.batches(one, [])) == []
            runs[str(subtask)] = run.handed_over(one)["run"]
    assert operator.calls == ["open", "open"]
