"""The durable half of a job over real files: who may start an attempt, and what is deleted when.

P17, P20 to P22, P40. No task runs and no thread: a sink or a file system that is being called does
whatever has to happen between two steps of a driver.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from tests.kit.disk import FaultyDisk, LostSyncs
from tests.kit.durable_job import Driver
from tests.kit.sink import FakeSink, sink_port

from weir.core.messages.job import AllocateLocation, RecordCheckpoint, RecordEnd
from weir.core.messages.task import CommitSinks
from weir.core.status import JobStatus
from weir.core.types import (
    Committable,
    OperatorState,
    Payload,
    Recorded,
    SnapshotKind,
    TaskState,
)
from weir.durable.hooks import MasterHook
from weir.errors import (
    CheckpointNotFoundError,
    DuplicatesError,
    JobEndedError,
    JobFencedError,
    LostWriteError,
    SinkError,
    StorageError,
)
from weir.runtime.concurrency import ThreadWaits
from weir.storage.job_log import JobLog, JobRecord, Origin, RecordKind, RecordStatus
from weir.storage.lease import Lease, LeaseRecord
from weir.storage.local import LocalFileSystem

JOB = "1" * 32
#: What a completed checkpoint has from the effect that records it.
_RECORDED = (
    *("checkpoint_id", "kind", "timestamp_ms", "attempt", "tasks"),
    *("hook_states", "coordinator_states"),
)
ORIGIN = "2" * 32


class ReentrantWaits(ThreadWaits):
    """Locks that let a sink re-enter the job while it is being called."""

    def lock(self) -> Any:
        return threading.RLock()


class WatchedSink(FakeSink):
    """Runs a callback in its next commit, and fails its next clean-ups when a test says so."""

    def __init__(self, calls: list[tuple[Any, ...]] | None = None) -> None:
        super().__init__(calls=calls)
        self.during_commit: Callable[[], object] | None = None
        self.clean_errors: list[Exception] = []

    def commit(self, epoch: int, payloads: Any) -> int:
        count = super().commit(epoch, payloads)
        action, self.during_commit = self.during_commit, None
        if action is not None:
            action()
        return count

    def clean(self, attempt: int) -> None:
        super().clean(attempt)
        if self.clean_errors:
            raise self.clean_errors.pop(0)


def driver(directory: Path, sink: FakeSink | None = None, **how: Any) -> Driver:
    """The next driver of the job."""
    return Driver(
        directory, JOB, sinks=sink_port(sink or FakeSink(), waits=ReentrantWaits()), **how
    )


def record(of: Driver) -> JobRecord | None:
    """The newest record of the job."""
    return JobLog(LocalFileSystem(), of.storage.log_directory).newest()


def end(
    of: Driver, status: JobStatus, *, savepoint: str | None = None, delete_checkpoints: bool = False
) -> Recorded:
    """End the job."""
    return of.job.record_end(
        RecordEnd(
            status=status, savepoint=savepoint, failure=None, delete_checkpoints=delete_checkpoints
        )
    )


def commit(of: Driver, checkpoint_id: int) -> None:
    """The task's sink commits an epoch."""
    of.job.commit_sinks(CommitSinks(vertex="a", checkpoint_id=checkpoint_id, payloads={"out": ()}))


def cleanings(sink: FakeSink) -> list[int]:
    """The attempts for which the sink was asked to clean up."""
    return [call[2] for call in sink.calls if call[0] == "clean"]


# -- what is cleaned -------------------------------------------------------------------------------


def test_the_start_of_an_attempt_cleans_what_dead_ones_staged(tmp_path: Path) -> None:
    """It does so after restoring the newest checkpoint (P22)."""
    first = driver(tmp_path, num_retained=2)
    first.job.begin_attempt()
    first.complete()
    first.complete()
    sink = FakeSink()
    start = driver(tmp_path, sink, num_retained=2).job.begin_attempt()
    assert start.restored is not None
    assert (start.restored.checkpoint_id, cleanings(sink)) == (2, [2])


