"""The transitions of a job's record: what each changes and keeps, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.kit.sample_checkpoint import JOB

from weir.errors import InvariantError, JobEndedError
from weir.storage.job_log import CheckpointReference, JobRecord, Origin, RecordKind, RecordStatus

OTHER = "f" * 32
ORIGIN = Origin(job_id="e" * 32, checkpoint_id=3)

#: Every field has a value, so that a transition that drops a field is noticed.
RUNNING = JobRecord(
    number=8,
    kind=RecordKind.CHECKPOINT_COMPLETED,
    job_id=JOB,
    job_name="orders",
    attempt=2,
    writer="A",
    timestamp_ms=5_000,
    started_ms=1_000,
    completed=7,
    completed_ms=5_000,
    checkpoints=(
        CheckpointReference(checkpoint_id=6, path="/c/chk-6", checksum=f"sha256:{6:064x}"),
        CheckpointReference(checkpoint_id=7, path="/c/chk-7", checksum=f"sha256:{7:064x}"),
    ),
    restored_from="/s/savepoint-1",
    restored_checksum=f"sha256:{1:064x}",
    origin=ORIGIN,
    tables={"clean": "/out/clean"},
    written={"clean": "/out/clean/_delta_log"},
    claimed=True,
)
EIGHTH = CheckpointReference(checkpoint_id=8, path="/c/chk-8", checksum=f"sha256:{8:064x}")


def ended(status: RecordStatus) -> JobRecord:
    """The job after an end of this kind."""
    savepoint = "/s/savepoint-2" if status is RecordStatus.STOPPED else None
    if status is RecordStatus.SUPERSEDED:
        return RUNNING.superseded(OTHER, writer="B", timestamp_ms=9_000)
    return RUNNING.ended(status, timestamp_ms=9_000, savepoint=savepoint)


def test_the_first_attempt_has_the_first_number_and_what_the_job_starts_from() -> None:
    """It also says when the job started."""
    assert JobRecord.first_attempt(
        job_id=JOB,
        job_name="orders",
        writer="A",
        timestamp_ms=1_000,
        restored_from="/s/savepoint-1",
        restored_checksum=f"sha256:{1:064x}",
        claimed=True,
        origin=ORIGIN,
        tables={"clean": "/out/clean"},
    ) == JobRecord(
        number=1,
        kind=RecordKind.ATTEMPT_BEGAN,
        job_id=JOB,
        job_name="orders",
        attempt=1,
        writer="A",
        timestamp_ms=1_000,
        started_ms=1_000,
        restored_from="/s/savepoint-1",
        restored_checksum=f"sha256:{1:064x}",
        claimed=True,
        origin=ORIGIN,
        tables={"clean": "/out/clean"},
    )


def test_an_attempt_is_numbered_above_those_that_only_the_targets_know() -> None:
    """Records may be an older copy (P19)."""
    first = JobRecord.first_attempt(
        job_id=JOB, job_name="orders", writer="A", timestamp_ms=1, above_attempt=9
    )
    assert first.attempt == 10
    assert RUNNING.attempt_began(writer="B", timestamp_ms=1, above_attempt=9).attempt == 10
    assert RUNNING.attempt_began(writer="B", timestamp_ms=1, above_attempt=1).attempt == 3


def test_an_attempt_keeps_everything_that_its_driver_does_not_know_better() -> None:
    """Its checkpoints, its snapshot, and its targets."""
    assert RUNNING.attempt_began(writer="B", timestamp_ms=6_000) == replace(
        RUNNING,
        number=9,
        kind=RecordKind.ATTEMPT_BEGAN,
        attempt=3,
        writer="B",
        timestamp_ms=6_000,
    )


def test_an_attempt_knows_where_its_snapshot_and_its_targets_are_now() -> None:
    """They may have been moved; the snapshot itself is still the same."""
    moved = RUNNING.attempt_began(
        writer="B",
        timestamp_ms=6_000,
        restored_from="/moved/savepoint-1",
        origin=Origin(job_id=OTHER, checkpoint_id=1),
        tables={"clean": "/new/clean"},
        written={},
    )
    assert (moved.restored_from, moved.origin) == ("/moved/savepoint-1", ORIGIN)
    assert (moved.tables, moved.written) == ({"clean": "/new/clean"}, {})
    late = replace(RUNNING, origin=None).attempt_began(writer="B", timestamp_ms=1, origin=ORIGIN)
    assert late.origin == ORIGIN


def test_a_job_that_failed_may_begin_again() -> None:
    """Without the failure (P20)."""
    failed = RUNNING.ended(RecordStatus.FAILED, timestamp_ms=9_000, failure="the disk is full")
    began = failed.attempt_began(writer="B", timestamp_ms=10_000)
    assert (began.status, began.failure) == (RecordStatus.RUNNING, None)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (RecordStatus.STOPPED, "as stopped while"),
        (RecordStatus.FINISHED, "as finished while"),
        (RecordStatus.CANCELED, "as canceled while"),
        (RecordStatus.SUPERSEDED, f"as superseded by job {OTHER} while"),
    ],
)
def test_no_attempt_begins_after_another_end(status: RecordStatus, words: str) -> None:
    """The message says how the job ended and what to do (P20)."""
    with pytest.raises(JobEndedError, match=f"job orders .{JOB}. {words}.* run the command again"):
        ended(status).attempt_began(writer="B", timestamp_ms=10_000)


def test_a_completed_checkpoint_joins_those_that_are_retained() -> None:
    """It is the newest, and what is visible at the targets is added to what was."""
    assert RUNNING.checkpoint_completed(
        EIGHTH, timestamp_ms=6_000, retained=(7, 8), written={"raw": "/out/raw/_commits"}
    ) == replace(
        RUNNING,
        number=9,
        timestamp_ms=6_000,
        completed=8,
        completed_ms=6_000,
        checkpoints=(RUNNING.checkpoints[1], EIGHTH),
        written={"clean": "/out/clean/_delta_log", "raw": "/out/raw/_commits"},
    )


@pytest.mark.parametrize("number", [6, 7])
def test_no_checkpoint_completes_after_a_later_one(number: int) -> None:
    """Ids only grow (P19)."""
    late = replace(EIGHTH, checkpoint_id=number)
    with pytest.raises(InvariantError, match=f"checkpoint {number} completes after checkpoint 7"):
        RUNNING.checkpoint_completed(late, timestamp_ms=6_000)


@pytest.mark.parametrize("status", [status for status in RecordStatus if status.value != "running"])
def test_no_checkpoint_completes_after_the_end(status: RecordStatus) -> None:
    """Whatever the end was."""
    with pytest.raises(InvariantError, match=f"{status.value} cannot complete a checkpoint"):
        ended(status).checkpoint_completed(EIGHTH, timestamp_ms=10_000)


@pytest.mark.parametrize(
    ("status", "savepoint", "failure"),
    [
        (RecordStatus.STOPPED, "/s/savepoint-2", None),
        (RecordStatus.FINISHED, None, None),
        (RecordStatus.FAILED, None, "the disk is full"),
        (RecordStatus.CANCELED, None, None),
    ],
)
def test_an_end_says_how_and_keeps_the_rest(
    status: RecordStatus, savepoint: str | None, failure: str | None
) -> None:
    """Also when the newest checkpoint completed."""
    assert RUNNING.ended(
        status, timestamp_ms=9_000, savepoint=savepoint, failure=failure
    ) == replace(
        RUNNING,
        number=9,
        kind=RecordKind.ENDED,
        timestamp_ms=9_000,
        status=status,
        savepoint=savepoint,
        failure=failure,
    )


def test_an_end_may_delete_the_checkpoints() -> None:
    """The id of the newest stays on record."""
    canceled = RUNNING.ended(RecordStatus.CANCELED, timestamp_ms=9_000, delete_checkpoints=True)
    assert (canceled.checkpoints, canceled.completed) == ((), 7)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda job: job.ended(RecordStatus.RUNNING, timestamp_ms=9), "does not end as running"),
        (lambda job: job.ended(RecordStatus.SUPERSEDED, timestamp_ms=9), "does not end as super"),
        (lambda job: job.ended(RecordStatus.STOPPED, timestamp_ms=9), "stopped has savepoint None"),
        (
            lambda job: job.ended(RecordStatus.FINISHED, timestamp_ms=9, savepoint="/s"),
            "finished has savepoint /s",
        ),
        (
            lambda job: job.ended(RecordStatus.CANCELED, timestamp_ms=9, failure="full"),
            "canceled has failed: full",
        ),
    ],
)
def test_an_end_that_contradicts_itself_is_refused(
    end: Callable[[JobRecord], JobRecord], words: str
) -> None:
    """Only a stopped job has a savepoint, and only a failed job a failure."""
    with pytest.raises(InvariantError, match=words):
        end(RUNNING)


@pytest.mark.parametrize("status", [status for status in RecordStatus if status.value != "running"])
def test_a_job_does_not_end_twice(status: RecordStatus) -> None:
    """A failed job has to begin again first."""
    with pytest.raises(InvariantError, match=f"{status.value} cannot end"):
        ended(status).ended(RecordStatus.FINISHED, timestamp_ms=10_000)


def test_the_claim_on_a_snapshot_ends_once_it_is_deleted() -> None:
    """From the next record on, whatever that is for."""
    completed = RUNNING.checkpoint_completed(EIGHTH, timestamp_ms=6_000, claim_is_over=True)
    finished = RUNNING.ended(RecordStatus.FINISHED, timestamp_ms=9_000, claim_is_over=True)
    assert not completed.claimed
    assert not finished.claimed
    assert not completed.attempt_began(writer="B", timestamp_ms=10_000).claimed


@pytest.mark.parametrize("before", [RUNNING, ended(RecordStatus.FAILED)], ids=lambda job: job.kind)
def test_a_superseded_job_names_its_successor_and_keeps_the_rest(before: JobRecord) -> None:
    """It takes the attempt after the newest, so that the driver of that is fenced (P17, P20)."""
    assert before.superseded(OTHER, writer="B", timestamp_ms=11_000) == replace(
        before,
        number=before.number + 1,
        kind=RecordKind.SUPERSEDED,
        attempt=3,
        writer="B",
        timestamp_ms=11_000,
        status=RecordStatus.SUPERSEDED,
        superseded_by=OTHER,
    )


@pytest.mark.parametrize(
    "status",
    [
        RecordStatus.STOPPED,
        RecordStatus.FINISHED,
        RecordStatus.CANCELED,
        RecordStatus.SUPERSEDED,
    ],
)
def test_a_job_that_has_ended_is_not_superseded(status: RecordStatus) -> None:
    """Its end stays as it is."""
    with pytest.raises(InvariantError, match=f"{status.value} has ended already"):
        ended(status).superseded(OTHER, writer="B", timestamp_ms=10_000)


def test_a_job_that_never_began_is_superseded_by_its_first_record() -> None:
    """A driver that is about to begin its first attempt is fenced by it (P17)."""
    assert JobRecord.never_began(
        job_id=JOB, job_name="orders", superseded_by=OTHER, writer="B", timestamp_ms=9_000
    ) == JobRecord(
        number=1,
        kind=RecordKind.SUPERSEDED,
        job_id=JOB,
        job_name="orders",
        attempt=1,
        writer="B",
        timestamp_ms=9_000,
        status=RecordStatus.SUPERSEDED,
        superseded_by=OTHER,
    )


def test_a_record_that_may_be_lost_says_the_same_under_the_next_number() -> None:
    """Nothing else changes (P23)."""
    assert RUNNING.renumbered() == replace(RUNNING, number=9)
