"""The answers for the web page: pure functions of ``JobView`` and of what the recorder has kept.

Without a recorder, the view was read from a checkpoint directory: nothing in it is
live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median

from weir.config import Configuration
from weir.core.checkpoints.stats import CheckpointStats, TaskCheckpointStats
from weir.core.status import JobStatus, has_ended
from weir.core.types import RowCount, TaskState
from weir.monitoring.recorder import (
    COUNTERS,
    Failure,
    Moment,
    Recorder,
    Sample,
    checkpoint_bar,
)
from weir.monitoring.timeline import Span, SpanKind
from weir.monitoring.views import DriverView, ExceptionView, JobBrief, JobView, VertexView
from weir.rest.handling.answering import answers
from weir.rest.schema import page
from weir.runtime.ports import SubtaskView

#: Over how long rates and shares "now" are measured, in milliseconds.
_RECENT_MS = 30_000
#: How many bars one lane of a timeline has at most, roughly.
_BARS = 1_500
#: A subtask with so many times the median of its siblings is called skewed, above a floor.
_SKEW = 4
_SKEW_FLOOR_MS = 200
#: Up to so many times the median of its siblings, a subtask has read as many rows as they.
_ALIKE = 1.25
#: How many partitions that lag are shown.
_LAGS = 20
#: A sink that stages for so many times the longest Spark task is called slow, above this.
_SLOW_SINK_MS = 1_000
#: How many tasks a sentence names.
_NAMED = 6

_INDEX = {name: number for number, name in enumerate(COUNTERS)}


#: The status of a job whose record cannot be read.
DAMAGED = "DAMAGED"
#: How many characters of a failure a list shows.
_PROBLEM = 300


def jobs(briefs: Iterable[JobBrief], version: str, *, history: bool) -> page.PageJobs:
    """The jobs of a server, in a line each."""
    return page.PageJobs(version=version, history=history, jobs=tuple(map(_job, briefs)))


def _job(brief: JobBrief) -> page.PageJob:
    return page.PageJob(
        id=brief.job_id,
        name=brief.name,
        status=DAMAGED if brief.status is None else brief.status.value,
        started=None if brief.status is None else brief.start_time_ms,
        ended=brief.end_time_ms,
        checkpoint=brief.checkpoint_id,
        checkpointed=brief.checkpoint_time_ms,
        problem=brief.problem.partition("\n")[0][:_PROBLEM],
        driver=_driver(brief.driver),
    )


def _driver(known: DriverView | None) -> page.PageDriver | None:
    return None if known is None else page.PageDriver(host=known.host, address=known.address)


@answers(page.STATE)
def state(view: JobView, recorder: Recorder | None, now_ms: int, version: str) -> page.PageState:
    """The job as it is now."""
    stats = view.checkpoints
    # A job that was stopped may have kept nothing but its savepoint.
    kept = next(
        (checkpoint for checkpoint in stats.history if checkpoint.status == "COMPLETED"), None
    )
    completed = kept if recorder is None else stats.latest_completed
    since_ms = view.timestamps_ms.get(view.status.name, view.start_time_ms)
    return page.PageState(
        now=now_ms,
        version=version,
        job_id=view.job_id,
        name=view.name,
        status=view.status.value if view.is_readable else DAMAGED,
        since=since_ms if view.is_readable else None,
        started=view.start_time_ms if view.is_readable else None,
        ended=view.end_time_ms,
        attempt=view.attempt,
        failure=view.failure,
        savepoint=view.savepoint,
        damage=view.damage,
        driver=_driver(view.driver),
        vertices=_vertices(view, recorder),
        completed=_brief(completed),
        completed_checkpoints=stats.counts.completed,
        coordinators=tuple(coordinator.operator for coordinator in view.coordinators),
        configured=bool(view.configuration),
        live=None if recorder is None else _live(view, recorder),
    )


def _live(view: JobView, recorder: Recorder) -> page.PageLive:
    stats = view.checkpoints
    restored = stats.latest_restored
    return page.PageLive(
        restarts=view.restarts,
        failed=_brief(stats.latest_failed),
        running=tuple(
            found
            for checkpoint in stats.history
            if checkpoint.status == "IN_PROGRESS" and (found := _brief(checkpoint)) is not None
        ),
        failed_checkpoints=stats.counts.failed,
        interval_ms=Configuration(view.configuration).checkpoint_config().interval_ms,
        restored_from=None if restored is None else restored.external_path,
        newest_moment=recorder.moments[-1].number if recorder.moments else 0,
        failures=len(recorder.failures),
    )


def _recent(view: JobView, recorder: Recorder) -> tuple[Sample, Sample | None]:
    """The counters now, and those of about half a minute ago; None before the first sample."""
    newest = recorder.counted(view)
    samples = tuple(recorder.samples)
    older = [sample for sample in samples if sample.time_ms <= newest.time_ms - _RECENT_MS]
    found = older[-1] if older else (samples[0] if samples else None)
    return newest, found if found is not None and found.time_ms < newest.time_ms else None


def _vertices(view: JobView, recorder: Recorder | None) -> tuple[page.PageVertex, ...]:
    kept = {} if view.latest_completed is None else view.latest_completed.states
    samples = None if recorder is None else _recent(view, recorder)
    return tuple(
        page.PageVertex(
            name=vertex.vertex,
            chain=vertex.operators,
            inputs=vertex.inputs,
            # A checkpoint says of a task only whether it has finished.
            status="" if recorder is None and not has_ended(vertex.status) else vertex.status.value,
            outputs=tuple(
                page.PageChannel(
                    consumer=channel.consumer, segments=channel.segments, bytes=channel.size
                )
                for channel in vertex.outputs
            ),
            state_bytes=kept[vertex.vertex].state_size if vertex.vertex in kept else 0,
            live=None
            if recorder is None or samples is None
            else _vertex_live(vertex, recorder, samples, number),
        )
        for number, vertex in enumerate(view.vertices)
    )


def _vertex_live(
    vertex: VertexView, recorder: Recorder, samples: tuple[Sample, Sample | None], number: int
) -> page.PageVertexLive:
    newest, older = samples
    timeline = recorder.timelines[vertex.vertex]
    shares = _shares(newest, older, number)
    doing = next((span for span in timeline.open_spans() if span.checkpoint_id is None), None)
    return page.PageVertexLive(
        parallelism=vertex.parallelism,
        doing="" if doing is None else doing.kind.value,
        doing_for=0 if doing is None else doing.end_ms - doing.start_ms,
        batches=timeline.batches,
        batch_ms=timeline.batch_ms,
        records_in=vertex.records_in,
        records_committed=vertex.records_committed,
        rate_in=_rate(newest, older, number, "records_in"),
        rate_committed=_rate(newest, older, number, "records_committed"),
        busy=shares["busy_ms"],
        rested=shares["rested_ms"],
        held=shares["held_ms"],
        snapshot=shares["snapshot_ms"],
        watermark=vertex.watermark_ms,
        pending=vertex.pending_records,
        late=vertex.late,
    )


def _value(sample: Sample | None, number: int, counter: str) -> int:
    return 0 if sample is None else sample.values[number * len(COUNTERS) + _INDEX[counter]]


def _rate(newest: Sample, older: Sample | None, number: int, counter: str) -> float:
    """Per second, between two samples; counters that went back count as 0."""
    if older is None:
        return 0.0
    grown = _value(newest, number, counter) - _value(older, number, counter)
    return round(max(0.0, 1000 * grown / max(1, newest.time_ms - older.time_ms)), 2)


def _shares(newest: Sample, older: Sample | None, number: int) -> dict[str, float]:
    """What part of the time the query did each thing between two samples."""
    names = ("busy_ms", "rested_ms", "held_ms", "snapshot_ms")
    grown = {
        name: max(0, _value(newest, number, name) - _value(older, number, name)) for name in names
    }
    total = max(1, sum(grown.values()))
    return {name: round(ms / total, 4) for name, ms in grown.items()}


def _brief(stats: CheckpointStats | None) -> page.PageCheckpointBrief | None:
    if stats is None:
        return None
    return page.PageCheckpointBrief(
        id=stats.checkpoint_id,
        is_savepoint=stats.kind.is_savepoint,
        status=stats.status,
        triggered=stats.trigger_timestamp_ms,
        duration_ms=stats.end_to_end_duration_ms,
        acknowledged=sum(task.ack_timestamp_ms is not None for task in stats.tasks),
        tasks=len(stats.tasks),
        path=stats.external_path,
    )


# ---- rates


def rates(
    view: JobView, samples: tuple[Sample, ...], since_ms: int, vertex: str | None
) -> page.Rates:
    """The series after a time; also of a vertex, if it is named."""
    names = tuple(shown.vertex for shown in view.vertices)
    sources = tuple(number for number, shown in enumerate(view.vertices) if not shown.inputs)
    return _series(names, sources, samples, since_ms, vertex)


@lru_cache(maxsize=4)
def _series(
    names: tuple[str, ...],
    sources: tuple[int, ...],
    samples: tuple[Sample, ...],
    since_ms: int,
    vertex: str | None,
) -> page.Rates:
    """Cached: an hour takes tens of milliseconds, and changes per sample, not per request."""
    pairs = [(newer, older) for older, newer in pairwise(samples) if newer.time_ms > since_ms]
    every = range(len(names))
    series = page.Rates(
        times=tuple(newer.time_ms for newer, _ in pairs),
        rows_in=tuple(_sum_of_rates(pair, sources, "records_in") for pair in pairs),
        rows_committed=tuple(_sum_of_rates(pair, every, "records_committed") for pair in pairs),
        backlog=tuple(sum(_value(new, n, "behind_bytes") for n in every) for new, _ in pairs),
    )
    if vertex not in names:
        return series
    number = names.index(vertex)
    shares = [_shares(newer, older, number) for newer, older in pairs]
    marks = [(newer.time_ms, _value(newer, number, "watermark_ms")) for newer, _ in pairs]
    return page.Rates(
        times=series.times,
        rows_in=series.rows_in,
        rows_committed=series.rows_committed,
        backlog=series.backlog,
        busy=tuple(share["busy_ms"] for share in shares),
        held=tuple(share["held_ms"] for share in shares),
        rested=tuple(share["rested_ms"] for share in shares),
        rate=tuple(_rate(newer, older, number, "records_in") for newer, older in pairs),
        lag_ms=tuple(-1 if mark < 0 else max(0, time_ms - mark) for time_ms, mark in marks),
    )


def _sum_of_rates(pair: tuple[Sample, Sample], numbers: Iterable[int], counter: str) -> float:
    return round(sum(_rate(pair[0], pair[1], number, counter) for number in numbers), 2)


# ---- the timeline


def timeline(view: JobView, recorder: Recorder, start_ms: int, end_ms: int) -> page.PageTimeline:
    """The bars between two times; bars too short to be seen are joined with their neighbours."""
    lanes, complete_from = [], start_ms
    for vertex in view.vertices:
        known = recorder.timelines[vertex.vertex]
        query, parts, open_spans = tuple(known.query), tuple(known.parts), known.open_spans()
        if query and len(query) == known.query.maxlen:
            complete_from = max(complete_from, query[0].start_ms)
        lanes.append(
            page.PageLane(
                vertex=vertex.vertex,
                query=_bars(
                    [*query, *(span for span in open_spans if span.checkpoint_id is None)],
                    start_ms,
                    end_ms,
                ),
                parts=_bars(
                    [*parts, *(span for span in open_spans if span.checkpoint_id is not None)],
                    start_ms,
                    end_ms,
                ),
            )
        )
    running = [
        checkpoint for checkpoint in view.checkpoints.history if checkpoint.status == "IN_PROGRESS"
    ]
    checkpoints = [*recorder.checkpoints, *map(checkpoint_bar, reversed(running))]
    return page.PageTimeline(
        start=start_ms,
        end=end_ms,
        lanes=tuple(lanes),
        checkpoints=tuple(
            page.PageSpan(
                kind="savepoint" if checkpoint.is_savepoint else "checkpoint",
                start=checkpoint.start_ms,
                end=checkpoint.end_ms,
                number=checkpoint.checkpoint_id,
                failed=checkpoint.failed,
            )
            for checkpoint in checkpoints
            if checkpoint.end_ms >= start_ms and checkpoint.start_ms < end_ms
        ),
        complete_from=complete_from,
    )


def _bars(spans: Sequence[Span], start_ms: int, end_ms: int) -> tuple[page.PageSpan, ...]:
    shortest_ms = (end_ms - start_ms) // _BARS
    found: list[Span] = []
    for span in spans:
        if span.end_ms < start_ms or span.start_ms > end_ms:
            continue
        last = found[-1] if found else None
        if (
            last is not None
            and last.checkpoint_id == span.checkpoint_id
            and span.end_ms - last.start_ms <= shortest_ms
        ):
            longer = max(last, span, key=lambda candidate: candidate.end_ms - candidate.start_ms)
            found[-1] = Span(
                kind=longer.kind,
                start_ms=last.start_ms,
                end_ms=span.end_ms,
                batch=longer.batch,
                checkpoint_id=longer.checkpoint_id,
                failed=last.failed or span.failed,
            )
        else:
            found.append(span)
    return tuple(_bar(merged) for merged in found)


def _bar(span: Span) -> page.PageSpan:
    number = span.batch if span.checkpoint_id is None else span.checkpoint_id
    return page.PageSpan(
        kind=span.kind.value,
        start=span.start_ms,
        end=span.end_ms,
        number=-1 if number is None else number,
        failed=span.failed,
    )


# ---- story and failures


def story(
    recorder: Recorder, after: int, start_ms: int | None = None, end_ms: int | None = None
) -> page.Story:
    """The moments after a number, between two times if they are given."""
    return page.Story(
        moments=tuple(
            _moment(moment)
            for moment in tuple(recorder.moments)
            if moment.number > after
            and (start_ms is None or moment.time_ms >= start_ms)
            and (end_ms is None or moment.time_ms < end_ms)
        )
    )


def failures(
    view: JobView, recorder: Recorder | None, vertex: str | None = None
) -> tuple[page.PageFailure, ...]:
    """The failures, newest first; only of a task, if it is named."""
    if recorder is None:
        known = tuple(
            Failure(
                time_ms=failure.timestamp_ms,
                attempt=failure.attempt,
                message=failure.message,
                trace=failure.trace,
                vertex=failure.vertex,
                story=(),
                outcome=_outcome(view, failure),
            )
            for failure in view.exceptions
            if view.is_readable
        )
    else:
        known = tuple(recorder.failures)
    return tuple(
        _failure(failure) for failure in reversed(known) if vertex in (None, failure.vertex)
    )


def _outcome(view: JobView, failure: ExceptionView) -> str:
    """What came of a failure, as far as a job's directory shows."""
    if failure.attempt < view.attempt:
        return "The job was restarted."
    if view.status is JobStatus.FAILED:
        return "The job failed for good."
    return "The driver ended before the job was restarted."


