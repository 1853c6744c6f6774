"""``FileReader``: reads the files that the enumerator assigns to a subtask.

``file_enumerator.py`` describes what they report to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weir.core.types import Payload
from weir.errors import InputError, StorageError
from weir.sources.base import SourceReader, SourceReaderContext, SplitRecords
from weir.sources.file_listing import FileSplit
from weir.storage.file_systems import FileSystems
from weir.storage.paths import is_local, join, name_of, temporary_directory

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.sources.formats.records import OnBad

#: Bad records in one file; a file with more does not have this format.
MAX_BAD = 1_000
#: Characters of an error that are kept in an event.
_WHY = 300


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
        self._file_systems = FileSystems()
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
            self.announce(split)
            for batch in self._read(split.name):
                yield SplitRecords(split_id=split.split_id, batch=batch)
            yield SplitRecords(split_id=split.split_id, finished=True)
        if not self._splits:
            self._context.send_split_request()

    def _read(self, name: str) -> Iterator[pa.RecordBatch]:
        from weir.sources.formats.opening import check_schema
        from weir.sources.formats.records import UNREADABLE

        check_schema(self._context.schema, self._format)
        if not self._rejects:
            try:
                yield from self._batches(name, _refuse)
            except UNREADABLE as error:
                raise InputError(
                    f"The file {join(self._directory, name)} cannot be read ({_why(error)}): fix"
                    " it, or skip what cannot be read with FileSource(on_error='reject')."
                ) from error
            return
        bad: list[Payload] = []
        try:
            # Rows that were emitted cannot be taken back, so read them all first.
            batches = list(self._batches(name, partial(_keep, bad)))
        except UNREADABLE as error:
            self._context.send_source_event({"rejected": name, "why": _why(error)})
            return
        if bad:
            self._context.send_source_event({"rejected": name, "rows": bad})
        yield from batches

    def _batches(self, name: str, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        from weir.sources.formats.opening import read_file
        from weir.sources.formats.partitions import partitions

        values, schema = partitions(name), self._context.schema
        with self._local(name) as path:
            yield from read_file(path, self._format, schema, on_bad, partitions=values)

    @contextmanager
    def _local(self, name: str) -> Iterator[Path]:
        """The file on a local disk: where it is, or a copy for as long as it is read.

        Raises ``StorageError`` if its store does not answer.
        """
        if is_local(self._directory):
            yield Path(self._directory, name)
            return
        from weir.operators.state.memory import local_directory

        with temporary_directory("weir-", within=local_directory()) as scratch:
            yield self._copied(join(self._directory, name), Path(scratch))

    def _copied(self, far: str, scratch: Path) -> Path:
        # Its name says how it is compressed.
        copied = scratch / name_of(far)
        try:
            with copied.open("wb") as copy:
                for block in self._file_systems(far).blocks(far):
                    copy.write(block)
        except FileNotFoundError:
            raise
        except OSError as error:
            # Of the copy, so the file must not be rejected.
            raise StorageError(
                f"{far} cannot be copied to {scratch} ({error}): make room there, or name another"
                " disk with spark.local.dir."
            ) from error
        return copied


def _refuse(line: int, error: Exception) -> None:
    raise ValueError(f"line {line}: {error}") from error


def _keep(bad: list[Payload], line: int, error: Exception) -> None:
    """Note a bad record. Raises ``ValueError`` if there are too many."""
    bad.append({"line": line, "why": _why(error)})
    if len(bad) > MAX_BAD:
        raise ValueError(
            f"more than {MAX_BAD} of its rows are unreadable, the first in line"
            f" {bad[0]['line']}: {bad[0]['why']}"
        ) from error


def _why(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_WHY]
