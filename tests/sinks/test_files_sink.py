"""The file sink on real Spark: final names, ledger, interrupted commits, and what readers see."""

from __future__ import annotations

import csv
import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests.kit.disk import FaultyDisk
from tests.kit.sink import sink_context

from weir.errors import LostRowsError, SinkError, SinkMismatchError
from weir.sinks import Batch, Files
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

JOB = "0123456789abcdef0123456789abcdef"


class Killed(BaseException):
    """Simulates the end of the process."""


def opened(path: Path, *, file_system: LocalFileSystem | None = None, **options: Any) -> Files:
    attempt, job, sink_name = (
        options.pop("attempt", 1),
        options.pop("job", JOB),
        options.pop("sink", "out"),
    )
    used = file_system or LocalFileSystem()
    context = sink_context(job_id=job, sink=sink_name, attempt=attempt, file_system=lambda _: used)
    sink = Files(str(path), **options)
    sink.check(context)
    sink.open(context)
    return sink


def flushed(sink: Files, frame: Any, position: int) -> dict[str, Any]:
    payload = sink.stage(frame, Batch(batch_id=position))
    assert payload is not None
    (payload,) = sink.flush([json.loads(json.dumps(payload))])
    return json.loads(json.dumps(payload))


def ids(path: Path) -> list[int]:
    """The ids that pyarrow reads."""
    dataset = ds.dataset(path, format="parquet")
    return sorted(dataset.to_table()["id"].to_pylist()) if dataset.files else []


def visible(path: Path) -> list[str]:
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file()
        and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts)
    )


def test_staged_rows_are_invisible_until_they_are_committed(spark, tmp_path):
    """Neither Spark nor pyarrow sees a staged file."""
    sink = opened(tmp_path / "f")
    sink.commit(1, [flushed(sink, spark.range(3), 0)])
    payload = flushed(sink, spark.range(3, 5), 1)
    assert ids(tmp_path / "f") == [0, 1, 2]
    assert spark.read.parquet(str(tmp_path / "f")).count() == 3
    assert sink.commit(2, [payload]) == 2
    assert ids(tmp_path / "f") == [0, 1, 2, 3, 4]
    assert spark.read.parquet(str(tmp_path / "f")).count() == 5


def test_final_names_say_job_sink_attempt_and_position(spark, tmp_path):
    """They follow from the payload alone, below the partition's directory, for any committer and
    epoch."""
    sink = opened(tmp_path / "f", partition_by=["c"])
    sink.commit(5, [flushed(sink, spark.sql("select 1 id, 'a/b' c"), 7)])
    assert visible(tmp_path / "f") == ["c=a%2Fb/01234567-out-1-7-0.snappy.parquet"]
    assert [(row.id, row.c) for row in spark.read.parquet(str(tmp_path / "f")).collect()] == [
        (1, "a/b")
    ]


def test_committing_an_epoch_twice_shows_its_rows_once(spark, tmp_path):
    """The ledger remembers the epoch, even after a reader has moved its files away."""
    sink = opened(tmp_path / "f")
    payload = flushed(sink, spark.range(3), 0)
    assert sink.commit(1, [payload]) == 3
    assert sink.commit(1, [payload]) == 0
    for name in visible(tmp_path / "f"):
        (tmp_path / "f" / name).unlink()
    assert opened(tmp_path / "f", attempt=2).commit(1, [payload]) == 0
    assert visible(tmp_path / "f") == []


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_commit_that_died_between_two_renames_is_completed(spark, tmp_path, renames):
    """The restored job commits the same payloads again; each row is there once."""
    sink = opened(tmp_path / "f", file_system=FaultyDisk().fail("rename", Killed(), skip=renames))
    payload = flushed(sink, spark.range(0, 10, 1, 2), 0)
    assert len(payload["files"]) == 2
    with pytest.raises(Killed):
        sink.commit(1, [payload])
    again = opened(tmp_path / "f", attempt=2)
    assert (again.newest_begun(), again.newest_committed()) == (1, None)
    assert again.commit(1, [payload]) == 10 - 5 * renames
    assert ids(tmp_path / "f") == list(range(10))
    assert again.newest_committed() == 1