def test_nothing_that_an_unusable_checkpoint_staged_is_cleaned_when_an_older_one_is_restored(
    tmp_path: Path,
) -> None:
    """The checkpoint may be readable at the next attempt and is then committed again (P21, P22)."""
    first = driver(tmp_path, num_retained=2)
    first.job.begin_attempt()
    first.complete()
    newest = first.complete(("2/state",))
    state = Path(first.storage.shared_directory(2), "state")
    state.rename(tmp_path / "away")
    sink = FakeSink()
    start = driver(tmp_path, sink, num_retained=2).job.begin_attempt()
    assert start.restored is not None
    assert (start.restored.checkpoint_id, cleanings(sink)) == (1, [])

    (tmp_path / "away").rename(state)
    again = driver(tmp_path, sink, num_retained=2).job.begin_attempt()
    assert (again.restored, cleanings(sink)) == (newest, [3])


def test_the_first_commit_of_an_attempt_cleans_once_more(tmp_path: Path) -> None:
    """Executors of a dead attempt can be late; after that commit nothing is left to clean (P22)."""
    sink = FakeSink()
    running = driver(tmp_path, sink)
    running.job.begin_attempt()
    sink.calls.clear()
    for checkpoint_id in (1, 2):
        commit(running, checkpoint_id)
    assert [call[0] for call in sink.calls] == ["commit", "clean", "commit"]
    assert cleanings(sink) == [1]


def test_a_commit_that_ends_after_a_newer_attempt_began_cleans_nothing(tmp_path: Path) -> None:
    """The newer attempt has to recommit first, and cleans after its own first commit (P22)."""
    sink = FakeSink()
    running = driver(tmp_path, sink)
    running.job.begin_attempt()
    sink.calls.clear()
    commit_sinks = running.job._sinks.commit

    def commit_and_begin(epoch: int, payloads: Any, is_fenced: Any) -> None:
        commit_sinks(epoch, payloads, is_fenced)
        running.job.begin_attempt()

    with patch.object(running.job._sinks, "commit", commit_and_begin):
        commit(running, 1)
    assert [call[0] for call in sink.calls] == ["commit", "open", "clean"]

    sink.calls.clear()
    commit(running, 2)
    commit(running, 3)
    assert [call[0] for call in sink.calls] == ["commit", "clean", "commit"]
    assert cleanings(sink) == [2]


def test_no_attempt_starts_while_a_sink_hangs_in_a_commit_of_an_older_one(tmp_path: Path) -> None:
    """It would call the sink that is still committing; the error names the sink and what it is
    doing (P13)."""
    sink = WatchedSink()
    running = driver(tmp_path, sink)
    running.job.begin_attempt()
    refused: list[str] = []

    def begin() -> None:
        with pytest.raises(SinkError) as error:
            running.job.begin_attempt()
        refused.append(str(error.value))

    sink.during_commit = begin
    commit(running, 1)
    assert "'out' (FakeSink('out')) still hangs while committing checkpoint 1" in refused[0]
    assert running.job.begin_attempt().attempt == 2


def test_the_end_is_not_recorded_while_the_record_of_an_attempt_hangs(tmp_path: Path) -> None:
    """Whether that record counts is unknown, and so is what the end would follow (P17)."""
    running = driver(tmp_path)
    refused: list[str] = []

    def end_meanwhile(*_: object, **__: object) -> None:
        with pytest.raises(StorageError) as error:
            end(running, JobStatus.CANCELED)
        refused.append(str(error.value))
        raise StorageError("away")

    with (
        patch.object(JobLog, "begin_attempt", end_meanwhile),
        pytest.raises(StorageError, match="away"),
    ):
        running.job.begin_attempt()
    assert "It is unknown whether this attempt is recorded" in refused[0]
    running.job.begin_attempt()
    assert end(running, JobStatus.CANCELED) is Recorded.WON


# -- who may begin ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "savepoint", "recorded"),
    [
        (JobStatus.FINISHED, None, RecordStatus.FINISHED),
        (JobStatus.FINISHED, "/savepoints/s", RecordStatus.STOPPED),
        (JobStatus.CANCELED, None, RecordStatus.CANCELED),
    ],
    ids=["finished", "stopped", "canceled"],
)
def test_no_attempt_starts_once_the_job_has_come_to_its_end(
    tmp_path: Path, status: JobStatus, savepoint: str | None, recorded: RecordStatus
) -> None:
    """Not even for a driver that started earlier; the error says how the job ended (P20)."""
    sink = FakeSink()
    late = driver(tmp_path, sink)
    first = driver(tmp_path)
    first.job.begin_attempt()
    end(first, status, savepoint=savepoint)
    with pytest.raises(
        JobEndedError, match=f"Another driver marked .* as {recorded.value} .*run the command again"
    ):
        late.job.begin_attempt()
    newest = record(late)
    assert newest is not None
    assert (newest.status, newest.attempt) == (recorded, 1)
    assert sink.calls == []


