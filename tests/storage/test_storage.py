"""Checkpoint storage: layout, ids, reading moved checkpoints, verifying and deleting."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.disk import FaultyDisk
from tests.kit.sample_checkpoint import JOB, checkpoint

from weir.core.types import CompletedCheckpoint, SnapshotKind, StateHandle
from weir.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    InvariantError,
    StorageError,
    UnsupportedEnvironmentError,
)
from weir.kernel import MACHINE
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.file_systems import FileSystems
from weir.storage.filesystem import CreateResult, FileSystem
from weir.storage.local import LocalFileSystem


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


@pytest.fixture
def storage(base: Path) -> CheckpointStorage:
    storage = CheckpointStorage(FileSystems(), str(base), JOB)
    storage.make_job_directory()
    return storage


def put(directory: str, name: str, data: bytes) -> StateHandle:
    fs = LocalFileSystem()
    path = f"{directory}/{name}"
    fs.make_directory(path.rpartition("/")[0])
    fs.write(path, data)
    size, checksum = fs.checksum(path)
    return StateHandle(key=name, path=name, size=size, checksum=checksum)


def take(
    storage: CheckpointStorage, checkpoint_id: int, *files: StateHandle
) -> CompletedCheckpoint:
    taken = checkpoint(checkpoint_id, storage.checkpoint_directory(checkpoint_id), files=files)
    storage.write_metadata(taken)
    return taken


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_writable_directory_is_made_and_left_empty(base: Path) -> None:
    """The probe is deleted again."""
    CheckpointStorage(FileSystems(), str(base), JOB).check_writable()
    assert tree(base) == []


def test_a_directory_that_cannot_be_written_is_named_with_its_key(tmp_path: Path) -> None:
    """Before the job starts, not at its first checkpoint."""
    (tmp_path / "file").write_bytes(b"")
    storage = CheckpointStorage(FileSystems(), f"{tmp_path}/file/base", JOB)
    with pytest.raises(StorageError, match=r"execution\.checkpointing\.dir"):
        storage.check_writable()


def test_a_file_system_without_conditional_create_is_refused(base: Path) -> None:
    """Two drivers could both believe they hold the job (PROTOCOL P17)."""

    class Careless(LocalFileSystem):
        def create(self, path: str, data: bytes) -> CreateResult:
            self.write(path, data)
            return CreateResult.CREATED

    def careless(path: str) -> FileSystem:
        return Careless()

    with pytest.raises(UnsupportedEnvironmentError, match="lets two drivers create the same file"):
        CheckpointStorage(careless, str(base), JOB).check_writable()


def test_two_drivers_with_one_process_id_may_probe_a_directory_at_once(base: Path) -> None:
    """Drivers in containers often have the same id, and none takes the other's probe for its own
    (PROTOCOL P17)."""
    other = CheckpointStorage(FileSystems(), str(base), JOB)

    interrupted = FaultyDisk().before("create", lambda _: other.check_writable(), skip=1, times=1)
    CheckpointStorage(lambda _: interrupted, str(base), JOB).check_writable()
    assert len(interrupted.paths("create")) == 2
    assert tree(base) == []


def test_checkpoint_ids_start_at_one_and_never_repeat(
    storage: CheckpointStorage, base: Path
) -> None:
    """Also for another driver of the same job (PROTOCOL P19)."""
    assert [storage.next_checkpoint_id() for _ in range(10)] == list(range(1, 11))
    assert CheckpointStorage(FileSystems(), str(base), JOB).next_checkpoint_id() == 11
    assert len(tree(base / JOB / "ids")) < 11


def test_a_checkpoint_is_read_back_from_its_directory_or_its_file(
    storage: CheckpointStorage,
) -> None:
    """Either path works, with or without a trailing slash."""
    taken = checkpoint(1, storage.checkpoint_directory(1))
    checksum = storage.write_metadata(taken)
    for path in ("", "/", "/_metadata"):
        assert storage.read(taken.external_path + path, expected_checksum=checksum) == taken


def test_metadata_that_the_record_does_not_name_is_damaged(storage: CheckpointStorage) -> None:
    """It is intact, but not the checkpoint on record."""
    taken = take(storage, 1)
    checksum = storage.write_metadata(taken)
    storage.write_metadata(replace(taken, attempt=9))
    with pytest.raises(CheckpointDamagedError, match=f"expected {checksum}"):
        storage.read(taken.external_path, expected_checksum=checksum)


def test_a_missing_checkpoint_is_an_error_that_names_the_others(storage: CheckpointStorage) -> None:
    """From the parent's listing, in the order of their ids; directories without metadata are not
    offered."""
    for checkpoint_id in (9, 10, 11):
        take(storage, checkpoint_id)
    (Path(storage.job_directory) / "chk-12").mkdir()
    with pytest.raises(
        CheckpointNotFoundError, match=f"{JOB} has chk-9, chk-10, chk-11: specify one"
    ):
        storage.read(storage.checkpoint_directory(8))
    with pytest.raises(
        CheckpointNotFoundError, match=r"chk-12 has no file _metadata; .* has chk-9, chk-10"
    ):
        storage.read(storage.checkpoint_directory(12))
    with pytest.raises(CheckpointNotFoundError, match="has chk-9, chk-10, chk-11"):
        storage.read(storage.job_directory)


def test_a_missing_checkpoint_with_no_others_says_what_to_name(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    """For a place without any checkpoint."""
    with pytest.raises(CheckpointNotFoundError, match=f"there is no directory {tmp_path}/nothing"):
        storage.read(f"{tmp_path}/nothing")


def test_a_checkpoint_whose_files_are_whole_is_verified(storage: CheckpointStorage) -> None:
    """Its own files and shared ones of an earlier checkpoint."""
    own = put(storage.job_directory, "chk-2/a", b"own")
    shared = put(storage.job_directory, "shared/1/b", b"shared")
    storage.verify(take(storage, 2, own, shared))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b"dat"), "has 3 bytes, expected 4 bytes"),
        (lambda path: path.write_bytes(b"DATA"), r"has checksum crc32:\w{8}, expected crc32:\w{8}"),
    ],
)
def test_a_damaged_state_file_is_named_with_what_was_expected(
    storage: CheckpointStorage, damage: Callable[[Path], object], words: str
) -> None:
    """Missing, cut short or changed."""
    taken = take(storage, 2, put(storage.job_directory, "shared/1/b", b"data"))
    damage(Path(storage.job_directory) / "shared/1/b")
    with pytest.raises(CheckpointDamagedError, match=words) as caught:
        storage.verify(taken)
    assert (caught.value.path, caught.value.file) == (taken.external_path, "shared/1/b")


def test_a_savepoint_gets_a_directory_of_its_own(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    """It is named after the job and a drawn name; an existing directory is not reused."""
    storage = replace(storage, kernel=replace(MACHINE, new_name=lambda: "0123456789abcdef" * 2))
    directory = storage.make_savepoint_directory(f"{tmp_path}/s")
    assert directory == f"{tmp_path}/s/savepoint-012345-0123456789ab"
    assert Path(directory).is_dir()
    with pytest.raises(StorageError, match="already exists"):
        storage.make_savepoint_directory(f"{tmp_path}/s")


@pytest.mark.parametrize("kind", [SnapshotKind.SAVEPOINT, SnapshotKind.SYNC_SAVEPOINT])
def test_a_savepoint_can_be_moved(
    storage: CheckpointStorage, tmp_path: Path, kind: SnapshotKind
) -> None:
    """Its files are found next to its metadata, wherever that is."""
    directory = storage.make_savepoint_directory(f"{tmp_path}/s")
    handle = put(directory, "state/a", b"data")
    storage.write_metadata(checkpoint(3, directory, kind=kind, files=(handle,)))
    shutil.move(directory, tmp_path / "moved")
    found = storage.read(f"{tmp_path}/moved")
    assert found.external_path == f"{tmp_path}/moved"
    assert storage.file_path(found, handle) == f"{tmp_path}/moved/state/a"
    storage.verify(found)


def test_a_retained_checkpoint_is_restored_from_wherever_its_job_directory_is(
    storage: CheckpointStorage, base: Path, tmp_path: Path
) -> None:
    """Its files are found through its parent directory, also by another job."""
    handle = put(storage.job_directory, "shared/1/b", b"data")
    take(storage, 2, handle)
    shutil.move(base / JOB, tmp_path / "elsewhere")
    other = CheckpointStorage(FileSystems(), str(base), "f" * 32)
    found = other.read(f"{tmp_path}/elsewhere/chk-2")
    assert other.file_path(found, handle) == f"{tmp_path}/elsewhere/shared/1/b"
    other.verify(found)


@pytest.mark.parametrize("path", ["../other/file", "/etc/passwd", "a/../../b", "", "a//b"])
def test_a_state_file_outside_of_the_checkpoint_is_never_used(
    storage: CheckpointStorage, path: str
) -> None:
    """Whatever the metadata says, such a file is neither read nor deleted."""
    handle = StateHandle(key="a", path=path, size=1, checksum="crc32:00000000")
    with pytest.raises(
        StorageError,
        match=r"would not be read back unchanged .*(another format|is not a file of a checkpoint)",
    ):
        storage.write_metadata(checkpoint(1, storage.checkpoint_directory(1), files=(handle,)))
    with pytest.raises(InvariantError, match="not below the directory"):
        storage.discard(1, (path,), None, subsumed=True)


def test_an_aborted_checkpoint_loses_all_that_it_wrote(
    storage: CheckpointStorage, base: Path
) -> None:
    """Its directory and its shared files; other checkpoints keep theirs."""
    for name in ("chk-1/a", "shared/1/b", "chk-2/a", "shared/2/b"):
        put(storage.job_directory, name, b"data")
    storage.discard(2, (), None, subsumed=False)
    assert tree(base / JOB) == ["chk-1", "chk-1/a", "shared", "shared/1", "shared/1/b"]
    storage.discard(2, (), None, subsumed=False)


def test_an_aborted_savepoint_loses_its_directory_only(
    storage: CheckpointStorage, base: Path, tmp_path: Path
) -> None:
    """Its neighbours and the job's checkpoints stay."""
    put(storage.job_directory, "chk-1/a", b"data")
    first = storage.make_savepoint_directory(f"{tmp_path}/s")
    second = storage.make_savepoint_directory(f"{tmp_path}/s")
    storage.discard(1, (), first, subsumed=False)
    assert [str(path) for path in (tmp_path / "s").iterdir()] == [second]
    assert (base / JOB / "chk-1" / "a").exists()


