"""``weir top``: one frame, refreshing in a terminal, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from click.testing import Result
from rich.console import Console
from tests.kit.gateway import JOB_ID, FakeGateway

from weir.cli.top import frame, lasting
from weir.core.status import JobStatus
from weir.rest.client import connect

Weir = Callable[..., Result]


class Terminal:
    """``weir top`` in a terminal of its own."""

    def __init__(self, address: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weir", "top", "orders", "-m", address],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Read until the text was shown once more."""
        seen = len(self.shown)
        while text not in self.shown[seen:]:
            self.shown += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        """Type a key."""
        os.write(self._ours, key.encode())

    def end(self) -> int:
        """The exit code; the rest of the output is read."""
        while self.process.poll() is None:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:
                    break
        return self.process.wait()


def test_one_frame_has_the_job_its_checkpoint_and_its_tasks(weir: Weir, address: str) -> None:
    """Also in a pipe, and without a name if only one job runs."""
    for arguments in (("orders", "--once"), ()):
        result = weir("top", *arguments, "-m", address)
        assert result.exit_code == 0, result.output
        head, rates, checkpoint, _, columns, *tasks = result.stdout.splitlines()
        assert head.startswith("orders RUNNING for ")
        assert "restart" in head
        assert JOB_ID in head
        assert "rows/s read" in rates
        assert checkpoint.startswith("checkpoint 7 completed ")
        assert "1 completed, 1 failed" in checkpoint
        assert columns.split()[:4] == ["task", "status", "rows/s", "busy"]
        assert [line.split()[0] for line in tasks] == ["clean", "revenue"]
        assert "RUNNING" in tasks[0]


def test_a_watermark_that_lags_and_a_task_that_is_held_up_are_shown(
    address: str,
) -> None:
    """A task without a watermark has no lag."""
    with connect("orders", address) as client:
        state = client.overview()
    clean, revenue = state.vertices
    clean = msgspec.structs.replace(
        clean,
        live=msgspec.structs.replace(
            clean.live, busy=0.25, held=0.9, watermark=state.now - 7_400_000, batches=1
        ),
    )
    revenue = msgspec.structs.replace(
        revenue, live=msgspec.structs.replace(revenue.live, watermark=None)
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(frame(msgspec.structs.replace(state, vertices=(clean, revenue))))
    *_, first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "25%" in first
    assert "90%" in first
    assert "2 h 3 min" in first
    assert " - " in second


@pytest.mark.parametrize(
    ("ms", "told"),
    [(4_200, "4.2 s"), (125_000, "2 min 5 s"), (3_600_000, "1 h 0 min"), (90_000_000, "1 d 1 h")],
)
def test_long_times_are_in_hours_and_days(ms: int, told: str) -> None:
    """Short ones as in the progress of a run."""
    assert lasting(ms) == told


def test_the_end_of_a_job_is_shown_with_its_failure(
    weir: Weir, address: str, gateway: FakeGateway
) -> None:
    """By name, since the job no longer runs."""
    gateway.current = replace(
        gateway.current, status=JobStatus.FAILED, failure="disk full", end_time_ms=9_000
    )
    shown = weir("top", "orders", "--once", "-m", address).stdout
    assert "orders FAILED" in shown
    assert "failure: disk full" in shown


def test_without_a_running_job_it_says_so(weir: Weir, address: str, gateway: FakeGateway) -> None:
    """With what to do about it."""
    gateway.current = replace(gateway.current, status=JobStatus.FINISHED)
    result = weir("top", "-m", address)
    assert result.exit_code == 1
    assert result.stderr == (
        f"weir: error: No job runs at {address}: start one with 'weir run', or name its driver with"
        " --address.\n"
    )


@pytest.mark.parametrize("end", ["q", "Ctrl-C"])
def test_in_a_terminal_it_refreshes_until_the_user_ends_it(address: str, end: str) -> None:
    """The last frame stays, and the exit code is 0."""
    terminal = Terminal(address)
    terminal.wait_for("orders")
    terminal.wait_for("orders")
    if end == "q":
        terminal.press("q")
    else:
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.shown


def test_in_a_terminal_it_ends_with_the_job(address: str, gateway: FakeGateway) -> None:
    """With its last status."""
    terminal = Terminal(address)
    terminal.wait_for("orders")
    gateway.current = replace(gateway.current, status=JobStatus.CANCELED)
    assert terminal.end() == 0
    assert "CANCELED" in terminal.shown
