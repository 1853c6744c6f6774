"""Channels in Spark: segments on disk, the source that reads them, and a step's input frame.

**The frame** (``channel_frame``) has the rows that another query of the job wrote, with that
query's watermark (PROTOCOL P25). The producer writes Parquet files (segments), and
``ChannelSource`` reads exactly the segments that the driver admits.

The watermark cannot be derived again from the rows: rows that an outer join emits late would be
dropped. It comes only from a row of the control input:

    control rows of this channel, as (nulls.., __weir_watermark)
      -> withWatermark("__weir_watermark", "0 seconds")
      -> a filter that drops the row once the watermark node has seen it
      -> event-time columns get back their metadata, which a watermark node strips from all columns
         but its own
      -> first in the union with the segments, which have no watermark node

Both the filter and the nulls must be opaque to the optimizer. It folds ``rand() < 0`` to false. It
pushes the predicates of later steps through a deterministic filter and below the watermark node,
which then sees no row. A literal null is no better: in a batch without segments of this channel, a
join would infer from its null key that the other side's key must be null too, and drop every row of
that side.

**Segments** on disk (``OutputSegments``), each written by Spark in the producer's batch::

    <attempt>/_channels/<producer>/<position>/part-*.parquet
    <attempt>/_channels/<producer>/<position>-rejects.parquet

The second file has what the producer's steps have set aside (``weir/spark/rejects``). If nothing
else is read from the channel, it is all that a segment has.

A segment is deleted once no consumer needs it. Nothing here is durable: a restored job has a new
attempt directory, and an aligned checkpoint leaves nothing in a channel. Segments overtaken by an
unaligned checkpoint are in the snapshot of the consumer, and after a restore below the consumer's
directory (PROTOCOL P27)::

    <attempt>/<consumer>/in-flight/<producer>/<position>-<part>.parquet

So the payload of a segment has the paths of its files or, after a restore, their keys below that
directory. It also names the side outputs whose rows the files hold (``operators/outputs.py``).

**The source** (``ChannelSource``) is implemented by the driver and reads exactly the admitted
segments, natively. Its offset is a position in the channel:
``{"channel": "clean", "position": 41}``, stored in the query's own offset log and nowhere else. A
batch from one offset to the next reads the segments in between: their Parquet files become a plan
like the one that Spark makes for its own file source, so columns are pruned and filters are pushed
down. It implements Spark's V1 source interface because V2 sources get neither.

Spark would pack files into tasks by their sizes, which loses the order of segments. In front of
Weir's operators, which may expect the rows of a key in the order in which a subtask emitted them,
no file is split between tasks, and several segments are read by one task, in their order: a shuffle
keeps the order of each task's rows.

The offset of a batch says what it has read (PROTOCOL P7). ``latestOffset`` returns the last
admitted position, ``getBatch`` reads up to it, and the next ``latestOffset`` receives the committed
position and compares it with what was read.

After a restart Spark calls ``getBatch`` once for the last batch, which is committed: its segments
may be gone, and nobody reads the result. Segments may be missing at no other time.

Method names are Java's. A py4j proxy has no default methods, so every method of the interfaces is
defined here.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimestampType,
    TimeType,
    YearMonthIntervalType,
)

from weir.core.graph import GraphStep
from weir.core.messages.channel import Segment
from weir.core.types import InFlightSegment, Payload, VertexId
from weir.errors import InvariantError, PipelineError, StorageError, WeirError
from weir.sinks.parquet import count_rows
from weir.sinks.staging import write_frame
from weir.spark.control_input import PlanningRounds, QueryInterruptedError
from weir.spark.failures import first_cause
from weir.spark.java import JavaStream, Jvm
from weir.spark.offsets import ChannelOffset
from weir.spark.releases import execution_relation
from weir.storage.filesystem import FileSystem
from weir.storage.paths import READ_EACH, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader


#: The metadata key that makes a column an event-time column.
EVENT_TIME = "spark.watermarkDelayMs"

#: The number of a source's readers in the control input; their query reads no channel.
SOURCE_NUMBER = 0

_WATERMARK = "__weir_watermark"


def plain_schema(schema: StructType) -> StructType:
    """The schema of a channel's files: names and types, without metadata."""
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])


