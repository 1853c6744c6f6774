"""Exactly-once directories of Parquet, ORC or text files, for readers that know nothing of Weir.

Layout below the sink's path::

    country=US/0a1b2c3d-orders-1-7-0.snappy.parquet
        committed; the name is <job>-<sink>-<attempt>-<position>-<number>
    _weir/staged/0a1b2c3d-orders-1/7/country=US/part-..
        staged by attempt 1 in the batch at position 7
    _weir/committed/<job id>-orders/12
        the ledger: epoch 12 is committed, by whom and when
    _weir/committed/<job id>-orders/13.begun
        its mark: files of epoch 13 may have their final names

Spark, pyarrow and Hive skip names that start with ``_``, so staged files are invisible. (pyarrow
walks through such directories first, so it may report that a file has vanished: then read again.)
``commit`` renames each file to its final name. That name follows from the payload alone, so an
interrupted commit can be repeated: a file that is no longer staged and exists under its final name
is done. No file is renamed before all files of the epoch are known to be complete, and the epoch's
mark is durable. When all names are durable, the mark is renamed to the ledger's entry; an epoch at
or below the newest entry is never looked at again, even if readers have moved its files.

Final names carry no epoch, so only the mark shows that an epoch is visible in part. A job does
not fall back from a damaged checkpoint whose epoch is marked to an older checkpoint: its rows would
be written again under other names (PROTOCOL P21). One file per epoch, since a late driver must not
take back the mark of a newer epoch. Directories of earlier versions have no marks.

A rename shows a whole file or nothing. The files of one epoch appear one after the other; a reader
that must see a whole epoch at once needs ``DeltaTable``.

Payload::

    {"directory": "0a1b2c3d-orders-1", "position": 7, "flushed": true, "after": 12,
     "files": [{"path": "country=US/part-0.c000.snappy.parquet", "size": 451, "rows": 3}]}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec

from weir.core.types import Count, Payload, Position
from weir.errors import LostWriteError, SinkError, SinkMismatchError, StorageError
from weir.lineage.datasets import Dataset, file_dataset
from weir.sinks.base import Commit, SinkContext
from weir.sinks.parquet import read_footer
from weir.sinks.staging import (
    STAGED_BY,
    FilePayload,
    FileSink,
    PayloadFile,
    StagedFile,
    SureSync,
    check_partition_names,
    damage_in,
    lost_rows,
    slug,
    statuses,
    write_frame,
)
from weir.storage.filesystem import FileStatus, FileSystem
from weir.storage.paths import join
from weir.storage.records import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["parquet", "json", "csv", "orc", "text"]

#: Ledger entries kept; only the newest is needed.
_LEDGER_ENTRIES_KEPT = 3
#: The end of a mark's name.
_BEGUN = ".begun"
#: Spark names files ``part-<task>-<uuid>-c000.snappy.parquet`` or, in partitions,
#: ``part-<task>-<uuid>.c000.json``.
_EXTENSION = re.compile(r"[-.]c\d+\.(?P<extension>.+)$")
#: Spark's text compressions by pyarrow's names; others cannot be read outside of Hadoop.
_TEXT_COMPRESSIONS = {"none": None, "uncompressed": None, "gzip": "gzip", "bzip2": "bz2"}
#: Options with which rows could not be counted (and few readers could read the files).
_TEXT_OPTIONS_REFUSED = frozenset(
    ("linesep", "encoding", "charset", "quote", "escape", "escapequotes")
)
#: Options with what is between two values. What ends a line or a quoted value cannot be.
_SEPARATORS = ("sep", "delimiter")
_NO_SEPARATOR = re.compile(r'["\\\r\n]')
#: A quoted value as Spark writes it: only there may a line break be, and does a backslash escape.
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class FilesPayload(FilePayload, kw_only=True):
    """What a checkpoint stores of a batch's staged files."""

    directory: Annotated[str, msgspec.Meta(pattern=rf"\A{STAGED_BY}\Z")]

    def __post_init__(self) -> None:
        if self.flushed and any(file.rows is None for file in self.files):
            raise ValueError("a flushed file has no row count")


@dataclass(frozen=True, kw_only=True)
class Move:
    """A file that gets its final name; both paths are below the sink's root."""

    source: str
    target: str
    #: None if it was not recorded, in bytes.
    size: int | None
    rows: int


