"""Messages and endpoints of the web page: Weir's own, below ``/weir``.

They serve the page of the same release, so fields may change with it; programs use Flink's paths.

A history server answers what a checkpoint directory has. What only a driver knows is in fields
named ``live``, which are null there; the endpoints that have nothing else refuse. ``job`` is the id
of a job; a driver needs no id.
"""

from __future__ import annotations

from typing import Any

from weir.rest.schema.base import Endpoint, Message, endpoints_in


class PageMessage(Message, frozen=True, kw_only=True, rename="camel"):
    """A message of the page."""


class PageChannel(PageMessage, frozen=True, kw_only=True):
    """What one consumer of a vertex has not processed yet."""

    consumer: str
    segments: int
    bytes: int


class PageVertexLive(PageMessage, frozen=True, kw_only=True):
    """What a vertex does now."""

    parallelism: int
    #: What its query does: a kind of span, or "" while there is no query.
    doing: str
    #: For how long, in milliseconds.
    doing_for: int
    #: Batches since the driver started, and how long the newest took.
    batches: int
    batch_ms: int
    records_in: int
    records_committed: int
    #: Rows per second over the newest samples.
    rate_in: float
    rate_committed: float
    #: Shares of the time over the newest samples, from 0 to 1.
    busy: float
    rested: float
    held: float
    snapshot: float
    #: Event time; None if it has no watermark.
    watermark: int | None
    #: Records that its sources had beyond the newest batch; None if they do not say.
    pending: int | None
    #: Rows dropped as late since the driver started.
    late: int


class PageVertex(PageMessage, frozen=True, kw_only=True):
    """One vertex."""

    name: str
    #: Its chain, from sources to sinks, each with its kind.
    chain: tuple[str, ...]
    inputs: tuple[str, ...]
    #: "" if it is not known.
    status: str
    #: What waits in its channels; without a driver, what the checkpoint's barriers overtook.
    outputs: tuple[PageChannel, ...]
    #: Bytes of its state in the newest completed checkpoint.
    state_bytes: int
    live: PageVertexLive | None


class PageCheckpointBrief(PageMessage, frozen=True, kw_only=True):
    """A checkpoint in one line."""

    id: int
    is_savepoint: bool
    status: str
    triggered: int
    duration_ms: int
    acknowledged: int
    tasks: int
    path: str | None


class PageDriver(PageMessage, frozen=True, kw_only=True):
    """The driver that runs a job of a history server's now."""

    host: str
    #: Of its own page; None if this machine cannot reach it.
    address: str | None


class PageLive(PageMessage, frozen=True, kw_only=True):
    """What only the job's driver knows."""

    #: Attempts after the first, since the driver started.
    restarts: int
    #: The newest failed checkpoint, and those in progress.
    failed: PageCheckpointBrief | None
    running: tuple[PageCheckpointBrief, ...]
    failed_checkpoints: int
    #: None if there are no periodic checkpoints.
    interval_ms: int | None
    #: What the last attempt was restored from.
    restored_from: str | None
    #: Numbers that grow when there is more to fetch.
    newest_moment: int
    failures: int


class PageState(PageMessage, frozen=True, kw_only=True):
    """One job."""

    now: int
    version: str
    job_id: str
    name: str
    #: DAMAGED if its record cannot be read.
    status: str
    #: When the job took this status, and when it started; None if that is not known.
    since: int | None
    started: int | None
    #: -1 while the job runs.
    ended: int
    attempt: int
    failure: str | None
    savepoint: str | None
    #: What of its records cannot be read, in sentences.
    damage: tuple[str, ...]
    #: None if it is this server, or none.
    driver: PageDriver | None
    vertices: tuple[PageVertex, ...]
    #: The newest completed checkpoint.
    completed: PageCheckpointBrief | None
    #: How many the driver has completed; if it left no archive, how many are retained.
    completed_checkpoints: int
    #: Operators that have a coordinator.
    coordinators: tuple[str, ...]
    #: Whether its configuration is known.
    configured: bool
    live: PageLive | None


class PageJob(PageMessage, frozen=True, kw_only=True):
    """One job of ``PageJobs``."""

    id: str
    name: str
    #: DAMAGED if its record cannot be read.
    status: str
    #: None if it is not known.
    started: int | None
    #: -1 while the job runs.
    ended: int
    #: The newest completed checkpoint, and when it completed.
    checkpoint: int | None
    checkpointed: int | None
    #: Why it failed or what is damaged, in one line; "" for neither.
    problem: str
    driver: PageDriver | None


