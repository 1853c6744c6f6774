"""The command line: ``weir run`` and the other commands, as a typer application.

``weir run`` runs a pipeline in this process; ``list``, ``checkpoint``, ``checkpoints``,
``savepoint``, ``stop``, ``cancel`` and ``send`` talk to a running job's driver.

Every ``WeirError`` is shown as one line ``weir: error: <sentence>`` on stderr, with exit code 1; a
wrong command line has exit code 2. With the environment variable WEIR_DEBUG=1 the stack trace is
shown instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType
from typer.core import TyperGroup

import weir
from weir.cli import tables
from weir.cli.options import (
    AcceptDuplicates,
    Address,
    AllowNonRestoredState,
    CaFile,
    Claim,
    ClaimMode,
    Conf,
    ConfigFile,
    CoordinatedOperator,
    CoordinatorRequest,
    Directory,
    Dispose,
    Drain,
    Force,
    FromSavepoint,
    JobName,
    Master,
    OptionalJobName,
    Pipeline,
    RestPort,
    SavepointDir,
    SnapshotPath,
    StateLimit,
    StateOperator,
    StateQuery,
    TokenFile,
)
from weir.config.values import RecoveryClaimMode, shortened
from weir.core.types import CheckpointType
from weir.errors import WeirError
from weir.rest.schema.base import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from weir.rest.client import JobClient

#: Output width if stdout is not a terminal: wider than anything a job prints.
_PIPE_WIDTH = 100_000


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


@app.command(epilog="Example: weir run pipeline.py --conf execution.checkpointing.interval=5s")
def run(  # noqa: PLR0917 - typer makes an option of each parameter
    pipeline: Pipeline,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
    from_savepoint: FromSavepoint = None,
    claim_mode: ClaimMode = None,
    claim: Claim = False,
    allow_non_restored_state: AllowNonRestoredState = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew, whatever ran before.")
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Replace a driver that seems alive.")
    ] = False,
    accept_duplicates: AcceptDuplicates = False,
    rest_port: RestPort = None,
) -> None:
    """Run a pipeline in this process until it ends.

    Running the same command again resumes the job from its newest completed checkpoint. Ctrl-C and
    SIGTERM suspend the job; a second one ends the process at once.

    Exit codes: 0 finished or stopped with a savepoint; 1 failed, cancelled, taken over or not
    started; 2 wrong command line; 130 ended by Ctrl-C, 143 by SIGTERM (one signal suspends the
    job, two end the process).
    """
    from weir.cli.run import run_pipeline
    from weir.config import Configuration
    from weir.run.options import RunOptions

    if claim and claim_mode not in (None, RecoveryClaimMode.CLAIM):
        raise typer.BadParameter(
            f"--claim stands for --claim-mode CLAIM, and --claim-mode is {claim_mode.value}: give"
            " one of them."
        )
    overrides = _key_values(conf or [])
    if rest_port is not None:
        overrides["rest.port"] = str(rest_port)
    mode = RecoveryClaimMode.CLAIM if claim else claim_mode
    if mode is not None:
        overrides["execution.state-recovery.claim-mode"] = mode.value
    if allow_non_restored_state:
        overrides["execution.state-recovery.ignore-unclaimed-state"] = "true"
    options = RunOptions(
        master=master,
        conf=dict(Configuration.load(config, overrides)),
        from_savepoint=from_savepoint,
        fresh=fresh,
        takeover=takeover,
        accept_duplicates=accept_duplicates,
    )
    raise typer.Exit(run_pipeline(pipeline, options, _console()))


@app.command(epilog="Example: weir plan pipeline.py --mermaid > plan.mmd")
def plan(
    pipeline: Pipeline,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show which queries a pipeline becomes, without running it.

    Steps are chained into vertices. Each vertex runs as one streaming query, and vertices are
    connected by channels. Shows for each vertex its chain, its sinks, whose channels it reads, who
    reads its own, and why the chain ends there.
    """
    from weir.cli.load import load_job
    from weir.cli.plan import plan_json, plan_mermaid, plan_text

    if mermaid and as_json:
        raise typer.BadParameter(
            "--mermaid and --json are two forms of the same plan: give one of them."
        )
    job = load_job(pipeline)
    if mermaid:
        typer.echo(plan_mermaid(job))
    elif as_json:
        typer.echo(plan_json(job))
    else:
        _show(plan_text(job))


@app.command("list", epilog="Example: weir list")
def list_jobs(
    address: Address = DEFAULT_ADDRESS, token_file: TokenFile = None, ca_file: CaFile = None
) -> None:
    """List the jobs of a driver."""
    jobs = _client().list_jobs(address, token=_token(token_file), ca_file=ca_file)
    _show(tables.jobs_table(jobs))