def test_an_attempt_starts_again_after_the_job_failed(tmp_path: Path) -> None:
    """A failed job is resumed by running the command again (P20)."""
    first = driver(tmp_path)
    first.job.begin_attempt()
    completed = first.complete()
    end(first, JobStatus.FAILED)
    start = driver(tmp_path).job.begin_attempt()
    assert (start.attempt, start.restored) == (2, completed)


def test_an_attempt_starts_again_after_its_driver_died(tmp_path: Path) -> None:
    """The record still says RUNNING (P20)."""
    first = driver(tmp_path)
    first.job.begin_attempt()
    completed = first.complete()
    start = driver(tmp_path).job.begin_attempt()
    assert (start.attempt, start.restored) == (2, completed)


def test_a_takeover_wins_though_the_old_driver_completed_a_checkpoint_meanwhile(
    tmp_path: Path,
) -> None:
    """It looks again and resumes from that checkpoint; the old driver is fenced (P17)."""
    old = driver(tmp_path)
    old.job.begin_attempt()
    completed = []
    files = FaultyDisk().before("create", lambda _: completed.append(old.complete()), times=1)
    start = driver(tmp_path, files=files).job.begin_attempt()
    assert start.attempt == 2
    assert [start.restored] == completed
    assert end(old, JobStatus.FINISHED) is Recorded.FENCED


def test_a_record_of_unknown_outcome_fences_its_driver_though_nobody_can_be_told(
    tmp_path: Path,
) -> None:
    """If it counted as lost, files would be deleted that the record may name (P17)."""
    running = driver(tmp_path)
    running.job.begin_attempt()
    with (
        patch.object(running.job, "_note", side_effect=OSError("no space left on device")),
        patch.object(running.job._writer, "append", side_effect=StorageError("away")),
    ):
        assert end(running, JobStatus.FINISHED) is Recorded.FENCED


def test_an_attempt_that_could_not_be_recorded_for_certain_does_not_fence_its_own_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records exist but may not be durable; the same driver's next attempt follows them (P17,
    P23)."""
    running = driver(tmp_path)
    running.job.begin_attempt()
    completed = running.complete()
    LostSyncs(monkeypatch, lambda path: path == running.storage.log_directory, times=2)
    with pytest.raises(LostWriteError):
        running.job.begin_attempt()
    start = running.job.begin_attempt()
    assert (start.attempt, start.restored) == (3, completed)


@pytest.mark.parametrize("what", ["content", "name"])
@pytest.mark.parametrize("found", [b"stale", b"torn"])
def test_staged_output_that_could_not_be_put_back_durably_is_put_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, found: bytes
) -> None:
    """Every attempt writes it again and trusts no file that it finds there (P14, P23)."""
    staged = tmp_path / "t" / "staged"

    class StagedSink(FakeSink):
        def staged_files(self, payload: Payload) -> list[str]:
            return [str(staged)]

    origin = Driver(tmp_path, ORIGIN)
    origin.job.begin_attempt()
    savepoint = origin.savepoint(staged=True)
    sink = StagedSink()
    running = driver(tmp_path, sink, from_savepoint=savepoint.external_path)
    staged.parent.mkdir()
    staged.write_bytes(found)
    LostSyncs(
        monkeypatch,
        lambda path: (
            path == str(staged.parent) if what == "name" else path.startswith(f"{staged.parent}/")
        ),
    )
    with pytest.raises(LostWriteError):
        running.job.begin_attempt()
    doubtful = staged.stat().st_ino
    assert [call for call in sink.calls if call[0] == "commit"] == []
    running.job.begin_attempt()
    assert staged.read_bytes() == b"state"
    assert staged.stat().st_ino != doubtful
    assert [call[0] for call in sink.calls if call[0] == "commit"] == ["commit"]


def test_a_takeover_that_another_attempt_beat_is_fenced(tmp_path: Path) -> None:
    """It holds no attempt, and the other driver's record stays the newest (P17)."""
    driver(tmp_path).job.begin_attempt()
    other = driver(tmp_path)
    files, sink = FaultyDisk(), FakeSink()
    files.before("create", lambda _: other.job.begin_attempt(), times=1)
    slow = driver(tmp_path, sink, files=files)
    with pytest.raises(JobFencedError):
        slow.job.begin_attempt()
    newest = record(other)
    assert newest is not None
    assert (newest.attempt, slow.job.attempt, sink.calls) == (2, 0, [])
    assert end(other, JobStatus.FINISHED) is Recorded.WON


