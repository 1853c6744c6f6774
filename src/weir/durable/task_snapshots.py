"""``TaskSnapshots``: takes the snapshots of one task of one attempt (PROTOCOL P3, P4, P27, P43).

*Synchronous part* (no batch may start, though a batch may be running): small entries are read into
memory. State files that the base does not have are hard-linked at once, if the file system has
links, so that no clean-up can delete them. *Asynchronous part* (records flow): files not yet in the
checkpoint directory are copied there, several at once if it is remote; staged output is flushed,
and new files are checksummed and synced. Without links, a file that vanished before it was copied
fails the snapshot (P4).

*Incremental*. The base is the newest checkpoint of whose completion the task was notified. Files of
the base are referenced, not written again. Checkpoint n writes only to ``shared/n/``, so an aborted
one can be deleted by its id, even when a straggler wrote late (P43).

*Segments in flight* (unaligned checkpoints, P27) are treated as state files of the consumer: they
are linked at once if there are links, and written once, however many checkpoints refer to them.

A ``RestingQuery`` provides the state of a query: Spark's directory, or the simulator's model of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from weir.core.messages.task import TakeSnapshot
from weir.core.types import (
    Committable,
    InFlightSegment,
    OperatorState,
    Payload,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.sink_port import KeepFile
from weir.runtime.concurrency import Clock, Waits
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join

#: Maximum length of a file name in a checkpoint, in characters; a digest replaces the rest of a
#: longer one, since file systems allow 255 bytes.
_NAME_CHARACTERS = 200

#: Flushes the staged output of all sinks of the task for a snapshot with this id, and completes its
#: payloads; given a function, also keeps copies of its files.
Flush = Callable[[Sequence[Committable], KeepFile | None, int], tuple[Committable, ...]]


class RestingQuery(Protocol):
    """The state of a query.

    All methods except ``copy_all`` and ``unpin`` are called only while no batch may start. A batch
    may be running, whose end they must not show.
    """

    def read(self, effect: TakeSnapshot) -> tuple[dict[str, str], list[str]]:
        """The small entries of the state after ``effect.position``, and the keys of its files."""
        ...

    def segment(self, segment: InFlightSegment) -> tuple[Payload, dict[str, str]]:
        """The payload that a snapshot keeps of a segment in flight, and its files' paths by key."""
        ...

    def file(self, key: str) -> str:
        """The path of the file with this key."""
        ...

    def is_unchanged(self, handle: StateHandle) -> bool:
        """Whether the file of this handle's key is still the file in the earlier checkpoint."""
        ...

    def pin_directory(self, directory: str, below: str, checkpoint_id: int) -> str | None:
        """Where to hard-link new files at once, which is made.

        That is ``directory`` if ``below`` exists, or a separate directory next to the query's; None
        without links. Asks no remote file system.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Link or copy a file. Raises ``StorageError`` if it has vanished."""
        ...

    def copy_all(
        self, files: Sequence[tuple[str, str]], below: str
    ) -> Sequence[tuple[int, str] | None]:
        """Copy each source to its target, whose directory is made if ``below`` exists.

        Returns size and checksum of each file whose content was seen. Raises ``StorageError`` if a
        file has vanished.
        """
        ...

    def unpin(self, directory: str) -> None:
        """Delete a separate directory of links."""
        ...


#: The file system and the paths of what a snapshot has written.
_NewFiles = tuple[FileSystem, Sequence[str]]


