"""One cut for readers: tables are read at the newest checkpoint that all of them show.

Only the last three tests need Spark. The others write with pyarrow the Parquet files that Spark
would stage, and let the sink flush and commit them.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.kit.disk import FaultyDisk
from tests.kit.sink import sink_context

import weir
from weir.core.types import Committable, CompletedCheckpoint, OperatorState, SnapshotKind, TaskState
from weir.errors import ConfigurationError, CutNotFoundError, StorageError
from weir.readers.consistent import JobEpochs, read_job_epochs
from weir.sinks import Batch, DeltaTable
from weir.sinks.delta.schema import delta_schema_json
from weir.sinks.staging import staging_prefix
from weir.spark.hadoop import HadoopFileSystem
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import CheckpointReference, JobLog, JobRecord, Origin
from weir.storage.local import LocalFileSystem

JOB = "0123456789abcdef0123456789abcdef"
FRESH = "fedcba9876543210fedcba9876543210"
FILE_SYSTEM = LocalFileSystem()
SCHEMA = delta_schema_json(
    json.dumps({"fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}),
    place="the test",
)


class Writer:
    """A sink of one job and its table."""

    def __init__(
        self,
        path: Path,
        *,
        job: str = JOB,
        name: str = "orders",
        sink: str | None = None,
        directory: str | None = None,
        attempt: int = 1,
        leaves_out: bool = False,
    ) -> None:
        self.path = path
        self._context = sink_context(
            job_id=job,
            job_name=name,
            sink=sink or path.name,
            attempt=attempt,
            job_directory=directory,
            leaves_out=leaves_out,
        )
        self._sink = DeltaTable(str(path))
        self._sink.open(self._context)
        self._positions = itertools.count()

    def commit(self, checkpoint: int, *ids: int) -> None:
        """Stage, flush and commit rows as one checkpoint; without rows it is an empty epoch."""
        payloads = self._sink.flush([self.stage(ids)]) if ids else []
        assert self._sink.commit(checkpoint, payloads) == len(ids)

    def stage(self, ids: tuple[int, ...]) -> dict[str, Any]:
        directory = f"weir-{staging_prefix(self._context)}-{self._context.attempt}"
        position = next(self._positions)
        file = self.path / directory / str(position) / "part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), file)
        return {
            "directory": directory,
            "position": position,
            "schema": SCHEMA,
            "flushed": False,
            "files": [{"path": file.name, "size": file.stat().st_size}],
        }


class Records:
    """A job's records as its driver writes them."""

    def __init__(
        self,
        base: str,
        fs: FileSystem = FILE_SYSTEM,
        *,
        job: str = JOB,
        origin: Origin | None = None,
        tables: dict[str, str] | None = None,
    ) -> None:
        self.storage = CheckpointStorage(fs=lambda _: fs, base_directory=base, job_id=job)
        self.storage.make_job_directory()
        self._log = JobLog(fs, self.storage.log_directory).begin_attempt(
            JobRecord.first_attempt(
                job_id=job,
                job_name="orders",
                writer="w",
                timestamp_ms=1,
                origin=origin,
                tables=tables or {},
            )
        )

    @property
    def directory(self) -> str:
        return self.storage.job_directory

    def complete(
        self,
        checkpoint: int,
        *,
        sinks: tuple[str, ...] = ("clean", "revenue"),
        left_out: int | None = None,
        **pending: dict[int, int],
    ) -> None:
        """Complete a checkpoint, the only one retained; ``pending`` has rows by epoch per sink.

        ``left_out``: the first checkpoint that the sinks have left out.
        """
        older = self._log.newest.checkpoints
        committables = (
            Committable(
                sink=sink,
                position=epoch,
                payload={"files": [{}] * rows},
                barrier=epoch,
                epoch=epoch,
                left_out=left_out,
            )
            for sink, epochs in pending.items()
            for epoch, rows in epochs.items()
        )
        operators = tuple(OperatorState(operator_id=sink, name=sink) for sink in sinks)
        task = TaskState(
            vertex="v", position=9, operators=operators, committables=tuple(committables)
        )
        completed = CompletedCheckpoint(
            job_id=self.storage.job_id,
            checkpoint_id=checkpoint,
            kind=SnapshotKind.CHECKPOINT,
            timestamp_ms=1,
            completion_timestamp_ms=2,
            attempt=1,
            tasks=(task,),
            external_path=self.storage.checkpoint_directory(checkpoint),
        )
        reference = CheckpointReference(
            checkpoint_id=checkpoint,
            path=completed.external_path,
            checksum=self.storage.write_metadata(completed),
        )
        self._log.append(self._log.newest.checkpoint_completed(reference, timestamp_ms=2))
        for known in older:
            self.storage.discard(known.checkpoint_id, (), None, subsumed=True)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(str(tmp_path / "checkpoints"))


