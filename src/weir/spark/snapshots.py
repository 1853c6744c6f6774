"""Takes one task's snapshots, and restores from them: between a query's directory and the checkpoint directory.

*Synchronous part* (the query rests): small log entries are read into memory; state files that the base does not have
are hard-linked at once, into the checkpoint directory if both lie on one local file system, else beside the working
directory, so that Spark's clean-up cannot take them away. *Asynchronous part* (records flow): what does not lie in the
checkpoint directory yet is copied there, staged output is flushed, new files get their checksum and are synced. Where
the working directory has no links (HDFS), a file that vanished before it was copied fails the snapshot (PROTOCOL P4).

Incremental: the base is the newest checkpoint whose completion the task was told of. Files of the base are referred
to, not written again. What checkpoint n writes lies in ``shared/n/`` and nowhere else, so an aborted one can be
deleted by its id, also when a straggler wrote late (P43).

Segments in flight (unaligned checkpoints, PROTOCOL P27) are taken as state files of the consumer's: they are linked at once
where there are links, and written once, however many checkpoints refer to them. A restore puts them into the query's
directory with all other files, and the keys in the segments say where.

The watermark of what a query has put out is part of a snapshot: until its next step nobody else could tell its consumers
(P25).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from weir.core.messages.task import TakeSnapshot
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    InFlightSegment,
    OperatorState,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.sink_port import KeepFile
from weir.spark.channels import kept_payload, keyed_files
from weir.spark.operators import DIRECTORY
from weir.spark.query_directory import QueryDirectory
from weir.spark.saved_task import WATERMARK_ENTRY, check_saved_task, output_watermark_ms
from weir.spark.state_files import StateFiles, is_uniquely_named, relocate_operator_metadata
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join, parent

#: Of a file's name in a checkpoint; longer ones get a digest in place of their end, since file systems take 255 bytes.
_NAME_CHARACTERS = 200

#: Flushes staged output of all sinks of the task, and completes its payloads; with a function, also keeps its files.
Flush = Callable[[Sequence[Committable], KeepFile | None], tuple[Committable, ...]]

#: The state of Python operators after a batch: entries, and keys of files in the query's directory.
TellOperatorState = Callable[[int], tuple[dict[str, str], list[str]]]


@dataclass
class _Pending:
    """A snapshot between its parts."""

    effect: TakeSnapshot
    #: Directory of new files, and its path as handles name it ("" for a savepoint's own directory).
    directory: str
    prefix: str
    entries: dict[str, str] = field(default_factory=dict)
    in_flight: list[InFlightSegment] = field(default_factory=list)
    #: Where files are that do not lie in the query's directory, by key.
    sources: dict[str, str] = field(default_factory=dict)
    reused: list[StateHandle] = field(default_factory=list)
    #: Keys of new files.
    new: list[str] = field(default_factory=list)
    #: Directory in which the new files have a second name already; None where there are no links.
    pinned: str | None = None
    start_delay_ms: int = 0
    sync_duration_ms: int = 0


class TaskSnapshots:
    """The snapshots of one task of one attempt."""

    def __init__(
        self,
        *,
        vertex: VertexId,
        operators: tuple[OperatorState, ...],
        directory: QueryDirectory,
        storage: CheckpointStorage,
        transfer: Transfer,
        flush: Flush,
        restored: TaskState | None,
        base: Sequence[StateHandle],
        inputs: tuple[VertexId, ...],
        watermark_ms: Callable[[], int | None],
        operator_state: TellOperatorState | None,
        wall_ms: Callable[[], int],
    ) -> None:
        """``base`` are the handles of the restored checkpoint, if later checkpoints may refer to them; ``watermark_ms``
        tells the watermark of what the query has put out, and ``operator_state`` the state of its Python operators, while it
        rests."""
        self._operator_state = operator_state
        self._inputs = inputs
        self._watermark_ms = watermark_ms
        self._vertex = vertex
        self._operators = operators
        self._directory = directory
        self._storage = storage
        self._transfer = transfer
        self._flush = flush
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._state_files = StateFiles(
            directory,
            [one.key for one in restored.files if not one.key.startswith(f"{DIRECTORY}/")]
            if restored
            else [],
            # Of the restored batch the commit log is read as well: a query that was rescaled has nothing else.
            max(restored.position - 1, -1) if restored else -1,
        )
        self._base = {handle.key: handle for handle in base}
        self._pending: dict[int, _Pending] = {}
        #: Those whose last part has ended, until their checkpoint completed or they are dropped: it may be over already.
        self._written: dict[int, _Pending] = {}
        #: Files of acknowledged snapshots whose checkpoint is still open.
        self._acknowledged: dict[int, tuple[StateHandle, ...]] = {}

    def take(self, effect: TakeSnapshot) -> None:
        """The synchronous part."""
        begun = time.monotonic()
        pending = self._new(effect)
        with self._lock:
            self._pending[effect.checkpoint_id] = pending
        keys = self._in_flight_keys(pending)
        if not effect.finished and effect.position >= 0:
            keys += self._state_keys(pending)
        base = {} if effect.full or effect.kind.is_savepoint else self._base
        for key in keys:
            handle = base.get(key)
            if handle is not None and (key in pending.sources or self._is_unchanged(handle)):
                pending.reused.append(handle)
            else:
                pending.new.append(key)
        self._pin(pending)
        pending.sync_duration_ms = round((time.monotonic() - begun) * 1000)

    def proceed(self, checkpoint_id: int) -> tuple[TaskState, SnapshotMetrics]:
        """The asynchronous part. Raises ``StorageError`` if a file has vanished."""
        begun = time.monotonic()
        with self._lock:
            pending = self._pending[checkpoint_id]
        effect = pending.effect
        handles = [self._write(pending, key) for key in pending.new]
        # A checkpoint finds staged output where it was staged; a savepoint may be restored elsewhere (PROTOCOL P14).
        keep = partial(self._keep, pending) if effect.kind.is_savepoint else None
        committables = self._flush(effect.committables, keep)
        self._fs(pending).sync([join(pending.directory, self._file_name(key)) for key in pending.new])
        self._unpin(pending)
        files = (*pending.reused, *handles)
        state = TaskState(
            vertex=self._vertex,
            position=effect.position,
            operators=tuple(
                replace(operator, fully_finished=effect.finished) for operator in self._operators
            ),
            inputs=self._inputs,
            entries=pending.entries,
            files=files,
            committables=committables,
            in_flight=tuple(pending.in_flight),
        )
        with self._lock:
            self._written[checkpoint_id] = self._pending.pop(checkpoint_id)
            self._acknowledged[checkpoint_id] = files
        metrics = SnapshotMetrics(
            sync_duration_ms=pending.sync_duration_ms,
            async_duration_ms=round((time.monotonic() - begun) * 1000),
            start_delay_ms=pending.start_delay_ms,
            checkpointed_size=state.state_size - sum(handle.size for handle in pending.reused),
        )
        return state, metrics

    def drop(self, checkpoint_id: int) -> None:
        """Forget a snapshot whose checkpoint is over, and delete the files that it wrote."""
        with self._lock:
            pending = self._pending.pop(checkpoint_id, None) or self._written.pop(checkpoint_id, None)
            self._acknowledged.pop(checkpoint_id, None)
        if pending is not None:
            self._unpin(pending)
            for key in pending.new:
                self._fs(pending).delete(join(pending.directory, self._file_name(key)))

    def confirm(self, checkpoint_id: int) -> None:
        """The checkpoint completed: it is the base of the next one, and older snapshots are over."""
        with self._lock:
            files = self._acknowledged.get(checkpoint_id)
            # One of an older checkpoint may still have to be dropped, with the files that it wrote.
            self._written.pop(checkpoint_id, None)
            for older in [known for known in self._acknowledged if known <= checkpoint_id]:
                del self._acknowledged[older]
        if files is not None:
            self._base = {handle.key: handle for handle in files}

    def _new(self, effect: TakeSnapshot) -> _Pending:
        n = effect.checkpoint_id
        if effect.target is not None:
            directory, prefix = effect.target, ""
        else:
            directory, prefix = self._storage.shared_directory(n), f"shared/{n}/"
        delay = max(0, self._wall_ms() - effect.timestamp_ms)
        return _Pending(effect=effect, directory=directory, prefix=prefix, start_delay_ms=delay)

    def _state_keys(self, pending: _Pending) -> list[str]:
        """Read the small entries of the query's own directory; the keys of all its other files."""
        position = pending.effect.position
        pending.entries = self._directory.log_entries(position)
        inline, keys = self._directory.source_entries(position)
        pending.entries |= inline
        watermark_ms = self._watermark_ms()
        if watermark_ms is not None:
            pending.entries[WATERMARK_ENTRY] = str(watermark_ms)
        if self._operator_state is not None:
            kept, files = self._operator_state(position)
            pending.entries |= kept
            keys += files
        return keys + self._state_files.keys(position)

    def _in_flight_keys(self, pending: _Pending) -> list[str]:
        """The keys of all files of segments in flight. A segment keeps its keys from one checkpoint to the next."""
        for segment in pending.effect.in_flight:
            files = keyed_files(segment, self._directory.path)
            pending.sources |= files
            pending.in_flight.append(replace(segment, payload=kept_payload(files)))
        return list(pending.sources)

    def _is_unchanged(self, handle: StateHandle) -> bool:
        """State files have unique names. Schemas, few and small, have not: they are compared."""
        if is_uniquely_named(handle.key):
            return True
        return self._directory.fs.checksum(self._directory.file(handle.key)) == (handle.size, handle.checksum)

    def _pin(self, pending: _Pending) -> None:
        """Give the new files a second name on their own file system, if it has links."""
        if not pending.new:
            return
        below = pending.effect.target or self._storage.job_directory
        self._fs(pending).make_directory(pending.directory, below=below)
        if self._transfer.can_link(self._directory.path, pending.directory):
            pending.pinned = pending.directory
        elif self._transfer.can_link(self._directory.path, self._directory.path):
            pending.pinned = f"{self._directory.path}-pinned-{pending.effect.checkpoint_id}"
            self._directory.fs.make_directory(pending.pinned)
        else:
            return
        for key in pending.new:
            target = join(pending.pinned, self._file_name(key))
            self._transfer.link_or_copy(self._source(pending, key), target)

    def _unpin(self, pending: _Pending) -> None:
        if pending.pinned is not None and pending.pinned != pending.directory:
            self._directory.fs.delete(pending.pinned)

    def _fs(self, pending: _Pending) -> FileSystem:
        return self._storage.fs(pending.directory)

    def _write(self, pending: _Pending, key: str) -> StateHandle:
        name = self._file_name(key)
        target = join(pending.directory, name)
        if pending.pinned != pending.directory:
            source = join(pending.pinned, name) if pending.pinned else self._source(pending, key)
            self._transfer.link_or_copy(source, target)
        size, checksum = self._fs(pending).checksum(target)
        return StateHandle(key=key, path=pending.prefix + name, size=size, checksum=checksum)

    def _source(self, pending: _Pending, key: str) -> str:
        return pending.sources.get(key) or self._directory.file(key)

    def _keep(self, pending: _Pending, staged: str, key: str) -> StateHandle:
        """A copy of a staged file in the savepoint."""
        key = f"staged/{key}"
        name = self._file_name(key)
        target = join(pending.directory, name)
        self._transfer.link_or_copy(staged, target)
        pending.new.append(key)
        size, checksum = self._fs(pending).checksum(target)
        return StateHandle(key=key, path=pending.prefix + name, size=size, checksum=checksum)

    def _file_name(self, key: str) -> str:
        """A flat name, so that a checkpoint's new files lie in one directory and need one directory sync."""
        name = f"{self._vertex}~{key.replace('/', '~')}"
        if len(name) <= _NAME_CHARACTERS:
            return name
        return f"{name[:_NAME_CHARACTERS]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def restore_directory(
    *,
    state: TaskState,
    checkpoint: CompletedCheckpoint,
    storage: CheckpointStorage,
    transfer: Transfer,
    directory: QueryDirectory,
) -> None:
    """Fill a fresh query directory so that Spark goes on after ``state.position``.

    Raises ``CheckpointDamagedError`` before anything is written if the snapshot holds what no query may start on. Nothing is
    written outside of the directory: keys stay below it (``StateKey``), and what is linked into it is a plain file.
    """
    check_saved_task(state, checkpoint.external_path)
    made: set[str] = set()
    for key, text in state.entries.items():
        _make_parent(directory, key, made)
        directory.fs.write(directory.file(key), text.encode())
    for handle in state.files:
        _make_parent(directory, handle.key, made)
        transfer.link_or_copy(storage.file_path(checkpoint, handle), directory.file(handle.key))
    relocate_operator_metadata(directory)


def restored_watermark_ms(state: TaskState | None) -> int | None:
    """What the query had put out when the snapshot was taken."""
    return None if state is None else output_watermark_ms(state)


def _make_parent(directory: QueryDirectory, key: str, made: set[str]) -> None:
    place = parent(directory.file(key))
    if place not in made:
        directory.fs.make_directory(place)
        made.add(place)
