"""No job and no attempt starts over rows in its targets that it does not know (P19, P21)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit.durable_job import Driver
from tests.kit.sink import FakeSink, sink_port

from weir.core.messages.task import CommitSinks
from weir.core.types import Committable, CompletedCheckpoint, SnapshotKind, TaskState
from weir.durable.targets import check_before_begin
from weir.errors import CheckpointDamagedError, DuplicatesError, StorageError
from weir.sinks.base import Commit

JOB, ORIGIN, STRANGER = "1" * 32, "2" * 32, "3" * 32


def commit(job_id: str, checkpoint_id: int, *, name: str = "orders", attempt: int = 1) -> Commit:
    """A commit as a target reports it; the job in these tests is named "orders"."""
    return Commit(
        timestamp_ms=checkpoint_id,
        job_id=job_id,
        job_name=name,
        job_directory=f"/elsewhere/{job_id}",
        sink="out",
        checkpoint_id=checkpoint_id,
        attempt=attempt,
    )


def with_commits(*commits: Commit) -> FakeSink:
    """A sink whose target reports these commits, newest first."""
    sink = FakeSink()
    sink.recorded_commits = list(commits)
    return sink


def snapshot(directory: Path, *, ancestors: dict[str, int] | None = None) -> CompletedCheckpoint:
    """Checkpoint 7 of job ``ORIGIN``."""
    return CompletedCheckpoint(
        job_id=ORIGIN,
        checkpoint_id=7,
        kind=SnapshotKind.SAVEPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=(),
        external_path=str(directory),
        ancestors=ancestors or {},
    )


def driver(directory: Path, sink: FakeSink, **how: Any) -> Driver:
    """The next driver of the job."""
    return Driver(directory, JOB, sinks=sink_port(sink), **how)


# -- an attempt over older records -----------------------------------------------------------------


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """The job's records as of checkpoint 2, put back after the job reached checkpoint 4."""
    live = driver(tmp_path, FakeSink())
    live.job.begin_attempt()
    live.complete()
    live.complete()
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy")
    live.complete()
    live.complete()
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "copy").rename(tmp_path / "checkpoints")
    return tmp_path


def test_an_attempt_is_refused_where_a_target_is_beyond_the_newest_record(backup: Path) -> None:
    """Ids would restart below those in the table, and its sink would mistake new epochs for old
    ones (P19)."""
    sink = with_commits(commit(JOB, 4))
    with pytest.raises(
        DuplicatesError,
        match=r"FakeSink.*checkpoint 4 of this job.*end with checkpoint 2.*--accept",
    ):
        driver(backup, sink).job.begin_attempt()
    assert sink.calls == []


def test_a_refused_attempt_leaves_no_record(backup: Path) -> None:
    """Once the newer records are back, the job goes on as if nothing had happened."""
    log = sorted((backup / "checkpoints" / JOB / "log").iterdir())
    with pytest.raises(DuplicatesError):
        driver(backup, with_commits(commit(JOB, 4))).job.begin_attempt()
    assert sorted((backup / "checkpoints" / JOB / "log").iterdir()) == log


def test_an_attempt_is_refused_where_the_records_are_gone_and_a_target_has_rows(
    tmp_path: Path,
) -> None:
    """The job's directory was deleted, and its name still refers to it."""
    with pytest.raises(DuplicatesError, match="have no completed checkpoint"):
        driver(tmp_path, with_commits(commit(JOB, 4))).job.begin_attempt()


def test_a_sink_that_knows_only_its_newest_epoch_refuses_too(backup: Path) -> None:
    """Users' sinks need not know who else has written."""
    sink = FakeSink()
    sink.newest = 4
    with pytest.raises(DuplicatesError, match="checkpoint 4 of this job"):
        driver(backup, sink).job.begin_attempt()
    assert [call for call in sink.calls if call[0] in ("commit", "clean")] == []


@pytest.mark.parametrize("newest", [1, 2])
def test_an_attempt_continues_where_no_target_is_beyond_the_newest_record(
    backup: Path, newest: int
) -> None:
    """The copy is as new as the tables, so nothing is lost or duplicated."""
    start = driver(backup, with_commits(commit(JOB, newest))).job.begin_attempt()
    assert start.restored is not None
    assert start.restored.checkpoint_id == 2


