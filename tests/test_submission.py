"""Which job id a name refers to, and whether it may run (P19, P20).

The tests follow the table of ``weir.launch.submission`` row by row.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit.changes import no_changes
from tests.kit.clock import ManualClock
from tests.kit.sink import FakeSink, sink_port

from weir.core.types import CompletedCheckpoint, OperatorState, Recorded, SnapshotKind, TaskState
from weir.durable.changes import Changes
from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    DuplicatesError,
    JobAlreadyRunningError,
    JobEndedError,
    JobError,
    JobFencedError,
    SinkError,
    StorageError,
    WeirError,
)
from weir.launch.options import RunOptions
from weir.launch.submission import Submission, submit
from weir.sinks.base import Commit, SinkContext
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.job_log import (
    CheckpointReference,
    JobLog,
    JobLogWriter,
    JobRecord,
    RecordKind,
    RecordStatus,
)
from weir.storage.job_names import JobNames
from weir.storage.lease import Lease, LeaseRecord
from weir.storage.local import LocalFileSystem

FILES = LocalFileSystem()
NAME = "orders"
NOW_MS = 1_700_000_000_000


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A checkpoint directory that does not exist yet."""
    return str(tmp_path / "checkpoints")


def run(
    base: str,
    name: str = NAME,
    sink: FakeSink | None = None,
    changes: Changes | None = None,
    **options: object,
) -> Submission:
    """Run the command up to the submission."""
    claims = bool(options.pop("claims", False))
    fits: Any = options.pop("fits", lambda _: None)
    earlier: Any = options.pop("earlier", lambda _: None)
    note: Any = options.pop("note", lambda _: None)
    # Without it the clock stands.
    tick_ms: Any = options.pop("tick_ms", 0)
    return submit(
        name=name,
        options=RunOptions(**options),  # type: ignore[arg-type]
        base_directory=base,
        fs=lambda _: FILES,
        kernel=ManualClock(0, epoch_ms=NOW_MS, tick_ms=tick_ms).kernel(),
        sinks=lambda _: sink_port(sink or FakeSink()),
        fits=fits,
        claims=claims,
        changes=no_changes() if changes is None else changes,
        earlier=earlier,
        note=note,
    )


def record(
    submission: Submission,
    status: RecordStatus,
    *,
    savepoint: str | None = None,
    checkpoints: tuple[CheckpointReference, ...] = (),
) -> None:
    """Write the records that a run of the job would have left."""
    writer = begin(submission)
    for checkpoint in checkpoints:
        completed = writer.newest.checkpoint_completed(checkpoint, timestamp_ms=NOW_MS)
        assert writer.append(completed) is Recorded.WON
    if status is RecordStatus.SUPERSEDED:
        log_of(submission).supersede(
            job_id=submission.job_id, job_name=NAME, by="f" * 32, writer="w", timestamp_ms=NOW_MS
        )
    elif status is not RecordStatus.RUNNING:
        stopped = status is RecordStatus.STOPPED
        ended = writer.newest.ended(
            status, timestamp_ms=NOW_MS, savepoint=savepoint or ("/s" if stopped else None)
        )
        assert writer.append(ended) is Recorded.WON


def hold_lease(
    submission: Submission, base: str, *, age_ms: int = 0, host: str | None = None
) -> None:
    """Write a lease that shows this process, or one of another machine, as a live driver."""
    lease = LeaseRecord(
        attempt=1,
        host=host or socket.gethostname(),
        pid=os.getpid(),
        pid_started=psutil.Process().create_time(),
        rest_address="http://127.0.0.1:8081",
        timestamp_ms=NOW_MS - age_ms,
        timeout_ms=15_000,
    )
    assert Lease(FILES, base, submission.job_id).write(lease) is Recorded.WON


def make_savepoint(
    directory: Path,
    job_id: str = "f" * 32,
    kind: SnapshotKind = SnapshotKind.SAVEPOINT,
    checkpoint_id: int = 7,
    drained: bool = False,
) -> str:
    """Write a savepoint, or a checkpoint, without state files."""
    task = TaskState(vertex="v", position=-1, operators=(OperatorState(operator_id="v", name="v"),))
    checkpoint = CompletedCheckpoint(
        job_id=job_id,
        checkpoint_id=checkpoint_id,
        kind=kind,
        timestamp_ms=NOW_MS,
        completion_timestamp_ms=NOW_MS,
        attempt=1,
        tasks=(task,),
        external_path=str(directory),
        drained=drained,
    )
    directory.mkdir(parents=True, exist_ok=True)
    CheckpointStorage(
        fs=lambda _: FILES, base_directory=str(directory), job_id=job_id
    ).write_metadata(checkpoint)
    return str(directory)


