"""``weir top``: the overview of a running job in a terminal, once a second.

It shows what the web page's overview does, from the same answer of the REST server. While the
driver does not answer, the last figures stay, with a line that says so. ``q`` and Ctrl-C end it,
and so does the end of the job. Without a terminal, or with ``--once``, one frame is printed.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weir.cli.history import connect_to_running
from weir.core.status import JobStatus
from weir.errors import JobNotFoundError, RestError
from weir.launch.phases import describe_time
from weir.rest.client import FoundJob, JobClient, find_jobs
from weir.rest.schema.page import PageCheckpointBrief, PageState, PageVertex, PageVertexLive

_EVERY_S = 1.0
_KEYS = {"q", "Q"}
_COLORS = {
    "RUNNING": "green",
    "FINISHED": "green",
    "FAILED": "red",
    "FAILING": "red",
    "RESTARTING": "yellow",
}
#: From this share of the time on, a task that is busy or held up is worth a look.
_MUCH = 0.8


def connect_to(
    job: str | None, address: str | None, *, token: str | None, ca_file: str | None
) -> JobClient:
    """A client of the job; without a name, of the only running job.

    Raises ``JobNotFoundError`` if no job runs, or more than one.
    """
    if job is not None:
        return connect_to_running(job, address, token=token, ca_file=ca_file)
    running = [
        found
        for found in find_jobs(address, token=token, ca_file=ca_file)
        if not JobStatus(found.job.state).is_terminal
    ]
    if len(running) > 1:
        names = ", ".join(f"{found.job.job_id} ({found.job.name})" for found in running)
        raise JobNotFoundError(f"Several jobs run: name one of {names}.")
    return _only(running, address, token, ca_file)


def _only(
    running: list[FoundJob], address: str | None, token: str | None, ca_file: str | None
) -> JobClient:
    if not running:
        where = address or "any of your drivers on this machine"
        raise JobNotFoundError(
            f"No job runs at {where}: start one with 'weir run', or name its driver with --address."
        )
    return JobClient(running[0].address, running[0].job.job_id, token=token, ca_file=ca_file)


def show(client: JobClient, console: Console, *, once: bool) -> None:
    """Show the job until it ends or the user wants no more. Raises ``RestError`` at first only."""
    state = client.overview()
    if once or not console.is_terminal:
        console.print(frame(state))
        return
    with (
        keys() as pressed,
        Live(frame(state), console=console, auto_refresh=False, screen=True) as live,
    ):
        problem = ""
        try:
            while not JobStatus(state.status).is_terminal:
                live.update(Group(frame(state), Text(problem, "red")), refresh=True)
                if pressed(_EVERY_S) in _KEYS:
                    break
                try:
                    state, problem = client.overview(), ""
                except RestError as error:
                    problem = str(error)
        except KeyboardInterrupt:
            # Ctrl-C is a way to leave, like q.
            pass
    # The screen is gone: what was on it last stays.
    console.print(frame(state))


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key, for at most some seconds; "" if no key was pressed."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""


def _no_key(seconds: float) -> str:
    select.select([], [], [], seconds)
    return ""


def frame(state: PageState) -> Group:
    """What is shown of a job."""
    lines = [_head(state), _rates(state), _checkpoints(state)]
    if state.failure:
        lines.append(Text(f"failure: {state.failure}", "red"))
    return Group(*lines, Text(""), _tasks(state))


def _live(state: PageState) -> list[tuple[PageVertex, PageVertexLive]]:
    """The vertices with what they do now."""
    return [(vertex, vertex.live) for vertex in state.vertices if vertex.live is not None]


def _head(state: PageState) -> Text:
    end = state.now if state.ended < 0 else state.ended
    head = Text(f"{state.name} ", "bold")
    head.append(state.status, _COLORS.get(state.status, ""))
    if state.since is not None:
        head.append(f" for {lasting(max(0, end - state.since))}", "")
    head.append(f"   attempt {state.attempt}", "")
    if state.live is not None:
        head.append(f", {_count(state.live.restarts, 'restart')}", "")
    head.append(f"   {state.job_id}", "dim")
    return head


def _rates(state: PageState) -> Text:
    vertices = _live(state)
    read = sum(live.rate_in for vertex, live in vertices if not vertex.inputs)
    committed = sum(live.rate_committed for _, live in vertices)
    total = sum(live.records_committed for _, live in vertices)
    return Text(f"{read:,.0f} rows/s read, {committed:,.0f} rows/s committed ({total:,} rows)")


def _checkpoints(state: PageState) -> Text:
    newest, parts = state.completed, []
    if newest is None:
        parts.append("no checkpoint yet")
    else:
        age = lasting(max(0, state.now - newest.triggered - newest.duration_ms))
        took = lasting(newest.duration_ms)
        parts.append(f"{_named(newest)} completed {age} ago, in {took}")
    counts = [f"{state.completed_checkpoints} completed"]
    if state.live is not None:
        running = state.live.running
        parts += [
            f"{_named(progress)} {progress.acknowledged}/{progress.tasks} tasks"
            for progress in running
        ]
        counts.append(f"{state.live.failed_checkpoints} failed")
    parts.append(", ".join(counts))
    return Text("; ".join(parts))


def lasting(ms: int) -> str:
    """``4.2 s``, ``2 min 5 s``, ``3 h 5 min`` or ``2 d 4 h``."""
    minutes = ms // 60_000
    if minutes < 60:
        return describe_time(ms)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24} h"


def _named(checkpoint: PageCheckpointBrief) -> str:
    return f"{'savepoint' if checkpoint.is_savepoint else 'checkpoint'} {checkpoint.id}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _tasks(state: PageState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("task")
    table.add_column("status")
    for column in ("rows/s", "busy", "back pressure", "watermark lag", "batch", "waiting"):
        table.add_column(column, justify="right")
    for vertex, live in _live(state):
        table.add_row(
            Text(vertex.name),
            Text(vertex.status, _COLORS.get(vertex.status, "")),
            f"{live.rate_in:,.0f}",
            _share(live.busy),
            _share(live.held),
            _lag(state, live),
            f"{live.batch_ms} ms" if live.batches else "",
            _waiting(vertex),
        )
    return table


def _share(share: float) -> Text:
    return Text(f"{share:.0%}", "yellow" if share >= _MUCH else "")


def _lag(state: PageState, live: PageVertexLive) -> str:
    if live.watermark is None:
        return "-"
    return lasting(max(0, state.now - live.watermark))


def _waiting(vertex: PageVertex) -> str:
    """What its consumers have not processed yet."""
    size = sum(channel.bytes for channel in vertex.outputs)
    return decimal(size) if vertex.outputs else ""
