"""The job log and job names: who holds a job, what is complete, how stale drivers are fenced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.clock import QUICK
from tests.kit.disk import FaultyDisk, LostSyncs

from weir.core.types import Recorded
from weir.errors import InvariantError, JobFencedError, LostWriteError, StorageError
from weir.storage.filesystem import CreateResult
from weir.storage.job_log import (
    KEPT_RECORDS,
    CheckpointReference,
    JobLog,
    JobLogWriter,
    JobRecord,
    Origin,
    RecordKind,
    RecordStatus,
)
from weir.storage.job_names import JobNames, NameRecord, directory_name
from weir.storage.local import LocalFileSystem
from weir.storage.numbered_log import NumberedLog

JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    return JobLog(LocalFileSystem(), f"{tmp_path}/log", QUICK)


def begin(
    log: JobLog, writer: str, after: JobRecord | None, restored_from: str | None = None
) -> JobLogWriter:
    return log.begin_attempt(
        JobRecord.first_attempt(
            job_id=JOB,
            job_name="orders",
            writer=writer,
            timestamp_ms=1000,
            restored_from=restored_from,
        )
        if after is None
        else after.attempt_began(writer=writer, timestamp_ms=1000)
    )


def reference(checkpoint_id: int) -> CheckpointReference:
    return CheckpointReference(
        checkpoint_id=checkpoint_id,
        path=f"/c/chk-{checkpoint_id}",
        checksum=f"sha256:{checkpoint_id:064x}",
    )


def complete(writer: JobLogWriter, checkpoint_id: int) -> Recorded:
    record = writer.newest.checkpoint_completed(
        reference(checkpoint_id), timestamp_ms=2000 + checkpoint_id
    )
    return writer.append(record)


def test_a_job_that_never_began_has_no_record(log: JobLog) -> None:
    """Its log is empty."""
    assert log.newest() is None


def test_the_first_attempt_is_number_one(log: JobLog) -> None:
    """Its record names its driver and what it was restored from."""
    begin(log, "A", None, restored_from="/s/savepoint-1")
    assert log.newest() == JobRecord(
        number=1,
        kind=RecordKind.ATTEMPT_BEGAN,
        job_id=JOB,
        job_name="orders",
        attempt=1,
        writer="A",
        timestamp_ms=1000,
        started_ms=1000,
        restored_from="/s/savepoint-1",
    )


def test_every_record_is_the_full_state_of_the_job(log: JobLog) -> None:
    """The next attempt copies the checkpoints and the original savepoint from the newest record."""
    first = begin(log, "A", None, restored_from="/s/savepoint-1")
    assert complete(first, 1) is Recorded.WON
    assert log.newest() == first.newest
    second = begin(log, "B", log.newest())
    assert second.newest.attempt == 2
    assert second.newest.completed == 1
    assert second.newest.checkpoints == (reference(1),)
    assert second.newest.restored_from == "/s/savepoint-1"


def test_the_end_says_how_and_with_which_savepoint(log: JobLog) -> None:
    """Running the job again depends on both (PROTOCOL P20)."""
    writer = begin(log, "A", None)
    record = writer.newest.ended(
        RecordStatus.STOPPED, timestamp_ms=3000, savepoint="/s/savepoint-2"
    )
    outcome = writer.append(record)
    newest = log.newest()
    assert outcome is Recorded.WON
    assert newest is not None
    assert (newest.kind, newest.status, newest.savepoint) == (
        RecordKind.ENDED,
        RecordStatus.STOPPED,
        "/s/savepoint-2",
    )


def test_of_two_drivers_that_start_at_once_one_is_refused(log: JobLog) -> None:
    """Both decided on the same newest record; the second learns that another driver has started."""
    begin(log, "A", None)
    with pytest.raises(JobFencedError, match="Another driver started job orders"):
        begin(log, "B", None)


def test_a_job_started_when_its_first_attempt_did(log: JobLog) -> None:
    """Whatever began or completed since."""
    writer = begin(log, "A", None)
    complete(writer, 1)
    again = log.begin_attempt(writer.newest.attempt_began(writer="B", timestamp_ms=9_000))
    assert (again.newest.started_ms, again.newest.timestamp_ms) == (1_000, 9_000)


def test_a_record_knows_when_the_newest_checkpoint_completed(log: JobLog) -> None:
    """Whatever was recorded since."""
    first = begin(log, "A", None)
    complete(first, 1)
    writer = begin(log, "B", log.newest())
    assert (writer.newest.completed, writer.newest.completed_ms) == (1, 2_001)
    complete(writer, 2)
    writer.append(writer.newest.ended(RecordStatus.FAILED, timestamp_ms=9_000))
    assert (writer.newest.timestamp_ms, writer.newest.completed_ms) == (9_000, 2_002)


def test_a_decision_on_an_outdated_record_does_not_start_an_attempt(log: JobLog) -> None:
    """The job moved on between reading the log and starting."""
    first = begin(log, "A", None)
    seen = log.newest()
    complete(first, 1)
    with pytest.raises(JobFencedError):
        begin(log, "B", seen)


def test_a_driver_that_was_overtaken_is_fenced(log: JobLog) -> None:
    """Its checkpoint is not complete, and the newer attempt's record stays (PROTOCOL P17)."""
    first = begin(log, "A", None)
    second = begin(log, "B", log.newest())
    assert complete(first, 1) is Recorded.FENCED
    assert log.newest() == second.newest


