"""From the queries that a script has started to a job.

The graph always has the same shape, whatever other queries the script has: each reading is a
source, each query a transformation of its readings, with one sink. So a query that is added or
removed changes nothing of the others but the cuts between them, and state follows its step across
these (``durable/state_mapping.py``)::

    load() ──► source ──► query ──► sink            one query, one chain

    load() ──► source ─┬► query ──► sink            the same source in a chain of its own
                       ├► query ──► sink
                       └► query ──► sink

Readings are cut at the leaves of Spark's plans, and not higher up, where queries may share more:
what a channel holds must not depend on which queries read it.

*Output modes.* A query in append mode runs in append mode. So does one in update mode that only
emits final rows, as a filter or a deduplication does. Other queries in update mode emit updates.
Complete mode is run as updates, if these make the same table (``spark/adopt/plans.py``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from weir.adopt.identity import (
    NOTHING,
    Before,
    QueryTraits,
    StepId,
    Use,
    query_ids,
    reading_ids,
    shown_names,
    sink_id,
)
from weir.adopt.outputs.sinks import AdoptedSink
from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR
from weir.core.types import OperatorId
from weir.errors import PipelineError, StorageError
from weir.job import Job, Stream
from weir.launch.options import RunOptions
from weir.launch.runner import with_recovery_path
from weir.launch.submission import started_from
from weir.spark.adopt.checks import (
    check_as_spark_does,
    check_frame,
    check_sources,
    is_one_session,
    why_not_in_update_mode,
)
from weir.spark.adopt.plans import Leaf, QueryPlan, is_read_twice, reading_of
from weir.spark.adopt.query import StartedQuery, TriggerKind
from weir.spark.hadoop import HadoopFileSystem
from weir.spark.query.source_leaves import SOCKETS
from weir.storage.file_systems import FileSystems
from weir.storage.paths import join, normalize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.job import SourceFunction

#: Sinks that show what has changed, one row after the other, and keep no table.
_SHOW_CHANGES = ("console", "kafka")
_BOUNDED = (TriggerKind.AVAILABLE_NOW, TriggerKind.ONCE)
_LOCATION = "checkpointlocation"
#: Options that together name the table of a connector's sink.
_TABLE_OPTIONS = ("keyspace", "database", "dbtable", "table", "collection")


class SinkOf(Protocol):
    """Makes the sink of a query."""

    def __call__(
        self,
        query: StartedQuery,
        *,
        uid: str,
        updates: bool,
        keys: tuple[str, ...] | None,
        directory: str,
    ) -> AdoptedSink:
        """Make the sink.

        ``updates``: whether the step emits updates. ``keys``: the columns that are the keys of its
        aggregation, None if some are not in the output. ``directory``: a place of the job's own.
        """
        ...


class Landed(Protocol):
    """Makes a source of the lines that a socket sends, which lands them in a directory first."""

    def __call__(
        self, host: str, port: int, include_timestamp: bool, directory: str
    ) -> SourceFunction:
        """Make the source."""
        ...


@dataclass(frozen=True, kw_only=True)
class AdoptedJob:
    """The job of a script's queries."""

    job: Job
    #: For each query, by its number, the step whose Spark query computes it.
    steps: Mapping[int, OperatorId]
    #: By the names of the queries that have one.
    checkpoint_locations: Mapping[str, str]
    #: What people should know, a sentence each.
    says: tuple[str, ...]


def check_started(query: StartedQuery) -> None:
    """Refuse, where the script starts a query, what cannot run.

    Raises Spark's own exceptions for what Spark refuses, and ``PipelineError`` for what Weir does.
    """
    _check_runs(query)
    check_as_spark_does(query)
    with _at(query):
        check_sources(query.frame)
        plan = QueryPlan(query.frame)
    if query.output_mode == "complete":
        _check_complete(query, plan)


def before_start(
    name: str,
    conf: Mapping[str, str | float | bool],
    options: RunOptions,
    session: SparkSession,
) -> Before:
    """What the checkpoint has from which a run of the job ``name`` would start.

    Raises ``StorageError`` if it cannot be read, and ``ConfigurationError``.
    """
    configuration = Configuration.load(None, {**conf, **options.conf})
    return Before.of(
        started_from(
            name=name,
            options=with_recovery_path(options, configuration),
            base_directory=configuration.value(CHECKPOINT_DIR),
            fs=FileSystems(partial(HadoopFileSystem, session)),
        )
    )


