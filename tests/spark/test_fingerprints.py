"""Which change of a step its fingerprint shows, and which it does not, on real Spark's plans.

Each line of the tables in STOPPING.md ("Changes that no schema shows") has a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from tests.kit.rig import Collected, frames_of

from weir.core.types import Fingerprint
from weir.job import Job, Stream, definition_of
from weir.spark.query.frames import source_fingerprints

pytestmark = pytest.mark.spark

Step: TypeAlias = Callable[[DataFrame], DataFrame]
Pair: TypeAlias = Callable[[DataFrame, DataFrame], DataFrame]
ROWS = "ts timestamp, shop string, item string, price long, amount long"


def fingerprints(spark: SparkSession, job: Job) -> dict[str, Fingerprint]:
    """What Spark's plans say of the steps of a job."""
    frames = frames_of(spark, job)
    try:
        found: dict[str, Fingerprint] = {}
        for vertex in definition_of(job).vertices():
            found |= frames.fingerprints(vertex.name)
        return found
    finally:
        frames.release()


def rows(job: Job, directory: Path, name: str = "rows") -> Stream:
    """A source of files."""
    directory.mkdir(parents=True, exist_ok=True)
    return job.source(name, lambda spark: spark.readStream.schema(ROWS).json(str(directory)))


def words(
    spark: SparkSession, directory: Path, step: Step, *before: Step, cut: bool = False
) -> tuple[str, ...]:
    """The words of a last step, after others; ``cut``: it has a query of its own."""
    job = Job("one")
    stream = rows(job, directory / "in")
    for number, function in enumerate(before):
        stream = stream.transform(f"before_{number}", function)
    stream = stream.transform("step", step)
    if cut:
        stream.start_new_chain()
    stream.sink("out", Collected())
    return fingerprints(spark, job)["step"].expressions


def pair_words(spark: SparkSession, directory: Path, step: Pair) -> tuple[str, ...]:
    """The words of a step that reads two sources."""
    job = Job("two")
    left, right = (rows(job, directory / name, name) for name in ("left", "right"))
    job.transform("step", [left, right], step).sink("out", Collected())
    return fingerprints(spark, job)["step"].expressions


def timed(frame: DataFrame, delay: str = "10 seconds") -> DataFrame:
    """With a watermark."""
    return frame.withWatermark("ts", delay)


def windows(*arguments: str) -> Step:
    """Rows counted by time window."""
    return lambda df: timed(df).groupBy(F.window("ts", *arguments)).agg(F.count("*").alias("n"))


def sessions(gap: str) -> Step:
    """Rows counted by session."""
    return lambda df: timed(df).groupBy(F.session_window("ts", gap)).count()


def by(*keys: str) -> Step:
    """Rows counted by key."""
    return lambda df: df.groupBy(*map(F.expr, keys)).agg(F.count("*").alias("n"))


def totals(*functions: str) -> Step:
    """Rows of a shop put together."""
    return lambda df: df.groupBy("shop").agg(*map(F.expr, functions))


def joined(condition: str, how: str = "inner") -> Pair:
    """Rows of both sides."""
    return lambda a, b: (
        timed(a).alias("a").join(timed(b).alias("b"), F.expr(condition), how).select("a.shop")
    )


