"""``FileReader``: reads the files that the enumerator assigns to a subtask (``enumerator.py`` has what they say)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from weir.core.types import Payload
from weir.errors import StorageError
from weir.operators.base import Operator, OperatorContext

if TYPE_CHECKING:
    import pyarrow as pa

#: Characters of an error that travel with an event.
_WHY = 500


class FileReader(Operator):
    """Reads whole files, in the batch in which it is told of them. So it has no state: no file is half read between two
    batches."""

    def __init__(self, directory: str, *, format: str, schema: str, rejects: bool) -> None:
        """``schema`` as Spark's DDL text. ``rejects``: a file that cannot be read does not fail the job."""
        self.output_schema = schema
        self._directory = directory
        self._format = format
        self._rejects = rejects

    def open(self, context: OperatorContext) -> None:
        """Ask for files: who ran the subtask before may not have (PROTOCOL P41)."""
        super().open(context)
        self._asks = True
        self._ended = False
        self._names: list[str] = []

    def handle_operator_event(self, event: Payload) -> None:
        """Files, or the end of the input."""
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
        import pyarrow as pa

        path = Path(self._directory, name)
        try:
            batches = self._batches(path)
            # Rows that went downstream cannot be taken back.
            yield from (list(batches) if self._rejects else batches)
        except (pa.ArrowException, OSError, ValueError) as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_WHY]
            if not self._rejects:
                raise StorageError(
                    f"The file {path} cannot be read ({why}): put it right, or pass over such files with"
                    " FileSource(on_error='reject')."
                ) from error
            self.context.send_event_to_coordinator({"rejected": name, "why": why})

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds
        from pyarrow.fs import LocalFileSystem

        if self._format in ("json", "csv") and path.stat().st_size == 0:
            # No line is no row; Arrow calls it broken.
            return
        schema = self.context.output_schema
        found = ds.dataset(str(path), schema=schema, format=self._format, filesystem=LocalFileSystem())
        yield from (batch for batch in found.to_batches() if batch.num_rows)
