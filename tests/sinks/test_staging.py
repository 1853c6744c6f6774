"""Names and paths of staged files: what must stay distinct, and Spark's directory names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.kit.sink import sink_context

from weir.errors import LostWriteError, SinkError
from weir.sinks import DeltaTable, Files
from weir.sinks.staging import (
    dead_attempts,
    partition_values,
    slug,
    sync_below,
    visible_files,
    write_frame,
)
from weir.storage.local import LocalFileSystem


def test_names_of_sinks_that_would_be_spelled_alike_stay_apart():
    """Otherwise one sink would clean the other's staged files."""
    names = ["a b", "a-b", "a.b", "a/b", "a" * 60, "a" * 61, "ü", "ö"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert slugs[1] == "a-b"
    assert all(
        set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and len(text) <= 49
        for text in slugs
    )


def test_dead_attempts_are_those_of_the_very_prefix_and_below_the_number(tmp_path):
    """Numbers are compared as numbers; a sink whose name looks like another's attempt is another
    sink."""
    for name in ("p-1", "p-2", "p-10", "p-1-1", "xp-1", "p-", "p-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "p-0").write_text("a file")
    assert dead_attempts(LocalFileSystem(), str(tmp_path), "p", 10) == ["p-1", "p-2"]


def test_partition_values_are_decoded():
    """Spark escapes what a directory name cannot contain, also in the column's name; nulls have a
    special name."""
    path = "a%3Ab=x%2Fy/c=__HIVE_DEFAULT_PARTITION__/d=k=v/part-0.parquet"
    assert partition_values(path) == {"a:b": "x/y", "c": None, "d": "k=v"}


@pytest.mark.parametrize(
    ("sink", "column", "words"),
    [
        (DeltaTable, ".a", "starts with '.', so its rows would be lost"),
        (Files, ".a", "starts with '.', so its rows would be lost"),
        (Files, "_a", "starts with '_', so its rows would be lost"),
    ],
)
def test_a_partition_column_whose_directories_readers_pass_over_is_refused(sink, column, words):
    """Its rows would be staged and never found again; Delta's readers use the log, so '_a' is fine
    there."""
    with pytest.raises(SinkError, match=words):
        sink("out", partition_by=("b", column))
    DeltaTable("out", partition_by=("_a",))


def test_a_partition_value_that_cannot_name_a_directory_is_one_sentence(tmp_path):
    """Spark only says that it could not create a directory; other failures pass unchanged."""

    class Writer:
        def __getattr__(self, name):
            return lambda *_, **__: self

        def save(self, path):
            raise OSError(
                f"Mkdirs failed to create {path}/_temporary/0/k={value} (exists=false, cwd=file:/)"
            )

    frame = SimpleNamespace(write=Writer())
    where = {"format_name": "parquet", "partition_by": ["k"]}
    value = "é" * 130
    with pytest.raises(
        SinkError,
        match=r"partition column 'k' starts with 'ééé.*too long for the name of a directory",
    ):
        write_frame(frame, LocalFileSystem(), str(tmp_path / "0"), **where)
    value = "short"
    with pytest.raises(OSError, match="Mkdirs failed"):
        write_frame(frame, LocalFileSystem(), str(tmp_path / "0"), **where)


def test_rows_that_executors_wrote_to_a_disk_of_their_own_are_not_an_empty_batch(tmp_path):
    """Spark says that all is well, and would have written a file even without rows."""

    class Writer:
        def __getattr__(self, name):
            return lambda *_, **__: self

        def save(self, path):
            directory = Path(path.removeprefix("file:"))
            directory.mkdir()
            (directory / "_SUCCESS").touch()

    frame = SimpleNamespace(write=Writer())
    with pytest.raises(LostWriteError, match="the driver sees no file there"):
        write_frame(frame, LocalFileSystem(), str(tmp_path / "0"), format_name="parquet")
    written = write_frame(frame, LocalFileSystem(), str(tmp_path / "1"), format_name="json")
    assert written == [], "of this format, Spark writes no file without rows"


def test_hidden_files_are_not_staged_files(tmp_path):
    """Hadoop's checksums and temporary directories are ignored; a partition that starts with _ is
    not."""
    for name in (
        "a.parquet",
        ".a.parquet.crc",
        "_SUCCESS",
        "_temporary/0/b.parquet",
        "_p=1/c.parquet",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    found = visible_files(LocalFileSystem(), str(tmp_path))
    assert [(file.path, file.size) for file in found] == [("_p=1/c.parquet", 1), ("a.parquet", 1)]


def test_directories_are_synced_after_what_they_name():
    """Each only once."""
    synced = []

    class Recording(LocalFileSystem):
        def sync(self, files):
            synced.extend(files)

    sync_below(Recording(), "/r", ["a/b/1", "a/b/2", "a/3"])
    assert synced == ["/r/a/b/1", "/r/a/b/2", "/r/a/3", "/r/a/b", "/r/a", "/r"]


def test_delta_rs_is_given_the_scheme_that_it_knows(monkeypatch):
    """Spark says s3a:// where delta-rs says s3://; the options for delta-rs are passed along."""
    asked = []
    monkeypatch.setattr(
        "deltalake.DeltaTable.is_deltatable", lambda *call: asked.append(call) or False
    )
    monkeypatch.setattr(LocalFileSystem, "make_directory", lambda self, path: None)
    sink = DeltaTable("s3a://bucket/t", storage_options={"AWS_REGION": "x"})
    sink.open(sink_context(job_id="0" * 32))
    assert asked == [("s3://bucket/t", {"AWS_REGION": "x"})]


@pytest.mark.parametrize("sink", [DeltaTable("s3://bucket/t"), Files("gs://bucket/t")])
def test_a_store_that_spark_does_not_write_to_is_refused_when_the_job_starts(
    sink: DeltaTable | Files,
) -> None:
    """Nothing is asked of it."""
    with pytest.raises(SinkError, match=r"through Hadoop's client only: use s3a://BUCKET/PATH"):
        sink.check(cast(Any, None))


def test_rows_are_staged_at_the_path_that_was_given_and_a_target_is_known_by_where_it_is(tmp_path):
    """A link of the driver's may be a mount where executors run, or lead elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for sink in (Files(str(tmp_path / "link/out")), DeltaTable(str(tmp_path / "link/out"))):
        assert sink.files_at() == f"{tmp_path}/link/out"
        assert sink.destination() == f"{tmp_path}/real/out"
