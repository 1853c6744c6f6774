"""The progress display of a running job."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.kit.clock import ManualClock
from tests.kit.gateway import COMPLETED, FAILED, IN_PROGRESS, JOB_ID, SNAPSHOT, VIEW, FakeGateway
from tests.kit.waiting import wait_until

from weir.cli.progress import ProgressDisplay, render
from weir.core.checkpoints.stats import CheckpointStats, CheckpointStatsSnapshot
from weir.core.status import JobStatus
from weir.core.types import SnapshotKind
from weir.handle.lines import CheckpointLines, Totals, describe_checkpoint, describe_progress


def snapshot(*history: CheckpointStats) -> CheckpointStatsSnapshot:
    """Statistics with this history, newest first."""
    return CheckpointStatsSnapshot(history=history)


def test_each_checkpoint_is_reported_when_triggered_and_when_completed() -> None:
    """Each line comes once, however often the statistics are read."""
    lines = CheckpointLines()
    assert lines.new(snapshot(IN_PROGRESS)) == ["checkpoint 9 triggered"]
    assert lines.new(snapshot(IN_PROGRESS)) == []
    done = replace(COMPLETED, checkpoint_id=9)
    assert lines.new(snapshot(done)) == ["checkpoint 9 completed in 123 ms, 4.5 kB"]
    assert lines.new(snapshot(done)) == []


def test_lines_come_in_the_order_of_the_checkpoints() -> None:
    """The history is newest first, but the lines are oldest first."""
    assert CheckpointLines().new(SNAPSHOT) == [
        "checkpoint 7 completed in 123 ms, 4.5 kB",
        "savepoint 8 failed: expired before completing",
        "checkpoint 9 triggered",
    ]


def test_a_completed_savepoint_is_reported_with_its_path() -> None:
    """The user needs the savepoint's path."""
    savepoint = replace(COMPLETED, kind=SnapshotKind.SAVEPOINT, external_path="/d/savepoint-1")
    assert (
        describe_checkpoint(savepoint) == "savepoint 7 completed in 123 ms, 4.5 kB, /d/savepoint-1"
    )
    assert describe_checkpoint(FAILED) == "savepoint 8 failed: expired before completing"


def test_a_checkpoint_that_a_failing_job_aborts_does_not_tell_the_failure_again() -> None:
    """The job's own line reports the failure, once for each attempt."""
    said = "Checkpoint Coordinator is suspending."
    told = [f"savepoint 8 failed: {said}", f"a checkpoint could not be triggered: {said}"]
    failed = replace(FAILED, failure_message=f"{said} Task 'a' failed: KeyError: 'JP'")
    assert describe_checkpoint(failed) == told[0]
    refused = CheckpointStatsSnapshot(
        latest_trigger_failure=f"{said} Task 'a' failed: KeyError: 'JP'"
    )
    assert CheckpointLines().new(refused) == told[1:]


def test_a_checkpoint_that_met_ending_tasks_is_no_line_of_the_log() -> None:
    """Nothing went wrong, and nothing can be done about it."""
    declined = replace(FAILED, met_ending_tasks=True)
    assert CheckpointLines().new(snapshot(declined)) == []


def test_a_checkpoint_that_failed_before_it_had_an_id_is_reported_once_with_its_reason() -> None:
    """Such a checkpoint has no entry in the history, but it is counted as failed."""
    lines, failed = CheckpointLines(), CheckpointStatsSnapshot(latest_trigger_failure="disk full")
    assert lines.new(failed) == ["a checkpoint could not be triggered: disk full"]
    assert lines.new(failed) == []


def test_the_totals_are_those_of_all_sources_and_sinks() -> None:
    """A row that several queries read from a channel has come in once."""
    other = replace(VIEW.vertices[0], vertex="other", records_in=30, records_committed=7)
    assert describe_progress(replace(VIEW, vertices=(*VIEW.vertices, other))) == (
        "RUNNING: checkpoint 7, 1030 rows in, 100 rows/s, 807 rows committed"
    )
    assert describe_progress(replace(VIEW, checkpoints=snapshot())).startswith("RUNNING: 1000 rows")


def test_a_checkpoint_that_goes_well_has_no_line_of_its_own_unless_asked_for() -> None:
    """A job that runs for months would write millions."""
    assert CheckpointLines(interval_ms=60_000).new(SNAPSHOT) == [
        "savepoint 8 failed: expired before completing"
    ]


def test_a_checkpoint_that_the_end_of_the_job_aborts_has_no_line_unless_asked_for() -> None:
    """The end has one."""
    aborted = replace(
        FAILED,
        kind=SnapshotKind.CHECKPOINT,
        failure_message="Checkpoint Coordinator is suspending. The driver exits.",
    )
    assert CheckpointLines(interval_ms=60_000).new(snapshot(aborted)) == []
    assert len(CheckpointLines().new(snapshot(aborted))) == 1


