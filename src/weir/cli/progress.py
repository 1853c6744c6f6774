"""The progress of ``weir run``: its lines, and on a terminal a live table below them.

If output cannot be written (a full disk, ``| head``, a terminal that is gone), nothing but the
output stops: the log says so once, and the job goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weir.gateway.job_gateway import JobGateway
from weir.handle.lines import ProgressLines
from weir.launch.phases import answer_promptly
from weir.monitoring.views import JobView
from weir.runtime.concurrency import Clock

_log = logging.getLogger(__name__)


def render(view: JobView) -> Group:
    """The live table: status, checkpoints, and a row for each vertex."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("vertex")
    table.add_column("status")
    for column in ("batch", "rows in", "rows/s", "committed"):
        table.add_column(column, justify="right")
    for vertex in view.vertices:
        table.add_row(
            Text(vertex.vertex),
            vertex.status.value,
            str(vertex.position),
            f"{vertex.records_in:,}",
            f"{vertex.records_in_per_second:,.0f}",
            f"{vertex.records_committed:,}",
        )
    return Group(
        Text(f"{view.name}: {view.status.value}, attempt {view.attempt}"), _checkpoints(view), table
    )


def _checkpoints(view: JobView) -> Text:
    counts, latest = view.checkpoints.counts, view.checkpoints.latest_completed
    last = "none yet"
    if latest is not None:
        size = decimal(latest.checkpointed_size)
        last = f"last {latest.checkpoint_id} in {latest.end_to_end_duration_ms} ms, {size}"
    text = f"checkpoints: {counts.completed} completed, {counts.failed} failed, {last}"
    failure = view.checkpoints.newest_failure
    return Text(text if failure is None else f"{text}\nnewest failure: {failure}")


class ProgressDisplay(ProgressLines):
    """Listens to a run and shows it on ``console``."""

    def __init__(self, console: Console, *, interval_ms: int, clock: Clock | None = None) -> None:
        super().__init__(
            self._print,
            interval_ms=interval_ms,
            # On a terminal, the table has them.
            has_totals=not console.is_terminal,
            started=answer_promptly,
            clock=clock,
        )
        self._console = console
        self._live: Live | None = None

    def __enter__(self) -> ProgressDisplay:
        super().__enter__()
        return self

    def _print(self, line: str) -> None:
        """Print one line verbatim, above the live table if it is shown, and flush it."""
        # A path may hold characters that the output's encoding does not have.
        shown = line.encode(self._console.encoding, "backslashreplace").decode(
            self._console.encoding
        )

        def show() -> None:
            self._console.print(shown, markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()

        self._write(show)

    def _write(self, show: Callable[[], None]) -> None:
        """Call ``show``, which writes to the console, unless that has become impossible."""
        try:
            show()
        except (OSError, ValueError, SystemExit) as error:
            # rich ends the process when a pipe is closed.
            why = "its reader is gone" if isinstance(error, SystemExit) else error
            self._console.quiet = True
            with suppress(OSError, ValueError):
                # So that what is still buffered fails nothing when the process ends.
                output = self._console.file.fileno()
                with Path(os.devnull).open("wb") as nothing:
                    os.dup2(nothing.fileno(), output)
            _log.warning("Nothing more is printed, because the output cannot be written: %s", why)

    def _watch(self, gateway: JobGateway) -> None:
        if not self._console.is_terminal:
            super()._watch(gateway)
            return
        # What is printed meanwhile goes through ``LogOutput``.
        live = Live(
            render(gateway.view()),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._write(partial(live.start, refresh=True))
        self._live = live
        try:
            super()._watch(gateway)
        finally:
            self._write(live.stop)

    def _show(self, view: JobView, *, is_last: bool) -> None:
        super()._show(view, is_last=is_last)
        if self._live is not None:
            self._write(partial(self._live.update, render(view), refresh=True))
