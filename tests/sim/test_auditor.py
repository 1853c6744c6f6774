"""The auditor's laws one by one: each is broken by one step, and by no other.

The tests write the disk themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from weir.core.messages.channel import CheckpointBarrier
from weir.core.messages.job import BeginAttempt
from weir.core.messages.protocol import (
    DeclineCheckpoint,
    NotifyCheckpointComplete,
    TaskFailed,
    TaskStatusChanged,
    TriggerCheckpoint,
)
from weir.core.types import (
    CheckpointFailureReason,
    Committable,
    CompletedCheckpoint,
    InFlightSegment,
    OperatorState,
    SnapshotKind,
    StateHandle,
    TaskState,
    TaskStatus,
)
from weir.sim.engine.auditor import AuditError, Auditor
from weir.sim.engine.disk import Disk
from weir.sim.engine.job import SimVertex
from weir.sim.engine.table import TableVersion
from weir.sim.own.code import CountedRows
from weir.storage import metadata
from weir.storage.job_log import CheckpointReference, JobRecord, RecordKind, RecordStatus

JOB = "0123456789abcdef0123456789abcdef"
BASE = f"/checkpoints/{JOB}"
MIN_PAUSE_MS = 60
ROWS, TOTAL = "/tables/v0-rows", "/tables/v0-total"
STAGED = f"{ROWS}/staged/01234567-v0-rows-1/0"


class Scene:
    """One job with one vertex of three records, and an auditor that watches its disk."""

    def __init__(self, *, claims: bool = False) -> None:
        vertex = SimVertex(name="v0", records=3, batch=1, pace_us=1)
        self.auditor = Auditor(
            base_directory="/checkpoints",
            laws=CountedRows([vertex]),
            max_concurrent=1,
            claims=claims,
            min_pause_ms=MIN_PAUSE_MS,
        )
        self.disk = self.auditor.disk = Disk(self.auditor)
        self._records = 0
        self._references: tuple[CheckpointReference, ...] = ()
        self._versions: dict[str, TableVersion] = {}
        self.effect(TaskStatusChanged(vertex="v0", attempt=1, status=TaskStatus.RUNNING))

    def effect(self, effect: object, *, driver: str = "d1", unforced: int = 1) -> None:
        """Let a driver's machine begin an effect."""
        self.auditor.effect(driver, JOB, effect, unforced)

    def allocate(self, checkpoint_id: int) -> None:
        """Allocate a checkpoint id."""
        self.disk.create(f"{BASE}/ids/{checkpoint_id:020d}", b"")

    def checkpoint(self, checkpoint_id: int, *, staged: bool = False) -> CompletedCheckpoint:
        """A checkpoint with one state file and optionally a staged one; writes its files."""
        state = f"shared/{checkpoint_id}/state"
        self.disk.put(f"{BASE}/{state}", b"s", durable=True)
        committables = []
        if staged:
            self.disk.put(STAGED, b"[0]", durable=True)
            file = STAGED.removeprefix(f"{ROWS}/")
            committables = [Committable(sink="v0-rows", position=0, payload={"file": file})]
        task = TaskState(
            vertex="v0",
            position=0,
            operators=(OperatorState(operator_id="v0", name="v0"),),
            files=(StateHandle(key="state", path=state, size=1, checksum="crc32:00000000"),),
            committables=tuple(committables),
        )
        return CompletedCheckpoint(
            job_id=JOB,
            checkpoint_id=checkpoint_id,
            kind=SnapshotKind.CHECKPOINT,
            timestamp_ms=0,
            completion_timestamp_ms=0,
            attempt=1,
            tasks=(task,),
            hook_states={},
            external_path=f"{BASE}/chk-{checkpoint_id}",
            drained=False,
        )

    def complete(self, checkpoint: CompletedCheckpoint, *, retained: int = 1) -> None:
        """Write the checkpoint's metadata and its record."""
        path = checkpoint.external_path
        self.disk.put(f"{path}/_metadata", metadata.encode(checkpoint), durable=True)
        reference = CheckpointReference(
            checkpoint_id=checkpoint.checkpoint_id, path=path, checksum=f"sha256:{0:064x}"
        )
        self._references = (*self._references, reference)[-retained:]
        self.record(completed=checkpoint.checkpoint_id)

    def record(
        self,
        *,
        completed: int | None = None,
        status: RecordStatus = RecordStatus.RUNNING,
        attempt: int = 1,
    ) -> None:
        """Write the next record of the job log."""
        self._records += 1
        kind = RecordKind.ATTEMPT_BEGAN if completed is None else RecordKind.CHECKPOINT_COMPLETED
        record = JobRecord(
            number=self._records,
            kind=RecordKind.ENDED if status is RecordStatus.FINISHED else kind,
            job_id=JOB,
            job_name="sim",
            attempt=attempt,
            writer="w",
            timestamp_ms=self._records,
            status=status,
            completed=completed,
            checkpoints=self._references,
        )
        self.disk.create(f"{BASE}/log/{self._records:020d}", msgspec.json.encode(record))

    def commit(self, root: str, epoch: int, *files: str) -> None:
        """Write the next version of a table."""
        sink = root.rpartition("/")[2]
        before = self._versions.get(root, TableVersion(transactions={}, files=[]))
        version = self._versions[root] = TableVersion(
            transactions={**before.transactions, f"{JOB}/{sink}": epoch},
            files=[*before.files, *files],
            job_id=JOB,
            epoch=epoch,
            attempt=1,
        )
        number = len(self.disk.names(f"{root}/log")) + 1
        self.disk.create(f"{root}/log/{number:08d}", msgspec.json.encode(version))

    def staged(self, path: str, rows: list[Any]) -> str:
        """Write a durable staged file of a table, and return its path."""
        self.disk.put(path, msgspec.json.encode(rows), durable=True)
        return path


