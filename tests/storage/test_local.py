"""The local file system: durability, links and errors. ``test_contract.py`` has the rest."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kit.disk import LostSyncs, broken_call, synced_paths
from tests.kit.waiting import wait_until

from weir.errors import LostWriteError, StorageError, UnsupportedEnvironmentError
from weir.storage.filesystem import CreateResult
from weir.storage.local import LocalFileSystem


@pytest.fixture
def fs() -> LocalFileSystem:
    return LocalFileSystem()


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_new_file_and_its_directory_are_synced(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The content first, then the directory entry (PROTOCOL P23)."""
    synced = synced_paths(monkeypatch)
    getattr(fs, operation)(f"{tmp_path}/a", b"data")
    assert len(synced) == 2
    assert synced[0].endswith(".tmp")
    assert synced[1] == str(tmp_path)


def test_the_content_is_synced_before_the_name_appears(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sync fails, neither the file nor a temporary file exists."""
    monkeypatch.setattr(os, "fsync", broken_call(errno.EIO))
    with pytest.raises(StorageError, match="check the disk"):
        fs.create(f"{tmp_path}/a", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        *[(operation, "file") for operation in ("create", "write", "sync")],
        *[(operation, "directory") for operation in ("create", "write", "rename", "sync")],
    ],
)
def test_a_failed_sync_is_distinguished_from_every_other_error(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, what: str
) -> None:
    """A retry would succeed without the data, so no caller may retry and trust it (PROTOCOL
    P23)."""
    fs.write(f"{tmp_path}/there", b"data")
    LostSyncs(monkeypatch, lambda path: (path == str(tmp_path)) is (what == "directory"))
    calls = {
        "create": lambda: fs.create(f"{tmp_path}/a", b"data"),
        "write": lambda: fs.write(f"{tmp_path}/a", b"data"),
        "rename": lambda: fs.rename(f"{tmp_path}/there", f"{tmp_path}/a"),
        "sync": lambda: fs.sync([f"{tmp_path}/there"]),
    }
    with pytest.raises(
        LostWriteError, match=r"check the disk\. It could not be synced.*may be lost"
    ):
        calls[operation]()


def test_a_directory_whose_name_could_not_be_synced_is_made_again(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that found it would not sync it, and files created in it later could be lost
    (PROTOCOL P23)."""
    syncs = LostSyncs(monkeypatch, lambda path: path == f"{tmp_path}/a")
    with pytest.raises(LostWriteError, match=f"Cannot create the directory {tmp_path}/a/b"):
        fs.make_directory(f"{tmp_path}/a/b")
    assert not (tmp_path / "a/b").exists()
    fs.make_directory(f"{tmp_path}/a/b")
    assert syncs.synced == [str(tmp_path), f"{tmp_path}/a"]


def test_create_is_refused_where_there_are_no_links(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links there is no conditional create (PROTOCOL P17)."""
    monkeypatch.setattr(os, "link", broken_call(errno.EPERM))
    with pytest.raises(UnsupportedEnvironmentError, match="has no hard links"):
        fs.create(f"{tmp_path}/a", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_of_a_killed_process_is_in_nobodys_way(tmp_path: Path) -> None:
    """An existing temporary name is skipped."""
    (tmp_path / f".weir.{os.getpid()}.1.tmp").write_bytes(b"left over")
    assert LocalFileSystem().create(f"{tmp_path}/a", b"data") is CreateResult.CREATED
    assert (tmp_path / f".weir.{os.getpid()}.1.tmp").read_bytes() == b"left over"


def test_a_write_that_fails_leaves_the_old_content(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk is full, the old file stays and no temporary file does."""
    fs.write(f"{tmp_path}/a", b"old")
    monkeypatch.setattr(os, "fsync", broken_call(errno.ENOSPC))
    with pytest.raises(StorageError, match="no space left"):
        fs.write(f"{tmp_path}/a", b"new")
    assert fs.read(f"{tmp_path}/a") == b"old"
    assert len(fs.list(str(tmp_path))) == 1


def test_files_are_readable_by_others_as_the_umask_allows(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """Another user can read a savepoint, unlike an ordinary temporary file."""
    mask = os.umask(0o022)
    try:
        fs.create(f"{tmp_path}/a", b"")
    finally:
        os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "permission denied; grant this user access"),
        (errno.ENOSPC, "no space left on the device; free some"),
        (errno.EROFS, "the file system is read-only; choose a writable directory"),
        (errno.ESTALE, "check that its disk is mounted"),
    ],
)
def test_a_disk_error_names_the_path_and_the_way_out(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """Every system error becomes one sentence for users."""
    monkeypatch.setattr(os, "open", broken_call(code))
    with pytest.raises(StorageError, match=f"{tmp_path}/a: .*{words}"):
        fs.write(f"{tmp_path}/a", b"data")


def test_every_operation_turns_errors_into_storage_errors(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """A file in place of a directory is an error everywhere, always a StorageError."""
    (tmp_path / "file").write_bytes(b"")
    below = f"{tmp_path}/file/below"
    for call in (
        lambda: fs.create(below, b""),
        lambda: fs.write(below, b""),
        lambda: fs.read(below),
        lambda: fs.list(f"{tmp_path}/file"),
        lambda: fs.make_directory(below),
        lambda: fs.rename(below, f"{tmp_path}/x"),
        lambda: fs.link_or_copy(f"{tmp_path}/nothing", f"{tmp_path}/x"),
        lambda: fs.checksum(f"{tmp_path}/nothing"),
        lambda: fs.sync([f"{tmp_path}/nothing"]),
    ):
        with pytest.raises(StorageError, match=str(tmp_path)):
            call()


def test_each_new_directory_is_synced_into_its_parent(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash could otherwise lose the path to a durable file (PROTOCOL P23)."""
    synced = synced_paths(monkeypatch)
    fs.make_directory(f"{tmp_path}/a/b")
    assert synced == [str(tmp_path), f"{tmp_path}/a"]
    fs.make_directory(f"{tmp_path}/a/b")
    assert len(synced) == 2


def test_delete_removes_a_link_and_not_what_it_points_to(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """A symbolic link to a directory is not followed."""
    fs.make_directory(f"{tmp_path}/a")
    fs.write(f"{tmp_path}/a/kept", b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    fs.delete(f"{tmp_path}/link")
    assert [status.name for status in fs.list(str(tmp_path))] == ["a"]
    assert (tmp_path / "a" / "kept").exists()


def test_a_directory_is_deleted_although_others_write_into_it_for_a_moment_longer(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """Tasks of Spark that were killed do, and make the directories that they need again."""
    directory = tmp_path / "work"
    writing, written = threading.Event(), threading.Event()

    def write() -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with suppress(OSError):
                (directory / "state").mkdir(parents=True, exist_ok=True)
                (directory / "state" / str(time.monotonic_ns())).touch()
            writing.set()
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    writing.wait()
    while not written.is_set():
        fs.delete(str(directory))
    writer.join()
    fs.delete(str(directory))
    assert not directory.exists()


def test_a_directory_that_never_gets_empty_is_one_sentence(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is not to blame."""
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(os, "rmdir", broken_call(errno.ENOTEMPTY))
    with pytest.raises(StorageError, match="work: others keep writing into it; delete it once"):
        fs.delete(f"{tmp_path}/work")


def test_rename_replaces_a_file_and_moves_a_directory(fs: LocalFileSystem, tmp_path: Path) -> None:
    """A target file is replaced."""
    fs.write(f"{tmp_path}/a", b"new")
    fs.write(f"{tmp_path}/b", b"old")
    fs.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert fs.read(f"{tmp_path}/b") == b"new"
    fs.make_directory(f"{tmp_path}/c")
    fs.rename(f"{tmp_path}/c", f"{tmp_path}/d")
    assert [status.name for status in fs.list(str(tmp_path))] == ["b", "d"]


def test_link_or_copy_links_on_one_file_system(fs: LocalFileSystem, tmp_path: Path) -> None:
    """The second name is the same file."""
    fs.write(f"{tmp_path}/a", b"data")
    assert fs.link_or_copy(f"{tmp_path}/a", f"{tmp_path}/b") is True
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert fs.link_or_copy(f"{tmp_path}/a", f"{tmp_path}/b") is True


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_link_or_copy_copies_where_it_cannot_link(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Another device, a file system without links, too many links: the content is copied."""
    fs.write(f"{tmp_path}/a", b"data")
    monkeypatch.setattr(os, "link", broken_call(code))
    assert fs.link_or_copy(f"{tmp_path}/a", f"{tmp_path}/b") is False
    assert fs.read(f"{tmp_path}/b") == b"data"
    assert [status.name for status in fs.list(str(tmp_path))] == ["a", "b"]


def test_sync_syncs_each_file_and_each_directory_once(
    fs: LocalFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files in one directory and one in another: three files and two directories
    (PROTOCOL P23)."""
    fs.make_directory(f"{tmp_path}/d")
    files = [f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/d/c"]
    for path in files:
        fs.write(path, b"")
    synced = synced_paths(monkeypatch)
    fs.sync(files)
    assert synced == [*files, str(tmp_path), f"{tmp_path}/d"]


def test_a_name_may_be_as_long_as_the_file_system_allows(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """The temporary file next to it has a short name."""
    path = f"{tmp_path}/{'n' * 255}"
    fs.write(path, b"data")
    assert fs.read(path) == b"data"
    fs.delete(path)
    assert fs.create(path, b"data") is CreateResult.CREATED


def test_names_that_are_too_long_and_circular_links_are_one_sentence(
    fs: LocalFileSystem, tmp_path: Path
) -> None:
    """The disk is not to blame."""
    with pytest.raises(StorageError, match="too long for the file system; choose a shorter one"):
        fs.write(f"{tmp_path}/{'n' * 256}", b"data")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageError, match="symbolic links form a loop"):
        fs.list(f"{tmp_path}/a")


@pytest.mark.kill
def test_a_kill_in_mid_create_leaves_nothing_or_a_whole_file(tmp_path: Path) -> None:
    """Whenever the process is killed, each existing name has all of its content (PROTOCOL P17)."""
    program = textwrap.dedent(
        """
        import itertools, sys
        from weir.storage.local import LocalFileSystem

        fs = LocalFileSystem()
        print("ready", flush=True)
        for number in itertools.count():
            fs.create(f"{sys.argv[1]}/{number:06d}", bytes([number % 251]) * 3_000_000)
        """
    )
    created = 0
    for turn in range(6):
        directory = tmp_path / str(turn)
        directory.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            wait_until(lambda at=directory: [*at.glob("[0-9]*")], "it has created a file")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.037 * turn)
            process.send_signal(signal.SIGKILL)
        for path in directory.glob("[0-9]*"):
            assert path.read_bytes() == bytes([int(path.name) % 251]) * 3_000_000
            created += 1
    assert created >= 6
