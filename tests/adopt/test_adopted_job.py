"""Jobs of a script's queries on real Spark: one shape of graph, exact whatever is added."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.kit.adopted import (
    NAME,
    SHAPES,
    TableSinks,
    adopted,
    no_socket,
    started,
    stream,
    table,
    wanted,
)
from tests.kit.live_job import RESTARTED, LiveJob, settings
from tests.kit.place import ROWS_PER_FILE, Place, assert_same, files_rows
from tests.kit.waiting import wait_until

from weir.adopt.identity import Before
from weir.adopt.job import AdoptedJob, before_start, check_started, job_of
from weir.core.graph import Vertex
from weir.core.status import JobStatus
from weir.errors import PipelineError
from weir.job import definition_of
from weir.launch.options import RunOptions
from weir.spark.adopt.query import StartedQuery, Trigger, TriggerKind

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).parent.parent / "kit" / "adopted_driver.py"
ALLOWED = {"execution.state-recovery.ignore-unclaimed-state": "true"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory with some numbers; what was started is ended with the test."""
    made = Place(tmp_path)
    made.land(4)
    yield made
    made.clear()


def conf_of(place: Place, changes: dict[str, str] | None = None) -> dict[str, str]:
    """Frequent checkpoints."""
    return settings(place, changes, interval="200ms")


def known(spark: SparkSession, place: Place) -> Before:
    """What the job's newest checkpoint has."""
    return before_start(NAME, {}, RunOptions(conf=conf_of(place)), spark)


def vertices(job: AdoptedJob) -> dict[str, Vertex]:
    """The vertices of a job by their names without hashes."""
    return {vertex.name: vertex for vertex in definition_of(job.job).vertices()}


def run(
    spark: SparkSession,
    place: Place,
    shapes: Sequence[str],
    until: Callable[[], object],
    changes: dict[str, str] | None = None,
    **how: Any,
) -> AdoptedJob:
    """Run the shapes as one job, from the last checkpoint, until something holds; suspend it."""
    job = adopted(spark, place, shapes, before=known(spark, place), **how)
    with LiveJob(job.job, conf_of(place, changes)) as live:
        wait_until(lambda: live._result.done() or until(), "the tables have the rows")
        if live._result.done():
            assert live.result().status is JobStatus.SUSPENDED, live.notes
    return job


def drain(spark: SparkSession, place: Place, shapes: Sequence[str], files: int) -> None:
    """Run the shapes from the last checkpoint over so many new files, and end them."""
    place.land(files)
    job = adopted(spark, place, shapes, before=known(spark, place))
    readers = {name for name, vertex in vertices(job).items() if not vertex.inputs}
    with LiveJob(job.job, conf_of(place)) as live:
        live.wait_for(
            lambda view: all(
                one.records_in >= files * ROWS_PER_FILE
                for one in view.vertices
                if one.vertex in readers
            ),
            "all queries read the new files",
        )
        wait_until(lambda: _is_idle(live), "everything is read")
        live.gateway.stop_with_savepoint(None, drain=True).result()
        assert live.result().drained, live.notes


def _is_idle(live: LiveJob) -> bool:
    """Whether two checkpoints in a row have found no further row."""
    before = [one.records_in for one in live.gateway.view().vertices]
    for _ in range(2):
        live.checkpoint()
    return before == [one.records_in for one in live.gateway.view().vertices]


def is_exact(spark: SparkSession, place: Place, *shapes: str) -> Callable[[], bool]:
    """Whether the tables of the shapes are what the batch computation says."""
    expected = {shape: wanted(spark, place, shape) for shape in shapes}
    return lambda: all(table(place, shape) == rows for shape, rows in expected.items())


def assert_exact(spark: SparkSession, place: Place, *shapes: str) -> None:
    """The tables of the shapes are what the batch computation says."""
    for shape in shapes:
        assert_same(table(place, shape), wanted(spark, place, shape), shape)


# -- the graph -------------------------------------------------------------------------------------


