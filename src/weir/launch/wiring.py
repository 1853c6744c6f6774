"""Wires one run of one job in this process: the core, the runtime and the Spark ports."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from functools import partial

from weir.config.options import (
    DEFAULT_PARALLELISM,
    IGNORE_UNCLAIMED_STATE,
    KAFKA_GROUP,
    LEASE_INTERVAL,
    LEASE_TIMEOUT,
    LOG_FORMAT,
    ON_SIGTERM,
    REJECTS_MAX,
    REST_LINGER,
    SAVEPOINT_DIR,
    STATE_MEMORY,
    TASK_CANCELLATION_TIMEOUT,
)
from weir.config.values import LogFormat, OnSigterm
from weir.coordinators.runner import CoordinatorRunner
from weir.core.coordination.coordinators import CoordinatedOperator
from weir.core.job.master import JobMaster
from weir.core.messages.job import JobEnded, JobStatusChanged
from weir.core.settings import UntilIdle
from weir.core.status import JobStatus
from weir.core.task.plan import TaskPlan
from weir.core.types import OperatorId, VertexId
from weir.definition import JobDefinition, task_plan
from weir.durable.hooks import CheckpointListeners, MasterHooks
from weir.durable.job import DurableJob, DurableSettings
from weir.durable.sink_port import SinkPort
from weir.durable.state_mapping import StateMapping
from weir.errors import StorageError
from weir.gateway.job_gateway import JobGateway
from weir.gateway.running_job import RunningJob
from weir.launch.archivist import Archivist
from weir.launch.earlier_run import state_mapping, with_parallelism
from weir.launch.environment import RunEnvironment
from weir.launch.lease_keeper import LeaseKeeper
from weir.launch.options import JobResult
from weir.launch.phases import StartPhases, describe_time
from weir.launch.submission import Submission
from weir.launch.unread import unread_lines
from weir.lineage import reporter as lineage
from weir.monitoring.log_lines import as_json, as_text
from weir.monitoring.recorder import Sampler
from weir.monitoring.views import CoordinatorView
from weir.operators.state.types import KEY_GROUPS
from weir.rest.past.archive import JobArchive
from weir.runtime.concurrency import ThreadWaits, ThreadWorkers
from weir.runtime.watching import Watchers
from weir.spark.kafka.inputs import KafkaInputs
from weir.spark.pipeline import Pipeline
from weir.spark.query.frames import plan_layouts
from weir.spark.query.task_port import SparkTaskPort
from weir.spark.session.reach import check_python, check_reachable, check_sink
from weir.spark.session.settings import SHUFFLE_PARTITIONS
from weir.spark.session.start import log_of
from weir.spark.state.assembly import SparkStateAssembler
from weir.storage.lease import Lease
from weir.subtasks.chain import ProcessStep, process_steps


class JobRun:
    """Wires the parts of a run; ``run`` runs the job until it ends."""

    def __init__(
        self,
        environment: RunEnvironment,
        submission: Submission,
        sinks: SinkPort,
        *,
        rest_address: str,
    ) -> None:
        """Make the Spark session and the parts; ``sinks`` are already checked.

        Raises ``WeirError`` if the job cannot start.
        """
        job, configuration = environment.job, environment.configuration
        self._environment = environment
        self._submission = submission
        self._listener = environment.listener
        self._rest_address = rest_address
        self._linger_ms = configuration.value(REST_LINGER)
        self._phases = StartPhases(self._listener, (vertex.name for vertex in job.vertices()))
        _start_spark(environment, submission)
        pipeline = _pipeline(environment)
        self._tasks = _task_port(environment, submission, sinks, pipeline)
        self._durable = _durable_job(environment, submission, sinks, pipeline, self._phases)
        checkpointing = configuration.checkpoint_config()
        if checkpointing.interval_ms is None:
            self._listener.note(
                "warning: periodic checkpoints are off (execution.checkpointing.interval): sinks"
                " commit only when the job ends, on 'weir checkpoint' and on 'weir stop'"
            )
        plans = {
            vertex.name: task_plan(job, vertex, checkpointing.aligned_timeout_ms)
            for vertex in job.vertices()
        }
        coordinated = _coordinated(job, pipeline.operators)
        self._master = _job_master(environment, submission, plans, coordinated)
        self._workers = ThreadWorkers()
        self._running = self._running_job(plans, coordinated)
        self._lineage = self._lineage_reporter()
        self._lease = self._lease_keeper()
        self._archivist = self._new_archivist()
        self._watch(self._running.driver.watchers)

    @property
    def gateway(self) -> JobGateway:
        """The running job, for REST, signals and progress."""
        return self._running

    def run(self) -> JobResult:
        """Run the job in this process until it ends; the calling thread is its main thread."""
        self._listener.phase(None)
        with self._archivist:
            ended = self._run()
        if ended.drained:
            for line in unread_lines(self._environment.job, self._tasks.unread):
                self._listener.note(line)
        return JobResult(
            job_id=self._submission.job_id,
            status=ended.status,
            failure=ended.failure,
            savepoint=ended.savepoint,
            drained=ended.drained,
            checkpoint_id=ended.checkpoint_id,
            fenced=ended.fenced or self._lease.is_lost,
        )

    def _run(self) -> JobEnded:
        try:
            self._lease.start()
            self._listener.submitted(self._submission.job_id, self._running, self._rest_address)
            self._listener.note(
                f"Records and checkpoints: {self._submission.storage.job_directory}"
            )
            recorder = self._running.recorder
            reporting = self._lineage or contextlib.nullcontext()
            with recorder.log, Sampler(recorder, self._running.view), reporting:
                ended = self._running.driver.run()
            over = ended.status in (JobStatus.FINISHED, JobStatus.CANCELED)
            if over or ended.checkpoint_id is not None:
                self._delete_working_directory()
            return ended
        finally:
            self._running.finish()

    def linger(self) -> None:
        """Keep answering clients after the end of the job (``weir.rest.linger``)."""
        status = self._running.view().status
        if self._linger_ms and status is not JobStatus.SUSPENDED:
            self._listener.note(
                f"The job is {status.value}. Its REST server stays at {self._rest_address} for"
                f" {describe_time(self._linger_ms)} (weir.rest.linger); Ctrl-C ends that."
            )
            self._running.left.wait(self._linger_ms / 1000)

    def close(self) -> None:
        """Release the lease, make the JVM drop the job's inputs, and let idle threads end."""
        try:
            self._lease.stop()
        except StorageError as error:
            # The lease expires anyway; raising here would hide how the job ended.
            self._listener.note(f"cannot release the lease: {error}")
        self._tasks.close()
        self._workers.close(0)

    def _running_job(
        self,
        plans: Mapping[VertexId, TaskPlan],
        coordinated: Mapping[OperatorId, CoordinatedOperator],
    ) -> RunningJob:
        environment, job = self._environment, self._environment.job
        return RunningJob(
            job_id=self._submission.job_id,
            name=job.name,
            master=self._master,
            plans=plans,
            tasks=self._tasks,
            durable=self._durable,
            coordinators=CoordinatorRunner(
                {
                    name: step.coordinator
                    for name, step in job.operators.items()
                    if step.coordinator
                },
                workers=self._workers,
                waits=ThreadWaits(),
            ),
            clock=environment.clock,
            configuration=environment.configuration.in_force(),
            patience_ms=environment.configuration.value(TASK_CANCELLATION_TIMEOUT),
            coordinated=tuple(
                CoordinatorView(
                    operator=name, vertex=operator.vertex, parallelism=operator.parallelism
                )
                for name, operator in coordinated.items()
            ),
            engine_log=log_of(environment.session.get()),
            saves_on_sigterm=environment.configuration.value(ON_SIGTERM) is OnSigterm.SAVEPOINT,
        )

    def _lineage_reporter(self) -> lineage.LineageReporter | None:
        environment = self._environment
        return lineage.configured(
            environment.configuration,
            job_name=environment.job.name,
            job_id=self._submission.job_id,
            run_id=str(uuid.uuid4()),
            spark_version=str(environment.session.get().version),
            vertices=environment.job.vertices(),
            datasets=self._tasks.datasets,
            clock=environment.clock,
            attempt=lambda: self._master.attempt,
            latest=lambda: self._master.coordinator.latest,
        )

    def _lease_keeper(self) -> LeaseKeeper:
        submission, storage = self._submission, self._submission.storage
        configuration = self._environment.configuration
        return LeaseKeeper(
            lease=Lease(
                storage.fs(storage.base_directory), storage.base_directory, submission.job_id
            ),
            first_attempt=1 if submission.record is None else submission.record.attempt + 1,
            attempt=lambda: self._durable.attempt,
            rest_address=self._rest_address,
            timeout_ms=configuration.value(LEASE_TIMEOUT),
            interval_ms=configuration.value(LEASE_INTERVAL),
            clock=self._environment.clock,
            on_lost=self._lost,
        )

    def _new_archivist(self) -> Archivist:
        storage = self._submission.storage
        fs, base = storage.fs(storage.base_directory), storage.base_directory
        return Archivist(JobArchive(fs, base, self._submission.job_id), self._running.view)

    def _watch(self, watchers: Watchers) -> None:
        self._phases.watch(watchers)
        if self._lineage is not None:
            self._lineage.watch(watchers)
        watchers.watch_effects({JobStatusChanged: self._status_changed})

    def _status_changed(self, effect: JobStatusChanged) -> None:
        self._archivist.changed()
        if effect.status is JobStatus.FAILING:
            self._listener.note(f"FAILING: {effect.message}")

    def _delete_working_directory(self) -> None:
        try:
            self._tasks.delete_working_directory()
        except StorageError as error:
            # How the job ended is already on record; a query that hangs may still write there.
            self._listener.note(f"cannot delete the working directory: {error}")

    def _lost(self, message: str) -> None:
        self._listener.note(message)
        self._running.suspend()


