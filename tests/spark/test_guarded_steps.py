"""Steps that set aside the rows on which they raise, in Spark's plan (weir/spark/rejects)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

import weir
from weir.core.graph import GraphStep, StepKind
from weir.errors import PipelineError
from weir.expectations import Expectations
from weir.runtime.failures import is_fatal
from weir.spark.failures import read_error
from weir.spark.java import Jvm
from weir.spark.rejects.expected import kept
from weir.spark.rejects.gathered import GatheredRejects, Reject
from weir.spark.rejects.guard import Guarding
from weir.spark.rejects.observation import GuardedStep

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# Spark's workers do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

Step = Callable[[DataFrame], DataFrame]
Row = dict[str, Any]

ROWS = 10_000
STEP = GraphStep(name="price", kind=StepKind.TRANSFORM, inputs=("in",), on_error="bad")


def row(number: int) -> Row:
    """An input row: its text is a number, except in each hundredth row."""
    return {"id": number, "text": str(number) if number % 100 else "none", "part": number % 7}


def is_bad(one: Row) -> bool:
    return one["id"] % 100 == 0


@pytest.fixture(scope="module")
def given(spark: SparkSession) -> DataFrame:
    """10,000 rows, of which 100 are bad, in two partitions."""
    text = F.when(F.col("id") % 100 == 0, "none").otherwise(F.col("id").cast("string"))
    return spark.range(0, ROWS, 1, 2).select(
        "id", text.alias("text"), (F.col("id") % 7).alias("part")
    )


def guarded(given: DataFrame, step: Step) -> tuple[DataFrame, GuardedStep | None]:
    guarding = Guarding(Jvm(given.sparkSession), STEP, given, ROWS)
    return guarding.guarded(step(given))


def computed(
    frame: DataFrame, *steps: GuardedStep, rows_max: int = ROWS
) -> tuple[list[Row], list[Reject], dict[tuple[str, str], int]]:
    """The rows, what was set aside with them, and counts, as a query gets them in one job."""
    rows = [one.asDict() for one in frame.collect()]
    execution = frame._jdf.queryExecution()
    streaming = SimpleNamespace(
        streamingQuery=lambda: SimpleNamespace(lastExecution=lambda: execution)
    )
    running: Any = SimpleNamespace(_jsq=streaming)
    gathered = GatheredRejects(Jvm(frame.sparkSession), steps, rows_max)
    rejects, counts = gathered.of_batch(running, ())
    return rows, rejects, {(of.by, of.rule): number for of, number in counts.items()}


# -- forms of steps, each with what a batch computation makes of a good row ------------------------


def number_of(text: str) -> int:
    return int(text)


@F.udf(LongType())
def by_row(text: str) -> int:
    return number_of(text)


@F.udf(LongType(), useArrow=True)
def by_row_in_arrow(text: str) -> int:
    return number_of(text)


@F.pandas_udf(LongType())
def in_pandas(texts: pd.Series) -> pd.Series:
    return texts.astype("int64")


@F.arrow_udf(LongType())
def in_arrow(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.int64())


@F.pandas_udf(StructType([StructField("a", LongType()), StructField("b", StringType())]))
def pair_in_pandas(texts: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"a": texts.astype("int64"), "b": texts})


def frames_in_pandas(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield pd.DataFrame({"n": batch["text"].astype("int64"), "id": batch["id"]})


def frames_in_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # Two of each batch: what comes before an error is dropped.
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield pa.record_batch({"n": part["text"].cast(pa.int64()), "id": part["id"]})


def cast(frame: DataFrame) -> DataFrame:
    return frame.select("id", F.col("text").cast("long").alias("n"))


def cast_twice(frame: DataFrame) -> DataFrame:
    number = F.col("text").cast("long")
    return frame.select("id", number.alias("n"), (number + 1).alias("next"))


def chained(frame: DataFrame) -> DataFrame:
    numbers = frame.withColumn("n", F.col("text").cast("long")).filter("n % 2 = 1")
    return (
        numbers.filter(by_row("text") > 50).withColumn("q", F.expr("1 / (n - 5001)")).drop("text")
    )


def after_cast(udf: Any) -> Step:
    return lambda frame: frame.select(
        "id", udf(F.col("text").cast("long").cast("string")).alias("n")
    )


def nested(frame: DataFrame) -> DataFrame:
    inner = in_pandas("text").cast("string")
    return frame.select("id", (by_row(inner) + by_row_in_arrow("text")).alias("n"), "part")


def mapped(frame: DataFrame) -> DataFrame:
    known = frame.filter(F.col("text").cast("long") >= 0).select("text", "id")
    return known.mapInArrow(frames_in_arrow, "n long, id long").filter("id > 10")


FORMS: dict[str, tuple[Step, Callable[[Row], Row | None]]] = {
    "expressions": (cast, lambda one: {"id": one["id"], "n": one["id"]}),
    "an expression that occurs twice": (
        cast_twice,
        lambda one: {"id": one["id"], "n": one["id"], "next": one["id"] + 1},
    ),
    "filters and projections": (
        chained,
        lambda one: (
            {k: one[k] for k in ("id", "part")} | {"n": one["id"], "q": 1 / (one["id"] - 5001)}
            if one["id"] % 2 and one["id"] > 50
            else None
        ),
    ),
    "a UDF": (
        lambda frame: frame.select("id", by_row("text").alias("n")),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "a UDF in Arrow": (
        lambda frame: frame.select("id", by_row_in_arrow("text").alias("n")),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "a pandas UDF": (
        lambda frame: frame.select("id", in_pandas("text").alias("n")),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "a pandas UDF with structs": (
        lambda frame: frame.select("id", pair_in_pandas("text").alias("n")),
        lambda one: {"id": one["id"], "n": (one["id"], one["text"])},
    ),
    "an Arrow UDF": (
        lambda frame: frame.select("id", in_arrow("text").alias("n")),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "a UDF of what can raise": (after_cast(by_row), lambda one: {"id": one["id"], "n": one["id"]}),
    "a pandas UDF of what can raise": (
        after_cast(in_pandas),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "an Arrow UDF of what can raise": (
        after_cast(in_arrow),
        lambda one: {"id": one["id"], "n": one["id"]},
    ),
    "nested UDFs": (
        nested,
        lambda one: {"id": one["id"], "n": 2 * one["id"], "part": one["part"]},
    ),
    "mapInPandas": (
        lambda frame: frame.mapInPandas(frames_in_pandas, "n long, id long"),
        lambda one: {"n": one["id"], "id": one["id"]},
    ),
    "mapInArrow": (
        lambda frame: frame.mapInArrow(frames_in_arrow, "n long, id long"),
        lambda one: {"n": one["id"], "id": one["id"]},
    ),
    "mapInArrow of what can raise": (
        mapped,
        lambda one: {"n": one["id"], "id": one["id"]} if one["id"] > 10 else None,
    ),
}


#: These have all parts of the others.
QUICK = (
    "filters and projections",
    "a pandas UDF of what can raise",
    "mapInPandas",
    "mapInArrow of what can raise",
)


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[] if form in QUICK else pytest.mark.slow) for form in FORMS],
)
def test_each_row_is_in_the_result_or_set_aside(given: DataFrame, form: str) -> None:
    """Of 10,000 rows 100 raise, and one more in the step with a division. The others are what a
    computation in plain Python makes of them, and no other column has changed its type."""
    step, expected = FORMS[form]
    frame, made = guarded(given, step)
    assert made is not None
    assert [(one.name, one.dataType) for one in frame.schema] == [
        (one.name, one.dataType) for one in step(given).schema
    ]
    rows, rejects, counts = computed(frame, made)
    bad = {n for n in range(ROWS) if n % 100 == 0}
    if form == "filters and projections":
        bad |= {5001}
    good = [expected(row(n)) for n in range(ROWS) if n not in bad]
    assert sorted(rows, key=repr) == sorted((one for one in good if one is not None), key=repr)
    known = sorted((json.loads(one.row) for one in rejects), key=lambda one: int(one["id"]))
    assert known == [row(n) for n in sorted(bad)]
    assert counts == {("price", ""): len(bad)}
    assert {one.to for one in rejects} == {"bad"}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (cast, "[CAST_INVALID_INPUT] The value 'none' of the type \"STRING\" cannot be cast"),
        (lambda frame: frame.select((1 / (F.col("id") % 100)).alias("x")), "[DIVIDE_BY_ZERO]"),
        (
            lambda frame: frame.select(by_row("text").alias("n")),
            "ValueError: invalid literal for int() with base 10: 'none'",
        ),
        (lambda frame: frame.select(in_pandas("text")), "ValueError: invalid literal"),
        (lambda frame: frame.select(in_arrow("text")), "ArrowInvalid: Failed to parse string"),
        (lambda frame: frame.select(F.raise_error(F.concat("text", F.lit("!")))), "none!"),
    ],
)
def test_the_error_says_what_was_raised(given: DataFrame, step: Step, said: str) -> None:
    """Spark's message is found by evaluating the expressions again; a function's comes with its
    line."""
    frame, made = guarded(given.filter("id < 100"), step)
    assert made is not None
    _, rejects, _ = computed(frame, made)
    assert any(said in one.error for one in rejects), {one.error for one in rejects}


def test_one_bad_row_of_many_is_found(spark: SparkSession) -> None:
    """A vectorised function with one bad row in 10,000."""
    given = spark.range(0, ROWS, 1, 1).select(
        "id",
        F.when(F.col("id") == 4321, "none").otherwise(F.col("id").cast("string")).alias("text"),
    )
    frame, made = guarded(given, lambda frame: frame.select(in_pandas("text").alias("n")))
    assert made is not None
    rows, rejects, _ = computed(frame, made)
    assert sorted(one["n"] for one in rows) == [n for n in range(ROWS) if n != 4321]
    assert [json.loads(one.row)["id"] for one in rejects] == [4321]


def test_too_many_rows_fail_the_batch(given: DataFrame) -> None:
    """No more than so many rows come to the driver."""
    frame, made = guarded(given, cast)
    assert made is not None
    guarding = Guarding(Jvm(given.sparkSession), STEP, given, 99)
    frame, made = guarding.guarded(cast(given))
    assert made is not None
    with pytest.raises(PipelineError, match="more than 99 rows of one batch"):
        computed(frame, made, rows_max=99)


def test_each_batch_of_a_stream_runs_the_code_of_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark generates and compiles Java for a plan; of the same plan it keeps the classes."""
    for number in range(4):
        spark.range(5, 10, 1, 1).withColumn("text", F.lit("1")).write.parquet(
            f"{tmp_path}/in/{number}"
        )
    given = (
        spark.readStream.schema("id long, text string")
        .option("maxFilesPerTrigger", 1)
        .parquet(f"{tmp_path}/in/*")
    )
    frame, made = guarded(given, cast)
    assert made is not None
    metrics = Jvm(spark).java_class("org.apache.spark.metrics.source.CodegenMetrics")
    compiled = []

    def compute(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())

    query = frame.writeStream.trigger(availableNow=True).foreachBatch(compute)
    query.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
    assert len(compiled) == 4
    assert compiled[1] == compiled[-1]


