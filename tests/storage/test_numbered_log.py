"""The numbered log: exactly one writer wins a number, even if it was pruned or is in doubt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.clock import QUICK
from tests.kit.disk import FaultyDisk, LostSyncs

from weir.core.types import Recorded
from weir.errors import InvariantError, LostWriteError, StorageError
from weir.storage.filesystem import CreateResult
from weir.storage.local import LocalFileSystem
from weir.storage.numbered_log import Entry, NumberedLog, Recorder

ROUNDS = 50


@pytest.fixture
def log(tmp_path: Path) -> NumberedLog:
    return NumberedLog(LocalFileSystem(), f"{tmp_path}/log")


def fill(log: NumberedLog, count: int) -> None:
    for number in range(1, count + 1):
        assert log.append(number, str(number).encode()) is CreateResult.CREATED


def numbers(log: NumberedLog) -> list[int]:
    return sorted(int(path.name) for path in Path(log.directory).iterdir())


def test_an_empty_log_has_no_newest_entry(log: NumberedLog) -> None:
    """Its directory is not needed either."""
    assert log.newest() is None
    assert log.newest_number() is None


def test_the_newest_entry_is_the_one_with_the_highest_number(log: NumberedLog) -> None:
    """Also past the tenth, where sorting the names as text would go wrong."""
    fill(log, 12)
    assert log.newest() == Entry(number=12, data=b"12")
    assert log.read(3) == b"3"
    assert log.read(13) is None


def test_a_number_is_taken_once(log: NumberedLog) -> None:
    """The second writer is refused, and the first writer's entry stays."""
    fill(log, 1)
    assert log.append(1, b"other") is CreateResult.ALREADY_EXISTS
    assert log.read(1) == b"1"


def test_what_is_not_a_number_is_not_an_entry(log: NumberedLog) -> None:
    """Temporary files and other people's files are ignored."""
    fill(log, 2)
    for name in (".00000000000000000003.17.1.tmp", "README", "3"):
        (Path(log.directory) / name).write_bytes(b"")
    assert log.newest_number() == 2


def test_numbers_start_at_one(log: NumberedLog) -> None:
    """Zero is a bug of the caller."""
    with pytest.raises(InvariantError, match="start at 1"):
        log.append(0, b"")


def test_pruning_keeps_the_newest_entries(log: NumberedLog) -> None:
    """The newest entry always stays; a short log stays complete."""
    fill(log, 7)
    log.prune(3)
    assert numbers(log) == [5, 6, 7]
    log.prune(3)
    assert numbers(log) == [5, 6, 7]


def test_pruning_never_leaves_less_than_two(log: NumberedLog) -> None:
    """One append and one deletion during a listing must not make the log look empty."""
    with pytest.raises(InvariantError, match="at least 2"):
        log.prune(1)


def test_a_stale_writer_cannot_win_a_number_that_was_pruned(log: NumberedLog) -> None:
    """It learns that the number is taken, and leaves no file behind (PROTOCOL P17)."""
    fill(log, 7)
    log.prune(2)
    assert log.append(3, b"stale") is CreateResult.ALREADY_EXISTS
    assert numbers(log) == [6, 7]


def test_a_log_that_is_pruned_while_it_is_read_is_listed_again(tmp_path: Path) -> None:
    """The newest entry of the listing is gone when it is read, so there is a newer entry."""

    def prune(path: str) -> None:
        other = NumberedLog(LocalFileSystem(), path)
        for number in (2, 3, 4):
            other.append(number, str(number).encode())
        other.prune(2)

    directory = f"{tmp_path}/log"
    fill(NumberedLog(LocalFileSystem(), directory), 1)
    fs = FaultyDisk().after("list", prune, times=1)
    assert NumberedLog(fs, directory).newest() == Entry(number=4, data=b"4")
    assert len(fs.paths("list")) == 2


RACER = """
import sys
from weir.storage.local import LocalFileSystem
from weir.storage.numbered_log import NumberedLog

log = NumberedLog(LocalFileSystem(), sys.argv[1])
for line in sys.stdin:
    number = int(line)
    print(log.append(number, f"{sys.argv[2]} {number}".encode()).name, flush=True)
"""


