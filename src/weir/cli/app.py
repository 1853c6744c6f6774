"""The command line: ``weir run`` and the other commands, as a typer application.

``weir init`` writes a pipeline, ``weir run`` runs one in this process; ``list``, ``checkpoint``,
``checkpoints``, ``savepoint``, ``stop``, ``cancel``, ``send`` and ``top`` talk to a running job's
driver.

Every ``WeirError`` is shown as one line ``weir: error: <sentence>`` on stderr, with exit code 1; a
wrong command line has exit code 2. With the environment variable WEIR_DEBUG=1 the stack trace is
shown instead.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer
from rich.console import Console, RenderableType
from typer.core import TyperGroup

import weir
from weir.cli import tables
from weir.cli.options import (
    AcceptChangedState,
    AcceptDuplicates,
    AcceptLostRows,
    Address,
    AllowNonRestoredState,
    Arguments,
    CaFile,
    CheckpointDirectory,
    CheckpointDirectoryOption,
    Claim,
    ClaimMode,
    Conf,
    ConfigFile,
    CoordinatedOperator,
    CoordinatorRequest,
    DeployMode,
    DeployModeOption,
    Directory,
    Dispose,
    Drain,
    DrainAtEnd,
    DriverMemory,
    Force,
    FromSavepoint,
    HistoryPort,
    Jars,
    JobName,
    JobNameOption,
    LogFormatOption,
    Master,
    OptionalJobName,
    Packages,
    Pipeline,
    PropertiesFile,
    PyFiles,
    ReadApart,
    RestPort,
    RunningJobName,
    SavepointDir,
    SnapshotPath,
    StateLimit,
    StateOperator,
    StateQuery,
    TokenFile,
    UntilIdle,
)
from weir.config.values import RecoveryClaimMode, quoted
from weir.core.types import CheckpointType
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.rest.client import JobClient

#: Output width if stdout is not a terminal: wider than anything a job prints.
_PIPE_WIDTH = 100_000
#: The commands that execute a file with arguments.
_WITH_ARGUMENTS = ("run", "plan", "sim")


class _Group(TyperGroup):
    """Shows every ``WeirError`` as one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WeirError as error:
            if os.environ.get("WEIR_DEBUG") == "1":
                raise
            typer.echo(f"weir: error: {error}", err=True)
            raise typer.Exit(1) from error
        except Exception as error:
            _say_where_arguments_go(error)
            raise


def _say_where_arguments_go(error: Any) -> None:
    """Complete the error of an unknown option, whose class is private to typer."""
    context = getattr(error, "ctx", None)
    command = None if context is None else context.command.name
    if type(error).__name__ == "NoSuchOption" and command in _WITH_ARGUMENTS:
        error.message += " (options of the file itself come after --)"