def job_of(
    queries: Sequence[StartedQuery],
    *,
    name: str,
    conf: Mapping[str, str | float | bool],
    sink_of: SinkOf,
    landed: Landed,
    directory: str,
    before: Before = NOTHING,
    read_apart: Set[str] = frozenset(),
) -> AdoptedJob:
    """The job that computes a script's queries.

    ``landed`` makes the source that takes the place of a socket. ``directory`` is a place of the
    job's own, for sinks and landed lines. ``before`` is what the checkpoint has
    from which the job starts, and ``read_apart`` the names of the queries that are to read from the
    start of their input, each with readings of its own.

    Raises ``PipelineError`` with the script's line.
    """
    for query in queries:
        _check_runs(query)
        if not is_one_session(queries[0], query):
            raise PipelineError(
                f"{query.place}: the query belongs to another session than that of"
                f" {queries[0].place}: start all queries of a script in one session."
            )
    adopted = _adopted(queries, before, read_apart)
    _check_triggers(queries)
    readings = _readings(adopted)
    names = shown_names(
        step for one in adopted for step in (*one.sources, one.step, sink_id(one.step))
    )
    job = Job(name, conf=conf)
    streams = {}
    for reading in readings:
        with _at(reading.readers[0].query):
            function = _source(reading, landed, directory)
            streams[reading.step.uid] = _add_source(job, reading, function, names)
    says = [*_said_of_readings(readings), *_said_of_new(adopted, before)]
    for one in adopted:
        stream = _add_query(job, one, streams, names[one.step.uid])
        says += _add_sink(stream, one, sink_of, names, directory)
    return AdoptedJob(
        job=job,
        steps={number: one.step.uid for number, one in enumerate(adopted)},
        checkpoint_locations={
            names[one.step.uid]: one.query.options[_LOCATION]
            for one in adopted
            if _LOCATION in one.query.options
        },
        says=tuple(says),
    )


