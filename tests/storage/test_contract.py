"""What every file system must do: the local one, and an object store (emulated by moto)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kit.object_store import ObjectStore

from weir.errors import StorageError
from weir.storage.file_systems import FileSystems, Transfer
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileStatus, FileSystem
from weir.storage.numbered_log import NumberedLog


@dataclass(frozen=True)
class Files:
    """A file system and a directory in it."""

    fs: FileSystem
    base: str

    def names(self) -> list[str]:
        return [status.name for status in self.fs.list(self.base)]


@pytest.fixture(params=["local", "object store"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """An existing, empty directory of each file system."""
    base = str(tmp_path)
    if request.param != "local":
        store: ObjectStore = request.getfixturevalue("object_store")
        base = f"{store.bucket()}/some/where"
    fs = FileSystems()(base)
    fs.make_directory(base)
    return Files(fs, base)


def test_create_makes_the_file_with_all_of_its_content(files: Files) -> None:
    """The file contains exactly the data, and nothing else is left in its directory."""
    assert files.fs.create(f"{files.base}/a", b"\0\xff\xfe") is CreateResult.CREATED
    assert files.fs.read(f"{files.base}/a") == b"\0\xff\xfe"
    assert files.names() == ["a"]


@pytest.mark.parametrize("data", [b"second", b"first", b""])
def test_create_says_that_a_name_is_taken_and_leaves_the_file_alone(
    files: Files, data: bytes
) -> None:
    """A second create of the same name changes nothing, even with the same content."""
    first = data and b"first"
    files.fs.create(f"{files.base}/a", first)
    assert files.fs.create(f"{files.base}/a", data) is CreateResult.ALREADY_EXISTS
    assert files.fs.read(f"{files.base}/a") == first
    assert files.names() == ["a"]


def test_write_replaces_the_whole_content(files: Files) -> None:
    """A shorter text leaves nothing of the longer text."""
    files.fs.write(f"{files.base}/a", b"a longer text")
    files.fs.write(f"{files.base}/a", b"short")
    assert files.fs.read(f"{files.base}/a") == b"short"


def test_the_end_of_a_file_is_read_without_the_rest(files: Files) -> None:
    """More than there is is the whole file."""
    path = f"{files.base}/one"
    files.fs.write(path, b"0123456789")
    assert (files.fs.read_end(path, 3), files.fs.read_end(path, 30)) == (b"789", b"0123456789")
    files.fs.write(path, b"")
    assert files.fs.read_end(path, 3) == b""
    with pytest.raises(FileNotFoundError):
        files.fs.read_end(f"{files.base}/none", 3)


def test_reading_what_is_missing_is_a_file_not_found_error(files: Files) -> None:
    """The one system error that callers expect; where they do not, it is a StorageError."""
    with pytest.raises(FileNotFoundError):
        files.fs.read(f"{files.base}/nothing")
    with pytest.raises(FileNotFoundError):
        list(files.fs.blocks(f"{files.base}/nothing"))
    with pytest.raises(StorageError, match=f"{files.base}/nothing"):
        files.fs.checksum(f"{files.base}/nothing")
    with pytest.raises(StorageError, match=f"{files.base}/nothing"):
        files.fs.link_or_copy(f"{files.base}/nothing", f"{files.base}/x")
    with pytest.raises(StorageError, match=f"{files.base}/nothing"):
        files.fs.rename(f"{files.base}/nothing", f"{files.base}/x")
    assert files.names() == []


def test_status_distinguishes_files_directories_and_nothing(files: Files) -> None:
    """Size for a file, 0 for a directory, None for nothing."""
    files.fs.write(f"{files.base}/a", b"12345")
    files.fs.make_directory(f"{files.base}/empty")
    assert files.fs.status(f"{files.base}/a") == FileStatus(name="a", size=5, is_directory=False)
    for directory in (files.base, f"{files.base}/empty"):
        found = files.fs.status(directory)
        assert found is not None
        assert (found.size, found.is_directory) == (0, True)
    assert files.fs.status(f"{files.base}/b") is None
    assert files.fs.status(f"{files.base}/a/b") is None


def test_list_is_sorted_one_level_deep_and_empty_for_what_is_missing(files: Files) -> None:
    """Also with names that begin like another file's, or need escapes in a URL."""
    names = ["a b%20c", "aa", "ä~#?+&=", "[1]"]
    for name in names:
        files.fs.write(f"{files.base}/{name}", b"1")
    files.fs.make_directory(f"{files.base}/a/below")
    assert files.names() == sorted([*names, "a"])
    for name in names:
        assert files.fs.read(f"{files.base}/{name}") == b"1"
    assert files.fs.list(f"{files.base}/a") == [FileStatus(name="below", size=0, is_directory=True)]
    assert files.fs.list(f"{files.base}/nothing") == []


def test_a_directory_is_not_made_below_one_that_is_gone(files: Files) -> None:
    """A log would start over without its entries; below an existing directory it is made."""
    with pytest.raises(StorageError, match=f"{files.base}/gone"):
        files.fs.make_directory(f"{files.base}/gone/log", below=f"{files.base}/gone")
    assert files.fs.status(f"{files.base}/gone") is None
    files.fs.make_private_directory(f"{files.base}/job")
    files.fs.make_directory(f"{files.base}/job/log", below=f"{files.base}/job")
    files.fs.write(f"{files.base}/job/log/1", b"")
    files.fs.make_directory(f"{files.base}/job/log/x", below=f"{files.base}/job/log")


