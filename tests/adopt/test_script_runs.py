"""How scripts begin, wait, look at their queries, stop and end under ``weir run``."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pyspark
import pytest
from tests.kit.adopted_script import AdoptedScript, Files, Output, land
from tests.kit.place import Place, environment_of, files_rows

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.slow
def test_a_script_that_stops_its_query_goes_on_with_the_same_command(place: Place) -> None:
    """A Python source, some seconds, ``query.stop()``: the second start continues, without a gap
    and without a row twice."""
    script = AdoptedScript(place, "python_source.py", "2000")
    for _ in range(2):
        run = script.start()
        assert run.wait() == 0, run.story()
    rows = script.output().files("blocks")
    numbers = sorted(int(row.split('"number": ')[1].split(",")[0]) for row in rows)
    assert numbers and numbers == list(range(len(numbers))), numbers


@pytest.mark.slow
def test_an_available_now_query_goes_on_with_the_same_command(place: Place) -> None:
    """Two starts, each with half of the input, read it once, and each ends by itself."""
    script = AdoptedScript(place, "available_now.py")
    for half in range(2):
        land(script.world, half)
        run = script.start()
        assert run.wait() == 0, run.story()
        assert "done" in run.output
    Files(path="words").check(script.output(), script.expected())


@pytest.mark.slow
def test_tables_listeners_and_progress_have_the_names_of_the_script(place: Place) -> None:
    """Two tables by ``toTable``; the listener and the handles see the script's names only."""
    script = AdoptedScript(place, "ingest.py")
    land(script.world, 0)
    run = script.start()
    assert run.wait() == 0, run.story()
    assert run.output.count("LISTENER started ingest_words") == 1
    assert run.output.count("LISTENER terminated None") == 2
    assert "LISTENER progress ingest_trades" in run.output
    assert "LAST ingest_words 200 None" in run.output
    made, expected = script.output(), script.expected()
    for topic in ("words", "trades"):
        Files(path=f"warehouse/bronze.db/{topic}").check(made, expected)


@pytest.mark.slow
def test_a_script_that_waits_for_what_is_there_sees_it_committed(place: Place) -> None:
    """``processAllAvailable`` returns when the rows are in the files, three times."""
    script = AdoptedScript(place, "settled.py")
    run = script.start()
    assert run.wait() == 0, run.story()
    for count in (10, 20, 30):
        assert f"there are {count}" in run.output
    assert "progress of copies copies True" in run.output
    assert "active False" in run.output


@pytest.mark.slow
def test_a_memory_table_is_there_from_the_start_and_filled_at_commits(place: Place) -> None:
    """The script reads the table again and again; at last it has the whole result."""
    script = AdoptedScript(place, "memory_table.py", "12")
    land(script.world, 0)
    run = script.start()
    assert run.wait() == 0, run.story()
    made, expected = script.output().shown, script.expected().shown
    assert len(made) == 12
    assert made[-1] == expected[-1]


@pytest.mark.slow
def test_queries_one_after_another_are_jobs_of_their_own(place: Place) -> None:
    """A query for some seconds, ``stop()``, and the next one: each table has its rows."""
    script = AdoptedScript(place, "one_after_another.py", "6")
    land(script.world, 0)
    run = script.start()
    assert run.wait() == 0, run.story()
    assert run.output.count("ACTIVE False") == 2
    made, expected = script.output(), script.expected()
    for topic in ("logins", "trades"):
        Files(path=topic).check(made, expected)


@pytest.mark.slow
def test_what_spark_refuses_is_refused_at_the_scripts_line(place: Place) -> None:
    """Session windows in update mode: Spark's own exception, where the query starts."""
    script = AdoptedScript(place, "session_windows.py")
    land(script.world, 0)
    run = script.start()
    assert run.wait() == 1, run.story()
    assert "AnalysisException" in run.errors
    assert "session_windows.py" in run.errors


def test_a_signal_suspends_the_job_and_then_unwinds_the_script(place: Place) -> None:
    """SIGTERM: the job is suspended, the script's ``finally`` runs, the exit code is the signal's;
    the same command resumes it, and its input, Spark's ``rate``, goes on where it was."""
    code = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("unwound").getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