app = typer.Typer(
    name="weir",
    cls=_Group,
    help="Flink's fault tolerance for PySpark streaming pipelines.",
    epilog="Example: weir run pipeline.py",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``weir`` command."""
    app(prog_name="weir")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"weir {weir.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: weir init orders")
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="NAME", help="Directory to create; its name is the job's.")
    ],
) -> None:
    """Write a pipeline that runs as it stands.

    With its input, a test, a systemd unit, and a README with the commands to run it, kill it and
    run it again.
    """
    from weir.cli.project import write_project

    for path in write_project(directory):
        typer.echo(f"{directory / path.name}{'/' if path.is_dir() else ''}")
    typer.echo(f"Next: cd {shlex.quote(str(directory))}; weir run pipeline.py")


@app.command(epilog="Example: weir run pipeline.py --conf execution.checkpointing.interval=5s")
def run(  # noqa: PLR0917 - typer makes an option of each parameter
    pipeline: Pipeline,
    arguments: Arguments = None,
    master: Master = None,
    deploy_mode: DeployModeOption = DeployMode.CLIENT,
    name: JobNameOption = None,
    conf: Conf = None,
    config: ConfigFile = None,
    properties_file: PropertiesFile = None,
    py_files: PyFiles = None,
    jars: Jars = None,
    packages: Packages = None,
    driver_memory: DriverMemory = None,
    from_savepoint: FromSavepoint = None,
    claim_mode: ClaimMode = None,
    claim: Claim = False,
    allow_non_restored_state: AllowNonRestoredState = False,
    until_idle: UntilIdle = False,
    drain: DrainAtEnd = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new job, into new tables, instead of resuming.")
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take over from a driver that still seems alive.")
    ] = False,
    accept_duplicates: AcceptDuplicates = False,
    accept_changed_state: AcceptChangedState = None,
    accept_lost_rows: AcceptLostRows = None,
    read_apart: ReadApart = None,
    rest_port: RestPort = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a pipeline until it ends, in this process or with --deploy-mode cluster on YARN.

    The file is executed as by 'spark-submit': as __main__, with its arguments. Where it calls
    job.run(), its job runs with these options; if it ends without that, its job runs then. The
    streaming queries of an ordinary script, which does not import weir, become one job.

    Run the same command again to resume the job from its newest completed checkpoint. Ctrl-C or
    SIGTERM suspends the job; a second signal kills the process. With --until-idle the run ends by
    itself.

    Exit codes: 0 finished, stopped with a savepoint, or all read with --until-idle; 1 failed,
    cancelled, taken over or not started; 2 usage error; 130 suspended or killed by Ctrl-C, 143 by
    SIGTERM; the file's own if it exits.
    """
    from weir.cli.run import run_pipeline
    from weir.cli.spark_options import read_properties, single, spark_settings
    from weir.config import Configuration
    from weir.config.options import (
        IGNORE_UNCLAIMED_STATE,
        LOG_FORMAT,
        RECOVERY_CLAIM_MODE,
        REST_PORT,
    )
    from weir.launch.options import RunOptions

    if claim and claim_mode not in (None, RecoveryClaimMode.CLAIM):
        raise typer.BadParameter(
            f"--claim means --claim-mode CLAIM, but --claim-mode is {claim_mode.value}: use only"
            " one of them."
        )
    overrides = _key_values(conf or [])
    overrides |= spark_settings(
        conf=overrides,
        master=master,
        py_files=py_files,
        jars=jars,
        packages=packages,
        driver_memory=driver_memory,
    )
    if rest_port is not None:
        overrides[REST_PORT.key] = str(rest_port)
    if log_format is not None:
        overrides[LOG_FORMAT.key] = log_format.value
    mode = RecoveryClaimMode.CLAIM if claim else claim_mode
    if mode is not None:
        overrides[RECOVERY_CLAIM_MODE.key] = mode.value
    if allow_non_restored_state:
        overrides[IGNORE_UNCLAIMED_STATE.key] = "true"
    options = RunOptions(
        master=master,
        conf={**read_properties(properties_file), **Configuration.given(config, overrides)},
        from_savepoint=from_savepoint,
        until_idle=until_idle,
        drain=drain,
        fresh=fresh,
        takeover=takeover,
        accept_duplicates=accept_duplicates,
        accept_changed_state=tuple(accept_changed_state or ()),
        accept_lost_rows=tuple(accept_lost_rows or ()),
        read_apart=tuple(read_apart or ()),
        name=single("--name", name),
        arguments=tuple(arguments or ()),
    )
    if deploy_mode is DeployMode.CLUSTER:
        from weir.cli.cluster_mode.submit import submit

        raise typer.Exit(submit(pipeline, options, partial(typer.echo, err=True)))
    raise typer.Exit(run_pipeline(pipeline, options, _console(sys.stderr)))


@app.command(epilog="Example: weir plan pipeline.py --mermaid > plan.mmd")
def plan(
    pipeline: Pipeline,
    arguments: Arguments = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the plan as a Mermaid flowchart.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show the queries of a pipeline without running it.

    The file is executed up to its job.run(), or else to its end. A script, which does not import
    weir, is executed up to where it waits for its streaming queries; it may write nothing itself.

    Steps are chained into vertices. Each vertex runs as one streaming query; channels connect the
    vertices. Shows each vertex's chain, sinks, input and output channels, and why its chain ends.
    Fails if a step, sink, source or coordinator of the last run is missing, or reads or writes
    something else. Windows, keys and aggregates are compared by 'weir run', once Spark has started.
    """
    from weir.cli.plan import loaded, plan_json, plan_mermaid, plan_text, start_text
    from weir.job import definition_of
    from weir.launch.earlier_run import check_last_run

    if mermaid and as_json:
        raise typer.BadParameter("--mermaid and --json are alternatives: use only one of them.")
    with loaded(pipeline, arguments or ()) as (job, details):
        if mermaid:
            typer.echo(plan_mermaid(job))
        elif as_json:
            typer.echo(plan_json(job))
        else:
            _show(plan_text(job))
            if details is not None:
                _show(details)
        start = check_last_run(definition_of(job))
    if start is not None and not mermaid and not as_json:
        _show(start_text(start))


@app.command("list", epilog="Example: weir list")
def list_jobs(
    directory: CheckpointDirectory = None,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """List jobs: those of your drivers on this machine, and those in a checkpoint directory.

    A job in the directory that no driver runs is SUSPENDED if 'weir run' can resume it.
    """
    from weir.cli.history import listed_jobs, no_jobs

    jobs = listed_jobs(directory, address, token=_token(token_file), ca_file=ca_file)
    if jobs:
        _show(tables.jobs_table(jobs))
    else:
        typer.echo(no_jobs(directory, address), err=True)


@app.command(epilog="Example: weir history .weir/checkpoints --port 8082")
def history(directory: CheckpointDirectory = None, port: HistoryPort = 8082) -> None:
    """Serve the web page and Flink's REST API for the jobs in a checkpoint directory.

    Running or not: how they ended, their retained checkpoints and savepoints, their state. Changes
    nothing. Listens on 127.0.0.1 until Ctrl-C.
    """
    from weir.cli.history import serve_history

    serve_history(directory, port, typer.echo)


@app.command(epilog="Example: weir top orders")
def top(
    job: RunningJobName = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Watch a job: rates, tasks with back pressure and watermark lag, the newest checkpoint.

    Refreshed every second in a terminal; q or Ctrl-C ends it. Prints one frame to anything else.
    """
    from weir.cli import top as top_command

    token = _token(token_file)
    with top_command.connect_to(job, address, token=token, ca_file=ca_file) as connected:
        top_command.show(connected, _console(sys.stdout), once=once)


@app.command(epilog="Example: weir checkpoint orders")
def checkpoint(
    job: JobName,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Write the full state, reusing no files of earlier checkpoints."
        ),
    ] = False,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Take a checkpoint and wait until it completes."""
    kind = CheckpointType.FULL if full else CheckpointType.CONFIGURED
    with _connected(job, address, token_file, ca_file) as connected:
        typer.echo(f"Checkpoint {connected.trigger_checkpoint(kind)} completed.")


@app.command(epilog="Example: weir checkpoints orders")
def checkpoints(  # noqa: PLR0917 - typer makes an option of each parameter
    job: JobName,
    checkpoint_id: Annotated[
        int | None,
        typer.Option(
            "--id", metavar="N", min=1, help="Show only this checkpoint, with each vertex."
        ),
    ] = None,
    directory: CheckpointDirectoryOption = None,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Show a job's checkpoints and savepoints.

    Shows counts, statistics and history, or with --id one of them in detail; without a driver,
    those that the job's checkpoint directory has. A name is that of its newest job there.
    """
    from weir.cli.history import running_or_stored

    token = _token(token_file)
    with running_or_stored(job, directory, address, token=token, ca_file=ca_file) as connected:
        if checkpoint_id is None:
            _show(tables.checkpoints_table(connected.checkpoints()))
        else:
            _show(tables.checkpoint_table(connected.checkpoint_details(checkpoint_id)))


@app.command(epilog="Example: weir savepoint orders /data/savepoints")
def savepoint(  # noqa: PLR0917 - typer makes an option of each parameter
    job: OptionalJobName = None,
    directory: Directory = None,
    dispose: Dispose = None,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Take a savepoint, or delete one with --dispose.

    Waits until the savepoint completes and prints its path. The job keeps running.
    """
    if dispose is not None and job is None:
        from weir.readers.savepoint import dispose_savepoint

        typer.echo(f"Savepoint {dispose_savepoint(dispose).external_path} disposed.")
        return
    if dispose is not None or job is None:
        raise typer.BadParameter(
            "Give either JOB, to take a savepoint, or --dispose PATH, to delete a savepoint."
        )
    with _connected(job, address, token_file, ca_file) as connected:
        path = connected.trigger_savepoint(_absolute(directory))
    typer.echo(f"Savepoint completed. Path: {path}")


@app.command(epilog="Example: weir stop orders --savepoint-dir /data/savepoints")
def stop(  # noqa: PLR0917 - typer makes an option of each parameter
    job: JobName,
    savepoint_dir: SavepointDir = None,
    drain: Drain = False,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Stop a job with a savepoint and print the savepoint's path."""
    with _connected(job, address, token_file, ca_file) as connected:
        path = connected.stop(_absolute(savepoint_dir), drain=drain)
    typer.echo(f"Job stopped. Savepoint: {path}")
    if not drain:
        typer.echo(
            f"Resume with: weir run FILE --from-savepoint {path}, and the options that the job had",
            err=True,
        )


@app.command(epilog="Example: weir cancel orders")
def cancel(
    job: JobName,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Cancel a job without a savepoint; nothing more is committed."""
    with _connected(job, address, token_file, ca_file) as connected:
        status = connected.cancel()
        typer.echo(f"Job {connected.job_id} is {status.value}.")


@app.command(epilog=r"""Example: weir send orders score '{"set": {"limit": 5}}'""")
def send(  # noqa: PLR0917 - typer makes an option of each parameter
    job: JobName,
    operator: CoordinatedOperator,
    request: CoordinatorRequest,
    address: Address = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Send a request to a Python operator's coordinator.

    Prints the response as JSON. A request can set new rules, for example. Returns once a completed
    checkpoint contains the change: from then on it survives any failure.
    """
    try:
        decoded = msgspec.json.decode(request)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{quoted(request)} is not JSON ({error}).", param_hint="JSON"
        ) from error
    if not isinstance(decoded, dict):
        raise typer.BadParameter(
            f"{quoted(request)} is not a JSON object: write {{...}}.", param_hint="JSON"
        )
    with _connected(job, address, token_file, ca_file) as connected:
        typer.echo(json.dumps(connected.send(operator, decoded)))


@app.command(
    epilog='Example: weir inspect SAVEPOINT --operator revenue --sql "select count(*) from state"'
)
def inspect(
    path: SnapshotPath,
    operator: StateOperator = None,
    sql: StateQuery = None,
    limit: StateLimit = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON; with --operator, one line per row."),
    ] = False,
) -> None:
    """Show the contents of a checkpoint or savepoint.

    Shows operators, offsets, watermarks and sizes, or with --operator the state of one operator.
    Starts Spark only for --sql and for Spark's own keyed state; without --operator it reads local
    paths only.
    """
    from weir.cli import inspect as inspect_command

    if operator is None and (sql is not None or limit is not None):
        raise typer.BadParameter(
            "--sql and --limit apply to an operator's state: add --operator NAME."
        )
    if operator is None:
        found = inspect_command.read_metadata(path)
        if as_json:
            typer.echo(inspect_command.inspection_json(found))
        else:
            _show(inspect_command.inspection_table(found))
    elif as_json:
        for line in inspect_command.state_json(path, operator, sql=sql, limit=limit):
            typer.echo(line)
    else:
        _show(inspect_command.state_table(path, operator, sql=sql, limit=limit))


@app.command(
    "repair-kafka", epilog="Example: weir repair-kafka broker:9092 weir-ledger.orders.out orders"
)
def repair_kafka(  # noqa: PLR0917 - typer makes an option of each parameter
    servers: Annotated[
        str, typer.Argument(metavar="SERVERS", help="The brokers: HOST:PORT, or several with ','.")
    ],
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The sink's ledger.")],
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="The topics that the sink writes to.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="End the transactions that hang, without asking.")
    ] = False,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="K=V", help="Set an option of librdkafka; repeatable."),
    ] = None,
    conf_file: Annotated[
        str | None,
        typer.Option(
            "--conf-file", metavar="FILE", help="A file with such options, 'K=V' a line: secrets."
        ),
    ] = None,
) -> None:
    """Show transactions that hang in topics of KafkaTopic, and end them.

    A broker that is killed just after it has answered a commit may lose the end of the transaction.
    Stop all drivers of the job first. What readers have seen in part is committed; the rest is
    aborted, and the job's next start writes its rows again.
    """
    from weir.cli.repair_kafka import Repair, options_in, transactions_table
    from weir.sinks.kafka.repair import advice

    given = {**options_in(conf_file), **_key_values(conf or [])}
    repair = Repair(servers, ledger, topics, given)
    if repair.found:
        _show(transactions_table(repair.found))
    for other in repair.of_others:
        typer.echo(f"{advice(other.transaction)}.")
    if not repair.hanging:
        typer.echo(f"No transaction {'of KafkaTopic ' if repair.of_others else ''}hangs.")
        return
    count = len(repair.hanging)
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"End what hangs ({count})?")):
        typer.echo("Nothing was changed: repeat the command with --yes.", err=True)
        raise typer.Exit(1)
    if left := repair.finish():
        typer.echo(f"{len(left)} still hang: run the command again.", err=True)
        raise typer.Exit(1)
    typer.echo(f"Ended: {count}. Run the job again.")


