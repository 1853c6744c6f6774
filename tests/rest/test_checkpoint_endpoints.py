"""The checkpoint endpoints that Flink's clients read: statistics, details, configuration."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import httpx
import numpy
import pytest
from tests.kit.gateway import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    JOB_ID,
    SNAPSHOT,
    SNAPSHOT_OF_CLEAN,
    VIEW,
    FakeGateway,
)

from weir.core.types import SnapshotMetrics
from weir.rest.flink import checkpoint_answers
from weir.rest.flink.checkpoint_answers import (
    checkpoint_config,
    checkpoint_details,
    percentiles,
    subtasks_info,
)
from weir.rest.schema.checkpoints import (
    Percentiles,
)

CHECKPOINTS = f"/v1/jobs/{JOB_ID}/checkpoints"
SUMMARY = {"min", "max", "avg", "p50", "p90", "p95", "p99", "p999"}
COMMON = {
    "className", "id", "status", "is_savepoint", "savepointFormat", "trigger_timestamp",
    "latest_ack_timestamp", "checkpointed_size", "state_size", "end_to_end_duration",
    "alignment_buffered", "processed_data", "persisted_data", "num_subtasks",
    "num_acknowledged_subtasks", "checkpoint_type", "tasks",
}  # fmt: skip


def test_the_statistics_have_flinks_fields(http: httpx.Client) -> None:
    """The answer has counts, summaries with all percentiles, the latest of each kind, and the
    history."""
    answer = http.get(CHECKPOINTS).json()
    assert set(answer) == {"counts", "summary", "latest", "history"}
    assert answer["counts"] == {
        "restored": 1,
        "total": 3,
        "in_progress": 1,
        "completed": 1,
        "failed": 1,
    }
    assert set(answer["summary"]) == {
        "checkpointed_size", "state_size", "end_to_end_duration", "alignment_buffered",
        "processed_data", "persisted_data",
    }  # fmt: skip
    assert all(set(summary) == SUMMARY for summary in answer["summary"].values())
    assert answer["summary"]["end_to_end_duration"]["max"] == 123
    assert answer["summary"]["end_to_end_duration"]["min"] == 100
    assert set(answer["latest"]) == {"completed", "savepoint", "failed", "restored"}
    assert answer["latest"]["savepoint"] is None
    assert answer["latest"]["restored"] == {
        "id": 6, "restore_timestamp": 4_000, "is_savepoint": False, "external_path": "/data/chk-6",
    }  # fmt: skip


def test_each_entry_of_the_history_says_of_which_class_it_is(http: httpx.Client) -> None:
    """The discriminator className distinguishes completed, failed and in-progress entries, which
    have fields of their own."""
    in_progress, failed, completed = http.get(CHECKPOINTS).json()["history"]
    assert [one["className"] for one in (in_progress, failed, completed)] == [
        "in_progress",
        "failed",
        "completed",
    ]
    assert set(in_progress) == COMMON
    assert set(failed) == COMMON | {"failure_timestamp", "failure_message"}
    assert set(completed) == COMMON | {"external_path", "discarded"}
    assert completed["external_path"] == "/data/chk-7"
    assert failed["failure_message"] == "expired before completing"
    assert in_progress["latest_ack_timestamp"] == -1


def test_savepoints_are_distinguished_from_checkpoints(http: httpx.Client) -> None:
    """A synchronous savepoint has its type, its format and the flag is_savepoint."""
    _, failed, completed = http.get(CHECKPOINTS).json()["history"]
    assert (failed["checkpoint_type"], failed["is_savepoint"], failed["savepointFormat"]) == (
        "SYNC_SAVEPOINT",
        True,
        "NATIVE",
    )
    assert (
        completed["checkpoint_type"],
        completed["is_savepoint"],
        completed["savepointFormat"],
    ) == (
        "CHECKPOINT",
        False,
        None,
    )


def test_acknowledged_subtasks_are_counted(http: httpx.Client) -> None:
    """Each vertex is one subtask, acknowledged once it has an acknowledgement time."""
    history = http.get(CHECKPOINTS).json()["history"]
    assert [(one["num_acknowledged_subtasks"], one["num_subtasks"]) for one in history] == [
        (0, 2),
        (1, 2),
        (2, 2),
    ]


def test_details_are_the_entry_with_its_tasks(http: httpx.Client) -> None:
    """GET .../details/:id adds one object for each vertex."""
    answer = http.get(f"{CHECKPOINTS}/details/7").json()
    assert set(answer) == COMMON | {"external_path", "discarded"}
    assert len(answer["tasks"]) == 2
    task = next(iter(answer["tasks"].values()))
    assert set(task) == {
        "id", "status", "latest_ack_timestamp", "checkpointed_size", "state_size",
        "end_to_end_duration", "alignment_buffered", "processed_data", "persisted_data",
        "num_subtasks", "num_acknowledged_subtasks",
    }  # fmt: skip
    assert (task["state_size"], task["checkpointed_size"], task["end_to_end_duration"]) == (
        9_000,
        4_500,
        90,
    )


def test_subtasks_have_both_parts_of_the_snapshot_and_the_alignment(http: httpx.Client) -> None:
    """GET .../details/:id/subtasks/:vertexid has the durations that MISSION B5 requires."""
    vertex = next(iter(http.get(f"{CHECKPOINTS}/details/7").json()["tasks"]))
    answer = http.get(f"{CHECKPOINTS}/details/7/subtasks/{vertex}").json()
    assert set(answer["summary"]) == {
        "checkpointed_size", "state_size", "end_to_end_duration", "checkpoint_duration",
        "alignment", "start_delay",
    }  # fmt: skip
    assert set(answer["summary"]["checkpoint_duration"]) == {"sync", "async"}
    assert set(answer["summary"]["alignment"]) == {"buffered", "processed", "persisted", "duration"}
    (subtask,) = answer["subtasks"]
    assert set(subtask) == {
        "className", "index", "status", "ack_timestamp", "end_to_end_duration", "checkpointed_size",
        "state_size", "checkpoint", "alignment", "start_delay", "unaligned_checkpoint", "aborted",
    }  # fmt: skip
    assert subtask["className"] == "completed"
    assert subtask["checkpoint"] == {"sync": 7, "async": 40}
    assert (subtask["alignment"]["duration"], subtask["start_delay"]) == (3, 11)


def test_an_unaligned_checkpoint_shows_what_it_persisted() -> None:
    """The subtask whose records were overtaken has the flag and the bytes, and the checkpoint has
    its type."""
    task = replace(SNAPSHOT_OF_CLEAN, metrics=SnapshotMetrics(unaligned=True, persisted_size=70))
    stats = replace(COMPLETED, tasks=(task,))
    (subtask,) = subtasks_info(stats, task).subtasks
    assert subtask.alignment is not None
    assert (subtask.unaligned_checkpoint, subtask.alignment.persisted) == (True, 70)
    details = checkpoint_details(stats)
    assert (details.checkpoint_type, details.persisted_data) == ("UNALIGNED_CHECKPOINT", 70)
    assert checkpoint_details(COMPLETED).checkpoint_type == "CHECKPOINT"


def test_the_configuration_says_whether_checkpoints_are_unaligned() -> None:
    """The aligned timeout is in milliseconds."""
    keys = {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "2 s",
    }
    answer = checkpoint_config(replace(VIEW, configuration=keys))
    assert (answer.unaligned_checkpoints, answer.aligned_checkpoint_timeout) == (True, 2_000)
    assert not checkpoint_config(VIEW).unaligned_checkpoints


def test_a_subtask_without_an_acknowledgement_is_pending(http: httpx.Client) -> None:
    """Its class is `pending`, and its summaries are present but empty."""
    vertex = next(iter(http.get(f"{CHECKPOINTS}/details/9").json()["tasks"]))
    answer = http.get(f"{CHECKPOINTS}/details/9/subtasks/{vertex}").json()
    assert answer["subtasks"] == [
        {"className": "pending", "index": 0, "status": "pending_or_failed"}
    ]
    assert set(answer["summary"]["state_size"]) == SUMMARY


def test_a_checkpoint_or_vertex_that_is_not_known_is_answered_with_404(http: httpx.Client) -> None:
    """The message names the id that was not found."""
    missing = http.get(f"{CHECKPOINTS}/details/99")
    assert missing.status_code == 404
    assert "99" in missing.json()["errors"][0]
    assert http.get(f"{CHECKPOINTS}/details/7/subtasks/{'0' * 32}").status_code == 404
    assert http.get(f"{CHECKPOINTS}/details/seven").status_code == 400


def test_the_checkpoint_configuration_is_read_from_the_keys_in_force(http: httpx.Client) -> None:
    """GET .../config has Flink's fields, with durations in milliseconds and Weir's defaults for
    keys left out."""
    answer = http.get(f"{CHECKPOINTS}/config").json()
    assert set(answer) == {
        "mode", "interval", "timeout", "min_pause", "max_concurrent", "externalization",
        "state_backend", "checkpoint_storage", "unaligned_checkpoints",
        "tolerable_failed_checkpoints", "aligned_checkpoint_timeout",
        "checkpoints_after_tasks_finish", "state_changelog_enabled",
        "changelog_periodic_materialization_interval", "changelog_storage",
    }  # fmt: skip
    assert (answer["mode"], answer["interval"], answer["timeout"]) == (
        "exactly_once",
        5_000,
        120_000,
    )
    assert answer["externalization"] == {"enabled": True, "delete_on_cancellation": False}


@pytest.mark.parametrize(
    ("retention", "enabled", "deletes"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", False, True),
        ("DELETE_ON_CANCELLATION", True, True),
        ("RETAIN_ON_CANCELLATION", True, False),
    ],
)
def test_the_retention_is_shown_by_flinks_two_flags(
    http: httpx.Client, gateway: FakeGateway, *, retention: str, enabled: bool, deletes: bool
) -> None:
    """The flags say whether checkpoints outlive the job, and whether a cancel deletes them."""
    key = "execution.checkpointing.externalized-checkpoint-retention"
    gateway.current = replace(VIEW, configuration={key: retention})
    answer = http.get(f"{CHECKPOINTS}/config").json()
    assert answer["externalization"] == {"enabled": enabled, "delete_on_cancellation": deletes}


def test_without_periodic_checkpoints_the_interval_is_javas_largest_long(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Flink shows the same value."""
    gateway.current = replace(VIEW, configuration={"execution.checkpointing.interval": "disabled"})
    assert http.get(f"{CHECKPOINTS}/config").json()["interval"] == 2**63 - 1