# -- the table


def test_a_name_that_never_ran_is_a_new_job(base: str) -> None:
    """Without a record a new id is drawn, and the name then refers to it."""
    submission = run(base)
    assert (submission.record, submission.from_savepoint) == (None, None)
    assert not submission.has_finished
    known = JobNames(FILES, base).lookup(NAME)
    assert known is not None
    assert (known.job_id, known.generation) == (submission.job_id, 1)


def test_two_names_are_two_jobs(base: str) -> None:
    """Each name gets its own id."""
    assert run(base).job_id != run(base, "returns").job_id


def test_a_job_that_died_before_its_first_record_continues_under_its_id(base: str) -> None:
    """The name was recorded, but no attempt began: the same job, still without a record."""
    first = run(base)
    again = run(base)
    assert (again.job_id, again.record) == (first.job_id, None)


@pytest.mark.parametrize("status", [RecordStatus.RUNNING, RecordStatus.FAILED])
def test_a_running_or_failed_job_continues(base: str, status: RecordStatus) -> None:
    """The run keeps the id and finds the newest completed checkpoint in the newest record."""
    first = run(base)
    record(first, status)
    again = run(base)
    assert again.job_id == first.job_id
    assert again.record is not None
    assert again.record.status is status
    assert not again.has_finished


def test_a_stopped_job_refuses_and_names_its_savepoint(base: str) -> None:
    """A job stopped with a savepoint resumes from it only on request."""
    record(run(base), RecordStatus.STOPPED, savepoint="/savepoints/savepoint-1")
    with pytest.raises(JobEndedError, match=r"latest \(/savepoints/savepoint-1\)"):
        run(base)


def test_a_savepoint_that_is_gone_is_not_advised_as_it_is(base: str, tmp_path: Path) -> None:
    """It was moved, or deleted."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    record(run(base), RecordStatus.STOPPED, savepoint=savepoint)
    with pytest.raises(JobEndedError, match=rf"resume with --from-savepoint latest \({savepoint}"):
        run(base)
    shutil.rmtree(savepoint)
    with pytest.raises(JobEndedError, match=f"put back {savepoint}, which is gone, and resume"):
        run(base)


def test_a_drained_job_refuses_without_advice_to_resume(base: str, tmp_path: Path) -> None:
    """Its savepoint has nothing left to do."""
    savepoint = make_savepoint(tmp_path / "savepoint", drained=True)
    record(run(base), RecordStatus.STOPPED, savepoint=savepoint)
    with pytest.raises(JobEndedError, match=r"drained and stopped .*--fresh, into new") as refused:
        run(base)
    assert "--from-savepoint" not in str(refused.value)


def test_a_finished_job_says_so(base: str) -> None:
    """Nothing is run, and that is not an error."""
    first = run(base)
    record(first, RecordStatus.FINISHED)
    again = run(base)
    assert again.has_finished
    assert again.job_id == first.job_id


def test_a_cancelled_job_refuses_and_names_its_newest_checkpoint(base: str) -> None:
    """The message names the newest retained checkpoint to resume from."""
    references = tuple(
        CheckpointReference(checkpoint_id=n, path=f"/c/chk-{n}", checksum=f"sha256:{0:064x}")
        for n in (4, 5)
    )
    record(run(base), RecordStatus.CANCELED, checkpoints=references)
    with pytest.raises(JobEndedError, match="--from-savepoint /c/chk-5,"):
        run(base)


def test_a_cancelled_job_without_checkpoints_can_only_start_over(base: str) -> None:
    """The message can only name --fresh."""
    record(run(base), RecordStatus.CANCELED)
    with pytest.raises(JobEndedError, match="was cancelled: start from scratch with --fresh"):
        run(base)


# -- live drivers


@pytest.mark.parametrize("options", [{}, {"fresh": True}])
def test_a_live_driver_is_left_alone_and_its_address_is_named(
    base: str, options: dict[str, bool]
) -> None:
    """A current lease refuses the run, even with --fresh."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base)
    with pytest.raises(JobAlreadyRunningError, match=r"http://127\.0\.0\.1:8081.*--takeover"):
        run(base, **options)