def _start_spark(environment: RunEnvironment, submission: Submission) -> None:
    """Make the session, and check that executors reach the directories of the job."""
    session = environment.session
    working = environment.working_directory(submission.job_id)
    environment.listener.phase("starting Spark")
    made = session.get()
    if not session.is_local:
        # For as long as the cluster has no room for them: Spark itself waits without end.
        environment.listener.phase("waiting for executors")
    fs = submission.storage.fs(working)
    check_reachable(made, fs, working)
    for name, sink in environment.job.sinks.items():
        if (path := sink.files_at()) is not None:
            check_sink(made, submission.storage.fs, name, path, submission.job_id)
    if not session.is_local and any(map(process_steps, environment.job.vertices())):
        check_python(made, fs, working)
    session.watch_master()
    session.share_modules()


def _pipeline(environment: RunEnvironment) -> Pipeline:
    job, configuration = environment.job, environment.configuration
    log_format = configuration.value(LOG_FORMAT)
    return Pipeline(
        vertices={
            vertex.name: with_parallelism(vertex, configuration) for vertex in job.vertices()
        },
        functions=job.functions,
        sinks=job.sinks,
        operators=_operators(environment),
        rejects_max=configuration.value(REJECTS_MAX),
        log_form=as_json if log_format is LogFormat.JSON else as_text,
    )


