"""``Job`` and ``Stream``: how a user writes a pipeline.

A job is a graph of named steps around ordinary PySpark code: any streaming DataFrame is a source,
any function from DataFrames to a DataFrame is a transformation (MISSION F3). Nothing runs while the
graph is built; ``weir run FILE`` or ``Job.run()`` runs it. State is matched by step name, so a step
must keep its name across restarts. A step with a ``uid`` may be renamed: the uid replaces the name
wherever state is matched, also as the id of the vertex that ends with the step, and the name is
only shown to people. To rename a step that has run without a uid, give it its old name as uid::

    job = weir.Job("orders")
    orders = job.source("orders", lambda spark: spark.readStream.schema(SCHEMA).parquet("landing/"))
    clean = orders.transform("clean", lambda df: df.filter("amount > 0"))
    clean.sink("orders_clean", weir.sinks.DeltaTable("out/orders_clean"))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from weir.config.values import DURATION
from weir.coordinators.base import OperatorCoordinator
from weir.core.graph import MAIN_OUTPUT, GraphStep, StepKind
from weir.core.types import NAME, OperatorId
from weir.definition import JobDefinition, ProcessFunction, Simulation, checked_name
from weir.durable.changes import WATERMARK, declared
from weir.durable.hooks import MasterHook
from weir.errors import PipelineError
from weir.expectations import Expectations
from weir.operators.base import ListCheckpointed, Operator
from weir.operators.connected import CoOperator
from weir.operators.state.types import KEY_GROUPS
from weir.sinks.base import Sink
from weir.sources.base import Source, check_available_now
from weir.sources.coordinator import SourceCoordinator
from weir.sources.operator import SourceOperator
from weir.sources.watermarks import Watermarks
from weir.storage.paths import is_utf8

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.handle.job_handle import JobHandle
    from weir.launch.options import JobResult, RunOptions

    SourceFunction = Callable[[SparkSession], DataFrame]
    TransformFunction = Callable[..., DataFrame]


class Host(Protocol):
    """Executes a file, and decides what running a job means in it: ``weir run FILE``."""

    def made(self, job: Job) -> None:
        """The file has built a job."""
        ...

    def run(self, job: Job, options: RunOptions) -> JobResult:
        """The file calls ``job.run()``: run the job, or raise."""
        ...

    def start(self, job: Job, options: RunOptions) -> JobHandle:
        """The file calls ``job.start()``: start the job, or raise."""
        ...


#: The hosts of the files that are executed now, innermost last.
_hosts: list[Host] = []


@contextmanager
def hosted_by(host: Host) -> Iterator[None]:
    """Meanwhile, jobs of any thread belong to this host."""
    _hosts.append(host)
    try:
        yield
    finally:
        _hosts.remove(host)


class Job:
    """A pipeline under coordinated checkpoints.

    Args:
        name: Identifies the job in the checkpoint directory: running a job of the same name again
            resumes it.
        conf: Configuration: Flink's keys, ``weir.*`` and ``spark.*``, with text, numbers and
            booleans as values. ``--conf`` overrides it.
    """

    def __init__(self, name: str, *, conf: Mapping[str, str | float | bool] | None = None) -> None:
        self._definition = JobDefinition(checked_name(name), conf or {})
        if _hosts:
            _hosts[-1].made(self)

    @property
    def name(self) -> str:
        """The name that identifies the job in the checkpoint directory."""
        return self._definition.name

    @property
    def conf(self) -> dict[str, str | float | bool]:
        """The configuration, which ``--conf`` overrides."""
        return self._definition.conf

    def source(
        self,
        name: str,
        source: SourceFunction | Source[Any],
        *,
        bounded: bool = False,
        available_now: bool = False,
        parallelism: int | None = None,
        watermarks: Watermarks | None = None,
        idle_after_ms: int | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Add a source.

        ``source`` is a function that takes the Spark session and returns a streaming DataFrame, or
        one of ``weir.sources``. With ``bounded=True`` the input is what exists when the job starts:
        it is processed, every window and timer fires, the last rows are committed, and the
        job finishes. A source from ``weir.sources`` has its own ``bounded`` argument.

        With ``available_now=True`` a run reads what there is when it starts, commits it with a
        checkpoint and ends, and the next run goes on from there, its windows still open (Spark's
        ``Trigger.AvailableNow``). All unbounded sources of a job need it; ``weir run --until-idle``
        does the same for a pipeline without it.

        A source from ``weir.sources`` is read by
        ``parallelism`` subtasks (by default ``parallelism.default``). ``watermarks`` gives it an
        event time, with a watermark for each of its splits. ``idle_after_ms`` is for a source that
        Spark reads: after so long without rows, its watermark does not hold back other chains
        (``Watermarks`` has the same for its splits). ``uid`` is the id by which state is found
        again; the name if not given. Raises ``PipelineError`` if either is taken.
        """
        bounds = bounded or (isinstance(source, Source) and source.bounded)
        if available_now and bounds:
            raise PipelineError(
                f"Source {name!r} has bounded=True and available_now=True: a bounded input has an"
                " end, at which the job finishes; to go on with what comes later, remove"
                " bounded=True."
            )
        if isinstance(source, Source):
            if bounded:
                raise PipelineError(
                    f"Source {name!r} is a {type(source).__name__}: pass bounded=True to it, not"
                    " to the step."
                )
            if idle_after_ms is not None:
                raise PipelineError(
                    f"Source {name!r} is a {type(source).__name__}: pass idle_after_ms to its"
                    " Watermarks, not to the step."
                )
            if available_now:
                check_available_now(name, source)
            step = GraphStep(
                name=name,
                kind=StepKind.SOURCE,
                bounded=source.bounded,
                enumerated=True,
                available_now=available_now,
                externally_induced=source.externally_induced,
                idle_after_ms=None if watermarks is None else watermarks.idle_after_ms,
                uid=uid,
            )
            return self._read_by_subtasks(step, source, parallelism, watermarks)
        _check_read_by_spark(name, parallelism, watermarks, idle_after_ms)
        return self._added(
            GraphStep(
                name=name,
                kind=StepKind.SOURCE,
                bounded=bounded,
                available_now=available_now,
                idle_after_ms=idle_after_ms,
                uid=uid,
            ),
            source,
        )

    def transform(
        self,
        name: str,
        inputs: Stream | Sequence[Stream],
        function: TransformFunction,
        *,
        output_mode: Literal["append", "update"] = "append",
        parallelism: int | None = None,
        uid: str | None = None,
        on_error: Stream | None = None,
    ) -> Stream:
        """Add a transformation: ``function`` takes one DataFrame per input and returns a DataFrame.

        ``output_mode``: ``"append"`` emits rows once they are final, which for an aggregation means
        that a watermark has passed them. ``"update"`` emits in each batch the rows that changed in
        it; sinks with keys keep the newest of each key, and steps that follow must be stateless or
        Python operators.

        ``parallelism`` is the number of state partitions of the query that the step is chained
        into, and overrides ``parallelism.default``; it may change with each restore. ``uid`` is the
        id by which state is found again; the name if not given.

        ``on_error``, from ``Job.rejects``, gets the rows of the only input on which the step
        raises, if it makes its rows one by one. Without it, the job fails.
        """
        streams = [inputs] if isinstance(inputs, Stream) else list(inputs)
        if not streams:
            raise PipelineError(f"Step {name!r} has no inputs: give it at least one stream.")
        self._check_streams(name, streams)
        if output_mode not in ("append", "update"):
            raise PipelineError(
                f"Step {name!r} has the output mode {output_mode!r}: use 'append', or 'update' for"
                " what changes in each batch."
            )
        expects = isinstance(function, Expectations)
        if (on_error is not None or expects) and len(streams) != 1:
            what = "expectations" if expects else "on_error"
            raise PipelineError(
                f"Step {name!r} has {what} and {len(streams)} inputs: only a step with one input"
                " can look at its rows one by one."
            )
        if isinstance(function, Expectations) and function.rejects is (on_error is None):
            raise PipelineError(
                f"Step {name!r} has rules of reject, but no on_error: pass job.rejects(name) as"
                " on_error."
                if on_error is None
                else f"Step {name!r} has on_error, but no rule of reject: add one, or remove"
                " on_error."
            )
        return self._added(
            GraphStep(
                name=name,
                kind=StepKind.TRANSFORM,
                inputs=tuple(stream.uid for stream in streams),
                tags=tuple(stream.tag for stream in streams),
                parallelism=parallelism,
                emits_updates=output_mode == "update",
                on_error=self._rejects_of(name, on_error),
                uid=uid,
            ),
            function,
        )

    def rejects(self, name: str, *, uid: str | None = None) -> Stream:
        """The rows that steps with ``on_error`` set aside, as a stream.

        The documentation's page REJECTS says which steps can. The columns are
        ``step``, ``error``, ``position``, ``event_time`` and ``row``, the step's input row as JSON.
        ``uid`` is the id by which state is found again; the name if not given.
        """
        step = GraphStep(name=name, kind=StepKind.REJECTS, uid=uid)
        self._definition.graph.add(step)
        return Stream(self, step)

    def _rejects_of(self, name: str, on_error: Stream | None) -> OperatorId | None:
        """The id of the step that gets the rejects. Raises ``PipelineError`` for other streams."""
        if on_error is None:
            return None
        self._check_streams(name, [on_error])
        if not self._definition.graph.is_rejects(on_error.uid):
            raise PipelineError(
                f"Step {name!r} has on_error={on_error.name!r}, which is not a stream of rejects:"
                " make one with job.rejects(name)."
            )
        return on_error.uid

    def master_hook(self, hook: MasterHook) -> None:
        """Make the state of something outside of Spark part of every checkpoint (MISSION A8).

        Raises ``PipelineError`` if the job already has a hook with this identifier.
        """
        if hook.identifier in self._definition.hooks:
            raise PipelineError(
                f"Job {self.name!r} has two master hooks with the identifier {hook.identifier!r}:"
                " give each its own."
            )
        self._definition.hooks[hook.identifier] = hook

    def simulation(
        self,
        *,
        rows: Mapping[str, Any] | None = None,
        event_time: Mapping[str, str] | None = None,
        visible: Mapping[str, Callable[[Any], Iterable[Any]]] | None = None,
    ) -> None:
        """Declare what ``weir sim`` cannot know; nothing else reads it.

        The documentation's page SIMULATOR has an example.
        ``rows``: by the name of a source or transformation, what its rows are like: a schema (DDL,
        ``StructType`` or Arrow), or a function that makes them. ``event_time``: the column with the
        event time of a step's rows. ``visible``: by the name of a sink, a function that gets the
        sink and returns all rows that readers of its target see.
        """
        self._definition.simulation = Simulation(
            rows=dict(rows or {}), event_time=dict(event_time or {}), visible=dict(visible or {})
        )

    def run(
        self,
        *,
        master: str | None = None,
        conf: Mapping[str, str | float | bool] | None = None,
        from_savepoint: str | None = None,
        fresh: bool = False,
        takeover: bool = False,
        accept_duplicates: bool = False,
        accept_changed_state: Sequence[str] = (),
        accept_lost_rows: Sequence[str] = (),
        until_idle: bool = False,
        drain: bool = False,
    ) -> JobResult:
        """Run the job in this process until it ends. ``RunOptions`` explains the keywords.

        It prints what ``weir run`` prints, on standard error (``weir.progress-interval``). On the
        main thread, Ctrl-C, SIGTERM and SIGHUP suspend the job, unless the program handles or
        ignores them itself; then ``SystemExit`` is raised, with 128 + signal, or in a notebook
        ``KeyboardInterrupt``. Raises ``WeirError`` if the job cannot start, and ``JobFailedError``
        if it failed.

        In a file that ``weir run`` executes, the command line's options take precedence over the
        keywords. Under ``weir plan`` and ``weir sim``, the file is executed up to here.
        """
        from weir.handle.job_handle import run_in_script
        from weir.launch.command import script_arguments
        from weir.launch.options import RunOptions

        options = RunOptions(
            master=master,
            conf=dict(conf or {}),
            from_savepoint=from_savepoint,
            fresh=fresh,
            takeover=takeover,
            accept_duplicates=accept_duplicates,
            accept_changed_state=tuple(accept_changed_state),
            accept_lost_rows=tuple(accept_lost_rows),
            arguments=script_arguments(),
            until_idle=until_idle,
            drain=drain,
        )
        if _hosts:
            return _hosts[-1].run(self, options)
        return run_in_script(self._definition, options)

    def start(
        self,
        *,
        master: str | None = None,
        conf: Mapping[str, str | float | bool] | None = None,
        from_savepoint: str | None = None,
        fresh: bool = False,
        takeover: bool = False,
        accept_duplicates: bool = False,
        accept_changed_state: Sequence[str] = (),
        accept_lost_rows: Sequence[str] = (),
        until_idle: bool = False,
        drain: bool = False,
    ) -> JobHandle:
        """Start the job on a thread of this process, and return once its queries run.

        ``RunOptions`` explains the keywords. If the job still runs in this process, it is suspended
        first, and resumed. Raises ``WeirError`` if the job cannot start. In a file that ``weir
        run`` executes, the command line's options take precedence over the keywords, and the
        command waits for the job once the file has ended. Under ``weir plan`` and ``weir sim``, the
        file is executed up to here.
        """
        from weir.handle.job_handle import start_job
        from weir.launch.command import script_arguments
        from weir.launch.options import RunOptions

        options = RunOptions(
            master=master,
            conf=dict(conf or {}),
            from_savepoint=from_savepoint,
            fresh=fresh,
            takeover=takeover,
            accept_duplicates=accept_duplicates,
            accept_changed_state=tuple(accept_changed_state),
            accept_lost_rows=tuple(accept_lost_rows),
            arguments=script_arguments(),
            until_idle=until_idle,
            drain=drain,
        )
        if _hosts:
            return _hosts[-1].start(self, options)
        return start_job(self._definition, options)

    def _added(self, step: GraphStep, function: Callable[..., Any]) -> Stream:
        self._definition.graph.add(step)
        self._definition.functions[step.operator_id] = function
        return Stream(self, step)

    def _added_operator(self, step: GraphStep, function: ProcessFunction) -> Stream:
        number = function.parallelism
        if number is not None and not (type(number) is int and 1 <= number <= KEY_GROUPS):
            raise PipelineError(
                f"Step {step.name!r} has parallelism={number!r}: set it to an integer from 1 to"
                f" {KEY_GROUPS}."
            )
        for column in (column for columns in function.key_by for column in columns):
            if not is_utf8(column):
                raise PipelineError(
                    f"Step {step.name!r} is keyed by {column!r}, which is not UTF-8 text: no column"
                    " can have that name."
                )
        self._definition.graph.add(step)
        self._definition.operators[step.operator_id] = function
        return Stream(self, step)

    def _processed(
        self,
        name: str,
        stream: Stream,
        function: ProcessFunction,
        uid: str | None,
        on_error: Stream | None,
    ) -> Stream:
        self._check_streams(name, [stream])
        operator = function.operator
        self._check_operator(name, operator, function.coordinator)
        if isinstance(operator, CoOperator):
            raise PipelineError(
                f"The operator of step {name!r} is a {type(operator).__name__}, which has two"
                " inputs: connect them first, as in orders.connect(limits).process(...)."
            )
        if on_error is not None and isinstance(operator, ListCheckpointed):
            raise PipelineError(
                f"Step {name!r} has on_error, but the state of its {type(operator).__name__} lies"
                " in attributes (ListCheckpointed), which cannot be put back: keep it in the"
                " StateStore of initialize_state."
            )
        step = GraphStep(
            name=name,
            kind=StepKind.PROCESS,
            inputs=(stream.uid,),
            tags=(stream.tag,),
            on_error=self._rejects_of(name, on_error),
            uid=uid,
        )
        return self._added_operator(step, function)

    def _connected(
        self, name: str, streams: tuple[Stream, Stream], function: ProcessFunction, uid: str | None
    ) -> Stream:
        self._check_streams(name, streams)
        operator = function.operator
        self._check_operator(name, operator, function.coordinator)
        if not isinstance(operator, CoOperator):
            raise PipelineError(
                f"The operator of step {name!r} is a {type(operator).__name__}, which has one"
                " input: connected streams take a subclass of weir.operators.CoOperator."
            )
        if operator.output_schema is None:
            raise PipelineError(
                f"The operator of step {name!r} has two inputs, so it must say what it emits: set"
                f" output_schema of {type(operator).__name__}."
            )
        step = GraphStep(
            name=name,
            kind=StepKind.PROCESS,
            inputs=tuple(stream.uid for stream in streams),
            tags=tuple(stream.tag for stream in streams),
            uid=uid,
        )
        return self._added_operator(step, function)

    def _check_operator(
        self, name: str, operator: Operator, coordinator: OperatorCoordinator | None
    ) -> None:
        if not isinstance(operator, Operator):
            raise PipelineError(
                f"The operator of step {name!r} is a {type(operator).__name__}: pass an instance of"
                " a subclass of weir.operators.Operator."
            )
        if coordinator is not None and not isinstance(coordinator, OperatorCoordinator):
            raise PipelineError(
                f"The coordinator of step {name!r} is a {type(coordinator).__name__}: pass an"
                " instance of a subclass of weir.coordinators.OperatorCoordinator."
            )
        if coordinator is not None and any(
            other.coordinator is coordinator for other in self._definition.operators.values()
        ):
            raise PipelineError(
                f"Step {name!r} shares its coordinator with another step: create one instance per"
                " step, since it holds the state of one operator."
            )
        for tag in operator.side_outputs:
            if not (isinstance(tag, str) and re.fullmatch(NAME, tag)):
                raise PipelineError(
                    f"Step {name!r} has a side output with the tag {tag!r}: use at most 100"
                    " letters, digits, '_', '-' and '.', starting with a letter or digit."
                )

    def _read_by_subtasks(
        self,
        step: GraphStep,
        source: Source[Any],
        parallelism: int | None,
        watermarks: Watermarks | None,
    ) -> Stream:
        name = step.name
        if not getattr(source, "schema", None):
            raise PipelineError(
                f"Source {name!r} has no schema: set the attribute schema of"
                f" {type(source).__name__}, such as 'id long, ts timestamp'."
            )
        for number in ("max_rows_per_batch", "poll_interval_ms"):
            if getattr(source, number) < 1:
                raise PipelineError(
                    f"Source {name!r} has {number}={getattr(source, number)}: set it to 1 or more."
                )
        timed = [] if watermarks is None else [f"{watermarks.column}, {watermarks.delay_ms} ms"]
        coordinator = SourceCoordinator(source, available_now=step.available_now)
        function = ProcessFunction(
            operator=SourceOperator(source, watermarks),
            coordinator=coordinator,
            parallelism=parallelism,
            key_by=(),
            reads=declared(
                identity=source.identity(), expressions=[f"{WATERMARK}{text}" for text in timed]
            ),
            unassigned=lambda: coordinator.unassigned,
        )
        return self._added_operator(step, function)

    def _check_streams(self, name: str, streams: Sequence[Stream]) -> None:
        for stream in streams:
            if not isinstance(stream, Stream):
                raise PipelineError(
                    f"An input of step {name!r} is a {type(stream).__name__}, not a stream of this"
                    " job: pass what job.source or transform returned."
                )
            if stream.job is not self:
                raise PipelineError(
                    f"Step {name!r} of job {self.name!r} reads {stream.name!r} of job"
                    f" {stream.job.name!r}: a step can only read streams of its own job."
                )


