"""Targets that are put back from an older copy: rows are missing that the job has committed (P21).

Each kind of target is a directory, which is copied after one epoch and put back after the next. The
attack is noticed by the next commit of the running driver, by the next attempt of that driver, and
by another driver, whether rows are pending or not. Copies of a whole world, records and targets,
have not gone back, nor has a target that others clean up or change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.kit.durable_job import Driver
from tests.kit.iceberg_warehouse import Warehouse, stage_by_hand
from tests.kit.written_rows import rows_of_delta, rows_of_files, stage_rows

from weir.core.messages.task import CommitSinks
from weir.core.types import Committable, CompletedCheckpoint, Payload
from weir.durable.sink_port import CommitRetries, SinkPort
from weir.errors import DuplicatesError, LostRowsError
from weir.runtime.concurrency import ThreadWaits
from weir.sinks import Batch, DeltaTable, Files, Foreach, IcebergTable, SinkContext, SinkInfo
from weir.sinks.base import Sink
from weir.storage.local import LocalFileSystem

JOB = "0123456789abcdef0123456789abcdef"
KINDS = ("delta", "files", "iceberg", "own", "foreach")


class OwnSink(Sink):
    """A user's sink: the rows of each epoch are in a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def describe(self) -> str:
        return f"OwnSink({str(self.directory)!r})"

    def check(self, context: SinkContext) -> None:
        pass

    def open(self, context: SinkContext) -> None:
        self.directory.mkdir(exist_ok=True)

    def stage(self, frame: Any, batch: Batch) -> Payload | None:
        return {"rows": [batch.batch_id, batch.batch_id + 100]}

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        rows = [row for payload in payloads for row in payload["rows"]]
        path = self.directory / f"{epoch}.json"
        if rows and not path.exists():
            path.write_text(json.dumps(rows))
            return len(rows)
        return 0

    def newest_committed(self) -> int | None:
        return max((int(path.stem) for path in self.directory.iterdir()), default=None)

    def clean(self, attempt: int) -> None:
        pass


def foreach(directory: Path) -> Foreach:
    """The same in functions."""
    own = OwnSink(directory)
    directory.mkdir(exist_ok=True)

    def newest(info: SinkInfo) -> int | None:
        return own.newest_committed()

    return Foreach(
        lambda frame, info: own.stage(frame, Batch(batch_id=info.batch_id)),
        commit=lambda info, values: own.commit(info.epoch, values) and None,
        newest_committed=newest,
    )