def _task_port(
    environment: RunEnvironment, submission: Submission, sinks: SinkPort, pipeline: Pipeline
) -> SparkTaskPort:
    return SparkTaskPort(
        session=environment.session.get(),
        pipeline=pipeline,
        storage=submission.storage,
        sinks=sinks,
        working_directory=environment.working_directory(submission.job_id),
        clock=environment.clock,
        changes=environment.changes,
        kafka=KafkaInputs(
            environment.session.get(),
            accepted=frozenset(environment.options.accept_lost_rows),
            group=environment.configuration.value(KAFKA_GROUP),
            note=environment.listener.note,
        ),
    )


def _durable_job(
    environment: RunEnvironment,
    submission: Submission,
    sinks: SinkPort,
    pipeline: Pipeline,
    phases: StartPhases,
) -> DurableJob:
    job = environment.job
    return DurableJob(
        storage=submission.storage,
        sinks=sinks,
        hooks=MasterHooks(
            job.hooks.values(),
            allow_non_restored_state=environment.configuration.value(IGNORE_UNCLAIMED_STATE),
            waits=ThreadWaits(),
        ),
        listeners=CheckpointListeners(
            {vertex.name: job.listeners(vertex) for vertex in job.vertices()}, ThreadWaits()
        ),
        state_mapping=_state_mapping(environment, pipeline),
        settings=_durable_settings(environment, submission),
        waits=ThreadWaits(),
        note=environment.listener.note,
        restored=phases.restored,
    )


