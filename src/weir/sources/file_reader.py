"""``FileReader``: reads the files that the enumerator assigns to a subtask.

``file_enumerator.py`` describes what they report to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weir.errors import StorageError
from weir.sources.base import SourceReader, SourceReaderContext, SplitRecords
from weir.sources.file_enumerator import FileSplit

if TYPE_CHECKING:
    import pyarrow as pa
#: Formats with a row per line.
_TEXT = ("json", "csv")
#: A JSON line that is null, not an object. Arrow crashes on it if it is the first of a block.
_NULL = re.compile(rb"\n[ \t\r]*null")
_CHUNK_BYTES = 4 * 1024 * 1024


class FileReader(SourceReader[FileSplit]):
    """Reads whole files: between two batches no file is half read."""

    def __init__(
        self, context: SourceReaderContext, directory: str, *, format: str, rejects: bool
    ) -> None:
        """With ``rejects``, unreadable input does not fail the job."""
        self._context = context
        self._directory = directory
        self._format = format
        self._rejects = rejects
        self._splits: list[FileSplit] = []
        self._paused: frozenset[str] = frozenset()

    def start(self) -> None:
        """Ask for files."""
        if not self._splits:
            self._context.send_split_request()

    def add_splits(self, splits: Sequence[FileSplit]) -> None:
        """Take files to be read."""
        self._splits += splits

    def pause_or_resume_splits(self, paused: frozenset[str]) -> None:
        """Do not read these files."""
        self._paused = paused

    def snapshot_state(self) -> list[FileSplit]:
        """The files that are to be read: those of a batch that must not read."""
        return self._splits

    def read(self, max_rows: int) -> Iterator[SplitRecords]:
        """Read all files that were assigned, then ask for more.

        The enumerator bounds them by their bytes.
        """
        splits = [split for split in self._splits if split.split_id not in self._paused]
        self._splits = [split for split in self._splits if split.split_id in self._paused]
        for split in splits:
            for batch in self._read(split.name):
                yield SplitRecords(split_id=split.split_id, batch=batch)
            yield SplitRecords(split_id=split.split_id, finished=True)
        if not self._splits:
            self._context.send_split_request()

    def _read(self, name: str) -> Iterator[pa.RecordBatch]:
        from weir.sources.text_records import UNREADABLE, why

        path = Path(self._directory, name)
        try:
            batches = self._batches(path)
            # Rows that were emitted cannot be taken back, so with rejects check them all first.
            yield from (list(self._with_values(batches)) if self._rejects else batches)
        except UNREADABLE as error:
            if not self._rejects:
                raise StorageError(
                    f"The file {path} cannot be read ({why(error)}): fix it, or skip what cannot"
                    " be read with FileSource(on_error='reject')."
                ) from error
            yield from self._salvaged(path, error)

    def _salvaged(self, path: Path, error: Exception) -> list[pa.RecordBatch]:
        """The readable rows of a file; reports the rest, by line if the format has lines."""
        from weir.sources.text_records import UNREADABLE, salvage, why

        if self._format in _TEXT:
            try:
                found = salvage(path.read_bytes(), self._format, self._parsed)
            except UNREADABLE as worse:
                error = worse
            else:
                if found.bad:
                    self._context.send_source_event({"rejected": path.name, "rows": found.bad})
                return found.batches
        self._context.send_source_event({"rejected": path.name, "why": why(error)})
        return []

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        if self._format in _TEXT and path.stat().st_size == 0:
            # An empty file has no rows; Arrow would call it broken.
            return
        if self._format == "json":
            with path.open("rb") as file:
                _check_objects(iter(lambda: file.read(_CHUNK_BYTES), b""))
        schema = self._context.schema
        found = ds.dataset(
            str(path), schema=schema, format=self._format, filesystem=LocalFileSystem()
        )
        yield from (batch for batch in found.to_batches() if batch.num_rows)

    def _parsed(self, data: bytes) -> list[pa.RecordBatch]:
        """The rows of a text file, as ``_batches`` reads them."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        if self._format == "json":
            _check_objects([data])
        format = ds.JsonFileFormat() if self._format == "json" else ds.CsvFileFormat()
        found = format.make_fragment(pa.py_buffer(data)).to_batches(schema=self._context.schema)
        return list(self._with_values(batch for batch in found if batch.num_rows))

    def _with_values(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. Raises ``ValueError`` for a null in a NOT NULL column."""
        schema = self._context.schema
        for batch in batches:
            for column_field, column in zip(schema, batch.columns, strict=True):
                if not column_field.nullable and column.null_count:
                    raise ValueError(
                        f"a null in {column_field.name!r}, which the schema declares as NOT NULL"
                    )
            yield batch


def _check_objects(chunks: Iterable[bytes]) -> None:
    before = b"\n"
    for chunk in chunks:
        if _NULL.search(before + chunk):
            raise ValueError("a line is null, and not an object")
        before = chunk[-16:]
