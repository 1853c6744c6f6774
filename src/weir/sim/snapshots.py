"""Snapshots of one modelled query: which files are new, which refer to the base, what an aborted one leaves.

The rules are those of ``weir/spark/snapshots.py``: new files get a second name while the query rests, or, where there are
no links, are copied later and may have vanished by then; the base is the newest checkpoint of whose completion the task
was told (PROTOCOL P3, P4).

Segments in flight are state files of the consumer's (PROTOCOL P27). The segment of a live producer is found where that
wrote it, a restored one below the query's own directory. One that is gone before it could be copied was deleted too early,
since the task holds back the word that it was read: that is lost state, and no fault of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from weir.core.messages.task import TakeSnapshot
from weir.core.types import (
    Committable,
    InFlightSegment,
    Payload,
    SnapshotMetrics,
    StateHandle,
    TaskState,
    VertexId,
)
from weir.durable.sink_port import KeepFile
from weir.errors import StorageError
from weir.runtime.ports import TaskPlan
from weir.sim.disk import ProcessFileSystem
from weir.storage.checkpoints import CheckpointStorage

Flush = Callable[[Sequence[Committable], KeepFile | None], tuple[Committable, ...]]


class LostStateError(Exception):
    """A query does not find its past, or a segment. Caught by nobody: the auditor looks for it in what tasks report."""


def segment_path(payload: Payload, directory: str) -> str:
    """Where the file of a segment is that the query in ``directory`` reads."""
    return payload.get("file") or f"{directory}/{payload['key']}"


def _kept_key(channel: VertexId, position: int) -> str:
    return f"in-flight/{channel}/{position:020d}"


@dataclass
class _Pending:
    effect: TakeSnapshot
    directory: str
    prefix: str
    #: What is kept in the metadata.
    entries: dict[str, str]
    in_flight: list[InFlightSegment] = field(default_factory=list)
    #: Where the files of segments in flight are, by key.
    segments: dict[str, str] = field(default_factory=dict)
    reused: list[StateHandle] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


class SimSnapshots:
    """The snapshots of one task of one attempt."""

    def __init__(
        self,
        *,
        plan: TaskPlan,
        directory: str,
        file_system: ProcessFileSystem,
        storage: CheckpointStorage,
        flush: Flush,
        links: bool,
        base: Sequence[StateHandle],
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._fs = file_system
        self._storage = storage
        self._flush = flush
        self._links = links
        self._base = {handle.key: handle for handle in base}
        self._pending: dict[int, _Pending] = {}
        #: Those whose last part has ended, until their checkpoint completed or they are dropped: it may be over already.
        self._written: dict[int, _Pending] = {}
        self._acknowledged: dict[int, tuple[StateHandle, ...]] = {}

    def take(self, effect: TakeSnapshot, *, entries: dict[str, str], keys: Sequence[str]) -> None:
        """The synchronous part: the query rests; its state is in ``entries`` and in the files ``keys``."""
        n, savepoint = effect.checkpoint_id, effect.target is not None
        pending = _Pending(
            effect=effect,
            directory=effect.target or self._storage.shared_directory(n),
            prefix="" if savepoint else f"shared/{n}/",
            entries=entries,
        )
        self._pending[n] = pending
        for segment in effect.in_flight:
            key = _kept_key(segment.channel, segment.position)
            pending.segments[key] = segment_path(segment.payload, self._directory)
            pending.in_flight.append(replace(segment, payload={"key": key}))
        base = {} if effect.full or savepoint else self._base
        for key in (*pending.segments, *(() if effect.finished else keys)):
            handle = base.get(key)
            if handle is None:
                pending.new.append(key)
                if self._links:
                    self._copy(pending, key)
            else:
                pending.reused.append(handle)

    def proceed(self, checkpoint_id: int) -> tuple[TaskState, SnapshotMetrics]:
        """The asynchronous part."""
        pending = self._pending[checkpoint_id]
        effect, fs = pending.effect, self._fs
        if not self._links:
            for key in pending.new:
                self._copy(pending, key)
        handles = [self._handle(pending, key) for key in pending.new]
        keep = partial(self._keep, pending) if effect.kind.is_savepoint else None
        committables = self._flush(effect.committables, keep)
        fs.sync([self._target(pending, key) for key in pending.new])
        files = (*pending.reused, *handles)
        state = TaskState(
            vertex=self._plan.vertex,
            position=effect.position,
            operators=tuple(replace(one, fully_finished=effect.finished) for one in self._plan.operators),
            inputs=self._plan.inputs,
            entries=pending.entries,
            files=files,
            committables=committables,
            in_flight=tuple(pending.in_flight),
        )
        self._written[checkpoint_id] = self._pending.pop(checkpoint_id)
        self._acknowledged[checkpoint_id] = files
        return state, SnapshotMetrics()

    def drop(self, checkpoint_id: int) -> None:
        """Forget a snapshot and delete its files."""
        pending = self._pending.pop(checkpoint_id, None) or self._written.pop(checkpoint_id, None)
        self._acknowledged.pop(checkpoint_id, None)
        if pending is not None:
            for key in pending.new:
                self._fs.delete(self._target(pending, key))

    def confirm(self, checkpoint_id: int) -> None:
        """The checkpoint is the base of the next one."""
        files = self._acknowledged.get(checkpoint_id)
        # One of an older checkpoint may still have to be dropped, with the files that it wrote.
        self._written.pop(checkpoint_id, None)
        for older in [known for known in self._acknowledged if known <= checkpoint_id]:
            del self._acknowledged[older]
        if files is not None:
            self._base = {handle.key: handle for handle in files}

    def _keep(self, pending: _Pending, staged: str, key: str) -> StateHandle:
        name = f"staged/{key}"
        self._fs.link_or_copy(staged, self._target(pending, name))
        pending.new.append(name)
        return self._handle(pending, name)

    def _copy(self, pending: _Pending, key: str) -> None:
        source = pending.segments.get(key)
        try:
            self._fs.link_or_copy(source or f"{self._directory}/{key}", self._target(pending, key))
        except StorageError as error:
            if source is not None and self._fs.status(source) is None:
                raise LostStateError(f"{self._plan.vertex}: the segment {source} is gone") from error
            raise

    def _handle(self, pending: _Pending, key: str) -> StateHandle:
        size, checksum = self._fs.checksum(self._target(pending, key))
        path = pending.prefix + self._name(key)
        return StateHandle(key=key, path=path, size=size, checksum=checksum)

    def _target(self, pending: _Pending, key: str) -> str:
        return f"{pending.directory}/{self._name(key)}"

    def _name(self, key: str) -> str:
        return f"{self._plan.vertex}~{key.replace('/', '~')}"
