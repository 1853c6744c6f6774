"""``weir run`` and ``weir plan`` of an ordinary script, which does not import Weir."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.adopt.assembly import Assembly
from weir.adopt.job import check_started
from weir.adopt.jobs import Shows
from weir.adopt.plan import FoundQueries, QuerySearch
from weir.adopt.reading import is_script
from weir.adopt.script import ScriptRun
from weir.cli.loading.program import Program
from weir.cli.log_output import LogOutput
from weir.config import Configuration
from weir.config.options import CLASS_ARCHIVE, WORKING_DIR
from weir.core.status import JobStatus
from weir.errors import PipelineError
from weir.job import Job
from weir.launch.options import JobResult, RunOptions
from weir.spark.adopt.handles import describe_target
from weir.spark.adopt.query import StartedQuery
from weir.spark.adopt.session import ScriptSession
from weir.spark.kafka.code import ISOLATION, UNCOMMITTED, artifacts_in
from weir.spark.query.source_leaves import streaming_leaves
from weir.spark.session import class_archive
from weir.storage.paths import temporary_directory


class Report(Protocol):
    """Says how a job ended, and returns the exit code that it stands for."""

    def __call__(self, result: JobResult, *, received: signal.Signals | None) -> int:
        """``received`` is the signal that suspended it."""
        ...


#: Width of the label column.
_LABEL_WIDTH = 24


def run_script(
    program: Program,
    options: RunOptions,
    *,
    show: Shows,
    output: LogOutput,
    say: Callable[[str], None],
    report: Report,
    end: Callable[[int], None],
) -> int | None:
    """Execute the script and run its queries; return the exit code of the process.

    It is the script's, unless that is 0 and a job has not ended well: see ``run_pipeline``. None if
    the file has neither asked for a session nor exited: it is not a script. ``end`` ends the
    process with the number of a signal. Raises ``WeirError`` for what Weir refuses, and for a
    failure that the script has not asked for.
    """
    session = _session(program, options, say)
    script = ScriptRun(
        program,
        session,
        name=options.name,
        assemble=Assembly(options, session, say).run_of,
        check=check_started,
        show=show,
        say=say,
        end=end,
    )
    with output.loading():
        code = script.run()
    if not session.was_made and code == 0:
        return None
    if Configuration(options.conf).value(CLASS_ARCHIVE):
        # In the background, so that the next job starts in half the time.
        class_archive.make_later()
    for job in script.jobs:
        if job.error is not None and not job.is_failure_known:
            raise job.error
        if job.result is None or (job.result.status is JobStatus.FAILED and job.is_failure_known):
            continue
        ended = report(job.result, received=script.received)
        code = code or ended
    return code


@dataclass(frozen=True, kw_only=True)
class PlannedScript:
    """What ``weir plan`` has found in a script."""

    job: Job
    #: The queries, and what there is to say about them.
    details: RenderableType


def planned_script(program: Program, say: Callable[[str], None]) -> PlannedScript | None:
    """Execute the script up to where it would wait for its queries, and make their job.

    None if the file has not asked for a session: it is not a script. Raises ``WeirError`` for what
    ``weir run`` would refuse.
    """
    if is_script(program.path):
        say(
            f"executing {program.path} to find its queries, up to where it waits for them; it may"
            " write nothing"
        )
    said: list[str] = []
    with temporary_directory("weir-") as directory:
        options = RunOptions(conf={WORKING_DIR.key: directory})
        session = _session(program, options, said.append)
        with closing(session):
            found = QuerySearch(program, session, check_started).run(said.append)
            if not session.was_made:
                return None
            if not found.queries:
                raise PipelineError(f"{program.path} starts no streaming query: nothing to show.")
            name = session.app_name or program.path.stem
            adopted = Assembly(RunOptions(), session, said.append).job_of(name, found.queries)
            lines = (*said, *adopted.says, *_uncommitted(found))
            details = Group(*_queries(found), *(Text(f"note: {line}") for line in lines))
            return PlannedScript(job=adopted.job, details=details)


def _session(program: Program, options: RunOptions, say: Callable[[str], None]) -> ScriptSession:
    return ScriptSession(
        name=options.name or program.path.stem,
        master=options.master,
        conf=options.conf,
        say=say,
        artifacts=artifacts_in(program.path),
    )


def _queries(found: FoundQueries) -> Iterator[RenderableType]:
    """A paragraph for each query of a script."""
    for query in found.queries:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=_LABEL_WIDTH)
        table.add_column(overflow="fold")
        for label, value in _rows(query):
            table.add_row(f"  {label}", Text(value))
        yield Text(f"query {query.name or 'without a name'} ({query.place})", style="bold")
        yield table
    if found.end is not None:
        yield Text(f"Not executed: what comes after {found.end}.")


def _uncommitted(found: FoundQueries) -> Iterator[str]:
    for query in found.queries:
        leaves = streaming_leaves(query.frame)
        if any(source == "kafka" and ISOLATION not in options for source, options in leaves):
            yield f"{query.place}: the query {UNCOMMITTED}"


def _rows(query: StartedQuery) -> Iterator[tuple[str, str]]:
    yield "writes to", describe_target(query)
    yield "output mode", query.output_mode
    if query.trigger.interval is not None:
        yield "trigger", f"{query.trigger.kind.value} {query.trigger.interval}"
    else:
        yield "trigger", query.trigger.kind.value
