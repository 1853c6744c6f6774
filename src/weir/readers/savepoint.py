"""``weir.read_savepoint``: reads what a checkpoint or savepoint holds (MISSION B7, G2).

::

    with weir.read_savepoint("savepoints/savepoint-a1b2c3-0123456789ab") as savepoint:
        for operator in savepoint.operators:
            print(operator.uid, operator.vertex, operator.partitions, operator.watermark_ms)
        revenue = savepoint.keyed_state("revenue")["state"]
        revenue.select("key.*", "value.*").show()

``savepoint.operator_state("score")`` returns the state of a Python operator and its coordinator.

The metadata is read at once, without a JVM; Spark starts with the first call of ``keyed_state``.
The snapshot is never changed, and it may have been moved or copied: a savepoint's files are found
beside its metadata, a checkpoint's below the job's directory, which must be copied as a whole.

Chained steps run as one query and share its state. So an operator's figures are those of its
*vertex*, and its keyed state is that of every stateful operator of that query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from weir.core.graph import step_name
from weir.core.types import (
    CompletedCheckpoint,
    OperatorId,
    Payload,
    SnapshotKind,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.errors import StorageError
from weir.operators.state.store import SavedList, decode_lists
from weir.spark.state.reader import StateReader, contents_of, input_positions_of
from weir.spark.state.saved_task import kept_operators, unfit
from weir.storage.paths import normalize
from weir.storage.snapshots import Snapshots, snapshot_directory
from weir.subtasks.chain import DIRECTORY
from weir.subtasks.messages import FilePart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: Reads a file of the snapshot.
ReadFile = Callable[[StateHandle], bytes]


@dataclass(frozen=True, kw_only=True)
class SavedOperatorState:
    """The state of one Python operator and its coordinator."""

    #: By name, the elements of each subtask: values, or bytes from a serializer of the operator's.
    lists: dict[str, list[list[Any]]] = field(default_factory=dict)
    #: By name, a table with the columns ``key`` and ``value``; for raw state, ``group`` (the key
    #: group) and ``raw`` (bytes).
    keyed: dict[str, pa.Table] = field(default_factory=dict)
    #: None if the operator has no coordinator, or the coordinator returned nothing.
    coordinator: Payload | None = None


def read_operator_state(
    task: TaskState, operator: OperatorId, coordinator: Payload | None, read: ReadFile
) -> SavedOperatorState:
    """The state of one operator of a task; empty if the operator has no state.

    Raises ``ValueError`` if it cannot be read.
    """
    kept = kept_operators(task).get(operator)
    if kept is None:
        return SavedOperatorState(coordinator=coordinator)
    handles = {handle.key: handle for handle in task.files}
    whole: dict[str, bytes] = {}

    def located(part: FilePart) -> bytes:
        key = f"{DIRECTORY}/{part.file}"
        if key not in whole:
            whole[key] = read(handles[key])
        return whole[key][part.offset : part.offset + part.length]

    subtasks = [
        decode_lists(kept.lists[subtask].contents(located)) for subtask in sorted(kept.lists)
    ]
    names = dict.fromkeys(name for lists in subtasks for name in lists)
    return SavedOperatorState(
        lists={
            name: [_elements(lists[name]) if name in lists else [] for lists in subtasks]
            for name in names
        },
        keyed={
            name: _table(group.contents(located) for group in groups.values())
            for name, groups in kept.groups.items()
        }
        | {
            name: _keyed(
                name, [(located(layer), layer.groups) for layers in by.values() for layer in layers]
            )
            for name, by in kept.keyed.items()
        },
        coordinator=coordinator,
    )


def _elements(saved: SavedList) -> list[Any]:
    """The elements: values, or bytes if only the operator can read them."""
    if not saved.is_json:
        return list(saved.items)
    try:
        return [msgspec.json.decode(item) for item in saved.items]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a list cannot be read: {error}") from error


def _keyed(name: str, layers: list[tuple[bytes, tuple[int, int]]]) -> pa.Table:
    """The values of a keyed state by key."""
    import pyarrow as pa

    from weir.operators.state.keyed import KeyedState, layer_rows
    from weir.operators.state.types import Layer

    found = [Layer(data, (first, end)) for data, (first, end) in layers]
    rows = next((rows for layer in found for rows in layer_rows(layer, name)), None)
    if rows is None:
        return pa.table({"key": pa.array([], pa.null()), "value": pa.array([], pa.null())})
    key, kind = (rows.schema.field(column).type for column in ("key", "value"))
    items = KeyedState(name, kind, None, found).items()
    return pa.Table.from_batches(items, pa.schema([("key", key), ("value", kind)]))


def _table(groups: Any) -> pa.Table:
    import pyarrow as pa

    tables = []
    try:
        for data in groups:
            with pa.ipc.open_stream(data) as reader:
                tables.append(reader.read_all())
            # Arrow trusts what a stream says about its own buffers.
            tables[-1].validate(full=True)
        return pa.concat_tables(tables)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"a keyed state cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class SavedOperator:
    """One operator of a snapshot. All figures are its vertex's (see the module's docstring)."""

    #: The step's ``uid``; by default its name.
    uid: OperatorId
    #: The step's name, for people.
    name: str
    #: The chain that the step belongs to, named after its last step.
    vertex: VertexId
    #: All records were processed: a restore does not start the vertex, and there is no state.
    fully_finished: bool
    #: Partitions of the keyed state; 0 without keyed state.
    partitions: int
    #: Bytes of the vertex's state, log entries and staged output that the snapshot carries.
    size: int
    #: The last batch that is part of the snapshot; -1 before the first.
    position: int
    #: Watermark of that batch: results below it have been emitted. 0 before any event time, None
    #: before the first batch.
    watermark_ms: int | None
    #: The vertex's offset in each of its sources, in the source's own format.
    source_offsets: tuple[str, ...]


class Savepoint:
    """An open checkpoint or savepoint. ``close`` it, or use it as a context manager."""

    def __init__(
        self, checkpoint: CompletedCheckpoint, storage: Snapshots, reader: StateReader
    ) -> None:
        self._checkpoint = checkpoint
        self._storage = storage
        self._reader = reader

    def __enter__(self) -> Savepoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Savepoint({self.path!r}: {self.kind.value} {self.checkpoint_id} of job {self.job_id})"
        )

    def close(self) -> None:
        """Delete the temporary files of ``keyed_state`` and stop a session made for it. Idempotent.

        Its DataFrames can no longer be used.
        """
        self._reader.close()

    @property
    def path(self) -> str:
        """The directory that the snapshot was read from."""
        return self._checkpoint.external_path

    @property
    def checkpoint_id(self) -> int:
        """The snapshot's number among the job's checkpoints and savepoints."""
        return self._checkpoint.checkpoint_id

    @property
    def job_id(self) -> str:
        """The id of the job that took the snapshot: 32 hexadecimal digits."""
        return self._checkpoint.job_id

    @property
    def kind(self) -> SnapshotKind:
        """CHECKPOINT or SAVEPOINT; SYNC_CHECKPOINT or SYNC_SAVEPOINT if the job ended with it."""
        return self._checkpoint.kind

    @property
    def timestamp_ms(self) -> int:
        """When the snapshot was triggered, in milliseconds since the Unix epoch."""
        return self._checkpoint.timestamp_ms

    @property
    def drained(self) -> bool:
        """Whether the job was drained first: every operator is fully finished; it cannot resume."""
        return self._checkpoint.drained

    @property
    def operators(self) -> tuple[SavedOperator, ...]:
        """Every operator, in graph order."""
        return tuple(
            operator for task in self._checkpoint.tasks for operator in _operators(task, self.path)
        )

    def input_positions(self) -> dict[str, list[Any]]:
        """By source, where the next batch begins: an offset for each stream that it reads.

        Offsets are as Spark's source writes them, with JSON decoded; Kafka's is ``{"topic":
        {"partition": offset}}``. Sources that Weir's readers read keep their position as state of
        their operator (``operator_state``).
        """
        return {
            source: offsets
            for task in self._checkpoint.tasks
            for source, offsets in input_positions_of(task, self.path).items()
        }

    def keyed_state(self, operator: str) -> dict[str, DataFrame]:
        """The keyed state of an operator's vertex; the operator is given by uid, name or vertex.

        A single store is named ``state``; a stream-stream join has ``left`` and ``right``,
        ``transformWithState`` a frame for each state variable and ``timers``. With several stateful
        operators in one vertex, their numbers are appended: ``state_0``, ``left_1``. Columns are
        those of Spark's state data source: ``key``, ``value``, ``partition_id``.

        Raises ``StorageError`` if there is no such operator, or no keyed state in its vertex.
        """
        task = self._task(operator)
        if not contents_of(task, self.path).stateful_operators:
            others = ", ".join(
                dict.fromkeys(state.vertex for state in self.operators if state.partitions)
            )
            raise StorageError(
                f"Vertex {task.vertex!r} has no keyed state in {self.path}, since"
                f" {_why_no_state(task)}:"
                f" {f'name one of {others}' if others else 'no other vertex has any'}."
            )
        return self._reader.frames(self._checkpoint, task)

    def operator_state(self, operator: str) -> SavedOperatorState:
        """The list and keyed state of a Python operator, and its coordinator's state.

        Does not start Spark. Raises ``StorageError`` if there is no such operator.
        """
        task = self._task(operator)
        uid = next(
            (
                state.operator_id
                for state in task.operators
                if operator in (state.operator_id, step_name(state))
            ),
            operator,
        )
        coordinator = self._checkpoint.coordinator_states.get(uid)
        try:
            return read_operator_state(task, uid, coordinator, self._read)
        except ValueError as error:
            raise unfit(task, self.path, error) from error

    def _read(self, handle: StateHandle) -> bytes:
        self._storage.verify_file(self._checkpoint, handle)
        path = self._storage.file_path(self._checkpoint, handle)
        return self._storage.fs(path).read(path)

    def _task(self, operator: str) -> TaskState:
        for task in self._checkpoint.tasks:
            ids = {task.vertex, *(state.operator_id for state in task.operators)}
            if operator in ids or operator in {step_name(state) for state in task.operators}:
                return task
        known = ", ".join(state.uid for state in self.operators)
        raise StorageError(f"{self.path} has no operator {operator!r}: name one of {known}.")


def read_savepoint(path: str, spark: SparkSession | None = None) -> Savepoint:
    """Read a savepoint or retained checkpoint, given by its directory or its ``_metadata``.

    The path is local or on a Hadoop file system. ``spark`` reads keyed state, and files that are
    not local; its tasks must see the driver's temporary directory. Without it, the process's
    session is used if it exists, else a local session is made.

    Raises ``CheckpointNotFoundError`` and ``CheckpointDamagedError``.
    """
    reader = StateReader(spark)
    try:
        directory = normalize(path)
        storage = Snapshots(reader.file_systems)
        return Savepoint(storage.read(directory), storage, reader)
    except BaseException:
        reader.close()
        raise


def dispose_savepoint(path: str) -> CompletedCheckpoint:
    """Delete the savepoint at the path and return what it was.

    A path that is not local is reached through Spark. This does not check whether a job still needs
    the savepoint: a job that was started from it falls back on it until it has completed a
    checkpoint of its own. Raises ``StorageError`` if it is not a savepoint, or if its directory has
    files that are not its own.
    """
    reader = StateReader()
    try:
        directory = snapshot_directory(path)
        storage = Snapshots(reader.file_systems)
        return storage.dispose_savepoint(directory)
    finally:
        reader.close()


def _operators(task: TaskState, path: str) -> list[SavedOperator]:
    contents = contents_of(task, path)
    # All stateful operators of one query have the same partitions.
    partitions = max(
        (len(state.partition_sizes) for state in contents.stateful_operators), default=0
    )
    return [
        SavedOperator(
            uid=operator.operator_id,
            name=step_name(operator),
            vertex=task.vertex,
            fully_finished=operator.fully_finished,
            partitions=partitions,
            size=task.state_size,
            position=task.position,
            watermark_ms=contents.watermark_ms,
            source_offsets=contents.source_offsets,
        )
        for operator in task.operators
    ]


def _why_no_state(task: TaskState) -> str:
    if task.fully_finished:
        return "it has finished, and every window and timer has fired"
    if task.position < 0:
        return "it had not run a batch yet"
    return "none of its steps has state"
