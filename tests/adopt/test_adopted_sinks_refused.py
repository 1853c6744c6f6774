"""What the outputs of scripts are refused for, at the line of ``start()``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from tests.kit.live_job import LiveJob, numbers, settings
from tests.kit.place import Place
from tests.kit.started_queries import started
from tests.kit.waiting import wait_until

import weir
from weir.adopt.outputs.places import check_not_deleted, check_places, deleting_lines
from weir.adopt.outputs.sinks import AdoptedSink, sink_of
from weir.errors import PipelineError
from weir.spark.adopt.query import Place as Line
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark


def local(_: str) -> LocalFileSystem:
    return LocalFileSystem()


def sink(query: Any, tmp_path: Path, keys: tuple[str, ...] | None = None) -> AdoptedSink:
    return sink_of(
        query,
        uid="totals",
        updates=query.output_mode != "append",
        keys=keys,
        directory=str(tmp_path / "sinks"),
    )


@pytest.mark.parametrize(
    ("asked", "keys", "sentence"),
    [
        ({}, None, r"format 'parquet' needs a path: start\('PATH'\)."),
        (
            {"format": "json", "options": {"path": "out"}, "output_mode": "complete"},
            ("id",),
            "format 'json' takes only the output mode 'append', not 'complete'.",
        ),
        (
            {"format": "csv", "options": {"path": "out", "quote": "'"}},
            None,
            r"Files\(.*csv'\) does not support the option 'quote': remove it.",
        ),
        (
            {"format": "parquet", "options": {"path": "out"}, "partition_by": ("day",)},
            None,
            "partitionBy names the column 'day', but the rows have only 'id', 'text'",
        ),
        (
            {"format": "delta", "options": {"path": "out"}, "cluster_by": ("id",)},
            None,
            "clusterBy is not supported",
        ),
        (
            {"format": "delta", "options": {"path": "out", "replacewhere": "id = 1"}},
            None,
            "Weir's Delta table does not support the option 'replacewhere'",
        ),
        (
            {"format": "delta", "options": {"path": "out"}, "output_mode": "update"},
            ("id",),
            "merge updates in foreachBatch",
        ),
        (
            {"format": "delta", "options": {"path": "out"}, "output_mode": "complete"},
            None,
            "the output lacks a column of groupBy: select all of them",
        ),
        (
            {"format": "delta", "options": {"path": "out"}, "output_mode": "complete"},
            (),
            "needs groupBy with a column",
        ),
        ({"format": "memory", "name": None}, None, r"needs a name for its table: queryName\("),
        ({"format": "memory", "partition_by": ("id",)}, None, "'memory' cannot be partitioned"),
        ({"format": "console", "options": {"numrows": "all"}}, None, "numRows, a number"),
        ({"each_row": object()}, None, r"or an object with a method process\(row\)"),
        (
            {"each_batch": print, "output_mode": "complete"},
            None,
            "the output lacks a column of groupBy",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_line(spark, tmp_path, asked, keys, sentence):
    """Before anything runs."""
    frame = spark.range(3).withColumn("text", F.lit("x"))
    with pytest.raises(PipelineError, match=rf"^script.py, line 12: .*{sentence}"):
        sink(started(frame, **asked), tmp_path, keys)


def test_a_window_is_no_key_of_a_delta_table_and_the_sentence_says_what_is(spark, tmp_path):
    """A struct cannot be found again reliably; its start and end can."""
    frame = spark.sql("SELECT window(timestamp'2024-01-01', '1 minute') AS window, 1 AS n")
    query = started(frame, format="delta", options={"path": "out"}, output_mode="complete")
    with pytest.raises(PipelineError, match=r"select window\.start and window\.end in its place"):
        sink(query, tmp_path, ("window",))


def test_the_output_of_a_plain_query_is_refused(spark, tmp_path):
    """Readers would follow its list of files and see none of Weir's."""
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    query = started(spark.range(3), options={"path": str(tmp_path / "out")})
    with pytest.raises(PipelineError, match=r"line 12: .*out holds the output of a plain query"):
        check_places(query, sink(query, tmp_path), local)