def test_rows_that_an_earlier_version_might_have_merged_are_committed_as_they_are(spark, tmp_path):
    """It had staged them with their schema, and has made no plan of merged files for the epoch."""
    sink = opened(tmp_path / "f")
    payloads = [{**flushed(sink, spark.range(3), 0), "schema": "{}"}]
    plans = tmp_path / "f" / "_weir" / "plans" / f"{JOB}-out"
    plans.mkdir(parents=True)
    assert opened(tmp_path / "f", attempt=2).commit(7, payloads) == 3
    # The plan of an epoch in the ledger was followed to its end.
    (plans / "7").write_text('{"moves": []}')
    assert opened(tmp_path / "f", attempt=3).commit(7, payloads) == 0
    assert ids(tmp_path / "f") == [0, 1, 2]


def test_an_epoch_that_an_earlier_version_may_have_shown_merged_is_not_committed(spark, tmp_path):
    """Its plan is there, so its rows may be visible in files that payloads do not list."""
    sink = opened(tmp_path / "f")
    sink.commit(6, [flushed(sink, spark.range(3), 0)])
    plans = tmp_path / "f" / "_weir" / "plans" / f"{JOB}-out"
    plans.mkdir(parents=True)
    (plans / "7").write_text('{"moves": []}')
    with pytest.raises(SinkMismatchError, match=r"checkpoint 7 .* run the job with that version"):
        opened(tmp_path / "f", attempt=2)


def test_a_file_that_is_neither_staged_nor_committed_is_reported(spark, tmp_path):
    """Its rows are lost, and the error names it."""
    sink = opened(tmp_path / "f")
    payload = flushed(sink, spark.range(3).coalesce(1), 0)
    (file,) = payload["files"]
    (tmp_path / "f" / "_weir" / "staged" / payload["directory"] / "0" / file["path"]).unlink()
    with pytest.raises(LostRowsError, match=f"Checkpoint 1 .*{file['path']} is gone"):
        sink.commit(1, [payload])
    assert sink.newest_committed() is None


def test_of_two_processes_that_commit_one_epoch_each_file_lands_once(spark, tmp_path):
    """The rival wins the race for a rename; the slower one finds it done (PROTOCOL P18)."""

    class Raced(LocalFileSystem):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            super().rename(source, target)

    sink = opened(tmp_path / "f", file_system=Raced())
    payload = flushed(sink, spark.range(3), 0)
    assert sink.commit(1, [payload]) == 0
    assert ids(tmp_path / "f") == [0, 1, 2]


def test_a_rename_that_fails_leaves_the_rows_staged(spark, tmp_path):
    """The error says that they will be committed later; the epoch is not in the ledger."""

    sink = opened(tmp_path / "f", file_system=FaultyDisk().fail("rename"))
    payload = flushed(sink, spark.range(3), 0)
    with pytest.raises(SinkError, match="its rows stay staged"):
        sink.commit(1, [payload])
    assert opened(tmp_path / "f", attempt=2).commit(1, [payload]) == 3


def test_the_ledger_keeps_only_its_newest_entries(spark, tmp_path):
    """It does not grow with the life of the job."""
    sink = opened(tmp_path / "f")
    for epoch in (8, 9, 10, 11, 12):
        sink.commit(epoch, [flushed(sink, spark.range(1), epoch)])
    entries = (tmp_path / "f" / "_weir" / "committed" / f"{JOB}-out").iterdir()
    assert sorted(int(entry.name) for entry in entries) == [10, 11, 12]
    assert sink.newest_committed() == 12


def test_the_final_names_are_durable_before_the_ledger(spark, tmp_path):
    """A machine crash could otherwise leave an epoch on record whose files are gone (PROTOCOL
    P23)."""
    disk = FaultyDisk()
    sink = opened(tmp_path / "f", file_system=disk)
    payload = flushed(sink, spark.range(1), 0)
    disk.calls.clear()
    sink.commit(1, [payload])
    name = str(tmp_path / "f" / "01234567-out-1-0-0.snappy.parquet")
    changes = [
        (operation, path.rpartition(".")[2])
        for operation, path in disk.calls
        if operation in ("write", "rename") or (operation == "sync" and path.endswith(".parquet"))
    ]
    assert changes == [
        ("write", "begun"),
        ("rename", "parquet"),
        ("sync", "parquet"),
        ("rename", "begun"),
    ]
    assert name in disk.paths("sync")