@pytest.fixture
def clean(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "clean")


@pytest.fixture
def revenue(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "revenue")


def cut_of(*writers: Writer) -> weir.ConsistentCut:
    return weir.read_consistent({writer.path.name: str(writer.path) for writer in writers})


def ids(cut: weir.ConsistentCut, name: str) -> list[int]:
    return sorted(cut.table(name).to_pyarrow_table()["id"].to_pylist())


def table(writer: Writer) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(writer.path))


def append_by_a_user(writer: Writer, row: int) -> None:
    deltalake.write_deltalake(str(writer.path), pa.table({"id": [row]}), mode="append")


def test_a_table_between_two_commits_holds_the_others_at_its_checkpoint(clean, revenue):
    """Checkpoint 3 is committed in only one table: both are read at 2, and the next reader gets
    3."""
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint, checkpoint * 10)
    clean.commit(3, 3)
    cut = cut_of(clean, revenue)
    assert (cut.checkpoint_id, cut.job_id, cut.versions) == (2, JOB, {"clean": 1, "revenue": 1})
    revenue.commit(3, 30)
    assert (ids(cut, "clean"), ids(cut, "revenue")) == ([1, 2], [10, 20])
    newer = cut_of(clean, revenue)
    assert (newer.checkpoint_id, ids(newer, "clean"), ids(newer, "revenue")) == (
        3,
        [1, 2, 3],
        [10, 20, 30],
    )


def test_an_empty_epoch_does_not_hold_the_cut_back_and_a_pending_one_does(tmp_path, records):
    """The job's records distinguish them, also for a step that staged files without rows."""
    clean, revenue = (
        Writer(tmp_path / name, directory=records.directory) for name in ("clean", "revenue")
    )
    clean.commit(1, 1)
    revenue.commit(1, 10)
    for checkpoint in (2, 3):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint)
    records.complete(5, revenue={3: 0, 5: 0}, clean={3: 1, 5: 1})
    quiet = cut_of(clean, revenue)
    # Checkpoint 4 was aborted or had no rows: the newest that is known to have completed is 3.
    assert (quiet.checkpoint_id, quiet.versions, quiet.fallback) == (
        3,
        {"clean": 2, "revenue": 0},
        None,
    )
    clean.commit(5, 5)
    assert (cut_of(clean, revenue).checkpoint_id, ids(cut_of(clean, revenue), "clean")) == (
        5,
        [1, 2, 3, 5],
    )
    records.complete(9, revenue={7: 1, 8: 1}, clean={7: 1})
    clean.commit(7, 7)
    held = cut_of(clean, revenue)
    assert (held.checkpoint_id, ids(held, "clean"), ids(held, "revenue")) == (5, [1, 2, 3, 5], [10])
    revenue.commit(7, 70)
    passed = cut_of(clean, revenue)
    assert (passed.checkpoint_id, ids(passed, "clean"), ids(passed, "revenue")) == (
        7,
        [1, 2, 3, 5, 7],
        [10, 70],
    )
    revenue.commit(8, 80)
    assert cut_of(clean, revenue).checkpoint_id == 9
    # Commits newer than those in the records.
    clean.commit(10, 100)
    assert (cut_of(clean, revenue).checkpoint_id, cut_of(clean).checkpoint_id) == (9, 10)