def test_accepted_duplicates_continue_with_ids_and_attempts_above_what_the_target_has(
    backup: Path,
) -> None:
    """No epoch and no staging directory is reused from before the records went back (P19, P22)."""
    later = driver(backup, with_commits(commit(JOB, 4, attempt=9)), accept_duplicates=True)
    assert later.job.begin_attempt().attempt == 10
    assert later.complete().checkpoint_id == 5


def test_a_later_driver_does_not_need_the_word_again_once_a_checkpoint_has_completed(
    backup: Path,
) -> None:
    """Its records have caught up with its targets by then."""
    later = driver(backup, with_commits(commit(JOB, 4, attempt=9)), accept_duplicates=True)
    later.job.begin_attempt()
    later.complete()
    assert driver(backup, with_commits(commit(JOB, 4, attempt=9))).job.begin_attempt().attempt == 11


# -- other generations -----------------------------------------------------------------------------


def test_a_later_generation_of_the_name_stops_the_job_whose_name_was_put_back(backup: Path) -> None:
    """The names were part of the copy, and a job started from a savepoint since has written to the
    same table."""
    sink = with_commits(commit(STRANGER, 1), commit(JOB, 2))
    with pytest.raises(DuplicatesError, match=f"another job of the same name, {STRANGER}"):
        driver(backup, sink).job.begin_attempt()
    assert [call for call in sink.calls if call[0] in ("commit", "clean")] == []


def test_a_job_of_another_name_may_write_to_the_same_target(backup: Path) -> None:
    """Nothing says that their rows overlap."""
    sink = with_commits(commit(STRANGER, 1, name="returns"), commit(JOB, 2))
    assert driver(backup, sink).job.begin_attempt().attempt == 2


def test_an_accepted_generation_is_known_from_the_first_checkpoint_on(tmp_path: Path) -> None:
    """An accepted job is an ancestor of everything that follows, even where a table gets no
    rows."""
    sink = with_commits(commit(STRANGER, 5))
    accepting = driver(tmp_path, sink, accept_duplicates=True)
    accepting.job.begin_attempt()
    assert accepting.complete().ancestors == {STRANGER: 5}
    assert driver(tmp_path, sink).job.begin_attempt().attempt == 2


# -- a job that is to begin ------------------------------------------------------------------------


def test_a_new_job_is_refused_a_target_of_its_namesake_and_the_error_has_its_records() -> None:
    """The command ran in another directory, or the volume with the records is not mounted."""
    with pytest.raises(
        DuplicatesError, match=rf"{STRANGER}.*\(its records were in /elsewhere/{STRANGER}\)"
    ):
        check_before_begin(sink_port(with_commits(commit(STRANGER, 5))), JOB, None)


def test_a_new_job_may_write_where_jobs_of_other_names_have_written() -> None:
    """Several pipelines may append to one table."""
    check_before_begin(sink_port(with_commits(commit(STRANGER, 5, name="returns"))), JOB, None)


def test_a_namesake_is_found_past_a_job_of_another_name() -> None:
    """The two took turns."""
    with pytest.raises(DuplicatesError, match=STRANGER):
        sink = with_commits(commit(ORIGIN, 9, name="returns"), commit(STRANGER, 5))
        check_before_begin(sink_port(sink), JOB, None)


@pytest.mark.parametrize("name", ["orders", "returns"])
def test_a_snapshot_is_refused_where_any_job_has_committed_since(tmp_path: Path, name: str) -> None:
    """It may have started from that snapshot too, under any name."""
    with pytest.raises(
        DuplicatesError, match=f"job {name!r} .{STRANGER}. has since committed checkpoint 1"
    ):
        sink = with_commits(commit(STRANGER, 1, name=name), commit(ORIGIN, 7))
        check_before_begin(sink_port(sink), JOB, snapshot(tmp_path))


def test_a_snapshot_is_refused_where_its_own_job_has_moved_on(tmp_path: Path) -> None:
    """Checkpoint 8 is not part of it."""
    with pytest.raises(DuplicatesError, match=f"{ORIGIN}. has since committed checkpoint 8"):
        check_before_begin(sink_port(with_commits(commit(ORIGIN, 8))), JOB, snapshot(tmp_path))


