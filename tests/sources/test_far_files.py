"""``FileSource`` over an object store: what the listing finds, and that each file is read once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from tests.kit.object_store import ObjectStore
from tests.kit.source_job import FakeJob

from weir.errors import PipelineError, StorageError
from weir.sources import FileSource
from weir.sources.file_listing import list_files
from weir.storage.file_systems import FileSystems

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture(params=["s3:", "s3a:"])
def landing(object_store: ObjectStore, request: pytest.FixtureRequest) -> str:
    """A directory that has no file yet, which in an object store is none."""
    return f"{object_store.bucket()}/landing".replace("s3:", request.param)


def land(landing: str, **files: str) -> None:
    fs = FileSystems()(landing)
    for name, text in files.items():
        fs.write(f"{landing}/{name.replace('__', '/')}.json", text.encode())


def job(landing: str, **options: Any) -> FakeJob:
    source = FileSource(landing, format="json", schema="id long, day string", **options)
    return FakeJob(source, 2, schema=SCHEMA)


def ids(running: FakeJob) -> list[int]:
    return sorted(row["id"] for row in running.rows)


def test_each_object_is_read_once_across_a_restore(landing: str) -> None:
    """Those that come later, too; nothing is found where there is nothing."""
    running = job(landing)
    assert running.step() == 0
    land(landing, a='{"id": 1}\n{"id": 2}\n', b='{"id": 3}\n')
    running.run.timers.popleft()()
    running.step()
    running.step()
    taken = running.checkpoint()
    land(landing, c='{"id": 4}\n')
    running.restore(taken)
    for _ in range(3):
        running.step()
    assert ids(running) == [1, 2, 3, 4]


def test_a_source_connects_to_its_store_once(landing: str) -> None:
    """However often it looks for new files: to connect is to list the directory once more."""
    land(landing, a='{"id": 1}')
    with patch.object(
        FileSystems, "_remote_of", autospec=True, side_effect=FileSystems._remote_of
    ) as connect:
        running = job(landing)
        running.step()
        for name in ("b", "c"):
            land(landing, **{name: '{"id": 2}'})
            connect.reset_mock()
            running.run.timers.popleft()()
            running.step()
            listings = [one for one in connect.call_args_list if one.args[1] == landing]
            assert listings == []


def test_directories_are_read_if_that_is_asked_for_and_their_names_are_values(landing: str) -> None:
    """Hidden names are passed over, Weir's own mark of a directory included."""
    FileSystems()(landing).make_directory(landing)
    land(landing, a='{"id": 1}', day=": hidden", _x="no", **{"day=5__b": '{"id": 2}'})
    FileSystems()(landing).delete(f"{landing}/day.json")
    found, skipped = list_files(landing, FileSystems())
    assert ([file.name for file in found], [one.name for one in skipped]) == (["a.json"], ["day=5"])
    running = job(landing, bounded=True, recursive=True)
    running.finish()
    assert sorted((row["id"], row["day"]) for row in running.rows) == [(1, None), (2, "5")]


def test_what_cannot_be_read_is_set_aside_but_not_what_cannot_be_fetched(
    landing: str, object_store: ObjectStore
) -> None:
    """A store that is away, or a full local disk, is no reason to go on without the file."""
    land(landing, a='{"id": 1}\nno JSON\n')
    running = job(landing, bounded=True, on_error="reject")
    running.finish()
    assert ids(running) == [1]
    again = job(landing, bounded=True, on_error="reject")
    with (
        patch.object(Path, "open", side_effect=OSError(28, os.strerror(28))),
        pytest.raises(StorageError, match=r"cannot be copied to .*No space left"),
    ):
        again.finish()


def test_a_store_that_only_spark_reaches_is_refused() -> None:
    """At once, with the way out."""
    with pytest.raises(PipelineError, match=r"only Spark's client reaches: read it with spark"):
        FileSource("abfs://container/x", format="json", schema="id long")
