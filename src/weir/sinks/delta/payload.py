"""What ``DeltaTable`` stores in checkpoints; read back by other processes, so it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from weir.core.types import Count, Timestamp
from weir.sinks.staging import STAGED_BY, FilePayload, PayloadFile


class DeltaFile(PayloadFile, kw_only=True):
    """One data file. The fields after ``size`` are set once it is flushed."""

    size: Count
    #: The values of its partition columns.
    partition: dict[str, str | None] | None = None
    #: Delta's, JSON text.
    statistics: str | None = None
    modified_ms: Timestamp | None = None


class DeltaPayload(FilePayload, kw_only=True):
    """The data files of one batch."""

    directory: Annotated[str, Meta(pattern=rf"\Aweir-{STAGED_BY}\Z")]
    #: The rows' Delta schema, JSON text.
    schema: str
    files: Sequence[DeltaFile]

    def __post_init__(self) -> None:
        said = [
            (file.partition, file.rows, file.statistics, file.modified_ms) for file in self.files
        ]
        if self.flushed and any(None in fields for fields in said):
            raise ValueError("a flushed file is incomplete")