def test_a_snapshot_is_taken_where_its_own_commits_are_the_newest(tmp_path: Path) -> None:
    """What came before them is not checked."""
    sink = with_commits(commit(ORIGIN, 7), commit(STRANGER, 90))
    check_before_begin(sink_port(sink), JOB, snapshot(tmp_path))


def test_a_savepoint_is_refused_where_a_job_has_committed_what_another_savepoint_had_pending(
    tmp_path: Path,
) -> None:
    """Nothing completed in between, so the second savepoint has the same rows pending (P14)."""
    from_first = replace(commit(ORIGIN, 5), job_directory=f"/elsewhere/{STRANGER}")
    pending = Committable(sink="out", position=3, payload={})
    state = TaskState(vertex="v", position=3, operators=(), committables=(pending,))
    second = replace(snapshot(tmp_path), tasks=(state,))

    with pytest.raises(DuplicatesError, match=f"{STRANGER}. has started from that job's che"):
        check_before_begin(sink_port(with_commits(from_first)), JOB, second)
    # What the origin itself committed is not in the savepoint any more.
    check_before_begin(sink_port(with_commits(commit(ORIGIN, 5))), JOB, second)
    # The same start again commits the same epoch.
    first = replace(second, checkpoint_id=5)
    check_before_begin(sink_port(with_commits(from_first)), JOB, first)


def test_a_snapshot_knows_the_rows_of_the_jobs_that_its_job_went_on_from(tmp_path: Path) -> None:
    """A table without rows for a whole generation still shows the previous one."""
    sink = sink_port(with_commits(commit(STRANGER, 5)))
    check_before_begin(sink, JOB, snapshot(tmp_path, ancestors={STRANGER: 5}))
    with pytest.raises(DuplicatesError):
        check_before_begin(sink, JOB, snapshot(tmp_path, ancestors={STRANGER: 4}))


def test_a_checkpoint_names_the_jobs_that_its_job_went_on_from(tmp_path: Path) -> None:
    """With the checkpoint at which each was left, over any number of generations."""
    first = Driver(tmp_path, ORIGIN)
    first.job.begin_attempt()
    savepoint = first.savepoint().external_path
    second = Driver(tmp_path, STRANGER, from_savepoint=savepoint)
    second.job.begin_attempt()
    again = second.savepoint()
    assert again.ancestors == {ORIGIN: 1}
    third = Driver(tmp_path, JOB, from_savepoint=again.external_path)
    third.job.begin_attempt()
    assert third.complete().ancestors == {ORIGIN: 1, STRANGER: 1}


def test_the_snapshot_that_a_job_began_from_is_known_by_its_checksum(tmp_path: Path) -> None:
    """A different snapshot that is at its path by then is not a restore point."""
    first = Driver(tmp_path, ORIGIN)
    first.job.begin_attempt()
    savepoint, other = Path(first.savepoint().external_path), first.savepoint().external_path
    checksum = first.storage.checksum(str(savepoint))
    how = {"from_savepoint": str(savepoint), "snapshot_checksum": checksum}
    driver(tmp_path, FakeSink(), **how).job.begin_attempt()
    shutil.copy(Path(other, "_metadata"), savepoint / "_metadata")
    with pytest.raises(CheckpointDamagedError, match="has checksum"):
        driver(tmp_path, FakeSink(), **how).job.begin_attempt()


# -- a volume that is not mounted ------------------------------------------------------------------