def test_a_takeover_continues_though_a_driver_is_alive(base: str) -> None:
    """With --takeover the lease does not matter: the job log fences the other driver."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base)
    assert run(base, takeover=True).job_id == first.job_id


def test_an_expired_lease_holds_nobody_up(base: str) -> None:
    """A driver that hangs longer than its timeout counts as dead."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base, age_ms=15_000)
    assert run(base).job_id == first.job_id


def test_the_lease_of_another_machine_is_waited_for(base: str) -> None:
    """A cluster starts a driver anew elsewhere before the dead one's lease has ended."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base, host="elsewhere")
    notes: list[str] = []
    assert run(base, note=notes.append, tick_ms=100).job_id == first.job_id
    assert notes == ["waiting to see whether the job's driver on elsewhere is alive"]


def test_a_driver_of_another_machine_that_renews_its_lease_is_left_alone(base: str) -> None:
    """Then it lives, whatever the clocks of the two machines say."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base, host="elsewhere")

    def renew(_: str) -> None:
        hold_lease(first, base, host="elsewhere", age_ms=-1)

    with pytest.raises(JobAlreadyRunningError, match="on elsewhere"):
        run(base, note=renew, tick_ms=100)


def test_a_lease_that_never_ends_is_not_waited_for_without_end(base: str) -> None:
    """The clock of the machine that wrote it is years ahead."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    hold_lease(first, base, host="elsewhere", age_ms=-(10**12))
    with pytest.raises(JobAlreadyRunningError, match="on elsewhere"):
        run(base, tick_ms=100)


# -- starting over


@pytest.mark.parametrize("status", list(RecordStatus))
def test_fresh_draws_a_new_id_whatever_ran_before(base: str, status: RecordStatus) -> None:
    """Ids never repeat, and the name refers to the new job from then on (P19)."""
    first = run(base)
    record(first, status, savepoint="/s" if status is RecordStatus.STOPPED else None)
    fresh = run(base, fresh=True)
    assert fresh.job_id != first.job_id
    assert (fresh.record, fresh.from_savepoint) == (None, None)
    assert run(base).job_id == fresh.job_id


def test_a_savepoint_starts_a_new_job(base: str, tmp_path: Path) -> None:
    """--from-savepoint draws a new id, even for a stopped job."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    first = run(base)
    record(first, RecordStatus.STOPPED, savepoint=savepoint)
    second = run(base, from_savepoint=savepoint)
    assert second.job_id != first.job_id
    assert (second.record, second.from_savepoint) == (None, savepoint)


def test_the_same_savepoint_again_continues_the_run_that_it_began(
    base: str, tmp_path: Path
) -> None:
    """The spelling of its path does not matter; the savepoint stays the restore point until the
    first checkpoint (P40)."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    record(began, RecordStatus.RUNNING)
    for spelled in (savepoint, f"{savepoint}/", f"file:{savepoint}"):
        again = run(base, from_savepoint=spelled)
        assert again.job_id == began.job_id
        assert again.from_savepoint == savepoint
        assert again.record is not None


def test_a_savepoint_that_was_moved_continues_the_run_that_it_began(
    base: str, tmp_path: Path
) -> None:
    """It is identified by the checksum of its metadata and read at its new path, even in a later
    run without the option (P20, P40)."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    moved = str(Path(savepoint).rename(tmp_path / "moved"))
    again = run(base, from_savepoint=moved)
    assert (again.job_id, again.from_savepoint) == (began.job_id, moved)


def test_a_linked_savepoint_continues_the_run_that_it_began(base: str, tmp_path: Path) -> None:
    """A link leads to the same savepoint."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    (tmp_path / "link").symlink_to(savepoint)
    began = run(base, from_savepoint=savepoint)
    assert run(base, from_savepoint=str(tmp_path / "link")).job_id == began.job_id


def test_a_savepoint_that_the_job_has_claimed_and_deleted_still_names_the_run_that_it_began(
    base: str, tmp_path: Path
) -> None:
    """The job's supervisor runs the same command again."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    shutil.rmtree(savepoint)
    assert run(base, from_savepoint=savepoint).job_id == began.job_id