def test_a_driver_that_slept_through_pruning_is_fenced(log: JobLog) -> None:
    """Its next number is free again, but it cannot win it (PROTOCOL P17)."""
    first = begin(log, "A", None)
    second = begin(log, "B", log.newest())
    for checkpoint_id in range(1, KEPT_RECORDS + 10):
        assert complete(second, checkpoint_id) is Recorded.WON
    newest = log.newest()
    assert complete(first, 1) is Recorded.FENCED
    assert log.newest() == newest


def test_a_record_that_does_not_follow_the_newest_is_not_written(log: JobLog) -> None:
    """Neither a record derived from an older record nor another attempt's."""
    writer = begin(log, "A", None)
    stale = writer.newest.checkpoint_completed(reference(2), timestamp_ms=1)
    complete(writer, 1)
    for record in (stale, writer.newest.attempt_began(writer="A", timestamp_ms=1)):
        with pytest.raises(InvariantError, match="does not follow record 2 of attempt 1"):
            writer.append(record)
    assert log.newest() == writer.newest


def test_old_records_are_pruned(log: JobLog, tmp_path: Path) -> None:
    """A job that runs for a year does not fill its log."""
    writer = begin(log, "A", None)
    for checkpoint_id in range(1, KEPT_RECORDS + 5):
        complete(writer, checkpoint_id)
    assert len(list((tmp_path / "log").iterdir())) == KEPT_RECORDS


def test_a_record_that_cannot_be_pruned_is_won_all_the_same(tmp_path: Path) -> None:
    """Only the clean-up failed."""

    log = JobLog(FaultyDisk().fail("delete"), f"{tmp_path}/log", QUICK)
    writer = begin(log, "A", None)
    for checkpoint_id in range(1, KEPT_RECORDS + 5):
        assert complete(writer, checkpoint_id) is Recorded.WON


def test_a_record_in_doubt_that_was_written_is_won(tmp_path: Path) -> None:
    """The writer finds its own record when it reads back."""
    fs = FaultyDisk()
    log = JobLog(fs, f"{tmp_path}/log", QUICK)
    writer = begin(log, "A", None)
    fs.lose_answer("create", times=1)
    assert complete(writer, 1) is Recorded.WON
    assert complete(writer, 2) is Recorded.WON
    assert log.newest() == writer.newest


def test_a_record_in_doubt_whose_number_a_newer_attempt_has_is_fenced(tmp_path: Path) -> None:
    """The writer finds another driver's record when it reads back."""
    fs = FaultyDisk()
    log = JobLog(fs, f"{tmp_path}/log", QUICK)
    writer = begin(log, "A", None)
    other = JobLog(LocalFileSystem(), f"{tmp_path}/log", QUICK)
    fs.before("create", lambda _: begin(other, "B", other.newest()), times=1)
    fs.fail("create", times=1)
    assert complete(writer, 1) is Recorded.FENCED


