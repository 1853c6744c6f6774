"""Missing or truncated staged files and failing syncs, on real tables without Spark (P13, P23).

The staged output consists of Parquet files that the task has already written for other tasks, so no
Spark job runs.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.kit.disk import FaultyDisk, LostSyncs
from tests.kit.iceberg_warehouse import Warehouse, stage_by_hand
from tests.kit.sink import sink_context
from tests.kit.written_rows import rows_of_delta, rows_of_files, stage_rows

from weir.errors import LostRowsError, LostWriteError, StorageError
from weir.sinks import DeltaTable, Files, IcebergTable, SinkContext
from weir.sinks.base import Sink
from weir.storage.filesystem import FileStatus
from weir.storage.local import LocalFileSystem

JOB = "0123456789abcdef0123456789abcdef"


class Target:
    """A sink's table and what is staged for it."""

    def __init__(
        self, kind: str, directory: Path, file_system: LocalFileSystem | None = None
    ) -> None:
        self.path = directory / "t"
        if kind == "iceberg":
            self.path = directory / "shop" / "orders"
            self._warehouse = Warehouse(None, directory)
        self._segments = directory / "segments"
        self._files = file_system or LocalFileSystem()
        self._kind = kind
        self.sink = self.opened()

    def opened(self, attempt: int = 1) -> Sink:
        """The sink in a new process."""
        sink: Sink
        if self._kind == "iceberg":
            sink = self._warehouse.sink()
        else:
            sink = (DeltaTable if self._kind == "delta" else Files)(str(self.path))
        sink.open(self._context(attempt))
        return sink

    def reopen(self) -> None:
        """The next attempt in the same process."""
        self.sink.open(self._context(2))

    def _context(self, attempt: int) -> SinkContext:
        return sink_context(attempt=attempt, file_system=lambda _: self._files)

    def stage(self, position: int) -> dict[str, Any]:
        """Stage two rows in separate files."""
        if isinstance(self.sink, IcebergTable):
            return stage_by_hand(self.sink, position, position, position + 100)
        return stage_rows(self.sink, position, self._segments)

    def flushed(self, position: int) -> dict[str, Any]:
        """The payload as a checkpoint contains it."""
        (payload,) = self.sink.flush([self.stage(position)])
        return json.loads(json.dumps(payload))

    def staged(self, payload: dict[str, Any]) -> Path:
        """The first file of a payload."""
        return Path(self.sink.staged_files(payload)[0])

    def rows(self) -> list[int]:
        """The rows that readers see."""
        if self._kind == "iceberg":
            return self._warehouse.ids()
        return rows_of_delta(self.path) if self._kind == "delta" else rows_of_files(self.path)