def test_a_savepoint_is_never_subsumed(storage: CheckpointStorage, tmp_path: Path) -> None:
    """It belongs to the user."""
    with pytest.raises(InvariantError, match="never subsumed"):
        storage.discard(1, (), f"{tmp_path}/s/savepoint-1", subsumed=True)


def test_a_subsumed_checkpoint_loses_its_directory_and_the_named_files(
    storage: CheckpointStorage, base: Path
) -> None:
    """Shared files that others need stay; emptied shared directories are deleted (MISSION A11)."""
    for name in ("chk-1/a", "shared/1/state/0/b", "shared/1/state/1/c", "shared/2/d", "chk-2/e"):
        put(storage.job_directory, name, b"data")
    storage.discard(1, ("chk-1/a", "shared/1/state/0/b"), None, subsumed=True)
    assert tree(base / JOB) == [
        "chk-2",
        "chk-2/e",
        "shared",
        "shared/1",
        "shared/1/state",
        "shared/1/state/1",
        "shared/1/state/1/c",
        "shared/2",
        "shared/2/d",
    ]
    storage.discard(2, ("shared/1/state/1/c",), None, subsumed=True)
    assert tree(base / JOB) == ["shared", "shared/2", "shared/2/d"]


def recording(base: Path) -> tuple[CheckpointStorage, Callable[[], list[str]]]:
    """A storage, and what it has deleted so far."""
    fs = FaultyDisk()
    storage = CheckpointStorage(lambda path: fs, str(base), JOB)
    return storage, lambda: [path.removeprefix(f"{base}/{JOB}/") for path in fs.paths("delete")]


