"""``weir``, but for one thing: it sends itself a signal at the Nth passage of a named point.

    killing_driver.py SIGKILL|SIGSTOP POINT NTH MARK ARGUMENTS...

The points are wrapped around functions from outside, so that the code of Weir knows nothing of
them. Right before the signal the point's name is written to the file MARK: without it, the point
was never reached. Of a point ``stop/...`` only passages count that come after somebody has asked
for a stop with savepoint. With the variable VICTIM, another process gets the signal: a broker.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weir.adopt.outputs.whole_table import WholeTable
from weir.cli.app import main
from weir.core.job.master import JobMaster
from weir.core.messages.job import RequestKind
from weir.core.task.stream_task import StreamTask
from weir.core.types import Recorded
from weir.durable.sink_port import SinkPort
from weir.durable.task_snapshots import TaskSnapshots
from weir.sinks.files.sink import Files
from weir.sinks.foreach.batch import ForeachBatch
from weir.sinks.postgres.insert import Insert
from weir.spark.query.task import QueryTask
from weir.spark.rejects.gathered import GatheredRejects
from weir.spark.state import snapshots
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import JobLogWriter, RecordKind

Reached = Callable[[], None]


def before(
    owner: Any, name: str, reached: Reached, when: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Call ``reached`` before each call of the function with arguments that satisfy ``when``."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        if when(*arguments, **named):
            reached()
        return original(*arguments, **named)

    setattr(owner, name, wrapper)


def after(
    owner: Any, name: str, reached: Reached, when: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Call ``reached`` after each call with a result and arguments that satisfy ``when``."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if when(result, *arguments, **named):
            reached()
        return result

    setattr(owner, name, wrapper)


def _within_recommit(place: Callable[..., None], reached: Reached) -> None:
    """Before or after (``place``) a commit of rows, but only within ``SinkPort.commit_again``."""
    inside = threading.local()
    commit_again = SinkPort.commit_again

    def marked(*arguments: Any, **keywords: Any) -> Any:
        inside.now = True
        try:
            return commit_again(*arguments, **keywords)
        finally:
            inside.now = False

    replaced: Any = SinkPort
    replaced.commit_again = marked
    place(
        SinkPort,
        "_commit_one",
        reached,
        # The payloads are the last argument but one.
        lambda *arguments, **_: getattr(inside, "now", False) and bool(arguments[-2]),
    )


def _in_catalog(place: Callable[..., None], reached: Reached) -> None:
    """Before or after (``place``) the catalog of an Iceberg table commits."""
    # Not at the top: drivers without such a table load no pyiceberg.
    from weir.sinks.iceberg.client import OneCommit

    place(OneCommit, "commit_table", reached)


def _publishing(place: Callable[..., None], step: str, reached: Reached) -> None:
    """Before or after (``place``) a step of a Kafka transaction."""
    from weir.sinks.kafka.confluent import _Producer

    place(_Producer, step, reached)


def _completes(*arguments: Any) -> bool:
    return arguments[-1].kind is RecordKind.CHECKPOINT_COMPLETED


#: A point of a batch, those of one checkpoint, in order, and those of a restore and a job's end.
POINTS: dict[str, Callable[[Reached], None]] = {
    "before-rows-are-set-aside": lambda reached: before(GatheredRejects, "of_batch", reached),
    "after-the-synchronous-part": lambda reached: after(TaskSnapshots, "take", reached),
    "before-the-acknowledgement": lambda reached: after(TaskSnapshots, "proceed", reached),
    "before-the-metadata": lambda reached: before(CheckpointStorage, "write_metadata", reached),
    "before-the-record": lambda reached: before(JobLogWriter, "append", reached, _completes),
    "after-the-record": lambda reached: after(
        JobLogWriter,
        "append",
        reached,
        lambda outcome, _, record: outcome is Recorded.WON and _completes(record),
    ),
    "within-one-commit": lambda reached: after(Files, "_rename", reached),
    "after-a-call": lambda reached: before(ForeachBatch, "_enter", reached),
    "after-a-table": lambda reached: before(WholeTable, "_enter", reached),
    "within-a-transaction": lambda reached: after(Insert, "run", reached),
    "before-a-catalog-commit": lambda reached: _in_catalog(before, reached),
    "after-a-catalog-commit": lambda reached: _in_catalog(after, reached),
    "before-a-publication": lambda reached: _publishing(before, "begin", reached),
    "within-a-publication": lambda reached: _publishing(after, "flush", reached),
    "after-a-publication": lambda reached: _publishing(after, "commit", reached),
    "between-two-sinks": lambda reached: after(
        SinkPort,
        "_commit_one",
        reached,
        lambda _, __, name, epoch, payloads, *___, **____: name == "raw" and bool(payloads),
    ),
    "within-the-restore": lambda reached: before(snapshots, "_make_parent", reached),
    "before-a-recommit": lambda reached: _within_recommit(before, reached),
    "after-a-recommit": lambda reached: _within_recommit(after, reached),
    "before-the-barrier": lambda reached: before(StreamTask, "_on_trigger", reached),
    "after-the-barrier": lambda reached: after(StreamTask, "_on_sync_part_done", reached),
    "before-the-drain": lambda reached: before(QueryTask, "drain", reached),
    "after-the-drain": lambda reached: after(StreamTask, "_on_drained", reached),
    "before-the-end-is-recorded": lambda reached: before(
        JobLogWriter, "append", reached, lambda _, record: record.kind is RecordKind.ENDED
    ),
}


class Killer:
    """Counts passages and sends the signal at the Nth."""

    def __init__(self, number: signal.Signals, point: str, nth: int, mark: Path) -> None:
        self.armed = True
        self._number = number
        self._point = point
        self._left = nth
        self._mark = mark
        self._lock = threading.Lock()

    def arm(self) -> None:
        """Start counting passages."""
        self.armed = True

    def reached(self) -> None:
        """Count one passage."""
        with self._lock:
            self._left -= self.armed
            if self._left == 0 and self.armed:
                self._mark.write_text(self._point)
                os.kill(int(os.environ.get("VICTIM", os.getpid())), self._number)


if __name__ == "__main__":
    number, point, nth, mark, *rest = sys.argv[1:]
    killer = Killer(signal.Signals[number], point, int(nth), Path(mark))
    if point.startswith("stop/"):
        killer.armed = False
        before(
            JobMaster,
            "_snapshot_requested",
            killer.arm,
            lambda _, event, __: event.kind is RequestKind.STOP,
        )
    POINTS[point.removeprefix("stop/")](killer.reached)
    sys.argv[1:] = rest
    main()
