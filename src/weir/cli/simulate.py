"""``weir sim``: runs seeds of the simulator and prints the outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from weir.adopt.reading import is_script
from weir.cli.loading.load import load_job
from weir.cli.loading.needed_session import session_beside
from weir.cli.loading.program import Program, split_spec
from weir.core.status import JobStatus
from weir.errors import PipelineError
from weir.masking import masked_arguments
from weir.sim.engine.faults import STATES, Fault, Mishap
from weir.sim.runner import Totals, run_seeds
from weir.sim.user.run import Simulated, prepared, run_pipeline_seed
from weir.sim.world import RunResult, run_seed

_PIPE_WIDTH = 200
#: The columns of the table of faults, in order. No fault waits for a job to be cancelled, but some
#: strike it then.
_COLUMNS = (*STATES, *(status.name for status in JobStatus if status.name not in STATES))
#: As in shells: 128 + SIGINT.
_INTERRUPTED = 130
#: The last line after runs of a pipeline that kept every law.
_NOT_RUN = (
    "What ran: the pipeline's Python code and its sinks. What Spark does with the rows was not run:"
    " compare that with a batch computation."
)


def run_simulation(
    *,
    pipeline: str | None,
    arguments: Sequence[str] = (),
    first: int,
    seeds: int,
    minutes: float | None,
    lines: int,
) -> int:
    """Run and print; return 0 if every law held, 1 if one was broken, 130 after Ctrl-C.

    ``pipeline``: the job of a user, whose file gets the arguments; None: Weir's own. With
    ``minutes``, run for that long instead of ``seeds``. ``lines``: how many of the newest lines of
    a failed run's story are printed. Raises ``PipelineError`` if the pipeline cannot be simulated,
    and ``SystemExit`` if its file exits.
    """
    with ExitStack() as stack:
        return _run_simulation(
            stack,
            pipeline=pipeline,
            arguments=arguments,
            first=first,
            seeds=seeds,
            minutes=minutes,
            lines=lines,
        )


def _run_simulation(
    stack: ExitStack,
    *,
    pipeline: str | None,
    arguments: Sequence[str],
    first: int,
    seeds: int,
    minutes: float | None,
    lines: int,
) -> int:
    """``stack`` gets what has to stay as long as the pipeline's code runs."""
    # Failures in a run are intended, and its story has them.
    stack.callback(logging.disable, logging.root.manager.disable)
    logging.disable(logging.CRITICAL)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    run: Callable[[int], RunResult] = run_seed
    command, shown = "weir sim", ""
    if pipeline is not None:
        command = f"weir sim {pipeline}"
        shown = f" -- {masked_arguments(arguments)}" if arguments else ""
        simulated = _loaded(stack, pipeline, arguments)
        for note in simulated.notes:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        if simulated.violation is not None:
            console.print(simulated.violation, highlight=False, markup=False, soft_wrap=True)
            return 1
        run = partial(run_pipeline_seed, simulated)
    totals, begun, failed, interrupted = Totals(), time.monotonic(), None, False
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None if minutes is not None else seeds)
        try:
            for result in run_seeds(
                first,
                seeds=None if minutes is not None else seeds,
                seconds=None if minutes is None else minutes * 60,
                run=run,
            ):
                totals.add(result)
                progress.advance(bar)
                if result.violation is not None:
                    failed = result
                    break
        except KeyboardInterrupt:
            # Print the totals so far.
            interrupted = True
    elapsed_s = time.monotonic() - begun
    if failed is not None:
        options = f"--seeds 1 --seed {failed.seed}{shown}"
        _print_failure(console, failed, lines, f"{command} {options}")
    elif totals.seeds > 1:
        console.print(coverage_table(totals))
    console.print(summary(totals, elapsed_s, failed), highlight=False, soft_wrap=True)
    if failed is None and pipeline is not None:
        console.print(_NOT_RUN, highlight=False, soft_wrap=True)
    if interrupted:
        return _INTERRUPTED
    return 0 if failed is None else 1


def _loaded(stack: ExitStack, pipeline: str, arguments: Sequence[str]) -> Simulated:
    """The pipeline, once its calm runs are done. Its file is the main program from now on."""
    file, name = split_spec(pipeline)
    # Absolute, since runs change the current directory.
    path = str(Path(file).absolute())
    spec = path if name is None else f"{path}:{name}"
    program = Program(spec, arguments)
    if not program.imports_weir and is_script(program.path):
        raise PipelineError(
            f"{file} is an ordinary script, whose queries exist in Spark only: weir sim simulates"
            " the steps of a weir.Job."
        )
    stack.enter_context(program)
    stack.enter_context(session_beside(program))
    return prepared(partial(load_job, arguments=arguments), spec)


def summary(totals: Totals, elapsed_s: float, failed: RunResult | None) -> str:
    """The last line."""
    outcome = "clean" if failed is None else f"a law was broken in seed {failed.seed}"
    return (
        f"{totals.seeds:,} seeds in {elapsed_s:.1f} s ({totals.seeds / elapsed_s * 60:,.0f} a"
        f" minute): {outcome}; {totals.events:,} events ({totals.events / elapsed_s:,.0f} a"
        f" second), {totals.checkpoints:,} checkpoints, {totals.virtual_s:,.0f} s of virtual time"
        f" ({totals.virtual_s / elapsed_s:,.0f} times real time)"
    )


def coverage_table(totals: Totals) -> Table:
    """How often each kind of fault struck in each state of the protocol."""
    states = sorted({state for _, state in totals.struck}, key=_COLUMNS.index)
    table = Table(title="faults injected, by protocol state", title_justify="left")
    table.add_column("fault", no_wrap=True)
    for state in states:
        table.add_column(state, justify="right", no_wrap=True)
    for fault in (*Fault, *Mishap):
        counts = [totals.struck.get((fault, state), 0) for state in states]
        table.add_row(fault.value, *(f"{number:,}" for number in counts))
    return table


def _print_failure(console: Console, failed: RunResult, lines: int, command: str) -> None:
    """Print what is needed to understand and to reproduce the failure."""
    printed = [
        f"seed {failed.seed}: {failed.violation}",
        failed.plan,
        f"last lines of its story (digest {failed.digest}):",
        *failed.story[-lines:],
        f"reproduce with: {command}",
    ]
    console.print("\n".join(printed), highlight=False, markup=False, soft_wrap=True)