@app.command(epilog="Example: weir warmup")
def warmup(force: Force = False) -> None:
    """Create the class archive, which halves Spark's startup time.

    Takes up to a minute. The archive is kept in the user's cache directory ($XDG_CACHE_HOME or
    ~/.cache), for this version of Java and Spark. 'weir run' creates it on exit, unless
    weir.class-archive is false.
    """
    from weir.spark.session import class_archive

    began = time.monotonic()
    found = None if force else class_archive.find()
    made = found or class_archive.make(force=force)
    how = "already exists" if found else f"created in {time.monotonic() - began:.0f} s"
    typer.echo(f"Class archive {how}: {made}")


@app.command(epilog="Examples: weir sim --seeds 1000; weir sim orders.py --seeds 200")
def sim(  # noqa: PLR0917 - typer makes an option of each parameter
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE[:job]]",
            help="Pipeline, as for 'weir run'. By default, Weir's own jobs are run.",
        ),
    ] = None,
    arguments: Arguments = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="First seed; each run uses the next.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Run for this many minutes instead of --seeds runs."),
    ] = None,
    lines: Annotated[
        int, typer.Option(min=1, help="Newest lines to print of a failed run's story.")
    ] = 60,
) -> None:
    """Simulate jobs under faults and check the protocol's laws.

    Runs the coordinator, the tasks and durable storage in virtual time while storage fails, drivers
    die, pause or overlap, and queries fail. Exits with 1 if any run breaks a law.

    With a pipeline, its own operators, coordinators, sources, hooks, listeners and sinks are run,
    each run in an empty current directory. Spark is not: job.simulation says what rows are like and
    how a sink's target is read (the documentation's page SIMULATOR).
    """
    from weir.cli.simulate import run_simulation

    raise typer.Exit(
        run_simulation(
            pipeline=pipeline,
            arguments=arguments or (),
            first=seed,
            seeds=seeds,
            minutes=minutes,
            lines=lines,
        )
    )