def channel_frame(
    control: DataFrame, segments: DataFrame, *, index: int, schema: StructType
) -> DataFrame:
    """The channel's rows, with the names, types and event-time columns of ``schema``.

    ``schema`` is the producer's. As with any file, every column is nullable. ``control`` is the
    query's control input of ``CHANNEL_SCHEMA``, one object for all channels; ``index`` is this
    channel's number in it. ``segments`` has the segments' rows, of ``plain_schema``. A channel
    without an event-time column has no watermark.
    """
    if not has_event_time(schema):
        never = F.spark_partition_id() < 0
        return control.select(*_nulls(schema)).filter(never).union(segments)
    return _told(control, index=index, schema=schema).union(segments)


def source_frame(control: DataFrame, rows: DataFrame, *, schema: StructType) -> DataFrame:
    """The rows of a source's readers, with the watermark that the control input carries.

    ``schema`` is theirs, with an event time. The readers come first: the number of a partition is
    that of its subtask.
    """
    rows = rows.select(*[_column(field) for field in schema.fields])
    return rows.union(_told(control, index=SOURCE_NUMBER, schema=schema))


def _told(control: DataFrame, *, index: int, schema: StructType) -> DataFrame:
    """The branch without rows that brings a channel's watermark."""
    watermark = _unused_name(schema)
    risen = control.filter(F.col("channel") == index).select(
        *_nulls(schema), F.col("watermark").alias(watermark)
    )
    timed = risen.withWatermark(watermark, "0 seconds").filter(F.spark_partition_id() < 0)
    return timed.select(*[_column(field) for field in schema.fields])


def _nulls(schema: StructType) -> list[Column]:
    """A null for each column, which the optimizer does not recognize as a null."""
    never = F.spark_partition_id() < 0
    return [
        F.when(never, F.lit(None).cast(field.dataType)).alias(field.name) for field in schema.fields
    ]


def event_time(schema: StructType) -> str | None:
    """The column with the event time; None if there is none."""
    timed = (field.name for field in schema.fields if EVENT_TIME in field.metadata)
    return next(timed, None)


def has_event_time(schema: StructType) -> bool:
    """Whether a channel of this schema carries a watermark."""
    return event_time(schema) is not None


def with_event_time(step: GraphStep, schema: StructType, column: str) -> StructType:
    """The schema with ``column`` as its event time.

    Raises ``PipelineError`` if it has no such column of type ``timestamp``.
    """
    if not any(
        field.name == column and isinstance(field.dataType, TimestampType) for field in schema
    ):
        raise PipelineError(
            f"Source {step.name!r} takes its watermarks from {column!r}, but its schema has no such"
            f" column of type timestamp: {schema.simpleString()}. Name such a column with"
            " Watermarks(column=...), or declare it as timestamp."
        )
    return StructType(
        [
            StructField(
                field.name, field.dataType, metadata={EVENT_TIME: 0} if field.name == column else {}
            )
            for field in schema.fields
        ]
    )


def check_channel_schema(step_name: str, schema: StructType) -> None:
    """Check that rows of this schema can go to another query as Parquet files.

    Raises ``PipelineError`` if they cannot.
    """
    repeated = _repeated(schema.names)
    if repeated is not None:
        raise PipelineError(
            f"Step {step_name!r} has two columns named {repeated!r} (case aside), but its rows go"
            " to another query as Parquet files, which cannot hold both: rename one of them, or"
            " drop it."
        )
    for field in schema.fields:
        unfit = _unfit(field.dataType)
        if unfit is not None:
            raise PipelineError(
                f"Column {field.name!r} of step {step_name!r} has type"
                f" {field.dataType.simpleString()}, but its rows go to another query as Parquet"
                f" files, which cannot hold {unfit}: cast the column, or drop it."
            )
    if not schema.fields:
        raise PipelineError(
            f"Step {step_name!r} has no columns, so its rows cannot go to another query: keep one"
            " column."
        )