#: Types of values, and functions that make them.
VALUES: dict[str, Callable[[Any], Any]] = {
    "long": lambda one: one["id"],
    "string": lambda one: one["text"] if one["id"] % 2 else None,
    "timestamp": lambda one: one["at"],
    "timestamp_ntz": lambda one: one["at"],
    "date": lambda one: one["day"],
    "decimal(10,2)": lambda one: one["money"],
    "binary": lambda one: bytes(one["raw"]),
    "array<timestamp>": lambda one: [one["at"], None],
    "map<string,int>": lambda one: {one["text"]: 1},
    "a int, b struct<c: date>": lambda one: (1, {"c": one["day"]}),
}


@pytest.mark.parametrize("in_arrow", [False, True])
def test_the_values_of_a_guarded_function_are_those_of_the_plain_one(
    given: DataFrame, in_arrow: bool
) -> None:
    """Whichever types it takes and returns."""
    all_types = given.filter("id < 100").select(
        F.struct(
            *("id", "text"),
            F.timestamp_micros(F.col("id") * 1_000_001).alias("at"),
            F.date_add(F.lit("2024-02-28"), F.col("id").cast("int")).alias("day"),
            (F.col("id") / 4).cast("decimal(10,2)").alias("money"),
            F.col("text").cast("binary").alias("raw"),
        ).alias("one")
    )

    def step(frame: DataFrame) -> DataFrame:
        made = [
            F.udf(function, kind, useArrow=in_arrow)("one").alias(f"c{number}")
            for number, (kind, function) in enumerate(VALUES.items())
        ]
        named = F.udf(lambda a, b: f"{a}/{b}", "string", useArrow=in_arrow)
        return frame.select(
            *made,
            named(b=F.col("one.text"), a=F.col("one.day")).alias("named"),
            F.udf(lambda: 5, "long", useArrow=in_arrow)().alias("without"),
        )

    frame, made = guarded(all_types, step)
    assert made is not None
    rows, rejects, _ = computed(frame, made)
    assert rejects == []
    assert rows == [one.asDict() for one in step(all_types).collect()]


