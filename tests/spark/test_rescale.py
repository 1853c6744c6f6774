"""Changing a query's number of state partitions on real Spark: restore and first batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.kit.rig import Collected, Landing, Rig, Rows, one_vertex
from tests.kit.waiting import wait_until
from tests.spark.queries import QUERIES, Query

from weir.core.messages.task import Drained, RecordsEnded
from weir.core.types import TaskState
from weir.errors import PipelineError
from weir.job import Job
from weir.operators import Operator
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.rescale import StatePartitions, rescaled
from weir.spark.state.rocksdb_files import StateFiles
from weir.storage.local import LocalFileSystem

pytestmark = pytest.mark.spark

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

NEEDS_REPARTITION = pytest.mark.needs_spark("4.2", "the repartitioning of a stopped query's state")


@pytest.fixture(autouse=True)
def _number_of_the_session(spark: SparkSession) -> Iterator[None]:
    """The session is shared with other tests, which need its two partitions."""
    yield
    spark.conf.set(SHUFFLE_PARTITIONS, "2")


def state_at(position: int) -> TaskState:
    """The state of a task at this position."""
    return TaskState(vertex="query", position=position, operators=())


def ended(rig: Rig) -> int:
    """Wait for the end of the input; return the position."""
    return rig.wait_for(RecordsEnded).position


def moved(rig: Rig, begun: int, position: int, target: Path) -> None:
    """Copy exactly the files that a snapshot names, for a task started at one position."""
    inline, files = rig.directory.source_entries(position)
    keys = StateFiles(rig.directory, [], max(begun - 1, -1)).keys(position)
    for key in (*rig.directory.log_entries(position), *inline, *files, *keys):
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_bytes((rig.path / key).read_bytes())


@NEEDS_REPARTITION
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a left outer join", marks=pytest.mark.slow),
        pytest.param("session windows", marks=pytest.mark.slow),
        "duplicates within the watermark",
    ],
)
def test_state_goes_from_2_to_5_to_3_partitions(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Each time from exactly the files that a snapshot names; all rows together equal the batch
    computation."""
    landing = Landing(tmp_path / "in")
    query, rows, state = QUERIES[name], Rows(), state_at(-1)
    for life, partitions in enumerate((2, 5, 3)):
        landing.land(2)
        job, sink = query.job(landing)
        path = tmp_path / str(life)
        directory = QueryDirectory(LocalFileSystem(), str(path))
        if state.position >= 0:
            before = state.position
            state = rescaled(spark, "query", directory, state, partitions)
            # What Spark calls it: one more batch, which reads nothing.
            assert state.position == before + 1
            assert directory.source_entries(before) == directory.source_entries(state.position)
            assert directory.state_partitions(state.position) == partitions
        begun = state.position
        with Rig(spark, job, path, position=begun) as rig:
            state = state_at(ended(rig))
            if partitions == 3:
                rig.drain(state.position)
                rig.wait_for(Drained)
            else:
                moved(rig, begun, state.position, tmp_path / str(life + 1))
        assert len((rig.directory.commit_entry(state.position).state_ids or {})["0"]) == partitions
        rows += sink.rows()
    assert rows == query.batch(landing.table(spark))


