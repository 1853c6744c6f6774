"""Executes a task's effects: quick port calls, or blocking work that ends in an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from weir.core.messages.channel import ReleaseSegments
from weir.core.messages.task import (
    AnswerPlanning,
    AsyncPartDone,
    CloseOperators,
    CommitSinks,
    ContinueSnapshot,
    DropSnapshot,
    OperatorsClosed,
    ReportAborted,
    ReportCompleted,
    SinkCommitFailed,
    SinksCommitted,
    SnapshotFailed,
    StartDrain,
    SyncPartDone,
    TakeSnapshot,
    TaskErrored,
    TaskWork,
)
from weir.core.types import VertexId
from weir.errors import InputError, LostWriteError, OperatorError
from weir.runtime.failures import cause_of, describe, is_fatal
from weir.runtime.ports import DurablePort, PostToTask, TaskPort

_log = logging.getLogger(__name__)


class Begin(Protocol):
    """Hands blocking work to the workers."""

    def __call__(
        self,
        what: str,
        work: Callable[[], Any],
        *,
        runs_query: bool = False,
        **callbacks: Callable[[Any], None],
    ) -> None:
        """Start the work; ``what`` describes it for people.

        ``callbacks`` are those of ``concurrency.answered``. While work that ``runs_query`` is
        running, no other attempt can start in this process.
        """
        ...


def begin_task_work(
    effect: TaskWork,
    vertex: VertexId,
    *,
    tasks: TaskPort,
    durable: DurablePort,
    work: Begin,
    post: PostToTask,
) -> None:
    """Execute an effect of a task. ``post`` posts the task's events in this attempt."""
    match effect:
        case AnswerPlanning():
            tasks.answer_planning(effect)
        case ReleaseSegments():
            release = tasks.release_segments
            work(
                "deleting segments", lambda: release(effect), on_error=log_error("delete segments")
            )
        case TakeSnapshot(checkpoint_id=n):
            work(
                f"the snapshot of checkpoint {n}",
                lambda: tasks.take_snapshot(effect),
                on_done=lambda _: post(SyncPartDone(checkpoint_id=n)),
                on_error=lambda e: snapshot_failed(n, e, post),
            )
        case ContinueSnapshot(checkpoint_id=n):
            work(
                f"the snapshot of checkpoint {n}",
                lambda: tasks.continue_snapshot(effect),
                on_done=lambda r: post(AsyncPartDone(checkpoint_id=n, state=r[0], metrics=r[1])),
                on_error=lambda e: snapshot_failed(n, e, post),
            )
        case DropSnapshot():
            drop = tasks.drop_snapshot
            work("dropping a snapshot", lambda: drop(effect), on_error=log_error("drop a snapshot"))
        case ReportCompleted(checkpoint_id=n):
            tasks.checkpoint_completed(vertex, n)
        case StartDrain():
            work(
                "the drain",
                lambda: tasks.drain(effect),
                runs_query=True,
                on_error=lambda e: post(task_errored(e)),
            )
        case CloseOperators():
            work(
                "closing operators and sinks",
                lambda: tasks.close_operators(vertex),
                on_done=lambda _: post(OperatorsClosed()),
                on_error=lambda e: post(task_errored(e)),
            )
        case CommitSinks(checkpoint_id=n):
            work(
                f"the commit of checkpoint {n}",
                lambda: durable.commit_sinks(effect),
                on_done=lambda _: post(SinksCommitted(checkpoint_id=n)),
                on_error=lambda e: post(
                    SinkCommitFailed(
                        checkpoint_id=n, message=describe(e), fatal=is_fatal(e), cause=cause_of(e)
                    )
                ),
            )
        case ReportAborted(checkpoint_id=n):
            tasks.checkpoint_aborted(vertex, n)
            work(
                f"reporting that checkpoint {n} was aborted",
                lambda: durable.report_aborted(effect),
                on_error=lambda e: post(task_errored(e)),
            )


def task_errored(error: BaseException) -> TaskErrored:
    """The failure of a task by an error; no attempt can fix an error of the pipeline's own code."""
    return TaskErrored(message=describe(error), fatal=is_fatal(error), cause=cause_of(error))


def snapshot_failed(checkpoint_id: int, error: BaseException, post: PostToTask) -> None:
    """Report a failed snapshot; if a file of the task may be lost, fail the task too.

    The next snapshot would otherwise take the same file without noticing the loss (PROTOCOL P23).
    The restored task writes the file again. The same for rows that may be of another input: the
    restored task reads them again, or says what is gone.
    """
    operator = error.operator if isinstance(error, OperatorError) else None
    post(SnapshotFailed(checkpoint_id=checkpoint_id, message=describe(error), operator=operator))
    if isinstance(error, LostWriteError | InputError):
        post(task_errored(error))


def log_error(what: str) -> Callable[[BaseException], None]:
    """An error callback that only logs, for work whose failure does no harm."""
    return lambda error: _log.warning("Could not %s: %s", what, describe(error))