def _failure(failure: Failure) -> page.PageFailure:
    return page.PageFailure(
        time=failure.time_ms,
        attempt=failure.attempt,
        message=failure.message,
        trace=failure.trace,
        vertex=failure.vertex,
        story=tuple(_moment(moment) for moment in failure.story),
        outcome=failure.outcome,
        recovered=failure.recovered_ms,
    )


def _moment(moment: Moment) -> page.PageMoment:
    return page.PageMoment(
        number=moment.number,
        time=moment.time_ms,
        kind=moment.kind,
        text=moment.text,
        vertex=moment.vertex,
        checkpoint=moment.checkpoint_id,
    )


# ---- one vertex


def vertex_detail(
    view: JobView, vertex: VertexView, recorder: Recorder | None, subtasks: Sequence[SubtaskView]
) -> page.PageVertexDetail:
    """The state of a vertex by operator, how its newest batch was spread, and its failures."""
    completed = view.latest_completed
    kept = None if completed is None else completed.task(vertex.vertex)
    return page.PageVertexDetail(
        vertex=vertex.vertex,
        state=() if kept is None else _state_parts(kept),
        engine_state=tuple(
            page.PageEngineState(name=state.name, rows=state.rows, bytes=state.size)
            for state in vertex.state
        ),
        lags=_lags(vertex),
        counted=_counted(vertex.counted),
        checkpoint=None if completed is None else completed.checkpoint_id,
        staging_ms=dict(vertex.staging_ms),
        stage=subtasks[0].stage if subtasks else None,
        subtasks=tuple(
            page.PageSubtask(
                index=subtask.index,
                host=subtask.host,
                status=subtask.status,
                duration_ms=subtask.duration_ms,
                rows=subtask.rows,
                bytes=subtask.size,
            )
            for subtask in subtasks
        ),
        finding=_skew(subtasks) or _slow_sink(vertex, subtasks),
        failures=failures(view, recorder, vertex.vertex),
    )


