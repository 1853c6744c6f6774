"""What a release of Spark lacks is refused by name, before a JVM starts."""

from __future__ import annotations

import json
from dataclasses import replace

import pyspark
import pytest
from tests.kit.sample_checkpoint import checkpoint

import weir
from weir.config import Configuration
from weir.core.graph import Vertex
from weir.core.types import CompletedCheckpoint, SnapshotKind, TaskState
from weir.definition import JobDefinition
from weir.errors import PipelineError, UnsupportedEnvironmentError
from weir.job import definition_of
from weir.launch.earlier_run import fits
from weir.spark.releases import RELEASE_ENTRY, check_checkpoint, guards_nullability
from weir.spark.session.environment import check_spark
from weir.spark.state.rescale import check_rescaling

GUARD = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"


def taken_with(version: str | None, kind: SnapshotKind) -> CompletedCheckpoint:
    """A checkpoint of this version of Spark; None: of a version that it does not name."""
    made = checkpoint(7, "/checkpoints/chk-7", kind=kind)
    entries = {} if version is None else {RELEASE_ENTRY: version}
    return replace(made, tasks=tuple(replace(task, entries=entries) for task in made.tasks))


@pytest.mark.parametrize("version", ["4.0.5", "3.5.9", "5.0.0"])
def test_a_release_that_weir_does_not_run_on_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The message has its version and the supported ones."""
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(UnsupportedEnvironmentError) as refused:
        check_spark()
    assert str(refused.value) == (
        f"PySpark {version} is installed, but Weir needs 4.1 or newer, below 5:"
        " pip install 'pyspark>=4.1,<5'."
    )


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.10.0"])
def test_a_release_that_weir_runs_on_is_accepted(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Its patch does not matter."""
    monkeypatch.setattr(pyspark, "__version__", version)
    check_spark()


@pytest.mark.parametrize(
    ("taken", "installed"),
    [("4.2.0", "4.1.4"), ("4.3.0", "4.1.4"), ("4.3.0", "4.2.1"), ("4.10.0", "4.3.0")],
)
def test_a_checkpoint_of_a_newer_release_is_refused(
    monkeypatch: pytest.MonkeyPatch, taken: str, installed: str
) -> None:
    """The message has both releases and the checkpoint's path."""
    monkeypatch.setattr(pyspark, "__version__", installed)
    with pytest.raises(UnsupportedEnvironmentError) as refused:
        check_checkpoint(taken_with(taken, SnapshotKind.SAVEPOINT))
    release = taken.rpartition(".")[0]
    assert str(refused.value) == (
        f"The savepoint /checkpoints/chk-7 was taken with Spark {release}, but Spark {installed} is"
        f" installed, which may not be able to read it: install PySpark {release} or newer."
    )


@pytest.mark.parametrize(
    ("taken", "installed"),
    [
        *(("4.1.4", "4.1.4"), ("4.1.4", "4.1.0"), ("4.1.4", "4.2.1"), ("4.1.4", "4.3.0")),
        *(("4.2.1", "4.3.0"), (None, "4.1.4"), ("of my own", "4.1.4")),
    ],
)
def test_a_checkpoint_of_an_older_release_is_accepted(
    monkeypatch: pytest.MonkeyPatch, taken: str | None, installed: str
) -> None:
    """So is one of another patch, and one that does not name its release."""
    monkeypatch.setattr(pyspark, "__version__", installed)
    check_checkpoint(taken_with(taken, SnapshotKind.CHECKPOINT))


@pytest.mark.parametrize(
    ("installed", "conf", "guards"),
    [
        *(("4.1.4", None, False), ("4.2.1", None, False), ("4.3.0", None, True)),
        *(("4.3.0", {}, False), ("4.3.0", {GUARD: "false"}, False)),
        ("4.3.0", {GUARD: "true"}, True),
    ],
)
def test_a_query_keeps_to_the_way_in_which_it_began(
    monkeypatch: pytest.MonkeyPatch, installed: str, conf: dict[str, str] | None, guards: bool
) -> None:
    """A new query gets the guard of its release; one that goes on has what its log says."""
    monkeypatch.setattr(pyspark, "__version__", installed)
    assert guards_nullability(conf) is guards


# -- rescaling


def counting_job(parallelism: int | None = None) -> JobDefinition:
    """A job of one chain with an aggregation."""
    job = weir.Job("counts")
    source = job.source("rows", lambda spark: spark.readStream.load())
    counts = source.transform("counts", lambda frame: frame, parallelism=parallelism)
    counts.sink("out", weir.sinks.Files("/out"))
    return definition_of(job)


def counting(parallelism: int | None) -> Vertex:
    """Its chain."""
    (vertex,) = counting_job(parallelism).vertices()
    return vertex


def counted(vertex: Vertex, *, stateful: bool = True) -> TaskState:
    """Its task in a snapshot, with two partitions."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 5, "conf": conf}
    commit = {"nextBatchWatermarkMs": 0} | ({"stateUniqueIds": {"0": [["a"]]}} if stateful else {})
    return TaskState(
        vertex=vertex.name,
        position=4,
        operators=vertex.operators,
        entries={
            "offsets/4": f"v1\n{json.dumps(metadata)}\n{{}}",
            "commits/4": f"v2\n{json.dumps(commit)}",
        },
    )


def test_another_number_of_state_partitions_is_refused_by_a_release_that_cannot_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message has the release that can, and how to go on with this one."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    vertex = counting(5)
    with pytest.raises(PipelineError) as refused:
        check_rescaling(vertex, counted(vertex))
    assert str(refused.value) == (
        "The state of the chain ending in 'counts' cannot go from 2 partitions to 5, because Spark"
        " 4.1.4 cannot repartition the state of a stopped query, which Spark 4.2 can: run it with 2"
        " as before (parallelism=2 at one of its steps, or parallelism.default), or start from"
        " scratch with --fresh and new tables."
    )


def test_what_every_release_can_rescale_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number, no number, a query without state; and all of it on a later release."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    for parallelism, stateful in ((2, True), (None, True), (5, False)):
        vertex = counting(parallelism)
        check_rescaling(vertex, counted(vertex, stateful=stateful))
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    vertex = counting(5)
    check_rescaling(vertex, counted(vertex))


@pytest.mark.parametrize("key", ["parallelism.default", "spark.sql.shuffle.partitions"])
def test_what_a_start_checks_without_a_jvm_includes_the_release(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """So ``weir plan`` refuses it too; the number may come from the configuration."""
    state = counted(counting(None))
    taken = replace(checkpoint(7, "/checkpoints/chk-7"), tasks=(state,))
    newer = replace(state, entries=state.entries | {RELEASE_ENTRY: "4.3.0"})
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    fits(counting_job(), Configuration({key: "2"}))(taken)
    with pytest.raises(PipelineError, match="from 2 partitions to 3"):
        fits(counting_job(), Configuration({key: "3"}))(taken)
    with pytest.raises(UnsupportedEnvironmentError, match=r"taken with Spark 4\.3"):
        fits(counting_job(), Configuration({}))(replace(taken, tasks=(newer,)))