@pytest.mark.slow
def test_a_query_without_state_just_runs_with_the_new_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No batch is added, and the next batch has the number."""
    landing = Landing(tmp_path / "in")
    landing.land(2)
    query = Query(lambda frame: frame.repartition("id"))
    job, sink = query.job(landing)
    with Rig(spark, job, tmp_path / "query") as rig:
        position = ended(rig)
    state = state_at(position)
    assert rescaled(spark, "query", rig.directory, state, 5) is state
    landing.land(1)
    again, more = query.job(landing)
    with Rig(spark, again, tmp_path / "query", position=position) as rig:
        assert rig.directory.state_partitions(ended(rig)) == 5
    assert sink.rows() + more.rows() == query.batch(landing.table(spark))


@NEEDS_REPARTITION
def test_state_that_spark_does_not_repartition_is_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A global limit has one partition, whatever is requested: the error has both numbers, Spark's
    text and the way out."""
    landing = Landing(tmp_path / "in")
    landing.land(1)
    job, _ = Query(lambda frame: frame.limit(5)).job(landing)
    with Rig(spark, job, tmp_path / "query") as rig:
        position = ended(rig)
    with pytest.raises(PipelineError) as refused:
        rescaled(spark, "query", rig.directory, state_at(position), 5)
    message = str(refused.value)
    assert message.startswith(
        "The state of the chain ending in 'query' cannot go from 2 partitions to 5, because"
        " Spark says [STDS_"
    )
    assert message.endswith(
        "run it with 2 as before (parallelism=2 at one of its steps, or parallelism.default), or"
        " start from scratch with --fresh and new tables."
    )


def test_a_step_asks_for_the_number_of_its_own_query(spark: SparkSession, tmp_path: Path) -> None:
    """The session gets its own number back once the query has started; without a request it keeps
    its number."""
    landing = Landing(tmp_path / "in")
    landing.land(1)
    job = Job("numbers")
    kept = job.source("numbers", landing.source, bounded=True).transform(
        "kept", lambda frame: frame.dropDuplicates(["id"]), parallelism=3
    )
    kept.sink("out", Collected())
    vertex = one_vertex(job)
    partitions = StatePartitions(spark, {"kept": vertex})
    with ExitStack() as stack:
        with partitions.starting("kept"):
            rig = stack.enter_context(Rig(spark, job, tmp_path / "query"))
        assert spark.conf.get(SHUFFLE_PARTITIONS) == "2"
        state = state_at(ended(rig))
    assert rig.directory.state_partitions(state.position) == 3
    nobody = StatePartitions(spark, {"kept": replace(vertex, parallelism=None)})
    assert nobody.of("kept") == 2
    assert nobody.restored("kept", rig.directory, state) is state
    assert (partitions.of("kept"), nobody.of("kept")) == (3, 3)


def test_of_the_queries_that_wait_the_first_in_the_graph_starts_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One starts at a time, whatever the order in which they arrive."""
    job = Job("numbers")
    job.source("numbers", Landing(tmp_path / "in").source).sink("out", Collected())
    vertex = one_vertex(job)
    partitions = StatePartitions(spark, dict.fromkeys(("first", "second", "third"), vertex))
    started: list[str] = []

    def start(name: str) -> None:
        with partitions.starting(name):
            started.append(name)

    with partitions.starting("first"):
        waiting = [
            threading.Thread(target=start, args=(name,)) for name in ("third", "second", "first")
        ]
        for number, thread in enumerate(waiting, start=1):
            thread.start()
            wait_until(lambda n=number: len(partitions._waiting) == n, "it waits")
        assert started == []
    for thread in waiting:
        thread.join()
    assert started == ["first", "second", "third"]


ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.parametrize(("of_user", "expected"), [(None, "100000"), ("500", "500")])
def test_the_user_s_size_of_arrow_batches_is_that_of_python_operators(
    spark: SparkSession, tmp_path: Path, of_user: str | None, expected: str
) -> None:
    """Without one they get larger batches than Spark's own; afterwards all is as it was."""
    job = Job("numbers")
    stream = job.source("numbers", Landing(tmp_path / "in").source)
    stream.process("kept", Operator(), parallelism=1).sink("out", Collected())
    partitions = StatePartitions(spark, {"kept": one_vertex(job)})
    before = spark.conf.get(ARROW_ROWS, None)
    try:
        if of_user is not None:
            spark.conf.set(ARROW_ROWS, of_user)
        with partitions.starting("kept"):
            assert spark.conf.get(ARROW_ROWS) == expected
        assert spark.conf.get(ARROW_ROWS, None) == (of_user or before)
    finally:
        spark.conf.unset(ARROW_ROWS)