def _lags(vertex: VertexView) -> tuple[page.PageLag, ...]:
    lags = [
        page.PageLag(topic=topic, partition=partition, records=records)
        for topic, partitions in vertex.lags.items()
        for partition, records in partitions.items()
        if records
    ]
    return tuple(sorted(lags, key=lambda lag: -lag.records)[:_LAGS])


def _state_parts(task: TaskState) -> tuple[page.PageStatePart, ...]:
    """Files of a snapshot by operator: ``state/0/3/...`` or ``operators/score/3-...``."""
    parts: dict[str, dict[int, int]] = {}
    files: dict[str, int] = {}
    for handle in task.files:
        kind, _, rest = handle.key.partition("/")
        operator, _, rest = rest.partition("/")
        number = rest.split("/")[0].split("-")[0]
        names = {"state": f"Spark's state operator {operator}", "operators": operator}
        name = names.get(kind, kind)
        partition = int(number) if number.isdecimal() and len(number) < 6 else -1
        sizes = parts.setdefault(name, {})
        sizes[partition] = sizes.get(partition, 0) + handle.size
        files[name] = files.get(name, 0) + 1
    return tuple(
        page.PageStatePart(
            operator=name,
            bytes=sum(sizes.values()),
            files=files[name],
            partitions=tuple(sizes.get(number, 0) for number in range(max(sizes, default=-1) + 1)),
        )
        for name, sizes in parts.items()
    )


