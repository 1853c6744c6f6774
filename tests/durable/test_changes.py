"""``Changes``: which differences between a checkpoint and the pipeline are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.changes import changes_of
from tests.kit.sample_checkpoint import checkpoint

from weir import Job
from weir.core.types import CompletedCheckpoint, Fingerprint, OperatorState, SnapshotKind, TaskState
from weir.definition import declared_operators
from weir.durable.changes import WORDING, declared
from weir.errors import JobError
from weir.job import definition_of
from weir.operators import Operator
from weir.sinks import DeltaTable, Files, Foreach, PostgresTable
from weir.sources import FileSource
from weir.storage import metadata

JOB = "a" * 32


class Scored(Operator):
    """An operator with a key."""

    output_schema = "k string"


def job(*, path: str = "out", source: str = "in", key: str = "k", name: str = "out") -> Job:
    """A job of one source, one Python operator and one sink."""
    made = Job("orders")
    rows = made.source("rows", FileSource(source, format="json", schema="k string, i string"))
    rows.process("score", Scored(), key_by=key).sink(name, Files(path))
    return made


def checkpoint_of(
    made: Job, *, job_id: str = JOB, without: bool = False, **found: Fingerprint
) -> CompletedCheckpoint:
    """A checkpoint that the job took; ``found`` are fingerprints that Spark's plan gave."""
    prints = {
        name: one.fingerprint for name, one in declared_operators(definition_of(made)).items()
    }
    operators = tuple(
        replace(operator, fingerprint=found.get(operator.operator_id, prints[operator.operator_id]))
        for vertex in definition_of(made).vertices()
        for operator in vertex.operators
    )
    if without:
        operators = tuple(replace(operator, fingerprint=None) for operator in operators)
    return CompletedCheckpoint(
        job_id=job_id,
        checkpoint_id=7,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=1,
        completion_timestamp_ms=2,
        attempt=1,
        tasks=(TaskState(vertex="score", position=1, operators=operators),),
        external_path="/checkpoints/chk-7",
    )


def test_a_pipeline_that_is_as_it_was_is_accepted_without_a_word() -> None:
    """Nothing is said, however often it starts."""
    said: list[str] = []
    changes_of(job(), note=said.append).check_start(checkpoint_of(job()), JOB)
    assert not said


@pytest.mark.parametrize(
    ("now", "step", "old", "new"),
    [
        (job(path="other"), "out", "/out", "/other"),
        (job(source="landing"), "rows", "/in", "/landing"),
        (job(key="i"), "score", "key by k", "key by i"),
    ],
)
def test_a_change_is_refused_with_the_step_old_and_new_and_the_decision(
    now: Job, step: str, old: str, new: str
) -> None:
    """A sink's path, a source's path and the key of a Python operator."""
    with pytest.raises(JobError) as refused:
        changes_of(now).check_start(checkpoint_of(job()), JOB)
    for words in (repr(step), old, new, f"--accept-changed-state {step}", "another uid"):
        assert words in str(refused.value)


def test_an_accepted_change_is_said_once() -> None:
    """However many attempts a driver starts."""
    said: list[str] = []
    changes = changes_of(job(path="other"), accepted=["out"], note=said.append)
    for _ in range(3):
        changes.check_start(checkpoint_of(job()), JOB)
    (line,) = said
    assert "accepted" in line
    assert "/other" in line


def test_where_a_sink_has_the_name_of_its_step_a_change_is_accepted_by_id() -> None:
    """To accept a new target is not to accept another key."""
    before = checkpoint_of(job(name="score"))
    for now, called, other in (
        (job(name="score", path="other"), "score-sink", "score"),
        (job(name="score", key="i"), "score", "score-sink"),
    ):
        changes_of(now, accepted=[called]).check_start(before, JOB)
        with pytest.raises(JobError, match=f"--accept-changed-state {called}[;,. ]"):
            changes_of(now, accepted=[other]).check_start(before, JOB)


def test_a_checkpoint_without_fingerprints_is_accepted_and_that_is_said_once() -> None:
    """Checkpoints of earlier versions have none."""
    said: list[str] = []
    changes = changes_of(job(path="other"), note=said.append)
    changes.check_start(checkpoint_of(job(), without=True), JOB)
    changes.check_start(checkpoint_of(job(), without=True), JOB)
    (line,) = said
    assert "no fingerprints" in line


def test_a_snapshot_of_another_job_may_go_into_other_tables() -> None:
    """``--from-savepoint`` draws a new job id: only its sinks are not compared."""
    foreign = checkpoint_of(job(), job_id="b" * 32)
    changes_of(job(path="other")).check_start(foreign, JOB)
    with pytest.raises(JobError, match="rows"):
        changes_of(job(source="landing")).check_start(foreign, JOB)


def test_an_operator_that_only_one_side_has_is_not_compared() -> None:
    """The state mapping decides about added, removed and renamed steps."""
    changes_of(job(name="new", path="other")).check_start(checkpoint_of(job()), JOB)