def test_an_older_checkpoint_may_be_asked_for_and_a_later_one_has_to_come(clean, revenue):
    """Such as the one at which a table stands that keeps no versions."""
    for checkpoint in (4, 5, 6):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint, 10 * checkpoint)
    paths = {"clean": str(clean.path), "revenue": str(revenue.path)}
    older = weir.read_consistent(paths, checkpoint_id=5)
    assert older.checkpoint_id == 5
    assert (ids(older, "clean"), ids(older, "revenue")) == ([4, 5], [40, 50])
    with pytest.raises(CutNotFoundError, match=r"Checkpoint 7 of job .* not visible .* but 6 is"):
        weir.read_consistent(paths, checkpoint_id=7)


def test_between_two_commits_of_a_sink_that_leaves_out_checkpoints_only_the_first_is_shown(
    tmp_path, records
):
    """Its commit 5 has rows of 2 to 5, but the other table has not committed 5 yet."""
    clean = Writer(tmp_path / "clean", directory=records.directory)
    revenue = Writer(tmp_path / "revenue", directory=records.directory, leaves_out=True)
    for checkpoint in (1, 2, 3, 4):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(1, 10)
    revenue.commit(5, 20, 30, 40, 50)
    records.complete(5, clean={5: 1})
    held = cut_of(clean, revenue)
    assert (held.checkpoint_id, ids(held, "clean"), ids(held, "revenue")) == (1, [1], [10])
    with pytest.raises(CutNotFoundError, match="has left it out"):
        weir.read_consistent(
            {"clean": str(clean.path), "revenue": str(revenue.path)}, checkpoint_id=3
        )
    clean.commit(5, 5)
    assert cut_of(clean, revenue).checkpoint_id == 5


def test_two_sinks_that_leave_out_checkpoints_are_shown_where_both_have_committed(
    tmp_path, records
):
    """Never at one that either has left out."""
    one, other = (
        Writer(tmp_path / name, directory=records.directory, leaves_out=True)
        for name in ("clean", "revenue")
    )
    for writer, checkpoints in ((one, (1, 3)), (other, (1, 4))):
        for checkpoint in checkpoints:
            writer.commit(checkpoint, checkpoint)
    records.complete(4, left_out=4, clean={4: 1})
    held = cut_of(one, other)
    assert (held.checkpoint_id, ids(held, "clean"), ids(held, "revenue")) == (1, [1], [1])


def test_rows_of_a_checkpoint_that_a_sink_has_left_out_hold_the_cut_before_it(tmp_path, records):
    """They are part of every checkpoint from then on, and committed with a later one."""
    clean, revenue = (
        Writer(tmp_path / name, directory=records.directory) for name in ("clean", "revenue")
    )
    for checkpoint in (5, 6, 7):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(5, 50)
    records.complete(7, left_out=6, revenue={7: 1})
    held = cut_of(clean, revenue)
    assert (held.checkpoint_id, ids(held, "clean"), ids(held, "revenue")) == (5, [5], [50])
    revenue.commit(7, 60)
    passed = cut_of(clean, revenue)
    assert (passed.checkpoint_id, ids(passed, "revenue")) == (7, [50, 60])


def test_a_sink_that_the_job_no_longer_has_stays_at_its_last_commit(tmp_path, records):
    """It has nothing pending, but later rows are not in its table."""
    clean, revenue = (
        Writer(tmp_path / name, directory=records.directory) for name in ("clean", "revenue")
    )
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(1, 10)
    records.complete(2, sinks=("clean",))
    assert cut_of(clean, revenue).checkpoint_id == 1


def test_a_checkpoint_that_is_subsumed_while_it_is_read_is_skipped(records):
    """The log then has a newer one."""

    records.complete(2, clean={2: 1})
    # A newer checkpoint completes while the first metadata is read, and replaces it.
    files = FaultyDisk().before(
        "read",
        lambda _: records.complete(3, clean={3: 1}),
        path=lambda path: path.endswith("chk-2/_metadata"),
    )
    epochs = read_job_epochs(records.directory, lambda _: files)
    assert (epochs.checkpoints, epochs.pending["clean"]) == ((3,), {3})