@pytest.mark.kill
def test_of_two_processes_exactly_one_wins_each_number(log: NumberedLog) -> None:
    """Fifty rounds of two real processes that start at the same time (PROTOCOL P17)."""
    racers = {
        name: subprocess.Popen(
            [sys.executable, "-c", RACER, log.directory, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("A", "B")
    }
    for number in range(1, ROUNDS + 1):
        for racer in racers.values():
            assert racer.stdin is not None
            print(number, file=racer.stdin, flush=True)
        said = {
            name: racer.stdout.readline().strip() for name, racer in racers.items() if racer.stdout
        }
        assert sorted(said.values()) == ["ALREADY_EXISTS", "CREATED"]
        winner = next(name for name, result in said.items() if result == "CREATED")
        assert log.read(number) == f"{winner} {number}".encode()
    for racer in racers.values():
        racer.communicate()
        assert racer.returncode == 0


def recorder(fs: LocalFileSystem, tmp_path: Path) -> tuple[Recorder, NumberedLog]:
    log = NumberedLog(fs, f"{tmp_path}/log")
    return Recorder(log, QUICK), log


def test_a_create_without_an_answer_that_was_carried_out_is_won(tmp_path: Path) -> None:
    """Our own bytes are found when the number is read back."""
    it, log = recorder(FaultyDisk().lose_answer("create", times=1), tmp_path)
    assert it.record(1, b"ours") is Recorded.WON
    assert numbers(log) == [1]


def test_what_was_found_after_a_doubt_is_synced_before_it_counts(tmp_path: Path) -> None:
    """The create may have failed before its directory was durable (PROTOCOL P23)."""
    disk = FaultyDisk().lose_answer("create", times=1)
    it, log = recorder(disk, tmp_path)
    assert it.record(1, b"ours") is Recorded.WON
    assert disk.paths("sync") == [log.path(1)]


def test_a_create_that_was_lost_is_tried_again(tmp_path: Path) -> None:
    """Nothing is found, so the number is still free."""
    it, log = recorder(FaultyDisk().fail("create", times=2), tmp_path)
    assert it.record(1, b"ours") is Recorded.WON
    assert log.read(1) == b"ours"


def test_a_create_in_doubt_whose_number_someone_else_has_is_fenced(tmp_path: Path) -> None:
    """Other bytes are found when the number is read back."""
    fs = FaultyDisk()
    it, log = recorder(fs, tmp_path)
    other = NumberedLog(LocalFileSystem(), log.directory)
    fs.before("create", lambda _: other.append(1, b"theirs"), times=1).fail("create", times=1)
    assert it.record(1, b"ours") is Recorded.FENCED
    assert log.read(1) == b"theirs"


def test_creates_that_all_fail_have_failed_for_certain(tmp_path: Path) -> None:
    """Nothing is found after the last try; the storage's own message is kept."""
    it, log = recorder(FaultyDisk().fail("create"), tmp_path)
    assert it.record(1, b"ours") is Recorded.FAILED
    assert "the network is down" in it.failure
    assert numbers(log) == []


def test_a_file_that_is_taken_and_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway whose objects were deleted behind its back says so, without end."""
    monkeypatch.setattr(LocalFileSystem, "create", lambda *_: CreateResult.ALREADY_EXISTS)
    it, log = recorder(FaultyDisk(), tmp_path)
    assert it.record(1, b"ours") is Recorded.FAILED
    assert f"{log.path(1)} exists, and that there is no such file" in it.failure


def test_a_doubt_is_read_back_until_it_can_be(tmp_path: Path) -> None:
    """Nothing is decided while the storage cannot be read."""
    it, _ = recorder(FaultyDisk().lose_answer("create", times=1).fail("read", times=20), tmp_path)
    assert it.record(1, b"ours") is Recorded.WON


def test_a_doubt_that_stays_is_an_error_and_no_outcome(tmp_path: Path) -> None:
    """Neither won nor failed nor fenced: the driver must stop."""
    it, _ = recorder(FaultyDisk().lose_answer("create", times=1).fail("read"), tmp_path)
    with pytest.raises(
        StorageError, match=r"Unknown whether entry 1 of .* so this driver must stop"
    ):
        it.record(1, b"ours")


def test_a_number_that_was_overtaken_is_fenced(tmp_path: Path) -> None:
    """Our own bytes, with a higher number above them: another driver continued from there."""
    fs = FaultyDisk().lose_answer("create", times=1)
    it, log = recorder(fs, tmp_path)
    other = NumberedLog(LocalFileSystem(), log.directory)
    fs.before("create", lambda _: other.append(2, b"theirs"), times=1)
    assert it.record(1, b"ours") is Recorded.FENCED


def test_an_entry_whose_directory_could_not_be_synced_is_not_believed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exists, and a second sync would falsely succeed: neither won nor lost (PROTOCOL P23)."""
    it, log = recorder(LocalFileSystem(), tmp_path)
    it.record(1, b"first")
    LostSyncs(monkeypatch, lambda path: path == log.directory)
    with pytest.raises(LostWriteError, match="may be lost"):
        it.record(2, b"ours")
    assert numbers(log) == [1, 2]


def test_a_sync_that_fails_when_an_entry_is_read_back_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The create ended in doubt, so the entry must be synced once, and that sync failed (PROTOCOL
    P23)."""
    it, log = recorder(FaultyDisk().lose_answer("create", times=1), tmp_path)
    # The first two syncs are the create's, of the content and of the directory.
    syncs = LostSyncs(monkeypatch, lambda path: path == log.path(1))
    with pytest.raises(LostWriteError):
        it.record(1, b"ours")
    assert syncs.lost == [log.path(1)]


def test_an_entry_whose_content_could_not_be_synced_is_written_to_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file has its name yet, so nothing relies on the lost data."""
    it, log = recorder(LocalFileSystem(), tmp_path)
    syncs = LostSyncs(monkeypatch, lambda path: path.endswith(".tmp"))
    assert it.record(1, b"ours") is Recorded.WON
    assert syncs.lost[0] not in syncs.synced
    assert numbers(log) == [1]


def test_a_log_whose_directory_is_gone_does_not_start_over(tmp_path: Path) -> None:
    """The entries are on a volume that is briefly away; a new log in its place would hide them."""
    base = tmp_path / "base"
    base.mkdir()
    log = NumberedLog(LocalFileSystem(), f"{base}/log")
    assert log.append(1, b"mine") is CreateResult.CREATED
    base.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="base is gone; check that its disk is mounted"):
        log.append(1, b"again")
    assert not base.exists()
    (tmp_path / "away").rename(base)
    assert log.append(2, b"next") is CreateResult.CREATED


def test_an_entry_is_in_doubt_while_the_entry_before_it_is_not_to_be_seen(tmp_path: Path) -> None:
    """The create may have happened on a volume that is away now, so it is not reported as
    failed."""
    base = tmp_path / "base"
    base.mkdir()
    log = NumberedLog(LocalFileSystem(), f"{base}/log")
    assert Recorder(log, QUICK).record(1, b"first") is Recorded.WON
    base.rename(tmp_path / "away")
    with pytest.raises(StorageError, match=r"Unknown whether entry 2 .* was written"):
        Recorder(log, QUICK).record(2, b"second")