@app.command(epilog="Example: weir demo --kill 3")
def demo(
    *,
    kill: Annotated[
        int, typer.Option("--kill", min=0, help="Number of times to kill the driver.")
    ] = 3,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the kills; default: random, and printed.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Run in this directory and keep all files."),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--postgres-dsn",
            metavar="DSN",
            help="Write two of the tables to this PostgreSQL database as well.",
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Kill a real job repeatedly and verify its tables."""
    from weir.demo import run_demo

    code = run_demo(kill=kill, seed=seed, directory=keep, postgres=dsn, master=master)
    raise typer.Exit(code)


def _key_values(pairs: list[str]) -> dict[str, str]:
    """``K=V`` texts as a dictionary; raises a usage error for anything else."""
    result = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{pair!r} is not of the form K=V.", param_hint="--conf")
        result[key.strip()] = value.strip()
    return result


def _absolute(directory: str | None) -> str | None:
    """The absolute path, since the driver may run in another directory."""
    from weir.storage.paths import normalize

    return None if directory is None else normalize(directory)


def _show(shown: RenderableType) -> None:
    """Print tables; in a pipe, without the trailing blanks of the last column."""
    console = _console(sys.stdout)
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as capture:
        console.print(shown)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _console(file: TextIO) -> Console:
    """A standard stream, which wraps lines on a terminal only."""
    width = None if file.isatty() else _PIPE_WIDTH
    # This stream, even if ``weir run`` replaces it.
    return Console(file=file, width=width)


def _token(file: str | None) -> str | None:
    from weir.rest.tokens import read_token

    return None if file is None else read_token(file)


def _connected(
    job: str, address: str | None, token_file: str | None, ca_file: str | None
) -> JobClient:
    from weir.cli.history import connect_to_running

    return connect_to_running(job, address, token=_token(token_file), ca_file=ca_file)