@app.command(epilog="Example: weir checkpoint orders")
def checkpoint(
    job: JobName,
    full: Annotated[
        bool,
        typer.Option("--full", help="Write the whole state, without files of earlier checkpoints."),
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Take a checkpoint now and wait until it is complete."""
    kind = CheckpointType.FULL if full else CheckpointType.CONFIGURED
    with _connected(job, address, token_file, ca_file) as connected:
        typer.echo(f"Checkpoint {connected.trigger_checkpoint(kind)} completed.")


@app.command(epilog="Example: weir checkpoints orders")
def checkpoints(
    job: JobName,
    checkpoint_id: Annotated[
        int | None,
        typer.Option("--id", metavar="N", min=1, help="Show this one, with each of its vertices."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Show a job's checkpoints and savepoints: counts, figures and history, or one in detail."""
    with _connected(job, address, token_file, ca_file) as connected:
        if checkpoint_id is None:
            _show(tables.checkpoints_table(connected.checkpoints()))
        else:
            _show(tables.checkpoint_table(connected.checkpoint_details(checkpoint_id)))


@app.command(epilog="Example: weir savepoint orders /data/savepoints")
def savepoint(  # noqa: PLR0917 - typer makes an option of each parameter
    job: OptionalJobName = None,
    directory: Directory = None,
    dispose: Dispose = None,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Take a savepoint, wait for it and print its path, or delete one with --dispose.

    The job keeps running.
    """
    if dispose is not None and job is None:
        from weir.readers.savepoint import dispose_savepoint

        typer.echo(f"Savepoint {dispose_savepoint(dispose).external_path} disposed.")
        return
    if dispose is not None or job is None:
        raise typer.BadParameter(
            "Take a savepoint of JOB, or delete one with --dispose PATH: give one of them."
        )
    with _connected(job, address, token_file, ca_file) as connected:
        path = connected.trigger_savepoint(_absolute(directory))
    typer.echo(f"Savepoint completed. Path: {path}")


@app.command(epilog="Example: weir stop orders --savepoint-dir /data/savepoints")
def stop(  # noqa: PLR0917 - typer makes an option of each parameter
    job: JobName,
    savepoint_dir: SavepointDir = None,
    drain: Drain = False,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Stop a job with a savepoint and print its path."""
    with _connected(job, address, token_file, ca_file) as connected:
        path = connected.stop(_absolute(savepoint_dir), drain=drain)
    typer.echo(f"Job stopped. Savepoint: {path}")


@app.command(epilog="Example: weir cancel orders")
def cancel(
    job: JobName,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Cancel a job: no savepoint is taken and nothing more is committed."""
    with _connected(job, address, token_file, ca_file) as connected:
        status = connected.cancel()
        typer.echo(f"Job {connected.job_id} is {status.value}.")


@app.command(epilog=r"""Example: weir send orders score '{"set": {"limit": 5}}'""")
def send(  # noqa: PLR0917 - typer makes an option of each parameter
    job: JobName,
    operator: CoordinatedOperator,
    request: CoordinatorRequest,
    address: Address = DEFAULT_ADDRESS,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Send a request to the coordinator of a Python operator and print its answer as JSON.

    A request can set new rules, for example. Returns once a completed checkpoint contains the
    change: from then on it survives any failure.
    """
    try:
        decoded = msgspec.json.decode(request)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{shortened(request)} is no JSON ({error}).", param_hint="JSON"
        ) from error
    if not isinstance(decoded, dict):
        raise typer.BadParameter(
            f"{shortened(request)} is no JSON object: write {{...}}.", param_hint="JSON"
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
        typer.Option(
            "--json", help="Print everything as JSON; of an operator's state, a line for each row."
        ),
    ] = False,
) -> None:
    """Show what a checkpoint or savepoint holds, or the state of an operator in it.

    Shows operators, offsets, watermarks and sizes. Spark starts only for keyed state that Spark
    keeps, for --sql, and for file systems that are not local.
    """
    from weir.cli import inspect as inspect_command

    if operator is None and (sql is not None or limit is not None):
        raise typer.BadParameter(
            "--sql and --limit are about the state of an operator: give --operator NAME too."
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


@app.command(epilog="Example: weir warmup")
def warmup(force: Force = False) -> None:
    """Make the class archive, which halves Spark's start-up time; takes about half a minute.

    The archive is in the user's cache directory ($XDG_CACHE_HOME or ~/.cache) and fits this Java
    and Spark. 'weir run' makes it when it ends, unless weir.class-archive is false.
    """
    from weir.spark import class_archive

    began = time.monotonic()
    found = None if force else class_archive.find()
    made = found or class_archive.make(force=force)
    how = "is there" if found else f"was made in {time.monotonic() - began:.0f} s"
    typer.echo(f"The class archive {how}: {made}")


@app.command(epilog="Example: weir sim --seeds 1000")
def sim(
    seeds: Annotated[int, typer.Option(min=1, help="How many runs.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; each run takes the next.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Go on for so many minutes instead of --seeds.")
    ] = None,
) -> None:
    """Simulate jobs under faults, and check the laws of the protocol.

    Runs the coordinator, the tasks and durable storage on virtual time, while storage fails,
    drivers die, are suspended and run two at a time, and queries fail. Exit code 1 if a law was
    broken in any run.
    """
    from weir.cli.simulate import run_simulation

    raise typer.Exit(run_simulation(first=seed, seeds=seeds, minutes=minutes))


@app.command(epilog="Example: weir demo --kill 3")
def demo(
    kill: Annotated[int, typer.Option("--kill", min=0, help="How often the driver is killed.")] = 3,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the kills; drawn and printed if it is left out.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="DIR", help="Run in this directory and leave everything there."
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Kill a real job repeatedly, and check that its tables are exact nevertheless."""
    from weir.demo import run_demo

    raise typer.Exit(run_demo(kill=kill, seed=seed, directory=keep, master=master))


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
    console = _console()
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as capture:
        console.print(shown)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _console() -> Console:
    """Standard output, which wraps lines on a terminal only."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def _client() -> ModuleType:
    # Not at the top: this loads an HTTP library, which ``weir run`` should not wait for.
    from weir.rest import client

    return client


def _token(file: str | None) -> str | None:
    from weir.rest.tokens import read_token

    return None if file is None else read_token(file)


def _connected(job: str, address: str, token_file: str | None, ca_file: str | None) -> JobClient:
    connected: JobClient = _client().connect(
        job, address, token=_token(token_file), ca_file=ca_file
    )
    return connected