def test_what_is_deleted_loses_its_metadata_first(base: Path) -> None:
    """So a half-deleted checkpoint is never offered."""
    storage, deleted = recording(base)
    storage.discard(1, ("shared/1/b",), None, subsumed=True)
    storage.discard(2, (), None, subsumed=False)
    storage.discard_all((3,))
    assert deleted() == [
        *("chk-1/_metadata", "shared/1/b", "shared/1", "chk-1"),
        *("chk-2/_metadata", "shared/2", "chk-2"),
        *("chk-3/_metadata", "chk-3", "shared"),
    ]


def test_what_is_deleted_is_deleted_in_an_order_that_no_hash_decides(base: Path) -> None:
    """A seed of the simulator replays in every interpreter; inner directories come first."""
    storage, deleted = recording(base)
    files = tuple(f"shared/{n}/{'d/' * (n % 2)}file" for n in range(8))
    storage.discard(8, files, None, subsumed=True)
    emptied = ("7/d", "7", "6", "5/d", "5", "4", "3/d", "3", "2", "1/d", "1", "0")
    assert deleted() == [
        "chk-8/_metadata",
        *files,
        *(f"shared/{name}" for name in emptied),
        "chk-8",
    ]


def test_discarding_everything_keeps_log_and_ids(storage: CheckpointStorage, base: Path) -> None:
    """The job's end stays recorded, and its ids are not reused."""
    storage.next_checkpoint_id()
    for name in ("chk-1/a", "chk-2/a", "shared/1/b", "log/00000000000000000001"):
        put(storage.job_directory, name, b"data")
    storage.discard_all((1, 2))
    assert sorted(path.name for path in (base / JOB).iterdir()) == ["ids", "log"]
    assert storage.next_checkpoint_id() == 2