def test_an_epoch_without_rows_shows_nothing(spark, tmp_path):
    """Spark writes a file for an empty frame; it is not committed (PROTOCOL P15)."""
    sink = opened(tmp_path / "f")
    assert sink.commit(1, []) == 0
    assert sink.commit(2, [flushed(sink, spark.range(0), 0)]) == 0
    assert visible(tmp_path / "f") == []
    assert sink.newest_committed() is None
    assert list((tmp_path / "f" / "_weir" / "staged").glob("*/*")) == [], (
        "what was staged for it is deleted"
    )


def test_a_flushed_payload_is_recognised(spark, tmp_path):
    """It comes again after its checkpoint was aborted."""
    sink = opened(tmp_path / "f")
    payload = flushed(sink, spark.range(3), 0)
    assert sink.flush([payload]) == [payload]


def test_clean_removes_only_what_dead_attempts_of_this_sink_staged(spark, tmp_path):
    """The live attempt, other sinks and other jobs keep theirs (PROTOCOL P22)."""
    for options in ({}, {"attempt": 2}, {"sink": "out-1"}, {"job": "f" * 32}):
        flushed(opened(tmp_path / "f", **options), spark.range(1), 0)
    opened(tmp_path / "f", attempt=2).clean(2)
    left = sorted(entry.name for entry in (tmp_path / "f" / "_weir" / "staged").iterdir())
    assert left == ["01234567-out-1-1", "01234567-out-2", "ffffffff-out-1"]


@pytest.mark.parametrize(
    "options", [{}, {"header": "true"}, {"header": "true", "compression": "gzip"}]
)
def test_rows_of_csv_files_are_counted(spark, tmp_path, options):
    """A line break inside a value does not start a row, however long the value and whatever the
    backslashes before it, and a header is not one."""
    values = ["two\nlines", 'a "quoted" word', None, "", "b\\", '\\"\n', ",\n\\", '"\\\\', "c\r"]
    rows = list(enumerate([*values, "\n" * 200_000, "last\\"]))
    sink = opened(tmp_path / "f", format="csv", options=options)
    frame = spark.createDataFrame(rows, "id int, s string").coalesce(1)
    assert sink.commit(1, [flushed(sink, frame, 0)]) == len(rows)
    (name,) = visible(tmp_path / "f")
    assert name == f"01234567-out-1-0-0.csv{'.gz' if 'compression' in options else ''}"
    if "compression" in options:
        with gzip.open(tmp_path / "f" / name, "rt", newline="") as file:
            assert next(csv.reader(file)) == ["id", "s"]


def test_an_empty_csv_batch_with_a_header_is_not_a_row(spark, tmp_path):
    """Spark writes the header even without rows."""
    sink = opened(tmp_path / "f", format="csv", options={"header": "true"})
    assert sink.commit(1, [flushed(sink, spark.range(0), 0)]) == 0
    assert visible(tmp_path / "f") == []


def test_rows_of_json_files_are_counted(spark, tmp_path):
    """Spark writes one line for each row."""
    sink = opened(tmp_path / "f", format="json")
    frame = spark.createDataFrame(
        [(1, "two\nlines"), (2, "x\u2028y")], "id int, s string"
    ).coalesce(1)
    assert sink.commit(1, [flushed(sink, frame, 0)]) == 2
    assert sorted(row.id for row in spark.read.json(str(tmp_path / "f")).collect()) == [1, 2]


def test_rows_of_orc_and_text_files_are_counted(spark, tmp_path):
    """An empty text is a line, and a file without rows is left out."""
    orc = opened(tmp_path / "orc", format="orc")
    assert orc.commit(1, [flushed(orc, spark.range(5).coalesce(1), 0)]) == 5
    assert spark.read.orc(str(tmp_path / "orc")).count() == 5
    text = opened(tmp_path / "text", format="text", options={"compression": "gzip"})
    lines = spark.createDataFrame([("",), ("a",)], "value string").coalesce(1)
    assert text.commit(1, [flushed(text, lines, 0)]) == 2
    assert text.commit(2, [flushed(text, lines.where("false"), 1)]) == 0
    assert sorted(row.value for row in spark.read.text(str(tmp_path / "text")).collect()) == [
        "",
        "a",
    ]
    assert visible(tmp_path / "text") == ["01234567-out-1-0-0.txt.gz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "avro"}, "unknown format 'avro'"),
        ({"format": "csv", "options": {"sep": '"'}}, "does not support '\"' as 'sep'"),
        ({"format": "csv", "options": {"lineSep": "|"}}, "option 'linesep'"),
        ({"format": "json", "options": {"compression": "snappy"}}, "compression 'snappy'"),
    ],
)
def test_options_that_make_rows_uncountable_are_refused(arguments, message):
    """When the sink is created, before anything runs."""
    with pytest.raises(SinkError, match=message):
        Files("out", **arguments)