def test_queries_of_one_load_are_one_source_and_a_step_each(
    spark: SparkSession, place: Place
) -> None:
    """Also a query that is the reading itself; each step has one sink."""
    job = adopted(spark, place, ["itself", "evens", "counts"])
    graph = vertices(job)
    source, *steps = graph.values()
    assert [step.name for step in source.steps] == ["parquet-in"]
    assert source.sinks == ()
    assert [vertex.inputs for vertex in steps] == [(source.name,)] * 3
    assert [vertex.steps[-1].name for vertex in steps] == ["itself", "evens", "counts"]
    assert [vertex.sink_names for vertex in steps] == [
        ("itself-sink",),
        ("evens-sink",),
        ("counts-sink",),
    ]
    assert [vertex.emits_updates for vertex in steps] == [False, False, True]
    assert job.steps == dict(enumerate(vertex.name for vertex in steps))
    assert job.says == ()


def test_a_single_query_is_one_chain(spark: SparkSession, place: Place) -> None:
    """Its source and its step have the same ids as beside others."""
    three = vertices(adopted(spark, place, ["evens", "counts", "all"]))
    [alone] = vertices(adopted(spark, place, ["counts"])).values()
    assert [step.operator_id for step in alone.steps] == [next(iter(three)), alone.name]
    assert three[alone.name].sinks == alone.sinks


def test_the_order_of_the_script_changes_no_id(spark: SparkSession, place: Place) -> None:
    """With readings of one path that were loaded twice, too."""
    shapes = ["counts", "again", "all", "paired"]
    found = set()
    for order in itertools.permutations(shapes):
        graph = vertices(adopted(spark, place, order))
        found.add(frozenset((name, tuple(sorted(one.inputs))) for name, one in graph.items()))
    assert len(found) == 1


def test_an_update_query_that_emits_final_rows_runs_in_append_mode(
    spark: SparkSession, place: Place
) -> None:
    """Its sink need not know what to replace."""
    [once] = vertices(adopted(spark, place, ["once"])).values()
    assert not once.emits_updates


def test_sinks_learn_the_keys_of_what_they_get(spark: SparkSession, place: Place) -> None:
    """Of updates, and of complete mode unless a filter follows the aggregation."""
    numbers = stream(spark, place)
    counts = numbers.groupBy("id").count()
    made = TableSinks()
    queries = [
        started(numbers, name="numbers", options={"path": str(place.directory / "a")}),
        started(
            counts.orderBy("id"),
            name="counts",
            output_mode="complete",
            options={"path": str(place.directory / "b")},
        ),
        started(
            counts.where("count > 1"),
            name="many",
            format="console",
            output_mode="complete",
            options={"path": str(place.directory / "c")},
        ),
    ]
    job_of(queries, name=NAME, conf={}, sink_of=made, landed=no_socket, directory="/own")
    assert made.asked == {
        "numbers": (False, None),
        "counts": (True, ("id",)),
        "many": (True, None),
    }


def test_two_loads_of_one_path_are_said(spark: SparkSession, place: Place) -> None:
    """With the lines of the queries; a stream joined with itself is not."""
    job = adopted(spark, place, ["evens", "again", "paired"])
    [said] = job.says
    assert said.startswith("script.py, line 10 and script.py, line 11: parquet files at /")
    assert "call load() once" in said


def test_a_socket_is_landed_in_a_directory_of_its_source(spark: SparkSession) -> None:
    """Whatever lands it gets the address, and the directory lasts."""
    reader = spark.readStream.format("socket").option("host", "here").option("port", 9999)
    lines = reader.option("includeTimestamp", True).load()
    found = []

    def landed(
        host: str, port: int, include_timestamp: bool, directory: str
    ) -> Callable[[SparkSession], DataFrame]:
        found.append((host, port, include_timestamp, directory))
        return lambda spark: lines

    queries = [
        started(lines.select("value"), name=name, format="console", options={"path": f"/{name}"})
        for name in "ab"
    ]
    for query in queries:
        check_started(query)
    job = job_of(queries, name=NAME, conf={}, sink_of=TableSinks(), landed=landed, directory="/own")
    source = next(iter(vertices(job)))
    assert found == [("here", 9999, True, f"/own/{source}")]