def test_what_is_committed_while_the_records_are_read_is_part_of_the_cut(
    tmp_path, records, monkeypatch
):
    """Records without pending rows are useless for tables that were read before them."""
    clean = Writer(tmp_path / "clean", directory=records.directory)
    clean.commit(1, 1)

    def meanwhile(*where: Any) -> JobEpochs:
        clean.commit(2, 2)
        records.complete(3)
        return read_job_epochs(*where)

    monkeypatch.setattr("weir.readers.consistent.read_job_epochs", meanwhile)
    cut = cut_of(clean)
    assert (cut.checkpoint_id, ids(cut, "clean")) == (3, [1, 2])


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        (f"/nowhere/{JOB}", "has no completed checkpoint"),
        (f"hdfs://nn/checkpoints/{JOB}", "must be read through Spark"),
        (f"/checkpoints/{FRESH}", "do not name one common directory"),
        (f"file://elsewhere/{JOB}", "names a file on host"),
    ],
)
def test_without_the_jobs_records_the_cut_is_late_and_says_why(tmp_path, directory, reason):
    """The directory is out of reach, or belongs to a job that was started from this one's
    savepoint."""
    clean, revenue = (Writer(tmp_path / name, directory=directory) for name in ("clean", "revenue"))
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(1, 10)
    cut = cut_of(clean, revenue)
    assert cut.checkpoint_id == 1
    assert reason in str(cut.fallback)


def test_without_records_an_empty_epoch_holds_the_cut_back_until_the_table_has_rows_again(
    clean, revenue
):
    """It leaves no version and looks like an uncommitted one: the cut is late, never wrong."""
    clean.commit(1, 1)
    revenue.commit(1, 10)
    for checkpoint in (2, 3):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint)
    late = cut_of(clean, revenue)
    assert (late.checkpoint_id, ids(late, "clean"), ids(late, "revenue")) == (1, [1], [10])
    revenue.commit(4, 40)
    passed = cut_of(clean, revenue)
    assert (passed.checkpoint_id, ids(passed, "clean"), ids(passed, "revenue")) == (
        3,
        [1, 2, 3],
        [10],
    )
    clean.commit(4, 4)
    assert cut_of(clean, revenue).checkpoint_id == 4


def test_maintenance_after_the_cut_is_part_of_it_and_other_writers_rows_are_not(clean, revenue):
    """OPTIMIZE changes no rows; rows appended by a user are read only with the job's next
    checkpoint."""
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(1, 10)
    append_by_a_user(revenue, 99)
    revenue.commit(2, 20)
    table(clean).optimize.compact()
    append_by_a_user(clean, 98)
    table(clean).optimize.compact()
    clean.commit(3, 3)
    cut = cut_of(clean, revenue)
    assert (cut.checkpoint_id, cut.versions) == (2, {"clean": 2, "revenue": 2})
    assert (ids(cut, "clean"), ids(cut, "revenue")) == ([1, 2], [10, 20, 99])


def test_the_newest_job_that_wrote_every_table_counts(tmp_path, clean, revenue):
    """A restarted job is read once all tables have it, whatever its checkpoint ids are."""
    for checkpoint in (7, 8):
        clean.commit(checkpoint, checkpoint)
        revenue.commit(checkpoint, checkpoint * 10)
    fresh_clean, fresh_revenue = (
        Writer(tmp_path / name, job=FRESH) for name in ("clean", "revenue")
    )
    fresh_clean.commit(1, 100)
    before = cut_of(clean, revenue)
    assert (before.job_id, before.checkpoint_id, before.versions) == (
        JOB,
        8,
        {"clean": 1, "revenue": 1},
    )
    fresh_revenue.commit(1, 1000)
    cut = cut_of(clean, revenue)
    assert (cut.job_id, cut.checkpoint_id, ids(cut, "clean")) == (FRESH, 1, [7, 8, 100])


def test_tables_without_a_common_checkpoint_are_refused_by_name(tmp_path, clean):
    """Each error names the tables and jobs, and what to do."""
    clean.commit(5, 5)
    other = Writer(tmp_path / "other", job=FRESH, name="billing")
    other.commit(5, 5)
    with pytest.raises(
        StorageError,
        match=rf"No single job.*'clean'.*'orders' \({JOB}\).*'other'.*'billing' \({FRESH}\)",
    ):
        cut_of(clean, other)
    late = Writer(tmp_path / "late")
    late.commit(4, 4)
    with pytest.raises(
        StorageError,
        match=r"no common checkpoint of job 'orders' yet: checkpoint 4 .* Wait until",
    ):
        cut_of(clean, late)
    foreign = tmp_path / "foreign"
    deltalake.write_deltalake(str(foreign), pa.table({"id": [1]}))
    with pytest.raises(StorageError, match=r"No Weir job has written to table 'foreign'"):
        weir.read_consistent({"clean": str(clean.path), "foreign": str(foreign)})
    with pytest.raises(
        StorageError,
        match=r"No Delta table found for table 'none'.*or wait for the first checkpoint",
    ):
        weir.read_consistent({"none": str(tmp_path / "none")})
    with pytest.raises(ConfigurationError, match=r"needs at least one table"):
        weir.read_consistent({})
    with pytest.raises(StorageError, match=r"no table named 'clena': its tables are 'clean'"):
        cut_of(clean).table("clena")