def test_a_directory_with_foreign_files_is_refused(tmp_path):
    """check names a file and the way out, and leaves nothing behind."""
    (tmp_path / "data.csv").write_text("1")
    with pytest.raises(
        SinkError, match=r"not written by Weir.*'data.csv'.*move its files elsewhere"
    ):
        opened(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.csv"]


def test_the_directory_of_another_job_is_taken(spark, tmp_path):
    """A new job may add to what an earlier one wrote; it has a separate ledger."""
    first = opened(tmp_path / "f")
    first.commit(3, [flushed(first, spark.range(1), 0)])
    second = opened(tmp_path / "f", job="f" * 32)
    assert second.newest_committed() is None
    assert second.commit(1, [flushed(second, spark.range(1, 2), 0)]) == 1
    assert ids(tmp_path / "f") == [0, 1]


def test_the_ledgers_tell_who_committed_the_newest_first(spark, tmp_path):
    """Each job's newest epoch, even before the directory is opened (PROTOCOL P21)."""
    for job, epoch in ((JOB, 3), ("f" * 32, 1), (JOB, 4)):
        sink = opened(tmp_path / "f", job=job, attempt=epoch)
        sink.commit(epoch, [flushed(sink, spark.range(1), 0)])
        time.sleep(0.002)
    told = list(Files(str(tmp_path / "f")).commits(sink._context))
    assert [(one.job_id, one.job_name, one.checkpoint_id, one.attempt) for one in told] == [
        (JOB, "orders", 4, 4),
        ("f" * 32, "orders", 1, 1),
    ]
    assert list(Files(str(tmp_path / "none")).commits(sink._context)) == []


def test_a_damaged_ledger_is_reported_by_the_path_of_its_entry(spark, tmp_path):
    """Unreadable entries may belong to anybody's rows."""
    sink = opened(tmp_path / "f")
    sink.commit(3, [flushed(sink, spark.range(1), 0)])
    entry = tmp_path / "f" / "_weir" / "committed" / f"{JOB}-out" / "3"
    entry.write_bytes(b"{")
    with pytest.raises(SinkError, match=f"{entry}.*is damaged"):
        list(sink.commits(sink._context))


def test_a_reader_never_sees_a_partial_or_uncommitted_file(spark, tmp_path):
    """pyarrow reads during staging and commits: each file that it finds is whole and committed."""
    sink = opened(tmp_path / "f")
    seen: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                try:
                    found = ids(tmp_path / "f")
                except FileNotFoundError as error:
                    # pyarrow walks hidden directories before it ignores them: one may vanish.
                    assert "/_weir/staged/" in str(error)
                    continue
                assert found == list(range(len(found)))
                assert len(found) % 100 == 0
                seen.append(len(found))
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for epoch in range(8):
        sink.commit(
            epoch + 1, [flushed(sink, spark.range(epoch * 100, epoch * 100 + 100, 1, 1), epoch)]
        )
    done.set()
    reader.join()
    assert failures == []
    assert seen == sorted(seen)
    assert ids(tmp_path / "f") == list(range(800))


def test_the_files_of_a_payload_are_found_before_within_and_after_their_commit(spark, tmp_path):
    """An intermediate savepoint copies them, whatever a commit has moved by then (P14)."""
    rows = spark.range(4).repartition(2)
    sink = opened(tmp_path, file_system=FaultyDisk().fail("rename", Killed(), skip=1))
    payload = flushed(sink, rows, 1)
    staged = sink.staged_files(payload)
    assert len(staged) == 2
    assert all("/_weir/staged/" in path for path in staged)
    with pytest.raises(Killed):
        sink.commit(1, [payload])
    half = sink.staged_files(payload)
    assert [path for path in half if path not in staged] == [half[0]]
    assert all(Path(path).is_file() for path in half)
    sink = opened(tmp_path)
    sink.commit(1, [payload])
    assert sorted(sink.staged_files(payload)) == [
        str(tmp_path / name) for name in visible(tmp_path)
    ]
