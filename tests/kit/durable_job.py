"""The durable half of a job: real files in a temporary directory, no tasks.

What a task would write is written here by hand: one small file per name, in the directory that the
task would use. The clock stands still.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.kit.clock import ManualClock
from tests.kit.sink import FakeSink, sink_port

from weir.core.messages.job import AllocateLocation, DiscardCheckpoint, RecordCheckpoint
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    Recorded,
    SnapshotKind,
    StateHandle,
    TaskState,
)
from weir.durable.hooks import CheckpointListener, CheckpointListeners, MasterHook, MasterHooks
from weir.durable.job import DurableJob, DurableSettings
from weir.durable.sink_port import SinkPort
from weir.durable.state_mapping import NothingChanges, StateMapping
from weir.runtime.concurrency import ThreadWaits
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.local import LocalFileSystem

_FILES = LocalFileSystem()
_OPERATORS = (OperatorState(operator_id="a-op", name="a-op"),)
_TOKENS = count(1)


_KERNEL = replace(
    ManualClock(0, epoch_ms=1_000_000).kernel(),
    new_name=lambda: f"{next(_TOKENS):012x}".ljust(32, "0"),
)


def durable_job(
    storage: CheckpointStorage,
    operators: Mapping[str, tuple[OperatorState, ...]],
    sinks: SinkPort,
    *,
    hooks: Sequence[MasterHook] = (),
    listeners: Mapping[str, Sequence[CheckpointListener]] = MappingProxyType({}),
    note: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> DurableJob:
    """The durable half of a job with these operators per vertex; ``settings`` are its own."""
    by_default: dict[str, Any] = {
        "job_name": "orders",
        "from_savepoint": None,
        "accept_duplicates": False,
        "claims_snapshot": False,
    }
    return DurableJob(
        storage=storage,
        sinks=sinks,
        listeners=CheckpointListeners(listeners, ThreadWaits()),
        hooks=MasterHooks(hooks, allow_non_restored_state=False, waits=ThreadWaits()),
        state_mapping=StateMapping(
            vertices=operators, allow_non_restored_state=False, assembler=NothingChanges()
        ),
        settings=DurableSettings(**by_default | settings),
        waits=ThreadWaits(),
        note=note,
        restored=lambda _: None,
    )


class Driver:
    """A driver of a job of one task; each new ``Driver`` with the same id takes over the job."""

    def __init__(
        self,
        directory: Path,
        job_id: str,
        *,
        from_savepoint: str | None = None,
        snapshot_checksum: str | None = None,
        claims_snapshot: bool = False,
        accept_duplicates: bool = False,
        num_retained: int = 1,
        sinks: SinkPort | None = None,
        hooks: Sequence[MasterHook] = (),
        listeners: Sequence[CheckpointListener] = (),
        files: FileSystem | Callable[[str], FileSystem] = _FILES,
        checkpoints: str | None = None,
    ) -> None:
        """``checkpoints`` may be anywhere if ``files`` gives the file system of a path."""
        self.savepoints = directory / "savepoints"
        self.storage = CheckpointStorage(
            fs=files if callable(files) else lambda _: files,
            base_directory=checkpoints or str(directory / "checkpoints"),
            job_id=job_id,
            kernel=_KERNEL,
        )
        self.storage.make_job_directory()
        self.num_retained = num_retained
        self.retained: list[int] = []
        self.job = durable_job(
            self.storage,
            {"a": _OPERATORS},
            sinks or sink_port(FakeSink()),
            listeners={"a": listeners},
            hooks=hooks,
            savepoint_directory=str(self.savepoints),
            working_directory=str(directory / "work" / job_id),
            from_savepoint=from_savepoint,
            snapshot_checksum=snapshot_checksum,
            accept_duplicates=accept_duplicates,
            claims_snapshot=claims_snapshot,
            num_retained=num_retained,
        )

    def complete(
        self, files: tuple[str, ...] = (), committables: tuple[Committable, ...] = ()
    ) -> CompletedCheckpoint:
        """Complete a checkpoint of state files ``<id of the writing checkpoint>/<name>``.

        Those with its own id are written.
        """
        n, _ = self.job.allocate(
            AllocateLocation(allocation=1, kind=SnapshotKind.CHECKPOINT, target=None)
        )
        for file in files:
            writer, name = file.split("/")
            if int(writer) == n:
                directory = Path(self.storage.shared_directory(n))
                directory.mkdir(parents=True, exist_ok=True)
                (directory / name).write_bytes(b"state")
        self.retained = [*self.retained, n][-self.num_retained :]
        handles = tuple(_handle(f"shared/{file}") for file in files)
        return self._record(n, SnapshotKind.CHECKPOINT, None, handles, committables)

    def savepoint(self, *, staged: bool = False) -> CompletedCheckpoint:
        """Complete an intermediate savepoint of one state file.

        The file is also the copy of what a sink has ``staged``.
        """
        n, target = self.job.allocate(
            AllocateLocation(allocation=1, kind=SnapshotKind.SAVEPOINT, target=None)
        )
        assert target is not None
        Path(target, "state").write_bytes(b"state")
        copies = (_handle("state"),)
        output = (
            (Committable(sink="out", position=4, payload={"step": 4}, files=copies),)
            if staged
            else ()
        )
        return self._record(n, SnapshotKind.SAVEPOINT, target, copies, output)

    def subsume(self, checkpoint_id: int, *files: str) -> None:
        """Discard a subsumed checkpoint with these ``files``, which nobody needs any more."""
        names = tuple(f"shared/{file}" for file in files)
        self.job.discard(
            DiscardCheckpoint(checkpoint_id=checkpoint_id, target=None, files=names, subsumed=True)
        )

    def has(self, file: str) -> bool:
        """Whether a state file ``<id>/<name>`` still exists."""
        writer, name = file.split("/")
        return Path(self.storage.shared_directory(int(writer)), name).exists()

    def _record(
        self,
        n: int,
        kind: SnapshotKind,
        target: str | None,
        handles: tuple[StateHandle, ...],
        committables: tuple[Committable, ...] = (),
    ) -> CompletedCheckpoint:
        task = TaskState(
            vertex="a", position=n, operators=_OPERATORS, files=handles, committables=committables
        )
        outcome = self.job.record_checkpoint(
            RecordCheckpoint(
                checkpoint_id=n,
                kind=kind,
                target=target,
                timestamp_ms=1,
                attempt=self.job.attempt,
                tasks=(task,),
                retained=tuple(self.retained),
            )
        )
        assert outcome.outcome is Recorded.WON
        assert outcome.checkpoint is not None
        return outcome.checkpoint


def _handle(path: str) -> StateHandle:
    return StateHandle(key=path, path=path, size=5, checksum=f"crc32:{zlib.crc32(b'state'):08x}")
