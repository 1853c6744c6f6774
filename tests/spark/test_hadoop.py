"""The contract of ``weir.storage.filesystem``, with its create, on Hadoop's ``file:`` URIs.

Two creates that race are not tried here: that one of them loses is what HDFS promises, while
Hadoop's local file system looks first and then renames. Weir never uses that file system: plain
paths and ``file:`` go to ``LocalFileSystem``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kit.disk import small_disk

from weir.errors import StorageError, UnsupportedEnvironmentError
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.java import Jvm
from weir.storage.filesystem import BLOCK_BYTES, CreateResult, FileStatus
from weir.storage.numbered_log import NumberedLog

pytestmark = pytest.mark.spark


@pytest.fixture
def fs(spark: SparkSession, tmp_path: Path) -> HadoopFileSystem:
    """Hadoop's own local file system."""
    return HadoopFileSystem(spark, tmp_path.as_uri())


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A directory as a URI."""
    return tmp_path.as_uri()


def visible(directory: Path) -> list[str]:
    """Names of a directory's files without Hadoop's checksum files."""
    return sorted(path.name for path in directory.iterdir() if not path.name.endswith(".crc"))


def test_a_created_file_has_all_of_its_content(
    fs: HadoopFileSystem, base: str, tmp_path: Path
) -> None:
    """Also bytes that are not text; nothing else is left next to it."""
    assert fs.create(f"{base}/one", b"\x00\xff\xfe") is CreateResult.CREATED
    assert (tmp_path / "one").read_bytes() == b"\x00\xff\xfe"
    assert visible(tmp_path) == ["one"]


def test_a_name_that_is_taken_is_not_overwritten(
    fs: HadoopFileSystem, base: str, tmp_path: Path
) -> None:
    """Renaming without overwriting decides (P17); the loser leaves no file."""
    fs.create(f"{base}/one", b"first")
    assert fs.create(f"{base}/one", b"second") is CreateResult.ALREADY_EXISTS
    assert fs.read(f"{base}/one") == b"first"
    assert visible(tmp_path) == ["one"]


def test_write_creates_and_replaces(fs: HadoopFileSystem, base: str, tmp_path: Path) -> None:
    """A shorter text leaves nothing of the longer text."""
    fs.write(f"{base}/one", b"a longer content")
    fs.write(f"{base}/one", b"short")
    assert fs.read(f"{base}/one") == b"short"
    assert visible(tmp_path) == ["one"]


def test_an_empty_file_is_a_file(fs: HadoopFileSystem, base: str) -> None:
    """The checkpoint id counter consists of empty files."""
    assert fs.create(f"{base}/empty", b"") is CreateResult.CREATED
    assert fs.read(f"{base}/empty") == b""
    assert fs.status(f"{base}/empty") == FileStatus(name="empty", size=0, is_directory=False)


def test_the_end_of_a_file_is_read_without_the_rest(fs: HadoopFileSystem, base: str) -> None:
    """More than there is is the whole file."""
    fs.write(f"{base}/one", b"0123456789")
    assert (fs.read_end(f"{base}/one", 3), fs.read_end(f"{base}/one", 30)) == (
        b"789",
        b"0123456789",
    )
    with pytest.raises(FileNotFoundError):
        fs.read_end(f"{base}/none", 3)


def test_a_missing_file_is_distinguished_from_an_error(fs: HadoopFileSystem, base: str) -> None:
    """Reading raises what callers expect; status and listing find nothing."""
    with pytest.raises(FileNotFoundError):
        fs.read(f"{base}/none")
    assert fs.status(f"{base}/none") is None
    assert fs.list(f"{base}/none") == []


def test_status_and_list_tell_names_sizes_and_directories(fs: HadoopFileSystem, base: str) -> None:
    """Sorted by name, and only one level deep."""
    fs.make_directory(f"{base}/d/below")
    fs.write(f"{base}/d/b", b"12")
    fs.write(f"{base}/d/a", b"1")
    assert fs.list(f"{base}/d") == [
        FileStatus(name="a", size=1, is_directory=False),
        FileStatus(name="b", size=2, is_directory=False),
        FileStatus(name="below", size=0, is_directory=True),
    ]
    assert fs.status(f"{base}/d") == FileStatus(name="d", size=0, is_directory=True)


def test_making_a_directory_again_is_not_an_error(fs: HadoopFileSystem, base: str) -> None:
    """Its parents need not exist either."""
    fs.make_directory(f"{base}/a/b/c")
    fs.make_directory(f"{base}/a/b/c")
    assert fs.status(f"{base}/a/b/c") is not None


def test_a_directory_is_not_made_below_one_that_is_gone(fs: HadoopFileSystem, base: str) -> None:
    """As with an unmounted volume; below an existing directory it is made."""
    fs.make_directory(f"{base}/job")
    with pytest.raises(StorageError):
        fs.make_directory(f"{base}/gone/log", below=f"{base}/gone")
    assert fs.status(f"{base}/gone") is None
    fs.make_directory(f"{base}/job/log", below=f"{base}/job")
    assert fs.status(f"{base}/job/log") is not None


def test_delete_takes_files_and_whole_directories(fs: HadoopFileSystem, base: str) -> None:
    """A missing path is not an error."""
    fs.make_directory(f"{base}/a/b")
    fs.write(f"{base}/a/b/c", b"1")
    fs.write(f"{base}/one", b"1")
    for name in ("a", "one", "none"):
        fs.delete(f"{base}/{name}")
        assert fs.status(f"{base}/{name}") is None


def test_rename_moves_and_replaces_a_file(fs: HadoopFileSystem, base: str) -> None:
    """The target has the source's content, and the source is gone."""
    fs.write(f"{base}/a", b"new")
    fs.write(f"{base}/b", b"old")
    fs.rename(f"{base}/a", f"{base}/b")
    assert fs.read(f"{base}/b") == b"new"
    assert fs.status(f"{base}/a") is None


