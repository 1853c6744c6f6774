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

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weir.coordinators.base import OperatorCoordinator
from weir.core.graph import GraphStep, StepKind
from weir.core.status import JobStatus
from weir.durable.hooks import MasterHook
from weir.errors import JobFailedError, PipelineError
from weir.operators.base import KEY_GROUPS, Operator
from weir.sinks.base import Sink
from weir.sources.base import SplitSource
from weir.steps import ProcessFunction, Steps
from weir.storage.paths import is_utf8

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from weir.run.options import JobResult

    SourceFunction = Callable[[SparkSession], DataFrame]
    TransformFunction = Callable[..., DataFrame]


class Job:
    """A pipeline under coordinated checkpoints.

    Args:
        name: Identifies the job in the checkpoint directory: running a job of the same name again
            resumes it.
        conf: Configuration as text: Flink's keys, ``weir.*`` and ``spark.*``. ``--conf`` overrides
            it.
    """

    def __init__(self, name: str, *, conf: Mapping[str, str] | None = None) -> None:
        if not name.strip():
            raise PipelineError("A job needs a name: weir.Job('orders').")
        if not is_utf8(name):
            raise PipelineError(
                f"The job name {name!r} is not UTF-8 text: choose another, such as 'orders'."
            )
        self.name = name
        self.conf = dict(conf or {})
        self._steps = Steps()

    def source(
        self,
        name: str,
        source: SourceFunction | SplitSource,
        *,
        bounded: bool = False,
        parallelism: int | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Add a source.

        ``source`` is a function that takes the Spark session and returns a streaming DataFrame, or
        one of ``weir.sources``. With ``bounded=True`` the input is whatever is there when the job
        starts: it is processed, every window and timer fires, the last rows are committed, and the
        job finishes. A source from ``weir.sources`` has its own ``bounded`` argument and is read by
        ``parallelism`` subtasks (by default ``parallelism.default``). Raises ``PipelineError`` if
        the name or ``uid`` (by which state is matched, see above) is taken.
        """
        if isinstance(source, SplitSource):
            if bounded:
                raise PipelineError(
                    f"Source {name!r} is a {type(source).__name__}: pass bounded=True to it, not"
                    " to the step."
                )
            return self._read_by_subtasks(name, source, parallelism, uid)
        if parallelism is not None:
            raise PipelineError(
                f"Source {name!r} is read by Spark, which decides its parallelism itself: only"
                " sources of weir.sources take one."
            )
        return self._added(
            GraphStep(name=name, kind=StepKind.SOURCE, bounded=bounded, uid=uid), source
        )

    def transform(
        self,
        name: str,
        inputs: Stream | Sequence[Stream],
        function: TransformFunction,
        *,
        parallelism: int | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Add a transformation: ``function`` takes one DataFrame per input and returns a DataFrame.

        ``parallelism`` is the number of state partitions of the query that the step is chained
        into, and overrides ``parallelism.default``; it may change with each restore. ``uid`` is the
        id by which state is matched (see above).
        """
        streams = [inputs] if isinstance(inputs, Stream) else list(inputs)
        if not streams:
            raise PipelineError(f"Step {name!r} has no inputs: give it at least one stream.")
        self._check_streams(name, streams)
        return self._added(
            GraphStep(
                name=name,
                kind=StepKind.TRANSFORM,
                inputs=tuple(stream.uid for stream in streams),
                parallelism=parallelism,
                uid=uid,
            ),
            function,
        )

    def process(
        self,
        name: str,
        stream: Stream,
        operator: Operator,
        *,
        coordinator: OperatorCoordinator | None = None,
        parallelism: int | None = None,
        key_by: str | Sequence[str] | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Add a Python operator: see ``Stream.process``."""
        self._check_streams(name, [stream])
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
            one.coordinator is coordinator for one in self._steps.operators.values()
        ):
            raise PipelineError(
                f"Step {name!r} shares its coordinator with another step: create one instance per"
                " step, since it holds the state of one operator."
            )
        step = GraphStep(name=name, kind=StepKind.PROCESS, inputs=(stream.uid,), uid=uid)
        function = ProcessFunction(
            operator=operator,
            coordinator=coordinator,
            parallelism=parallelism,
            key_by=(key_by,) if isinstance(key_by, str) else tuple(key_by or ()),
        )
        return self._added_operator(step, function)

    def master_hook(self, hook: MasterHook) -> None:
        """Make the state of something outside of Spark part of every checkpoint (MISSION A8).

        Raises ``PipelineError`` if the job already has a hook with this identifier.
        """
        if hook.identifier in self._steps.hooks:
            raise PipelineError(
                f"Job {self.name!r} has two master hooks with the identifier {hook.identifier!r}:"
                " give each its own."
            )
        self._steps.hooks[hook.identifier] = hook

    def run(
        self,
        *,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        from_savepoint: str | None = None,
        fresh: bool = False,
        takeover: bool = False,
        accept_duplicates: bool = False,
    ) -> JobResult:
        """Run the job in this process until it ends. ``RunOptions`` explains the keywords.

        Raises ``WeirError`` if the job cannot start, and ``JobFailedError`` if it failed.
        """
        from weir.run.options import RunOptions
        from weir.run.runner import LoggingListener, run_job

        options = RunOptions(
            master=master,
            conf=dict(conf or {}),
            from_savepoint=from_savepoint,
            fresh=fresh,
            takeover=takeover,
            accept_duplicates=accept_duplicates,
        )
        result = run_job(self, options, LoggingListener())
        if result.status is JobStatus.FAILED:
            raise JobFailedError(f"Job {self.name!r} ({result.job_id}) failed: {result.failure}")
        return result

    def _added(self, step: GraphStep, function: Callable[..., Any]) -> Stream:
        self._steps.graph.add(step)
        self._steps.functions[step.operator_id] = function
        return Stream(self, step)

    def _added_operator(self, step: GraphStep, function: ProcessFunction) -> Stream:
        number = function.parallelism
        if number is not None and not (type(number) is int and 1 <= number <= KEY_GROUPS):
            raise PipelineError(
                f"Step {step.name!r} has parallelism={number!r}: set it to an integer from 1 to"
                f" {KEY_GROUPS}."
            )
        self._steps.graph.add(step)
        self._steps.operators[step.operator_id] = function
        return Stream(self, step)

    def _read_by_subtasks(
        self, name: str, source: SplitSource, parallelism: int | None, uid: str | None
    ) -> Stream:
        step = GraphStep(
            name=name, kind=StepKind.SOURCE, bounded=source.bounded, enumerated=True, uid=uid
        )
        function = ProcessFunction(
            operator=source.reader(),
            coordinator=source.enumerator(),
            parallelism=parallelism,
            key_by=(),
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
    """The output of one step. ``uid`` is the id by which the step's state is matched."""

    def __init__(self, job: Job, step: GraphStep) -> None:
        self.job = job
        self.name = step.name
        self.uid = step.operator_id

    def transform(
        self,
        name: str,
        function: TransformFunction,
        *,
        parallelism: int | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Apply ``function`` (DataFrame -> DataFrame) as a step of this name.

        The keywords are those of ``Job.transform``.
        """
        return self.job.transform(name, self, function, parallelism=parallelism, uid=uid)

    def process(
        self,
        name: str,
        operator: Operator,
        *,
        coordinator: OperatorCoordinator | None = None,
        parallelism: int | None = None,
        key_by: str | Sequence[str] | None = None,
        uid: str | None = None,
    ) -> Stream:
        """Process the stream with a Python operator.

        It runs in ``parallelism`` subtasks (by default ``parallelism.default``). ``coordinator``
        runs in the driver and exchanges events with the subtasks. With ``key_by``, the name of a
        column or of several, all records of a key go to one subtask, and the operator may have
        keyed state; the key of several columns is an Arrow struct of them. An operator with its own
        ``output_schema`` emits rows without a watermark: call ``withWatermark`` downstream of it,
        not upstream. ``uid`` is the id by which state is matched.
        """
        return self.job.process(
            name,
            self,
            operator,
            coordinator=coordinator,
            parallelism=parallelism,
            key_by=key_by,
            uid=uid,
        )

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
            name=name, kind=StepKind.UNION, inputs=tuple(stream.uid for stream in streams), uid=uid
        )
        self.job._steps.graph.add(step)
        return Stream(self.job, step)

    def start_new_chain(self) -> Stream:
        """Start a new query at this step, with a channel before it.

        Steps that follow may still be chained to it. The result of the job stays the same
        (PROTOCOL P25). Raises ``PipelineError`` for a source.
        """
        if self.job._steps.graph.is_source(self.uid):
            raise PipelineError(
                f"Step {self.name!r} is a source, which always starts a chain: call"
                " start_new_chain() on a later step."
            )
        self.job._steps.graph.cut(self.uid, upstream=True)
        return self

    def disable_chaining(self) -> Stream:
        """Run this step as its own query, with channels on both sides."""
        self.job._steps.graph.cut(self.uid, upstream=True, downstream=True)
        return self

    def sink(self, name: str, sink: Sink, *, uid: str | None = None) -> None:
        """Write the stream to a sink (append mode). A step may have several sinks.

        ``uid`` is the id by which the sink's state is matched and under which it commits.
        """
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"The sink {name!r} is a {type(sink).__name__}: pass one of weir.sinks, such as"
                " weir.sinks.DeltaTable(path), or a subclass of weir.sinks.Sink."
            )
        step = GraphStep(name=name, kind=StepKind.SINK, inputs=(self.uid,), uid=uid)
        self.job._steps.graph.add(step)
        self.job._steps.sinks[step.operator_id] = sink

    def __repr__(self) -> str:
        return f"Stream({self.job.name!r}, {self.name!r})"