class Scene:
    """A job of one sink, by hand: every batch is staged, checkpointed and committed at once."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.target = directory / "t"
        self._warehouse = Warehouse(None, self.target) if kind == "iceberg" else None
        self.start()

    def start(self, **options: Any) -> None:
        """Another driver takes over the job, and begins an attempt."""
        self.sink = self._made()
        port = SinkPort(
            sinks={"out": self.sink},
            job_name="orders",
            file_system=lambda _: LocalFileSystem(),
            waits=ThreadWaits(),
            retries=CommitRetries(attempts=2, initial_backoff_ms=1, max_backoff_ms=1),
            job_directory=str(self.directory / "checkpoints" / JOB),
        )
        port.check(JOB)
        self.driver = Driver(self.directory, JOB, sinks=port, **options)
        self.driver.job.begin_attempt()

    def _made(self) -> Sink:
        if self._warehouse is not None:
            return self._warehouse.sink()
        kinds: dict[str, Callable[[], Sink]] = {
            "delta": lambda: DeltaTable(str(self.target)),
            "files": lambda: Files(str(self.target)),
            "own": lambda: OwnSink(self.target),
            "foreach": lambda: foreach(self.target),
        }
        return kinds[self.kind]()

    def complete(self, position: int) -> CompletedCheckpoint:
        """Complete a checkpoint with two rows to commit."""
        if isinstance(self.sink, IcebergTable):
            payload = stage_by_hand(self.sink, position, position, position + 100)
        elif self.kind in ("delta", "files"):
            payload = stage_rows(self.sink, position, self.directory / "segments")
        else:
            staged = self.sink.stage(None, Batch(batch_id=position))  # type: ignore[arg-type]
            assert staged is not None
            payload = staged
        item = Committable(sink="out", position=position, payload=payload)
        return self.driver.complete(committables=self.driver.job._sinks.flush([item]))

    def commit(self, checkpoint: CompletedCheckpoint) -> None:
        """Commit what a checkpoint has to commit."""
        payloads = tuple(item.payload for item in checkpoint.tasks[0].committables)
        self.driver.job.commit_sinks(
            CommitSinks(
                vertex="a", checkpoint_id=checkpoint.checkpoint_id, payloads={"out": payloads}
            )
        )

    def write(self, position: int) -> None:
        """Two rows, from the batch to the readers."""
        self.commit(self.complete(position))

    def copy(self) -> None:
        """Copy the target."""
        shutil.copytree(self.target, self.directory / "older")

    def put_back(self) -> None:
        """The target is its older copy."""
        if self._warehouse is not None:
            self._make_current(0)
            return
        self.target.rename(self.directory / "newer")
        (self.directory / "older").rename(self.target)

    def bring_forward(self) -> None:
        """The newer target is there again."""
        if self._warehouse is not None:
            self._make_current(-1)
            return
        self.target.rename(self.directory / "older")
        (self.directory / "newer").rename(self.target)

    def _make_current(self, number: int) -> None:
        """One of all snapshots, in their order."""
        assert self._warehouse is not None
        table = self._warehouse.table()
        snapshot_id = table.metadata.snapshots[number].snapshot_id
        table.manage_snapshots().set_current_snapshot(snapshot_id).commit()

    def rows(self) -> list[int]:
        """What readers see."""
        if self._warehouse is not None:
            return self._warehouse.ids()
        if self.kind in ("delta", "files"):
            return (rows_of_delta if self.kind == "delta" else rows_of_files)(self.target)
        found = [json.loads(path.read_text()) for path in self.target.iterdir()]
        return sorted(row for rows in found for row in rows)


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """A job that has committed two epochs, and a copy of its target between them."""
    scene = Scene(request.param, tmp_path)
    scene.write(1)
    scene.copy()
    scene.write(2)
    assert scene.rows() == [1, 2, 101, 102]
    return scene


GONE = r"has gone back( to checkpoint 1)?, though checkpoint 2 was committed there"


def test_the_next_commit_notices_it(scene: Scene) -> None:
    """It shows nothing, and is not repeated: no rows may hide those that are missing."""
    scene.put_back()
    pending = scene.complete(3)
    with pytest.raises(LostRowsError, match=GONE):
        scene.commit(pending)
    assert scene.rows() == [1, 101]


def test_the_next_attempt_of_the_driver_notices_it_with_nothing_to_commit(scene: Scene) -> None:
    """The driver itself knows what it has committed."""
    scene.put_back()
    with pytest.raises(LostRowsError, match=GONE):
        scene.driver.job.begin_attempt()


@pytest.mark.parametrize("idle", [1, 3])
def test_another_driver_notices_it_with_nothing_to_commit(scene: Scene, idle: int) -> None:
    """Its job's records have the newest epoch with rows, also after checkpoints without rows."""
    for _ in range(idle):
        scene.driver.complete()
    scene.put_back()
    with pytest.raises(LostRowsError, match=GONE):
        scene.start()
    assert scene.rows() == [1, 101]


def test_another_driver_notices_it_with_rows_to_commit(scene: Scene) -> None:
    """The checkpoint has them, and its record was written when epoch 2 was committed."""
    scene.complete(3)
    scene.put_back()
    with pytest.raises(LostRowsError, match=GONE):
        scene.start()
    assert scene.rows() == [1, 101]


def test_the_job_goes_on_once_the_newer_target_is_back(scene: Scene) -> None:
    """The refusal has changed nothing."""
    scene.complete(3)
    scene.put_back()
    with pytest.raises(LostRowsError):
        scene.start()
    scene.bring_forward()
    scene.start()
    assert scene.rows() == [1, 2, 3, 101, 102, 103]


def test_it_is_accepted_with_duplicates(scene: Scene) -> None:
    """The user has said that rows may be missing; from then on they are not."""
    scene.driver.complete()
    scene.put_back()
    scene.start(accept_duplicates=True)
    scene.write(4)
    assert scene.rows() == [1, 4, 101, 104]
    scene.driver.complete()
    scene.start()
    scene.write(5)
    assert scene.rows() == [1, 4, 5, 101, 104, 105]


def test_a_copy_of_records_and_targets_has_not_gone_back(tmp_path: Path) -> None:
    """Both are of the same moment, wherever they lie."""
    scene = Scene("delta", tmp_path / "one")
    scene.write(1)
    scene.driver.complete()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    scene.write(2)
    scene.directory, scene.target = tmp_path / "two", tmp_path / "two" / "t"
    scene.start()
    scene.write(3)
    assert scene.rows() == [1, 3, 101, 103]