def test_a_record_that_was_certainly_not_written_has_failed_and_the_next_one_takes_its_number(
    tmp_path: Path,
) -> None:
    """The log has no gap, since a gap would let two drivers win."""
    fs = FaultyDisk()
    log = JobLog(fs, f"{tmp_path}/log", QUICK)
    writer = begin(log, "A", None)
    fs.fail("create")
    assert complete(writer, 1) is Recorded.FAILED
    assert "the network is down" in writer.failure
    fs.mend()
    assert complete(writer, 2) is Recorded.WON
    assert writer.newest.number == 2


def test_a_failed_record_that_lands_late_is_superseded_and_fences_nobody(tmp_path: Path) -> None:
    """An object store may carry out a request that the writer gave up; the next record supersedes
    it."""
    fs = FaultyDisk()
    log = JobLog(fs, f"{tmp_path}/log", QUICK)
    writer = begin(log, "A", None)
    given_up: list[tuple[str, bytes]] = []
    create = fs.create

    def lose(path: str, data: bytes) -> None:
        given_up.append((path, data))
        raise StorageError("timed out")

    fs.create = lose  # type: ignore[assignment,method-assign]
    assert complete(writer, 1) is Recorded.FAILED
    fs.create = create  # type: ignore[method-assign]
    fs.create(*given_up[0])
    assert complete(writer, 2) is Recorded.WON
    newest = log.newest()
    assert newest is not None
    assert (newest.number, newest.completed) == (3, 2)


