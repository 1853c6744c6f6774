"""How small files of ``DeltaTable`` are merged (``sinks/merging.py``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from weir.sinks.base import SinkContext
from weir.sinks.ddl import columns_ddl
from weir.sinks.delta.payload import DeltaFile
from weir.sinks.merging import Added, Merger
from weir.sinks.parquet import read_footer
from weir.storage.paths import join


@dataclass(frozen=True, kw_only=True)
class AddedDeltaFile(Added):
    """A file that a commit adds to a Delta table."""

    file: DeltaFile


class DeltaMerger(Merger[AddedDeltaFile]):
    """Files of a Delta table. A layout is the rows' Delta schema, as JSON text."""

    def __init__(self, context: SinkContext, partition_by: Sequence[str]) -> None:
        self._context = context
        self._partition_by = partition_by

    def columns(self, layout: str) -> str:
        """Without the partition columns, which are not in the files."""
        fields = json.loads(layout)["fields"]
        return columns_ddl(field for field in fields if field["name"] not in self._partition_by)

    def added(self, like: AddedDeltaFile, root: str, path: str, size: int) -> AddedDeltaFile:
        """With the figures from its footer."""
        new = DeltaFile(path=path, size=size, partition=like.file.partition)
        return replace(like, root=root, path=path, file=described(self._context, root, path, new))


def described(context: SinkContext, root: str, path: str, file: DeltaFile) -> DeltaFile:
    """The file with the figures from its footer; ``path`` is below ``root``."""
    footer = read_footer(context.file_system(root), join(root, path))
    return msgspec.structs.replace(
        file,
        rows=footer.rows,
        statistics=footer.statistics,
        modified_ms=context.kernel.wall_ms(),
    )