def _state_mapping(environment: RunEnvironment, pipeline: Pipeline) -> StateMapping:
    layouts = partial(plan_layouts, environment.session.get(), pipeline, environment.clock)
    return state_mapping(
        environment.job, environment.configuration, SparkStateAssembler(pipeline.vertices, layouts)
    )


def _durable_settings(environment: RunEnvironment, submission: Submission) -> DurableSettings:
    configuration = environment.configuration
    return DurableSettings(
        job_name=environment.job.name,
        savepoint_directory=configuration.value(SAVEPOINT_DIR),
        working_directory=environment.working_directory(submission.job_id),
        from_savepoint=submission.from_savepoint,
        snapshot_checksum=submission.snapshot_checksum,
        accept_duplicates=environment.options.accept_duplicates,
        claims_snapshot=configuration.claims_snapshot,
        num_retained=configuration.checkpoint_config().num_retained,
        command=environment.command,
    )


def _job_master(
    environment: RunEnvironment,
    submission: Submission,
    plans: Mapping[VertexId, TaskPlan],
    coordinated: Mapping[OperatorId, CoordinatedOperator],
) -> JobMaster:
    configuration = environment.configuration
    return JobMaster(
        job_id=submission.job_id,
        vertices={name: plan.operators for name, plan in plans.items()},
        config=configuration.checkpoint_config(),
        restart=configuration.restart_config(),
        savepoint_directory=configuration.value(SAVEPOINT_DIR),
        hooks=tuple(sorted(environment.job.hooks)),
        producers={name: plan.inputs for name, plan in plans.items()},
        coordinated=coordinated,
        until_idle=(
            UntilIdle(drain=environment.options.drain)
            if environment.job.graph.available_now
            else None
        ),
    )


def _operators(environment: RunEnvironment) -> Mapping[OperatorId, ProcessStep]:
    """The Python operators, each with its parallelism."""
    configuration = environment.configuration
    default = int(environment.session.get().conf.get(SHUFFLE_PARTITIONS) or 1)
    configured = configuration.value(DEFAULT_PARALLELISM) or default
    return {
        name: ProcessStep(
            operator=step.operator,
            parallelism=step.parallelism or min(configured, KEY_GROUPS),
            key_by=step.key_by,
            has_coordinator=step.coordinator is not None,
            state_memory_bytes=configuration.value(STATE_MEMORY),
        )
        for name, step in environment.job.operators.items()
    }


def _coordinated(
    job: JobDefinition, operators: Mapping[OperatorId, ProcessStep]
) -> Mapping[OperatorId, CoordinatedOperator]:
    """The operators that have a coordinator, each with its vertex and parallelism."""
    return {
        name: CoordinatedOperator(
            vertex=vertex.name,
            parallelism=operators[name].parallelism,
            induces_checkpoints=vertex.is_externally_induced,
        )
        for vertex in job.vertices()
        for name in process_steps(vertex)
        if job.operators[name].coordinator is not None
    }