def test_a_record_that_may_not_last_is_followed_by_one_that_says_the_same(
    log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Syncing its directory failed, and a later success proves nothing: the next number does not
    depend on it (P17, P23)."""
    writer = begin(log, "A", None)
    syncs = LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/log")
    assert complete(writer, 1) is Recorded.WON
    assert len(syncs.lost) == 1
    (tmp_path / "log" / f"{2:020d}").unlink()  # as a crash of the machine may
    newest = log.newest()
    assert newest == writer.newest
    assert newest is not None
    assert (newest.number, newest.completed) == (3, 1)
    assert complete(writer, 2) is Recorded.WON
    assert writer.newest.number == 4


def test_an_attempt_and_an_end_whose_records_may_not_last_are_recorded_again(
    log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like every record that is won (P17, P23)."""
    begin(log, "A", None)
    LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/log")
    assert begin(log, "B", log.newest()).newest.number == 3
    monkeypatch.undo()
    LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/log")
    ended = log.supersede(job_id=JOB, job_name="orders", by="f" * 32, writer="C", timestamp_ms=1)
    assert ended == log.newest()
    assert ended is not None
    assert ended.number == 5


def test_a_job_that_is_superseded_keeps_everything_but_how_it_ended(log: JobLog) -> None:
    """A job that continues it must still find its tables, their rows and what it claimed (P20)."""
    writer = log.begin_attempt(
        JobRecord.first_attempt(
            job_id=JOB,
            job_name="orders",
            writer="A",
            timestamp_ms=1,
            restored_from="/savepoints/one",
            claimed=True,
            origin=Origin(job_id="e" * 32, checkpoint_id=3),
            tables={"clean": "/out/clean"},
        )
    )
    record = writer.newest.checkpoint_completed(
        reference(1), timestamp_ms=2, written={"clean": "/out/clean/_delta_log"}
    )
    assert writer.append(record) is Recorded.WON
    before = writer.newest
    ended = log.supersede(job_id=JOB, job_name="orders", by="f" * 32, writer="B", timestamp_ms=9)
    assert ended == replace(
        before,
        number=before.number + 1,
        attempt=before.attempt + 1,
        kind=RecordKind.SUPERSEDED,
        status=RecordStatus.SUPERSEDED,
        superseded_by="f" * 32,
        writer="B",
        timestamp_ms=9,
    )


def test_a_record_that_may_not_last_twice_is_an_error_and_no_outcome(
    log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is unreliable, so the driver must stop (P17)."""
    writer = begin(log, "A", None)
    LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/log", times=2)
    with pytest.raises(LostWriteError, match="check the disk"):
        complete(writer, 1)


def test_a_record_that_may_not_last_and_cannot_be_repeated_is_an_error_and_no_outcome(
    log: JobLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next driver may find it, so nothing that it names may be deleted (P17, P23)."""
    writer = begin(log, "A", None)
    LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/log")
    create = LocalFileSystem.create

    def first_only(self: LocalFileSystem, path: str, data: bytes) -> CreateResult:
        if path.endswith("2"):
            return create(self, path, data)
        raise StorageError("the disk is full")

    monkeypatch.setattr(LocalFileSystem, "create", first_only)
    with pytest.raises(LostWriteError, match="check the disk"):
        complete(writer, 1)
    newest = log.newest()
    assert newest is not None
    assert newest.completed == 1


def test_an_attempt_whose_start_cannot_be_recorded_is_a_storage_error(tmp_path: Path) -> None:
    """The message contains the storage's own."""
    log = JobLog(FaultyDisk().fail("create"), f"{tmp_path}/log", QUICK)
    with pytest.raises(
        StorageError, match=r"Cannot record the start of job .*: .*the network is down"
    ):
        begin(log, "A", None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is damaged"),
        (b"\xff", "is damaged"),
        (b'{"version": 2}', "is damaged"),
        (b'{"version": 3}', "run the job with the newer Weir"),
    ],
)
def test_a_record_that_cannot_be_understood_says_so(
    log: JobLog, tmp_path: Path, data: bytes, words: str
) -> None:
    """Damaged, or from a newer version: nothing is guessed."""
    NumberedLog(LocalFileSystem(), f"{tmp_path}/log").append(1, data)
    with pytest.raises(StorageError, match=words):
        log.newest()


@pytest.fixture
def names(tmp_path: Path) -> JobNames:
    return JobNames(LocalFileSystem(), str(tmp_path), QUICK)


def test_a_name_that_cannot_be_recorded_is_an_error_with_the_storages_own(tmp_path: Path) -> None:
    """It used to say that a disk should be checked, without why."""
    broken = JobNames(FaultyDisk().fail("create"), str(tmp_path), QUICK)
    with pytest.raises(StorageError, match=r"id of job 'orders': .*the network is down"):
        broken.assign("orders", "a" * 32, from_savepoint=None, after=0)


def test_an_unknown_name_has_no_record(names: JobNames) -> None:
    """No job of that name ran here."""
    assert names.lookup("orders") is None


def test_a_name_stands_for_the_job_of_its_newest_generation(names: JobNames) -> None:
    """``--fresh`` and ``--from-savepoint`` assign a new job (PROTOCOL P19, P20)."""
    assert names.assign("orders", "a" * 32, from_savepoint=None, after=0) is Recorded.WON
    assert names.assign("orders", "b" * 32, from_savepoint="/s/1", after=1) is Recorded.WON
    assert names.lookup("orders") == NameRecord(
        job_id="b" * 32, name="orders", generation=2, from_savepoint="/s/1"
    )


def test_of_two_drivers_that_assign_a_name_at_once_one_is_refused(names: JobNames) -> None:
    """The loser looks the name up again and finds the winner's job."""
    assert names.assign("orders", "a" * 32, from_savepoint=None, after=0) is Recorded.WON
    assert names.assign("orders", "b" * 32, from_savepoint=None, after=0) is Recorded.FENCED
    found = names.lookup("orders")
    assert found is not None
    assert found.job_id == "a" * 32


def test_a_damaged_name_record_says_so(names: JobNames, tmp_path: Path) -> None:
    """With the file's path."""
    directory = f"{tmp_path}/names/{directory_name('orders')}"
    (tmp_path / "names").mkdir()
    NumberedLog(LocalFileSystem(), directory).append(1, b"{")
    with pytest.raises(StorageError, match=f"{directory}/0+1 of job name 'orders' is damaged"):
        names.lookup("orders")


def test_every_name_has_a_directory_of_its_own() -> None:
    """Readable where possible, and never shared by two names."""
    given = ["orders", "Orders", "or/ders", "or-ders", "..", "/", "名前", "x" * 300, "x" * 301]
    directories = [directory_name(name) for name in given]
    assert len(set(directories)) == len(given)
    assert directories[0].startswith("orders-")
    for directory in directories:
        assert directory.isascii()
        assert "/" not in directory
        assert len(directory) < 64
