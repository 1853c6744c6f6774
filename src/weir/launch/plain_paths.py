"""Paths without a scheme: of this machine for Weir, on Hadoop's default file system for Spark."""

from __future__ import annotations

from collections.abc import Iterable

from weir.config import Configuration
from weir.config.options import CHECKPOINT_DIR, WORKING_DIR
from weir.sinks import Sink
from weir.storage.paths import is_local, root_of, scheme_of


def plain_path_note(
    default: str, sinks: Iterable[Sink], configuration: Configuration
) -> str | None:
    """What to say if a plain path means two things; ``default`` is ``fs.defaultFS``.

    None if Weir uses no plain path, or both mean the same.
    """
    if scheme_of(f"{default}/") in (None, "file"):
        return None
    given = [configuration.value(CHECKPOINT_DIR), configuration.value(WORKING_DIR)]
    paths = [path for path in (*(sink.files_at() for sink in sinks), *given) if path is not None]
    plain = next(filter(is_local, paths), None)
    if plain is None:
        return None
    there = root_of(f"{default}/")
    return (
        f"a plain path means two things here: Weir's, such as {plain}, is on this machine, and one"
        f" that the pipeline's code gives to Spark is on {there} (fs.defaultFS). Write file:///PATH"
        f" or {there}/PATH where it matters."
    )
