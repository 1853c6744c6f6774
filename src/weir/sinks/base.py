"""The contract of a two-phase-commit sink, for Weir's own sinks and for users'.

Phase one runs with every batch: ``stage`` writes the batch's rows where no reader sees them and
returns, as JSON, what is needed to commit them. A checkpoint makes the staged data durable
(``flush``) and stores the JSON. Phase two runs only after the checkpoint's record is durable:
``commit`` makes everything of one epoch visible at once.

Breaking any of these rules loses or duplicates rows:

1. ``stage`` shows nothing to readers. It writes under a name that carries job, attempt and
   position, so that a later attempt can distinguish the data from its own (PROTOCOL P22).
2. Payloads are JSON values; they are stored in checkpoints and read back by other processes.
3. ``flush`` makes staged data durable (fsync). After it has returned, a machine crash must not lose
   the data (P23).
4. ``commit`` is idempotent by (job id, sink, epoch): it is called again with the same epoch after
   every crash whose outcome is unknown, also by a process that wrongly believes it is alone (P18).
   It may raise at any time; it is retried with backoff, and once more by the restored job (P13).
5. Epochs are committed in the order of their ids; an epoch without rows is committed with no
   payloads (P15). Those that the sink leaves out (``min_commit_interval``) are not committed: their
   rows come with a later one, or with their own if the job is restored from that very checkpoint.
   Once an older copy of the job's records was put back, the number of an epoch without rows may
   come again, with rows. So a sink that would do nothing for it reports it as committed
   (``newest_committed``), and the job does not start from such records (P19), nor does it use an
   older checkpoint in place of a damaged checkpoint.
6. ``clean`` deletes only what attempts older than the given one staged and did not commit (P22).
7. When the input ends, ``finish`` comes after the last ``stage``, and ``close`` after the last
   ``commit`` (P37).
8. A target that has gone back is refused (P21): rows that were committed are missing. The job keeps
   the newest epoch with rows that ``newest_committed`` has named, and compares at each start
   (``check_not_gone_back``) and before each commit. A sink that compares within ``commit``, under
   the lock or in the transaction that decides, sets ``compares`` and is not asked again.

Worked timeline, with numbered batches::

    stage(1)  stage(2)  |barrier 7|  stage(3)  flush(1, 2)  |7 complete|  commit(epoch 7: 1, 2)
    stage(4)  |barrier 8|  flush(3, 4)  -- crash --
    restored from 7:  commit(epoch 7: 1, 2) again  clean(3, 4)

``stage`` is called on the query's thread and may overlap any other method. The others may be called
on any driver thread, but never two of one sink at once.

Weir's own tables and ``Files`` show nothing of an epoch without rows: an idle job must not add a
table version every second. (A user's sink gets it, with no payloads.) That the epoch was empty, and
not forgotten, follows from the job log (it completed) and from the metadata of that or any later
checkpoint (nothing of it is pending). Each commit names the directory of these records, where
``weir.read_consistent`` looks.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.core.types import Count, JobId, OperatorId, Ordinal, Payload, Timestamp
from weir.errors import LostRowsError
from weir.kernel import MACHINE, Kernel
from weir.lineage.datasets import Dataset
from weir.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class SinkContext:
    """What a sink gets when it is opened, once per attempt."""

    job_id: JobId
    job_name: str
    sink: OperatorId
    attempt: int
    #: Gives the file system of a path, whatever its scheme.
    file_system: Callable[[str], FileSystem]
    #: Where the running job keeps its records and checkpoints, for readers of the target; None if
    #: unknown.
    job_directory: str | None = None
    #: Gives the job's Spark session, for commits that read with it; None if there is none.
    session: Callable[[], SparkSession] | None = None
    #: Whether the sink leaves out checkpoints (``min_commit_interval``), so that a commit may have
    #: rows of several. Readers of several tables need to know.
    leaves_out: bool = False
    #: The sink's landmark when the job last had rows at the target; None if it had none.
    landmark: str | None = None
    #: The newest epoch with rows that the job is known to have committed at the target; 0 if none.
    newest: int = 0
    #: Whether the target may have gone back to an older state before the attempt began: the user
    #: accepts that (``--accept-duplicates``).
    may_have_gone_back: bool = False
    #: The clock, waits and names. The simulator passes its own, so that it can replay a run.
    kernel: Kernel = MACHINE

    @property
    def is_in_other_name(self) -> bool:
        """Whether the job commits what another job's snapshot had pending, in that job's name."""
        directory = self.job_directory or self.job_id
        return directory.rpartition("/")[2] != self.job_id


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch whose rows are staged."""

    #: Spark's, plus 1 for what ``finish`` stages: it grows by 1 with each batch of the
    #: query, and is unique within an attempt.
    batch_id: int
    #: Parquet files that hold exactly the rows of the batch, if the task wrote them for downstream
    #: tasks (empty: there are no rows): a sink may link or copy them instead of writing the rows
    #: again. They are deleted some time after ``stage`` has returned. None: there are none.
    files: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit at a target, and who made it."""

    #: Milliseconds since the Unix epoch, by the clock of the committing driver.
    timestamp_ms: Timestamp
    job_id: JobId
    job_name: str
    #: Where that driver keeps the job's records; empty if unknown.
    job_directory: str
    sink: OperatorId
    checkpoint_id: Ordinal
    #: The attempt that committed.
    attempt: Count
    #: Whether it may have rows of checkpoints before its own, which the sink has left out.
    joins: bool = False

    @property
    def runner(self) -> str:
        """The id of the job whose driver made the commit.

        It differs from ``job_id`` if that driver's job was started from another job's snapshot and
        commits what was pending there in the other job's name.
        """
        return self.job_directory.rpartition("/")[2] or self.job_id


class Sink(abc.ABC):
    """A sink with two-phase commit. The module's docstring has the rules.

    ``requires_final_checkpoint``: whether a bounded job must not end before a checkpoint has
    committed the last rows (PROTOCOL P36). ``takes_updates``: whether a row replaces the earlier
    row of its key, so that a step may emit what changed (``output_mode="update"``); within an
    epoch, the row of the latest batch counts. ``compares``: whether ``commit`` itself raises
    ``LostRowsError`` if the target has gone back (rule 8). ``function``: the user's function that
    the sink calls, so that errors can be traced to it; None otherwise.
    """

    requires_final_checkpoint: bool = True
    takes_updates: bool = False
    compares: bool = False
    function: Callable[..., Any] | None = None

    @abc.abstractmethod
    def describe(self) -> str:
        """What and where, for messages: ``DeltaTable('out/orders')``."""

    def identity(self) -> str:
        """What it writes, the same in every run: ``DeltaTable at /data/orders``.

        Checkpoints keep it, and the job does not go on into another target without its user's
        decision; what it knows of a target is forgotten once this changes. Without a password; a
        path has one spelling, whatever the user wrote. The default is ``describe()``: override it
        if that may differ between two runs.
        """
        return self.describe()

    def table_path(self) -> str | None:
        """Where the Delta or Iceberg table is that the sink appends to, for readers; else None."""
        return None

    def destination(self) -> str | None:
        """The target in words that are equal for one target; None (the default) if unknown.

        A job's second sink of a target is refused by it while the pipeline is built.
        """
        return None

    def files_at(self) -> str | None:
        """The directory of its files, rows that wait for their commit among them; None if unknown.

        As Spark gets it. It must outlive the driver. If it is a plain path, the start of a job on a
        cluster checks that the driver sees what executors write there. The default is
        ``destination()``, for targets that are files.
        """
        return self.destination()

    def dataset(self) -> Dataset | None:
        """The target as OpenLineage names it (``lineage/datasets.py``); None without such a name.

        Asked while the job runs; must not use the network.
        """
        return None

    @abc.abstractmethod
    def check(self, context: SinkContext) -> None:
        """Check the target before the job starts.

        Raises ``SinkError`` with a sentence that says what to do. Called once per driver before any
        record is written; must leave no trace at the target.
        """

    @abc.abstractmethod
    def open(self, context: SinkContext) -> None:
        """Prepare the target for an attempt that is already on record. Idempotent."""

    @abc.abstractmethod
    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Write a batch's rows where no reader sees them. None if there is nothing to commit."""

    @abc.abstractmethod
    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Make staged data durable; return the payloads, completed (sizes, statistics) as needed.

        If its checkpoint is aborted, a flushed payload is passed again: recognise it. Not called
        for what ``commit`` has made visible meanwhile.
        """

    def finish(self, batch: Batch) -> Payload | None:
        """Stage what was held back until now, as of ``batch``; None (the default) if nothing was.

        Called when the input has ended or the job is drained, after every row was staged
        (MISSION E2). Called again by the next attempt if this attempt fails before its final
        checkpoint. Not called in a stop without drain.
        """
        del batch
        return None

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing
        """Release what ``open`` acquired.

        Called once every epoch of the task is committed; at most ``clean`` is called after it
        (MISSION E5). Not called when the task failed.
        """

    def staged_files(self, payload: Payload) -> Sequence[str]:
        """Paths of the files that a flushed payload's commit needs, in a fixed number and order.

        An intermediate savepoint copies them, since it may be restored to another target, or long
        after they were deleted; before the commit, all are put back (PROTOCOL P14). Keep the
        default if the staged data is not in files: such a savepoint can then be restored only while
        that data exists.
        """
        del payload
        return ()

    def damaged(self, payload: Payload) -> str | None:
        """The staged file of the payload that is gone or has changed size; None if all are intact.

        Returned as words that follow "since". Looks at files without reading them; the default
        knows no files. Called before each ``flush``, since a checkpoint whose staged rows are gone
        must not complete. ``commit`` must check this itself once it knows that the epoch is not
        committed yet.
        """
        del payload
        return None

    @abc.abstractmethod
    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Make all payloads of the epoch visible, once; return the rows made visible by this call.

        That is 0 if the epoch had been committed before. Raises ``LostRowsError``, before anything
        is visible, if staged data is gone: that is not retried.
        """

    @abc.abstractmethod
    def newest_committed(self) -> int | None:
        """The newest epoch that this job is known to have committed (PROTOCOL P21).

        An epoch without rows counts if a later ``commit`` of its number would do nothing. None if
        no epoch is known. Once it has named an epoch with rows, it must not forget that epoch,
        whatever readers do with the rows: the job would take that for a target that has gone back
        (rule 8).
        """

    def newest_begun(self) -> int | None:
        """The newest epoch of which rows may be visible, committed or not; None if none is known.

        Never older than ``newest_committed``, which is the default, for targets that show whole
        epochs only. A job does not fall back from a damaged checkpoint to an older one if rows
        beyond that may be visible (PROTOCOL P21).
        """
        return self.newest_committed()

    def check_not_gone_back(self, known: int) -> None:
        """Raise ``LostRowsError`` if the target once had an epoch with rows that it has no more.

        ``known``: the newest epoch with rows that the job is known to have committed there; 0 if
        none is. Called at each start and, unless the sink ``compares``, before each commit with
        rows. Clean-ups and what others change are not going back.
        """
        if known and (found := self.newest_committed() or 0) < known:
            raise gone_back(self.describe(), known, found)

    def landmark(self) -> str | None:
        """A path that exists as long as the target does, once rows were committed.

        None (the default) if there is no such path. If it is missing, a volume may not be mounted:
        the job waits instead of writing into the mount point.
        """
        return None

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The commits with rows that Weir jobs made at the target, newest first.

        Only as far as the target records them; none by default. Also called before ``open``: a job
        does not start on top of rows that it does not know of (PROTOCOL P21).
        """
        del context
        return iter(())

    @abc.abstractmethod
    def clean(self, attempt: int) -> None:
        """Delete what attempts before ``attempt`` staged and nobody committed.

        Called after the recommit, and again after the first checkpoint of the attempt, since
        executors can write late (PROTOCOL P22).
        """


def gone_back(place: str, known: int, found: int) -> LostRowsError:
    """The error of a target that has only epoch ``found``, 0 for none, though it once had another.

    ``known`` is the newest epoch with rows that was committed there.
    """
    to = f" to checkpoint {found}" if found else ""
    return LostRowsError(
        f"{place} has gone back{to}, though checkpoint {known} was committed there: it was rolled"
        " back, replaced, or restored from an older copy, and rows are missing. Bring the newer"
        " state back and run the job again, or start from a snapshot that is not newer than the"
        " target with --from-savepoint PATH --accept-duplicates."
    )
