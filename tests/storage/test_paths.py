"""Paths: one spelling for each, which are invalid, and when two are the same place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import StorageError
from weir.storage.paths import (
    as_delta_path,
    as_spark_path,
    is_local,
    is_same,
    is_within,
    join,
    name_of,
    normalize,
    parent,
    real,
    root_of,
    scheme_of,
    temporary_directory,
)


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
        ("FILE:/data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("file:///", "/"),
        ("file://", "/"),
        ("file:/~/x", "/~/x"),
        ("/data/a b%20#c?[d]*{e}\n", "/data/a b%20#c?[d]*{e}\n"),
        ("file:///data/a b%20#c?[d]*{e}\n", "/data/a b%20#c?[d]*{e}\n"),
        ("hdfs://nn:8020/data/x/", "hdfs://nn:8020/data/x"),
        ("HDFS://nn/x", "hdfs://nn/x"),
        ("hdfs://nn/", "hdfs://nn/"),
        ("hdfs://nn", "hdfs://nn/"),
        ("hdfs:/data/x", "hdfs:///data/x"),
        ("hdfs:///data//x", "hdfs:///data/x"),
        ("s3a://bucket/a/../b", "s3a://bucket/b"),
        ("s3a://bucket/a b#c", "s3a://bucket/a b#c"),
    ],
)
def test_each_path_has_one_spelling(written: str, kept: str) -> None:
    """Local paths are absolute and plain, others are URIs; a kept spelling does not change
    again."""
    assert normalize(written) == kept
    assert normalize(kept) == kept


_SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>io.file.buffer.size</name><value>131072</value></property>
  <property><name>{key}</name><value>{value}</value></property>
</configuration>"""


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        (("fs.defaultFS", "hdfs://nn:8020"), "hdfs://nn:8020/x"),
        (("fs.defaultFS", " HDFS://nameservice1/ "), "hdfs://nameservice1/x"),
        (("fs.default.name", "hdfs://nn:8020/user/me"), "hdfs://nn:8020/x"),
        (("fs.defaultFS", "viewfs://cluster"), "hdfs:///x"),
        (("fs.defaultFS", "file:///"), "hdfs:///x"),
        (("fs.defaultFS", "hdfs://${name.node}:8020"), "hdfs:///x"),
        (("fs.trash.interval", "hdfs://nn"), "hdfs:///x"),
    ],
)
@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_a_path_without_a_name_node_is_on_the_default_one(
    entry: tuple[str, str],
    kept: str,
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Hadoop's configuration names one of its scheme in so many words."""
    (tmp_path / "core-site.xml").write_text(_SITE.format(key=entry[0], value=entry[1]))
    monkeypatch.setenv(variable, str(tmp_path))
    assert {normalize(path) for path in ("hdfs:/x", "hdfs:///x", "hdfs:///y/../x/", kept)} == {kept}
    assert normalize("hdfs://other/x") == "hdfs://other/x"
    assert normalize("/x") == "/x"


@pytest.mark.parametrize("text", [None, "", "<configuration>"])
def test_a_configuration_that_cannot_be_read_names_no_name_node(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop reports it itself."""
    if text is not None:
        (tmp_path / "core-site.xml").write_text(text)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert normalize("hdfs:///x") == "hdfs:///x"


def test_relative_paths_are_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with a colon in a name, which alone does not make a URI."""
    monkeypatch.chdir(tmp_path)
    assert normalize(".weir/checkpoints") == f"{tmp_path}/.weir/checkpoints"
    assert normalize("a:b") == f"{tmp_path}/a:b"
    assert normalize("./~/x") == f"{tmp_path}/~/x"


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell."""
    monkeypatch.setenv("HOME", "/home/me")
    assert normalize("~/savepoints") == "/home/me/savepoints"
    assert normalize("~") == "/home/me"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is empty"),
        ("a\0b", "not UTF-8 text"),
        ("/data/\udcff", "not UTF-8 text"),
        ("hdfs://nn/\udcff", "not UTF-8 text"),
        (
            "~nobody-has-this-name/x",
            r"starts with a home directory that does not exist.*or \./~nobody",
        ),
        ("file:x", "a URI without a path: use file:///"),
        ("file://host/x", "names a file on host 'host'"),
        ("s3a:/bucket/x", "has no bucket: use s3a://BUCKET/PATH"),
        ("s3a:///x", "has no bucket"),
        ("az:/x", "has no bucket: use az://BUCKET/PATH"),
    ],
)
def test_what_cannot_be_a_path_is_refused_in_a_sentence(path: str, words: str) -> None:
    """When it enters Weir, not in whatever it is later passed to."""
    with pytest.raises(StorageError, match=words) as caught:
        normalize(path)
    assert "\n" not in str(caught.value)


def test_a_relative_path_below_a_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or below a directory whose name is not UTF-8: nothing that Weir writes could name it."""
    for name in ("gone", os.fsdecode(b"caf\xe9")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        if name == "gone":
            (tmp_path / name).rmdir()
        with pytest.raises(StorageError, match=r"directory is gone|not UTF-8"):
            normalize("x")


@given(st.text(st.characters(codec=None, exclude_characters="\0"), max_size=20))
def test_any_text_has_a_kept_spelling_or_is_refused(text: str) -> None:
    """Whatever it consists of; a kept spelling is final."""
    for path in (
        text,
        f"/{text}",
        f"file:{text}",
        f"file:/{text}",
        f"hdfs:{text}",
        f"s3a://{text}",
        f"~{text}",
    ):
        try:
            kept = normalize(path)
        except StorageError:
            continue
        assert normalize(kept) == kept
        assert is_local(kept) == (scheme_of(kept) is None)
        assert normalize(join(kept, "x")) == join(kept, "x")
        assert (parent(join(kept, "x", "y")), name_of(join(kept, "x"))) == (join(kept, "x"), "x")


def test_names_are_joined_to_every_root() -> None:
    """Including those that end with a slash."""
    assert [join(base, "a", "b") for base in ("/", "/x", "hdfs:///", "hdfs://nn/")] == [
        "/a/b",
        "/x/a/b",
        "hdfs:///a/b",
        "hdfs://nn/a/b",
    ]
    assert (parent("/x"), parent("/x/y"), parent("hdfs://nn/x/y")) == ("/", "/x", "hdfs://nn/x")
    assert (root_of("hdfs:///x/y"), root_of("s3a://bucket/x")) == ("hdfs://", "s3a://bucket")


def test_each_library_gets_the_spelling_that_it_reads() -> None:
    """Spark resolves a plain path on Hadoop's default file system, and delta-rs has one scheme for
    S3."""
    assert as_spark_path("/data/a b") == "file:///data/a b"
    assert as_spark_path("hdfs:///x") == "hdfs:///x"
    assert as_delta_path("s3a://bucket/x") == "s3://bucket/x"
    assert as_delta_path("/data/x") == "/data/x"


def test_a_temporary_directory_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here because its path would be too long."""
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/{'d' * 256}")
    with pytest.raises(
        StorageError, match=r"File name too long.*set TMPDIR to a writable directory"
    ):
        temporary_directory("weir-")


def test_links_make_two_spellings_one_place(tmp_path: Path) -> None:
    """Whether or not they exist yet; a path that merely shares a prefix is another place."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    there, link = f"{tmp_path}/a", f"{tmp_path}/link"
    assert real(f"{link}/new") == f"{there}/new"
    assert is_same(link, there)
    assert is_within(f"{link}/new/x", there)
    assert is_within(there, link)
    assert not is_within(f"{tmp_path}/a2", there)
    assert not is_within(str(tmp_path), there)
    assert is_within(there, "/")
    assert is_within("hdfs://nn/x", "hdfs://nn/")
    assert not is_within("hdfs://nn/x", "hdfs://nn2/")