# -- exactly once ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.kill
def test_queries_can_be_added_after_a_kill_and_removed(spark: SparkSession, place: Place) -> None:
    """One aggregation, killed; three queries; one again: its table is exact at each stage. Those
    that were added have the rows from the cut on, and that is said."""
    shapes = ["evens", "counts", "itself"]
    killed(place, 3, "counts")
    first = sum(n for _, n, _ in table(place, "counts").elements())
    place.land(3)
    job = run(spark, place, shapes, is_exact(spark, place, "counts"))
    said = [one for one in job.says if "is new" in one]
    assert [one.split(":")[0] for one in said] == ["script.py, line 10", "script.py, line 12"]
    copied = table(place, "itself")
    assert 0 < copied.total() <= place.rows().total() - first
    assert copied == copied & place.rows()
    place.land(3)
    run(spark, place, ["counts"], is_exact(spark, place, "counts"), ALLOWED)


def killed(place: Place, nth: int, *shapes: str) -> None:
    """Run the shapes in a process that dies after its Nth checkpoint."""
    root = Path(__file__).parent.parent.parent
    paths = os.pathsep.join(map(str, (root / "src", root)))
    driver = place.launch(
        [sys.executable, str(DRIVER), str(place.directory), str(nth), *shapes],
        {"PYTHONPATH": paths},
    )
    assert driver.wait() == -signal.SIGKILL, driver.story()


@pytest.mark.slow
@pytest.mark.kill
def test_three_queries_that_share_a_reading_are_exact_after_a_kill(
    spark: SparkSession, place: Place
) -> None:
    """A window, updates and the rows themselves, in another order after the kill."""
    shapes = ["itself", "minutes", "counts"]
    killed(place, 3, *shapes)
    drain(spark, place, shapes[::-1], 4)
    assert_exact(spark, place, *shapes)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("paired", "evens"), ("minutes", "again")])
def test_state_stays_with_its_query_when_another_is_added(
    spark: SparkSession, place: Place, before: str, after: str
) -> None:
    """A join of which one side is now shared, and a window beside a second load of its input."""
    run(spark, place, [before], lambda: table(place, before))
    drain(spark, place, [after, before], 4)
    assert_exact(spark, place, before)


@pytest.mark.parametrize(
    "shapes",
    [
        ("paired", "evens"),
        ("paired_twice", "all"),
        ("once", "ranked", "named"),
        pytest.param(("minutes", "paired", "paired_twice", "again"), marks=pytest.mark.slow),
    ],
    ids="+".join,
)
def test_tables_equal_the_batch_computation(
    spark: SparkSession, place: Place, shapes: tuple[str, ...]
) -> None:
    """Joins of a stream with itself and with a second load, unions, complete mode."""
    run(spark, place, shapes, lambda: any(table(place, shape) for shape in shapes))
    drain(spark, place, shapes, 3)
    assert_exact(spark, place, *shapes)


@pytest.mark.slow
def test_a_query_that_reads_apart_begins_at_the_start(spark: SparkSession, place: Place) -> None:
    """And goes on so without being asked again."""
    run(spark, place, ["all"], is_exact(spark, place, "all"))
    place.land(1)
    both = ["all", "evens"]
    job = run(spark, place, both, is_exact(spark, place, *both), read_apart=frozenset({"evens"}))
    assert job.says == ()
    place.land(1)
    assert run(spark, place, both, is_exact(spark, place, *both)).says == ()