def _skew(subtasks: Sequence[SubtaskView]) -> str:
    """A sentence on the subtask that has far more to do than the others; "" if none has."""
    if len(subtasks) < 2:
        return ""
    slowest = max(subtasks, key=lambda subtask: subtask.duration_ms)
    others_ms = median(subtask.duration_ms for subtask in subtasks if subtask is not slowest)
    others_rows = median(subtask.rows for subtask in subtasks if subtask is not slowest)
    if slowest.duration_ms < max(_SKEW_FLOOR_MS, _SKEW * others_ms):
        return ""
    took = (
        f"Subtask {slowest.index} took {_seconds(slowest.duration_ms)}, the median of the others is"
        f" {_seconds(int(others_ms))}"
    )
    total = sum(subtask.rows for subtask in subtasks)
    if slowest.rows >= _SKEW * max(1, others_rows):
        return (
            f"{took}; it read {slowest.rows:,} of {total:,} rows: most rows have keys of one"
            " partition (a skewed key)."
        )
    if slowest.rows > _ALIKE * others_rows:
        return (
            f"{took}; it read {slowest.rows:,} rows, the median of the others is"
            f" {int(others_rows):,}."
        )
    return f"{took}, with as many rows: look at its host ({slowest.host})."


def _slow_sink(vertex: VertexView, subtasks: Sequence[SubtaskView]) -> str:
    """A sentence on the sink that takes most of the batch by itself; "" if none does."""
    if not vertex.staging_ms:
        return ""
    name, took_ms = max(vertex.staging_ms.items(), key=lambda sink: sink[1])
    computed_ms = max((subtask.duration_ms for subtask in subtasks), default=0)
    if took_ms < _SLOW_SINK_MS or took_ms < _SKEW * computed_ms:
        return ""
    return (
        f"Sink {name} staged the newest batch for {_seconds(took_ms)}, while no Spark task of the"
        f" batch ran longer than {_seconds(computed_ms)}: the sink itself is slow."
    )


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms / 1000:.1f} s"