def trigger(checkpoint_id: int) -> TriggerCheckpoint:
    """The effect that triggers task v0."""
    return TriggerCheckpoint(
        vertex="v0",
        barrier=CheckpointBarrier(
            checkpoint_id=checkpoint_id, kind=SnapshotKind.CHECKPOINT, timestamp_ms=0
        ),
    )


def broken(scene: Scene, step: Callable[[], object], words: str) -> None:
    """Assert that the step is the first to break a law, and that the auditor records it."""
    assert scene.auditor.violation is None
    with pytest.raises(AuditError, match=words):
        step()
    assert scene.auditor.violation is not None


def test_a_checkpoint_is_triggered_only_with_an_allocated_id() -> None:
    """An id that was not allocated must not be used."""
    scene = Scene()
    scene.allocate(1)
    scene.effect(trigger(1))
    broken(scene, lambda: scene.effect(trigger(2)), "not allocated")


def test_two_drivers_never_trigger_the_same_checkpoint() -> None:
    """An id belongs to the driver that triggered it first."""
    scene = Scene()
    scene.allocate(1)
    scene.effect(trigger(1))
    broken(scene, lambda: scene.effect(trigger(1), driver="d2"), "is triggered by d2 too")


def test_no_more_unforced_checkpoints_are_in_flight_than_allowed() -> None:
    """The configured limit holds whenever a task is triggered."""
    scene = Scene()
    scene.allocate(1)
    broken(scene, lambda: scene.effect(trigger(1), unforced=2), "2 unforced")


def test_a_task_that_is_finished_is_not_triggered() -> None:
    """The status that the task reported last decides."""
    scene = Scene()
    scene.allocate(1)
    scene.effect(TaskStatusChanged(vertex="v0", attempt=1, status=TaskStatus.FINISHED))
    broken(scene, lambda: scene.effect(trigger(1)), "while it is FINISHED")


def test_a_task_of_a_new_attempt_is_triggered_only_once_it_runs() -> None:
    """The status that the task had in an earlier attempt does not count."""
    scene = Scene()
    scene.allocate(1)
    scene.effect(BeginAttempt(), driver="d2")
    scene.effect(trigger(1))
    scene.effect(BeginAttempt())
    broken(scene, lambda: scene.effect(trigger(1)), "while it is unknown")


