"""What dead attempts of the Iceberg sink have left behind, and what of it may be deleted.

The table's ledger says how far each attempt was committed. But the table that a catalog shows may
be older than the ledger that once was: it was restored, or it is a new table beside a renamed
table whose data lie in the same place. So before a commit, a file beside the batches says up to
which position they may be some table's from now on::

    weir-0a1b2c3d-orders-1/_committed          "7"
    weir-0a1b2c3d-orders-1/7/part-....parquet
    weir-0a1b2c3d-orders-1/m12-89abcdef/_committed          merged files may be, too
    weir-0a1b2c3d-orders-1/m12-89abcdef/0/....parquet

Neither the ledger nor this file alone is trusted: a batch is deleted only if it is above both. The
name is hidden, so that Spark's removal of orphan files leaves it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from weir.core.types import Position
from weir.sinks.merging import MERGED
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join

_NAME = "_committed"


def note_commit(file_system: FileSystem, directory: str, position: Position) -> None:
    """Record durably that the attempt's batches up to this position are about to be committed."""
    mark = noted(file_system, directory)
    if mark is not None and mark < position:
        file_system.write(join(directory, _NAME), str(position).encode())


def note_merged(file_system: FileSystem, directory: str) -> None:
    """Record durably that the merged files of a directory are about to be committed."""
    file_system.write(join(directory, _NAME), b"")


def left_over(
    file_system: FileSystem, directory: str, mark: Position
) -> Callable[[str], bool] | None:
    """Says whether a dead attempt's batch, or what it merged, is no table's; None if unknown.

    That is a batch above the ledger's ``mark`` and the one beside it, and what was merged and never
    tried to commit: nobody can commit it any more.
    """
    known = noted(file_system, directory)
    if known is None:
        return None

    def is_left_over(name: str) -> bool:
        if MERGED.fullmatch(name):
            return file_system.status(join(directory, name, _NAME)) is None
        return name.isdecimal() and int(name) > max(mark, known)

    return is_left_over


def noted(file_system: FileSystem, directory: str) -> Position | None:
    """Up to which position the attempt's batches may be some table's, by the file beside them.

    -1 without such a file, and None if it cannot be understood.
    """
    try:
        text = file_system.read(join(directory, _NAME))
    except FileNotFoundError:
        return -1
    return int(text) if re.fullmatch(rb"[0-9]{1,18}", text) else None
