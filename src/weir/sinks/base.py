"""The contract of a two-phase-commit sink, for Weir's own and for users' sinks.

Phase one runs with every step: ``stage`` writes the step's rows where no reader sees them and
returns what is needed to commit them, as JSON. A checkpoint makes that durable (``flush``) and
stores it. Phase two runs only after the checkpoint's record is durable: ``commit`` makes everything
of one epoch visible at once.

Rules, each the cause of lost or doubled rows if broken:

1. ``stage`` shows nothing to readers. What it writes lies under a name that carries job, attempt
   and position, so that a later attempt can tell it from its own (PROTOCOL P22).
2. Payloads are JSON values; they are stored in checkpoints and read back by other processes.
3. ``flush`` makes staged data durable (fsync). After it returned, a crash of the machine must not
   lose it (P23).
4. ``commit`` is idempotent by (job id, sink, epoch): it is called again with the same epoch after
   every crash whose outcome is unknown, also by a process that believes to be alone and is not
   (P18). It may raise at any time; it is retried with backoff, and once more by the restored job
   (P13).
5. Epochs are committed in the order of their ids; an epoch without rows is committed with no
   payloads (P15).
6. ``clean`` deletes only what attempts older than the given one staged and did not commit (P22).
7. At the end ``finish`` comes after the last ``stage``, and ``close`` after the last ``commit``
   (P37).

Worked timeline, one step per line::

    stage(step 1) stage(step 2) |barrier 7| stage(step 3) flush(1, 2) |7 complete| commit(epoch 7: 1, 2)
    stage(step 4) |barrier 8| flush(3, 4) -- crash -- restored from 7: commit(epoch 7: 1, 2) again, clean(3, 4)

``stage`` is called on the query's thread, and may overlap any other method. The others may be
called on any thread of the driver, but never two of one sink at once.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.core.types import Count, JobId, OperatorId, Ordinal, Payload, Timestamp
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class SinkContext:
    """What a sink is told when it is opened, once per attempt."""

    job_id: JobId
    job_name: str
    sink: OperatorId
    attempt: int
    #: The file system that holds a path, whatever its scheme.
    file_system: Callable[[str], FileSystem]
    #: Where the running job keeps its records and checkpoints, for readers of the target; None if
    #: it does not tell.
    job_directory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """The step whose rows are staged."""

    #: Grows by one with each step of the task; unique within an attempt.
    position: int
    #: Parquet files that hold exactly the rows of the step, if the task has written such for other
    #: tasks: a sink may link or copy them instead of writing the rows again. They are deleted some
    #: time after ``stage`` has returned.
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What a commit at a target says of who made it."""

    #: Milliseconds since the Unix epoch, by the clock of the driver that made it.
    timestamp_ms: Timestamp
    job_id: JobId
    job_name: str
    #: Where that driver keeps the job's records; empty if it did not tell.
    job_directory: str
    sink: OperatorId
    checkpoint_id: Ordinal
    #: The attempt that committed.
    attempt: Count

    @property
    def runner(self) -> str:
        """The job whose driver made it. One that goes on from another's snapshot commits what was
        pending there as that."""
        return self.job_directory.rpartition("/")[2] or self.job_id


class Sink(abc.ABC):
    """A sink with two-phase commit. The module's docstring has the rules.

    ``requires_final_checkpoint``: whether a bounded job must not end before a checkpoint has
    committed the last rows (PROTOCOL P36). ``function``: the user's own function that it calls, so
    that an error can be traced to it; None if there is none.
    """

    requires_final_checkpoint: bool = True
    function: Callable[..., Any] | None = None

    @abc.abstractmethod
    def describe(self) -> str:
        """What and where, for messages: ``DeltaTable('out/orders')``."""

    def table_path(self) -> str | None:
        """The root of the Delta table that it appends to, whose readers find the job by it; None if
        there is none."""
        return None

    @abc.abstractmethod
    def check(self, context: SinkContext) -> None:
        """Check the target before the job starts; raises ``SinkError`` with a sentence that says
        what to do.

        Called once per driver before any record is written; must leave no trace at the target.
        """

    @abc.abstractmethod
    def open(self, context: SinkContext) -> None:
        """Prepare the target for an attempt. The attempt is already on record; idempotent."""

    @abc.abstractmethod
    def stage(self, frame: DataFrame, step: Step) -> Payload | None:
        """Write the rows of one step where no reader sees them. None if there was nothing to
        commit."""

    @abc.abstractmethod
    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Make what was staged durable and return the payloads, completed where needed (sizes,
        statistics).

        A payload that was flushed before is passed again if its checkpoint was aborted: recognise
        it.
        """

    def finish(self, step: Step) -> Payload | None:
        """The input has ended, or the job is drained: every row was staged. Stage what was held
        back until now, as of ``step``; None if there is nothing, as by default (MISSION E2).

        Called again by the next attempt if this one fails before its final checkpoint. Not called
        in a stop without drain.
        """
        del step
        return None

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing
        """Give back what ``open`` took: every epoch of the task is committed, and at most ``clean``
        is called after it (MISSION E5). Not called when the task failed."""

    def staged_files(self, payload: Payload) -> Sequence[str]:
        """Paths of the files that a flushed payload needs for its commit, always as many and in the
        same order.

        An intermediate savepoint copies them, since it may be restored to another target, or when
        these are long deleted; they are put back, where they are missing, before the commit
        (PROTOCOL P14). Keep the default if what was staged lies elsewhere: such a savepoint can
        then be restored only while it is there.
        """
        del payload
        return ()

    def damaged(self, payload: Payload) -> str | None:
        """Which file that the payload needs for its commit is gone, or has another size than the
        one that was staged, in words that follow "since"; None if all are there. Looks at files and
        reads none; by default it knows of none.

        Asked before each ``flush``, since a checkpoint with rows that are gone must not complete.
        ``commit`` has to ask itself, once it knows that the epoch is not committed yet.
        """
        del payload
        return None

    @abc.abstractmethod
    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Make all payloads of the epoch visible, once. Returns the number of rows that this call
        made visible (0 if the epoch had been committed before).

        Raises ``LostRowsError``, before anything is visible, if what was staged is gone: that is
        not tried again.
        """

    @abc.abstractmethod
    def newest_committed(self) -> int | None:
        """The newest epoch that this job is known to have committed at the target with rows; None
        if none is known (PROTOCOL P21)."""

    def landmark(self) -> str | None:
        """A path that is there as long as the target is, once rows were committed; None (by
        default) if there is none.

        Where it is gone, a volume may not be mounted, and the job waits instead of writing in its
        place.
        """
        return None

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """What jobs of Weir have committed at the target with rows, the newest first, as far as the
        target tells: by default nothing. Asked before ``open`` too: a job does not begin over rows
        that it does not know of (PROTOCOL P21).
        """
        del context
        return iter(())

    @abc.abstractmethod
    def clean(self, attempt: int) -> None:
        """Delete what attempts before ``attempt`` staged and nobody committed. Called after the
        recommit, and again after the first checkpoint of the attempt, since executors can write
        late (PROTOCOL P22)."""
