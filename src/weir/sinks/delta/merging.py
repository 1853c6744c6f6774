"""How small files of ``DeltaTable`` are merged (``sinks/merging.py``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from weir.kernel import Kernel
from weir.sinks.base import SinkContext
from weir.sinks.ddl import columns_ddl
from weir.sinks.merging import Added, Merger
from weir.sinks.parquet import read_footer
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join


class DeltaMerger(Merger[Added]):
    """Files of a Delta table. A layout is the rows' Delta schema, as JSON text."""

    def __init__(self, context: SinkContext, partition_by: Sequence[str]) -> None:
        self._context = context
        self._partition_by = partition_by

    def columns(self, layout: str) -> str:
        """Without the partition columns, which are not in the files."""
        fields = json.loads(layout)["fields"]
        return columns_ddl(one for one in fields if one["name"] not in self._partition_by)

    def added(self, like: Added, root: str, path: str, size: int) -> Added:
        """With the figures from its footer."""
        details = described(self._context.file_system(root), join(root, path), self._context.kernel)
        file = {**details, "size": size, "partition": like.file["partition"]}
        return Added(root=root, path=path, file=file, layout=like.layout, partition=like.partition)


def described(file_system: FileSystem, path: str, kernel: Kernel) -> dict[str, Any]:
    """The ``rows``, ``statistics`` and ``modified_ms`` of a file."""
    footer = read_footer(file_system, path)
    return {
        "rows": footer.rows,
        "statistics": footer.statistics,
        "modified_ms": kernel.wall_ms(),
    }