# ---- one checkpoint


def checkpoint(
    view: JobView, stats: CheckpointStats, recorder: Recorder | None
) -> page.PageCheckpoint:
    """One checkpoint, with the part of each task and the reason for how long it took."""
    roots = {vertex.vertex for vertex in view.vertices if not vertex.inputs}
    tasks = [
        page.PageTaskSnapshot(
            vertex=task.vertex,
            state_bytes=task.state_size,
            live=None
            if recorder is None
            else _task_progress(stats, task, recorder, is_root=task.vertex in roots),
        )
        for task in stats.tasks
    ]
    return page.PageCheckpoint(
        id=stats.checkpoint_id,
        is_savepoint=stats.kind.is_savepoint,
        status=stats.status,
        triggered=stats.trigger_timestamp_ms,
        duration_ms=stats.end_to_end_duration_ms,
        path=stats.external_path,
        failure=stats.failure_message,
        state_bytes=stats.state_size,
        checkpointed_bytes=None if recorder is None else stats.checkpointed_size,
        why=_why(
            {vertex.vertex: vertex.live for vertex in tasks if vertex.live is not None}, stats
        ),
        tasks=tuple(tasks),
    )


def _task_progress(
    stats: CheckpointStats, task: TaskCheckpointStats, recorder: Recorder, *, is_root: bool
) -> page.PageTaskProgress:
    known = recorder.timelines.get(task.vertex)
    parts = {} if known is None else _parts(known.open_spans(), known.parts, stats)
    metrics, acknowledged = task.metrics, task.ack_timestamp_ms
    lasted = {kind: sum(s.end_ms - s.start_ms for s in spans) for kind, spans in parts.items()}
    first = min((s.start_ms for spans in parts.values() for s in spans), default=None)
    waited = lasted.get(SpanKind.WAIT, 0)
    delay = 0 if first is None else max(0, first - stats.trigger_timestamp_ms)
    return page.PageTaskProgress(
        progress=_progress(stats, acknowledged is not None, parts),
        acknowledged=acknowledged,
        total_ms=None
        if acknowledged is None
        else max(0, acknowledged - stats.trigger_timestamp_ms),
        start_delay_ms=waited if is_root else delay,
        barriers_ms=lasted.get(SpanKind.ALIGNMENT, 0),
        catch_up_ms=lasted.get(SpanKind.CATCH_UP, 0),
        sync_ms=max(metrics.sync_duration_ms, lasted.get(SpanKind.SYNC, 0)),
        async_ms=max(metrics.async_duration_ms, lasted.get(SpanKind.ASYNC, 0)),
        commit_ms=lasted.get(SpanKind.COMMIT, 0),
        batch_ms=0 if known is None else _batch_ms(known.query, stats),
        is_root=is_root,
        checkpointed_bytes=metrics.checkpointed_size,
        persisted_bytes=metrics.persisted_size,
        unaligned=metrics.unaligned,
        counted=_counted(metrics.counted),
    )


