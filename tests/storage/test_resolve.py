"""Which file system serves each path."""

from __future__ import annotations

import pytest

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
        UnsupportedEnvironmentError, match=r"hdfs://nn/x can only be read through Spark"
    ):
        FileSystems()("hdfs://nn/x")


def test_a_relative_path_is_our_bug() -> None:
    """Paths are made absolute where they enter."""
    for path in ("data/x", "file:///data/x"):
        with pytest.raises(InvariantError, match="not an absolute path"):
            FileSystems()(path)