def test_a_value_that_does_not_fit_its_type_is_set_aside(given: DataFrame) -> None:
    """One in a hundred is too large for a tinyint."""
    wide = F.udf(lambda text: 1000 if text == "none" else 1, "tinyint", useArrow=True)
    frame, made = guarded(given, lambda frame: frame.select(wide("text").alias("n")))
    assert made is not None
    rows, rejects, _ = computed(frame, made)
    assert [one["n"] for one in rows] == [1] * (ROWS - ROWS // 100)
    assert len(rejects) == ROWS // 100
    assert "1000" in rejects[0].error


def test_a_step_that_cannot_raise_stays_as_it_is(given: DataFrame) -> None:
    """Nothing is added to a step of plain columns and comparisons."""
    frame, made = guarded(given, lambda frame: frame.filter("id > 5").select("id", "text"))
    assert made is None
    assert frame.count() == ROWS - 6


@F.pandas_udf(LongType())
def of_iterators(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield from batches


REFUSED: dict[str, Step] = {
    "aggregates (groupBy)": lambda frame: frame.groupBy("part").count(),
    "joins": lambda frame: frame.join(frame.sparkSession.range(3).toDF("k"), F.expr("id = k")),
    "makes several rows of one (explode)": lambda frame: frame.select(F.explode(F.array("id"))),
    "unites (union)": lambda frame: frame.union(frame),
    "drops duplicates (dropDuplicates)": lambda frame: frame.dropDuplicates(["id"]),
    "sorts": lambda frame: frame.orderBy("id"),
    "takes the first rows (limit)": lambda frame: frame.limit(3),
    "has a subquery": lambda frame: frame.select(F.expr("id + (select max(id) from range(3))")),
    "calls 'of_iterators', a function of iterators": lambda frame: frame.select(of_iterators("id")),
    "has an expression that can raise after mapInPandas": lambda frame: frame.mapInPandas(
        frames_in_pandas, "n long, id long"
    ).select(F.expr("1 / n")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_works_on_several_rows_is_refused_by_name(given: DataFrame, what: str) -> None:
    """With the way out."""
    with pytest.raises(PipelineError) as refused:
        guarded(given, REFUSED[what])
    assert f"Step 'price' has on_error, but {what}" in str(refused.value)
    assert "into a step of its own" in str(refused.value)


# -- expectations ----------------------------------------------------------------------------------


def expecting(given: DataFrame, expected: Expectations) -> tuple[DataFrame, GuardedStep]:
    return kept(Jvm(given.sparkSession), STEP, given, expected, ROWS)


def test_rules_warn_drop_and_set_aside_in_one_pass(given: DataFrame) -> None:
    """Each row that breaks a rule is counted; null and an error break a rule, too."""
    expected = weir.expect(
        warn={"small": "id < 9000", "none is null": "nullif(text, 'none') != ''"},
        drop={"not five": F.col("part") != 5},
        reject={"a number": "cast(text AS long) >= 0", "not 7": lambda frame: frame["id"] != 7},
    )
    frame, made = expecting(given, expected)
    assert frame.schema == given.schema
    rows, rejects, counts = computed(frame, made)
    broken = {n: n % 100 == 0 or n == 7 for n in range(ROWS)}
    assert sorted(one["id"] for one in rows) == [
        n for n in range(ROWS) if n % 7 != 5 and not broken[n]
    ]
    assert sorted(json.loads(one.row)["id"] for one in rejects) == [n for n in broken if broken[n]]
    assert {one.error for one in rejects} == {"breaks 'a number'", "breaks 'not 7'"}
    assert counts == {
        ("price", ""): 101,
        ("price", "small"): 1000,
        ("price", "none is null"): 100,
        ("price", "not five"): sum(n % 7 == 5 for n in range(ROWS)),
        ("price", "a number"): 100,
        ("price", "not 7"): 1,
    }


def test_a_rule_may_fail_the_job(given: DataFrame) -> None:
    """The message has the step, the rule and the row."""
    frame, _ = expecting(given, weir.expect(fail={"no 77": "id != 77"}))
    with pytest.raises(Exception, match="Step 'price': a row breaks 'no 77'") as failed:
        frame.collect()
    read = read_error(failed.value)
    assert read.said == ("""Step 'price': a row breaks 'no 77': {"id":77,"text":"77","part":0}""")
    assert read.final


@pytest.mark.parametrize("rule", ["idd > 3", "id >", "array(id)", lambda frame: frame["idd"] > 3])
def test_a_rule_that_is_not_a_condition_is_refused_by_name(given: DataFrame, rule: Any) -> None:
    """Without a restart, and with the columns that there are."""
    expected = r"The rule 'x' of step 'price' is not a condition .*columns id, "
    with pytest.raises(PipelineError, match=expected) as refused:
        expecting(given, weir.expect(drop={"x": rule}))
    assert is_fatal(refused.value)
    assert "\n" not in str(refused.value)


def test_a_rule_that_calls_a_python_function_is_refused(given: DataFrame) -> None:
    """Its errors could not be caught."""
    with pytest.raises(PipelineError, match="The rule 'udf' of step 'price' calls a Python"):
        expecting(given, weir.expect(drop={"udf": by_row("text") > 3}))