def test_rename_moves_a_directory(fs: HadoopFileSystem, base: str) -> None:
    """With everything below it."""
    fs.make_directory(f"{base}/a/b")
    fs.write(f"{base}/a/b/c", b"1")
    fs.rename(f"{base}/a", f"{base}/z")
    assert fs.read(f"{base}/z/b/c") == b"1"


def test_a_second_name_is_a_copy(fs: HadoopFileSystem, base: str) -> None:
    """There are no links; deleting one name leaves the other."""
    fs.write(f"{base}/a", b"state")
    assert fs.link_or_copy(f"{base}/a", f"{base}/b") is False
    fs.delete(f"{base}/a")
    assert fs.read(f"{base}/b") == b"state"


def test_copying_what_vanished_is_a_storage_error(fs: HadoopFileSystem, base: str) -> None:
    """The snapshot fails (P4), with the path in the message."""
    with pytest.raises(StorageError, match="none"):
        fs.link_or_copy(f"{base}/none", f"{base}/b")
    with pytest.raises(StorageError, match="none has vanished"):
        fs.checksum(f"{base}/none")


def test_a_file_is_read_and_written_in_blocks(fs: HadoopFileSystem, base: str) -> None:
    """So that a file of any size can be copied to another file system."""
    content = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"end"
    fs.write_blocks(f"{base}/one", (content[:5], content[5:]))
    blocks = list(fs.blocks(f"{base}/one"))
    assert [len(block) for block in blocks] == [BLOCK_BYTES, BLOCK_BYTES, 3]
    assert b"".join(blocks) == content
    assert fs.checksum(f"{base}/one") == (len(content), f"crc32:{zlib.crc32(content):08x}")
    with pytest.raises(FileNotFoundError):
        next(fs.blocks(f"{base}/none"))


def test_size_and_checksum_are_those_of_the_content(fs: HadoopFileSystem, base: str) -> None:
    """In the same format as the local file system's."""
    data = bytes(range(256)) * 300
    fs.write(f"{base}/a", data)
    assert fs.checksum(f"{base}/a") == (len(data), f"crc32:{zlib.crc32(data):08x}")
    fs.sync([f"{base}/a"])


def test_a_log_whose_numbers_are_taken_by_create_works_on_it(
    fs: HadoopFileSystem, base: str
) -> None:
    """The job log needs only create, list and read; its directory need not exist."""
    log, other = NumberedLog(fs, f"{base}/log"), NumberedLog(fs, f"{base}/log")
    assert log.append(1, b"one") is CreateResult.CREATED
    assert other.append(1, b"two") is CreateResult.ALREADY_EXISTS
    assert other.append(2, b"two") is CreateResult.CREATED
    newest = log.newest()
    assert newest is not None
    assert (newest.number, newest.data) == (2, b"two")


@pytest.mark.parametrize("uri", ["ftp://host/x", "abfs://c@a/x", "gs://bucket/x", "wasb://c@a/x"])
def test_a_scheme_without_a_conditional_create_is_refused(spark: SparkSession, uri: str) -> None:
    """Two drivers could take the same number; the error names what to use instead."""
    with pytest.raises(UnsupportedEnvironmentError, match="local path, hdfs: or s3a:"):
        HadoopFileSystem(spark, uri)


def test_a_file_system_that_cannot_be_made_is_a_storage_error(spark: SparkSession) -> None:
    """For example S3 without Hadoop's AWS package: the error points at the settings."""
    with pytest.raises(StorageError, match=r"Could not reach s3a://bucket/x: .*spark\.hadoop"):
        HadoopFileSystem(spark, "s3a://bucket/x")


def test_an_error_of_the_file_system_names_path_and_cause(fs: HadoopFileSystem, base: str) -> None:
    """For example a parent that is a file."""
    fs.write(f"{base}/file", b"1")
    with pytest.raises(StorageError, match=r"Could not write .*/file/below: .*Exception"):
        fs.write(f"{base}/file/below", b"2")


# -- writes that fail ------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """An in-memory file system of one megabyte; mounting it needs root."""
    with small_disk(tmp_path / "small", "1m") as disk:
        yield disk.directory


@pytest.mark.parametrize("operation", ["create", "write", "copy"])
def test_a_write_that_fails_leaves_no_part_of_a_file_under_any_name(
    fs: HadoopFileSystem, base: str, small: Path, operation: str
) -> None:
    """The disk is full: neither the name nor a temporary file is left, and earlier files are
    whole."""
    data = bytes(2 << 20)
    fs.write(f"{base}/large", data)
    target = f"{small.as_uri()}/one"
    if operation != "create":
        fs.write(target, b"before")
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: fs.create(target, data),
        "write": lambda: fs.write(target, data),
        "copy": lambda: fs.link_or_copy(f"{base}/large", target),
    }
    with pytest.raises(StorageError, match=r"(create|write|copy) .*No space left on device"):
        calls[operation]()
    assert visible(small) == ([] if operation == "create" else ["one"])
    if operation != "create":
        assert fs.read(target) == b"before"
    assert fs.create(f"{small.as_uri()}/two", b"small") is CreateResult.CREATED


def test_streams_of_hadoop_have_an_abort(spark: SparkSession) -> None:
    """It abandons a write to an object store; a stream that cannot abort reports it and is not
    closed."""
    jvm = Jvm(spark)
    pipe = jvm.java_class("java.io.PipedOutputStream")()
    stream = jvm.java_class("org.apache.hadoop.fs.FSDataOutputStream")(pipe, None)
    with pytest.raises(Exception, match=r"Abortable\.abort\(\) is not supported"):
        stream.abort()