def test_two_sinks_of_one_job_in_one_table_are_refused(tmp_path, clean):
    """Even if the second has only staged rows: the newest commit does not show its checkpoint."""
    clean.commit(1, 1)
    assert cut_of(clean).checkpoint_id == 1
    Writer(clean.path, sink="second").stage((2,))
    with pytest.raises(
        StorageError, match=r"Several sinks of job 'orders' write to table 'clean'.*'clean'.*second"
    ):
        cut_of(clean)


def test_a_log_is_read_only_as_far_as_needed_and_says_when_it_is_too_short(clean, revenue):
    """Entries older than the cut may be deleted; a missing one that the cut needs is named."""
    revenue.commit(1, 10)
    for checkpoint in (1, 2, 3):
        clean.commit(checkpoint, checkpoint)
    table(clean).create_checkpoint()
    (clean.path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(
        StorageError,
        match=r"'clean' at .* has been cleaned up before version 1.*logRetentionDuration",
    ):
        cut_of(clean, revenue)
    (clean.path / "_delta_log" / f"{1:020}.json").write_text("this entry is not read")
    revenue.commit(3, 30)
    cut = cut_of(clean, revenue)
    assert (cut.checkpoint_id, ids(cut, "clean"), ids(cut, "revenue")) == (3, [1, 2, 3], [10, 30])


def test_credentials_are_not_shown(clean):
    """Cuts are printed in notebooks and logs."""
    clean.commit(1, 1)
    cut = weir.read_consistent(
        {"clean": str(clean.path)}, storage_options={"AWS_SECRET_ACCESS_KEY": "hidden"}
    )
    assert "hidden" not in repr(cut)


# -- a job that goes on from another one's snapshot ------------------------------------------------


NEXT = "89abcdef0123456789abcdef01234567"


class Resumed:
    """Job JOB stopped at savepoint 19, and FRESH continues from it.

    Both write the tables ``clean`` and ``revenue``.
    """

    def __init__(self, directory: Path, *, origin: Origin | None, tables: tuple[str, ...]) -> None:
        self._directory = directory
        self.base = str(directory / "checkpoints")
        old = Records(self.base)
        self.clean, self.revenue = self.writers(JOB)
        self.clean.commit(18, 1)
        self.clean.commit(19, 2)
        self.revenue.commit(18, 10)
        old.complete(19)
        self.new = self.records(FRESH, origin, tables)
        self.new_clean, self.new_revenue = self.writers(FRESH)

    def records(self, job: str, origin: Origin | None, tables: tuple[str, ...]) -> Records:
        paths = {name: str(self._directory / name) for name in tables}
        return Records(self.base, job=job, origin=origin, tables=paths)

    def writers(self, job: str) -> tuple[Writer, Writer]:
        clean, revenue = (
            Writer(self._directory / name, job=job, directory=f"{self.base}/{job}")
            for name in ("clean", "revenue")
        )
        return clean, revenue

    @property
    def cut(self) -> weir.ConsistentCut:
        return cut_of(self.clean, self.revenue)

    @property
    def ids(self) -> tuple[list[int], list[int]]:
        cut = self.cut
        return ids(cut, "clean"), ids(cut, "revenue")


SAVEPOINT_19 = Origin(job_id=JOB, checkpoint_id=19)
BOTH = ("clean", "revenue")


def test_a_table_that_is_quiet_since_its_job_was_resumed_does_not_hold_the_cut_at_the_old_job(
    tmp_path,
):
    """The new job's records say that it started from savepoint 19, in this table, with nothing
    pending."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=BOTH)
    for checkpoint in (1, 2, 3):
        resumed.new_clean.commit(checkpoint, 100 + checkpoint)
    resumed.new.complete(3)
    cut = resumed.cut
    assert (cut.job_id, cut.checkpoint_id, cut.fallback) == (FRESH, 3, None)
    assert resumed.ids == ([1, 2, 101, 102, 103], [10])
    resumed.new_revenue.commit(4, 1000)
    resumed.new.complete(4)
    assert (resumed.cut.checkpoint_id, resumed.ids) == (4, ([1, 2, 101, 102, 103], [10, 1000]))


def test_rows_that_the_new_job_has_yet_to_commit_hold_the_cut_before_them(tmp_path):
    """Up to its first pending epoch; before its first checkpoint the whole cut is the old job's,
    and says so."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=BOTH)
    for checkpoint in (2, 3):
        resumed.new_clean.commit(checkpoint, 100 + checkpoint)
    resumed.new.complete(3, revenue={3: 1})
    cut = resumed.cut
    assert (cut.job_id, cut.checkpoint_id, resumed.ids) == (FRESH, 2, ([1, 2, 102], [10]))
    resumed.new.complete(4, revenue={2: 1})
    assert (resumed.cut.checkpoint_id, resumed.ids) == (1, ([1, 2], [10]))
    resumed.new.complete(5, revenue={1: 1})
    late = resumed.cut
    assert (late.job_id, late.checkpoint_id, resumed.ids) == (JOB, 19, ([1, 2], [10]))
    assert (
        f"({FRESH}) made the newest commit, but has not been read yet, since it has not committed"
        in str(late.fallback)
    )


def test_a_table_that_is_new_in_the_resumed_job_is_read_with_one_that_is_quiet_since(tmp_path):
    """Neither job has written to both."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=("revenue", "late"))
    late = Writer(tmp_path / "late", job=FRESH, directory=f"{resumed.base}/{FRESH}")
    late.commit(2, 7)
    resumed.new.complete(2, sinks=("revenue", "late"))
    cut = cut_of(resumed.revenue, late)
    assert (cut.job_id, cut.checkpoint_id, ids(cut, "revenue"), ids(cut, "late")) == (
        FRESH,
        2,
        [10],
        [7],
    )


def test_a_job_that_was_resumed_twice_is_followed_to_the_first(tmp_path):
    """Each job's records name the previous one."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=BOTH)
    resumed.new_clean.commit(1, 100)
    resumed.new.complete(1)
    newest = resumed.records(NEXT, Origin(job_id=FRESH, checkpoint_id=2), BOTH)
    clean, _ = resumed.writers(NEXT)
    clean.commit(1, 500)
    newest.complete(1)
    assert (resumed.cut.job_id, resumed.cut.checkpoint_id) == (NEXT, 1)
    assert resumed.ids == ([1, 2, 100, 500], [10])


def test_what_the_resumed_job_commits_in_the_name_of_the_old_one_is_its_beginning(tmp_path):
    """The new driver commits the savepoint's pending rows under the old job's id (P14, P19)."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=BOTH)
    Writer(tmp_path / "revenue", directory=f"{resumed.base}/{FRESH}", attempt=2).commit(19, 20)
    resumed.new_clean.commit(1, 100)
    resumed.new.complete(1)
    cut = resumed.cut
    assert (cut.job_id, cut.checkpoint_id, resumed.ids) == (FRESH, 1, ([1, 2, 100], [10, 20]))


@pytest.mark.parametrize(
    ("origin", "tables", "why"),
    [
        (SAVEPOINT_19, ("clean",), "its records do not mention table 'revenue'"),
        (
            None,
            BOTH,
            rf"has checkpoint 18 of job 'orders' \({JOB}\), which it is not known to have started",
        ),
        (
            Origin(job_id=JOB, checkpoint_id=17),
            BOTH,
            "has checkpoint 18 .* not known to have started from",
        ),
        (
            Origin(job_id=NEXT, checkpoint_id=19),
            BOTH,
            "has checkpoint 18 .* not known to have started from",
        ),
    ],
    ids=["another table", "begun again", "an older snapshot", "another job's snapshot"],
)
def test_a_newer_job_that_cannot_be_followed_leaves_the_cut_at_the_old_one_and_says_why(
    tmp_path, origin, tables, why
):
    """Late, never wrong: its rows may be elsewhere, or the table may contain more than it started
    with."""
    resumed = Resumed(tmp_path, origin=origin, tables=tables)
    resumed.new_clean.commit(1, 100)
    resumed.new.complete(1)
    cut = resumed.cut
    assert (cut.job_id, cut.checkpoint_id, resumed.ids) == (JOB, 19, ([1, 2], [10]))
    assert re.search(why, str(cut.fallback))


def test_a_newer_job_without_a_checkpoint_leaves_the_cut_at_the_old_one_and_says_why(tmp_path):
    """It has committed only what was pending in the savepoint."""
    resumed = Resumed(tmp_path, origin=SAVEPOINT_19, tables=BOTH)
    resumed.new_clean.commit(1, 100)
    assert (resumed.cut.job_id, resumed.cut.checkpoint_id) == (JOB, 19)
    assert "has no completed checkpoint" in str(resumed.cut.fallback)


@pytest.mark.spark
def test_a_session_reads_the_jobs_records_on_a_hadoop_file_system(spark, tmp_path):
    """Without a session the quiet table holds the cut back."""
    spark._jsc.hadoopConfiguration().set(
        "fs.viewfs.mounttable.cut.link./checkpoints", tmp_path.as_uri()
    )
    base = "viewfs://cut/checkpoints"
    records = Records(base, HadoopFileSystem(spark, base))
    clean, revenue = (
        Writer(tmp_path / name, directory=records.directory) for name in ("clean", "revenue")
    )
    for checkpoint in (1, 2):
        clean.commit(checkpoint, checkpoint)
    revenue.commit(1, 10)
    records.complete(2)
    tables = {"clean": str(clean.path), "revenue": str(revenue.path)}
    cut = weir.read_consistent(tables, spark=spark)
    assert (cut.fallback, cut.checkpoint_id, cut_of(clean, revenue).checkpoint_id) == (None, 2, 1)


@pytest.mark.spark
def test_spark_reads_a_partitioned_table_at_the_cut(spark, tmp_path):
    """Every value equals that before the cut, whatever characters paths and columns have."""
    values = ["US", "a/b", None, "x y", "50%", "é=ü", "q'\"?#:*\\", "%2F", "a+b", "{b}"]
    data = [
        (number, value, number % 2 == 0, {"k`": [number]}) for number, value in enumerate(values)
    ]
    frame = spark.createDataFrame(
        data, "`i.d` long, c string, even boolean, `_metadata` map<string, array<int>>"
    )
    path = tmp_path / "a [1] {x} table"
    context = sink_context()
    sink = DeltaTable(str(path), partition_by=("c", "even"))
    sink.open(context)
    payload = sink.stage(frame.coalesce(1), Batch(batch_id=0))
    assert payload is not None
    sink.commit(1, sink.flush([payload]))
    at_cut = weir.read_consistent({"out": str(path)}).frame("out", spark)
    assert at_cut.schema == frame.schema
    assert sorted(tuple(row) for row in at_cut.collect()) == data
    assert [row["i.d"] for row in at_cut.where("c = 'a/b' and not even").collect()] == [1]


@pytest.mark.spark
def test_spark_reads_plain_tables_also_without_files_and_refuses_others(spark, clean, revenue):
    """An emptied table keeps its columns; rows hidden by deletion vectors would come back."""
    clean.commit(1, 1, 2)
    revenue.commit(1, 10)
    cut = cut_of(clean, revenue)
    table(clean).delete()
    assert sorted(row.id for row in cut.frame("clean", spark).collect()) == [1, 2]
    emptied = weir.ConsistentCut(
        checkpoint_id=1, job_id=JOB, versions={"clean": 1}, paths=cut.paths
    )
    assert (emptied.frame("clean", spark).count(), emptied.frame("clean", spark).columns) == (
        0,
        ["id"],
    )
    table(revenue).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    revenue.commit(2, 20)
    with pytest.raises(
        StorageError, match=r"'revenue' has the features deletionVectors.*with delta-rs"
    ):
        cut_of(revenue).frame("revenue", spark)