def test_delete_takes_files_and_whole_directories_and_nothing(files: Files) -> None:
    """A missing path is not an error, and a name that begins the same way is another file's."""
    files.fs.make_directory(f"{files.base}/a/b")
    files.fs.write(f"{files.base}/a/b/c", b"")
    files.fs.write(f"{files.base}/a/b/d", b"")
    files.fs.write(f"{files.base}/ab", b"")
    files.fs.delete(f"{files.base}/a/b/c")
    assert [status.name for status in files.fs.list(f"{files.base}/a/b")] == ["d"]
    files.fs.delete(f"{files.base}/a")
    files.fs.delete(f"{files.base}/a")
    assert files.fs.status(f"{files.base}/a") is None
    assert files.names() == ["ab"]


def test_rename_replaces_a_file(files: Files) -> None:
    """The target has the source's content, and the source is gone."""
    files.fs.write(f"{files.base}/a", b"new")
    files.fs.write(f"{files.base}/b", b"old")
    files.fs.rename(f"{files.base}/a", f"{files.base}/b")
    assert files.fs.read(f"{files.base}/b") == b"new"
    assert files.names() == ["b"]


def test_link_or_copy_leaves_a_target_of_the_same_size_and_replaces_any_other(
    files: Files,
) -> None:
    """A file that a crash cut short is replaced; a complete file is not copied again."""
    for name, data in {"a": b"data", "same": b"DATA", "short": b"da"}.items():
        files.fs.write(f"{files.base}/{name}", data)
    assert files.fs.link_or_copy(f"{files.base}/a", f"{files.base}/same") is False
    assert files.fs.read(f"{files.base}/same") == b"DATA"
    files.fs.link_or_copy(f"{files.base}/a", f"{files.base}/short")
    files.fs.delete(f"{files.base}/a")
    assert files.fs.read(f"{files.base}/short") == b"data"


def test_a_file_is_read_and_written_in_blocks_and_its_checksum_is_that_of_all(
    files: Files,
) -> None:
    """Also a file of several parts, and an empty file."""
    path = f"{files.base}/a"
    data = os.urandom(1000) * (20 * BLOCK_BYTES // 1000)
    files.fs.write_blocks(path, (data[:5], data[5:-5], data[-5:]))
    blocks = list(files.fs.blocks(path))
    assert max(map(len, blocks)) <= BLOCK_BYTES
    assert b"".join(blocks) == data
    assert files.fs.checksum(path) == (len(data), f"crc32:{zlib.crc32(data):08x}")
    files.fs.write_blocks(path, iter(()))
    assert files.fs.checksum(path) == (0, "crc32:00000000")
    files.fs.sync([path])


@pytest.mark.parametrize("blocks", [1, 12])
def test_blocks_that_cannot_be_read_leave_no_file(files: Files, blocks: int) -> None:
    """And the error is the reader's own."""

    def failing() -> Iterator[bytes]:
        for _ in range(blocks):
            yield bytes(BLOCK_BYTES)
        raise StorageError("the source is gone")

    with pytest.raises(StorageError, match="the source is gone"):
        files.fs.write_blocks(f"{files.base}/a", failing())
    assert files.names() == []


def test_a_log_takes_each_number_once(files: Files) -> None:
    """Two writers of one log: the second one is refused, and goes on with the next number."""
    files.fs.make_directory(f"{files.base}/job")
    log, other = (NumberedLog(files.fs, f"{files.base}/job/log") for _ in range(2))
    assert log.append(1, b"") is CreateResult.CREATED
    assert other.append(1, b"") is CreateResult.ALREADY_EXISTS
    assert [other.append(number, b"") for number in (2, 3, 4)] == [CreateResult.CREATED] * 3
    other.prune(2)
    assert log.append(2, b"") is CreateResult.ALREADY_EXISTS
    assert log.newest_number() == 4


def test_files_move_between_file_systems_with_size_and_checksum(
    files: Files, tmp_path: Path
) -> None:
    """There and back again; on one file system nothing passes through this process."""
    transfer = Transfer(FileSystems())
    sent, back = tmp_path / "sent", tmp_path / "back"
    for directory in (sent, back):
        directory.mkdir()
    contents = {str(number): os.urandom(number * 1000) for number in range(20)}
    for name, data in contents.items():
        (sent / name).write_bytes(data)
    checksums = [
        (len(data), f"crc32:{zlib.crc32(data):08x}") if files.base != str(tmp_path) else None
        for data in contents.values()
    ]
    there = [(f"{sent}/{name}", f"{files.base}/{name}") for name in contents]
    again = [(f"{files.base}/{name}", f"{back}/{name}") for name in contents]
    assert transfer.link_or_copy_all(there) == checksums
    assert transfer.link_or_copy_all(again) == checksums
    assert {path.name: path.read_bytes() for path in back.iterdir()} == contents
    assert transfer.link_or_copy_all([]) == []