def marked(directory: Path) -> FakeSink:
    """A sink whose target exists as long as a directory does."""
    sink = FakeSink()
    sink.mark = str(directory)
    return sink


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A target that was moved away.

    The job has made rows visible there and completed a checkpoint since.
    """
    made = tmp_path / "table"
    made.mkdir()
    live = driver(tmp_path, marked(made))
    live.job.begin_attempt()
    first = live.complete()
    payloads = (Committable(sink="out", position=0, payload={"step": 0}),)
    live.job.commit_sinks(
        CommitSinks(vertex="a", checkpoint_id=first.checkpoint_id, payloads={"out": payloads})
    )
    live.complete()
    made.rename(tmp_path / "away")
    return made


def test_an_attempt_does_not_start_where_a_target_with_rows_of_the_job_is_gone(
    tmp_path: Path, table: Path
) -> None:
    """The remounted volume would hide whatever the attempt wrote there: the sink is not even
    opened."""
    log = sorted((tmp_path / "checkpoints" / JOB / "log").iterdir())
    sink = marked(table)
    with pytest.raises(
        StorageError, match=r"FakeSink.*has rows of this job, but nothing is there now"
    ):
        driver(tmp_path, sink).job.begin_attempt()
    assert sink.calls == []
    assert sorted((tmp_path / "checkpoints" / JOB / "log").iterdir()) == log

    (tmp_path / "away").rename(table)
    driver(tmp_path, sink).job.begin_attempt()


def test_a_deleted_target_is_started_over_if_that_is_accepted(tmp_path: Path, table: Path) -> None:
    """Accepting it once is enough, even if the next driver comes before the first rows."""
    driver(tmp_path, marked(table), accept_duplicates=True).job.begin_attempt()
    assert driver(tmp_path, marked(table)).job.begin_attempt().restored is not None


def test_another_target_of_the_same_step_may_be_empty(tmp_path: Path, table: Path) -> None:
    """The pipeline now writes elsewhere."""
    assert not table.exists()
    assert driver(tmp_path, marked(tmp_path / "elsewhere")).job.begin_attempt().restored is not None


def test_a_sink_without_a_landmark_is_never_missed(tmp_path: Path, table: Path) -> None:
    """Whether its target exists is unknown."""
    assert not table.exists()
    assert driver(tmp_path, FakeSink()).job.begin_attempt().restored is not None


def test_a_sink_hears_where_the_job_had_rows(tmp_path: Path, table: Path) -> None:
    """One that cannot name its landmark before it finds its target compares it then."""
    found: list[str | None] = []
    sink = FakeSink()
    sink.open = lambda context: found.append(context.landmark)
    driver(tmp_path, sink).job.begin_attempt()
    driver(tmp_path, sink, accept_duplicates=True).job.begin_attempt()
    assert found == [str(table), None]


def test_a_checkpoint_is_not_damaged_that_went_away_with_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume is unmounted after the attempt was won: the job waits for it."""
    driver(tmp_path, FakeSink()).job.begin_attempt()
    live = driver(tmp_path, FakeSink())
    live.job.begin_attempt()
    live.complete()
    next_driver = driver(tmp_path, FakeSink())

    def unmount(*_: object, **__: object) -> None:
        (tmp_path / "checkpoints").rename(tmp_path / "away")
        raise CheckpointDamagedError("a file is missing", path="chk-1", file="state")

    with monkeypatch.context() as patched:
        patched.setattr("weir.durable.job.restore_point", unmount)
        with pytest.raises(StorageError, match="are gone: check that the volume is mounted"):
            next_driver.job.begin_attempt()
    (tmp_path / "away").rename(tmp_path / "checkpoints")
    assert next_driver.job.begin_attempt().restored is not None


def test_a_driver_whose_records_are_away_waits_for_them(tmp_path: Path) -> None:
    """It is not fenced: nobody has taken over. Its next attempt finds them again."""
    live = driver(tmp_path, FakeSink())
    live.job.begin_attempt()
    live.complete()
    (tmp_path / "checkpoints").rename(tmp_path / "away")
    with pytest.raises(StorageError, match="are gone: check that the volume is mounted"):
        live.job.begin_attempt()
    assert not (tmp_path / "checkpoints").exists()
    (tmp_path / "away").rename(tmp_path / "checkpoints")
    assert live.job.begin_attempt().attempt == 2


def test_records_that_are_gone_are_not_advised_to_be_resumed(tmp_path: Path) -> None:
    """The directory that the newest commit names may have been deleted with the records."""
    directory = str(tmp_path / STRANGER)
    sink = with_commits(replace(commit(STRANGER, 5), job_directory=directory))
    with pytest.raises(DuplicatesError) as gone:
        check_before_begin(sink_port(sink), JOB, None)
    assert f"its records were in {directory}" in str(gone.value)
    assert "execution.checkpointing.dir" not in str(gone.value)
    Path(directory).mkdir()
    with pytest.raises(DuplicatesError, match=r"execution\.checkpointing\.dir"):
        check_before_begin(sink_port(sink), JOB, None)
