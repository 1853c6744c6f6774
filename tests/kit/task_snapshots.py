"""Snapshots of tasks without Spark: a query's directory made by hand, and what takes its snapshots.

The directory looks as Spark leaves it: one operator with one partition, and a changelog for each
batch. Its state is not real, but every byte counts.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from tests.kit.clock import ManualClock

from weir.core.messages.task import TakeSnapshot
from weir.core.types import (
    Committable,
    CompletedCheckpoint,
    OperatorState,
    SnapshotKind,
    TaskState,
)
from weir.durable.sink_port import KeepFile
from weir.durable.task_snapshots import Flush, TaskSnapshots
from weir.runtime.concurrency import Clock, ThreadWaits
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.snapshots import QueryState, SnapshotOperators, restore_directory
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import Transfer
from weir.storage.local import LocalFileSystem

FILES = LocalFileSystem()
JOB = "0" * 32
SCHEMA_FILE = "state/0/_stateSchema/default/0_schema"


class FakeQuery:
    """A query's directory, which gains a changelog with each batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = QueryDirectory(FILES, str(path))
        self.position = -1
        self.write("metadata", '{"id":"q"}')
        operator = '{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},"stateStoreInfo":[]}'
        self.write("state/0/_metadata/metadata", f"v1\n{operator}")
        self.write(SCHEMA_FILE, "schema")

    def write(self, key: str, content: str | bytes) -> None:
        """Write one file."""
        target = self.path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def unique_id(self, position: int) -> str:
        """The id of the state after a batch."""
        return str(UUID(int=position))

    def changelog(self, position: int) -> str:
        """The key of a batch's changelog."""
        return f"state/0/0/{position + 1}_{self.unique_id(position)}.changelog"

    def step(self) -> int:
        """Add one more batch; return its position."""
        self.position += 1
        n = self.position
        self.write(
            f"offsets/{n}", f'v1\n{{"batchWatermarkMs":0}}\n{{"control":0}}\n{{"logOffset":{n}}}'
        )
        self.write(f"sources/1/{n}", f"v1\nfile-{n}")
        commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[self.unique_id(n)]]}}
        self.write(f"commits/{n}", f"v1\n{json.dumps(commit)}")
        self.write(self.changelog(n), f"changes-{n}")
        return n

    def snapshot_state(self, position: int) -> list[str]:
        """Write Spark's own snapshot of the state after a batch; return its keys."""
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            names = {
                "sstFiles": [{"localSstFileName": "1.sst", "dfsSstFileName": f"1-{position}.sst"}]
            }
            file.writestr("metadata", f"v1\n{json.dumps(names)}")
        keys = [
            self.changelog(position).replace(".changelog", ".zip"),
            f"state/0/0/SSTs/1-{position}.sst",
        ]
        self.write(keys[0], archive.getvalue())
        self.write(keys[1], f"sst-{position}")
        return keys


def task_snapshots(
    vertex: str,
    directory: QueryDirectory,
    storage: CheckpointStorage,
    transfer: Transfer,
    *,
    clock: Clock,
    restored: TaskState | None = None,
    snapshot_operators: SnapshotOperators | None = None,
    flush: Flush = lambda committables, keep, checkpoint_id: tuple(committables),
) -> TaskSnapshots:
    """What takes the snapshots of a task whose query has this directory."""
    return TaskSnapshots(
        vertex=vertex,
        operators=(OperatorState(operator_id=vertex, name=vertex),),
        inputs=(),
        query=QueryState(
            directory,
            transfer,
            restored=restored,
            watermark_ms=lambda position: None,
            snapshot_operators=snapshot_operators,
            layout=lambda: None,
            entries={},
        ),
        storage=storage,
        flush=flush,
        base=restored.files if restored else (),
        clock=clock,
        waits=ThreadWaits(),
    )


class SnapshotWorld:
    """One task's snapshots and their destination."""

    def __init__(
        self,
        query: FakeQuery,
        checkpoints: Path,
        *,
        restored: TaskState | None = None,
        vertex: str = "v",
        snapshot_operators: SnapshotOperators | None = None,
    ) -> None:
        self.query = query
        self.base = checkpoints
        self.storage = CheckpointStorage(
            fs=lambda _: FILES, base_directory=str(checkpoints), job_id=JOB
        )
        self.storage.make_job_directory()
        self.transfer = Transfer(lambda _: FILES)
        self.flushed: list[Committable] = []
        self.snapshots = task_snapshots(
            vertex,
            query.directory,
            self.storage,
            self.transfer,
            restored=restored,
            snapshot_operators=snapshot_operators,
            flush=self._flush,
            # A quarter of a second after every trigger.
            clock=ManualClock(0, epoch_ms=1_250),
        )

    def effect(
        self,
        checkpoint_id: int,
        *,
        kind: SnapshotKind = SnapshotKind.CHECKPOINT,
        target: str | None = None,
        finished: bool = False,
        position: int | None = None,
    ) -> TakeSnapshot:
        """The core's request for a snapshot."""
        at = self.query.position if position is None else position
        return TakeSnapshot(
            vertex="v",
            checkpoint_id=checkpoint_id,
            kind=kind,
            full=kind.is_savepoint,
            timestamp_ms=1_000,
            target=target,
            position=at,
            finished=finished,
            committables=(Committable(sink="out", position=0, payload={"n": 1}),),
        )

    def take(self, checkpoint_id: int, **how: object) -> TaskState:
        """Run both parts."""
        self.snapshots.take(self.effect(checkpoint_id, **how))  # type: ignore[arg-type]
        return self.snapshots.proceed(checkpoint_id)[0]

    def shared(self, checkpoint_id: int) -> list[str]:
        """Names of the files that a checkpoint wrote."""
        return sorted(
            path.name for path in Path(self.storage.shared_directory(checkpoint_id)).glob("*")
        )

    def completed(
        self, checkpoint_id: int, state: TaskState, path: str | None = None
    ) -> CompletedCheckpoint:
        """The completed checkpoint of this state."""
        return CompletedCheckpoint(
            job_id=JOB,
            checkpoint_id=checkpoint_id,
            kind=SnapshotKind.CHECKPOINT if path is None else SnapshotKind.SAVEPOINT,
            timestamp_ms=0,
            completion_timestamp_ms=0,
            attempt=1,
            tasks=(state,),
            external_path=path or self.storage.checkpoint_directory(checkpoint_id),
        )

    def verify(self, checkpoint_id: int, state: TaskState, path: str | None = None) -> None:
        """Check that every file exists with its size and checksum."""
        self.storage.verify(self.completed(checkpoint_id, state, path))

    def _flush(
        self, committables: Sequence[Committable], keep: KeepFile | None, checkpoint_id: int
    ) -> tuple[Committable, ...]:
        assert checkpoint_id > 0
        self.flushed.extend(committables)
        return tuple(
            replace(
                item,
                payload={**item.payload, "flushed": True},
                files=(
                    (keep(item.payload["path"], f"{item.sink}/{item.position}/0"),)
                    if keep and "path" in item.payload
                    else ()
                ),
            )
            for item in committables
        )


def restored(
    world: SnapshotWorld, checkpoint_id: int, state: TaskState, target: Path
) -> QueryDirectory:
    """A new directory filled from the checkpoint."""
    target.mkdir(parents=True)
    directory = QueryDirectory(FILES, str(target))
    restore_directory(
        state=state,
        checkpoint=world.completed(checkpoint_id, state),
        storage=world.storage,
        transfer=world.transfer,
        directory=directory,
    )
    return directory