def test_another_savepoint_at_the_same_path_starts_a_new_job(base: str, tmp_path: Path) -> None:
    """The path alone does not identify a savepoint."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    make_savepoint(tmp_path / "savepoint", job_id="e" * 32)
    assert run(base, from_savepoint=savepoint).job_id != began.job_id


# -- targets that have rows


def written_by(job_id: str, name: str = NAME) -> FakeSink:
    """A sink whose target has a commit of this job."""
    sink = FakeSink()
    sink.recorded_commits = [
        Commit(
            timestamp_ms=NOW_MS,
            job_id=job_id,
            job_name=name,
            job_directory=f"/volume/checkpoints/{job_id}",
            sink="out",
            checkpoint_id=9,
            attempt=1,
        )
    ]
    return sink


def test_the_same_command_in_another_directory_is_refused_with_the_place_of_the_records(
    base: str,
) -> None:
    """If the volume is not mounted, or the path was relative, the name is unknown but the table
    has the job's rows."""
    with pytest.raises(DuplicatesError, match=f"/volume/checkpoints/{'a' * 32}"):
        run(base, sink=written_by("a" * 32))
    assert JobNames(FILES, base).lookup(NAME) is None


def test_a_fresh_start_over_the_rows_of_its_namesake_is_refused_and_changes_nothing(
    base: str,
) -> None:
    """The name still refers to the old job, which can continue (P20)."""
    first = run(base)
    record(first, RecordStatus.RUNNING)
    with pytest.raises(DuplicatesError, match="--accept-duplicates"):
        run(base, sink=written_by(first.job_id), fresh=True)
    again = run(base, sink=written_by(first.job_id))
    assert again.job_id == first.job_id
    assert again.record is not None
    assert again.record.status is RecordStatus.RUNNING


def test_an_older_savepoint_started_again_over_the_rows_of_later_generations_is_refused(
    base: str, tmp_path: Path
) -> None:
    """The command from the shell's history would duplicate all rows of the later generations; the
    newest generation continues (P21)."""
    older = make_savepoint(tmp_path / "older")
    first = run(base, from_savepoint=older)
    second = run(base, from_savepoint=make_savepoint(tmp_path / "newer", job_id=first.job_id))
    for path in (older, f"{older}/_metadata"):
        with pytest.raises(
            DuplicatesError, match=f"{second.job_id}. has since committed checkpoint 9"
        ):
            run(base, sink=written_by(second.job_id), from_savepoint=path)
    assert run(base).job_id == second.job_id


@pytest.mark.parametrize("fresh", [True, False])
def test_doubled_rows_are_had_for_the_asking(base: str, tmp_path: Path, *, fresh: bool) -> None:
    """--accept-duplicates allows the start."""
    savepoint = None if fresh else make_savepoint(tmp_path / "savepoint")
    run(
        base,
        sink=written_by("a" * 32),
        from_savepoint=savepoint,
        fresh=fresh,
        accept_duplicates=True,
    )


def test_a_target_that_is_not_fit_leaves_the_job_that_the_name_stands_for_alone(base: str) -> None:
    """The target is checked before the old job is ended."""

    class Unfit(FakeSink):
        def check(self, context: SinkContext) -> None:
            raise SinkError("unfit")

    first = run(base)
    with pytest.raises(SinkError):
        run(base, sink=Unfit(), fresh=True)
    assert run(base).job_id == first.job_id