def _counted(rows: Iterable[RowCount]) -> tuple[page.PageCount, ...]:
    return tuple(
        page.PageCount(by=one.by, kind=one.kind.value, rule=one.rule, rows=one.rows) for one in rows
    )


def _parts(
    open_spans: Iterable[Span], ended: Iterable[Span], stats: CheckpointStats
) -> dict[SpanKind, list[Span]]:
    found: dict[SpanKind, list[Span]] = {}
    for span in (*tuple(ended), *open_spans):
        if span.checkpoint_id == stats.checkpoint_id:
            found.setdefault(span.kind, []).append(span)
    return found


def _batch_ms(query: Iterable[Span], stats: CheckpointStats) -> int:
    """The average batch that ended in the minute before the checkpoint's end."""
    until = stats.trigger_timestamp_ms + stats.end_to_end_duration_ms
    took = [
        span.end_ms - span.start_ms
        for span in tuple(query)
        if span.kind is SpanKind.BATCH and until - 60_000 < span.end_ms <= until
    ]
    return sum(took) // len(took) if took else 0


def _progress(stats: CheckpointStats, acknowledged: bool, parts: dict[SpanKind, list[Span]]) -> str:
    if acknowledged:
        return "committed" if SpanKind.COMMIT in parts else "acknowledged"
    if stats.status == "FAILED":
        return "not acknowledged"
    order = (
        (SpanKind.ASYNC, "asynchronous part"),
        (SpanKind.SYNC, "synchronous part"),
        (SpanKind.CATCH_UP, "reading up to the barrier"),
        (SpanKind.ALIGNMENT, "waiting for barriers"),
        (SpanKind.WAIT, "waiting for its batch to end"),
    )
    return next((text for kind, text in order if kind in parts), "no barrier yet")