def _unfit(kind: DataType) -> str | None:
    """The part of the type that Parquet cannot hold, in words; None if it holds all of it.

    Variants, geometries and collated strings are fine.
    """
    if isinstance(kind, CalendarIntervalType | DayTimeIntervalType | YearMonthIntervalType):
        return "intervals"
    if isinstance(kind, TimeType):
        return "times without a date"
    if isinstance(kind, NullType):
        return "a column without a type"
    parts: list[DataType] = []
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        if not kind.fields:
            return "a struct without fields"
        if _repeated(kind.names) is not None:
            return "two fields of the same name"
        parts = [field.dataType for field in kind.fields]
    return next((unfit for unfit in map(_unfit, parts) if unfit is not None), None)


def _repeated(names: Iterable[str]) -> str | None:
    """A name that occurs twice, ignoring case; None otherwise."""
    counts = Counter(name.lower() for name in names)
    return next((name for name, count in counts.items() if count > 1), None)


def _unused_name(schema: StructType) -> str:
    name = _WATERMARK
    while name in {field.name.lower() for field in schema.fields}:
        name += "_"
    return name


def _column(field: StructField) -> Column:
    """The column with its metadata; the producer's watermark already includes the delay."""
    column = F.col("`" + field.name.replace("`", "``") + "`")
    metadata: dict[str, Any] = field.metadata
    if EVENT_TIME not in metadata:
        return column
    return column.alias(field.name, metadata={**metadata, EVENT_TIME: 0})


def segment_files(payload: Payload, directory: str) -> list[str]:
    """The paths of a segment's files, for the query in ``directory``."""
    return payload.get("files") or [join(directory, key) for key in payload["keys"]]


def keyed_files(segment: InFlightSegment, directory: str) -> dict[str, str]:
    """The paths of an in-flight segment's files, by their keys in the state of the query.

    ``directory`` is the query's.
    """
    paths = segment_files(segment.payload, directory)
    names = [f"{segment.position:020d}-{part}.parquet" for part in range(len(paths))]
    keys = segment.payload.get("keys") or [f"in-flight/{segment.channel}/{name}" for name in names]
    return dict(zip(keys, paths, strict=True))


def kept_payload(payload: Payload, keys: Iterable[str]) -> Payload:
    """The payload of a segment whose files are in a snapshot under these keys."""
    tags = {"tags": payload["tags"]} if "tags" in payload else {}
    return {"keys": list(keys), **tags}


class OutputSegments:
    """The segments that one query writes."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        tags: Iterable[str] = (),
        *,
        has_rows: bool = True,
        has_rejects: bool = False,
    ) -> None:
        """``tags`` are the side outputs whose rows they hold besides the main ones.

        ``has_rows``: others than those that were set aside, which they have with ``has_rejects``.
        """
        self._fs = fs
        self._path = path
        self._tags = sorted(tags)
        self.has_rows = has_rows
        self._has_rejects = has_rejects
        #: Positions written and not yet released, ascending.
        self._written: deque[int] = deque()
        #: The last position written, if it has no rows: only the vertex's own sinks may read it.
        self._empty: int | None = None
        #: The files with rows that ``write`` has written, and their sizes.
        self._rows: dict[str, int] = {}
        self._releasing = threading.Lock()  # for ``_written``
        #: Reads the segments back; all batches have one schema.
        self._reader: DataFrameReader | None = None

    def write(self, frame: DataFrame, position: int) -> list[str]:
        """Write a batch's rows in one Spark job; return their files, which may be none."""
        path = self._directory(position)
        # With the session's codec, since a sink may add these files to its table.
        written = write_frame(frame, self._fs, path, format_name="parquet")
        if self._empty is not None:
            self._fs.delete(self._directory(self._empty))
        self._empty = position
        # Spark writes an empty frame as a file without rows.
        files = [file for file in written if count_rows(self._fs, join(path, file.path)) > 0]
        if files:
            self._empty = None
        self._rows = {join(path, file.path): file.size for file in files}
        return list(self._rows)

    def segment(self, position: int, rejects: bytes | None) -> Segment | None:
        """A batch's segment: its rows, if they were written, and the file of what was set aside.

        None if it has neither.
        """
        files, self._rows = self._rows, {}
        if rejects is not None:
            path = self._rejects(position)
            self._fs.make_directory(self._path)
            self._fs.write(path, rejects)
            files[path] = len(rejects)
        if not files:
            return None
        with self._releasing:
            self._written.append(position)
        payload: Payload = {"files": list(files)}
        if self._tags:
            payload["tags"] = self._tags
        return Segment(position=position, size=sum(files.values()), payload=payload)

    def read(self, frame: DataFrame, position: int) -> DataFrame:
        """The rows of the frame that ``write`` has written, for the vertex's own sinks.

        Reading them back costs less than computing them again, and a plan that is not deterministic
        would give a sink other rows than the channel.
        """
        if self._reader is None:
            self._reader = frame.sparkSession.read.schema(frame.schema).options(**READ_EACH)
        return self._reader.parquet(as_spark_path(self._directory(position)))

    def release(self, position: int) -> None:
        """Delete every segment up to ``position``. Several threads may call it at once."""
        with self._releasing:
            released = [written for written in self._written if written <= position]
            for _ in released:
                self._written.popleft()
        for written in released:
            self._fs.delete(self._directory(written))
            if self._has_rejects:
                self._fs.delete(self._rejects(written))

    def _rejects(self, position: int) -> str:
        return join(self._path, f"{position}-rejects.parquet")

    def _directory(self, position: int) -> str:
        return join(self._path, str(position))