def test_the_metadata_file_of_a_savepoint_names_the_savepoint(base: str, tmp_path: Path) -> None:
    """The directory and its ``_metadata`` are one savepoint, so naming the file continues the run
    that the directory began (P20)."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    assert run(base, from_savepoint=f"{savepoint}/_metadata").job_id == began.job_id


def test_a_savepoint_is_known_by_what_it_is_and_not_by_the_link_that_names_it(
    base: str, tmp_path: Path
) -> None:
    """A link that now points to another savepoint names that one, and the restore point of the
    first run stays the same (P20, P40)."""
    first = make_savepoint(tmp_path / "first")
    second = make_savepoint(tmp_path / "second", checkpoint_id=8)
    latest = tmp_path / "latest"
    latest.symlink_to(first)
    began = run(base, from_savepoint=str(latest))
    assert began.from_savepoint == first
    for spelled in (f"{latest}/_metadata", first):
        assert run(base, from_savepoint=spelled).job_id == began.job_id
    latest.unlink()
    latest.symlink_to(second)
    moved = run(base, from_savepoint=str(latest))
    assert moved.job_id != began.job_id
    assert moved.from_savepoint == second


def test_a_checkpoint_of_a_job_that_lives_cannot_be_claimed(base: str, tmp_path: Path) -> None:
    """Its driver's next checkpoints refer to these files (MISSION A11); without --claim it is a
    valid start."""
    origin = run(base, name="origin")
    chk = Path(origin.storage.checkpoint_directory(7))
    checkpoint = make_savepoint(chk, origin.job_id, SnapshotKind.CHECKPOINT)
    (tmp_path / "link").symlink_to(chk)
    hold_lease(origin, base)
    for spelled in (checkpoint, f"{tmp_path}/link"):
        with pytest.raises(JobAlreadyRunningError, match=r"chk-7: its job .* is running"):
            run(base, from_savepoint=spelled, claims=True)
    assert JobNames(FILES, base).lookup(NAME) is None
    assert run(base, from_savepoint=checkpoint).from_savepoint == checkpoint
    hold_lease(origin, base, age_ms=20_000)
    assert run(base, name="other", from_savepoint=checkpoint, claims=True).record is None


def test_the_checkpoint_of_a_job_that_is_taken_over_can_be_claimed(base: str) -> None:
    """Its driver is fenced before anything is deleted; a savepoint can always be claimed (P17,
    P20)."""
    origin = run(base)
    chk = make_savepoint(
        Path(origin.storage.checkpoint_directory(7)), origin.job_id, SnapshotKind.CHECKPOINT
    )
    hold_lease(origin, base)
    taken = run(base, from_savepoint=chk, claims=True, takeover=True)
    assert taken.job_id != origin.job_id
    savepoint = make_savepoint(Path(origin.storage.job_directory, "savepoint-1"), origin.job_id)
    assert (
        run(base, name="other", from_savepoint=savepoint, claims=True).from_savepoint == savepoint
    )


def test_a_directory_without_metadata_cannot_be_claimed(base: str, tmp_path: Path) -> None:
    """A directory that is not a snapshot is left alone."""
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="has no file _metadata"):
        run(base, from_savepoint=str(tmp_path / "mine"), claims=True)
    assert (tmp_path / "mine").exists()


def test_without_the_option_the_run_that_a_savepoint_started_continues_too(
    base: str, tmp_path: Path
) -> None:
    """The name record remembers the savepoint, which is needed until the first checkpoint."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    again = run(base)
    assert (again.job_id, again.from_savepoint) == (began.job_id, savepoint)


def test_another_savepoint_starts_another_job(base: str, tmp_path: Path) -> None:
    """Only the savepoint that began the run continues it."""
    began = run(base, from_savepoint=make_savepoint(tmp_path / "one"))
    other = make_savepoint(tmp_path / "two", checkpoint_id=8)
    assert run(base, from_savepoint=other).job_id != began.job_id


def test_fresh_with_the_same_savepoint_starts_from_it_again(base: str, tmp_path: Path) -> None:
    """Both options together give a new id, with the savepoint as its restore point."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    fresh = run(base, from_savepoint=savepoint, fresh=True)
    assert fresh.job_id != began.job_id
    assert fresh.from_savepoint == savepoint


def test_a_savepoint_that_is_missing_is_refused_before_an_id_is_drawn(
    base: str, tmp_path: Path
) -> None:
    """The name refers to no job afterwards."""
    with pytest.raises(CheckpointNotFoundError):
        run(base, from_savepoint=str(tmp_path / "nowhere"))
    assert JobNames(FILES, base).lookup(NAME) is None


def test_a_damaged_savepoint_is_refused_before_an_id_is_drawn(base: str, tmp_path: Path) -> None:
    """One changed byte is reported, and the name refers to no job."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    metadata = Path(savepoint, "_metadata")
    metadata.write_bytes(metadata.read_bytes().replace(b'"attempt":1', b'"attempt":2'))
    with pytest.raises(CheckpointDamagedError):
        run(base, from_savepoint=savepoint)
    assert JobNames(FILES, base).lookup(NAME) is None