query = rows.writeStream.format("parquet").option("path", "rows").start()
try:
    query.awaitTermination()
finally:
    print("unwound", query.isActive, flush=True)
    spark.stop()
"""
    path = place.write("script.py", code)
    run = place.start(pipeline=path)
    run.wait_for(r"checkpoint 2 completed")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.story()
    assert "unwound False" in run.output
    again = place.start(pipeline=path)
    again.wait_for(r"recovered from checkpoint[\s\S]*checkpoint \d+ completed")
    again.process.send_signal(signal.SIGINT)
    assert again.wait() == 128 + signal.SIGINT, again.story()
    values = sorted(value for _, value in files_rows(place.directory / "rows").elements())
    assert values and values == list(range(len(values)))


def test_a_failure_is_raised_where_the_script_waits(place: Place) -> None:
    """A function that always fails: ``StreamingQueryException`` in the script, which catches it."""
    code = """
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()

@udf("long")
def fails(value):
    raise ValueError(f"no {value}")

rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
query = rows.select(fails("value").alias("v")).writeStream.format("noop").start()
try:
    query.awaitTermination()
except StreamingQueryException as error:
    print("caught", "ValueError" in str(error), query.exception() is not None, flush=True)
"""
    path = place.write("script.py", code)
    run = place.start("--conf", "restart-strategy.type=none", pipeline=path)
    assert run.wait() == 0, run.story()
    assert "caught True True" in run.output


@pytest.mark.slow
def test_one_script_runs_under_spark_submit_and_weir_from_anywhere(place: Place) -> None:
    """The same file by ``spark-submit``, by ``weir run``, and by ``weir run`` from another
    directory with other arguments: the same rows."""
    script = AdoptedScript(place, "available_now.py")
    land(script.world, 0)
    plain = place.directory / "plain"
    done = subprocess.run(
        [*_spark_submit(), str(script.path), str(script.world), str(plain)],
        cwd=place.directory,
        env=environment_of({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = script.start()
    assert run.wait() == 0, run.story()
    elsewhere = Place(place.directory / "elsewhere")
    elsewhere.directory.mkdir()
    other = elsewhere.start(
        "--",
        "../world",
        "../third",
        pipeline=script.path.resolve(),
    )
    assert other.wait() == 0, other.story()
    expected = Output(directory=plain, printed="").files("words")
    assert script.output().files("words") == expected
    third = Output(directory=place.directory / "third", printed="")
    assert third.files("words") == expected


def _spark_submit() -> list[str]:
    return [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]


@pytest.mark.slow
def test_settings_of_the_script_the_command_line_and_weir_meet_in_one_session(
    place: Place,
) -> None:
    """A script that makes a context: its settings hold, but for the command line's and for what
    exact checkpoints depend on; what does not hold is printed with its line."""
    code = """
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
conf = SparkConf().setMaster("local[1]").setAppName("by context")
conf.set("spark.sql.ansi.enabled", "true")
sc = SparkContext(conf=conf.set("spark.sql.session.timeZone", "Asia/Tokyo"))
spark = SparkSession(sc)
spark.conf.set(PROVIDER, "HDFSBackedStateStoreProvider")
spark.conf.set("spark.sql.caseSensitive", "true")
query = spark.readStream.format("rate").load().writeStream.format("noop").start()
print(query.awaitTermination(2), sc.master, spark.sparkContext.appName)
for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive"):
    print(spark.conf.get(key))
print(spark.conf.get(PROVIDER).split(".")[-1])
sc.stop()
"""
    path = place.write("script.py", code)
    given = ("--master", "local[2]", "--conf", "spark.sql.ansi.enabled=false")
    run = place.start(*given, pipeline=path)
    assert run.wait() == 0, run.story()
    printed = run.printed.split()
    assert printed[:4] == ["False", "local[2]", "by", "context"]
    assert printed[4:] == ["Asia/Tokyo", "false", "true", "RocksDBStateStoreProvider"]
    assert "script.py, line 8: spark.master=local[1] is replaced" in run.errors
    assert "script.py, line 8: spark.sql.ansi.enabled=true is replaced" in run.errors
    assert "script.py, line 10: spark.sql.streaming.stateStore.providerClass keeps" in run.errors