def test_another_spelling_of_a_path_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative, absolute, as a URI, or through a symbolic link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "out").mkdir()
    before = checkpoint_of(job(path="out"))
    for path in ("./out/", str(tmp_path / "out"), (tmp_path / "out").as_uri(), "link"):
        changes_of(job(path=path)).check_start(before, JOB)


@pytest.mark.parametrize("other", [{"version": WORDING + 1}, {"engine": "Spark 9.9.9"}])
def test_words_of_another_version_or_of_another_engine_are_only_said(
    other: dict[str, object],
) -> None:
    """The same expression may be written in another way there."""
    before = replace(declared(engine="Spark 4.1.1", expressions=["limit 1"]), **other)  # type: ignore[arg-type]
    now = declared(engine="Spark 4.1.1", expressions=["limit 2"])
    said: list[str] = []
    changes = changes_of(job(), note=said.append)
    changes.check({"score": now}, checkpoint_of(job(), score=before))
    (line,) = said
    assert '"limit 1"' in line
    assert '"limit 2"' in line


def test_expressions_in_another_order_are_a_change() -> None:
    """Each has its place in the state."""
    before, now = declared(expressions=["a", "b"]), declared(expressions=["b", "a"])
    with pytest.raises(JobError, match="another order"):
        changes_of(job()).check({"score": now}, checkpoint_of(job(), score=before))


def test_a_watermark_where_there_was_none_is_no_change() -> None:
    """No row has been late by it; one that is gone or another delay is a change."""
    words = ("group by k: count(1)", "watermark on ts, 1 minute")
    without, timed = declared(expressions=words[:1]), declared(expressions=words)
    changes_of(job()).check({"score": timed}, checkpoint_of(job(), score=without))
    for before, now in (
        (timed, without),
        (timed, declared(expressions=(words[0], "watermark on ts, 2 minutes"))),
    ):
        with pytest.raises(JobError, match="watermark on ts, 1 minute"):
            changes_of(job()).check({"score": now}, checkpoint_of(job(), score=before))


def test_a_finished_job_with_another_input_or_output_is_not_finished() -> None:
    """Nor with one more; only with what it had, or what is accepted, it is."""
    done = checkpoint_of(job())
    changes_of(job()).check_finished(done, {})
    with pytest.raises(JobError, match=r"finished.*sink 'out' wrote .*/out.*/other"):
        changes_of(job(path="other")).check_finished(done, {})
    with pytest.raises(JobError, match=r"finished.*source 'rows' read .*/in.*/landing"):
        changes_of(job(source="landing")).check_finished(done, {})
    with pytest.raises(JobError, match=r"finished.*new sink, 'more'"):
        changes_of(job(name="more")).check_finished(done, {})
    changes_of(job(path="other"), accepted=["out"]).check_finished(done, {})
    changes_of(job(key="i")).check_finished(done, {})


def test_a_sources_input_that_only_spark_knows_is_compared_once_it_is_known() -> None:
    """A job that has finished starts Spark for it, unless the user has accepted it."""
    made = Job("orders")
    made.source("rows", lambda spark: spark.readStream.format("rate").load()).sink(
        "out", Files("out")
    )
    done = checkpoint_of(made, rows=declared(identity="json files at /in"))
    changes = changes_of(made)
    assert changes.source_ids(done) == {"rows"}
    assert not changes_of(made, accepted=["rows"]).source_ids(done)
    with pytest.raises(JobError, match="'rows' read json files at /in"):
        changes.check_finished(done, {"rows": declared(identity="json files at /other")})


def test_a_sink_is_known_by_its_target_however_that_is_written() -> None:
    """Not by its columns, its format or its options."""
    for sink, identity in (
        (DeltaTable("s3a://lake/orders", partition_by=["day"]), "DeltaTable at s3://lake/orders"),
        (DeltaTable("s3://lake/orders/"), "DeltaTable at s3://lake/orders"),
        (Files("/data/out", format="json"), "Files at /data/out"),
        (PostgresTable("host=db dbname=shop", "orders"), "PostgresTable orders at db:5432/shop"),
        (
            PostgresTable("postgresql://weir@db/shop", "public.orders"),
            "PostgresTable orders at db:5432/shop",
        ),
        (Foreach(lambda frame, info: None), "Foreach"),
    ):
        assert sink.identity() == identity


def test_no_password_is_kept() -> None:
    """Nor an address in memory, which would be another in each run."""
    sink = Foreach(lambda frame, info: None, describe="kafka://me:secret@host at 0x7f00ab")
    assert declared(identity=sink.identity()).identity == "Foreach kafka://******@host"


def test_a_fingerprint_is_read_back_from_the_metadata_and_may_be_missing_there() -> None:
    """A file of an earlier version has no such field."""
    kept = OperatorState(
        operator_id="v", name="v", fingerprint=declared(identity="x", expressions=["a", "b"])
    )
    plain = checkpoint(7, "/checkpoints/chk-7")
    task, *others = plain.tasks
    made = replace(plain, tasks=(replace(task, operators=(kept,)), *others))
    assert metadata.decode(metadata.encode(made), made.external_path) == made
