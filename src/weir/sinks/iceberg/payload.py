"""What ``IcebergTable`` stores in checkpoints; read back by other processes, so it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from weir.core.types import Count
from weir.sinks.staging import STAGED_BY, FilePayload, PayloadFile


class Column(msgspec.Struct):
    """The metrics of one column of a file; None where they are not known."""

    id: Count
    #: Bytes in the file.
    size: Count
    values: Count | None
    nulls: Count | None
    #: Iceberg's single-value serialization.
    lower: bytes | None
    upper: bytes | None


class StagedDataFile(PayloadFile, kw_only=True):
    """One data file. The fields after ``size`` are set once it is flushed."""

    size: Count
    #: The texts of its partition's values (``iceberg_partitions``).
    partition: list[str | None] | None = None
    columns: list[Column] | None = None
    #: Where row groups start.
    splits: list[Count] | None = None


class IcebergPayload(FilePayload, kw_only=True):
    """The data files of one batch."""

    directory: Annotated[str, Meta(pattern=rf"\Aweir-{STAGED_BY}\Z")]
    #: A digest of the job, the sink and the table's name.
    owner: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    #: The table's UUID.
    table: Annotated[str, Meta(pattern=r"\A[0-9a-f-]{36}\Z")]
    #: The rows' schema (``types``) and the table's partition spec, Iceberg's JSON text.
    schema: str
    spec: str
    files: Sequence[StagedDataFile]
    #: The table's data location when the rows were staged, as its readers spell it; None: as now.
    #: Used only if the table's own metadata have it.
    location: Annotated[str, Meta(pattern=r"\A[^\x00]+\Z")] | None = None

    def __post_init__(self) -> None:
        said = [(file.rows, file.partition, file.columns, file.splits) for file in self.files]
        if self.flushed and any(None in fields for fields in said):
            raise ValueError("a flushed file is incomplete")
