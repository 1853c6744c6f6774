"""Runs a job in this process until it ends: called by ``weir run``, ``Job.run`` and ``Job.start``.

Checks run in order of cost: configuration and graph, the checkpoint directory with the lease, the
REST port, the sinks' targets, and only then a JVM, which starts while the rest of Weir is loaded. A
Spark session is made earlier only if a path needs Hadoop's file systems.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from weir.core.status import JobStatus
from weir.definition import JobDefinition, accept_lost_rows
from weir.errors import ConfigurationError, PipelineError, RestError
from weir.launch.options import JobResult, RunListener, RunOptions

if TYPE_CHECKING:
    from weir.config import Configuration
    from weir.durable.changes import Changes
    from weir.durable.sink_port import SinkPort
    from weir.launch.environment import RunEnvironment
    from weir.launch.submission import Submission
    from weir.launch.wiring import JobRun
    from weir.rest.server.server import RestServer
    from weir.runtime.concurrency import Clock
    from weir.spark.session.start import LazySession
    from weir.storage.checkpoints import CheckpointStorage
    from weir.storage.job_log import JobRecord


def run_job(job: JobDefinition, options: RunOptions, listener: RunListener) -> JobResult:
    """Run the job in this process until it ends. Raises ``WeirError`` if it cannot start."""
    listener.phase("loading libraries")
    from weir.config import Configuration
    from weir.launch.command import command_of
    from weir.launch.environment import RunEnvironment
    from weir.runtime.concurrency import SystemClock
    from weir.spark.session.start import LazySession
    from weir.storage.file_systems import FileSystems

    configuration = Configuration.load(None, {**job.conf, **options.conf})
    options = with_recovery_path(options, configuration)
    check_goes_on(options, configuration)
    if options.name is not None:
        job = job.named(options.name)
    job = reading(job, options)
    job.vertices()
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        rest = _rest_server(configuration, clock)
        stack.callback(rest.stop)
        _check(configuration, rest)
        session = LazySession(job.name, options.master, configuration, note=listener.note)
        _check_cluster(session, job, configuration)
        running = stack.enter_context(contextlib.ExitStack())
        running.callback(session.close)
        _provide_connector(job, session, listener)
        environment = RunEnvironment(
            job=job,
            options=options,
            configuration=configuration,
            session=session,
            file_systems=FileSystems(session.file_system),
            clock=clock,
            listener=listener,
            changes=_changes(job, options, listener),
            command=command_of(options.arguments, options.checkpoint_locations),
        )
        accept_lost_rows(job, options.accept_lost_rows)
        submission = _submit(environment, rest)
        if submission.sinks is None:
            _check_finished(environment, submission)
            return JobResult(
                job_id=submission.job_id, status=JobStatus.FINISHED, already_finished=True
            )
        _make_working_directory(environment, submission)
        # Loading the remaining libraries takes about as long as starting the JVM.
        session.prepare()
        run = _started(environment, submission, submission.sinks, rest, running)
        result = run.run()
        running.close()
        run.linger()
        return result


def _submit(environment: RunEnvironment, rest: RestServer) -> Submission:
    """Find or draw the job's id; checks earlier runs, the REST port and the sinks' targets."""
    from weir.config.options import CHECKPOINT_DIR, PRIVATE_SNAPSHOTS
    from weir.kernel import MACHINE
    from weir.launch.command import notes
    from weir.launch.earlier_run import fits
    from weir.launch.submission import submit
    from weir.spark.session.user_modules import script_file

    configuration = environment.configuration

    def earlier(record: JobRecord | None) -> None:
        for line in notes(environment.command, record, script=script_file()):
            environment.listener.note(line)

    def sinks(storage: CheckpointStorage) -> SinkPort:
        _take_port(rest, environment)
        return _sinks(environment, storage)

    environment.listener.phase("checking for earlier runs")
    return submit(
        name=environment.job.name,
        options=environment.options,
        base_directory=configuration.value(CHECKPOINT_DIR),
        fs=environment.file_systems,
        kernel=MACHINE,
        sinks=sinks,
        fits=fits(environment.job, configuration),
        private=configuration.value(PRIVATE_SNAPSHOTS),
        claims=configuration.claims_snapshot,
        changes=environment.changes,
        earlier=earlier,
        note=environment.listener.note,
    )


def _changes(job: JobDefinition, options: RunOptions, listener: RunListener) -> Changes:
    """Compares the job with a checkpoint.

    Raises ``PipelineError`` if the user accepts something of a step that the job does not have.
    """
    from weir.definition import declared_operators
    from weir.durable.changes import Changes

    operators = declared_operators(job)
    names = {*operators, *(operator.name for operator in operators.values())}
    accepted = {
        "--accept-changed-state": options.accept_changed_state,
        "--accept-lost-rows": options.accept_lost_rows,
    }
    for option, name in ((option, name) for option, given in accepted.items() for name in given):
        if name not in names:
            raise PipelineError(
                f"{option} names {name!r}, but job {job.name!r} has no such step: its steps are"
                f" {', '.join(sorted(one.name for one in operators.values()))}."
            )
    return Changes(
        operators=operators, accepted=frozenset(options.accept_changed_state), note=listener.note
    )


def _check_finished(environment: RunEnvironment, submission: Submission) -> None:
    """Check that a job that has finished would read the same, for sources that Spark reads.

    Only Spark knows what they read. Raises ``JobError`` if there is something else.
    """
    changes, checkpoint = environment.changes, submission.newest
    names = frozenset() if checkpoint is None else changes.source_ids(checkpoint)
    if checkpoint is None or not names:
        return
    environment.listener.phase("starting Spark")
    from weir.spark.query.frames import source_fingerprints

    functions = {name: environment.job.functions[name] for name in sorted(names)}
    found = source_fingerprints(environment.session.get(), functions)
    changes.check_finished(checkpoint, found)


def _started(
    environment: RunEnvironment,
    submission: Submission,
    sinks: SinkPort,
    rest: RestServer,
    running: contextlib.ExitStack,
) -> JobRun:
    """Wire the run and start its REST server; ``running`` gets what closes them."""
    environment.listener.phase("loading further libraries")
    from weir.launch.metrics_file import write_metrics
    from weir.launch.plain_paths import plain_path_note
    from weir.launch.wiring import JobRun
    from weir.spark.hadoop import default_file_system
    from weir.spark.session.cluster import SparkCluster

    rest.load()
    run = JobRun(environment, submission, sinks, rest_address=rest.bind())
    running.callback(run.close)
    session, job = environment.session.get(), environment.job
    cluster = SparkCluster(session)
    note = plain_path_note(
        default_file_system(session), job.sinks.values(), environment.configuration
    )
    if note is not None:
        environment.listener.note(note)
    rest.start(run.gateway, environment.file_systems, cluster)
    running.callback(
        write_metrics,
        environment.configuration,
        environment.file_systems,
        run.gateway,
        cluster,
        environment.clock,
    )
    return run


def _provide_connector(job: JobDefinition, session: LazySession, listener: RunListener) -> None:
    """Give the session Spark's Kafka connector if the job's code needs it."""
    from weir.spark.kafka.code import artifacts_of
    from weir.spark.kafka.connector import provide

    functions = (*job.functions.values(), *(sink.function for sink in job.sinks.values()))
    provide(session, artifacts_of(functions), listener.note)


def _check(configuration: Configuration, rest: RestServer) -> None:
    """Check what can be checked before anything is made on disk; the port is taken later."""
    from weir.lineage import reporter as lineage
    from weir.spark.session.environment import check_environment
    from weir.spark.session.user_modules import add_script_directory

    rest.check()
    lineage.is_on(configuration)
    check_environment()
    add_script_directory()


def check_goes_on(options: RunOptions, configuration: Configuration) -> None:
    """Raise ``ConfigurationError`` if SIGTERM would leave a job that the same command refuses."""
    from weir.config.options import ON_SIGTERM, RECOVERY_PATH
    from weir.config.values import LATEST_SAVEPOINT, OnSigterm

    saves = configuration.value(ON_SIGTERM) is OnSigterm.SAVEPOINT
    if saves and options.from_savepoint != LATEST_SAVEPOINT:
        raise ConfigurationError(
            f"{ON_SIGTERM.key} is {OnSigterm.SAVEPOINT.value}, and after that only a start from the"
            " savepoint goes on: add --from-savepoint latest, or set"
            f" {RECOVERY_PATH.key} to {LATEST_SAVEPOINT}."
        )


def _check_cluster(session: LazySession, job: JobDefinition, configuration: Configuration) -> None:
    """Check what the settings and the pipeline show of the cluster, before a JVM starts."""
    from weir.config.options import CHECKPOINT_DIR, SAVEPOINT_DIR, WORKING_DIR
    from weir.spark.session.reach import check_settings

    check_settings(
        master=session.master,
        conf=session.conf,
        working_directory=configuration.value(WORKING_DIR),
        is_default=WORKING_DIR.key not in configuration,
        lasting={
            **{each.key: configuration.value(each) for each in (CHECKPOINT_DIR, SAVEPOINT_DIR)},
            **{
                f"The directory of sink {name!r}": sink.files_at() or ""
                for name, sink in job.sinks.items()
            },
        },
    )


def _rest_server(configuration: Configuration, clock: Clock) -> RestServer:
    """The REST server as configured. Raises ``RestError`` if the token file cannot be used."""
    from weir.config.options import (
        ASYNC_STORE_DURATION,
        REST_ALLOWED_HOSTS,
        REST_BIND_ADDRESS,
        REST_PORT,
        REST_READING_TOKEN_FILE,
        REST_TOKEN,
        REST_TOKEN_FILE,
        SSL_REST_CERTIFICATE,
        SSL_REST_ENABLED,
        SSL_REST_KEY,
        WEB_REFRESH,
    )
    from weir.rest.server.server import RestSecurity, RestServer
    from weir.rest.tokens import read_or_make_token

    file = configuration.value(REST_TOKEN_FILE)
    reading = configuration.value(REST_READING_TOKEN_FILE)
    encrypted = configuration.value(SSL_REST_ENABLED)
    token = configuration.value(REST_TOKEN) if file is None else read_or_make_token(file)
    reading_token = None if reading is None else read_or_make_token(reading)
    if token is not None and token == reading_token:
        raise RestError(
            f"{REST_READING_TOKEN_FILE.key} has the token of those who may change the job: name"
            " another file."
        )
    return RestServer(
        bind_address=configuration.value(REST_BIND_ADDRESS),
        port=configuration.value(REST_PORT),
        # Several jobs can run on a machine without choosing a port for each.
        or_next=REST_PORT.key not in configuration,
        store_duration_ms=configuration.value(ASYNC_STORE_DURATION),
        security=RestSecurity(
            token=token,
            reading_token=reading_token,
            allowed_hosts=configuration.value(REST_ALLOWED_HOSTS),
            certificate=configuration.value(SSL_REST_CERTIFICATE) if encrypted else None,
            key=configuration.value(SSL_REST_KEY) if encrypted else None,
        ),
        clock=clock,
        refresh_ms=configuration.value(WEB_REFRESH),
    )


def _sinks(environment: RunEnvironment, storage: CheckpointStorage) -> SinkPort:
    """The sinks of the job that has this storage. The caller checks their targets next."""
    environment.listener.phase("checking sinks")
    from weir.config.options import COMMIT_ATTEMPTS, COMMIT_INITIAL_BACKOFF, COMMIT_MAX_BACKOFF
    from weir.durable.sink_port import CommitRetries, SinkPort
    from weir.runtime.concurrency import ThreadWaits

    job, configuration = environment.job, environment.configuration
    return SinkPort(
        sinks=job.sinks,
        job_name=job.name,
        file_system=storage.fs,
        retries=CommitRetries(
            attempts=configuration.value(COMMIT_ATTEMPTS),
            initial_backoff_ms=configuration.value(COMMIT_INITIAL_BACKOFF),
            max_backoff_ms=configuration.value(COMMIT_MAX_BACKOFF),
        ),
        waits=ThreadWaits(),
        kernel=storage.kernel,
        job_directory=storage.job_directory,
        session=environment.session.get,
        leave_out=job.commit_intervals_ms,
    )


def _make_working_directory(environment: RunEnvironment, submission: Submission) -> None:
    from weir.spark.session.start import make_working_directory
    from weir.subtasks.chain import process_steps
    from weir.subtasks.remote_files import check_reached

    working = environment.working_directory(submission.job_id)
    private = submission.storage.private and environment.session.is_local
    make_working_directory(submission.storage.fs(working), working, private=private)
    if any(process_steps(vertex) for vertex in environment.job.vertices()):
        check_reached(working)


def _take_port(rest: RestServer, environment: RunEnvironment) -> None:
    """Bind the REST port, once no other driver runs the job and before anything is changed."""
    from weir.config.options import REST_PORT

    address, wanted = rest.bind(), environment.configuration.value(REST_PORT)
    if wanted and not address.endswith(f":{wanted}"):
        environment.listener.note(f"Port {wanted} is taken: the REST server listens at {address}")


def reading(job: JobDefinition, options: RunOptions) -> JobDefinition:
    """The job as the options have it read.

    Raises ``PipelineError`` for ``--until-idle`` if a source cannot say what is there now, and
    ``ConfigurationError`` for ``--drain`` without an end at which to drain.
    """
    if options.until_idle:
        job = job.reading(available_now=True)
    if options.drain and not job.graph.available_now:
        if job.graph.unbounded_sources:
            raise ConfigurationError(
                f"--drain ends a run that reads what there is now, but job {job.name!r} runs on:"
                " add --until-idle, or end the job with 'weir stop --drain'."
            )
        raise ConfigurationError(
            f"--drain is not needed: every source of job {job.name!r} is bounded, so every window"
            " and timer fires at the end."
        )
    return job


def with_recovery_path(options: RunOptions, configuration: Configuration) -> RunOptions:
    """Use ``execution.state-recovery.path`` if ``--from-savepoint`` was not given.

    Raises ``ConfigurationError`` if ``--fresh`` was given too.
    """
    from weir.config.options import RECOVERY_PATH

    path = configuration.value(RECOVERY_PATH)
    if path is None or options.from_savepoint is not None:
        return options
    if options.fresh:
        raise ConfigurationError(
            f"--fresh starts without state, but {RECOVERY_PATH.key} is {path}: remove one of them."
        )
    return replace(options, from_savepoint=path)