#: The position before all segments.
_NOTHING = -1


def _with_whole_files(jvm: Jvm) -> Any:
    """A copy of the JVM's session in which each file is read by one task."""
    session = jvm.java_session.cloneSession()
    for name in ("maxPartitionBytes", "openCostInBytes"):
        session.conf().set(f"spark.sql.files.{name}", "1t")
    return session


class ChannelSource(JavaStream):
    """One channel of one query in one attempt."""

    def __init__(
        self,
        jvm: Jvm,
        channel: VertexId,
        schema: StructType,
        rounds: PlanningRounds,
        *,
        ordered: bool = False,
    ) -> None:
        """``ordered``: the rows of a producer's subtask are read in their order."""
        super().__init__(jvm, f"channel {channel}")
        self._channel = channel
        self._ordered = ordered
        self._session = _with_whole_files(jvm) if ordered else jvm.java_session
        # As with any file, every column and every nested field is nullable.
        self._schema = jvm.schema(schema).asNullable()
        self._rounds = rounds
        self._lock = threading.Lock()
        #: Positions and files of admitted segments that no committed batch has read, ascending.
        self._segments: deque[tuple[int, list[str]]] = deque()
        #: The last admitted position; None if nothing was admitted in this attempt.
        self._admitted: int | None = None
        #: The last position that the batches of this attempt have read; None if none has read.
        self._read: int | None = None

    def frame(self) -> DataFrame:
        """The streaming DataFrame; one query may use it in several places."""
        jvm = self._jvm
        columns = jvm.attributes(self._schema)
        return jvm.frame(execution_relation(jvm, source=self.proxy, columns=columns))

    def admit(self, position: int, files: Sequence[str]) -> None:
        """Add a segment that the next batch may read. Call it while the query rests.

        ``files`` are Parquet files, in Spark's notation.
        """
        with self._lock:
            self._segments.append((position, list(files)))
            self._admitted = position

    @property
    def consumed(self) -> int | None:
        """The last position that the batches of this attempt have read; None if none has read.

        Call it while the query rests.
        """
        return self._read

    # -- the source

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
        """The last admitted position."""
        self._rounds.answer(self)
        committed = self._position(start)
        if self._read is not None and committed != self._read:
            raise InvariantError(
                f"channel {self._channel!r} was read up to {self._read}, but Spark's log says"
                f" {committed}"
            )
        with self._lock:
            while self._segments and self._segments[0][0] <= committed:
                self._segments.popleft()
            if self._admitted is None or self._admitted <= committed:
                return start
            return self._offset(self._admitted)

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        """The rows of the segments after ``start`` and up to ``end``."""
        first = _NOTHING if start.isEmpty() else self._position(start.get())
        last = self._position(end)
        with self._lock:
            if self._admitted is not None and last > self._admitted:
                raise InvariantError(
                    f"channel {self._channel!r} is requested up to {last}, which was not admitted"
                )
            found = [
                (position, files) for position, files in self._segments if first < position <= last
            ]
            if self._admitted is not None and first < last:
                if not found or found[-1][0] != last:
                    raise InvariantError(f"channel {self._channel!r} no longer has segment {last}")
                self._read = last
        try:
            return self._jvm.rows(self._plan([files for _, files in found]))
        except WeirError:
            raise
        except Exception as error:
            if "InterruptedException" in str(error):
                raise QueryInterruptedError from None
            # Keep it short: Spark matches the text with a regular expression that recurses for each
            # character.
            raise StorageError(
                f"Channel {self._channel!r} cannot be read: {first_cause(error)}."
            ) from None

    def schema(self) -> Any:
        """The columns."""
        return self._schema

    def getOffset(self) -> Any:  # noqa: N802
        """Never called: Spark calls ``latestOffset`` instead."""
        raise InvariantError("Spark asks for the latest offset, not for an offset")

    def initialOffset(self) -> Any:  # noqa: N802
        """Never called: a V1 source has no initial offset."""
        raise InvariantError("a channel has no initial offset")

    class Java:
        """The Java interfaces that the proxy implements."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )

    # -- inside

    def _plan(self, segments: Sequence[Sequence[str]]) -> Any:
        """The plan that reads the files of these segments."""
        jvm = self._jvm
        logical = "catalyst.plans.logical."
        if not segments:
            local = jvm.sql_class(logical + "LocalRelation")
            return local(jvm.attributes(self._schema), jvm.seq(()), True, jvm.none)
        if not self._ordered or len(segments) == 1:
            return self._relation([file for files in segments for file in files])
        relations = jvm.seq(self._relation(files) for files in segments)
        union = jvm.sql_class(logical + "Union")(relations, False, False)
        return jvm.sql_class(logical + "Repartition")(1, False, union)

    def _relation(self, files: Sequence[str]) -> Any:
        """The plan of Spark's file source for these files, without listing the directory."""
        jvm = self._jvm
        path = jvm.java_class("org.apache.hadoop.fs.Path")
        options = jvm.map(READ_EACH)
        no_partitions = jvm.scala_object(
            "org.apache.spark.sql.execution.datasources.PartitionSpec"
        ).emptySpec()
        index = jvm.sql_class("execution.datasources.InMemoryFileIndex")(
            self._session,
            jvm.seq(path(file) for file in files),
            options,
            jvm.none,
            jvm.scala_object("org.apache.spark.sql.execution.datasources.NoopCache"),
            jvm.some(no_partitions),
            jvm.none,
        )
        # Spark's listing omits a missing path, whatever the options say.
        if index.allFiles().size() != len(files):
            raise StorageError(
                f"Files of channel {self._channel!r} are missing: {', '.join(files)}."
            )
        relation = jvm.sql_class("execution.datasources.HadoopFsRelation")(
            index,
            no_partitions.partitionColumns(),
            self._schema,
            jvm.none,
            jvm.sql_class("execution.datasources.parquet.ParquetFileFormat")(),
            options,
            self._session,
        )
        return jvm.scala_object("org.apache.spark.sql.execution.datasources.LogicalRelation").apply(
            relation, True
        )

    def _offset(self, position: int) -> Any:
        return self._jvm.offset(ChannelOffset(channel=self._channel, position=position).encode())

    def _position(self, offset: Any) -> int:
        """The position that an offset names; ``_NOTHING`` for no offset."""
        if offset is None:
            return _NOTHING
        text = str(offset.json())
        try:
            reached = ChannelOffset.decode(text)
        except ValueError:
            reached = None
        if reached is None or reached.channel != self._channel:
            raise PipelineError(
                f"The query reads channel {self._channel!r}, but its checkpoint says {text}: it"
                " was taken by another version of Weir or of the pipeline. Start from scratch"
                " with --fresh and new tables."
            )
        return reached.position