@pytest.fixture(params=["delta", "files", "iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """One target of each kind."""
    return Target(request.param, tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> Target:
    return Target("delta", tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Target:
    return Target("files", tmp_path)


def cut_short(path: Path) -> None:
    """Truncate the file to half its size."""
    os.truncate(path, path.stat().st_size // 2)


# -- rows that are gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [0, 1], ids=["before the first commit", "later"])
def test_nothing_is_made_where_a_target_was_that_is_away(
    target: Target, tmp_path: Path, commits: int
) -> None:
    """As with an unmounted volume: no batch, commit or attempt creates it. Once it is back, the
    commit is whole."""
    for number in range(commits):
        target.sink.commit(1 + number, [target.flushed(number)])
    payload = target.flushed(commits)
    target.path.rename(tmp_path / "away")
    for use in (lambda: target.stage(9), lambda: target.sink.commit(2, [payload]), target.reopen):
        with pytest.raises(StorageError, match=r"is gone: .* Check that its volume is mounted"):
            use()
    assert not target.path.exists()
    (tmp_path / "away").rename(target.path)
    target.reopen()
    assert target.sink.commit(2, [payload]) == 2
    assert len(target.rows()) == 2 * (commits + 1)


def test_what_a_task_still_writes_where_a_target_was_does_not_bring_it_back(
    target: Target, tmp_path: Path
) -> None:
    """Spark creates the directories of its files, but such a batch's payload is never reported
    durable."""
    target.sink.commit(1, [target.flushed(0)])
    written = target.staged(target.flushed(1))
    payload = target.stage(2)
    target.path.rename(tmp_path / "away")
    written.parent.mkdir(parents=True)
    written.write_bytes(b"half")
    with pytest.raises(StorageError, match="Check that its volume is mounted"):
        target.sink.flush([payload])
    with pytest.raises(StorageError, match="Check that its volume is mounted"):
        target.reopen()


def test_a_commit_during_which_the_table_goes_away_is_repeated(
    delta: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs writes its entry where the table was, and a mount would hide it."""
    delta.sink.commit(1, [delta.flushed(0)])
    payload = delta.flushed(1)
    add_files = DeltaTable._add_files

    def while_it_goes(sink: DeltaTable, *arguments: Any) -> None:
        delta.path.rename(tmp_path / "away")
        shutil.copytree(tmp_path / "away" / "_delta_log", delta.path / "_delta_log")
        add_files(sink, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "_add_files", while_it_goes)
        with pytest.raises(StorageError, match="went away while checkpoint 2 was committed"):
            delta.sink.commit(2, [payload])
    shutil.rmtree(delta.path)
    (tmp_path / "away").rename(delta.path)
    assert delta.sink.commit(2, [payload]) > 0
    assert delta.sink.newest_committed() == 2


@pytest.mark.parametrize("harm", [Path.unlink, cut_short], ids=["gone", "cut short"])
def test_a_commit_that_cannot_be_whole_shows_nothing_and_says_what_to_do(
    target: Target, harm: Any
) -> None:
    """One of two files of the second step: epoch, target, file and ways out are named, no row is
    visible."""
    target.sink.commit(1, [target.flushed(0)])
    payloads = [target.flushed(1), target.flushed(2)]
    path = target.staged(payloads[1])
    harm(path)
    with pytest.raises(LostRowsError) as lost:
        target.sink.commit(2, payloads)
    for words in (
        "Checkpoint 2 ",
        target.sink.describe(),
        str(path),
        "Restore the file",
        "--from-savepoint",
    ):
        assert words in str(lost.value)
    assert target.rows() == [0, 100]
    assert target.sink.newest_committed() == 1


def test_a_commit_is_whole_again_once_the_file_was_put_back(target: Target, tmp_path: Path) -> None:
    """Nothing was half done, so the same epoch commits."""
    payload = target.flushed(0)
    path = target.staged(payload)
    path.rename(tmp_path / "away")
    with pytest.raises(LostRowsError):
        target.sink.commit(1, [payload])
    (tmp_path / "away").rename(path)
    assert target.opened(2).commit(1, [payload]) == 2
    assert target.rows() == [0, 100]


def test_a_committed_epoch_no_longer_needs_its_files(target: Target) -> None:
    """OPTIMIZE and VACUUM, or a reader, may have deleted them before the job learns of its
    commit."""
    payload = target.flushed(0)
    target.sink.commit(1, [payload])
    for path in target.sink.staged_files(payload):
        Path(path).unlink()
    assert target.opened(2).commit(1, [payload]) == 0


def test_what_a_vacuum_with_a_short_retention_deletes_is_missed_before_the_commit(
    delta: Target,
) -> None:
    """Delta itself would commit missing files, and its readers would fail from then on."""
    delta.sink.commit(1, [delta.flushed(0)])
    payload = delta.flushed(1)
    table = deltalake.DeltaTable(str(delta.path))
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not delta.staged(payload).exists()
    with pytest.raises(LostRowsError, match=r"part-1-c000\.parquet is gone"):
        delta.sink.commit(2, [payload])
    assert delta.rows() == [0, 100]


def test_staged_output_is_looked_at_before_and_after_it_is_flushed(target: Target) -> None:
    """A checkpoint with missing rows is not taken; files that a commit has begun to move are not
    missing."""
    staged = target.stage(0)
    assert target.sink.damaged(staged) is None
    (payload,) = target.sink.flush([staged])
    assert target.sink.damaged(payload) is None
    path = target.staged(payload)
    cut_short(path)
    assert target.sink.damaged(
        payload
    ) == f"{path} has {path.stat().st_size} bytes instead of " + str(payload["files"][0]["size"])
    assert target.sink.damaged(staged) == target.sink.damaged(payload)


def test_a_commit_that_died_between_two_renames_is_whole(files: Target) -> None:
    """One file is staged and the other has its final name."""
    payload = files.flushed(0)
    first = files.staged(payload)
    first.rename(files.path / "01234567-out-1-0-0.parquet")
    assert files.sink.damaged(payload) is None
    assert files.opened(2).commit(1, [payload]) == 1
    assert files.rows() == [0, 100]


def test_files_of_a_checkpoint_without_sizes_are_looked_for_by_name(files: Target) -> None:
    """Older checkpoints have no sizes."""
    payload = files.flushed(0)
    for file in payload["files"]:
        del file["size"]
    assert files.sink.commit(1, [payload]) == 2


def test_remote_files_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check is a network round trip: 64 of them take as long as four."""
    import threading

    from weir.sinks.staging import statuses

    together = threading.Barrier(16)

    class Remote(LocalFileSystem):
        def status(self, path: str) -> FileStatus | None:
            together.wait()
            return FileStatus(name=path.rpartition("/")[2], size=1, is_directory=False)

    found = statuses(Remote(), [f"s3a://bucket/{number}" for number in range(64)])
    assert [status.name for status in found if status] == [str(number) for number in range(64)]


# -- syncs that fail -------------------------------------------------------------------------------


def test_a_file_whose_final_name_could_not_be_synced_is_written_again(
    files: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sync would succeed without the name; a new file with the same rows replaces it
    (P23)."""
    payload = files.flushed(0)
    inode = files.staged(payload).stat().st_ino
    syncs = LostSyncs(monkeypatch, lambda path: path == str(files.path))
    assert files.sink.commit(1, [payload]) == 2
    assert len(syncs.lost) == 1
    final = files.path / "01234567-out-1-0-0.parquet"
    assert final.stat().st_ino != inode
    assert files.rows() == [0, 100]


def test_names_that_could_not_be_synced_together_are_written_again_by_the_next_try(
    files: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry finds every file renamed but must not trust that; only then comes the ledger
    (P23)."""
    payload = files.flushed(0)
    finals = [files.path / f"01234567-out-1-0-{number}.parquet" for number in range(2)]
    syncs = LostSyncs(monkeypatch, lambda path: Path(path) in finals)
    with pytest.raises(LostWriteError):
        files.sink.commit(1, [payload])
    assert files.sink.newest_committed() is None
    inodes = {path: path.stat().st_ino for path in finals}
    files.sink.commit(1, [payload])
    assert all(path.stat().st_ino != inodes[path] for path in finals)
    assert len(syncs.lost) == 1
    assert files.rows() == [0, 100]


def test_no_file_gets_its_name_before_its_epochs_mark_is_sure_to_last(
    files: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash could otherwise leave rows of an epoch that nothing tells of (P21, P23)."""
    payload = files.flushed(0)
    ledger = files.path / "_weir" / "committed" / f"{JOB}-out"
    LostSyncs(monkeypatch, lambda path: path == str(ledger))
    with pytest.raises(LostWriteError):
        files.sink.commit(1, [payload])
    assert files.rows() == []
    assert files.sink.commit(1, [payload]) == 2


def test_a_mark_whose_new_name_may_not_last_gets_an_entry_beside_it(
    files: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is a new file, since the failed sync says nothing of the old one (P23)."""
    payload = files.flushed(0)
    ledger = files.path / "_weir" / "committed" / f"{JOB}-out"
    syncs = LostSyncs(monkeypatch, lambda path: path == str(ledger) and (ledger / "1").exists())
    assert files.sink.commit(1, [payload]) == 2
    assert len(syncs.lost) == 1
    assert syncs.synced[-1] == str(ledger)
    assert [path.name for path in ledger.iterdir()] == ["1"]


def test_an_epoch_whose_entry_in_the_ledger_may_not_last_is_entered_again(
    files: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry exists, but a second commit does not rely on it (P23)."""
    payload = files.flushed(0)
    ledger = files.path / "_weir" / "committed" / f"{JOB}-out"
    # The mark lasts; neither does its new name, nor the entry that is made in its place.
    LostSyncs(monkeypatch, lambda path: path == str(ledger) and (ledger / "1").exists(), times=2)
    with pytest.raises(LostWriteError):
        files.sink.commit(1, [payload])
    inode = (ledger / "1").stat().st_ino
    assert files.sink.commit(1, [payload]) == 0
    assert (ledger / "1").stat().st_ino != inode
    synced = LostSyncs(monkeypatch, lambda path: False).synced
    assert files.sink.commit(1, [payload]) == 0
    assert synced == []


def test_an_entry_of_the_log_that_could_not_be_synced_is_written_again(
    delta: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry finds the transaction in the table but must not trust the log (P23)."""
    payload = delta.flushed(0)
    entry = delta.path / "_delta_log" / f"{0:020}.json"
    LostSyncs(monkeypatch, lambda path: path == str(entry))
    with pytest.raises(LostWriteError):
        delta.sink.commit(1, [payload])
    before, inode = entry.read_bytes(), entry.stat().st_ino
    assert delta.sink.commit(1, [payload]) == 0
    assert entry.stat().st_ino != inode
    assert entry.read_bytes() == before
    assert delta.rows() == [0, 100]


def test_an_entry_that_cannot_be_written_again_stays_in_doubt(
    delta: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of retries, and in the next attempt too."""
    payload = delta.flushed(0)
    log = delta.path / "_delta_log"
    syncs = LostSyncs(monkeypatch, lambda path: path.startswith(str(log)), times=3)
    for _ in range(3):
        with pytest.raises(LostWriteError):
            delta.sink.commit(1, [payload])
    inode = (log / f"{0:020}.json").stat().st_ino
    delta.sink.commit(1, [payload])
    assert (log / f"{0:020}.json").stat().st_ino != inode
    assert len(syncs.lost) == 3


def test_staged_output_that_could_not_be_synced_fails_the_flush_by_name(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt fails and is restored from a checkpoint that has none of it (P23)."""
    payload = target.stage(0)
    LostSyncs(monkeypatch, lambda path: path.endswith("part-0-c000.parquet"))
    with pytest.raises(
        LostWriteError, match=rf"part-0-c000\.parquet: .*{os.strerror(errno.EIO).lower()}"
    ):
        target.sink.flush([payload])


def test_a_repeated_commit_looks_at_the_log_from_its_own_entry_on(tmp_path: Path) -> None:
    """A table's log grows for ever; a restart must not look at all of it."""

    files = FaultyDisk()
    delta = Target("delta", tmp_path, files)
    payloads = [delta.flushed(position) for position in range(12)]
    for epoch, payload in enumerate(payloads, 1):
        assert delta.sink.commit(epoch, [payload]) == 2
    for epoch, entries in ((12, 1), (9, 4), (1, 12)):
        again = delta.opened(2)
        files.calls.clear()
        assert again.commit(epoch, [payloads[epoch - 1]]) == 0
        asked = [path for path in files.paths("status") if "_delta_log/0" in path]
        assert len(asked) == 2 * entries  # each entry, and the checkpoint beside it
    assert len(delta.rows()) == 24


def test_a_file_that_another_process_commits_meanwhile_is_not_lost(tmp_path: Path) -> None:
    """A fenced driver may commit the same epoch at the same moment (PROTOCOL P18)."""
    file_system = FaultyDisk()
    files = Target("files", tmp_path, file_system)
    payload = files.flushed(1)
    other = files.opened()
    file_system.after(
        "status",
        lambda _: other.commit(1, [payload]),
        path=lambda path: "/_weir/staged/" in path,
        times=1,
    )
    files.sink.commit(1, [payload])
    assert files.rows() == [1, 101]