def counted(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Only planned, never called."""
    del key, state
    yield from frames


def grouped(key: str, function: Any = counted) -> Step:
    """A Python function with state."""
    return lambda df: df.groupBy(key).applyInPandasWithState(
        function, "shop string", "n long", "update", GroupStateTimeout.NoTimeout
    )


DIFFERENT: dict[str, tuple[Step, Step, str]] = {
    "window size": (
        windows("1 minute"),
        windows("5 minutes"),
        "group by window(ts, 5 minutes): count(1)",
    ),
    "window slide": (
        windows("10 minutes", "5 minutes"),
        windows("10 minutes", "2 minutes"),
        "group by window(ts, 10 minutes, every 2 minutes): count(1)",
    ),
    "window start": (
        windows("1 hour", "1 hour", "0 minutes"),
        windows("1 hour", "1 hour", "15 minutes"),
        "group by window(ts, 1 hour, from 15 minutes): count(1)",
    ),
    "session gap": (
        sessions("1 minute"),
        sessions("90 seconds"),
        "group by session_window(ts, 90 seconds): count(1)",
    ),
    "key": (by("shop"), by("item"), "group by item: count(1)"),
    "key under the same name": (
        by("shop AS k"),
        by("item AS k"),
        "group by item: count(1)",
    ),
    "key expression": (by("lower(shop)"), by("upper(shop)"), "group by upper(shop): count(1)"),
    "order of keys": (by("shop", "item"), by("item", "shop"), "group by item, shop: count(1)"),
    "aggregated column": (
        totals("sum(price)"),
        totals("sum(amount)"),
        "group by shop: sum(amount)",
    ),
    "aggregate": (totals("min(price)"), totals("max(price)"), "group by shop: max(price)"),
    "aggregate that is read": (
        lambda df: totals("sum(price) AS a", "sum(amount) AS b")(df).select("a"),
        lambda df: totals("sum(price) AS a", "sum(amount) AS b")(df).select("b"),
        "group by shop: sum(amount)",
    ),
    "deduplication key": (
        lambda df: df.dropDuplicates(["shop"]),
        lambda df: df.dropDuplicates(["item"]),
        "drop duplicates by item",
    ),
    "deduplication within the watermark": (
        lambda df: timed(df).dropDuplicatesWithinWatermark(["shop"]),
        lambda df: timed(df).dropDuplicatesWithinWatermark(["item"]),
        "drop duplicates by item within the watermark",
    ),
    "watermark delay": (
        lambda df: timed(df, "10 seconds"),
        lambda df: timed(df, "1 hour"),
        "watermark on ts, 1 hour",
    ),
    "key of a Python function": (
        grouped("shop"),
        grouped("item"),
        "applyInPandasWithState counted by item: (n long) -> (shop string), NoTimeout",
    ),
    "limit": (lambda df: df.limit(3), lambda df: df.limit(4), "limit 4"),
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_another_expression_gives_other_words(
    change: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The words name what has changed, and are the same when the plan is made again."""
    before, now, found = DIFFERENT[change]
    old = words(spark, tmp_path, before)
    assert found in words(spark, tmp_path, now)
    assert found not in old
    assert words(spark, tmp_path, before) == old


JOINS: dict[str, tuple[Pair, Pair, str]] = {
    "column": (
        joined("a.shop = b.shop"),
        joined("a.shop = b.item"),
        "join INNER on left.shop = right.item, keeping (shop) and (item)",
    ),
    "type": (
        joined("a.shop = b.shop AND a.ts = b.ts"),
        joined("a.shop = b.shop AND a.ts = b.ts", "left_outer"),
        "join LEFT OUTER on left.shop = right.shop and left.ts = right.ts, keeping (ts, shop) and"
        " (ts, shop)",
    ),
    "order of keys": (
        joined("a.shop = b.shop AND a.item = b.item"),
        joined("a.item = b.item AND a.shop = b.shop"),
        "join INNER on left.item = right.item and left.shop = right.shop, keeping (shop, item) and"
        " (shop, item)",
    ),
    "filter that becomes a key": (
        joined("a.shop = b.shop"),
        lambda a, b: (
            a.alias("a")
            .join(b.alias("b"), F.expr("a.shop = b.shop"))
            .filter("b.item = a.item")
            .select("a.shop")
        ),
        "join INNER on left.shop = right.shop and left.item = right.item, keeping (shop, item) and"
        " (shop, item)",
    ),
    "column that is kept": (
        lambda a, b: a.join(b, "shop").select("shop", b.item),
        lambda a, b: a.join(b, "shop").select("shop", b.item, a.price),
        "join INNER on left.shop = right.shop, keeping (shop, price) and (shop, item)",
    ),
    "column that is kept instead": (
        lambda a, b: a.join(b, "shop").select("shop", b.price),
        lambda a, b: a.join(b, "shop").select("shop", b.amount),
        "join INNER on left.shop = right.shop, keeping (shop) and (shop, amount)",
    ),
    "column of the other side": (
        lambda a, b: (
            a.alias("a").join(b.alias("b"), F.expr("a.shop = b.shop")).groupBy("a.item").count()
        ),
        lambda a, b: (
            a.alias("a").join(b.alias("b"), F.expr("a.shop = b.shop")).groupBy("b.item").count()
        ),
        "group by right.item: count(1)",
    ),
}


@pytest.mark.parametrize("change", JOINS)
def test_another_join_gives_other_words(change: str, spark: SparkSession, tmp_path: Path) -> None:
    """A condition, and the side that a column is from."""
    before, now, found = JOINS[change]
    assert found in pair_words(spark, tmp_path, now)
    assert found not in pair_words(spark, tmp_path, before)


@pytest.mark.parametrize(
    "free",
    [
        lambda a, b: a.filter("price > 3").join(b, "shop").select("shop", b.item),
        lambda a, b: a.join(b, "shop").filter(a.price > 3).select("shop", b.item),
        lambda a, b: (
            a.withColumnRenamed("shop", "k").join(b, F.expr("k = shop")).select("k", b.item)
        ),
        lambda a, b: a.select("shop").join(b.select("shop", "item"), "shop"),
        lambda a, b: a.join(b, "shop").select(F.upper("shop"), F.lit(1), b.item),
    ],
)
def test_what_leaves_the_keys_and_the_kept_columns_of_a_join_changes_no_words(
    free: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    """Filters on one side, other names, and what follows; Spark keeps no more than is read."""
    plain = pair_words(spark, tmp_path, lambda a, b: a.join(b, "shop").select("shop", b.item))
    assert plain == ("join INNER on left.shop = right.shop, keeping (shop) and (shop, item)",)
    assert pair_words(spark, tmp_path, free) == plain


def test_the_sides_of_an_equality_may_be_swapped(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives each side its own."""
    one, other = (joined(text) for text in ("a.shop = b.item", "b.item = a.shop"))
    assert pair_words(spark, tmp_path, one) == pair_words(spark, tmp_path, other)


def test_a_cut_of_the_chain_changes_no_words(spark: SparkSession, tmp_path: Path) -> None:
    """A column of a channel is what the producer made it of."""

    def named(df: DataFrame) -> DataFrame:
        return df.withColumn("k", F.lower("shop"))

    whole = words(spark, tmp_path, by("k"), named)
    assert whole == ("group by lower(shop): count(1)",)
    assert words(spark, tmp_path, by("k"), named, cut=True) == whole


@pytest.mark.parametrize(
    "before",
    [
        lambda df: df.filter("price > 3"),
        lambda df: df.select("ts", "shop"),
        lambda df: df.withColumn("more", F.col("price") * 2),
        lambda df: df.withColumnRenamed("price", "cost"),
        lambda df: df.withColumn("salt", F.rand()),
    ],
)
def test_a_filter_or_a_projection_before_a_window_changes_no_words(
    before: Step, spark: SparkSession, tmp_path: Path
) -> None:
    """As long as it leaves the columns that the state is made of."""
    plain = words(spark, tmp_path, windows("1 minute"), lambda df: df)
    assert words(spark, tmp_path, windows("1 minute"), before) == plain
    assert words(spark, tmp_path, lambda df: windows("1 minute")(before(df))) == plain


@pytest.mark.parametrize(
    "step",
    [
        windows("60 seconds"),
        lambda df: windows("1 minute")(
            df.withColumnRenamed("ts", "at").withColumnRenamed("at", "ts")
        ),
        lambda df: windows("1 minute")(df).withColumnRenamed("n", "rows"),
        lambda df: windows("1 minute")(df).filter("n > 3").select("n", "window.start"),
    ],
)
def test_another_spelling_or_another_use_of_the_result_changes_no_words(
    step: Step, spark: SparkSession, tmp_path: Path
) -> None:
    """Units, names of helper columns and what follows the step."""
    assert words(spark, tmp_path, step) == words(spark, tmp_path, windows("1 minute"))


def test_the_sets_of_a_rollup_and_of_a_cube_differ(spark: SparkSession, tmp_path: Path) -> None:
    """Both group by the same columns."""
    rollup = words(spark, tmp_path, lambda df: df.rollup("shop", "item").count())
    assert rollup == words(spark, tmp_path, lambda df: df.rollup("shop", "item").count())
    assert rollup != words(spark, tmp_path, lambda df: df.cube("shop", "item").count())


def test_random_seeds_and_names_of_lambda_variables_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They are others in each session."""

    def salted(df: DataFrame) -> DataFrame:
        raised = F.transform(F.array("price", "amount"), lambda one: one + 1)
        return df.groupBy(F.floor(F.rand() * 3), raised).count()

    assert words(spark, tmp_path, salted) == words(spark, tmp_path, salted)


def test_a_column_of_a_union_is_what_each_branch_makes_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A branch that makes the same adds nothing, in whatever order they come."""
    (same,) = pair_words(spark, tmp_path, lambda a, b: by("shop")(a.union(b)))
    assert same == "group by shop: count(1)"
    one, other = (
        pair_words(spark, tmp_path, step)
        for step in (
            lambda a, b: by("shop")(a.select("shop").union(b.select("item"))),
            lambda a, b: by("shop")(a.select(F.col("item").alias("shop")).union(b.select("shop"))),
        )
    )
    assert one == other == ("group by item | shop: count(1)",)


def test_a_column_of_a_table_differs_from_one_of_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A table that is joined on the way changes nothing else."""
    table = spark.createDataFrame([("a", "b")], "shop string, kind string")

    def enriched(df: DataFrame) -> DataFrame:
        return df.join(table, "shop")

    assert words(spark, tmp_path, by("shop"), enriched) == words(spark, tmp_path, by("shop"))
    assert words(spark, tmp_path, by("kind"), enriched) == ("group by static.kind: count(1)",)


def test_a_named_query_in_sql_is_looked_through(spark: SparkSession, tmp_path: Path) -> None:
    """``WITH`` keeps its definition elsewhere in the plan."""

    def in_sql(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("given")
        return df.sparkSession.sql(
            "WITH low AS (SELECT lower(shop) AS k FROM given)"
            " SELECT k, count(*) FROM low GROUP BY k"
        )

    assert words(spark, tmp_path, in_sql) == ("group by lower(shop): count(1)",)


def test_text_that_doubles_with_each_level_stays_short(spark: SparkSession, tmp_path: Path) -> None:
    """Its end is a digest, and another expression has another digest."""

    def doubled(levels: int) -> Step:
        def step(df: DataFrame) -> DataFrame:
            for _ in range(levels):
                df = df.select((F.col("price") + F.col("price") * 2).alias("price"))
            return by("price")(df)

        return step

    one, other = (words(spark, tmp_path, doubled(levels))[0] for levels in (12, 13))
    assert one != other
    assert len(one) < 1500


def test_a_source_is_what_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Format and place; options that only tune it are left out."""
    path = tmp_path / "landing"
    path.mkdir()

    def read(spark: SparkSession, more: str = "1") -> DataFrame:
        reader = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", more)
        return reader.json(str(path))

    found = source_fingerprints(
        spark,
        {
            "files": read,
            "tuned": lambda spark: read(spark, "2"),
            "rate": lambda spark: spark.readStream.format("rate").load(),
        },
    )
    assert found["files"].identity == f"json files at {path}"
    assert found["tuned"] == found["files"]
    assert found["rate"].identity == "rate"