def test_a_driver_whose_job_was_taken_over_is_given_no_further_attempt(tmp_path: Path) -> None:
    """Its tasks failed while another driver ran the job: it ends instead of taking the job back
    (P17)."""
    old, new = driver(tmp_path), driver(tmp_path)
    old.job.begin_attempt()
    new.job.begin_attempt()
    with pytest.raises(JobFencedError):
        old.job.begin_attempt()
    newest = record(new)
    assert newest is not None
    assert newest.attempt == 2


def test_an_end_before_any_attempt_began_writes_nothing(tmp_path: Path) -> None:
    """The log's newest state still holds: here that the job can be resumed."""
    first = driver(tmp_path)
    first.job.begin_attempt()
    before = record(first)
    assert end(driver(tmp_path), JobStatus.CANCELED, delete_checkpoints=True) is Recorded.WON
    assert record(first) == before


# -- deletions after a record that was won ---------------------------------------------------------


@pytest.mark.parametrize(
    "error", [SinkError("The table is away."), RuntimeError("The JVM is gone.")]
)
def test_an_end_that_was_won_stays_so_if_the_last_clean_up_fails(
    tmp_path: Path, error: Exception
) -> None:
    """Whatever the sink raises: the job is recorded as FINISHED, so it must not be reported as
    failed (P17)."""
    sink = WatchedSink()
    running = driver(tmp_path, sink)
    running.job.begin_attempt()
    sink.clean_errors = [error]
    assert end(running, JobStatus.FINISHED) is Recorded.WON
    newest = record(running)
    assert newest is not None
    assert (newest.status, cleanings(sink)) == (RecordStatus.FINISHED, [1, 2])


def test_a_cancellation_that_was_won_stays_so_if_checkpoints_cannot_be_deleted(
    tmp_path: Path,
) -> None:
    """They stay on disk, and the job is still CANCELED (P17)."""
    files = FaultyDisk()
    running = driver(tmp_path, files=files)
    running.job.begin_attempt()
    running.complete(("1/state",))
    directory = running.storage.checkpoint_directory(1)
    files.fail("delete", path=lambda path: path.startswith(directory))
    assert end(running, JobStatus.CANCELED, delete_checkpoints=True) is Recorded.WON
    newest = record(running)
    assert newest is not None
    assert (newest.status, newest.checkpoints) == (RecordStatus.CANCELED, ())


# -- the claimed snapshot --------------------------------------------------------------------------


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A savepoint of another job."""
    origin = Driver(tmp_path, ORIGIN)
    origin.job.begin_attempt()
    return Path(origin.savepoint().external_path)


def test_every_record_says_what_the_job_began_from_and_which_tables_it_writes(
    tmp_path: Path, snapshot: Path
) -> None:
    """Even once the snapshot is gone and another driver runs the job: readers of its tables rely on
    it."""
    sink = FakeSink()
    sink.table = "/tables/out"
    running = driver(tmp_path, sink, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    running.complete()
    assert not snapshot.exists()
    driver(tmp_path, sink).job.begin_attempt()
    newest = record(running)
    assert newest is not None
    assert (newest.attempt, newest.origin) == (2, Origin(job_id=ORIGIN, checkpoint_id=1))
    assert newest.tables == {"out": "/tables/out"}


def test_a_snapshot_that_cannot_be_read_at_first_is_named_by_a_later_record(
    tmp_path: Path, snapshot: Path
) -> None:
    """So is the snapshot of a job that an older Weir started."""
    metadata = snapshot / "_metadata"
    metadata.rename(tmp_path / "away")
    running = driver(tmp_path, from_savepoint=str(snapshot))
    with pytest.raises(CheckpointNotFoundError):
        running.job.begin_attempt()
    newest = record(running)
    assert newest is not None
    assert newest.origin is None
    (tmp_path / "away").rename(metadata)
    running.job.begin_attempt()
    newest = record(running)
    assert newest is not None
    assert newest.origin == Origin(job_id=ORIGIN, checkpoint_id=1)


def test_a_claimed_snapshot_goes_with_the_first_checkpoint(tmp_path: Path, snapshot: Path) -> None:
    """As many of the job's own checkpoints are retained as allowed, so the snapshot is subsumed."""
    running = driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    assert snapshot.exists()
    running.complete()
    assert not snapshot.exists()