def test_tasks_are_notified_of_recorded_checkpoints_only() -> None:
    """The same notification is a breach before the record, and correct after it."""
    told = NotifyCheckpointComplete(vertex="v0", checkpoint_id=1)
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.effect(told)
    unrecorded = Scene()
    broken(unrecorded, lambda: unrecorded.effect(told), "tasks are notified")


@pytest.mark.parametrize("kind", ["LostStateError", "BrokenWatermarkError", "InvariantError"])
def test_no_task_fails_for_lost_state_a_wrong_watermark_or_a_bug(kind: str) -> None:
    """An ordinary failure is not a breach; these are."""
    scene = Scene()
    scene.effect(TaskFailed(vertex="v0", attempt=1, message="disk full", fatal=False))
    lost = TaskFailed(vertex="v0", attempt=1, message=f"{kind}: v0", fatal=False)
    broken(scene, lambda: scene.effect(lost), "failed for a forbidden reason")


def test_no_snapshot_fails_for_a_segment_that_is_gone() -> None:
    """A full disk may decline a checkpoint, a segment deleted too early may not (P27)."""
    scene = Scene()
    decline = DeclineCheckpoint(
        vertex="v0",
        attempt=1,
        checkpoint_id=1,
        reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
        message="disk full",
    )
    scene.effect(decline)
    lost = replace(decline, message="LostStateError: v0: the segment s is gone")
    broken(scene, lambda: scene.effect(lost), "failed for a forbidden reason")


def with_in_flight(checkpoint: CompletedCheckpoint, key: str) -> CompletedCheckpoint:
    """The checkpoint with an in-flight segment whose file has this key."""
    segment = InFlightSegment(channel="p", position=0, size=1, payload={"key": key})
    return replace(checkpoint, tasks=(replace(checkpoint.tasks[0], in_flight=(segment,)),))


def test_a_checkpoint_holds_the_files_of_its_segments_in_flight() -> None:
    """A segment's file is a file of the task's state, and kept like any other (P27)."""
    scene = Scene()
    scene.complete(with_in_flight(scene.checkpoint(1), "state"))
    lacking = with_in_flight(scene.checkpoint(2), "elsewhere")
    broken(
        scene, lambda: scene.complete(lacking), "segment 0 of p, in flight to v0, has no file in it"
    )


def test_a_savepoint_has_nothing_in_flight() -> None:
    """Savepoints are always aligned (P27)."""
    scene = Scene()
    path = "/savepoints/s"
    scene.disk.put(f"{path}/_metadata", b"m", durable=True)
    aligned = replace(
        scene.checkpoint(1),
        kind=SnapshotKind.SAVEPOINT,
        external_path=path,
        tasks=(replace(scene.checkpoint(1).tasks[0], files=()),),
    )
    scene.auditor.savepoint(aligned)
    overtaking = with_in_flight(aligned, "state")
    broken(scene, lambda: scene.auditor.savepoint(overtaking), "has segments of v0 in flight")


def test_a_periodic_checkpoint_starts_after_the_minimum_pause() -> None:
    """The pause starts with a completion in the same driver, and does not bind other drivers."""
    scene = Scene()
    scene.auditor.began_periodic("d1", 1, 1_000)
    scene.auditor.completed("d1", 1_500, None)
    scene.auditor.began_periodic("d2", 2, 1_510)
    scene.auditor.began_periodic("d1", 3, 1_500 + MIN_PAUSE_MS)
    scene.auditor.completed("d1", 3_000, None)
    broken(
        scene,
        lambda: scene.auditor.began_periodic("d1", 4, 3_000 + MIN_PAUSE_MS - 1),
        "59 ms after",
    )


def test_a_final_checkpoint_that_fails_again_and_again_is_not_requested_without_a_pause() -> None:
    """The pause doubles with each failure, and a new attempt resets it (P29)."""
    scene = Scene()
    scene.auditor.asked_final("d1", 1_000)
    scene.auditor.final_failed("d1", 1_010)
    scene.auditor.asked_final("d1", 1_110)
    scene.auditor.final_failed("d1", 1_120)
    scene.auditor.asked_final("d1", 1_320)
    scene.auditor.final_failed("d1", 1_230)
    scene.auditor.asked_final("d2", 1_230)
    scene.auditor.effect("d1", JOB, BeginAttempt(), 0)
    scene.auditor.asked_final("d1", 1_240)
    for at_ms in (1_250, 1_260):
        scene.auditor.final_failed("d1", at_ms)
    broken(scene, lambda: scene.auditor.asked_final("d1", 1_459), "199 ms after failure 2 in a row")


