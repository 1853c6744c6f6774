"""The phases that a starting run reports."""

from __future__ import annotations

import gc
import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from tests.kit.clock import ManualClock
from tests.kit.gateway import JOB_ID, VIEW, FakeGateway
from tests.kit.waiting import wait_until

from weir.cli.progress import ProgressDisplay
from weir.core.messages.job import BeginAttempt, JobStatusChanged
from weir.core.messages.protocol import TaskStatusChanged
from weir.core.status import JobStatus
from weir.core.types import CompletedCheckpoint, OperatorState, SnapshotKind, TaskState, TaskStatus
from weir.handle.event_log import EventLog
from weir.launch.phases import Phases, StartPhases, answer_promptly, describe_time
from weir.runtime.watching import Watchers


class Told:
    """A clock that the test advances, and the lines reported so far."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines: list[str] = []
        self.phases = Phases(self.lines.append, self.clock)

    def pass_time(self, ms: int) -> None:
        """Advance the clock, and let the phases report."""
        self.clock.ms += ms
        self.phases.look()


def test_a_phase_of_a_second_is_never_shown() -> None:
    """A phase that short needs no line."""
    told = Told()
    told.phases.begin("checking sinks")
    told.pass_time(1_000)
    told.phases.begin(None)
    assert told.lines == []


def test_a_phase_is_shown_while_it_lasts_and_with_its_duration_once_over() -> None:
    """Both lines come once, so a phase that hangs is visible."""
    told = Told()
    told.phases.begin("starting Spark")
    told.pass_time(1_001)
    told.pass_time(1_000)
    assert told.lines == ["starting Spark ..."]
    told.clock.ms += 2_200
    told.phases.begin("starting 5 queries")
    assert told.lines[1:] == ["starting Spark took 4.2 s"]
    told.pass_time(500)
    told.phases.begin(None)
    told.pass_time(60_000)
    assert len(told.lines) == 2


@pytest.mark.parametrize("kind", ["table", "events"])
def test_once_a_start_is_done_threads_give_way_soon_and_collections_are_short(kind: str) -> None:
    """So that planning calls and REST are answered at once; not while modules are still loaded."""
    console, switch_s = Console(file=io.StringIO()), sys.getswitchinterval()
    gc.unfreeze()
    display = (
        ProgressDisplay(console, interval_ms=0)
        if kind == "table"
        else EventLog(lambda event: None, interval_ms=0, started=answer_promptly)
    )
    try:
        display.phase("starting Spark")
        assert (gc.get_freeze_count(), sys.getswitchinterval()) == (0, switch_s)
        display.phase(None)
        assert gc.get_freeze_count() > 1_000
        assert sys.getswitchinterval() < 0.001
    finally:
        sys.setswitchinterval(switch_s)
        gc.unfreeze()


def test_the_same_phase_again_continues() -> None:
    """Two consecutive parts of a phase count as one phase."""
    told = Told()
    told.phases.begin("loading libraries")
    told.pass_time(800)
    told.phases.begin("loading libraries")
    told.pass_time(700)
    assert told.lines == ["loading libraries ..."]


def test_a_time_is_shown_in_seconds_or_minutes() -> None:
    """Below a minute the time has tenths of a second."""
    assert [describe_time(ms) for ms in (1_049, 59_900, 125_400)] == [
        "1.0 s",
        "59.9 s",
        "2 min 5 s",
    ]


class Listener:
    """Records the phases."""

    def __init__(self) -> None:
        self.told: list[str | None] = []

    def phase(self, name: str | None) -> None:
        """Record the next phase."""
        self.told.append(name)

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        """Record the restored checkpoint."""
        self.told.append(f"restored {checkpoint.checkpoint_id}")


def runs(vertex: str) -> TaskStatusChanged:
    """The message that a task of the attempt runs."""
    return TaskStatusChanged(vertex=vertex, attempt=1, status=TaskStatus.RUNNING)


def checkpoint(*finished: str) -> CompletedCheckpoint:
    """Checkpoint 17, in which these tasks are finished."""
    tasks = tuple(
        TaskState(
            vertex=vertex,
            position=3,
            operators=(OperatorState(operator_id=vertex, name=vertex, fully_finished=True),),
        )
        for vertex in finished
    )
    return CompletedCheckpoint(
        job_id=JOB_ID,
        checkpoint_id=17,
        kind=SnapshotKind.CHECKPOINT,
        timestamp_ms=0,
        completion_timestamp_ms=0,
        attempt=1,
        tasks=tasks,
        external_path="/checkpoints/17",
    )


RUNNING = JobStatusChanged(status=JobStatus.RUNNING)


def play(phases: StartPhases, *effects: object) -> None:
    """Let the phases see effects."""
    watchers = Watchers()
    phases.watch(watchers)
    for effect in effects:
        for watch in watchers.of_effect(None, type(effect)):
            watch(effect)


def test_an_attempt_looks_for_a_checkpoint_and_starts_its_queries() -> None:
    """The start is done when the last query runs."""
    listener = Listener()
    phases = StartPhases(listener, ("a", "b"))
    play(phases, BeginAttempt(), RUNNING, runs("b"), runs("b"))
    assert listener.told == ["looking for the newest checkpoint", "starting 2 queries"]
    play(phases, runs("a"))
    assert listener.told[2:] == [None]
    play(phases, runs("a"))
    assert len(listener.told) == 3


def test_a_restored_attempt_starts_no_query_that_had_finished() -> None:
    """The next attempt counts its queries again."""
    listener = Listener()
    phases = StartPhases(listener, ("a", "b"))
    play(phases, BeginAttempt())
    phases.restored(checkpoint("b"))
    play(phases, RUNNING)
    play(phases, runs("a"))
    assert listener.told[1:] == [
        "restored 17",
        "restoring sinks from checkpoint 17",
        "starting 1 query",
        None,
    ]
    play(phases, BeginAttempt())
    play(phases, RUNNING)
    assert listener.told[-1] == "starting 2 queries"


def test_a_job_that_fails_while_its_queries_start_starts_no_more_of_them() -> None:
    """The failure has a line of its own."""
    listener = Listener()
    phases = StartPhases(listener, ("a",))
    play(phases, RUNNING)
    play(phases, JobStatusChanged(status=JobStatus.FAILING))
    play(phases, runs("a"))
    assert listener.told == ["starting 1 query", None]


def test_the_display_shows_a_phase_that_lasts_and_when_the_first_rows_came() -> None:
    """The time counts from the start of the run, and is reported once."""
    out, clock = io.StringIO(), ManualClock()
    quiet = replace(VIEW, vertices=tuple(replace(one, records_in=0) for one in VIEW.vertices))
    gateway = FakeGateway(quiet)
    with ProgressDisplay(Console(file=out, width=1_000), interval_ms=0, clock=clock) as display:
        display.phase("starting Spark")
        clock.ms += 2_500
        wait_until(lambda: "starting Spark ...\n" in out.getvalue(), "the phase is told")
        display.phase(None)
        assert "starting Spark took 2.5 s\n" in out.getvalue()
        display.submitted(JOB_ID, gateway, "http://127.0.0.1:8081")
        clock.ms += 1_600
        gateway.current = VIEW
        wait_until(lambda: "first rows after 4.1 s\n" in out.getvalue(), "the first rows are told")
    assert out.getvalue().count("first rows") == 1