def test_the_latest_of_each_kind_are_whole_entries(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """The latest completed, savepoint and failed entries have the fields of the history, even when
    the history has dropped them."""
    savepoint = replace(
        FAILED, checkpoint_id=3, status="COMPLETED", external_path="/s", failure_message=None
    )
    gateway.current = replace(
        VIEW, checkpoints=replace(SNAPSHOT, history=(IN_PROGRESS,), latest_savepoint=savepoint)
    )
    latest = http.get(CHECKPOINTS).json()["latest"]
    assert (
        set(latest["completed"])
        == set(latest["savepoint"])
        == COMMON | {"external_path", "discarded"}
    )
    assert set(latest["failed"]) == COMMON | {"failure_timestamp", "failure_message"}
    assert (latest["completed"]["id"], latest["savepoint"]["id"], latest["failed"]["id"]) == (
        7,
        3,
        8,
    )
    assert http.get(f"{CHECKPOINTS}/details/3").json()["external_path"] == "/s"


def test_a_task_that_acknowledged_a_failed_checkpoint_keeps_its_figures(http: httpx.Client) -> None:
    """The figures show which task was slow: acknowledged tasks have a time, the others -1."""
    tasks = http.get(f"{CHECKPOINTS}/details/8").json()["tasks"].values()
    figures = [
        (one["status"], one["latest_ack_timestamp"], one["num_acknowledged_subtasks"])
        for one in tasks
    ]
    assert figures == [("FAILED", 5_090, 1), ("FAILED", -1, 0)]


def test_the_summary_covers_completed_checkpoints_that_the_history_has_forgotten(
    http: httpx.Client, gateway: FakeGateway
) -> None:
    """Durations and sizes cover all checkpoints since the driver started, not just those listed."""
    gateway.current = replace(VIEW, checkpoints=replace(SNAPSHOT, history=()))
    summary = http.get(CHECKPOINTS).json()["summary"]
    figures = {
        name: (summary[name]["min"], summary[name]["avg"], summary[name]["max"]) for name in summary
    }
    assert figures == {
        "checkpointed_size": (4_500, 6_250, 8_000),
        "state_size": (8_000, 8_500, 9_000),
        "end_to_end_duration": (100, 111, 123),
        "alignment_buffered": (0, 0, 0),
        "processed_data": (0, 0, 0),
        "persisted_data": (0, 0, 0),
    }
    assert summary["state_size"]["p50"] == 8_500


def test_figures_of_thousands_of_checkpoints_are_not_made_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The figures are computed once for each checkpoint."""
    made: list[int] = []

    def count(values: Iterable[int]) -> Percentiles:
        made.append(len(list(values)))
        return Percentiles()

    monkeypatch.setattr(checkpoint_answers, "percentiles", count)
    for newest in (1, 1, 1, 2):
        figures = {
            name: (*range(9_000), newest + place)
            for place, name in enumerate(("durations_ms", "state_sizes", "checkpointed_sizes"))
        }
        view = replace(VIEW, checkpoints=replace(SNAPSHOT, **figures))
        checkpoint_answers.checkpoints_info(view)
    assert made.count(9_001) <= 6


def test_a_summary_of_nothing_is_zero() -> None:
    """A job without a completed checkpoint shows zeros."""
    assert percentiles([]) == Percentiles()


def test_a_summary_of_one_value_is_that_value() -> None:
    """Every percentile lies within the values."""
    assert percentiles([7]) == Percentiles(
        min=7, max=7, average=7, p50=7, p90=7, p95=7, p99=7, p999=7
    )


@pytest.mark.parametrize("count", [2, 3, 10, 99, 1_500])
def test_percentiles_are_those_of_flink(count: int) -> None:
    """Flink's library and numpy's "weibull" method use the same formula; here they are whole."""
    values = [random.Random(count).randrange(10_000) for _ in range(count)]
    found = percentiles(values)
    expected = numpy.percentile(values, [50, 90, 95, 99, 99.9], method="weibull")
    assert [found.p50, found.p90, found.p95, found.p99, found.p999] == pytest.approx(
        list(expected), abs=0.5
    )
    assert all(one.is_integer() for one in (found.p50, found.p90, found.p95, found.p99))
    assert (found.min, found.max) == (min(values), max(values))
    assert found.average == sum(values) // count
