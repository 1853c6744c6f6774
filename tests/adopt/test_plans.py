"""What Spark's plans of a script's queries share, and other frames in their places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from weir.errors import PipelineError
from weir.spark.adopt.frames import ordering
from weir.spark.adopt.plans import QueryPlan, is_read_twice, reading_of
from weir.spark.java import Jvm

pytestmark = pytest.mark.spark

SCHEMA = "id long, word string, ts timestamp"
ROWS = [(n, "abc"[n % 3], f"2026-01-01 00:{n % 60:02}:00") for n in range(200)]


@pytest.fixture(scope="module")
def landing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of words."""
    path = tmp_path_factory.mktemp("words") / "in"
    rows = spark.createDataFrame(ROWS, "id long, word string, ts string")
    rows.withColumn("ts", F.col("ts").cast("timestamp")).repartition(2).write.parquet(str(path))
    return path


@pytest.fixture
def stream(spark: SparkSession, landing: Path) -> DataFrame:
    """The words as a script loads them."""
    return spark.readStream.schema(SCHEMA).parquet(str(landing))


@pytest.fixture
def batch(spark: SparkSession, landing: Path) -> DataFrame:
    """The same words, all at once."""
    return spark.read.schema(SCHEMA).parquet(str(landing))


def loads(frame: DataFrame) -> list[str]:
    """What a query reads, by the ``load()`` that made it."""
    return [leaf.load for leaf in QueryPlan(frame).leaves]


# -- what is shared --------------------------------------------------------------------------------


def test_all_queries_of_one_load_have_the_same_leaf(stream: DataFrame, spark: SparkSession) -> None:
    """Projected, aggregated, under another name, through a view, SQL and a named query."""
    stream.createOrReplaceTempView("words")
    queries = [
        stream,
        stream.select("word"),
        stream.filter("id > 3").groupBy("word").count(),
        stream.alias("other").withColumn("n", F.col("other.id") + 1),
        spark.sql("SELECT word FROM words WHERE id > 3"),
        spark.sql("WITH some AS (SELECT * FROM words WHERE id > 3) SELECT word FROM some"),
        stream.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["word"]),
        stream.select("_metadata.file_path", "id"),
    ]
    assert {tuple(loads(query)) for query in queries} == {tuple(loads(stream))}
    [leaf] = QueryPlan(stream).leaves
    assert leaf.source == "parquet"
    assert leaf.what.startswith("parquet files at /")


def test_two_loads_of_one_path_are_two_readings(spark: SparkSession, landing: Path) -> None:
    """Which is found, so that it can be said."""
    first, second = (spark.readStream.schema(SCHEMA).parquet(str(landing)) for _ in range(2))
    other = spark.readStream.schema("id long").parquet(str(landing))
    [one], [two] = QueryPlan(first).leaves, QueryPlan(second.select("id")).leaves
    assert is_read_twice(one, two)
    assert not is_read_twice(one, QueryPlan(first.select("word")).leaves[0])
    assert not is_read_twice(one, QueryPlan(other).leaves[0])
    rates = [QueryPlan(spark.readStream.format("rate").load()).leaves[0] for _ in range(2)]
    assert not is_read_twice(*rates)


def test_a_stream_joined_with_itself_is_read_twice(stream: DataFrame) -> None:
    """Its left side is the loaded one; united with itself it is one reading."""
    joined = QueryPlan(stream.alias("l").join(stream.alias("r"), F.expr("l.id = r.id")))
    assert len(joined.leaves) == 2
    assert joined.leaves[0].load == loads(stream)[0] != joined.leaves[1].load
    assert loads(stream.union(stream)) == loads(stream)


def test_what_no_reader_has_made_is_refused(spark: SparkSession, stream: DataFrame) -> None:
    """A streaming leaf of Spark's own tools: nobody could read it again."""
    jvm = Jvm(spark)
    plan = stream._jdf.queryExecution().analyzed()
    relation = jvm.sql_class("catalyst.plans.logical.LocalRelation")(
        plan.output(), jvm.seq(()), True, jvm.none
    )
    with pytest.raises(PipelineError, match=r"it reads LocalRelation, .* spark.readStream"):
        QueryPlan(jvm.frame(relation))


def test_a_table_of_the_catalog_is_known_by_its_name(spark: SparkSession, batch: DataFrame) -> None:
    """As a script reads it with readStream.table()."""
    batch.write.mode("overwrite").saveAsTable("some_words")
    [leaf] = QueryPlan(spark.readStream.table("some_words").select("id")).leaves
    assert leaf.what.startswith("parquet")
    assert "some_words" in leaf.what
    spark.sql("DROP TABLE some_words")


# -- other frames in the places of leaves ----------------------------------------------------------


