"""Fingerprints on their way into a checkpoint: from the port that knows them, and once finished."""

from dataclasses import replace

from tests.kit.job_master import checkpoint, operators, task_state

from weir.core.execution import Execution
from weir.core.messages.task import AsyncPartDone, TakeSnapshot
from weir.core.task.reports import TaskReports
from weir.core.task.snapshots import TaskSnapshot
from weir.core.types import Fingerprint, OperatorState, SnapshotKind, SnapshotMetrics

WORDS = Fingerprint(version=1, engine="Spark 4.2.0", expressions=("limit 1",))


def worded(vertex: str, *, finished: bool = False) -> tuple[OperatorState, ...]:
    """The operators of a vertex, with the words of its plan."""
    return tuple(
        replace(operator, fingerprint=WORDS) for operator in operators(vertex, finished=finished)
    )


def test_an_acknowledged_snapshot_has_what_the_port_says_of_its_operators() -> None:
    """Only the port knows the plan; the finished flags are the task's."""
    reports = TaskReports(vertex="a", attempt=1, operators=operators("a"))
    take = TakeSnapshot(
        vertex="a",
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        target=None,
        position=3,
        finished=True,
        committables=(),
    )
    state = replace(task_state("a"), operators=worded("a"))
    done = AsyncPartDone(checkpoint_id=7, state=state, metrics=SnapshotMetrics())
    assert reports.acknowledged(TaskSnapshot(effect=take), done, ()).state.operators == worded(
        "a", finished=True
    )


def test_a_finished_task_keeps_the_fingerprints_of_its_last_checkpoint() -> None:
    """It has no plan any more, but the next start still compares its source."""
    execution = Execution({"a": operators("a"), "b": operators("b")}, {})
    last = replace(task_state("a"), operators=worded("a"))
    execution.completed(checkpoint(3, last, task_state("b")))
    assert execution.finished_state("a").operators == worded("a", finished=True)
    assert execution.finished_state("b").operators == operators("b", finished=True)
