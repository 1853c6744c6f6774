"""Reads what a snapshot holds of one vertex: without a JVM what its logs say, with one its keyed
state.

*Without a JVM* (``contents_of``): the entries of Spark's logs are kept inside the metadata, and the
names of the state files say to which stateful operator and partition of Spark's plan they belong.

*With Spark* (``StateReader``):

1. The directory that Spark's readers want is rebuilt in a temporary one, as for a restore: entries
   are written, files are linked, or copied where the file system has no links or is another one.
2. Spark's metadata in it lists the stateful operators of the vertex, and Spark's ``statestore``
   reads the stores of each.
3. The frames read these files when they are used, so the directory lives as long as the reader.

A vertex is one query, and so has as many stateful operators as its chain. The frames get names that
can be views:

=================================  ========================================
stateful operator                  its frames
=================================  ========================================
aggregation, session windows,      ``state``
duplicates, one store in general
stream-stream join                 ``left``, ``right``
transformWithState                 each state variable by its name; ``timers`` if it has a time mode
several in one vertex              the same with their number behind: ``state_0``, ``left_1``
=================================  ========================================

Columns are Spark's: ``key`` and ``value`` (structs) and ``partition_id``; a variable of
``transformWithState`` has those of its type.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.core.types import CompletedCheckpoint, TaskState, VertexId
from weir.errors import ConfigurationError, StorageError
from weir.spark import class_archive
from weir.spark.failures import first_cause
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.query_directory import QueryDirectory, decode_commit, decode_offsets
from weir.spark.saved_task import unfit
from weir.spark.session import REQUIRED, create_session
from weir.spark.snapshots import restore_directory
from weir.spark.state_files import OperatorMetadata, operator_metadata
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.filesystem import FileSystem
from weir.storage.paths import as_spark_path, join, root_of, temporary_directory
from weir.storage.records import decoded

if TYPE_CHECKING:
    import tempfile

    from pyspark.sql import DataFrame, SparkSession

_STATE_FILE = re.compile(r"state/(?P<operator>[0-9]+)/(?P<partition>[0-9]+)/.+")

#: Spark's name of the operator whose stores are read by side.
_JOIN = "symmetricHashJoin"

#: PySpark prints an error that points into a query to the error stream, before it raises it.
_PRINTING_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

#: Whether ``commits/b`` names the files of the state.
_FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"

#: Fields of the control input's offset, which is no source of the user's.
_CONTROL_OFFSETS = ({"control"}, {"control", "watermarks"})


@dataclass(frozen=True, kw_only=True)
class StatefulOperator:
    """What a snapshot holds of one stateful operator of Spark's plan."""

    #: Spark's number of it in the query, from 0.
    number: int
    #: Bytes of each partition's files, in their order.
    partition_sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class VertexContents:
    """How far a vertex was, and what it keeps; empty for one that has finished or had not begun."""

    #: The watermark of its last step; 0 before the first event time, None if there was no step.
    watermark_ms: int | None = None
    #: The watermark that its next step would have.
    next_watermark_ms: int | None = None
    #: Where it stands in each of its sources, as these spell it, in Spark's order; none for a
    #: vertex that reads channels.
    source_offsets: tuple[str, ...] = ()
    stateful_operators: tuple[StatefulOperator, ...] = ()


def contents_of(task: TaskState, path: str) -> VertexContents:
    """What the own entries of the snapshot at a path say of a vertex. Raises
    ``CheckpointDamagedError``."""
    offsets = task.entries.get(f"offsets/{task.position}")
    commit = task.entries.get(f"commits/{task.position}")
    if offsets is None or commit is None:
        return VertexContents()
    try:
        batch, of_sources = decode_offsets(offsets)
        committed = decode_commit(commit)
    except ValueError as error:
        raise unfit(task, path, error) from error
    sizes: Counter[tuple[int, int]] = Counter()
    for handle in task.files:
        match = _STATE_FILE.fullmatch(handle.key)
        if match is not None:
            sizes[int(match["operator"]), int(match["partition"])] += handle.size
    unique_ids = committed.get("stateUniqueIds") or {}
    return VertexContents(
        watermark_ms=batch.watermark_ms,
        next_watermark_ms=committed.get("nextBatchWatermarkMs"),
        # Positions in a channel say nothing to who looks from outside.
        source_offsets=(
            () if task.inputs else tuple(text for text in of_sources if not _is_control(text))
        ),
        stateful_operators=tuple(
            StatefulOperator(
                number=number,
                partition_sizes=tuple(
                    sizes[number, partition] for partition in range(len(partitions))
                ),
            )
            for number, partitions in sorted((int(key), ids) for key, ids in unique_ids.items())
        ),
    )


