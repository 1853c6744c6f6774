"""Reads a vertex's state in a snapshot: its progress without a JVM, its keyed state with Spark.

*Without a JVM* (``contents_of``): the entries of Spark's logs are kept inside the metadata, and the
names of the state files say to which stateful operator and partition of Spark's plan they belong.

*With Spark* (``StateReader``):

1. The directory that Spark's readers expect is rebuilt in a temporary directory, as for a restore:
   entries are written; files are linked, or copied if they are on another file system or it has no
   links.
2. Spark's metadata in it lists the stateful operators of the vertex, and Spark's ``statestore``
   source reads the stores of each.
3. The frames read these files lazily, so the directory lives as long as the reader.

A vertex is one query, so it has all the stateful operators of its chain. The names of the frames
can be used for views:

=================================  ========================================
stateful operator                  its frames
=================================  ========================================
aggregation, session windows,      ``state``
duplicates, a single store in general
stream-stream join                 ``left``, ``right``
transformWithState                 each state variable by its name; ``timers`` if it has a time mode
several in one vertex              the same with the number appended: ``state_0``, ``left_1``
=================================  ========================================

Columns are Spark's: ``key`` and ``value`` (structs) and ``partition_id``; a variable of
``transformWithState`` has the columns of its type.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from weir.core.types import CompletedCheckpoint, OperatorId, TaskState, VertexId
from weir.errors import ConfigurationError, StorageError
from weir.spark.failures import first_cause
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.offsets import ControlOffset
from weir.spark.session import class_archive
from weir.spark.session.settings import REQUIRED
from weir.spark.session.start import (
    DEFAULT_MASTER,
    create_session,
    end_with_jvm,
    java_options_of,
    with_defaults_file,
)
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import OperatorMetadata, decode_commit, decode_offsets
from weir.spark.state.plan_layout import CONTROL, PLAN_ENTRY, channel_of, decode_layout
from weir.spark.state.rocksdb_files import operator_metadata
from weir.spark.state.saved_task import unfit
from weir.spark.state.snapshots import restore_directory
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.filesystem import FileSystem
from weir.storage.paths import as_spark_path, join, temporary_directory

if TYPE_CHECKING:
    import tempfile

    from pyspark.sql import DataFrame, SparkSession

_STATE_FILE = re.compile(r"state/(?P<operator>[0-9]+)/(?P<partition>[0-9]+)/.+")

#: Spark's name for the operator whose stores are read by side.
_JOIN = "symmetricHashJoin"

#: The setting for the state format; with version 2 ``commits/b`` names the state files.
_FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True, kw_only=True)
class StatefulOperator:
    """The state of one stateful operator of Spark's plan in a snapshot."""

    #: Spark's number for it in the query, from 0.
    number: int
    #: The size of each partition's files in bytes, in the order of the partitions.
    partition_sizes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class VertexContents:
    """A vertex's progress and state; empty if the vertex has finished or had not started."""

    #: The watermark of its last batch; 0 before the first event time, None if there was no batch.
    watermark_ms: int | None = None
    #: The watermark that its next batch would have.
    next_watermark_ms: int | None = None
    #: The offset of each of its sources, in the source's notation and Spark's order; empty for a
    #: vertex that reads channels.
    source_offsets: tuple[str, ...] = ()
    stateful_operators: tuple[StatefulOperator, ...] = ()


def contents_of(task: TaskState, path: str) -> VertexContents:
    """The contents of a vertex, from the log entries in the metadata of the snapshot at ``path``.

    Raises ``CheckpointDamagedError``.
    """
    offsets = task.entries.get(f"offsets/{task.position}")
    commit = task.entries.get(f"commits/{task.position}")
    if offsets is None or commit is None:
        return VertexContents()
    try:
        batch = decode_offsets(offsets)
        committed = decode_commit(commit)
    except ValueError as error:
        raise unfit(task, path, error) from error
    sizes: Counter[tuple[int, int]] = Counter()
    for handle in task.files:
        match = _STATE_FILE.fullmatch(handle.key)
        if match is not None:
            sizes[int(match["operator"]), int(match["partition"])] += handle.size
    return VertexContents(
        watermark_ms=batch.metadata.watermark_ms,
        next_watermark_ms=committed.next_watermark_ms,
        # Positions in a channel mean nothing to users.
        source_offsets=(
            () if task.inputs else tuple(text for text in batch.offsets if not _is_control(text))
        ),
        stateful_operators=tuple(
            StatefulOperator(
                number=number,
                partition_sizes=tuple(
                    sizes[number, partition] for partition in range(len(partitions))
                ),
            )
            for number, partitions in sorted(
                (int(key), ids) for key, ids in (committed.state_ids or {}).items()
            )
        ),
    )


def input_positions_of(task: TaskState, path: str) -> dict[OperatorId, list[Any]]:
    """By source, the offset of each stream that its function reads, as Spark's source writes it.

    Only of sources that Spark reads; JSON is decoded. Raises ``CheckpointDamagedError``.
    """
    text, entry = (task.entries.get(name) for name in (PLAN_ENTRY, f"offsets/{task.position}"))
    if text is None or entry is None:
        return {}
    positions: dict[OperatorId, list[Any]] = {}
    try:
        inputs, offsets = decode_layout(text).inputs, decode_offsets(entry).offsets
        for place, offset in zip(inputs, offsets, strict=True):
            if place.owner != CONTROL and channel_of(place.owner) is None:
                positions.setdefault(place.owner, []).append(_decoded_offset(offset))
    except ValueError as error:
        raise unfit(task, path, error) from error
    return positions