class PageJobs(PageMessage, frozen=True, kw_only=True):
    """The jobs of a server: damaged jobs, then the others, the newest first."""

    version: str
    #: Whether it is a history server.
    history: bool
    jobs: tuple[PageJob, ...]


class Rates(PageMessage, frozen=True, kw_only=True):
    """Series over the last hour, one value for each time."""

    #: Milliseconds since the Unix epoch.
    times: tuple[int, ...]
    #: Rows per second of the whole job: read by sources, committed by sinks.
    rows_in: tuple[float, ...]
    rows_committed: tuple[float, ...]
    #: Bytes that wait in channels.
    backlog: tuple[int, ...]
    #: For the vertex that was asked for: the share of time that it was busy, held and rested, its
    #: rate, and how far its watermark was behind the clock (-1: no watermark).
    busy: tuple[float, ...] = ()
    held: tuple[float, ...] = ()
    rested: tuple[float, ...] = ()
    rate: tuple[float, ...] = ()
    lag_ms: tuple[int, ...] = ()


class PageSpan(PageMessage, frozen=True, kw_only=True, array_like=True):
    """One bar: kind, start and end, the batch or the checkpoint, and whether it failed.

    Written as a list.
    """

    kind: str
    start: int
    end: int
    number: int
    failed: bool


class PageLane(PageMessage, frozen=True, kw_only=True):
    """What one vertex did: its query, and its parts of checkpoints."""

    vertex: str
    query: tuple[PageSpan, ...]
    parts: tuple[PageSpan, ...]


class PageTimeline(PageMessage, frozen=True, kw_only=True):
    """The bars of a window of time."""

    start: int
    end: int
    lanes: tuple[PageLane, ...]
    #: The checkpoints of the window: ``number`` is the id.
    checkpoints: tuple[PageSpan, ...]
    #: From when on there are bars of queries.
    complete_from: int


class PageMoment(PageMessage, frozen=True, kw_only=True):
    """One thing that happened."""

    number: int
    time: int
    kind: str
    text: str
    vertex: str | None
    checkpoint: int | None


class Story(PageMessage, frozen=True, kw_only=True):
    """What happened, oldest first."""

    moments: tuple[PageMoment, ...]


class PageFailure(PageMessage, frozen=True, kw_only=True):
    """Why an attempt failed, and what came of it."""

    time: int
    attempt: int
    message: str
    trace: str
    vertex: str | None
    story: tuple[PageMoment, ...]
    outcome: str
    #: When the job ran again; None if it has not.
    recovered: int | None


class Failures(PageMessage, frozen=True, kw_only=True):
    """The newest failures, newest first."""

    failures: tuple[PageFailure, ...]


class PageCount(PageMessage, frozen=True, kw_only=True):
    """Rows that were dropped as late or set aside, or that broke a rule."""

    #: The step, or Spark's operator with its number in the query.
    by: str
    #: ``late``, ``rejected`` or ``broken``.
    kind: str
    #: The name of the rule that they broke; "" for other rows.
    rule: str
    rows: int


class PageTaskProgress(PageMessage, frozen=True, kw_only=True):
    """A task's way through a checkpoint; durations in milliseconds, of running parts until now."""

    #: What it is at, in words.
    progress: str
    acknowledged: int | None
    #: From the trigger to the acknowledgement; None before.
    total_ms: int | None
    #: Until the first barrier came, or a root's batch ended.
    start_delay_ms: int
    #: Waiting for missing barriers, and then reading what was before the last barrier.
    barriers_ms: int
    catch_up_ms: int
    sync_ms: int
    async_ms: int
    commit_ms: int
    #: The average batch in the minute before the checkpoint's end.
    batch_ms: int
    #: Whether the coordinator triggers it, since it reads no channel.
    is_root: bool
    checkpointed_bytes: int
    persisted_bytes: int
    unaligned: bool
    #: Of the checkpoint's own batches.
    counted: tuple[PageCount, ...]


class PageTaskSnapshot(PageMessage, frozen=True, kw_only=True):
    """One task's part in a checkpoint."""

    vertex: str
    state_bytes: int
    live: PageTaskProgress | None


class PageCheckpoint(PageMessage, frozen=True, kw_only=True):
    """One checkpoint, task by task."""

    id: int
    is_savepoint: bool
    status: str
    triggered: int
    duration_ms: int
    path: str | None
    failure: str | None
    state_bytes: int
    #: What it wrote itself; None if that is not known.
    checkpointed_bytes: int | None
    #: One sentence: which task took longest, and what it did meanwhile.
    why: str
    tasks: tuple[PageTaskSnapshot, ...]


