"""Consistent cuts: versions of several tables that show the same checkpoint (MISSION G1).

A job commits its sinks one after the other, so reading two tables at their newest versions may show
checkpoint 7 in one and 6 in the other. Every commit of the sinks ``DeltaTable`` and
``IcebergTable``, of ``PostgresTable`` with an ``epoch_column`` and of ``KafkaTopic`` names its job,
the directory of the job's records and its checkpoint, and a sink commits its checkpoints in the
order of their ids (PROTOCOL P13). A version of an Iceberg table is the id of a snapshot, that of a
PostgreSQL table the checkpoint of its newest rows, that of a topic the offset of its ledger's
entry. So:

1. Find the newest job that has committed to every table; ``--fresh`` and ``--from-savepoint`` make
   new jobs. A job that was started from a snapshot is read as soon as it has a checkpoint: in a
   table to which it has not committed yet, what the older job wrote up to that snapshot counts as
   its beginning.
2. Read the job's records, which say which epochs were not committed yet (``read_job_epochs``). So a
   table that got no rows for a while is known to be complete up to the newest completed checkpoint
   (PROTOCOL P15).
3. Read the tables' logs once more. The cut is the lowest of the checkpoints up to which each table
   is complete; each table's version is that of its newest commit not above the cut.

Worked example, one table per line and its versions in order; checkpoint 8 is the newest completed::

    clean    4  5  6  OPTIMIZE  7     records: nothing pending        complete up to 8
    revenue  4     6                  records: 7 is pending           complete up to 6: the cut
    refunds  4                        records: nothing pending        complete up to 8

    versions: clean at the OPTIMIZE, revenue at 6, refunds at 4

What a cut guarantees, and what not:

- If the job's records cannot be read (another machine, a deleted directory), "7 had no rows" and "7
  is not committed yet" look the same, and a table counts as complete up to its newest commit only.
  The cut is then correct but late, 4 in the example, and ``fallback`` says why. ``fallback`` also
  says why the job that is read is not the job with the newest commits.
- Other writers' commits that change no data (OPTIMIZE, VACUUM) and directly follow the version are
  part of the cut: their files live longer. Other writers' rows are part of it if and only if they
  were committed before the version.
- The cut is a snapshot: later commits do not change it. Its versions can be read for as long as the
  table keeps their files (``delta.deletedFileRetentionDuration``, a week by default; in Iceberg,
  until the snapshot expires).

**A job's own records** (``read_job_epochs``) are needed because a checkpoint without rows for a
sink leaves no trace at the sink's target. Two facts in the job's directory show that the checkpoint
had no rows, rather than a commit still to come:

1. The job log names the newest completed checkpoint.
2. That checkpoint's ``_metadata`` holds everything that was staged and is not confirmed, of every
   epoch up to it (PROTOCOL P5).

So an epoch up to that checkpoint that has nothing pending, or only files without rows, is committed
or has nothing to commit. This stays true whatever the job does later, so a reader reads the records
first and the tables second. An epoch that the records call pending may be committed by then; the
table itself shows that::

    records   newest checkpoint 7, sink "revenue" has epoch 6 pending
    table     newest commit 3: complete up to 5     newest commit 6: complete up to 7

A sink that commits at intervals leaves out checkpoints. Its rows count as missing from the first
checkpoint after them on, and its commits say that they join several (``Commit.joins``): between two
of them its table shows the former only. Sinks of one interval commit at the same checkpoints.

A job that was started from another job's snapshot continues in the same tables, but adds no version
to a table before it has rows for it. So its records also name its tables and that snapshot: the
older job's commits up to the snapshot, and no later commits, are what the table held when this
job started.

How the job ended makes no difference. A finished job has committed everything; a cancelled job
has left its last epochs pending.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from weir.core.types import CompletedCheckpoint, JobId, OperatorId
from weir.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CutNotFoundError,
    StorageError,
    UnsupportedEnvironmentError,
    WeirError,
)
from weir.readers.delta_frames import check_plain, with_partitions
from weir.sinks.base import Commit
from weir.sinks.commit_log import CommitLog
from weir.sinks.ddl import columns_ddl
from weir.sinks.delta.log import TableLog, as_dict
from weir.sinks.iceberg.sink import IcebergTable
from weir.sinks.kafka.client import Ends
from weir.sinks.kafka.log import LedgerLog
from weir.sinks.kafka.sink import KafkaTopic
from weir.sinks.postgres.history import HistoryLog
from weir.sinks.postgres.sink import PostgresTable
from weir.sinks.staging import STAGED_PATH
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import FileSystem
from weir.storage.hadoop_site import default_file_system
from weir.storage.job_log import JobLog, JobRecord
from weir.storage.paths import (
    READ_EACH,
    as_delta_path,
    as_spark_path,
    is_same,
    join,
    name_of,
    needs_spark,
    normalize,
    parent,
    root_of,
    scheme_of,
)
from weir.storage.snapshots import Snapshots

if TYPE_CHECKING:
    import deltalake
    from pyiceberg.table import DataScan
    from pyspark.sql import DataFrame, SparkSession


#: How often the newest checkpoint may be subsumed between reading the log and its metadata.
_READ_TRIES = 10


#: How often a cut is tried while newer jobs commit.
_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class JobEpochs:
    """The epochs of a job as of its newest completed checkpoint."""

    job_id: JobId
    #: Ids of the retained checkpoints, oldest first; the last is the newest completed.
    checkpoints: tuple[int, ...]
    #: Epochs with rows that were not confirmed then, by sink. Has a key for every sink of the job.
    pending: Mapping[OperatorId, frozenset[int]]
    #: Where the Delta and Iceberg tables are that the job's sinks append to, by sink.
    tables: Mapping[OperatorId, str] = field(default_factory=dict)
    #: The directories of the retained checkpoints.
    paths: Mapping[int, str] = field(default_factory=dict)
    #: The jobs that this job was started from, each with the checkpoint that was restored.
    origins: Mapping[JobId, int] = field(default_factory=dict)

    def sink_of(self, root: str) -> OperatorId | None:
        """The newest checkpoint's only sink that appends to a table; None if none or several do."""
        root = as_delta_path(root)
        found = [
            sink
            for sink, table in self.tables.items()
            if sink in self.pending and is_same(as_delta_path(table), root)
        ]
        return found[0] if len(found) == 1 else None

    def whole_up_to(self, sink: OperatorId, committed: int) -> int:
        """The checkpoint up to which a table has all rows of the sink.

        ``committed`` is the checkpoint of the table's newest commit. It is also the answer for a
        sink that the job does not have, or no longer has.
        """
        if sink not in self.pending:
            return committed
        missing = (epoch - 1 for epoch in self.pending[sink] if epoch > committed)
        return max(committed, min(missing, default=self.checkpoints[-1]))


