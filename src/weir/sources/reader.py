"""``FileReader``: reads the files that the enumerator assigns to a subtask.

``enumerator.py`` describes their messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from weir.core.types import Payload
from weir.errors import StorageError
from weir.operators.base import Operator, OperatorContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Formats with a row per line.
_TEXT = ("json", "csv")
#: A JSON line that is null, not an object. Arrow crashes on it if it is the first of a block.
_NULL = re.compile(rb"\n[ \t\r]*null")
_CHUNK_BYTES = 4 * 1024 * 1024


class FileReader(Operator):
    """Reads whole files, in the batch in which they are assigned.

    So it has no state: no file is half read between two batches.
    """

    #: An earlier process may not have asked, and what it had not read is assigned again.
    transient = ("_asks", "_ended", "_names")

    def __init__(
        self, directory: str, *, format: str, schema: str | StructType, rejects: bool
    ) -> None:
        """``schema`` is a Spark ``StructType`` or DDL.

        With ``rejects``, unreadable input does not fail the job.
        """
        self.output_schema = schema
        self._directory = directory
        self._format = format
        self._rejects = rejects

    def open(self, context: OperatorContext) -> None:
        """Prepare to ask for files: an earlier process may not have asked (PROTOCOL P41)."""
        super().open(context)
        self._asks = True
        self._ended = False
        self._names: list[str] = []

    def handle_operator_event(self, event: Payload) -> None:
        """Take up assigned files, or the end of the input."""
        self._names += event.get("splits", ())
        self._ended |= event.get("end", False)

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        """Read all that was assigned, then ask for more."""
        names, self._names = self._names, []
        for name in names:
            yield from self._read(name)
        if self._ended:
            self.context.end_input()
        elif self._asks or names:
            self.context.send_event_to_coordinator({"ask": True})
        self._asks = False

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
                    self.context.send_event_to_coordinator(
                        {"rejected": path.name, "rows": found.bad}
                    )
                return found.batches
        self.context.send_event_to_coordinator({"rejected": path.name, "why": why(error)})
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
        schema = self.context.output_schema
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
        found = format.make_fragment(pa.py_buffer(data)).to_batches(
            schema=self.context.output_schema
        )
        return list(self._with_values(batch for batch in found if batch.num_rows))

    def _with_values(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. Raises ``ValueError`` for a null in a NOT NULL column."""
        schema = self.context.output_schema
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