class Stream:
    """An output of one step. ``uid`` is the id by which the step's state is matched.

    ``tag`` is that of a side output, and ``""``, ``MAIN_OUTPUT``, for any other.
    """

    def __init__(self, job: Job, step: GraphStep, tag: str = MAIN_OUTPUT) -> None:
        self.job = job
        self.name = step.name
        self.uid = step.operator_id
        self.tag = tag
        self._step = step

    def side_output(self, tag: str) -> Stream:
        """The rows that the step's operator emits to a side output (``Operator.side_outputs``).

        It has the watermark of the operator's main output. Raises ``PipelineError`` if the operator
        does not declare it.
        """
        function = self.job._definition.operators.get(self.uid)
        declared = {} if function is None else function.operator.side_outputs
        if tag not in declared:
            known = ", ".join(repr(output) for output in declared) or "none"
            raise PipelineError(
                f"Step {self.name!r} has no side output {tag!r}, and declares {known}: add it to"
                " side_outputs of its operator, with its schema."
            )
        return Stream(self.job, self._step, tag)

    def transform(
        self,
        name: str,
        function: TransformFunction,
        *,
        output_mode: Literal["append", "update"] = "append",
        parallelism: int | None = None,
        uid: str | None = None,
        on_error: Stream | None = None,
    ) -> Stream:
        """Apply ``function`` (DataFrame -> DataFrame) as a step of this name.

        The keywords are those of ``Job.transform``.
        """
        return self.job.transform(
            name,
            self,
            function,
            output_mode=output_mode,
            parallelism=parallelism,
            uid=uid,
            on_error=on_error,
        )

    def process(
        self,
        name: str,
        operator: Operator,
        *,
        coordinator: OperatorCoordinator | None = None,
        parallelism: int | None = None,
        key_by: str | Sequence[str] | None = None,
        uid: str | None = None,
        on_error: Stream | None = None,
    ) -> Stream:
        """Process the stream with a Python operator.

        It runs in ``parallelism`` subtasks (by default ``parallelism.default``). ``coordinator``
        runs in the driver and exchanges events with the subtasks. With ``key_by``, the name of a
        column or of several, all records of a key go to one subtask, and the operator may have
        keyed state; the key of several columns is an Arrow struct of them. The event
        time of the output is the column that has the name and type of the input's; without
        such a column it has no watermark. ``uid`` is the id by which state is matched.

        ``on_error``, from ``Job.rejects``, gets the records on which ``process_batch`` raises: the
        operator's state, output and events are as if they had never come.
        """
        return self.job._processed(
            name,
            self,
            ProcessFunction(
                operator=operator,
                coordinator=coordinator,
                parallelism=parallelism,
                key_by=(_columns(key_by),) if key_by else (),
            ),
            uid,
            on_error,
        )

    def connect(self, other: Stream) -> ConnectedStreams:
        """This stream and another, for an operator with two inputs."""
        self.job._check_streams("connect", [self, other])
        return ConnectedStreams(self, other)

    def union(self, *others: Stream, name: str | None = None, uid: str | None = None) -> Stream:
        """The rows of this and other streams, columns matched by name.

        ``uid`` is the id by which state is matched. Without ``name``, the name is made of the
        inputs' names and, if ``uid`` is missing too, the uid of their uids.
        """
        streams = [self, *others]
        self.job._check_streams(name or "union", streams)
        if name is None:
            name = "-".join(("union", *(stream.name for stream in streams)))
            uid = "-".join(("union", *(stream.uid for stream in streams))) if uid is None else uid
        step = GraphStep(
            name=name,
            kind=StepKind.UNION,
            inputs=tuple(stream.uid for stream in streams),
            tags=tuple(stream.tag for stream in streams),
            uid=uid,
        )
        self.job._definition.graph.add(step)
        return Stream(self.job, step)

    def start_new_chain(self) -> Stream:
        """Start a new query at this step, with a channel before it.

        Steps that follow may still be chained to it. The result of the job stays the same
        (PROTOCOL P25). Raises ``PipelineError`` for a source.
        """
        if self.job._definition.graph.is_source(self.uid):
            raise PipelineError(
                f"Step {self.name!r} is a source, which always starts a chain: call"
                " start_new_chain() on a later step."
            )
        self.job._definition.graph.cut(self.uid, upstream=True)
        return self

    def disable_chaining(self) -> Stream:
        """Run this step as its own query, with channels on both sides."""
        self.job._definition.graph.cut(self.uid, upstream=True, downstream=True)
        return self

    @overload
    def sink(
        self,
        name: str,
        sink: Sink,
        *,
        min_commit_interval: str | None = None,
        uid: str | None = None,
    ) -> None: ...

    @overload
    def sink(
        self, name: Sink, *, min_commit_interval: str | None = None, uid: str | None = None
    ) -> None: ...

    def sink(
        self,
        name: str | Sink,
        sink: Sink | None = None,
        *,
        min_commit_interval: str | None = None,
        uid: str | None = None,
    ) -> None:
        """Write the stream to a sink: ``clean.sink(DeltaTable(...))``. A step may have several.

        ``name`` may be left out, or be that of the step; each further sink of the step needs a name
        of its own.

        ``min_commit_interval`` is a duration such as ``"5 min"``: of the checkpoints in each such
        span of the clock the sink commits at the first, with all rows since its last commit. Fewer,
        larger commits make fewer small files; readers see rows later. The end of the input and a
        stop commit everything.

        ``uid`` is the id by which the sink's state is matched and under which it commits. Without
        it, that is the name; of a sink with the name of its step it is the step's id and ``-sink``.
        """
        if isinstance(name, Sink):
            sink = name if sink is None else sink
            name = self.name
        if not isinstance(sink, Sink):
            given = "missing" if sink is None else f"a {type(sink).__name__}"
            raise PipelineError(
                f"The sink {name!r} is {given}: pass one of weir.sinks, such as"
                " weir.sinks.DeltaTable(path), or a subclass of weir.sinks.Sink."
            )
        if uid is None and name == self.name:
            uid = f"{self.uid}-sink"
        if any(other is sink for other in self.job._definition.sinks.values()):
            raise PipelineError(
                f"The sink {name!r} shares its {type(sink).__name__} with another sink of the job:"
                " create one instance per sink, since each knows what it has staged and"
                " committed."
            )
        self._check_target(name, sink)
        if not sink.takes_updates and self.job._definition.graph.has_updates(self.uid):
            raise PipelineError(
                f"The sink {name!r} would append each change of a row as a new row, since step"
                f" {self.name!r} emits updates: use a sink with a key (mode='upsert', key=[...] of"
                " weir.sinks.DeltaTable or PostgresTable) or weir.sinks.Foreach; or remove"
                " output_mode='update' and aggregate with a watermark (withWatermark), so that"
                " each row is final."
            )
        interval_ms = _interval_ms(name, min_commit_interval)
        step = GraphStep(
            name=name, kind=StepKind.SINK, inputs=(self.uid,), tags=(self.tag,), uid=uid
        )
        self.job._definition.graph.add(step)
        self.job._definition.sinks[step.operator_id] = sink
        if interval_ms:
            self.job._definition.commit_intervals_ms[step.operator_id] = interval_ms

    def _check_target(self, name: str, sink: Sink) -> None:
        """Refuse a second sink of one target, such as a line that was copied."""
        target = sink.destination()
        for other, known in self.job._definition.sinks.items() if target is not None else ():
            if known.destination() == target:
                raise PipelineError(
                    f"The sinks {other!r} and {name!r} both write to {sink.describe()}: rows of a"
                    " step that reaches both would come twice. Give each a target of its own, or"
                    " write the union of their streams with one sink."
                )

    def __repr__(self) -> str:
        return f"Stream({self.job.name!r}, {self.name!r})"


