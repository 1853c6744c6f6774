"""Which file system serves each path."""

from __future__ import annotations

import re
import sys

import pytest
from tests.kit.object_store import ObjectStore

from weir.errors import InvariantError, UnsupportedEnvironmentError
from weir.storage.file_systems import FileSystems
from weir.storage.local import LocalFileSystem


def test_plain_paths_are_local() -> None:
    """No Spark is needed for them."""
    assert isinstance(FileSystems()("/data"), LocalFileSystem)


def test_other_schemes_go_to_hadoop() -> None:
    """The whole path is passed on."""
    asked: list[str] = []
    other = LocalFileSystem()

    def hadoop(path: str) -> LocalFileSystem:
        asked.append(path)
        return other

    assert FileSystems(hadoop)("s3a://bucket/x") is other
    assert asked == ["s3a://bucket/x"]


def test_without_hadoop_another_scheme_is_refused_in_a_sentence() -> None:
    """It names the path and what to do."""
    with pytest.raises(
        UnsupportedEnvironmentError, match=r"abfs://bucket/x can only be read through Spark"
    ):
        FileSystems()("abfs://bucket/x")


def test_s3a_is_reached_as_s3_where_there_is_no_spark(object_store: ObjectStore) -> None:
    """The same objects; with Spark its own client serves, since it knows the settings."""
    bucket = object_store.bucket()
    far = bucket.replace("s3:", "s3a:")
    FileSystems()(bucket).write(f"{bucket}/a/x", b"data")
    assert FileSystems()(far).read(f"{far}/a/x") == b"data"
    assert [entry.name for entry in FileSystems()(far).list(f"{far}/a")] == ["x"]


def test_hdfs_without_its_library_is_sparks_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line with the way out; where there is no Spark, it is the error."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.delitem(sys.modules, "weir.storage.hdfs", raising=False)
    way_out = r"needs hdfs-native, which is not installed .*pip install 'weir-spark\[hdfs\]'"
    with pytest.raises(UnsupportedEnvironmentError, match=way_out):
        FileSystems()("hdfs://nn/x")
    other = LocalFileSystem()
    found = FileSystems(lambda path: other)
    assert [found("hdfs://nn/x"), found("hdfs://nn/y")] == [other, other]
    [line] = caplog.messages
    assert re.match(f"Spark's client is used for hdfs://nn: hdfs://nn/x {way_out}", line)


def test_a_relative_path_is_our_bug() -> None:
    """Paths are made absolute where they enter."""
    for path in ("data/x", "file:///data/x"):
        with pytest.raises(InvariantError, match="not an absolute path"):
            FileSystems()(path)