def rows(frame: DataFrame) -> list[str]:
    """The rows of a batch, sorted."""
    return sorted(map(str, frame.collect()))


SHAPES: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "itself": lambda words, static: words,
    "projected": lambda words, static: words.select(F.upper("word").alias("w"), "id"),
    "windowed": lambda words, static: (
        words.withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "10 minutes", "5 minutes"), "word")
        .agg(F.sum("id").alias("sum"))
    ),
    "joined with a table": lambda words, static: words.join(static, "word", "left"),
    "joined with itself": lambda words, static: words.alias("l").join(
        words.select(F.col("id").alias("other"), "word").alias("r"),
        F.expr("l.word = r.word AND l.id = r.other + 3"),
    ),
    "united with itself": lambda words, static: words.select("id").union(words.select("id")),
    "by a Python function": lambda words, static: words.select(
        F.udf(lambda text: text * 2, "string")("word").alias("twice")
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_computes_the_same_over_another_frame(
    shape: str, spark: SparkSession, stream: DataFrame, batch: DataFrame
) -> None:
    """With the batch in the places of the stream, it is the batch computation."""
    static = spark.createDataFrame([("a", 1), ("b", 2)], "word string, number int")
    plan = QueryPlan(SHAPES[shape](stream, static))
    made = plan.over([batch] * len(plan.leaves))
    wanted = SHAPES[shape](batch, static)
    assert made.columns == wanted.columns
    assert rows(made) == rows(wanted)
    # Again, as after a failure.
    assert rows(plan.over([batch] * len(plan.leaves))) == rows(wanted)


def test_a_reading_of_several_queries_is_the_widest(
    spark: SparkSession, stream: DataFrame, landing: Path
) -> None:
    """A query that asks for the metadata of files has a further column, at the end."""
    named = QueryPlan(stream.select("id", F.col("_metadata.file_name").alias("file")))
    plain = QueryPlan(stream.select("word", "id"))
    assert [named.leaves[0].width, plain.leaves[0].width] == [4, 3]
    frame = reading_of(spark, named.leaves[0])
    assert frame.isStreaming
    assert frame.columns == ["id", "word", "ts", "_metadata"]
    columns = frame.schema["_metadata"].dataType
    assert isinstance(columns, StructType)
    batch = spark.read.schema(SCHEMA).parquet(str(landing)).select("*", "_metadata")
    assert rows(plain.over([batch])) == rows(batch.select("word", "id"))
    assert rows(named.over([batch])) == rows(
        batch.select("id", F.col("_metadata.file_name").alias("file"))
    )


@pytest.mark.parametrize(
    ("expression", "uses"),
    [("input_file_name()", True), ("input_file_block_start()", True), ("upper(word)", False)],
)
def test_functions_of_the_file_that_is_read_are_noticed(
    stream: DataFrame, expression: str, uses: bool
) -> None:
    """Wherever they are in the query: behind a channel they would name another file."""
    frame = stream.filter(f"length({expression}) > 0").groupBy("word").count()
    assert QueryPlan(frame).uses_file_names is uses


def test_a_plan_is_read_with_few_calls(
    stream: DataFrame, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """Each takes 0.1 ms; what does not stream is not looked at."""
    static = stream.sparkSession.range(10)
    for n in range(30):
        static = static.withColumn(f"c{n}", F.lit(n))
    frame = stream.filter("id > 3").join(static, "id").groupBy("word").count()
    client: Any = spark.sparkContext._gateway._gateway_client
    send, calls = client.send_command, []

    def counted(command: str, *arguments: Any, **keywords: Any) -> Any:
        calls.append(command)
        return send(command, *arguments, **keywords)

    monkeypatch.setattr(client, "send_command", counted)
    QueryPlan(frame)
    monkeypatch.undo()
    assert 10 < len(calls) < 120


# -- output modes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "emits"),
    [
        (lambda words: words.filter("id > 3"), False),
        (lambda words: words.dropDuplicates(["word"]), False),
        (lambda words: words.join(words.sparkSession.range(3), "id"), False),
        (lambda words: words.groupBy("word").count(), True),
        (lambda words: words.agg(F.count("*")), True),
    ],
)
def test_only_what_can_change_is_an_update(
    stream: DataFrame, query: Callable[[DataFrame], DataFrame], emits: bool
) -> None:
    """A filter or a deduplication emits final rows, whatever the output mode."""
    assert QueryPlan(query(stream)).emits_changes is emits


def by_word(words: DataFrame) -> DataFrame:
    """The count of each word."""
    return words.groupBy("word").count()


def by_window(words: DataFrame) -> DataFrame:
    """The count of each word in windows of ten minutes."""
    return words.groupBy(F.window("ts", "10 minutes"), "word").count()


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        (by_word, ("word",)),
        (lambda words: by_word(words).select(F.col("word").alias("w"), "count"), ("w",)),
        (lambda words: by_word(words).where("count > 3"), ("word",)),
        (lambda words: by_word(words).orderBy(F.desc("count")), ("word",)),
        (lambda words: by_word(words).repartition("word").orderBy("count").coalesce(1), ("word",)),
        (lambda words: by_word(words).select("count"), None),
        (lambda words: by_word(words).select(F.upper("word").alias("word"), "count"), None),
        (lambda words: words.groupBy(F.upper("word").alias("w")).count(), ("w",)),
        (lambda words: words.groupBy(F.length("word")).count(), ("length(word)",)),
        (lambda words: words.groupBy("word", "id").agg(F.max("ts")), ("word", "id")),
        (lambda words: words.groupBy().count(), ()),
        (by_window, ("window", "word")),
        (
            lambda words: by_window(words).select("window.start", "window.end", "word", "count"),
            ("start", "end", "word"),
        ),
        (lambda words: by_window(words).select("window.end", "word"), ("end", "word")),
        (
            lambda words: by_window(words.withWatermark("ts", "1 minute")).select(
                F.col("window").alias("w"), "word", "count"
            ),
            ("w", "word"),
        ),
        (lambda words: by_window(words).select("word", "count"), None),
        (
            lambda words: words.groupBy(F.struct("word", "id").alias("k")).count().select("k.*"),
            ("word", "id"),
        ),
        (
            lambda words: words.groupBy(F.struct("word", "id").alias("k")).count().select("k.id"),
            None,
        ),
        (lambda words: words.select("word"), None),
        (lambda words: words.dropDuplicates(["word"]), None),
    ],
)
def test_the_keys_of_an_aggregation_are_found_in_the_output(
    stream: DataFrame,
    query: Callable[[DataFrame], DataFrame],
    keys: tuple[str, ...] | None,
) -> None:
    """Through projections, names and parts of windows; None if one is missing."""
    assert QueryPlan(query(stream)).keys() == keys