class PageStatePart(PageMessage, frozen=True, kw_only=True):
    """The state of one operator in the newest completed checkpoint, by partition."""

    operator: str
    bytes: int
    files: int
    #: Bytes of each partition, from 0 on.
    partitions: tuple[int, ...]


class PageEngineState(PageMessage, frozen=True, kw_only=True):
    """What one of Spark's stateful operators holds."""

    name: str
    rows: int
    bytes: int


class PageLag(PageMessage, frozen=True, kw_only=True):
    """What a source had in one partition of a topic beyond the newest batch."""

    topic: str
    partition: str
    records: int


class PageSubtask(PageMessage, frozen=True, kw_only=True):
    """One Spark task in the longest stage of the newest batch."""

    index: int
    host: str
    status: str
    duration_ms: int
    rows: int
    bytes: int


class PageVertexDetail(PageMessage, frozen=True, kw_only=True):
    """More on one vertex."""

    vertex: str
    state: tuple[PageStatePart, ...]
    engine_state: tuple[PageEngineState, ...]
    #: Only of the partitions that lag, the most first.
    lags: tuple[PageLag, ...]
    #: Since the driver started.
    counted: tuple[PageCount, ...]
    #: The checkpoint that ``state`` is of; None without a completed checkpoint.
    checkpoint: int | None
    #: How long each sink staged the newest batch, the computation of its rows included.
    staging_ms: dict[str, int]
    stage: int | None
    subtasks: tuple[PageSubtask, ...]
    #: A sentence if a subtask or a sink takes far longer than the rest; "" otherwise.
    finding: str
    failures: tuple[PageFailure, ...]


class PageLogLine(PageMessage, frozen=True, kw_only=True):
    """One line of a log."""

    number: int
    #: Milliseconds since the Unix epoch; -1 for a line of Spark's log without a time.
    time: int
    level: str
    logger: str
    task: str
    text: str


class Logs(PageMessage, frozen=True, kw_only=True):
    """The newest lines of a log, oldest first."""

    #: Where the log is; None for the driver's, which is in memory.
    path: str | None
    lines: tuple[PageLogLine, ...]


class PageCoordinator(PageMessage, frozen=True, kw_only=True):
    """One operator's coordinator, as of the newest completed checkpoint."""

    operator: str
    vertex: str
    parallelism: int
    state: dict[str, Any] | None


class Coordinators(PageMessage, frozen=True, kw_only=True):
    """The coordinators of the job."""

    checkpoint: int | None
    coordinators: tuple[PageCoordinator, ...]


JOBS = Endpoint("GET", "/weir/jobs", PageJobs, "For the page: the server's jobs.")
STATE = Endpoint(
    "GET", "/weir/state", PageState, "For the page: the job as it is now.", query=("job",)
)
RATES = Endpoint(
    "GET",
    "/weir/rates",
    Rates,
    "For the page: the last hour, of the job and of one vertex.",
    query=("since", "vertex"),
)
TIMELINE = Endpoint(
    "GET",
    "/weir/timeline",
    PageTimeline,
    "For the page: batches and parts of checkpoints as bars.",
    query=("start", "end"),
)
STORY = Endpoint(
    "GET", "/weir/story", Story, "For the page: what happened.", query=("after", "start", "end")
)
FAILURES = Endpoint(
    "GET",
    "/weir/failures",
    Failures,
    "For the page: failures and their story.",
    query=("job",),
)
PAGE_CHECKPOINT = Endpoint(
    "GET",
    "/weir/checkpoints/{checkpoint_id}",
    PageCheckpoint,
    "For the page: one checkpoint, task by task.",
    query=("job",),
)
PAGE_VERTEX = Endpoint(
    "GET",
    "/weir/vertices/{vertex}",
    PageVertexDetail,
    "For the page: more on one vertex.",
    query=("job",),
)
LOGS = Endpoint(
    "GET",
    "/weir/logs",
    Logs,
    "For the page: the newest lines of the driver's log, or of Spark's.",
    query=("source", "task"),
)
COORDINATORS = Endpoint(
    "GET",
    "/weir/coordinators",
    Coordinators,
    "For the page: coordinators and their state.",
    query=("job",),
)

ENDPOINTS = endpoints_in(globals())