def test_cleaning_up_and_the_changes_of_others_are_not_going_back(tmp_path: Path) -> None:
    """VACUUM, OPTIMIZE, a log that is cleaned up, deletions and appends: all rows were there."""
    scene = Scene("delta", tmp_path)
    for position in (1, 2, 3):
        scene.write(position)
    table = deltalake.DeltaTable(str(scene.target))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.delete("id = 101")
    deltalake.write_deltalake(table, pa.table({"id": pa.array([7], pa.int64())}), mode="append")
    table.create_checkpoint()
    for entry in (scene.target / "_delta_log").glob("*[0-4].json"):
        entry.unlink()
    scene.write(4)
    scene.start()
    scene.write(5)
    assert scene.rows() == [1, 2, 3, 4, 5, 7, 102, 103, 104, 105]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_delta_table_that_was_restored_to_a_version_is_noticed(
    tmp_path: Path, *, restarted: bool
) -> None:
    """The log goes on after a RESTORE, and has the newest epoch, but its rows are gone."""
    scene = Scene("delta", tmp_path)
    for position in (1, 2):
        scene.write(position)
    table = deltalake.DeltaTable(str(scene.target))
    table.restore(0)
    deltalake.write_deltalake(table, pa.table({"id": pa.array([7], pa.int64())}), mode="append")
    for _ in range(2):
        with pytest.raises(LostRowsError, match=GONE):
            if restarted:
                scene.start()
            else:
                scene.commit(scene.complete(3))
    assert scene.rows() == [1, 7, 101]
    table.update_incremental()
    table.restore(1)
    scene.start()
    scene.write(4)
    assert scene.rows() == [1, 2, *([] if restarted else [3]), 4, 101, 102] + (
        [104] if restarted else [103, 104]
    )
    table.update_incremental()
    table.restore(0)
    scene.start(accept_duplicates=True)
    scene.write(5)
    scene.start()
    assert scene.rows() == [1, 5, 101, 105]


def iceberg(directory: Path) -> tuple[Scene, Any]:
    """Two epochs in an Iceberg table, of which the second has a tag, and the table."""
    scene = Scene("iceberg", directory)
    scene.write(1)
    scene.write(2)
    assert scene._warehouse is not None
    table = scene._warehouse.table()
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "release").commit()
    return scene, table


def test_snapshots_that_expired_beside_a_tag_are_not_going_back(tmp_path: Path) -> None:
    """The tag keeps the snapshot of the newest epoch, but those between it and the current one are
    gone, and pyiceberg takes its parent away from the first that is left."""
    scene, table = iceberg(tmp_path)
    for row in (7, 8):
        table.append(pa.table({"id": pa.array([row], pa.int64())}))
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    left = scene._warehouse.table().metadata  # type: ignore[union-attr]
    assert len(left.snapshots) == 2 and left.current_snapshot().parent_snapshot_id is None
    scene.write(3)
    scene.driver.complete()
    scene.start()
    assert scene.rows() == [1, 2, 3, 7, 8, 101, 102, 103]


def test_a_table_that_was_rolled_back_beside_a_tag_and_written_to_is_noticed(
    tmp_path: Path,
) -> None:
    """The tag still has the newest epoch, and others have appended since."""
    scene, table = iceberg(tmp_path)
    scene.put_back()
    table.refresh()
    for row in (7, 8):
        table.append(pa.table({"id": pa.array([row], pa.int64())}))
    with pytest.raises(LostRowsError, match=GONE):
        scene.start()


def test_a_sink_that_knows_no_epochs_is_not_compared(tmp_path: Path) -> None:
    """``newest_committed`` may return None; nothing is concluded from that."""
    scene = Scene("own", tmp_path)
    scene.sink.newest_committed = lambda: None  # type: ignore[method-assign]
    scene.write(1)
    scene.driver.complete()
    assert not scene.driver.job._log.newest().epochs  # type: ignore[union-attr]


def test_another_target_of_the_same_sink_has_not_gone_back(tmp_path: Path) -> None:
    """What is known of a target counts for that target alone."""
    scene = Scene("own", tmp_path)
    scene.write(1)
    scene.driver.complete()
    scene.target = tmp_path / "other"
    scene.start()
    scene.write(2)
    assert scene.rows() == [2, 102]


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_driver_with_a_copy_of_the_records_is_noticed(tmp_path: Path, kind: str) -> None:
    """Nobody has fenced this driver, but its target has a newer epoch of its job: its rows would
    be reported as committed, and be nowhere (P18)."""
    scene = Scene(kind, tmp_path)
    scene.write(1)
    late, other = scene.complete(2), scene.complete(3)
    # What the second driver does, as far as the target is concerned.
    scene.sink.commit(9, [item.payload for item in other.tasks[0].committables])
    with pytest.raises(DuplicatesError, match="already has checkpoint 9 of this job"):
        scene.commit(late)


def test_a_driver_that_was_fenced_commits_late_without_harm(tmp_path: Path) -> None:
    """Its successor has committed its rows, and more (P18)."""
    scene = Scene("delta", tmp_path)
    zombie, sink = scene.driver, scene.sink
    late = scene.complete(1)
    scene.start()
    scene.write(2)
    scene.driver, scene.sink = zombie, sink
    scene.commit(late)
    assert scene.rows() == [1, 2, 101, 102]