def test_a_final_checkpoint_that_failed_once_is_not_requested_without_a_pause() -> None:
    """A request that was queued before is seen when it is queued (P29)."""
    scene = Scene()
    scene.auditor.final_failed("d1", 1_010)
    broken(scene, lambda: scene.auditor.asked_final("d1", 1_109), "99 ms after failure 1 in a row")


def test_a_checkpoint_is_recorded_with_all_of_its_files() -> None:
    """A state file that is missing when the record is won is a breach at once."""
    scene = Scene()
    checkpoint = scene.checkpoint(1)
    scene.disk.delete(f"{BASE}/shared/1/state")
    broken(scene, lambda: scene.complete(checkpoint), "is not there")


def test_a_checkpoint_is_recorded_with_durable_files() -> None:
    """A state file that a crash could lose is as bad as none."""
    scene = Scene()
    checkpoint = scene.checkpoint(1)
    scene.disk.put(f"{BASE}/shared/1/state", b"t", durable=False)
    broken(scene, lambda: scene.complete(checkpoint), "is not flushed")


def test_a_checkpoint_is_recorded_after_its_metadata_was_written() -> None:
    """A record that names a directory without metadata is a breach."""
    scene = Scene()
    checkpoint = scene.checkpoint(1)
    scene.complete(checkpoint)
    scene.disk.files.pop(f"{BASE}/chk-1/_metadata")
    broken(scene, lambda: scene.complete(scene.checkpoint(2), retained=2), "without its metadata")


def test_a_record_may_be_there_once_more_under_the_next_number() -> None:
    """The sync of the first one failed, so it may not survive a crash (PROTOCOL P23)."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    first = scene.disk.files[f"{BASE}/log/{1:020d}"]
    again = msgspec.json.encode({**msgspec.json.decode(first), "number": 2})
    scene.disk.create(f"{BASE}/log/{2:020d}", again)
    assert scene.auditor.violation is None


def test_a_record_whose_sync_failed_counts_once_a_later_one_repeats_it() -> None:
    """The driver died after the failed sync, and the next attempt's record has the checkpoint."""
    scene = Scene()
    told = NotifyCheckpointComplete(vertex="v0", checkpoint_id=1)
    with patch.object(scene.disk, "create", partial(scene.disk.create, synced=False)):
        scene.complete(scene.checkpoint(1))
    lost = msgspec.json.decode(scene.disk.files[f"{BASE}/log/{1:020d}"])
    began = {**lost, "number": 2, "kind": RecordKind.ATTEMPT_BEGAN.value, "attempt": 2}
    scene.disk.create(f"{BASE}/log/{2:020d}", msgspec.json.encode(began))
    scene.effect(told)


def test_a_checkpoint_is_recorded_once() -> None:
    """A second completion record with the same id is a breach."""
    scene = Scene()
    checkpoint = scene.checkpoint(1)
    scene.complete(checkpoint)
    broken(scene, lambda: scene.complete(checkpoint), "recorded twice")


def test_an_older_attempt_writes_no_record_after_a_newer_one() -> None:
    """Attempts in the job log only grow."""
    scene = Scene()
    scene.record(attempt=2)
    broken(scene, lambda: scene.record(attempt=1), "attempt 1 writes after attempt 2")