class StateReader:
    """Reads keyed state of one checkpoint or savepoint, in a session and a temporary directory made
    when they are needed.

    ``session`` None: the process's session is used, else one on this machine is made, and stopped
    by ``close``. The tasks of the session must see the driver's temporary directory, as those of a
    local master do.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self._is_ours = False
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        #: Names of directories in it.
        self._numbers = itertools.count()
        self._frames: dict[VertexId, dict[str, DataFrame]] = {}
        self._hadoop: dict[str, FileSystem] = {}
        #: Paths that are not local are read through the session.
        self.file_systems = FileSystems(self._hadoop_file_system)

    def close(self) -> None:
        """Delete the temporary directory, and stop the session if it was made here. Frames cannot
        be used any more."""
        self._frames.clear()
        if self._session is not None and self._is_ours:
            self._session.stop()
        self._session = None
        if self._directory is not None:
            self._directory.cleanup()
        self._directory = None

    def frames(self, checkpoint: CompletedCheckpoint, task: TaskState) -> dict[str, DataFrame]:
        """The keyed state of a vertex, by the names of the module's table. Raises
        ``StorageError``."""
        known = self._frames.get(task.vertex)
        if known is None:
            directory = self._rebuild(checkpoint, task)
            try:
                known = _read_stores(self._get_session(), directory)
            except Exception as error:
                raise StorageError(
                    f"Spark cannot read the state of vertex {task.vertex!r} in"
                    f" {checkpoint.external_path} ({first_cause(error)}): use the Spark version"
                    " that wrote it."
                ) from error
            self._frames[task.vertex] = known
        return dict(known)

    def _rebuild(self, checkpoint: CompletedCheckpoint, task: TaskState) -> QueryDirectory:
        """The vertex's directory as it was, below the temporary one."""
        path = join(self._temporary_directory(), str(next(self._numbers)))
        self.file_systems(path).make_directory(path)
        storage = CheckpointStorage(
            fs=self.file_systems, base_directory=checkpoint.external_path, job_id=checkpoint.job_id
        )
        directory = QueryDirectory(self.file_systems(path), path)
        for handle in task.files:
            storage.verify_file(checkpoint, handle)
        restore_directory(
            state=task,
            checkpoint=checkpoint,
            storage=storage,
            transfer=Transfer(self.file_systems),
            directory=directory,
        )
        return directory

    def _temporary_directory(self) -> str:
        if self._directory is None:
            # It removes itself at the latest when the interpreter ends.
            self._directory = temporary_directory("weir-state-")
        return self._directory.name

    def _get_session(self) -> SparkSession:
        if self._session is None:
            from pyspark import SparkContext
            from pyspark.sql import SparkSession

            if SparkContext._active_spark_context is not None:
                self._session = SparkSession.builder.getOrCreate()
            else:
                self._session = create_session(
                    name="saved state",
                    master=None,
                    conf={},
                    parallelism=None,
                    fast_working_directory=True,
                    log_file=f"{self._temporary_directory()}/spark.log",
                    java_options=class_archive.java_options(profile=class_archive.JvmProfile.BRIEF),
                )
                self._is_ours = True
        return self._session

    def _hadoop_file_system(self, path: str) -> FileSystem:
        root = root_of(path)
        if root not in self._hadoop:
            self._hadoop[root] = HadoopFileSystem(self._get_session(), path)
        return self._hadoop[root]