def read_job_epochs(job_directory: str, file_system: Callable[[str], FileSystem]) -> JobEpochs:
    """Read the records in a job's directory.

    Raises ``WeirError`` if they are missing, cannot be read, or name no checkpoint.
    """
    storage = CheckpointStorage(
        fs=file_system, base_directory=parent(job_directory), job_id=name_of(job_directory)
    )
    log = JobLog(file_system(job_directory), storage.log_directory, job_id=storage.job_id)
    for _ in range(_READ_TRIES):
        record = log.newest()
        if record is None or not record.checkpoints:
            raise StorageError(f"The job directory {job_directory} has no completed checkpoint.")
        newest = record.checkpoints[-1]
        try:
            checkpoint = storage.read(newest.path, expected_checksum=newest.checksum)
        except CheckpointNotFoundError as error:
            # Probably subsumed since the record was read: read the log again.
            gone = error
            continue
        return JobEpochs(
            job_id=storage.job_id,
            paths={known.checkpoint_id: known.path for known in record.checkpoints},
            checkpoints=tuple(known.checkpoint_id for known in record.checkpoints),
            pending=_pending(checkpoint),
            tables=record.tables,
            origins=_origins(record, storage),
        )
    raise gone


def _origins(record: JobRecord | None, storage: CheckpointStorage) -> dict[JobId, int]:
    """The snapshots in the job's past, as far back as their jobs' records lie beside its own."""
    origins: dict[JobId, int] = {}
    while record is not None and record.origin is not None and record.origin.job_id not in origins:
        origin = record.origin
        origins[origin.job_id] = origin.checkpoint_id
        directory = replace(storage, job_id=origin.job_id).log_directory
        record = JobLog(storage.fs(directory), directory).newest()
    return origins