class ConnectedStreams:
    """Two streams for one operator (Flink's ``ConnectedStreams``)."""

    def __init__(self, first: Stream, second: Stream) -> None:
        self.first = first
        self.second = second

    def process(
        self,
        name: str,
        operator: CoOperator,
        *,
        coordinator: OperatorCoordinator | None = None,
        parallelism: int | None = None,
        key_by: tuple[str | Sequence[str], str | Sequence[str]] | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Process both streams with a Python operator, which is always in a query of its own.

        ``key_by`` is a pair: the column of the first stream, or several columns, and those of the
        second. All records of a key go to one subtask, from both streams, and see the same keyed
        state. The other keywords are those of ``Stream.process``.

        Raises ``PipelineError`` if ``key_by`` is not such a pair, or the operator has one input.
        """
        return self.first.job._connected(
            name,
            (self.first, self.second),
            ProcessFunction(
                operator=operator,
                coordinator=coordinator,
                parallelism=parallelism,
                key_by=_key_pair(name, key_by),
            ),
            uid,
        )


def _check_read_by_spark(
    name: str,
    parallelism: int | None,
    watermarks: Watermarks | None,
    idle_after_ms: int | None,
) -> None:
    """Raise ``PipelineError`` for arguments that a source which Spark reads does not take."""
    if watermarks is not None:
        raise PipelineError(
            f"Source {name!r} is read by Spark, which knows no splits: call withWatermark in"
            " its function; only sources of weir.sources take watermarks."
        )
    if parallelism is not None:
        raise PipelineError(
            f"Source {name!r} is read by Spark, which decides its parallelism itself: only"
            " sources of weir.sources take a parallelism."
        )
    if idle_after_ms is not None and (type(idle_after_ms) is not int or idle_after_ms < 1):
        raise PipelineError(
            f"Source {name!r} has idle_after_ms={idle_after_ms!r}: set it to whole"
            " milliseconds, 1 or more."
        )


def definition_of(job: Job) -> JobDefinition:
    """What a job consists of, for those who run or show it."""
    return job._definition


def _interval_ms(name: str, text: str | None) -> int:
    """A sink's ``min_commit_interval`` in milliseconds; 0 if unset. Raises ``PipelineError``."""
    try:
        return 0 if text is None else DURATION.parse(text.strip())
    except (ValueError, AttributeError) as error:
        raise PipelineError(
            f"min_commit_interval of the sink {name!r} is {text!r}: give {DURATION.expectation}."
        ) from error


def _columns(key_by: str | Sequence[str]) -> tuple[str, ...]:
    return (key_by,) if isinstance(key_by, str) else tuple(key_by)


def _key_pair(
    name: str, key_by: tuple[str | Sequence[str], str | Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    if key_by is None:
        return ()
    pair = [] if isinstance(key_by, str) else [_columns(columns) for columns in key_by]
    if len(pair) != 2 or not pair[0] or len(pair[0]) != len(pair[1]):
        raise PipelineError(
            f"Step {name!r} is keyed by {key_by!r}, but has two inputs: give key_by a pair with"
            " equally many columns for both, such as ('customer', 'id')."
        )
    return tuple(pair)
