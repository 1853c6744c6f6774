"""The command line's tables of jobs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from weir.rest.schema.checkpoints import (
    CheckpointInfo,
    CheckpointsInfo,
    Percentiles,
    RestoredCheckpointInfo,
    SubtaskInfo,
)

if TYPE_CHECKING:
    from weir.rest.client import CheckpointDetails, FoundJob


def jobs_table(found: Iterable[FoundJob]) -> Table:
    """``weir list``."""
    table = make_table("job id", "name", "status", "started", "duration", "tasks running", "driver")
    for found_job in found:
        job = found_job.job
        running = f"{job.tasks.get('running', 0)} of {job.tasks.get('total', 0)}"
        table.add_row(
            job.job_id,
            Text(job.name),
            job.state,
            shown_time(job.start_time_ms),
            _duration(job.duration_ms),
            running,
            found_job.address or "-",
        )
    return table


def checkpoints_table(info: CheckpointsInfo) -> Group:
    """``weir checkpoints JOB``: counts, latest of each kind, figures, history (newest first)."""
    counts = info.counts
    head = (
        f"{counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress,"
        f" {counts.restored} restored"
    )
    if info.latest_trigger_failure is not None:
        head += f"\nnewest failure: {_one_line(info.latest_trigger_failure)}"
    if info.waits_because is not None:
        head += f"\nrequests wait: {info.waits_because}"
    if info.unsuccessful_triggers:
        head += f"\nunsuccessful triggers in a row: {info.unsuccessful_triggers}"
    latest = make_table("latest", "id", "kind", "time", "path or failure")
    for name, shown in (
        ("completed", info.latest.completed),
        ("savepoint", info.latest.savepoint),
        ("failed", info.latest.failed),
        ("restored", info.latest.restored),
    ):
        if shown is not None:
            latest.add_row(name, *_latest_row(shown))
    summary = make_table("completed", "min", "average", "max", "p50", "p90", "p95", "p99", "p99.9")
    summary.add_row("duration", *_figures(info.summary.duration_ms, _duration))
    summary.add_row("new size", *_figures(info.summary.checkpointed_size, decimal))
    summary.add_row("full size", *_figures(info.summary.state_size, decimal))
    history = make_table(
        "id", "kind", "status", "triggered", "duration", "new size", "full size", "path or failure"
    )
    for checkpoint in info.history:
        history.add_row(*_checkpoint_row(checkpoint))
    parts: list[RenderableType] = [Text(head)]
    for table in (latest, summary if counts.completed else None, history):
        if table is not None and table.row_count:
            parts += [Text(""), table]
    return Group(*parts)


def checkpoint_table(details: CheckpointDetails) -> Group:
    """``weir checkpoints JOB --id N``: the checkpoint as a whole, then each vertex's part in it."""
    checkpoint = details.checkpoint
    head = (
        f"{_kind(checkpoint.is_savepoint)} {checkpoint.checkpoint_id}: {checkpoint.status}\n"
        f"triggered  {shown_time(checkpoint.trigger_timestamp_ms)}\n"
        f"duration   {_duration(checkpoint.duration_ms)}\n"
        f"new size   {decimal(checkpoint.checkpointed_size)}\n"
        f"full size  {decimal(checkpoint.state_size)}\n"
    )
    outcome = _outcome(checkpoint)
    if outcome:
        head += f"{'failure' if checkpoint.failure_message else 'path':<11}{outcome}\n"
    table = make_table(
        "vertex",
        "acknowledged",
        "duration",
        "sync",
        "async",
        "alignment",
        "start delay",
        "new size",
        "full size",
    )
    for vertex in details.vertices:
        for subtask in vertex.subtasks:
            table.add_row(Text(vertex.name), *_subtask_row(subtask))
    return Group(Text(head), table)


def make_table(*columns: str) -> Table:
    """A table without lines, with columns as wide as their content."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _checkpoint_row(checkpoint: CheckpointInfo) -> tuple[str | Text, ...]:
    return (
        str(checkpoint.checkpoint_id),
        _kind(checkpoint.is_savepoint),
        checkpoint.status,
        shown_time(checkpoint.trigger_timestamp_ms),
        _duration(checkpoint.duration_ms),
        decimal(checkpoint.checkpointed_size),
        decimal(checkpoint.state_size),
        Text(_outcome(checkpoint)),
    )


def _latest_row(checkpoint: CheckpointInfo | RestoredCheckpointInfo) -> tuple[str | Text, ...]:
    if isinstance(checkpoint, RestoredCheckpointInfo):
        time, outcome = checkpoint.restore_timestamp_ms, checkpoint.external_path or ""
    else:
        time, outcome = checkpoint.trigger_timestamp_ms, _outcome(checkpoint)
    return (
        str(checkpoint.checkpoint_id),
        _kind(checkpoint.is_savepoint),
        shown_time(time),
        Text(outcome),
    )


def _subtask_row(subtask: SubtaskInfo) -> tuple[str, ...]:
    if subtask.ack_timestamp_ms is None:
        return ("not acknowledged",)
    parts, alignment = subtask.checkpoint, subtask.alignment
    return (
        shown_time(subtask.ack_timestamp_ms),
        _duration(subtask.duration_ms),
        _duration(None if parts is None else parts.sync_ms),
        _duration(None if parts is None else parts.async_ms),
        _duration(None if alignment is None else alignment.duration_ms),
        _duration(subtask.start_delay_ms),
        decimal(subtask.checkpointed_size or 0),
        decimal(subtask.state_size or 0),
    )


def _figures(figures: Percentiles, show: Callable[[int], str]) -> tuple[str, ...]:
    values = (
        figures.min,
        figures.average,
        figures.max,
        figures.p50,
        figures.p90,
        figures.p95,
        figures.p99,
        figures.p999,
    )
    return tuple(show(round(value)) for value in values)


def _kind(is_savepoint: bool) -> str:
    return "savepoint" if is_savepoint else "checkpoint"


def _outcome(checkpoint: CheckpointInfo) -> str:
    """The failure, else the path; on one line, so that a line in a pipe is a row."""
    outcome = _one_line(checkpoint.failure_message or checkpoint.external_path or "")
    return f"{outcome} (discarded)" if checkpoint.discarded else outcome


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def shown_time(timestamp_ms: int) -> str:
    """A date and time in this machine's time zone, to the second."""
    return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _duration(duration_ms: int | None) -> str:
    """``123 ms``, ``4.5 s`` or ``1:02:03``; nothing for None."""
    if duration_ms is None:
        return ""
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