def _pending(checkpoint: CompletedCheckpoint) -> dict[OperatorId, frozenset[int]]:
    pending: dict[OperatorId, set[int]] = {
        operator.operator_id: set() for task in checkpoint.tasks for operator in task.operators
    }
    for task in checkpoint.tasks:
        for item in task.committables:
            # An epoch whose staged files have no rows adds no version.
            if item.payload.get("files") != []:
                epoch = checkpoint.checkpoint_id if item.epoch is None else item.epoch
                # Its rows are part of a checkpoint that its sink has left out.
                first = epoch if item.left_out is None else item.left_out
                pending.setdefault(item.sink, set()).add(first)
    return {sink: frozenset(epochs) for sink, epochs in pending.items()}


@dataclass(frozen=True, kw_only=True)
class ConsistentCut:
    """Versions of several tables that show the same checkpoint (see the module's docstring)."""

    #: The checkpoint that every table shows, with nothing later.
    checkpoint_id: int
    #: The job that wrote it.
    job_id: str
    #: The version of each table (in Iceberg, the id of its snapshot; in PostgreSQL, the checkpoint
    #: of its newest rows; in Kafka, the offset in the ledger), by the caller's name for it.
    versions: Mapping[str, int]
    #: Where each table is; relative paths are made absolute when the cut is taken.
    paths: Mapping[str, str]
    #: None, or why the cut may be late: the job's records cannot be used to tell its empty
    #: checkpoints, or a newer job is not read yet.
    fallback: str | None = None
    #: The checkpoint's directory; None if the job did not retain it when the cut was taken.
    checkpoint_path: str | None = None
    #: For delta-rs; never shown, since it may hold credentials.
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    #: Those of the tables that are Iceberg's.
    icebergs: Mapping[str, IcebergTable] = field(default_factory=dict, repr=False)
    #: SQL for those of the tables that are PostgreSQL's.
    queries: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Those of the tables that are topics.
    topics: Mapping[str, LedgerLog] = field(default_factory=dict, repr=False)

    def offsets(self, name: str) -> Ends:
        """Where to stop reading a topic to see the cut, by topic and partition.

        All committed records before these offsets are part of it, and of the job's records no
        others. Raises ``StorageError`` if it is not a topic.
        """
        if name not in self.topics:
            raise StorageError(f"The cut has no Kafka topic named {name!r}.")
        return self.topics[name].ends(self.versions[name])

    def scan(self, name: str) -> DataScan:
        """An Iceberg table at its snapshot, for pyiceberg: ``cut.scan("clean").to_arrow()``.

        Raises ``StorageError`` if it is not an Iceberg table, or the snapshot has expired.
        """
        if name not in self.icebergs:
            raise StorageError(f"The cut has no Iceberg table named {name!r}.")
        table, version = self.icebergs[name].target.load(), self.versions[name]
        if table is None or table.snapshot_by_id(version) is None:
            raise StorageError(
                f"Snapshot {version} of table {name!r} ({self.icebergs[name].describe()}) has"
                " expired: take a new cut, and keep snapshots longer if cuts are read late."
            )
        return table.scan(snapshot_id=version)

    def query(self, name: str) -> str:
        """The rows of a PostgreSQL table at the cut, as SQL for psycopg or Spark's JDBC reader.

        Later commits change nothing that it returns. Raises ``StorageError`` if the table is not
        PostgreSQL's.
        """
        if name not in self.queries:
            raise StorageError(f"The cut has no PostgreSQL table named {name!r}.")
        return self.queries[name]

    def input_positions(self, spark: SparkSession | None = None) -> dict[str, list[Any]]:
        """Where the job's sources stand at the cut, as ``Savepoint.input_positions`` says.

        ``spark``: reads the checkpoint on HDFS or S3. Raises ``StorageError`` if it is not retained
        any more.
        """
        from weir.spark.state.reader import input_positions_of

        gone = (
            f"Checkpoint {self.checkpoint_id} is not retained any more, so the positions of its"
            " input are not known: retain more (execution.checkpointing.num-retained), or take a"
            " new cut."
        )
        if self.checkpoint_path is None:
            raise StorageError(gone)
        try:
            checkpoint = Snapshots(_file_systems(spark)).read(self.checkpoint_path)
        except CheckpointNotFoundError as error:
            raise StorageError(gone) from error
        return {
            source: offsets
            for task in checkpoint.tasks
            for source, offsets in input_positions_of(task, self.checkpoint_path).items()
        }

    def table(self, name: str) -> deltalake.DeltaTable:
        """A Delta table at its version, for use without Spark: ``cut.table("clean").to_pandas()``.

        Raises ``StorageError`` if it is not a Delta table, or the version can no longer be read.
        """
        import deltalake

        if name in self.icebergs:
            raise StorageError(
                f"Table {name!r} is an Iceberg table: read cut.scan(name), or cut.versions with a"
                " Spark that has Iceberg's library."
            )
        if name in self.queries:
            raise StorageError(f"Table {name!r} is a PostgreSQL table: run cut.query({name!r}).")
        if name in self.topics:
            raise StorageError(
                f"{name!r} is a Kafka topic: read cut.frame({name!r}, spark), or up to"
                f" cut.offsets({name!r})."
            )
        if name not in self.versions:
            raise StorageError(
                f"The cut has no table named {name!r}: its tables are"
                f" {', '.join(map(repr, self.versions))}."
            )
        version = self.versions[name]
        try:
            return deltalake.DeltaTable(
                as_delta_path(self.paths[name]),
                version=version,
                storage_options=as_dict(self.storage_options),
            )
        except (deltalake.exceptions.DeltaError, OSError) as error:
            raise StorageError(
                f"Version {version} of table {name!r} at {self.paths[name]} cannot be read"
                f" ({error}): take a new cut, and raise the table's delta.logRetentionDuration if"
                " cuts are read late."
            ) from error

    def frame(self, name: str, spark: SparkSession) -> DataFrame:
        """A Delta table at its version, or a topic up to its offsets, as a DataFrame.

        Spark reads the Parquet files and needs no Delta library. Columns have the table's names,
        types and order. Filters on partition columns do not prune files. Raises ``StorageError`` if
        the table has features that plain Parquet files cannot represent. A topic has the columns of
        Spark's Kafka connector, which is needed.
        """
        if name in self.topics:
            return self.topics[name].frame(self.offsets(name), spark)
        table = self.table(name)
        check_plain(name, table)
        fields = json.loads(table.schema().to_json())["fields"]
        schema = columns_ddl(fields)
        partition_by = table.metadata().partition_columns
        root = self.paths[name]
        actions = table.get_add_actions()
        paths = [unquote(path) for path in actions.column("path").to_pylist()]
        for path in paths:
            if not STAGED_PATH.fullmatch(path) or scheme_of(path) is not None:
                raise StorageError(
                    f"Version {self.versions[name]} of table {name!r} lists the file {path!r},"
                    f" which is outside {self.paths[name]}: read cut.table(name) with delta-rs if"
                    " you trust the writers of the table."
                )
        files = [join(root, path) for path in paths]
        if not files:
            return spark.createDataFrame([], schema)
        stored = [column for column in fields if column["name"] not in partition_by]
        reader = spark.read.schema(columns_ddl(stored)).options(recursiveFileLookup="true")
        frame = reader.options(**READ_EACH).parquet(*map(as_spark_path, files))
        if not partition_by:
            return frame
        values = zip(files, actions.column("partition").to_pylist(), strict=True)
        return with_partitions(frame, dict(values), fields, partition_by)