def test_the_savepoint_of_a_run_that_continues_is_not_read_again(base: str, tmp_path: Path) -> None:
    """Once the run has checkpoints of its own, the savepoint may be deleted and the same command
    still works."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    began = run(base, from_savepoint=savepoint)
    reference = CheckpointReference(
        checkpoint_id=1, path=f"{base}/x/chk-1", checksum=f"sha256:{0:064x}"
    )
    record(began, RecordStatus.FAILED, checkpoints=(reference,))
    Path(savepoint, "_metadata").unlink()
    assert run(base, from_savepoint=savepoint).job_id == began.job_id


# -- the previous job of the name


def log_of(submission: Submission) -> JobLog:
    """The log of the submitted job."""
    return JobLog(FILES, submission.storage.log_directory)


def begin(submission: Submission) -> JobLogWriter:
    """Begin an attempt, as a driver of the submitted job."""
    log = log_of(submission)
    newest = log.newest()
    return log.begin_attempt(
        JobRecord.first_attempt(
            job_id=submission.job_id, job_name=NAME, writer="old", timestamp_ms=NOW_MS
        )
        if newest is None
        else newest.attempt_began(writer="old", timestamp_ms=NOW_MS)
    )


def complete(writer: JobLogWriter, checkpoint_id: int) -> Recorded:
    """Record a completed checkpoint, as a driver."""
    reference = CheckpointReference(
        checkpoint_id=checkpoint_id,
        path=f"/c/chk-{checkpoint_id}",
        checksum=f"sha256:{0:064x}",
    )
    return writer.append(writer.newest.checkpoint_completed(reference, timestamp_ms=NOW_MS))


@pytest.mark.parametrize("begins_from", ["nothing", "savepoint"])
def test_a_driver_of_the_old_id_is_fenced_when_the_name_gets_a_new_one(
    base: str, tmp_path: Path, begins_from: str
) -> None:
    """Alive or asleep, it completes no more checkpoints, which it would commit beside the new job
    (P17)."""
    old = run(base)
    driver = begin(old)
    assert complete(driver, 4) is Recorded.WON
    hold_lease(old, base)
    fresh = begins_from == "nothing"
    savepoint = None if fresh else make_savepoint(tmp_path / "savepoint")
    new = run(base, takeover=True, fresh=fresh, from_savepoint=savepoint)
    assert begin(new).newest.number == 1
    assert complete(driver, 5) is Recorded.FENCED


def test_the_record_that_ends_the_old_job_names_the_new_one_and_keeps_its_checkpoints(
    base: str,
) -> None:
    """The checkpoints stay on disk, and the record has the number of the old id's next attempt."""
    old = run(base)
    driver = begin(old)
    complete(driver, 4)
    new = run(base, fresh=True)
    ended = log_of(old).newest()
    assert ended is not None
    assert (ended.kind, ended.status) == (RecordKind.SUPERSEDED, RecordStatus.SUPERSEDED)
    assert (ended.superseded_by, ended.attempt) == (new.job_id, driver.newest.attempt + 1)
    assert (ended.completed, ended.checkpoints) == (4, driver.newest.checkpoints)


@pytest.mark.parametrize("status", [None, RecordStatus.FAILED])
def test_a_command_that_is_about_to_run_the_old_id_is_refused(
    base: str, status: RecordStatus | None
) -> None:
    """The command looked before the name got a new id and begins after; the message names the job
    that replaced the old one."""
    old = run(base)
    if status is not None:
        record(old, status)
    new = run(base, fresh=True)
    with pytest.raises(JobEndedError, match=f"{old.job_id}.*superseded by job {new.job_id}"):
        begin(old)


@pytest.mark.parametrize(
    "status", [RecordStatus.STOPPED, RecordStatus.FINISHED, RecordStatus.CANCELED]
)
def test_a_job_that_has_ended_is_left_as_it_is(base: str, status: RecordStatus) -> None:
    """It no longer runs, and its last record stays unchanged."""
    old = run(base)
    record(old, status)
    before = log_of(old).newest()
    run(base, fresh=True)
    assert log_of(old).newest() == before


