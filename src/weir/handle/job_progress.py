"""``JobProgress``: how far a job has got, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from weir.core.status import JobStatus
from weir.core.types import CheckpointFailureReason, TaskStatus
from weir.errors import JobError
from weir.monitoring.views import JobView, VertexView

_SUSPENDED = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.message
#: The watermark after a drain: Spark's timestamps end there.
_END_OF_TIME = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class QueryProgress:
    """One query: a chain of steps that Spark runs together. Rows count from the driver's start."""

    #: Names of its steps, from sources to sinks.
    steps: tuple[str, ...]
    status: TaskStatus
    rows_in: int
    #: In the newest batch.
    rows_per_second: float
    #: Rows that its sinks have committed.
    rows_committed: int
    #: Rows that its sources had beyond the newest batch; None if they do not say.
    rows_pending: int | None
    #: As of the newest batch, in UTC; None if it has no event time, or nothing has come yet. After
    #: a drain it is at the end of the year 9999.
    watermark: datetime | None


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """A job at one moment."""

    status: JobStatus
    #: Counts from 1 over all drivers of the job.
    attempt: int
    #: The newest completed checkpoint of this driver; None before the first.
    checkpoint: int | None
    #: When it completed, in UTC.
    checkpoint_time: datetime | None
    #: Why the newest of the checkpoints failed, or the newest failure of the job; None if neither.
    failure: str | None
    queries: tuple[QueryProgress, ...]
    #: Rows that its sources have read. Queries behind a channel count them in their own ``rows_in``
    #: again.
    rows_in: int

    @property
    def rows_committed(self) -> int:
        """Rows that all sinks have committed."""
        return sum(query.rows_committed for query in self.queries)

    def of(self, step: str) -> QueryProgress:
        """The query that runs a step or commits a sink; raises ``JobError`` for an unknown name."""
        for query in self.queries:
            if step in query.steps:
                return query
        known = ", ".join(name for query in self.queries for name in query.steps)
        raise JobError(f"The job has no step {step!r}: its steps are {known}.")


def progress_of(view: JobView) -> JobProgress:
    """The progress that a view shows."""
    newest = view.checkpoints.latest_completed
    return JobProgress(
        status=view.status,
        attempt=view.attempt,
        checkpoint=None if newest is None else newest.checkpoint_id,
        checkpoint_time=(
            None
            if newest is None
            else _time(newest.trigger_timestamp_ms + newest.end_to_end_duration_ms)
        ),
        failure=view.failure or _checkpoint_failure(view),
        queries=tuple(_query(vertex) for vertex in view.vertices),
        rows_in=sum(vertex.records_in for vertex in view.vertices if not vertex.inputs),
    )


def _checkpoint_failure(view: JobView) -> str | None:
    """Why the newest failed checkpoint failed; None also if the job was suspended meanwhile."""
    failure = view.checkpoints.newest_failure
    return None if failure is None or failure.startswith(_SUSPENDED) else failure


def _query(vertex: VertexView) -> QueryProgress:
    return QueryProgress(
        # Without their kinds: "source orders".
        steps=tuple(label.rpartition(" ")[2] for label in vertex.operators),
        status=vertex.status,
        rows_in=vertex.records_in,
        rows_per_second=vertex.records_in_per_second,
        rows_committed=vertex.records_committed,
        rows_pending=vertex.pending_records,
        watermark=None if vertex.watermark_ms is None else _time(vertex.watermark_ms),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


_TEXT = "text-align:left"
_WORD = "text-align:left;white-space:nowrap"
_NUMBER = "text-align:right;white-space:nowrap"
_COLUMNS = (
    *(("steps", _TEXT), ("status", _WORD), ("rows in", _NUMBER), ("rows/s", _NUMBER)),
    *(("committed", _NUMBER), ("watermark (UTC)", _WORD)),
)


def as_html(
    name: str, job_id: str, url: str | None, progress: JobProgress | None, status: JobStatus
) -> str:
    """A table that needs nothing else: no script, no style sheet, no request.

    ``url`` is that of the web page, None once nothing answers there. ``progress`` is None for a job
    that had finished before.
    """
    at = ""
    if url is not None:
        at = f' · <a href="{escape(url)}" target="_blank" style="color:inherit">{escape(url)}</a>'
    rows = [
        f"<div><b>{escape(name)}</b> · {status.value}{at}</div>",
        f'<div style="opacity:.7">{escape(_summary(job_id, progress))}</div>',
    ]
    if progress is not None:
        rows.append(_table(progress.queries))
        if progress.failure is not None:
            rows.append(f'<div style="white-space:pre-wrap">{escape(progress.failure)}</div>')
    return f'<div style="font-variant-numeric:tabular-nums">{"".join(rows)}</div>'


def _summary(job_id: str, progress: JobProgress | None) -> str:
    if progress is None:
        return f"job {job_id}: it had finished before, and nothing was run"
    if progress.checkpoint is None or progress.checkpoint_time is None:
        return f"job {job_id}, attempt {progress.attempt}, no checkpoint yet"
    return (
        f"job {job_id}, attempt {progress.attempt}, checkpoint {progress.checkpoint} completed at"
        f" {progress.checkpoint_time:%H:%M:%S} UTC"
    )


def _table(queries: Sequence[QueryProgress]) -> str:
    head = "".join(_cell("th", name, style) for name, style in _COLUMNS)
    lines = []
    for query in queries:
        watermark = query.watermark
        values = (
            " → ".join(query.steps),
            query.status.value,
            f"{query.rows_in:,}",
            f"{query.rows_per_second:,.0f}",
            f"{query.rows_committed:,}",
            _shown(watermark),
        )
        cells = (
            _cell("td", text, style) for text, (_, style) in zip(values, _COLUMNS, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        '<table style="border-collapse:collapse;border:0;margin:4px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _shown(watermark: datetime | None) -> str:
    if watermark is None:
        return ""
    return "end of input" if watermark >= _END_OF_TIME else f"{watermark:%Y-%m-%d %H:%M:%S}"


def _cell(tag: str, text: str, style: str) -> str:
    return f'<{tag} style="padding:2px 12px 2px 0;border:0;{style}">{escape(text)}</{tag}>'