# -- queries ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _Adopted:
    """One query on its way into the job."""

    query: StartedQuery
    plan: QueryPlan
    step: StepId
    #: Why it has readings of its own; None if it shares them.
    apart: str | None
    #: The source of each leaf of its plan.
    sources: tuple[StepId, ...] = ()

    @property
    def reads(self) -> Iterator[tuple[Leaf, StepId]]:
        """The leaves of its plan, each with its source."""
        return zip(self.plan.leaves, self.sources, strict=True)

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The columns by which its rows replace each other; None if they do not."""
        if self.query.output_mode == "complete" and self.plan.filters_result:
            return None
        return self.plan.keys()

    @property
    def emits_updates(self) -> bool:
        """Whether rows may come again when they have changed."""
        return self.query.output_mode != "append" and self.plan.emits_changes


def _adopted(
    queries: Sequence[StartedQuery], before: Before, read_apart: Set[str]
) -> list[_Adopted]:
    """The queries with their ids and those of their readings."""
    steps = query_ids([_traits(query) for query in queries])
    known = {name for step in steps for name in (step.name, step.uid)}
    known |= {query.name for query in queries if query.name is not None}
    for name in sorted(read_apart - known):
        raise PipelineError(
            f"--read-apart names {name!r}, but the script has no such query: its queries are"
            f" {', '.join(sorted(step.name for step in steps))}."
        )
    found = []
    for query, step in zip(queries, steps, strict=True):
        with _at(query):
            plan = QueryPlan(query.frame)
        if query.output_mode == "complete":
            _check_complete(query, plan)
            plan = plan.as_updates()
        apart = None
        if plan.uses_file_names:
            apart = "asks for the name of the file that is read, which a shared reading has not"
        elif read_apart & {step.name, step.uid, query.name}:
            apart = "is named by --read-apart"
        found.append(_Adopted(query=query, plan=plan, step=step, apart=apart))
    uses = [
        Use(query=one.step.uid, load=leaf.load, what=leaf.what, apart=one.apart is not None)
        for one in found
        for leaf in one.plan.leaves
    ]
    sources = iter(reading_ids(uses, before))
    return [
        replace(one, sources=tuple(itertools.islice(sources, len(one.plan.leaves))))
        for one in found
    ]


def _traits(query: StartedQuery) -> QueryTraits:
    function = getattr(query.each_batch, "__name__", None)
    kind = query.format or "parquet"
    if query.each_batch is not None or query.each_row is not None:
        kind = "foreach" if query.each_batch is None else "foreachbatch"
    return QueryTraits(
        place=str(query.place),
        name=query.name,
        target=None if kind.startswith("foreach") else _target(query),
        kind=kind,
        checkpoint_location=query.options.get(_LOCATION),
        function=None if function == "<lambda>" else function,
        columns=tuple(query.frame.columns),
    )


def _target(query: StartedQuery) -> str | None:
    """Where a query writes; None if its sink has no place."""
    if query.table is not None:
        return f"table {query.table}"
    path = query.options.get("path")
    if path is not None:
        try:
            return f"path {normalize(path)}"
        except StorageError:
            # The sink says what is wrong with it.
            return f"path {path}"
    if "topic" in query.options:
        return f"topic {query.options['topic']}"
    table = [query.options[key] for key in _TABLE_OPTIONS if key in query.options]
    return f"table {'.'.join(table)}" if table else None


# -- readings --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _Reading:
    """What one ``load()`` reads, for one or more queries."""

    step: StepId
    #: The widest of the queries' leaves.
    leaf: Leaf
    readers: tuple[_Adopted, ...]

    @property
    def is_loaded(self) -> bool:
        """Whether a ``load()`` made it, and not Spark, for a stream that is joined with itself."""
        return any(
            next(source for leaf, source in one.reads if leaf.what == self.leaf.what) == self.step
            for one in self.readers
        )

    @property
    def is_apart(self) -> bool:
        """Whether its query does not share readings."""
        return self.readers[0].apart is not None

    @property
    def available_now(self) -> bool:
        """Whether it ends with what is there when the job starts."""
        return self.readers[0].query.trigger.kind in _BOUNDED


def _readings(adopted: Sequence[_Adopted]) -> list[_Reading]:
    """The readings, in the order of the script.

    Raises ``PipelineError`` for queries that cannot share one.
    """
    found: dict[OperatorId, tuple[StepId, list[Leaf], list[_Adopted]]] = {}
    for one in adopted:
        for leaf, source in one.reads:
            _, leaves, readers = found.setdefault(source.uid, (source, [], []))
            leaves.append(leaf)
            readers.append(one)
    readings = [
        _Reading(step=source, leaf=max(leaves, key=lambda leaf: leaf.width), readers=tuple(readers))
        for source, leaves, readers in found.values()
    ]
    for reading in readings:
        _check_shared(reading)
    return readings


def _check_shared(reading: _Reading) -> None:
    """Refuse a reading that is shared by a query which must have its own."""
    for one in reading.readers if len(reading.readers) > 1 else ():
        if one.apart is not None:
            names = ", ".join(
                repr(other.step.name) for other in reading.readers if other is not one
            )
            raise PipelineError(
                f"{one.query.place}: query {one.step.name!r} {one.apart}, but in the last"
                f" checkpoint it shares the reading of {reading.leaf.what} with {names}: give it a"
                " load() of its own and another queryName, or start from scratch with --fresh."
            )


# -- the graph -------------------------------------------------------------------------------------


def _source(reading: _Reading, landed: Landed, directory: str) -> SourceFunction:
    """The function that reads it."""
    leaf = reading.leaf
    if leaf.source in SOCKETS:
        options = leaf.options
        return landed(
            options["host"],
            int(options["port"]),
            options.get("includetimestamp", "false").lower() == "true",
            join(directory, reading.step.uid),
        )

    def read(spark: SparkSession) -> DataFrame:
        return reading_of(spark, leaf)

    return read


def _add_source(
    job: Job, reading: _Reading, function: SourceFunction, names: Mapping[OperatorId, str]
) -> Stream:
    """Add a reading to the job."""
    keywords: dict[str, Any] = {"available_now": True} if reading.available_now else {}
    uid = reading.step.uid
    return job.source(names[uid], function, uid=uid, **keywords)


def _add_query(job: Job, one: _Adopted, streams: Mapping[OperatorId, Stream], name: str) -> Stream:
    """Add a query to the job."""
    plan = one.plan

    def compute(*frames: DataFrame) -> DataFrame:
        return plan.over(frames)

    with _at(one.query):
        return job.transform(
            name,
            [streams[source.uid] for source in one.sources],
            compute,
            output_mode="update" if one.emits_updates else "append",
            uid=one.step.uid,
        )


def _add_sink(
    stream: Stream, one: _Adopted, sink_of: SinkOf, names: Mapping[OperatorId, str], directory: str
) -> tuple[str, ...]:
    """Add the sink of a query; returns what people should know of it."""
    step = sink_id(one.step)
    with _at(one.query):
        made = sink_of(
            one.query,
            uid=step.uid,
            updates=one.emits_updates,
            keys=one.keys,
            directory=directory,
        )
        stream.sink(
            names[step.uid],
            made.sink,
            min_commit_interval=made.min_commit_interval,
            uid=step.uid,
        )
    return made.says


# -- what is refused -------------------------------------------------------------------------------


def _check_runs(query: StartedQuery) -> None:
    """Refuse what no job can run."""
    with _at(query):
        check_frame(query.frame)
    if query.trigger.kind is TriggerKind.CONTINUOUS:
        raise PipelineError(
            f"{query.place}: continuous processing has no batches that a checkpoint could cut: use"
            " trigger(processingTime=...), or none."
        )
    if query.trigger.kind is TriggerKind.REAL_TIME:
        raise PipelineError(
            f"{query.place}: real-time mode has no batches that a checkpoint could cut: use"
            " trigger(processingTime=...), or none."
        )


def _check_triggers(queries: Sequence[StartedQuery]) -> None:
    """Refuse queries of which some end with what is available and some go on."""
    bounded = next((one for one in queries if one.trigger.kind in _BOUNDED), None)
    endless = next((one for one in queries if one.trigger.kind not in _BOUNDED), None)
    if bounded is not None and endless is not None:
        raise PipelineError(
            f"{bounded.place} and {endless.place}: the first query ends with what is available now"
            " and the second goes on, but both are in one job: give both the same trigger, or start"
            " them in two scripts."
        )


def _check_complete(query: StartedQuery, plan: QueryPlan) -> None:
    """Refuse a query in complete mode whose changes do not make its whole result.

    Whether its output has the keys is for its sink to check.
    """
    why = plan.why_no_updates()
    if why is None and plan.filters_result and query.format not in _SHOW_CHANGES:
        why = "it has a filter after its aggregation"
    if why is None:
        why = why_not_in_update_mode(plan.as_updates().frame(query.frame.sparkSession))
    if why is not None:
        raise PipelineError(
            f"{query.place}: Weir runs complete mode by changes that replace earlier rows of the"
            f" same key, but {why}: filter or limit where the result is read, or use"
            " outputMode('update')."
        )


@contextlib.contextmanager
def _at(query: StartedQuery) -> Iterator[None]:
    """Add the script's line to what is refused."""
    try:
        yield
    except PipelineError as error:
        if str(error).startswith(str(query.place)):
            raise
        raise PipelineError(f"{query.place}: {error}") from error


# -- what is said ----------------------------------------------------------------------------------


def _said_of_readings(readings: Sequence[_Reading]) -> Iterator[str]:
    """Which inputs a script loads more than once."""
    loaded = [one for one in readings if one.is_loaded and not one.is_apart]
    for one, other in itertools.combinations(loaded, 2):
        is_joined = any(reader in one.readers for reader in other.readers)
        if is_read_twice(one.leaf, other.leaf) and not is_joined:
            yield (
                f"{one.readers[0].query.place} and {other.readers[0].query.place}:"
                f" {one.leaf.what} is read twice: call load() once to share the reading, so that"
                " both outputs are one cut."
            )


def _said_of_new(adopted: Sequence[_Adopted], before: Before) -> Iterator[str]:
    """Which queries the last run did not have, and where they begin."""
    sources = {source for known in before.reads.values() for source in known}
    for one in adopted:
        if one.step.uid in before.reads:
            continue
        for leaf, source in one.reads:
            if source.uid in sources:
                yield (
                    f"{one.query.place}: query {one.step.name!r} is new: it begins at this job's"
                    f" position in {leaf.what}, not at the start. --read-apart {one.step.name}"
                    " gives it a reading of its own."
                )