def test_what_dead_attempts_left_behind_is_deleted(storage: CheckpointStorage, base: Path) -> None:
    """Only the retained checkpoint and the shared files that it names survive, whichever attempt
    wrote them."""
    job = storage.job_directory
    old, own = put(job, "shared/3/old", b"old"), put(job, "shared/5/own", b"own")
    unneeded = [
        put(job, name, b"x")
        for name in ("shared/3/unneeded", "shared/4/aborted", "shared/6/pending")
    ]
    retained = take(storage, 5, old, own)
    take(storage, 4)
    take(storage, 6)

    storage.discard_orphans([retained], up_to=6)

    left = tree(base / JOB)
    assert [path for path in left if path.startswith("chk")] == ["chk-5", "chk-5/_metadata"]
    assert [path for path in left if path.count("/") == 2] == ["shared/3/old", "shared/5/own"]
    assert not any((base / JOB / handle.path).exists() for handle in unneeded)
    storage.verify(retained)


def test_a_claimed_copy_of_a_checkpoint_is_deleted_where_it_lies(
    storage: CheckpointStorage, base: Path, tmp_path: Path
) -> None:
    """Only in the copy, and only what no other checkpoint next to it names: the original is not the
    claimer's."""
    job = storage.job_directory
    first = take(
        storage,
        7,
        put(job, "chk-7/own", b"1"),
        put(job, "shared/6/a", b"2"),
        put(job, "shared/7/b", b"3"),
    )
    second = take(storage, 8, *first.tasks[0].files[1:2])
    shutil.copytree(base / JOB, tmp_path / "backup")
    original = tree(base / JOB)

    other = CheckpointStorage(FileSystems(), str(base), "f" * 32)
    other.discard_claimed(f"{tmp_path}/backup/chk-7")

    assert tree(base / JOB) == original
    storage.verify(first)
    storage.verify(second)
    assert tree(tmp_path / "backup") == [
        "chk-8",
        "chk-8/_metadata",
        "shared",
        "shared/6",
        "shared/6/a",
    ]
    other.verify(other.read(f"{tmp_path}/backup/chk-8"))


def test_a_claimed_checkpoint_takes_nothing_along_that_its_metadata_does_not_name(
    storage: CheckpointStorage, base: Path
) -> None:
    """Other files next to it do not belong to the claimer, nor does a directory without metadata
    (MISSION A11)."""
    job = storage.job_directory
    claimed = take(storage, 7, put(job, "chk-7/own", b"1"), put(job, "shared/7/b", b"3"))
    put(job, "chk-7/notes", b"mine")
    put(job, "shared/7/other", b"mine")
    storage.discard_claimed(claimed.external_path)
    left = ["chk-7", "chk-7/notes", "shared", "shared/7", "shared/7/other"]
    assert tree(base / JOB) == left
    storage.discard_claimed(claimed.external_path)
    assert tree(base / JOB) == left


@pytest.mark.parametrize("kind", [SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT])
def test_the_deletion_of_a_claimed_snapshot_continues_where_it_was_cut_short(
    base: Path, kind: SnapshotKind
) -> None:
    """Its metadata is renamed first and deleted last: what is left is known, and is not a snapshot
    meanwhile."""
    fs = FaultyDisk()
    storage = CheckpointStorage(lambda _: fs, str(base), JOB)
    directory = (
        storage.checkpoint_directory(7) if kind is SnapshotKind.CHECKPOINT else f"{base}/{JOB}/sp"
    )
    root = storage.job_directory if kind is SnapshotKind.CHECKPOINT else directory
    place = "shared/7" if kind is SnapshotKind.CHECKPOINT else "state"
    files = (put(root, f"{place}/a", b"1"), put(root, f"{place}/b", b"2"))
    storage.write_metadata(checkpoint(7, directory, kind=kind, files=files))
    kept = f"{root}/{place}/b"
    fs.fail("delete", path=lambda path: path.startswith(kept))
    with pytest.raises(StorageError, match="network is down"):
        storage.discard_claimed(directory)
    with pytest.raises(CheckpointNotFoundError):
        storage.read(directory)
    fs.mend()
    storage.discard_claimed(directory)
    assert tree(base / JOB) == (["shared"] if kind is SnapshotKind.CHECKPOINT else [])


