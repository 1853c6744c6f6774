"""Handlers of the web page's endpoints.

What takes more than a moment to collect is collected on a thread.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial

from starlette.exceptions import HTTPException

from weir.monitoring.log_buffer import LogBuffer
from weir.rest.flink.cluster_answers import log_tail
from weir.rest.flink.vertex_answers import find_vertex
from weir.rest.handling.guard import quoted
from weir.rest.handling.serving import Serving, beside, serves
from weir.rest.schema import page
from weir.rest.web import answers as page_answers
from weir.runtime.ports import SubtaskView

#: The longest window of a timeline or story, and the default window: an hour and ten minutes.
_WINDOW_MS = 3_600_000
_DEFAULT_WINDOW_MS = 600_000
#: How much of Spark's log is read from its end, and how many lines are answered.
_TAIL_BYTES = 262_144
_LINES = 500

_ENGINE_LINE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ([A-Z]+) ([^:\s]+): (.*)", re.DOTALL
)


@serves(page.JOBS)
async def _jobs(server: Serving) -> page.PageJobs:
    return page_answers.jobs(await server.briefs(), server.version, history=server.is_history)


@serves(page.RATES)
async def _rates(server: Serving, since: str | None, vertex: str | None) -> page.Rates:
    view = await server.newest()
    samples, since_ms = tuple(server.gateway.recorder.samples), _number("since", since, 0)
    # An hour of many vertices takes tens of milliseconds.
    return await beside(lambda: page_answers.rates(view, samples, since_ms, vertex))


@serves(page.TIMELINE)
async def _timeline(server: Serving, start: str | None, end: str | None) -> page.PageTimeline:
    view = await server.newest()
    start_ms, end_ms = _window(server, start, end)
    recorder = server.gateway.recorder
    return await beside(lambda: page_answers.timeline(view, recorder, start_ms, end_ms))


@serves(page.STORY)
async def _story(
    server: Serving, after: str | None, start: str | None, end: str | None
) -> page.Story:
    return page_answers.story(
        server.gateway.recorder,
        _number("after", after, 0),
        None if start is None else _number("start", start, 0),
        None if end is None else _number("end", end, 0),
    )


@serves(page.FAILURES)
async def _failures(server: Serving, job: str | None) -> page.Failures:
    view = await server.chosen(job)
    return page.Failures(failures=page_answers.failures(view, server.recorder))


@serves(page.PAGE_CHECKPOINT)
async def _checkpoint(server: Serving, checkpoint_id: str, job: str | None) -> page.PageCheckpoint:
    view = await server.chosen(job)
    stats = await server.checkpoint(view.job_id, checkpoint_id)
    return page_answers.checkpoint(view, stats, server.recorder)


@serves(page.PAGE_VERTEX)
async def _vertex(server: Serving, vertex: str, job: str | None) -> page.PageVertexDetail:
    view = await server.chosen(job)
    found = find_vertex(view, vertex)
    if found is None:
        raise HTTPException(404, f"The job has no vertex {quoted(vertex)}.")
    subtasks = await _subtasks(server, found.vertex)
    return page_answers.vertex_detail(view, found, server.recorder, subtasks)


async def _subtasks(server: Serving, name: str) -> tuple[SubtaskView, ...]:
    """How a vertex's newest batch was spread; empty in a history server."""
    if server.is_history:
        return ()
    gateway = server.gateway
    return await server.once(("subtasks", name), lambda: gateway.subtasks(name))


@serves(page.LOGS)
async def _logs(server: Serving, source: str | None, task: str | None) -> page.Logs:
    if source not in (None, "driver", "spark"):
        raise HTTPException(400, f"source is driver or spark, not {quoted(source)}.")
    shows = partial(_is_about, task or "")
    if source == "spark":
        path = server.gateway.engine_log
        if path is None:
            return page.Logs(path=None, lines=())
        return page.Logs(path=path, lines=await beside(lambda: _tail(path, shows)))
    log = server.gateway.recorder.log
    return page.Logs(path=None, lines=await beside(lambda: _kept(log, shows)))


def _window(server: Serving, start: str | None, end: str | None) -> tuple[int, int]:
    """Start and end of a window of time. Raises 400 if it is empty or too long."""
    end_ms = _number("end", end, server.clock.wall_ms())
    start_ms = _number("start", start, end_ms - _DEFAULT_WINDOW_MS)
    if not 0 < end_ms - start_ms <= _WINDOW_MS:
        raise HTTPException(400, "A window of time ends after it starts and lasts up to an hour.")
    return start_ms, end_ms


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,15}", text, re.ASCII):
        raise HTTPException(400, f"{name} is a whole number, not {quoted(text)}.")
    return int(text)


def _is_about(task: str, line: page.PageLogLine) -> bool:
    """Whether a line is of a task, or names it."""
    return task in ("", line.task) or re.search(rf"\b{re.escape(task)}\b", line.text) is not None


def _kept(
    log: LogBuffer, shows: Callable[[page.PageLogLine], bool]
) -> tuple[page.PageLogLine, ...]:
    """The newest lines of the driver's log; they may be megabytes."""
    kept = (
        page.PageLogLine(
            number=line.number,
            time=line.time_ms,
            level=line.level,
            logger=line.logger,
            task=line.task,
            text=line.text,
        )
        for line in tuple(log.lines)
    )
    return tuple(deque(filter(shows, kept), maxlen=_LINES))


def _tail(path: str, shows: Callable[[page.PageLogLine], bool]) -> tuple[page.PageLogLine, ...]:
    """The newest records of Spark's log. Raises 500 if it cannot be read."""
    text = log_tail(path, _TAIL_BYTES)
    records = re.split(r"\n(?=\d{4}-\d\d-\d\d \d\d:)", text)
    lines = (_engine_line(number, record.strip("\n")) for number, record in enumerate(records))
    return tuple(deque((line for line in lines if line.text and shows(line)), maxlen=_LINES))


def _engine_line(number: int, record: str) -> page.PageLogLine:
    found = _ENGINE_LINE.fullmatch(record)
    if found is None:
        return page.PageLogLine(number=number, time=-1, level="", logger="", task="", text=record)
    time_s = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S.%f").timestamp()
    return page.PageLogLine(
        number=number,
        time=int(time_s * 1000),
        level=found[2],
        logger=found[3],
        task="",
        text=found[4],
    )
