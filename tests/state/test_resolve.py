"""Paths: one spelling, and the file system that belongs to each."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir.errors import InvariantError, UnsupportedEnvironmentError
from weir.state.local import LocalFileSystem
from weir.state.resolve import FileSystems, normalize


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("/data/x", "/data/x"),
        ("/data/x/", "/data/x"),
        ("/data/./y/../x", "/data/x"),
        ("/", "/"),
        ("//data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("file:/data/x/", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("hdfs://nn:8020/data/x/", "hdfs://nn:8020/data/x"),
        ("hdfs://nn/", "hdfs://nn/"),
        ("s3a://bucket/a/../b", "s3a://bucket/a/../b"),
        ("hdfs:/data/x", "hdfs:/data/x"),
    ],
)
def test_each_path_has_one_spelling(written: str, kept: str) -> None:
    """Local paths are absolute and plain; other URIs stay but for a slash at the end."""
    assert normalize(written) == kept
    assert normalize(kept) == kept


def test_relative_paths_are_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a colon in a name, which alone makes no URI."""
    monkeypatch.chdir(tmp_path)
    assert normalize(".weir/checkpoints") == f"{tmp_path}/.weir/checkpoints"
    assert normalize("a:b") == f"{tmp_path}/a:b"


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell."""
    monkeypatch.setenv("HOME", "/home/me")
    assert normalize("~/savepoints") == "/home/me/savepoints"


def test_plain_paths_and_file_uris_are_local() -> None:
    """No Spark is needed for them."""
    systems = FileSystems(None)
    assert isinstance(systems("/data"), LocalFileSystem)
    assert systems("file:///data") is systems("/data")


def test_other_schemes_go_to_hadoop() -> None:
    """The whole path is handed on."""
    asked: list[str] = []
    other = LocalFileSystem()

    def hadoop(path: str) -> LocalFileSystem:
        asked.append(path)
        return other

    assert FileSystems(hadoop)("s3a://bucket/x") is other
    assert asked == ["s3a://bucket/x"]


def test_without_hadoop_another_scheme_is_refused_in_a_sentence() -> None:
    """The sentence names the path and what to do."""
    with pytest.raises(UnsupportedEnvironmentError, match=r"hdfs://nn/x can only be read through Spark"):
        FileSystems(None)("hdfs://nn/x")


def test_a_relative_path_is_our_bug() -> None:
    """Paths are made absolute where they enter."""
    with pytest.raises(InvariantError, match="not an absolute path"):
        FileSystems(None)("data/x")