def test_keys_are_found_in_sql(stream: DataFrame, spark: SparkSession) -> None:
    """Also of a SELECT DISTINCT, whose rows are their own keys."""
    stream.createOrReplaceTempView("words")
    counted = spark.sql(
        "SELECT word AS w, count(*) AS n FROM words GROUP BY word HAVING count(*) > 3 ORDER BY n"
    )
    assert QueryPlan(counted).keys() == ("w",)
    assert QueryPlan(counted).filters_result
    distinct = spark.sql("SELECT DISTINCT word, id FROM words")
    assert QueryPlan(distinct).keys() == ("word", "id")


def test_complete_mode_as_updates_has_neither_sort_nor_watermark(
    stream: DataFrame, batch: DataFrame
) -> None:
    """The sort is for what is shown; a watermark would drop what complete mode keeps."""
    query = by_window(stream.withWatermark("ts", "1 minute")).orderBy("window")
    plan = QueryPlan(query)
    assert plan.why_no_updates() is None
    assert not plan.filters_result
    made = plan.as_updates().over([batch])
    assert rows(made) == rows(by_window(batch))
    text = made._jdf.queryExecution().analyzed().toString()
    assert "Sort" not in text
    assert "Watermark" not in text


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        (by_word, 0),
        (lambda words: by_word(words).orderBy(F.desc("count"), "word"), 2),
        (lambda words: by_word(words).orderBy("count").coalesce(1), 1),
        (lambda words: by_word(words).orderBy("count").repartition(2), 0),
    ],
)
def test_the_order_in_which_a_script_sorts_at_last_is_known(
    stream: DataFrame, query: Callable[[DataFrame], DataFrame], columns: int
) -> None:
    """Also if it coalesces after that; a repartition has no order."""
    assert len(ordering(query(stream))) == columns


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (lambda words: by_word(words).orderBy("count").limit(3), "it has GlobalLimit after"),
        (
            lambda words: by_word(words).join(words.sparkSession.range(3)),
            "it has Join after its aggregation",
        ),
        (
            lambda words: by_word(
                words.withWatermark("ts", "1 minute").dropDuplicates(["word", "ts"])
            ),
            "it has Deduplicate with a watermark before its aggregation",
        ),
        (lambda words: by_word(words.dropDuplicates(["word"])), None),
        (lambda words: by_word(words).orderBy("count").coalesce(1), None),
    ],
)
def test_complete_mode_is_not_run_as_updates_if_these_make_another_table(
    stream: DataFrame, query: Callable[[DataFrame], DataFrame], why: str | None
) -> None:
    """A limit, a join, or state that a watermark clears."""
    found = QueryPlan(query(stream)).why_no_updates()
    assert found is None if why is None else why in str(found)