def test_files_of_a_retained_checkpoint_are_not_deleted() -> None:
    """They may be deleted once a later record no longer retains the checkpoint, not before."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.complete(scene.checkpoint(2))
    scene.disk.delete(f"{BASE}/shared/1/state")
    broken(scene, lambda: scene.disk.delete(f"{BASE}/shared/2/state"), "checkpoint 2 needs it")


def test_a_savepoint_reported_to_a_user_is_not_deleted() -> None:
    """A reported savepoint belongs to the user."""
    scene = Scene()
    scene.auditor.savepoint(savepoint(scene))
    broken(scene, lambda: scene.disk.delete("/savepoints/s/state"), "needs it")


def savepoint(scene: Scene) -> CompletedCheckpoint:
    """A savepoint with one file."""
    scene.disk.put("/savepoints/s/state", b"s", durable=True)
    scene.disk.put("/savepoints/s/_metadata", b"m", durable=True)
    task = TaskState(
        vertex="v0",
        position=0,
        operators=(),
        files=(StateHandle(key="state", path="state", size=1, checksum="crc32:00000000"),),
    )
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=1,
        kind=SnapshotKind.SAVEPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=(task,),
        hook_states={},
        external_path="/savepoints/s",
        drained=False,
    )


def test_an_epoch_is_committed_after_its_record() -> None:
    """A table that commits an unrecorded epoch shows rows too early."""
    scene = Scene()
    file = scene.staged(STAGED, [0])
    broken(scene, lambda: scene.commit(ROWS, 1, file), "is committed, but not recorded")


def test_epochs_are_committed_in_order() -> None:
    """A table never goes back to an older epoch."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.complete(scene.checkpoint(2))
    scene.commit(ROWS, 2)
    broken(scene, lambda: scene.commit(ROWS, 1), "is committed after epoch 2")


def test_a_table_shows_no_torn_file() -> None:
    """What a crash has torn was never whole on disk."""
    scene = Scene()
    scene.complete(scene.checkpoint(1, staged=True))
    scene.disk.put(STAGED, b"[0, 1", durable=True)
    broken(scene, lambda: scene.commit(ROWS, 1, STAGED), "which is torn")


def test_a_moved_job_must_show_what_its_savepoint_does_not_know() -> None:
    """Rows of the earlier tables count as long as the savepoint knows of them, and once."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.commit(ROWS, 1, scene.staged(STAGED, [0]))
    scene.complete(scene.checkpoint(2))
    scene.commit(ROWS, 2, scene.staged(f"{STAGED}1", [1]))
    scene.auditor.moved(savepoint(scene), "/tables-elsewhere")
    assert scene.auditor.shown("v0-rows") == [0]


def test_a_table_shows_no_file_twice() -> None:
    """Duplicate rows are found at once, not only at the end."""
    scene = Scene()
    scene.complete(scene.checkpoint(1, staged=True))
    scene.commit(ROWS, 1, STAGED)
    scene.complete(scene.checkpoint(2))
    broken(scene, lambda: scene.commit(ROWS, 2, STAGED), "shows a file twice")


def test_a_table_shows_durable_files_only() -> None:
    """A committed file that a crash could lose is a breach."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.disk.put(STAGED, b"[0]", durable=False)
    broken(scene, lambda: scene.commit(ROWS, 1, STAGED), "which is not flushed")


def test_a_file_that_a_table_shows_is_not_deleted() -> None:
    """A reader would miss it."""
    scene = Scene()
    scene.complete(scene.checkpoint(1, staged=True))
    scene.commit(ROWS, 1, STAGED)
    broken(scene, lambda: scene.disk.delete(STAGED), "is deleted, but a table shows it")


def test_what_a_retained_checkpoint_has_staged_is_not_deleted_before_its_commit() -> None:
    """A restored job would commit it."""
    scene = Scene()
    scene.complete(scene.checkpoint(1, staged=True))
    broken(scene, lambda: scene.disk.delete(STAGED), "staged for epoch 1 and not committed")


def test_what_nobody_committed_and_no_checkpoint_has_staged_may_be_deleted() -> None:
    """Cleanup may delete such files."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.disk.delete(scene.staged(STAGED, [0]))
    assert scene.auditor.violation is None


def finish(rows: list[int], total: list[int]) -> Scene:
    """A job whose tables show these rows and this total, just before it finishes."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.commit(ROWS, 1, scene.staged(STAGED, rows))
    scene.commit(TOTAL, 1, scene.staged(f"{TOTAL}/staged/1", [total]))
    return scene


