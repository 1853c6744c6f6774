"""Refuses places that hold what a plain query wrote, and targets that were deleted.

A plain query's checkpoint and its output belong together: Weir would read the sources from their
start and write all rows again. And a script that deletes its output when it starts has a job that
goes on without the rows of before. All this is refused at the script's line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from weir.adopt.outputs.sinks import AdoptedSink
from weir.core.types import OperatorId
from weir.errors import PipelineError, WeirError
from weir.kernel import MACHINE
from weir.sinks.base import SinkContext
from weir.spark.adopt.catalog import full_path
from weir.spark.adopt.query import Place, StartedQuery
from weir.storage.checkpoints import CheckpointStorage
from weir.storage.filesystem import FileSystem
from weir.storage.job_log import JobLog
from weir.storage.job_names import JobNames
from weir.storage.paths import join, normalize

FileSystemOf = Callable[[str], FileSystem]

#: What Spark's file sink writes beside its files.
_SPARK_METADATA = "_spark_metadata"
#: What a plain query has in its checkpoint location.
_PLAIN_CHECKPOINT = frozenset(("metadata", "offsets"))
#: The session's setting for queries without a location, which add their names.
_LOCATION = "spark.sql.streaming.checkpointLocation"
#: Functions that delete files: the last of their name, and what must be before it, if anything.
_DELETING = {
    **dict.fromkeys(("rmtree", "rmdir", "removedirs", "unlink"), None),
    "remove": "os",
    "rm": "fs",
    "delete": "fs",
}


def check_places(query: StartedQuery, adopted: AdoptedSink, file_system: FileSystemOf) -> None:
    """Refuse what a plain query or another writer left in the query's places.

    Raises ``PipelineError`` with the query's line. Changes nothing.
    """
    try:
        if (location := _checkpoint_location(query)) is not None:
            _check_checkpoint(query, location, file_system)
        target = (adopted.sink.landmark() or "").removesuffix("/_weir/committed")
        if target and _SPARK_METADATA in _names(file_system, target):
            raise PipelineError(
                f"{query.place}: {target} holds the output of a plain query ({_SPARK_METADATA}),"
                " beside which readers would not see Weir's files: choose a new output directory"
                " and a new checkpointLocation, or write the new rows beside the old ones as a"
                " table."
            )
        adopted.sink.check(_context(file_system))
    except PipelineError:
        raise
    except WeirError as error:
        raise PipelineError(f"{query.place}: {error}") from error


def _checkpoint_location(query: StartedQuery) -> str | None:
    """Where a plain query would find its checkpoint again; None if nowhere."""
    given = query.options.get("checkpointlocation")
    base = query.frame.sparkSession.conf.get(_LOCATION, None)
    if given is not None or base is None or query.name is None:
        return given
    return join(base, query.name)


def _check_checkpoint(query: StartedQuery, location: str, file_system: FileSystemOf) -> None:
    directory = full_path(query.frame.sparkSession, location)
    if _names(file_system, directory) >= _PLAIN_CHECKPOINT:
        raise PipelineError(
            f"{query.place}: {location} holds the checkpoint of a plain query, which Weir does not"
            " continue: it would read everything again. Choose a new checkpointLocation and a new"
            " output; plain Spark can still go on with the old ones."
        )


def check_not_deleted(
    name: str,
    sinks: Mapping[OperatorId, tuple[AdoptedSink, Place]],
    *,
    base_directory: str,
    file_system: FileSystemOf,
) -> None:
    """Refuse a job whose targets had rows and are gone, before it starts.

    ``name`` and ``base_directory`` are the job's and of its checkpoints. Raises ``PipelineError``
    with the line of the query whose target is gone, and what the script deletes itself.
    """
    known = JobNames(file_system(base_directory), base_directory, MACHINE).lookup(name)
    if known is None:
        return
    storage = CheckpointStorage(fs=file_system, base_directory=base_directory, job_id=known.job_id)
    log = JobLog(file_system(base_directory), storage.log_directory, job_id=known.job_id)
    record = log.newest()
    for sink, mark in {} if record is None else record.written.items():
        adopted, place = sinks.get(sink, (None, None))
        if adopted is None or place is None or adopted.sink.landmark() is None:
            continue
        if normalize(adopted.sink.landmark() or "") == mark and not _exists(file_system, mark):
            raise PipelineError(
                f"{place}: {adopted.sink.describe()} has rows of this job, but nothing is there"
                f" now.{_deletions(place)} Under Weir a job goes on where it was, and its output"
                " must stay. If the output is to start from nothing, start the job with --fresh;"
                " if its volume is not mounted, mount it."
            )


def _deletions(place: Place) -> str:
    """Where the script deletes files, for a message; empty if it does not seem to."""
    try:
        lines = sorted(set(deleting_lines(ast.parse(Path(place.file).read_bytes()))))
    except (OSError, SyntaxError, ValueError):
        return ""
    if not lines:
        return ""
    shown = ", ".join(map(str, lines))
    return f" The script itself deletes files, in line {shown}: remove that."


def deleting_lines(script: ast.AST) -> Iterator[int]:
    """The lines of a script that call a function whose name says that it deletes files."""
    for node in ast.walk(script):
        if isinstance(node, ast.Call):
            before, _, name = ast.unparse(node.func).rpartition(".")
            needed = _DELETING.get(name, "")
            if needed != "" and needed in (None, before.rpartition(".")[2]):
                yield node.lineno


def _names(file_system: FileSystemOf, directory: str) -> set[str]:
    return {entry.name for entry in file_system(directory).list(directory)}


def _exists(file_system: FileSystemOf, path: str) -> bool:
    return file_system(path).status(path) is not None


def _context(file_system: FileSystemOf) -> SinkContext:
    """For a check before the job is known."""
    return SinkContext(
        job_id="0" * 32,
        job_name="",
        sink="sink",
        attempt=1,
        file_system=file_system,
    )