@dataclass
class _Pending:
    """A snapshot between its parts."""

    effect: TakeSnapshot
    #: Directory of new files, the directory that must exist for it to be made, and its prefix in
    #: the paths of handles ("" for a savepoint's own directory).
    directory: str
    below: str
    prefix: str
    entries: dict[str, str] = field(default_factory=dict)
    in_flight: list[InFlightSegment] = field(default_factory=list)
    #: Paths of files outside the query's directory (segments in flight), by key.
    sources: dict[str, str] = field(default_factory=dict)
    reused: list[StateHandle] = field(default_factory=list)
    #: Keys of new files.
    new: list[str] = field(default_factory=list)
    #: Directory in which the new files are already linked; None without links.
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
        inputs: tuple[VertexId, ...],
        query: RestingQuery,
        storage: CheckpointStorage,
        flush: Flush,
        base: Sequence[StateHandle],
        clock: Clock,
        waits: Waits,
    ) -> None:
        """``base``: handles of the restored checkpoint, if later checkpoints may refer to them."""
        self._vertex = vertex
        self._operators = operators
        self._inputs = inputs
        self._query = query
        self._storage = storage
        self._flush = flush
        self._clock = clock
        self._lock = waits.lock()
        self._base = {handle.key: handle for handle in base}
        self._pending: dict[int, _Pending] = {}
        #: The new files of snapshots whose last part has ended, until their checkpoint completes or
        #: they are dropped (their checkpoint may have been aborted already). Tasks are not
        #: notified that an intermediate savepoint has completed: its entry stays until the attempt
        #: ends.
        self._written: dict[int, _NewFiles] = {}
        #: Files of acknowledged snapshots whose checkpoint is still pending.
        self._acknowledged: dict[int, tuple[StateHandle, ...]] = {}

    def take(self, effect: TakeSnapshot) -> None:
        """Run the synchronous part."""
        begun_ms = self._clock.now_ms()
        pending = self._new(effect)
        with self._lock:
            self._pending[effect.checkpoint_id] = pending
        for segment in effect.in_flight:
            # A segment keeps its keys from one checkpoint to the next.
            payload, files = self._query.segment(segment)
            pending.sources |= files
            pending.in_flight.append(replace(segment, payload=payload))
        keys = list(pending.sources)
        pending.entries, files_of_state = self._query.read(effect)
        keys += files_of_state
        base = {} if effect.full else self._base
        for key in keys:
            handle = base.get(key)
            if handle is not None and (key in pending.sources or self._query.is_unchanged(handle)):
                pending.reused.append(handle)
            else:
                pending.new.append(key)
        self._pin(pending)
        pending.sync_duration_ms = self._clock.now_ms() - begun_ms

    def proceed(self, checkpoint_id: int) -> tuple[TaskState, SnapshotMetrics]:
        """Run the asynchronous part. Raises ``StorageError`` if a file has vanished."""
        begun_ms = self._clock.now_ms()
        with self._lock:
            pending = self._pending[checkpoint_id]
        effect = pending.effect
        seen: Sequence[tuple[int, str] | None] = [None] * len(pending.new)
        if pending.pinned != pending.directory:
            files = [
                (self._origin(pending, key), self._target(pending, key)) for key in pending.new
            ]
            seen = self._query.copy_all(files, pending.below)
        handles = [
            self._handle(pending, key, file) for key, file in zip(pending.new, seen, strict=True)
        ]
        # A checkpoint finds staged output where it was staged; a savepoint may be restored
        # elsewhere (PROTOCOL P14).
        keep = partial(self._keep, pending) if effect.kind.is_savepoint else None
        committables = self._flush(effect.committables, keep, checkpoint_id)
        self._fs(pending).sync([self._target(pending, key) for key in pending.new])
        self._unpin(pending)
        all_files = (*pending.reused, *handles)
        state = TaskState(
            vertex=self._vertex,
            position=effect.position,
            operators=tuple(
                replace(operator, fully_finished=effect.finished) for operator in self._operators
            ),
            inputs=self._inputs,
            entries=pending.entries,
            files=all_files,
            committables=committables,
            in_flight=tuple(pending.in_flight),
        )
        with self._lock:
            del self._pending[checkpoint_id]
            self._written[checkpoint_id] = self._new_files(pending)
            if not effect.kind.is_savepoint:
                self._acknowledged[checkpoint_id] = all_files
        metrics = SnapshotMetrics(
            sync_duration_ms=pending.sync_duration_ms,
            async_duration_ms=self._clock.now_ms() - begun_ms,
            start_delay_ms=pending.start_delay_ms,
            checkpointed_size=state.state_size - sum(handle.size for handle in pending.reused),
        )
        return state, metrics

    def drop(self, checkpoint_id: int) -> None:
        """Forget an aborted or failed snapshot, and delete the files that it wrote."""
        with self._lock:
            pending = self._pending.pop(checkpoint_id, None)
            written = self._written.pop(checkpoint_id, None)
            self._acknowledged.pop(checkpoint_id, None)
        if pending is not None:
            self._unpin(pending)
            written = self._new_files(pending)
        if written is not None:
            fs, paths = written
            fs.delete_files(list(paths))

    def confirm(self, checkpoint_id: int) -> None:
        """Make the completed checkpoint the base of the next snapshot, and forget older snapshots.

        A savepoint never becomes the base.
        """
        with self._lock:
            files = self._acknowledged.get(checkpoint_id)
            # Not of older snapshots, which may still have to be dropped, with all they wrote.
            self._written.pop(checkpoint_id, None)
            for older in [known for known in self._acknowledged if known <= checkpoint_id]:
                del self._acknowledged[older]
        if files is not None:
            self._base = {handle.key: handle for handle in files}

    def _new(self, effect: TakeSnapshot) -> _Pending:
        if effect.target is None:
            below = self._storage.job_directory
            path = self._storage.shared_path(effect.checkpoint_id)
            directory, prefix = join(below, path), f"{path}/"
        else:
            directory, below, prefix = effect.target, effect.target, ""
        return _Pending(
            effect=effect,
            directory=directory,
            below=below,
            prefix=prefix,
            start_delay_ms=max(0, self._clock.wall_ms() - effect.timestamp_ms),
        )

    def _new_files(self, pending: _Pending) -> _NewFiles:
        return self._fs(pending), [self._target(pending, key) for key in pending.new]

    def _pin(self, pending: _Pending) -> None:
        """Hard-link the new files on their own file system, if it has links."""
        if not pending.new:
            return
        pending.pinned = self._query.pin_directory(
            pending.directory, pending.below, pending.effect.checkpoint_id
        )
        if pending.pinned is None:
            return
        for key in pending.new:
            target = join(pending.pinned, self._file_name(key))
            self._query.copy(self._source(pending, key), target)

    def _unpin(self, pending: _Pending) -> None:
        if pending.pinned is not None and pending.pinned != pending.directory:
            self._query.unpin(pending.pinned)

    def _origin(self, pending: _Pending, key: str) -> str:
        """The path from which the asynchronous part copies a file."""
        if pending.pinned is None:
            return self._source(pending, key)
        return join(pending.pinned, self._file_name(key))

    def _source(self, pending: _Pending, key: str) -> str:
        return pending.sources.get(key) or self._query.file(key)

    def _keep(self, pending: _Pending, staged: str, key: str) -> StateHandle:
        """Copy a staged file into the savepoint."""
        key = f"staged/{key}"
        (seen,) = self._query.copy_all([(staged, self._target(pending, key))], pending.below)
        pending.new.append(key)
        return self._handle(pending, key, seen)

    def _handle(self, pending: _Pending, key: str, seen: tuple[int, str] | None) -> StateHandle:
        """The handle of a new file; ``seen`` is its size and checksum, if known."""
        size, checksum = seen or self._fs(pending).checksum(self._target(pending, key))
        path = pending.prefix + self._file_name(key)
        return StateHandle(key=key, path=path, size=size, checksum=checksum)

    def _fs(self, pending: _Pending) -> FileSystem:
        return self._storage.fs(pending.directory)

    def _target(self, pending: _Pending, key: str) -> str:
        return join(pending.directory, self._file_name(key))

    def _file_name(self, key: str) -> str:
        """A flat name: a checkpoint's new files share one directory and need one directory sync."""
        name = f"{self._vertex}~{key.replace('/', '~')}"
        if len(name) <= _NAME_CHARACTERS:
            return name
        return f"{name[:_NAME_CHARACTERS]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