def test_attempts_in_one_process_begin_from_the_same_plans(
    spark: SparkSession, place: Place
) -> None:
    """A function of the script fails twice, and no row is lost or doubled."""
    marks = place.directory / "marks"
    marks.mkdir()
    path = str(marks)

    @F.udf("long")
    def fails_twice(number: int) -> int:
        found = len(list(Path(path).iterdir()))
        if number == ROWS_PER_FILE + 1 and found < 2:
            Path(path, str(found)).touch()
            raise ValueError("once more")
        return number

    numbers = stream(spark, place)
    job = job_of(
        [
            started(numbers, name="all", options={"path": str(place.directory / "out" / "all")}),
            started(
                numbers.select(fails_twice("id").alias("id")).where("id % 2 = 0"),
                name="evens",
                options={"path": str(place.directory / "out" / "evens")},
            ),
        ],
        name=NAME,
        conf={},
        sink_of=TableSinks(),
        landed=no_socket,
        directory=str(place.directory / "own"),
    )
    with LiveJob(job.job, conf_of(place, RESTARTED)) as live:
        wait_until(is_exact(spark, place, "all", "evens"), "both tables have all rows")
        assert live.gateway.view().attempt == 3
    assert len(list(marks.iterdir())) == 2


def test_names_of_files_are_those_of_the_input_whatever_else_the_script_has(
    spark: SparkSession, place: Place
) -> None:
    """input_file_name() gets a reading of its own, and metadata come with the shared one."""
    numbers = stream(spark, place)
    out = place.directory / "out"
    name = F.element_at(F.split("path", "/"), -1)
    queries = [
        started(numbers, name="all", options={"path": str(out / "all")}),
        started(
            numbers.select("id", F.input_file_name().alias("path")).select("id", name),
            name="named",
            options={"path": str(out / "named")},
        ),
        started(
            numbers.select("id", "_metadata.file_name"),
            name="meta",
            options={"path": str(out / "meta")},
        ),
    ]
    job = job_of(
        queries, name=NAME, conf={}, sink_of=TableSinks(), landed=no_socket, directory="/own"
    )
    sources = [one for one in vertices(job).values() if one.steps[0].kind.value == "source"]
    assert len(sources) == 2
    expected = {(n, f"{n // ROWS_PER_FILE:03}.parquet"): 1 for n in range(4 * ROWS_PER_FILE)}
    with LiveJob(job.job, conf_of(place)):
        wait_until(
            lambda: (
                files_rows(out / "meta") == expected == files_rows(out / "named")
                and files_rows(out / "all") == place.rows()
            ),
            "all files are named",
        )


# -- what is refused -------------------------------------------------------------------------------


def refused(*queries: StartedQuery, **how: Any) -> str:
    """Why a job of these queries is refused."""
    with pytest.raises(PipelineError) as found:
        job_of(
            queries,
            name=NAME,
            conf={},
            sink_of=TableSinks(),
            landed=no_socket,
            directory="/own",
            **how,
        )
    return str(found.value)


@pytest.mark.parametrize("kind", [TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME])
def test_triggers_without_batches_are_refused(
    spark: SparkSession, place: Place, kind: TriggerKind
) -> None:
    """At the line of start()."""
    query = started(stream(spark, place), 7, trigger=Trigger(kind=kind))
    with pytest.raises(PipelineError, match=r"script.py, line 7: .* no batches"):
        check_started(query)
    assert refused(query).startswith("script.py, line 7: ")


def test_queries_of_several_sessions_are_refused(spark: SparkSession, place: Place) -> None:
    """A job has one session."""
    other = spark.newSession()
    why = refused(
        started(stream(spark, place), 7, name="a"), started(stream(other, place), 9, name="b")
    )
    assert why.startswith("script.py, line 9: the query belongs to another session than that of")
    assert "line 7" in why


def test_frames_of_spark_connect_are_refused() -> None:
    """Their plans are in another process."""
    query = started(object(), 7)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"script.py, line 7: .* Spark Connect"):
        check_started(query)


def test_a_trigger_for_what_is_available_and_another_are_refused(
    spark: SparkSession, place: Place
) -> None:
    """With both lines."""
    numbers, now = stream(spark, place), Trigger(kind=TriggerKind.AVAILABLE_NOW)
    why = refused(started(numbers, 7, name="a", trigger=now), started(numbers, 9, name="b"))
    assert why.startswith("script.py, line 7 and script.py, line 9: ")


