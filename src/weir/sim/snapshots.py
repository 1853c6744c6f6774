"""Snapshots of one modelled query: which files are new, which refer to the base, what an aborted one leaves.

The rules are those of ``weir/spark/snapshots.py``: new files get a second name while the query rests, or, where there are
no links, are copied later and may have vanished by then; the base is the newest checkpoint of whose completion the task
was told (PROTOCOL P3, P4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from weir.core.messages import TakeSnapshot
from weir.core.types import Committable, SnapshotMetrics, StateHandle, TaskState
from weir.durable.sink_port import KeepFile
from weir.kernel.ports import TaskPlan
from weir.sim.disk import ProcessFileSystem
from weir.state.storage import CheckpointStorage

Flush = Callable[[Sequence[Committable], KeepFile | None], tuple[Committable, ...]]


@dataclass
class _Pending:
    effect: TakeSnapshot
    directory: str
    prefix: str
    #: Records read.
    offset: int
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

    def take(self, effect: TakeSnapshot, *, offset: int, keys: Sequence[str]) -> None:
        """The synchronous part: the query rests after ``offset`` records; its state is in the files ``keys``."""
        n, savepoint = effect.checkpoint_id, effect.target is not None
        pending = _Pending(
            effect=effect,
            directory=effect.target or self._storage.shared_directory(n),
            prefix="" if savepoint else f"shared/{n}/",
            offset=offset,
        )
        self._pending[n] = pending
        if effect.finished:
            return
        base = {} if effect.full or savepoint else self._base
        for key in keys:
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
        keep = None if effect.kind.commits_side_effects else partial(self._keep, pending)
        committables = self._flush(effect.committables, keep)
        fs.sync([self._target(pending, key) for key in pending.new])
        files = (*pending.reused, *handles)
        state = TaskState(
            vertex=self._plan.vertex,
            position=effect.position,
            operators=tuple(replace(one, fully_finished=effect.finished) for one in self._plan.operators),
            entries={"offset": str(pending.offset)},
            files=files,
            committables=committables,
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
        self._fs.link_or_copy(f"{self._directory}/{key}", self._target(pending, key))

    def _handle(self, pending: _Pending, key: str) -> StateHandle:
        size, checksum = self._fs.checksum(self._target(pending, key))
        path = pending.prefix + self._name(key)
        return StateHandle(key=key, path=path, size=size, checksum=checksum)

    def _target(self, pending: _Pending, key: str) -> str:
        return f"{pending.directory}/{self._name(key)}"

    def _name(self, key: str) -> str:
        return f"{self._plan.vertex}~{key.replace('/', '~')}"