def test_a_later_driver_does_not_give_a_claim_back(tmp_path: Path, snapshot: Path) -> None:
    """The claim is recorded: a driver with another configuration, or none, still deletes the
    snapshot."""
    driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True).job.begin_attempt()
    later = driver(tmp_path)
    later.job.begin_attempt()
    later.complete()
    assert not snapshot.exists()


def test_a_later_driver_does_not_claim_what_was_not_claimed(tmp_path: Path, snapshot: Path) -> None:
    """The snapshot belongs to the user, who may rely on it (P40)."""
    driver(tmp_path, from_savepoint=str(snapshot)).job.begin_attempt()
    later = driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True)
    later.job.begin_attempt()
    later.complete()
    assert snapshot.exists()


def test_a_claimed_snapshot_that_could_not_be_deleted_is_tried_again_with_the_next_checkpoint(
    tmp_path: Path, snapshot: Path
) -> None:
    """The checkpoint whose record was won is complete regardless (P17)."""
    files = FaultyDisk()
    running = driver(tmp_path, files=files, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    files.fail("delete", path=lambda path: path.startswith(str(snapshot)))
    assert running.complete().checkpoint_id == 1
    newest = record(running)
    assert newest is not None
    assert (newest.kind, newest.completed) == (RecordKind.CHECKPOINT_COMPLETED, 1)
    assert snapshot.exists()
    files.mend()
    running.complete()
    assert not snapshot.exists()


def test_a_checkpoint_that_was_won_stays_so_whatever_the_deletion_of_the_claimed_snapshot_raises(
    tmp_path: Path, snapshot: Path
) -> None:
    """Other kinds of errors too: tasks are notified of the completion, because it is recorded
    (P17)."""
    running = driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    (snapshot / "_metadata").write_bytes(b"no metadata")
    assert running.complete().checkpoint_id == 1


def test_what_lies_at_the_path_of_a_claimed_snapshot_that_is_gone_is_left_alone(
    tmp_path: Path, snapshot: Path
) -> None:
    """It may be someone's new savepoint: a later driver knows that the claim has ended."""
    running = driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    running.complete()
    running.complete()
    other = Driver(tmp_path / "other", ORIGIN)
    other.job.begin_attempt()
    Path(other.savepoint().external_path).rename(snapshot)
    later = driver(tmp_path)
    later.job.begin_attempt()
    later.complete()
    assert (snapshot / "_metadata").exists()


@pytest.mark.parametrize("place", ["work/{JOB}/1", "checkpoints/{JOB}", "link/deeper"])
def test_a_savepoint_where_the_job_deletes_its_own_files_is_refused(
    tmp_path: Path, place: str
) -> None:
    """In its working directory, which is deleted at its end, or its checkpoint directory; links are
    followed."""
    running = driver(tmp_path)
    running.job.begin_attempt()
    (tmp_path / "link").symlink_to(tmp_path / "work" / JOB)
    target = f"{tmp_path}/{place.format(JOB=JOB)}"
    with pytest.raises(
        StorageError, match=r"the job deletes its own files\. Choose another directory"
    ):
        running.job.allocate(
            AllocateLocation(allocation=1, kind=SnapshotKind.SAVEPOINT, target=target)
        )
    assert not list(tmp_path.rglob("savepoint-*"))


def test_a_claimed_savepoint_with_files_of_others_is_not_deleted(
    tmp_path: Path, snapshot: Path
) -> None:
    """As with --dispose: nobody said that those files may be deleted."""
    (snapshot / "notes.txt").write_text("mine")
    running = driver(tmp_path, from_savepoint=str(snapshot), claims_snapshot=True)
    running.job.begin_attempt()
    running.complete()
    assert (snapshot / "notes.txt").exists()
    assert (snapshot / "_metadata").exists()


def test_a_claimed_checkpoint_of_a_job_that_was_resumed_meanwhile_stays_until_that_has_ended(
    tmp_path: Path,
) -> None:
    """That job refers to the files again; the record stays won, and the next checkpoint retries the
    deletion."""
    origin = Driver(tmp_path / "origin", ORIGIN)
    origin.job.begin_attempt()
    claimed = Path(origin.complete().external_path)
    running = driver(tmp_path, from_savepoint=str(claimed), claims_snapshot=True)
    running.job.begin_attempt()
    lease = Lease(LocalFileSystem(), str(claimed.parent.parent), ORIGIN)
    alive = LeaseRecord(
        attempt=2,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=psutil.Process().create_time(),
        rest_address="http://127.0.0.1:8081",
        timestamp_ms=2**47,
        timeout_ms=15_000,
    )
    lease.write(alive)
    running.complete()
    assert (claimed / "_metadata").exists()
    lease.remove(2)
    running.complete()
    assert not claimed.exists()


# -- restoring -------------------------------------------------------------------------------------


class NotedHook(MasterHook):
    """Records its restore between the calls of a sink."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    @property
    def identifier(self) -> str:
        return "h"

    def trigger(self, checkpoint_id: int, timestamp_ms: int) -> Payload | None:
        return None

    def restore(self, checkpoint_id: int, state: Payload | None) -> None:
        self._calls.append(("restore", checkpoint_id))


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_all_that_took_part_in_a_checkpoint_is_found_in_it_again(
    tmp_path: Path, kind: SnapshotKind
) -> None:
    """The states of hooks and coordinators too, which no task has (C1, P44)."""
    hook = NotedHook([])
    job = driver(tmp_path, hooks=[hook]).job
    job.begin_attempt()
    n, target = job.allocate(AllocateLocation(allocation=1, kind=kind, target=None))
    effect = RecordCheckpoint(
        checkpoint_id=n,
        kind=kind,
        target=target,
        timestamp_ms=5,
        attempt=1,
        tasks=(
            TaskState(
                vertex="a", position=4, operators=(OperatorState(operator_id="a-op", name="a-op"),)
            ),
        ),
        retained=(n,),
        hook_states={hook.identifier: {"offset": 7}},
        coordinator_states={"a-op": {"often": 3}},
    )
    taken = job.record_checkpoint(effect).checkpoint
    assert taken is not None
    for found in (taken, driver(tmp_path).storage.read(taken.external_path)):
        assert {name: getattr(found, name) for name in _RECORDED} == {
            name: getattr(effect, name) for name in _RECORDED
        }


def test_hooks_are_restored_before_anything_is_committed_again_and_cleaned_after_it(
    tmp_path: Path,
) -> None:
    """A hook that refuses its state leaves the tables unchanged."""
    first = driver(tmp_path)
    first.job.begin_attempt()
    first.complete(committables=(Committable(sink="out", position=4, payload={"step": 4}),))
    calls: list[tuple[Any, ...]] = []
    driver(tmp_path, FakeSink(calls=calls), hooks=[NotedHook(calls)]).job.begin_attempt()
    assert calls == [
        ("open", "out", JOB, 2),
        ("restore", 1),
        ("commit", "out", 1, [{"step": 4}]),
        # The commit may have made the target, to which rows must fit from now on.
        ("open", "out", JOB, 2),
        ("clean", "out", 2),
    ]


class OriginsSink(FakeSink):
    """Knows that the snapshot's job has committed checkpoint 10."""

    def newest_committed(self) -> int | None:
        opened = [call[2] for call in self.calls if call[0] == "open"]
        return 10 if opened[-1] == ORIGIN else None


@pytest.mark.parametrize("accepted", [False, True])
def test_a_savepoint_older_than_its_jobs_commits_is_refused_unless_duplicates_are_accepted(
    tmp_path: Path, snapshot: Path, *, accepted: bool
) -> None:
    """The sinks are asked with the id of the job that took it (P19, P21)."""
    sink = OriginsSink()
    later = driver(tmp_path, sink, from_savepoint=str(snapshot), accept_duplicates=accepted)
    if accepted:
        later.job.begin_attempt()
        return
    with pytest.raises(
        DuplicatesError, match=r"has since committed checkpoint 10 .* --accept-duplicates"
    ):
        later.job.begin_attempt()
    assert [call[2] for call in sink.calls if call[0] == "open"] == [JOB, ORIGIN]
    assert [call for call in sink.calls if call[0] in ("commit", "clean")] == []