def test_a_claimed_snapshot_reached_through_a_link_is_deleted_as_a_whole(
    storage: CheckpointStorage, base: Path, tmp_path: Path
) -> None:
    """The directory is deleted, not only the link to it; a link inside that leads elsewhere deletes
    nothing there."""
    directory = storage.make_savepoint_directory(f"{tmp_path}/s")
    storage.write_metadata(
        checkpoint(
            3, directory, kind=SnapshotKind.SAVEPOINT, files=(put(directory, "state/a", b"data"),)
        )
    )
    (tmp_path / "link").symlink_to(directory)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_bytes(b"mine")
    (Path(directory) / "state").rename(tmp_path / "state")
    (Path(directory) / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{directory}/state is a link that leads out of it"):
        storage.discard_claimed(f"{tmp_path}/link")
    assert (tmp_path / "elsewhere" / "a").exists()
    (Path(directory) / "state").unlink()
    (tmp_path / "state").rename(Path(directory) / "state")
    storage.discard_claimed(f"{tmp_path}/link")
    assert not Path(directory).exists()


def test_a_driver_that_slept_touches_no_checkpoint_of_a_newer_attempt(
    storage: CheckpointStorage, base: Path
) -> None:
    """It knows the ids from before its attempt; a newer attempt's are higher (P17)."""
    job = storage.job_directory
    retained = take(storage, 5, put(job, "shared/5/own", b"own"))
    newer = take(storage, 7, put(job, "shared/5/own", b"own"), put(job, "shared/7/new", b"new"))

    storage.discard_orphans([retained], up_to=6)

    storage.verify(retained)
    storage.verify(newer)
    assert (base / JOB / "chk-7" / "_metadata").exists()


def test_the_newest_id_is_known_before_one_is_taken(storage: CheckpointStorage) -> None:
    """Zero for a job that never took a checkpoint."""
    assert storage.newest_checkpoint_id() == 0
    assert storage.next_checkpoint_id() == 1
    assert storage.newest_checkpoint_id() == 1


def test_a_restored_savepoint_protects_no_shared_files(
    storage: CheckpointStorage, base: Path
) -> None:
    """A savepoint's paths are relative to its own directory, so they name none of the job's
    files."""
    handle = put(storage.job_directory, "shared/2/file", b"x")
    savepoint = replace(
        checkpoint(2, str(base / "savepoint"), files=(handle,)), kind=SnapshotKind.SYNC_SAVEPOINT
    )

    storage.discard_orphans([savepoint], up_to=99)

    assert not (base / JOB / "shared" / "2").exists()


@pytest.mark.parametrize(("private", "mode"), [(True, 0o700), (False, 0o755)])
def test_others_see_nothing_of_a_jobs_checkpoints_and_savepoints(
    tmp_path: Path, private: bool, mode: int
) -> None:
    """Only the owner can access their directories unless that is switched off; their parents stay
    as they are."""
    before = os.umask(0o022)
    try:
        storage = CheckpointStorage(
            fs=FileSystems(),
            base_directory=str(tmp_path / "chk"),
            job_id="a" * 32,
            private=private,
        )
        storage.make_job_directory()
        savepoint = storage.make_savepoint_directory(str(tmp_path / "saved"))
    finally:
        os.umask(before)
    assert Path(storage.job_directory).stat().st_mode & 0o777 == mode
    assert Path(savepoint).stat().st_mode & 0o777 == mode
    assert (
        (tmp_path / "chk").stat().st_mode & 0o777
        == (tmp_path / "saved").stat().st_mode & 0o777
        == 0o755
    )


def test_a_directory_that_its_owner_has_opened_stays_open(tmp_path: Path) -> None:
    """The mode is set on creation and never changed afterwards."""
    storage = CheckpointStorage(fs=FileSystems(), base_directory=str(tmp_path), job_id="a" * 32)
    storage.make_job_directory()
    Path(storage.job_directory).chmod(0o750)
    storage.make_job_directory()
    assert Path(storage.job_directory).stat().st_mode & 0o777 == 0o750


def test_only_the_jobs_own_checkpoints_may_be_referred_to_by_later_ones(
    storage: CheckpointStorage, base: Path
) -> None:
    """Not a savepoint, nor a checkpoint of another job, nor a copy at another place (P40)."""
    own = take(storage, 7)
    assert storage.owns(own)
    savepoint = storage.make_savepoint_directory(str(base))
    copy = CheckpointStorage(FileSystems(), f"{base}/copy", JOB)
    foreign = CheckpointStorage(FileSystems(), str(base), "f" * 32)
    for path in (savepoint, copy.checkpoint_directory(7), foreign.checkpoint_directory(7)):
        assert not storage.owns(replace(own, external_path=path))