def test_totals_come_with_what_is_new_in_kind_and_else_once_in_the_interval() -> None:
    """The first checkpoint, the first commit and a status are reported at once, and at the end
    whatever has changed since."""
    clock = ManualClock()
    totals = Totals(clock, interval_ms=60_000)
    first = replace(VIEW.vertices[0], records_committed=0)
    view = replace(VIEW, vertices=(first,), checkpoints=snapshot())
    assert totals.new(replace(view, status=JobStatus.CREATED)) == []
    assert totals.new(view) == [], "the start has lines of its own"
    view = replace(view, checkpoints=SNAPSHOT)
    assert totals.new(view)[0].startswith("RUNNING: checkpoint 7, 1000 rows in")
    view = replace(view, vertices=VIEW.vertices)
    assert totals.new(view)[0].endswith("800 rows committed")
    view = replace(view, vertices=(replace(VIEW.vertices[0], records_committed=900),))
    clock.ms += 59_999
    assert totals.new(view) == []
    clock.ms += 1
    assert len(totals.new(view)) == 1
    clock.ms += 60_000
    assert totals.new(view) == [], "nothing has changed"
    assert totals.new(replace(view, status=JobStatus.RESTARTING))[0].startswith("RESTARTING: ")
    view = replace(view, vertices=(replace(VIEW.vertices[0], records_committed=901),))
    assert totals.new(replace(view, status=JobStatus.RESTARTING), is_last=True) != []
    view = replace(view, status=JobStatus.FINISHED)
    assert totals.new(view) == [], "more may be committed"
    assert totals.new(view, is_last=True)[0].startswith("FINISHED: ")


def test_the_live_table_shows_status_checkpoints_and_each_vertex() -> None:
    """One row for each vertex, with its committed rows."""
    out = io.StringIO()
    Console(file=out, width=120).print(render(VIEW))
    text = out.getvalue()
    for part in (
        "orders: RUNNING, attempt 2",
        "1 completed, 1 failed, last 7 in 123 ms, 4.5 kB",
        "newest failure: expired before completing",
        "clean",
        "1,000",
    ):
        assert part in text
    assert "WAITING_FOR_FINAL_CHECKPOINT" in text


def test_on_a_plain_stream_a_line_with_totals_comes_at_most_every_ten_seconds() -> None:
    """Checkpoint lines come immediately; totals wait for ten seconds and for a change."""
    out, clock, gateway = (
        io.StringIO(),
        ManualClock(),
        FakeGateway(replace(VIEW, checkpoints=snapshot())),
    )

    def totals() -> int:
        return out.getvalue().count("rows in")

    with ProgressDisplay(Console(file=out, width=1_000), interval_ms=0, clock=clock) as display:
        display.submitted(JOB_ID, gateway, "http://127.0.0.1:8081")
        wait_until(lambda: totals() == 1, "the totals are told")
        more = replace(VIEW.vertices[0], records_in=2_000)
        gateway.current = replace(VIEW, checkpoints=snapshot(IN_PROGRESS), vertices=(more,))
        wait_until(lambda: "checkpoint 9 triggered" in out.getvalue(), "the checkpoint is told")
        assert totals() == 1
        clock.ms += 10_000
        wait_until(lambda: totals() == 2, "the totals are told again")
    assert totals() == 2


def test_the_last_event_is_shown_before_the_display_ends() -> None:
    """A checkpoint that completes just before the end is still reported."""
    out, gateway = io.StringIO(), FakeGateway()
    gateway.current = replace(VIEW, checkpoints=snapshot())
    with ProgressDisplay(Console(file=out, width=1_000), interval_ms=0) as display:
        display.submitted(JOB_ID, gateway, "http://127.0.0.1:8081")
        gateway.current = replace(VIEW, checkpoints=snapshot(COMPLETED))
    assert "checkpoint 7 completed in 123 ms, 4.5 kB" in out.getvalue()


def test_on_a_terminal_lines_stand_above_the_live_table() -> None:
    """The table is drawn with terminal codes, and the lines are printed as well."""
    out = io.StringIO()
    with ProgressDisplay(
        Console(file=out, force_terminal=True, width=120), interval_ms=0
    ) as display:
        display.submitted(JOB_ID, FakeGateway(), "http://127.0.0.1:8081")
        wait_until(lambda: "attempt 2" in out.getvalue(), "the second attempt is told")
        display.note("a note")
    assert "a note" in out.getvalue()
    assert "checkpoint 9 triggered" in out.getvalue()


#: Prints lines, with a live table or without, and says on the error output that it got through.
_PRINTS = """
import sys
from rich.console import Console
from weir.cli.progress import ProgressDisplay
from tests.kit.gateway import JOB_ID, FakeGateway
with ProgressDisplay(Console(force_terminal=sys.argv[1] == "table"), interval_ms=0) as display:
    display.submitted(JOB_ID, FakeGateway(), "http://127.0.0.1:8081")
    for number in range(3):
        display.note("line")
print("the job went on", file=sys.stderr)
"""


@pytest.mark.parametrize("shape", ["table", "lines"])
@pytest.mark.parametrize("output", ["a full disk", "a closed pipe"])
def test_output_that_cannot_be_written_stops_nothing_but_the_output(
    shape: str, output: str
) -> None:
    """The log says so once, and the process ends as if it had been written."""
    if output == "a full disk":
        written = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, written = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRINTS, shape],
            stdout=written,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    finally:
        os.close(written)
    assert (done.returncode, "the job went on" in done.stderr) == (0, True), done.stderr
    assert done.stderr.count("Nothing more is printed") == 1
    assert "Traceback" not in done.stderr


def test_characters_that_the_output_cannot_show_are_escaped() -> None:
    """A path may have bytes that are no text, and a terminal may know only ASCII."""
    out = io.BytesIO()
    with io.TextIOWrapper(out, encoding="ascii") as text:
        ProgressDisplay(Console(file=text), interval_ms=0).note("in caf\u00e9/\udcff")
        text.flush()
        assert out.getvalue() == b"in caf\\xe9/\\udcff\n"
