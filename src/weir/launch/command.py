"""How a job was started: the arguments of its file, and the directory where relative paths start.

As for ``spark-submit``, relative paths in a pipeline start at the current directory. The job's
records keep it, the arguments, and the checkpoint locations of a script's queries, so that a start
says in a line what differs from the last one.
Whether a difference matters is for the rules on changes to decide, by what sources and sinks then
read and write (``durable/changes.py``).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from weir.masking import masked, masked_arguments
from weir.spark.session.user_modules import script_file
from weir.storage.job_log import JobRecord, StartCommand

#: A record is written with each checkpoint: longer arguments are cut there.
_LENGTH_MAX = 2_000
_NONE: Mapping[str, str] = MappingProxyType({})


def script_arguments() -> tuple[str, ...]:
    """The arguments of the script that this process runs; empty in anything else."""
    return () if script_file() is None else tuple(sys.argv[1:])


def command_of(
    arguments: Sequence[str], checkpoint_locations: Mapping[str, str] = _NONE
) -> StartCommand:
    """The command with these arguments in the current directory, as it is recorded.

    ``checkpoint_locations``: those of a script's queries, by their names.
    """
    locations = (f"{masked(at)} of {name}" for name, at in sorted(checkpoint_locations.items()))
    return StartCommand(
        arguments=_short(masked_arguments(arguments)),
        directory=_encodable(str(Path.cwd())),
        checkpoint_locations=_short(", ".join(locations)),
    )


def notes(command: StartCommand, record: JobRecord | None, *, script: Path | None) -> Iterator[str]:
    """What people should know of this start.

    ``record`` is the job's newest, None of a new job. ``script`` is the file that is executed.
    """
    before = None if record is None else record.command
    if before is not None and before.arguments != command.arguments:
        yield (
            f"arguments: {command.arguments or 'none'}; at the last start:"
            f" {before.arguments or 'none'}"
        )
    if before is not None and before.checkpoint_locations != command.checkpoint_locations:
        yield (
            f"checkpointLocation: {command.checkpoint_locations or 'none'}; at the last start:"
            f" {before.checkpoint_locations or 'none'}. The job goes on all the same: its"
            " checkpoints are not there"
        )
    if before is not None:
        if before.directory != command.directory:
            yield (
                f"relative paths start at {command.directory}; at the last start:"
                f" {before.directory}"
            )
    elif record is None and script is not None and _is_elsewhere(script):
        yield (
            f"relative paths start at {command.directory}, not at the directory of {script.name}:"
            " start the job there each time"
        )


def _is_elsewhere(script: Path) -> bool:
    return script.resolve().parent != Path.cwd().resolve()


def _short(text: str) -> str:
    """The text as a record holds it, not too long."""
    text = _encodable(text)
    if len(text) > _LENGTH_MAX:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        text = f"{text[:_LENGTH_MAX]}... ({len(text)} characters, SHA-256 {digest}...)"
    return text


def _encodable(text: str) -> str:
    """The text without what no record can hold, such as a file name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