def test_a_job_is_finished_when_every_record_is_in_its_tables_once() -> None:
    """The input is three records; the tables show them and their total."""
    scene = finish([0, 1, 2], [3, 3])
    scene.record(status=RecordStatus.FINISHED)
    assert scene.auditor.violation is None


@pytest.mark.parametrize(
    ("rows", "total", "words"),
    [
        ([0, 1], [3, 3], "1 records are missing"),
        ([0, 1, 2, 2], [3, 3], r"1 are there too often \(such as \[2\]\)"),
        ([0, 1, 2], [3, 4], "totals"),
    ],
)
def test_a_job_is_not_finished_with_a_record_lost_or_doubled(
    rows: list[int], total: list[int], words: str
) -> None:
    """A FINISHED record is checked against the tables."""
    scene = finish(rows, total)
    broken(scene, lambda: scene.record(status=RecordStatus.FINISHED), words)


def test_a_cancelled_job_records_nothing_more() -> None:
    """No driver runs it again."""
    scene = Scene()
    scene.record(status=RecordStatus.CANCELED)
    broken(scene, lambda: scene.record(attempt=2), "recorded after the job was cancelled")


def test_the_attempt_that_was_cancelled_commits_nothing_more() -> None:
    """Not even what was recorded before."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.record(status=RecordStatus.CANCELED)
    broken(scene, lambda: scene.commit(ROWS, 1), "committed after the job was cancelled")


@pytest.mark.parametrize(
    ("rows", "words"), [([0, 2], "shows 2 more often"), ([0, 0], "appear twice"), ([0, 1], None)]
)
def test_a_cancelled_job_has_written_the_first_records_once(
    rows: list[int], words: str | None
) -> None:
    """It may have written only some, but without a gap."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.commit(ROWS, 1, scene.staged(f"{ROWS}/staged/a", rows))
    scene.record(status=RecordStatus.CANCELED)
    if words is None:
        scene.auditor.settle(JOB, canceled=True, undisturbed=False)
    else:
        broken(scene, lambda: scene.auditor.settle(JOB, canceled=True, undisturbed=False), words)


def test_a_job_whose_cancellation_could_not_be_synced_counts_as_cancelled() -> None:
    """Its record may be lost, but it is what every driver reads until then (P23)."""
    scene = Scene()
    scene.complete(scene.checkpoint(1))
    scene.commit(ROWS, 1, scene.staged(f"{ROWS}/staged/a", [0]))
    scene.auditor.settle(JOB, canceled=True, undisturbed=False)
    broken(
        scene,
        lambda: scene.auditor.settle(JOB, canceled=False, undisturbed=False),
        "records are missing",
    )


def test_nothing_is_orphaned_when_the_last_attempt_was_undisturbed() -> None:
    """A file that no retained checkpoint names is found at the end, unless faults explain it."""
    scene = finish([0, 1, 2], [3, 3])
    scene.record(status=RecordStatus.FINISHED)
    scene.auditor.settle(JOB, canceled=False, undisturbed=True)
    scene.disk.put(f"{BASE}/shared/9/left", b"", durable=True)
    scene.auditor.settle(JOB, canceled=False, undisturbed=False)
    broken(
        scene, lambda: scene.auditor.settle(JOB, canceled=False, undisturbed=True), "is orphaned"
    )


def test_nothing_stays_staged_when_the_last_attempt_was_undisturbed() -> None:
    """Rows that were staged and never committed are found at the end."""
    scene = finish([0, 1, 2], [3, 3])
    scene.record(status=RecordStatus.FINISHED)
    scene.staged(f"{ROWS}/staged/01234567-v0-rows-1/7", [9])
    broken(
        scene,
        lambda: scene.auditor.settle(JOB, canceled=False, undisturbed=True),
        "stays staged forever",
    )


def test_the_first_breach_is_the_one_that_is_kept() -> None:
    """Later breaches do not replace it."""
    scene = Scene()
    scene.auditor.broken("first")
    scene.auditor.broken("second")
    assert scene.auditor.violation == "first"