def query_frames(frames: Mapping[str, DataFrame], sql: str) -> DataFrame:
    """The answer to a query over temporary views of these names. Raises ``ConfigurationError`` if
    it cannot be run."""
    session = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        # Names are the user's, and come from the snapshot.
        quoted = name.replace("`", "``")
        with _told_in_one_sentence({name: frame}):
            frame.createOrReplaceTempView(f"`{quoted}`")
    with _told_in_one_sentence(frames):
        return session.sql(sql)


def with_store(frame: DataFrame, name: str) -> DataFrame:
    """The rows of a store with its name, whatever that is, in the column ``store``."""
    from pyspark.sql import functions as F

    return frame.select(F.lit(name).alias("store"), "*")


def first_rows(frame: DataFrame, limit: int) -> list[tuple[str | None, ...]]:
    """The first rows as text, each value as Spark shows it. Raises ``ConfigurationError`` if they
    cannot be computed."""
    # Two columns of a query may share a name.
    names = [f"column_{number}" for number in range(len(frame.columns))]
    shown = frame.toDF(*names).selectExpr(*[f"CAST({name} AS STRING)" for name in names])
    with _told_in_one_sentence({"the answer": frame}):
        return [tuple(row) for row in shown.limit(limit).collect()]


def rows_as_json(frame: DataFrame, limit: int | None) -> Iterator[str]:
    """Rows (None: all) as JSON objects, nulls included. Raises ``ConfigurationError`` if they
    cannot be computed."""
    rows = frame if limit is None else frame.limit(limit)
    with _told_in_one_sentence({"the answer": frame}):
        objects = rows.selectExpr(
            "to_json(struct(*), map('ignoreNullFields', 'false'))"
        ).toLocalIterator()
        yield from (str(row[0]) for row in objects)


@contextmanager
def _told_in_one_sentence(frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Turns what Spark raises into a ``ConfigurationError``, and keeps PySpark from printing it as
    well."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _PRINTING_LOGGERS]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except Exception as error:
        known = "; ".join(
            f"{name} has the columns {', '.join(frame.columns)}" for name, frame in frames.items()
        )
        raise ConfigurationError(
            f"The query over the state cannot be run ({first_cause(error)}): correct it; {known}."
        ) from error
    finally:
        for logger in loggers:
            logger.disabled = False


def _read_stores(session: SparkSession, directory: QueryDirectory) -> dict[str, DataFrame]:
    # All other settings of the state store Spark takes from the query's offset log, and this one
    # from the session, at once.
    before = session.conf.get(_FORMAT_VERSION) or "1"
    session.conf.set(_FORMAT_VERSION, REQUIRED[_FORMAT_VERSION])
    try:
        return _frames(session, directory)
    finally:
        session.conf.set(_FORMAT_VERSION, before)


def _frames(session: SparkSession, directory: QueryDirectory) -> dict[str, DataFrame]:
    operators = operator_metadata(directory)
    frames: dict[str, DataFrame] = {}
    for number, operator in operators.items():
        suffix = "" if len(operators) == 1 else f"_{number}"
        for name, options in _stores(operator):
            reader = (
                session.read.format("statestore").option("operatorId", number).options(**options)
            )
            frames[name + suffix] = reader.load(as_spark_path(directory.path))
    return frames


def _stores(operator: OperatorMetadata) -> Iterator[tuple[str, dict[str, str]]]:
    """The name of each store of an operator, and the options that let Spark read it."""
    if operator.name == _JOIN:
        yield "left", {"joinSide": "left"}
        yield "right", {"joinSide": "right"}
        return
    properties = operator.properties
    if "stateVariables" not in properties:
        yield "state", {}
        return
    for variable in properties["stateVariables"]:
        name = variable["stateName"]
        # Timers are kept as inner variables, which have names of Spark's own.
        if not name.startswith("$"):
            yield name, {"stateVarName": name}
    if properties.get("timeMode", "NoTime") != "NoTime":
        yield "timers", {"readRegisteredTimers": "true"}


def _is_control(offset: str) -> bool:
    """Whether this is the offset of the input that Weir adds to every query."""
    try:
        return set(decoded(offset, dict[str, Any])) in _CONTROL_OFFSETS
    except ValueError:
        return False