def _decoded_offset(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


class StateReader:
    """Reads the keyed state of one checkpoint or savepoint.

    The session and a temporary directory are made when needed. Without ``session``, the process's
    session is used; if it has none, a local session is made, and stopped by ``close``. The Spark
    tasks of the session must see the driver's temporary directory, as with a local master.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self._is_ours = False
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        #: Names for directories in it.
        self._numbers = itertools.count()
        self._frames: dict[VertexId, dict[str, DataFrame]] = {}
        #: Paths that are not local are read through the session.
        self.file_systems = FileSystems(self._hadoop_file_system)

    def close(self) -> None:
        """Delete the temporary directory, and stop the session if it was made here.

        Frames cannot be used afterwards.
        """
        self._frames.clear()
        if self._session is not None and self._is_ours:
            # A job that this process runs next needs a JVM with other options.
            end_with_jvm(self._session)
        self._session = None
        if self._directory is not None:
            self._directory.cleanup()
        self._directory = None

    def frames(self, checkpoint: CompletedCheckpoint, task: TaskState) -> dict[str, DataFrame]:
        """The keyed state of a vertex, by the names in the module's table.

        Raises ``StorageError``.
        """
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
        """Rebuild the vertex's query directory below the temporary directory."""
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
            # It is removed when the interpreter exits, at the latest.
            self._directory = temporary_directory("weir-state-")
        return self._directory.name

    def _get_session(self) -> SparkSession:
        if self._session is None:
            from pyspark import SparkContext
            from pyspark.sql import SparkSession

            if SparkContext._active_spark_context is not None:
                self._session = SparkSession.builder.getOrCreate()
            else:
                conf = with_defaults_file({})
                self._session = create_session(
                    name="saved state",
                    master=DEFAULT_MASTER,
                    conf=conf,
                    parallelism=None,
                    fast_working_directory=True,
                    log_file=f"{self._temporary_directory()}/spark.log",
                    java_options=class_archive.java_options(
                        java_options_of(conf), profile=class_archive.JvmProfile.BRIEF
                    ),
                )
                self._is_ours = True
        return self._session

    def _hadoop_file_system(self, path: str) -> FileSystem:
        return HadoopFileSystem(self._get_session(), path)


def query_frames(frames: Mapping[str, DataFrame], sql: str) -> DataFrame:
    """The answer to an SQL query over the frames, as temporary views with their names.

    Raises ``ConfigurationError`` if the query cannot be run.
    """
    session = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        # Names may be the user's own, and come from the snapshot.
        quoted = name.replace("`", "``")
        with _raising_one_sentence({name: frame}):
            frame.createOrReplaceTempView(f"`{quoted}`")
    with _raising_one_sentence(frames):
        return session.sql(sql)


def with_store(frame: DataFrame, name: str) -> DataFrame:
    """The rows of a store with its name, which may contain any character, in column ``store``."""
    from pyspark.sql import functions as F

    return frame.select(F.lit(name).alias("store"), "*")


def first_rows(frame: DataFrame, limit: int) -> list[tuple[str | None, ...]]:
    """The first rows as text, each value as Spark shows it.

    Raises ``ConfigurationError`` if they cannot be computed.
    """
    # Two columns of a query may share a name.
    names = [f"column_{number}" for number in range(len(frame.columns))]
    shown = frame.toDF(*names).selectExpr(*[f"CAST({name} AS STRING)" for name in names])
    with _raising_one_sentence({"the answer": frame}):
        return [tuple(row) for row in shown.limit(limit).collect()]


def rows_as_json(frame: DataFrame, limit: int | None) -> Iterator[str]:
    """Up to ``limit`` rows (None: all) as JSON objects, including nulls.

    Raises ``ConfigurationError`` if they cannot be computed.
    """
    rows = frame if limit is None else frame.limit(limit)
    with _raising_one_sentence({"the answer": frame}):
        objects = rows.selectExpr(
            "to_json(struct(*), map('ignoreNullFields', 'false'))"
        ).toLocalIterator()
        yield from (str(row[0]) for row in objects)


@contextmanager
def _raising_one_sentence(frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Turn what Spark raises into ``ConfigurationError``, and keep PySpark from printing it too."""
    from weir.spark.quiet import without_pyspark_log

    try:
        with without_pyspark_log():
            yield
    except Exception as error:
        known = "; ".join(
            f"{name} has the columns {', '.join(frame.columns)}" for name, frame in frames.items()
        )
        raise ConfigurationError(
            f"The query over the state cannot be run ({first_cause(error)}): correct it; {known}."
        ) from error


def _read_stores(session: SparkSession, directory: QueryDirectory) -> dict[str, DataFrame]:
    # Spark takes all other settings of the state store from the query's offset log, but this
    # setting from the session, when a frame is loaded.
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
    """The name of each store of an operator, and the options with which Spark reads it."""
    if operator.name == _JOIN:
        yield "left", {"joinSide": "left"}
        yield "right", {"joinSide": "right"}
        return
    properties = operator.properties
    if properties.variables is None:
        yield "state", {}
        return
    for variable in properties.variables:
        # Spark keeps timers in internal variables, whose names start with $.
        if not variable.name.startswith("$"):
            yield variable.name, {"stateVarName": variable.name}
    if properties.time_mode != "NoTime":
        yield "timers", {"readRegisteredTimers": "true"}


def _is_control(offset: str) -> bool:
    """Whether this is an offset of the control input, which Weir adds to every query."""
    try:
        ControlOffset.decode(offset)
    except ValueError:
        return False
    return True