class Files(FileSink[FilesPayload, None]):
    """Adds files to a directory, exactly once.

    ``path``: the directory; relative paths are made absolute at once. ``format``: what Spark
    writes. ``partition_by``: columns that become directories. ``options``: Spark's options of the
    format.
    """

    _payload_type = FilesPayload
    _staging_below = "_weir/staged"
    _files_stay = False

    def __init__(
        self,
        path: str,
        *,
        format: Format = "parquet",
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._format = format
        self._options = {key.lower(): str(value) for key, value in (options or {}).items()}
        super().__init__(path, partition_by)
        self._target_sync = SureSync()
        if format not in get_args(Format):
            raise SinkError(
                f"{self.describe()} has the unknown format {format!r}: use one of"
                f" {get_args(Format)}."
            )
        check_partition_names(self._partition_by, "._", place=self.describe())
        self._check_text_options()

    def describe(self) -> str:
        """What and where, for messages."""
        return f"Files({self._shown_path!r}, format={self._format!r})"

    def identity(self) -> str:
        """The directory."""
        return f"Files at {self._root}"

    def landmark(self) -> str:
        """Where the ledgers of all jobs are."""
        return join(self._root, "_weir", "committed")

    def destination(self) -> str | None:
        """The directory, whatever links lead to it."""
        return self._real_root()

    def dataset(self) -> Dataset | None:
        """The directory: tables in files are named by their location."""
        return file_dataset(self._root)

    def check(self, context: SinkContext) -> None:
        """Refuse a directory that holds files and was not made by this kind of sink."""
        names = [name for name in self._names_found(context) if not name.startswith(".")]
        if names and "_weir" not in names:
            raise SinkError(
                f"{self.describe()} is not empty and was not written by Weir (it holds"
                f" {names[0]!r}): choose an empty directory or move its files elsewhere."
            )

    def open(self, context: SinkContext) -> None:
        """Make the directory and the ledger, by which ``check`` recognises it."""
        self._begin_attempt(context)
        self._target.check(self._file_system)
        self._file_system.make_directory(self._ledger)
        self._target.is_known_by(self._ledger)
        self._check_not_merged()

    def newest_committed(self) -> int | None:
        """The newest epoch in the ledger (PROTOCOL P21)."""
        return max(self._epochs_in(self._ledger), default=None)

    def newest_begun(self) -> int | None:
        """The newest epoch that has a mark or is in the ledger: files may be shown."""
        names = [entry.name for entry in self._file_system.list(self._ledger)]
        known = [epoch for suffix in ("", _BEGUN) for epoch in _epochs_among(names, suffix)]
        return max(known, default=None)

    def commits(self, context: SinkContext) -> Iterator[Commit]:
        """The newest entry or mark of each ledger, newest first: marked rows may be shown."""
        base = self.landmark()
        file_system = context.file_system(self._root)
        ledgers = [join(base, entry.name) for entry in file_system.list(base)]
        found = [self._newest_of(file_system, ledger) for ledger in ledgers]
        newest_first = sorted(
            filter(None, found), key=lambda commit: commit.timestamp_ms, reverse=True
        )
        return iter(newest_first)

    def _left_over(self, dead: Sequence[str]) -> Iterator[tuple[str, Callable[[str], bool]]]:
        # Committed files have moved.
        return ((directory, lambda _: True) for directory in dead)

    def _check_not_merged(self) -> None:
        """Refuse a directory where an earlier version of Weir may have shown merged files in part.

        That version merged small files of an epoch, with a plan of their names, which it deleted
        once the ledger had the epoch. The files that payloads list would double their rows.
        """
        plans = join(self._root, "_weir", "plans", self._ledger_name)
        planned = max(self._epochs_in(plans), default=0)
        if planned > (self.newest_committed() or 0):
            raise SinkMismatchError(
                f"An earlier version of Weir was committing checkpoint {planned} to"
                f" {self.describe()} in merged files, some of which may be visible: run the job"
                " with that version, without target_file_size, until its next checkpoint completes."
            )

    def _decode_flushed(self, payloads: Sequence[Payload]) -> list[FilesPayload]:
        flushed = super()._decode_flushed(payloads)
        targets = [move.target for move in self._moves_of(flushed)]
        if len(set(targets)) < len(targets):
            raise SinkMismatchError(
                f"The checkpoint lists a file of {self.describe()} twice: use another checkpoint or"
                " savepoint."
            )
        return flushed

    def _paths(self, payload: FilesPayload) -> list[str]:
        # Files that a commit has moved are under their final names.
        return [path for path, _ in self._find(self._moves_of([payload]))]

    def _damage(self, payload: FilesPayload) -> str | None:
        moves = self._moves_of([payload])
        looks = zip(self._find(moves), moves, strict=True)
        return damage_in((path, move.size, found) for (path, found), move in looks)

    def _look(self, payloads: Sequence[FilesPayload]) -> tuple[None, int]:
        return None, self.newest_committed() or 0

    def _secure(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> None:
        # The driver that entered it may have died before that was durable.
        is_others = self._newest < epoch and self.newest_committed() == epoch
        if self._target_sync.in_doubt or is_others:
            self._enter(epoch, len(self._moves_of(payloads)))

    def _add(self, target: None, epoch: int, payloads: Sequence[FilesPayload]) -> int:
        """Mark the epoch, give its files their final names, then enter it in the ledger."""
        moves = self._moves_of(payloads)
        self._begin(epoch, len(moves))
        return self._commit_moves(epoch, moves)

    def _commit_moves(self, epoch: int, moves: list[Move]) -> int:
        """Rename every file, durably, then write the ledger; return the rows of renamed files."""
        for directory in sorted({move.target.rpartition("/")[0] for move in moves}):
            self._file_system.make_directory(join(self._root, directory), below=self._root)
        rows = sum(move.rows for move in moves if self._rename(epoch, move.source, move.target))
        self._target_sync.sync_below(self._file_system, self._root, [move.target for move in moves])
        self._enter(epoch, len(moves))
        return rows

    def _begin(self, epoch: int, count: int) -> None:
        """Mark the epoch, durably, before readers see any of it.

        A mark that exists is replaced: its driver may have died before it was durable.
        """
        data = msgspec.json.encode(self._entry(epoch, count))
        self._file_system.write(join(self._ledger, f"{epoch}{_BEGUN}"), data)

    def _enter(self, epoch: int, count: int) -> None:
        """Enter the epoch in the ledger, durably: its mark becomes the entry."""
        mark, entry = (join(self._ledger, f"{epoch}{suffix}") for suffix in (_BEGUN, ""))
        try:
            self._file_system.rename(mark, entry)
            self._file_system.sync([entry])
        except StorageError:
            # The mark is gone, since another driver has entered the epoch. Or the entry's name may
            # not last, and is written again.
            data = msgspec.json.encode(self._entry(epoch, count))
            self._target_sync.write(self._file_system, entry, data)
        names = [entry.name for entry in self._file_system.list(self._ledger)]
        for old in _epochs_among(names)[:-_LEDGER_ENTRIES_KEPT]:
            self._file_system.delete(join(self._ledger, str(old)))
        for old in _epochs_among(names, _BEGUN):
            if old <= epoch:
                self._file_system.delete(join(self._ledger, f"{old}{_BEGUN}"))

    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> list[StagedFile]:
        return write_frame(
            frame,
            self._file_system,
            path,
            format_name=self._format,
            partition_by=self._partition_by,
            options=self._options,
            written=written,
        )

    @property
    def _ledger_name(self) -> str:
        # The whole job id: two jobs that shared a ledger would lose rows.
        return f"{self._context.job_id}-{slug(self._context.sink)}"

    @property
    def _ledger(self) -> str:
        return join(self.landmark(), self._ledger_name)

    def _epochs_in(self, directory: str) -> list[int]:
        """All epochs after which files of a directory are named, oldest first."""
        return _epochs_among(entry.name for entry in self._file_system.list(directory))

    def _entry(self, epoch: int, files: int) -> _LedgerEntry:
        context = self._context
        commit = Commit(
            timestamp_ms=context.kernel.wall_ms(),
            job_id=context.job_id,
            job_name=context.job_name,
            job_directory=context.job_directory or "",
            sink=context.sink,
            checkpoint_id=epoch,
            attempt=context.attempt,
        )
        return _LedgerEntry(files=files, commit=commit)

    def _newest_of(self, file_system: FileSystem, ledger: str) -> Commit | None:
        """The commit in the newest entry or mark of a ledger; None if it has neither."""
        names = [entry.name for entry in file_system.list(ledger)]
        entry, mark = (max(_epochs_among(names, suffix), default=0) for suffix in ("", _BEGUN))
        if not entry and not mark:
            return None
        path = join(ledger, str(entry) if entry >= mark else f"{mark}{_BEGUN}")
        try:
            return decoded(file_system.read(path), _LedgerEntry).commit
        except FileNotFoundError:
            # Meanwhile a live driver has made an entry of the mark.
            return self._newest_of(file_system, ledger)
        except ValueError as error:
            raise SinkError(
                f"The entry {path} of the ledger of {self.describe()} is damaged ({error}): restore"
                " it from a copy, or write to a new directory."
            ) from error

    def _moves_of(self, payloads: Iterable[FilesPayload]) -> list[Move]:
        """From where each file is staged to its final name."""
        moves = []
        for payload in payloads:
            # Named after the attempt that staged it, not after the epoch: the file has one final
            # name, whichever commit moves it.
            prefix = f"{payload.directory}-{payload.position}"
            for number, file in enumerate(payload.files):
                partition = file.path.rpartition("/")[0]
                target = _final_name(partition, file.path, prefix, number, self._format)
                source = self._staged(payload, file)
                moves.append(
                    Move(source=source, target=target, size=file.size, rows=file.rows or 0)
                )
        return moves

    def _find(self, moves: Sequence[Move]) -> list[tuple[str, FileStatus | None]]:
        """Where each file is, and what was found there: staged or, if it is not, by its final name.

        Each place is looked at once, in this order: another process that commits the same epoch may
        rename a file at any moment, and it must not seem to be gone.
        """
        staged = [join(self._root, move.source) for move in moves]
        found = dict(zip(staged, statuses(self._file_system, staged), strict=True))
        finals = {
            path: join(self._root, move.target)
            for path, move in zip(staged, moves, strict=True)
            if found[path] is None
        }
        moved = dict(zip(finals, statuses(self._file_system, list(finals.values())), strict=True))
        return [
            (path, found[path]) if moved.get(path) is None else (finals[path], moved[path])
            for path in staged
        ]

    def _rename(self, epoch: int, source: str, target: str) -> bool:
        """Rename one file to its final name. False if it already has it."""
        file_system, staged, final = (
            self._file_system,
            join(self._root, source),
            join(self._root, target),
        )
        failure: StorageError | None = None
        if file_system.status(staged) is not None:
            try:
                file_system.rename(staged, final)
                return True
            except LostWriteError:
                # The file has its final name, but a crash may undo that.
                self._target_sync.doubt(final)
                return True
            except StorageError as error:
                # Another process that commits the same epoch may have renamed it first.
                failure = error
        if file_system.status(final) is not None and file_system.status(staged) is None:
            return False
        if failure is not None:
            raise SinkError(
                f"Checkpoint {epoch} could not be committed to {self.describe()} ({failure}): its"
                " rows stay staged and will be committed when the job is restored. Check the"
                " directory and the access to it."
            ) from failure
        raise lost_rows(self.describe(), epoch, f"{staged} is gone")

    def _new_payload(self, frame: DataFrame, directory: str, position: Position) -> FilesPayload:
        return FilesPayload(directory=directory, position=position, flushed=False, files=[])

    def _described(self, payload: FilesPayload) -> list[PayloadFile]:
        return [
            msgspec.structs.replace(
                file, rows=self._rows(join(self._root, self._staged(payload, file)))
            )
            for file in payload.files
        ]

    def _rows(self, path: str) -> int:
        if self._format == "parquet":
            return read_footer(self._file_system, path).rows
        import pyarrow as pa

        raw = pa.BufferReader(self._file_system.read(path))
        if self._format == "orc":
            from pyarrow import orc

            return int(orc.ORCFile(raw).nrows)
        compression = _TEXT_COMPRESSIONS[self._compression]
        stream = raw if compression is None else pa.CompressedInputStream(raw, compression)
        text = stream.read()
        if self._format != "csv":
            return int(text.count(b"\n"))
        records = _QUOTED.sub(b"", text).count(b"\n")
        return records - 1 if records and self._has_header else records

    @property
    def _has_header(self) -> bool:
        return self._options.get("header", "false").lower() == "true"

    @property
    def _compression(self) -> str:
        return self._options.get("compression", self._options.get("codec", "none")).lower()

    def _check_text_options(self) -> None:
        if self._format in ("parquet", "orc"):
            return
        if refused := sorted(_TEXT_OPTIONS_REFUSED & self._options.keys()):
            raise SinkError(
                f"{self.describe()} does not support the option {refused[0]!r}: remove it."
            )
        for name in _SEPARATORS:
            if _NO_SEPARATOR.search(self._options.get(name, "")):
                raise SinkError(
                    f"{self.describe()} does not support {self._options[name]!r} as {name!r}:"
                    " choose a character that is not a quote, a backslash or a line break."
                )
        if self._compression not in _TEXT_COMPRESSIONS:
            raise SinkError(
                f"{self.describe()} does not support the compression {self._compression!r}: use"
                f" one of {sorted(_TEXT_COMPRESSIONS)}."
            )


class _LedgerEntry(msgspec.Struct, frozen=True):
    """One epoch in the ledger."""

    files: Count
    commit: Commit


def _final_name(partition: str, path: str, prefix: str, number: int, format_name: str) -> str:
    """The final path of a file that Spark has written to ``path``."""
    match = _EXTENSION.search(path.rpartition("/")[2])
    extension = match["extension"] if match else format_name
    name = f"{prefix}-{number}.{extension}"
    return f"{partition}/{name}" if partition else name


def _epochs_among(names: Iterable[str], suffix: str = "") -> list[int]:
    """All epochs after which files of these names are named, with a suffix, oldest first."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if re.fullmatch(r"[1-9][0-9]{0,17}", stem))