def test_complete_mode_that_updates_cannot_make_is_refused(
    spark: SparkSession, place: Place
) -> None:
    """With the line and what to do."""
    numbers = stream(spark, place)
    counts = numbers.groupBy("id").count()
    sessions = numbers.withWatermark("ts", "1 minute").groupBy(F.session_window("ts", "1 minute"))
    for frame, why in [
        (sessions.count(), "session window"),
        (counts.where("count > 3"), "a filter after its aggregation"),
        (counts.orderBy("count").limit(3), "GlobalLimit after its aggregation"),
    ]:
        query = started(frame, 7, format="memory", name="a", output_mode="complete")
        with pytest.raises(PipelineError, match=f"(?s)script.py, line 7: .* {why}"):
            check_started(query)
        assert why in refused(query)


def test_only_queries_of_the_script_can_read_apart(spark: SparkSession, place: Place) -> None:
    """A mistyped name is an error."""
    why = refused(started(stream(spark, place), name="a"), read_apart=frozenset({"b"}))
    assert "--read-apart names 'b'" in why


def test_a_query_that_shares_a_reading_cannot_read_apart_later(
    spark: SparkSession, place: Place
) -> None:
    """Its position is that of the others."""
    [source, *_] = vertices(adopted(spark, place, ["all", "evens"]))
    steps = adopted(spark, place, ["all", "evens"]).steps
    before = Before(reads=dict.fromkeys(steps.values(), (source,)))
    with pytest.raises(PipelineError, match="is named by --read-apart, but in the last checkpoint"):
        adopted(spark, place, ["all", "evens"], before=before, read_apart=frozenset({"evens"}))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda numbers: {"frame": numbers.groupBy("id").count()},
            AnalysisException,
            "streaming aggregations",
        ),
        (lambda numbers: {"output_mode": "complete"}, AnalysisException, "omplete"),
        (
            lambda numbers: {"output_mode": "update", "frame": numbers.orderBy("id")},
            AnalysisException,
            "ort",
        ),
        (lambda numbers: {"output_mode": "update"}, AnalysisException, "pdate"),
        (lambda numbers: {"options": {}}, IllegalArgumentException, "path"),
        (lambda numbers: {"format": "memory"}, AnalysisException, "queryName"),
        (lambda numbers: {"format": "no-such"}, Exception, "no-such"),
        (lambda numbers: {"partition_by": ("day",)}, AnalysisException, "day"),
    ],
)
def test_what_spark_refuses_at_start_is_refused_there_by_spark(
    spark: SparkSession,
    place: Place,
    change: Callable[[DataFrame], dict[str, Any]],
    error: type[Exception],
    said: str,
) -> None:
    """The exceptions that a script may catch, and their texts."""
    numbers = stream(spark, place)
    query = started(numbers, 7, format="parquet", options={"path": "/out"})
    check_started(query)
    with pytest.raises(error, match=said) as found:
        check_started(replace(query, **change(numbers)))
    assert not isinstance(found.value, PipelineError)


def test_a_source_that_removes_its_files_is_refused(spark: SparkSession, place: Place) -> None:
    """By line, as it is in a pipeline."""
    reader = spark.readStream.schema("id long").option("cleanSource", "delete")
    query = started(reader.parquet(str(place.directory / "in")), 7, options={"path": "/out"})
    with pytest.raises(PipelineError, match=r"script.py, line 7: .* cleanSource='delete'"):
        check_started(query)


def test_every_shape_is_what_spark_takes(spark: SparkSession, place: Place) -> None:
    """So that these tests run nothing that a script could not."""
    numbers = stream(spark, place)
    for name, shape in SHAPES.items():
        frame = shape.query(numbers, lambda: stream(spark, place))
        check_started(started(frame, name=name, format="memory", output_mode=shape.mode))