def test_rows_of_another_writer_are_refused(spark, tmp_path):
    """As ``Files`` refuses them, with the line."""
    spark.range(3).write.parquet(str(tmp_path / "out"))
    query = started(spark.range(3), options={"path": str(tmp_path / "out")})
    with pytest.raises(PipelineError, match=r"line 12: .* is not empty and was not written by"):
        check_places(query, sink(query, tmp_path), local)


def test_a_plain_querys_checkpoint_is_refused(spark, tmp_path):
    """Weir would read everything again; an empty directory, or another's, is none of that."""
    (tmp_path / "ck" / "offsets").mkdir(parents=True)
    options = {"checkpointlocation": str(tmp_path / "ck")}
    query = started(spark.range(3), format="console", options=options)
    check_places(query, sink(query, tmp_path), local)
    (tmp_path / "ck" / "metadata").write_text("{}")
    with pytest.raises(PipelineError, match=r"line 12: .*ck holds the checkpoint of a plain"):
        check_places(query, sink(query, tmp_path), local)


def test_a_plain_querys_checkpoint_is_found_by_the_sessions_setting(spark, tmp_path):
    """Below it, a plain query's checkpoint has the query's name."""
    (tmp_path / "ck" / "totals" / "offsets").mkdir(parents=True)
    (tmp_path / "ck" / "totals" / "metadata").write_text("{}")
    query = started(spark.range(3), format="console")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "ck"))
    try:
        with pytest.raises(PipelineError, match=r"line 12: .*ck/totals holds the checkpoint of"):
            check_places(query, sink(query, tmp_path), local)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_an_output_that_the_script_deletes_is_refused_before_the_job_starts(spark, tmp_path):
    """With the line that deletes it; a job that has not run yet is not refused."""
    place = Place(tmp_path)
    place.land(1)
    out = tmp_path / "out"
    script = tmp_path / "script.py"
    script.write_text("import shutil\n\nshutil.rmtree('out', ignore_errors=True)\n")
    query = started(
        numbers(place)(spark),
        format="delta",
        options={"path": str(out)},
        place=Line(str(script), 12),
    )
    written = sink(query, tmp_path)
    check = {
        "sinks": {"totals": (written, query.place)},
        "base_directory": str(tmp_path / "checkpoints"),
        "file_system": local,
    }
    check_not_deleted("script", **check)  # type: ignore[arg-type]
    job = weir.Job("script")
    job.source("numbers", numbers(place)).sink("totals", written.sink)
    with LiveJob(job, settings(place, interval="200ms")):
        wait_until(lambda: list(out.glob("_delta_log/*.json")) != [], "rows are committed")
        place.land(1)
        wait_until(lambda: len(list(out.glob("_delta_log/*.json"))) > 1, "that is on record")
    check_not_deleted("script", **check)  # type: ignore[arg-type]
    out.rename(tmp_path / "gone")
    with pytest.raises(PipelineError) as refused:
        check_not_deleted("script", **check)  # type: ignore[arg-type]
    assert str(refused.value).startswith(
        f"{script}, line 12: DeltaTable('{out}') has rows of this job, but nothing is there now."
        " The script itself deletes files, in line 3: remove that."
    )


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("shutil.rmtree('out')", [1]),
        ("\nos.remove('x')\nPath('x').unlink()", [2, 3]),
        ("dbutils.fs.rm('out', True)", [1]),
        ("names.remove('x')\ntable.delete('x > 1')\nrun('rm')", []),
    ],
)
def test_calls_that_delete_files_are_found_by_their_names(code, lines):
    """Not each ``remove`` and ``delete``."""
    assert list(deleting_lines(ast.parse(code))) == lines