def test_a_driver_that_completes_a_checkpoint_meanwhile_is_fenced_all_the_same(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ending record's number was taken in between; it wins the next number, and keeps that
    checkpoint."""
    old = run(base)
    driver = begin(old)
    look = JobLog.newest
    looks = iter(range(1, 3))

    def slow(self: JobLog) -> JobRecord | None:
        found = look(self)
        n = next(looks, None)
        if n is not None:
            assert complete(driver, n) is Recorded.WON
        return found

    monkeypatch.setattr(JobLog, "newest", slow)
    run(base, fresh=True)
    monkeypatch.undo()
    ended = log_of(old).newest()
    assert ended is not None
    assert (ended.status, ended.completed) == (RecordStatus.SUPERSEDED, 2)
    assert complete(driver, 3) is Recorded.FENCED


def test_if_the_old_job_cannot_be_ended_the_name_stays_with_it(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second job may run beside a driver that could not be fenced."""
    old = run(base)
    begin(old)

    def broken(*_: object, **__: object) -> None:
        raise StorageError("The disk is away.")

    monkeypatch.setattr(JobLog, "supersede", broken)
    with pytest.raises(StorageError, match="away"):
        run(base, fresh=True)
    assert run(base).job_id == old.job_id


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_start_under_a_new_id_that_died_before_it_had_the_name_is_reported(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: bool
) -> None:
    """The old job is ended and no new one replaced it; the message names where to resume from, and
    --fresh works."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    old = run(base, from_savepoint=savepoint)
    driver = begin(old)
    if checkpoints:
        complete(driver, 4)

    def dies(*_: object, **__: object) -> Recorded:
        raise StorageError("the network is down")

    monkeypatch.setattr(JobNames, "assign", dies)
    with pytest.raises(StorageError):
        run(base, fresh=True)
    monkeypatch.undo()
    way = "--from-savepoint /c/chk-4," if checkpoints else f"--fresh --from-savepoint {savepoint},"
    with pytest.raises(JobEndedError, match=f"which never started: .*{way}"):
        run(base)
    assert run(base, fresh=True).job_id != old.job_id


# -- concurrent commands


def at_once(count: int, function: Callable[[], Submission]) -> list[Submission | WeirError]:
    """The outcomes of calls that start at the same moment."""
    barrier = threading.Barrier(count)
    outcomes: list[Submission | WeirError] = []

    def call() -> None:
        barrier.wait()
        try:
            outcomes.append(function())
        except WeirError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_of_commands_that_start_a_new_job_at_once_all_that_continue_have_the_same_id(
    base: str,
) -> None:
    """The name record arbitrates: the others are refused, or came later and found that job."""
    outcomes = at_once(6, lambda: run(base))
    ids = {outcome.job_id for outcome in outcomes if isinstance(outcome, Submission)}
    assert len(ids) == 1
    assert all(isinstance(outcome, Submission | JobFencedError) for outcome in outcomes)
    known = JobNames(FILES, base).lookup(NAME)
    assert known is not None
    assert known.job_id in ids


def test_a_name_that_another_command_took_in_between_is_refused(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command drew an id between the look and the record; this one says so and ends."""
    lookup = JobNames.lookup

    def slow(self: JobNames, name: str) -> object:
        found = lookup(self, name)
        self.assign(name, "a" * 32, from_savepoint=None, after=0)
        return found

    Path(base).mkdir()
    monkeypatch.setattr(JobNames, "lookup", slow)
    with pytest.raises(JobFencedError, match="at the same moment"):
        run(base)


def test_a_new_jobs_directory_is_its_owners_alone(base: str) -> None:
    """It is private before anything is written to it, as is the directory of a superseded job."""
    first = run(base)
    second = run(base, fresh=True)
    for submission in (first, second):
        assert Path(submission.storage.job_directory).stat().st_mode & 0o777 == 0o700


# -- a checkpoint that does not fit the pipeline


def never(_: object) -> None:
    raise JobError("it has state of step 'x'")


def test_a_checkpoint_that_does_not_fit_is_refused_before_the_sinks_are_asked(base: str) -> None:
    """What is wrong with steps needs no JVM; nothing is recorded."""
    first = run(base)
    directory = Path(base, first.job_id, "chk-7")
    path = make_savepoint(directory, first.job_id, SnapshotKind.CHECKPOINT)
    checksum = first.storage.checksum(path)
    reference = CheckpointReference(checkpoint_id=7, path=path, checksum=checksum)
    record(first, RecordStatus.FAILED, checkpoints=(reference,))
    before = log_of(first).newest()
    with pytest.raises(JobError, match="state of step 'x'"):
        run(base, fits=never)
    assert log_of(first).newest() == before
    # What cannot be read is for the attempt to report, which may go back to an older one.
    shutil.rmtree(directory)
    assert run(base, fits=never).job_id == first.job_id


def test_a_savepoint_that_does_not_fit_is_refused_before_the_name_gets_a_new_job(
    base: str, tmp_path: Path
) -> None:
    """The job that ran before can still be resumed."""
    first = run(base)
    savepoint = make_savepoint(tmp_path / "savepoint")
    with pytest.raises(JobError, match="state of step 'x'"):
        run(base, from_savepoint=savepoint, fits=never)
    assert run(base).job_id == first.job_id


def test_the_newest_record_is_known_before_the_pipeline_is_refused(base: str) -> None:
    """So that what is refused, and what differs from the last start, are both said."""
    seen: list[JobRecord | None] = []
    first = run(base, earlier=seen.append)
    record(first, RecordStatus.RUNNING)

    class Refusing(FakeSink):
        """Refuses every target."""

        def check(self, context: SinkContext) -> None:
            raise SinkError("no")

    with pytest.raises(SinkError):
        run(base, sink=Refusing(), earlier=seen.append)
    assert [one if one is None else one.status for one in seen] == [None, RecordStatus.RUNNING]


# -- the latest savepoint


def test_the_latest_savepoint_is_that_of_the_stop(base: str, tmp_path: Path) -> None:
    """The job goes on from it under a new id, as if its path had been given."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    first = run(base)
    record(first, RecordStatus.STOPPED, savepoint=savepoint)
    second = run(base, from_savepoint="latest")
    assert second.job_id != first.job_id
    assert (second.record, second.from_savepoint) == (None, savepoint)


def test_without_a_savepoint_the_latest_is_a_new_job_and_that_is_said(base: str) -> None:
    """A unit file's first start."""
    said: list[str] = []
    submission = run(base, from_savepoint="latest", note=said.append)
    assert (submission.record, submission.from_savepoint) == (None, None)
    assert "has not run here before" in said[0]


@pytest.mark.parametrize(
    "status", [RecordStatus.RUNNING, RecordStatus.FAILED, RecordStatus.SUSPENDED]
)
def test_a_job_that_has_gone_on_since_its_savepoint_is_resumed_and_that_is_said(
    base: str, tmp_path: Path, status: RecordStatus
) -> None:
    """Never a step back: the second start comes after a crash, and not after another stop."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    record(run(base), RecordStatus.STOPPED, savepoint=savepoint)
    began = run(base, from_savepoint="latest")
    reference = CheckpointReference(
        checkpoint_id=9, path="/c/chk-9", checksum=f"sha256:{9:064x}"
    )  # fmt: skip
    record(began, status, checkpoints=(reference,))
    said: list[str] = []
    again = run(base, from_savepoint="latest", note=said.append)
    assert again.job_id == began.job_id
    assert again.record is not None
    assert "no savepoint that is newer than its checkpoint 9" in said[0]


def test_a_job_that_died_before_its_first_checkpoint_goes_on_from_the_latest_savepoint(
    base: str, tmp_path: Path
) -> None:
    """The savepoint is still what it starts from."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    record(run(base), RecordStatus.STOPPED, savepoint=savepoint)
    began = run(base, from_savepoint="latest")
    said: list[str] = []
    again = run(base, from_savepoint="latest", note=said.append)
    assert (again.job_id, again.from_savepoint) == (began.job_id, savepoint)
    assert f"no checkpoint since it started from {savepoint}: from there again" in said[0]


def test_a_latest_savepoint_that_is_gone_is_refused(base: str, tmp_path: Path) -> None:
    """Neither a fresh start nor a step back; the message says what to do."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    record(run(base), RecordStatus.STOPPED, savepoint=savepoint)
    shutil.rmtree(savepoint)
    with pytest.raises(CheckpointNotFoundError, match=f"{savepoint}, which is gone: put it back"):
        run(base, from_savepoint="latest")


def test_another_snapshot_in_place_of_the_latest_savepoint_is_refused(
    base: str, tmp_path: Path
) -> None:
    """The path is the same, the content is not."""
    savepoint = make_savepoint(tmp_path / "savepoint")
    first = run(base)
    reference = CheckpointReference(
        checkpoint_id=7, path=savepoint, checksum=first.storage.checksum(savepoint)
    )
    record(first, RecordStatus.STOPPED, savepoint=savepoint, checkpoints=(reference,))
    make_savepoint(tmp_path / "savepoint", checkpoint_id=8)
    with pytest.raises(StorageError, match="but another snapshot is there now"):
        run(base, from_savepoint="latest")


@pytest.mark.parametrize("status", [RecordStatus.CANCELED, RecordStatus.SUPERSEDED])
def test_the_latest_savepoint_changes_nothing_for_a_job_that_ended_otherwise(
    base: str, status: RecordStatus
) -> None:
    """It is refused as without the option."""
    record(run(base), status)
    with pytest.raises(JobEndedError):
        run(base, from_savepoint="latest")


def test_a_suspended_job_is_resumed_by_the_same_command(base: str) -> None:
    """P20: it was stopped with a checkpoint."""
    first = run(base)
    record(first, RecordStatus.SUSPENDED)
    again = run(base)
    assert again.job_id == first.job_id
    assert again.sinks is not None
