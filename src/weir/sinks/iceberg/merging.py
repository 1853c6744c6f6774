"""How small files of ``IcebergTable`` are merged (``sinks/merging.py``), and what is noted of it.

Merged files lie below the table's data location, in the directory of the attempt that commits. A
commit that adds such files first writes ``_committed`` beside them. A dead attempt's merged files
are deleted only without it: with it they may be some table's, even if the table in the catalog
shows nothing of them (``leftovers.py``).

A batch of which no file was added is not noted as committed. So the note also says which originals
may be deleted later: those above it, which no commit can have added.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from weir.sinks.ddl import columns_ddl
from weir.sinks.iceberg.files import data_file, described, written_as
from weir.sinks.iceberg.leftovers import note_commit, note_merged, noted
from weir.sinks.iceberg.payload import IcebergPayload, StagedDataFile
from weir.sinks.iceberg.types import spark_schema_of
from weir.sinks.iceberg.writing import settings, shaped
from weir.sinks.merging import Added, Merger
from weir.storage.filesystem import FileSystem
from weir.storage.paths import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class AddedDataFile(Added):
    """A data file that a commit adds."""

    file: StagedDataFile
    #: Where it lies, as readers of the table spell it.
    location: str
    #: The payload that has its rows' schema and partition spec, and, if it was staged, itself.
    payload: IcebergPayload


class IcebergMerger(Merger[AddedDataFile]):
    """Files of an Iceberg table. A layout is the rows' schema and the partition spec."""

    def __init__(
        self,
        file_system: Callable[[str], FileSystem],
        properties: Mapping[str, str],
        location: str,
    ) -> None:
        """``properties`` and data ``location``, as readers spell it, are the table's."""
        self._file_system = file_system
        self._properties = properties
        self._location = location

    def columns(self, layout: str) -> str:
        """All columns of the rows, those of partitions included."""
        return columns_ddl(spark_schema_of(_rows(layout))["fields"])

    def replaceable(self, staged: list[AddedDataFile]) -> list[AddedDataFile]:
        """Those that no commit can have added."""
        return replaceable(self._file_system, staged)

    def shaped(self, frame: DataFrame, layout: str, column: str) -> DataFrame:
        """With the field ids that the staged files have, by settings of the frame's session."""
        rows = _rows(layout)
        for key, value in settings(rows).items():
            frame.sparkSession.conf.set(key, value)
        return shaped(frame, rows, column)

    def added(self, like: AddedDataFile, root: str, path: str, size: int) -> AddedDataFile:
        """With the metrics from its footer, and the partition of the others."""
        rows, _ = written_as(like.payload)
        new = described(
            self._file_system(root),
            join(root, path),
            StagedDataFile(path=path, size=size),
            rows=rows,
            partition=like.file.partition or [],
            properties=self._properties,
        )
        location = f"{self._location}/{path}"
        return replace(like, root=root, path=path, file=new, location=location)


def staged_data_file(
    payload: IcebergPayload, file: StagedDataFile, *, root: str, path: str, location: str
) -> AddedDataFile:
    """A payload's file; ``path`` is below ``root``, which readers spell ``location``."""
    return AddedDataFile(
        root=root,
        path=path,
        file=file,
        layout=json.dumps([payload.schema, payload.spec]),
        partition=tuple(file.partition or []),
        location=f"{location}/{path}",
        payload=payload,
    )


def manifest_entries(
    added: Sequence[AddedDataFile], rows: Mapping[str, Schema], spec_id: int
) -> Iterator[DataFile]:
    """The entries of the files; ``rows``: by a payload's schema, that with the table's ids."""
    for file in added:
        schema, spec = written_as(file.payload)
        yield data_file(
            file.file,
            file.location,
            schema=schema,
            spec=spec,
            spec_id=spec_id,
            rows=rows[file.payload.schema],
        )


def replaceable(
    file_system: Callable[[str], FileSystem], staged: Sequence[AddedDataFile]
) -> list[AddedDataFile]:
    """The staged files that no commit can have added."""
    directories = {join(file.root, file.payload.directory): file.root for file in staged}
    # Read once: an epoch may have many batches.
    marks = {path: noted(file_system(root), path) for path, root in directories.items()}
    return [
        file
        for file in staged
        if (mark := marks[join(file.root, file.payload.directory)]) is not None
        and mark < file.payload.position
    ]


def note_additions(
    file_system: Callable[[str], FileSystem],
    staged: Sequence[AddedDataFile],
    added: Sequence[AddedDataFile],
) -> None:
    """Record durably which files are about to be committed."""
    originals = {file.full_path for file in staged}
    for batch, file in {file.batch: file for file in added}.items():
        directory = join(file.root, file.payload.directory)
        if file.full_path in originals:
            note_commit(file_system(file.root), directory, file.payload.position)
        else:
            note_merged(file_system(file.root), batch)


def _rows(layout: str) -> Schema:
    schema, _ = json.loads(layout)
    return Schema.model_validate_json(schema)