def _why(tasks: Mapping[str, page.PageTaskProgress], stats: CheckpointStats) -> str:
    """Which task held the checkpoint up longest by what it did itself, in one or two sentences.

    Waiting for a barrier is never a task's own doing: some task upstream has it still. While a
    checkpoint is in progress, the tasks that have yet to acknowledge it are named first.
    """
    missing = [(name, task) for name, task in tasks.items() if task.acknowledged is None]
    if stats.status == "IN_PROGRESS" and missing:
        named = ", ".join(f"{name} ({task.progress})" for name, task in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"Not acknowledged yet: {named}{more}."
    own: list[tuple[int, str, str]] = []
    for name, task in tasks.items():
        batches = (
            f" (its batches take {_seconds(task.batch_ms)} on average)" if task.batch_ms else ""
        )
        if task.is_root:
            ended = f"its batch had to end before its snapshot{batches}"
            own.append((task.start_delay_ms, name, ended))
        read = f"it had to read what was before the barrier in its channels{batches}"
        own.append((task.catch_up_ms, name, read))
        own.append((task.sync_ms, name, "the synchronous part of its snapshot"))
        copied = "the asynchronous part of its snapshot: copying state and flushing sinks"
        own.append((task.async_ms, name, copied))
    longest = max(own, key=lambda part: part[0], default=None)
    if longest is None or longest[0] <= 0:
        return ""
    took_ms, name, what = longest
    return (
        f"Task {name} took longest by itself: {_seconds(took_ms)} of"
        f" {_seconds(stats.end_to_end_duration_ms)}. The reason: {what}."
    )


# ---- coordinators


@answers(page.COORDINATORS)
def coordinators(view: JobView) -> page.Coordinators:
    """The coordinators, with their state in the newest completed checkpoint."""
    newest = view.latest_completed
    return page.Coordinators(
        checkpoint=None if newest is None else newest.checkpoint_id,
        coordinators=tuple(
            page.PageCoordinator(
                operator=coordinator.operator,
                vertex=coordinator.vertex,
                parallelism=coordinator.parallelism,
                state=None
                if newest is None
                else newest.coordinator_states.get(coordinator.operator),
            )
            for coordinator in view.coordinators
        ),
    )