def read_consistent(
    tables: Mapping[str, str | IcebergTable | PostgresTable | KafkaTopic],
    *,
    checkpoint_id: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> ConsistentCut:
    """The newest versions of ``tables`` that show the same checkpoint of one job.

    ``tables``: by name, the path of a Delta table, or the ``IcebergTable`` that a pipeline has as
    its sink, or its ``PostgresTable`` with an ``epoch_column``, or its ``KafkaTopic``.
    ``checkpoint_id``: show this checkpoint instead, such as that at which a table without versions
    stands (``weir.commits`` in PostgreSQL). ``storage_options``: for delta-rs, as for the
    ``DeltaTable`` sink. ``spark``: reads the job's records if they are on HDFS or S3.

    Raises ``CutNotFoundError`` if a table does not exist or the checkpoint is not visible in all
    tables, both of which may change with time, and ``StorageError`` if a table cannot be read, if
    no job has written to all of them, or if several sinks of the job write to one table.
    """
    if not tables:
        raise ConfigurationError(
            "read_consistent needs at least one table: pass its name and path."
        )
    for _ in range(_TRIES):
        logs = [_log(name, table, storage_options) for name, table in tables.items()]
        job = _job_to_read(logs, spark)
        # The tables must be read after the records: the cut is correct because of this order.
        for log in logs:
            log.look_again()
        commits = job.commits(logs)
        # None: a newer job has committed meanwhile.
        if commits is not None:
            break
    else:
        raise StorageError(
            f"The job that writes {', '.join(tables)} changed {_TRIES} times during one read: try"
            " again when a single job is running."
        )
    for log in logs:
        log.check_one_sink(job.job_id, job.name, job.sink_of(log, commits))
    up_to = min(job.whole_up_to(log, commits) for log in logs)
    asked = up_to if checkpoint_id is None else min(up_to, checkpoint_id)
    up_to = _common(logs, job, asked)
    if checkpoint_id is not None and up_to < checkpoint_id:
        raise CutNotFoundError(
            f"Checkpoint {checkpoint_id} of job {job.name!r} is not visible in all tables, but"
            f" {up_to} is: a sink has yet to commit it, or has left it out (min_commit_interval)."
        )
    found = {log.name: _version_at(log, job, up_to) for log in logs}
    own = (commit.checkpoint_id for _, commit in found.values() if commit.job_id == job.job_id)
    retained = () if job.epochs is None else job.epochs.checkpoints
    # The newest checkpoint known to have completed: those between it and the bound were aborted or
    # had no rows.
    shown = max((known for known in (*retained, *own) if known <= up_to), default=up_to)
    return ConsistentCut(
        checkpoint_id=shown,
        job_id=job.job_id,
        versions={name: version for name, (version, _) in found.items()},
        paths={log.name: log.root for log in logs},
        storage_options=storage_options,
        checkpoint_path=None if job.epochs is None else job.epochs.paths.get(shown),
        icebergs={
            name: candidate
            for name, candidate in tables.items()
            if isinstance(candidate, IcebergTable)
        },
        queries={
            log.name: log.query(found[log.name][0]) for log in logs if isinstance(log, HistoryLog)
        },
        topics={log.name: log for log in logs if isinstance(log, LedgerLog)},
        fallback=job.fallback,
    )


def _log(
    name: str,
    table: str | IcebergTable | PostgresTable | KafkaTopic,
    storage_options: Mapping[str, str] | None,
) -> CommitLog:
    if isinstance(table, str):
        return TableLog(name, table, storage_options)
    if isinstance(table, PostgresTable):
        return table.history(name)
    if isinstance(table, KafkaTopic):
        return table.log(name)
    # Not at the top: pyiceberg may not be installed.
    from weir.sinks.iceberg.log import SnapshotLog

    return SnapshotLog(name, table)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The job that defines the cut: the tables are read at its checkpoints."""

    job_id: str
    name: str
    #: From the job's records; None if they cannot be used.
    epochs: JobEpochs | None
    fallback: str | None
    #: Whether a table may have no commit of this job yet and be where an older job left it.
    continues: bool

    @property
    def origins(self) -> Mapping[str, int]:
        """Older jobs whose commits count as this job's beginning, each with its last checkpoint."""
        return self.epochs.origins if self.continues and self.epochs is not None else {}

    def commits(self, logs: list[CommitLog]) -> dict[str, Commit] | None:
        """The job's newest commit in each table it wrote; None if another job must be read."""
        if not self.continues:
            job_id, commits = _newest_shared_job(logs)
            return commits if job_id == self.job_id else None
        newest = {log.name: log.newest() for log in logs}
        if any(self.left_out(log, newest[log.name]) for log in logs):
            return None
        return {name: commit for name, commit in newest.items() if commit.job_id == self.job_id}

    def left_out(self, log: CommitLog, newest: Commit) -> str | None:
        """Why a table with this newest commit cannot be read at this job's checkpoints, or None."""
        if newest.job_id == self.job_id or self.epochs is None:
            return None
        sink = self.epochs.sink_of(log.root)
        if sink is None:
            return f"its records do not mention {log.place}"
        if newest.checkpoint_id > self.origins.get(newest.job_id, -1):
            return (
                f"{log.place} has checkpoint {newest.checkpoint_id} of job {newest.job_name!r}"
                f" ({newest.job_id}), which it is not known to have started from"
            )
        if self.epochs.whole_up_to(sink, 0) < 1:
            return f"it has not committed rows yet to {log.place}"
        return None

    def sink_of(self, log: CommitLog, commits: Mapping[str, Commit]) -> str:
        """The sink that writes a table."""
        commit = commits.get(log.name)
        return (
            commit.sink
            if commit
            else (self.epochs.sink_of(log.root) if self.epochs else None) or ""
        )

    def whole_up_to(self, log: CommitLog, commits: Mapping[str, Commit]) -> int:
        """The checkpoint up to which a table has all rows."""
        commit = commits.get(log.name)
        committed = commit.checkpoint_id if commit else 0
        if self.epochs is None:
            return committed
        return self.epochs.whole_up_to(self.sink_of(log, commits), committed)


def _job_to_read(logs: list[CommitLog], spark: SparkSession | None) -> _Job:
    """The newest job at whose checkpoints all tables can be read."""
    newest = max((log.newest() for log in logs), key=lambda commit: commit.timestamp_ms)
    try:
        job_id, commits = _newest_shared_job(logs)
    except StorageError as error:
        job = _continuing_job(newest, logs, spark)
        if isinstance(job, str):
            raise StorageError(f"{error} {job}") from error
        return job
    epochs, fallback = _job_epochs(job_id, commits.values(), spark)
    name = commits[logs[0].name].job_name
    shared = _Job(job_id=job_id, name=name, epochs=epochs, fallback=fallback, continues=False)
    if newest.runner == job_id:
        return shared
    job = _continuing_job(newest, logs, spark)
    if isinstance(job, str):
        return replace(shared, fallback=" ".join(filter(None, (job, fallback))))
    return job


def _continuing_job(
    newest: Commit, logs: list[CommitLog], spark: SparkSession | None
) -> _Job | str:
    """The job that made the newest commit, if it continues what the other tables have.

    Otherwise a sentence that says why it is not read.
    """
    who = (
        f"Job {newest.job_name!r} ({newest.runner}) made the newest commit, but has not been read"
        " yet"
    )
    if not newest.job_directory:
        return f"{who}, since the commit does not name the directory of its job's records."
    try:
        epochs = read_job_epochs(normalize(newest.job_directory), _file_systems(spark))
    except WeirError as error:
        return f"{who}: {error}"
    job = _Job(
        job_id=newest.runner, name=newest.job_name, epochs=epochs, fallback=None, continues=True
    )
    why = next(filter(None, (job.left_out(log, log.newest()) for log in logs)), None)
    return job if why is None else f"{who}, since {why}."


def _job_epochs(
    job_id: str, commits: Collection[Commit], spark: SparkSession | None
) -> tuple[JobEpochs | None, str | None]:
    """The epochs in the job's records, or why the records cannot be used.

    A job that was started from another job's savepoint commits what was pending there in that job's
    name, perhaps to other tables; its own directory then says nothing about them.
    """
    directory, *others = {commit.job_directory for commit in commits}
    if others or not directory.endswith(f"/{job_id}"):
        return (
            None,
            "The tables' newest commits do not name one common directory of job records.",
        )
    try:
        return read_job_epochs(normalize(directory), _file_systems(spark)), None
    except WeirError as error:
        return None, f"The records of the job cannot be used here: {error}"


def _file_systems(spark: SparkSession | None) -> Callable[[str], FileSystem]:
    """File systems by path; without a session only those whose endpoint the user has named.

    A table, which may be anybody's, names the path: of HDFS only the default name node is asked.
    """
    if spark is not None:
        from weir.spark.hadoop import HadoopFileSystem

        return FileSystems(partial(HadoopFileSystem, spark))
    file_systems = FileSystems()

    def known(path: str) -> FileSystem:
        far = needs_spark(path) or (
            scheme_of(path) == "hdfs" and root_of(path) != default_file_system()
        )
        if far:
            raise UnsupportedEnvironmentError(
                f"{path} must be read through Spark: pass read_consistent a session (spark=)."
            )
        return file_systems(path)

    return known


def _newest_shared_job(logs: list[CommitLog]) -> tuple[str, dict[str, Commit]]:
    """The newest job that has committed to every table, and its newest commit in each.

    All logs are walked back in time together, so that no log is read further than the commit that
    is sought. If clocks differ, this reads a little more; the answer is the same.
    """
    walks = {log.name: log.commits() for log in logs}
    heads: dict[str, Commit] = {}
    found: dict[str, dict[str, Commit]] = {}
    for log in logs:
        head = log.newest()
        next(walks[log.name])
        heads[log.name] = head
        found[log.name] = {head.job_id: head}
    while True:
        for job_id in found[logs[0].name]:
            if all(job_id in jobs for jobs in found.values()):
                return job_id, {name: jobs[job_id] for name, jobs in found.items()}
        if not heads:
            break
        name = max(heads, key=lambda candidate: heads[candidate].timestamp_ms)
        older = next(walks[name], None)
        if older is None:
            del heads[name]
        else:
            heads[name] = older
            found[name].setdefault(older.job_id, older)
    writers = []
    for log in logs:
        newest = next(iter(found[log.name].values()))
        writers.append(f"{log.place} is written by job {newest.job_name!r} ({newest.job_id})")
    raise StorageError(
        "No single job has written to all tables, so they have no common checkpoint:"
        f" {', '.join(writers)}{''.join(log.cleaned_up() for log in logs)}. Read tables of one job"
        " together."
    )


def _common(logs: list[CommitLog], job: _Job, checkpoint_id: int) -> int:
    """The newest checkpoint up to this id that a version of every table shows.

    A commit of a sink that leaves out checkpoints has rows of those before its own. So between the
    commit before it and this commit, the table shows only the checkpoint of the former.
    """
    while True:
        shown = min(_shown(log, job.job_id, checkpoint_id) for log in logs)
        if shown == checkpoint_id:
            return shown
        checkpoint_id = shown


def _shown(log: CommitLog, job_id: str, checkpoint_id: int) -> int:
    """The newest checkpoint up to this id that a version of the table shows; 0 if none does."""
    newer: Commit | None = None
    for commit in log.commits():
        if commit.job_id == job_id and commit.checkpoint_id <= checkpoint_id:
            return commit.checkpoint_id if newer is not None and newer.joins else checkpoint_id
        newer = commit if commit.job_id == job_id else newer
    return 0 if newer is not None and newer.joins else checkpoint_id


def _version_at(log: CommitLog, job: _Job, checkpoint_id: int) -> tuple[int, Commit]:
    """The version to read of a table, and the commit that it shows.

    That commit is the job's newest not above the checkpoint, or else the newest that counts as its
    beginning (``_Job.origins``). The version includes the maintenance commits right after it.
    """
    limits = {**job.origins, job.job_id: checkpoint_id}
    maintained: int | None = None
    for entry in log.entries():
        commit = entry.commit
        if commit is not None and commit.checkpoint_id <= limits.get(commit.job_id, -1):
            return (entry.version if maintained is None else maintained), commit
        if commit is not None or entry.changes_data:
            maintained = None
        elif maintained is None:
            maintained = entry.version
    raise CutNotFoundError(
        f"The tables have no common checkpoint of job {job.name!r} yet: checkpoint {checkpoint_id}"
        f" is the newest that all could show, but {log.place} has no checkpoint of the job up to"
        f" it{log.cleaned_up()}. Wait until every table has rows of a newer checkpoint, and read"
        " again."
    )
