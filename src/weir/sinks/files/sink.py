"""Exactly-once directories of Parquet, JSON or CSV files, for readers that know nothing of Weir.

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
walks through such directories first, so it may report that one has vanished: then read again.)
``commit`` renames each file to its final name. That name follows from the payload alone, so an
interrupted commit can be repeated: a file that is no longer staged and exists under its final name
is done. No file is renamed before all files of the epoch are known to be complete, and the epoch's
mark is durable. When all names are durable, the mark is renamed to the ledger's entry; an epoch at
or below the newest entry is never looked at again, even if readers have moved its files.

Final names carry no epoch, so only the mark tells that an epoch is shown in part. An older
checkpoint is not used in place of a damaged one whose epoch is marked: its rows would be written
again under other names (PROTOCOL P21). One file per epoch, since a late driver must not take back
the mark of a newer epoch. Directories of earlier versions have no marks.

With ``target_file_size``, small files of an epoch are merged first, into files that a plan names
(``files_merging``), as ``<job>-<sink>-<attempt>-m<epoch>-<random>-<number>``. Payloads of such a
sink have their schema, and the originals stay until no snapshot can need them any more.

A rename shows a whole file or nothing. The files of one epoch appear one after the other; a reader
that must see a whole epoch at once needs ``DeltaTable``.

Payload::

    {"directory": "0a1b2c3d-orders-1", "position": 7, "flushed": true,
     "schema": <Spark's JSON text, with target_file_size>,
     "files": [{"path": "country=US/part-0.c000.snappy.parquet", "size": 451, "rows": 3}]}
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from weir.core.types import Count, Payload
from weir.errors import LostWriteError, SinkError, SinkMismatchError, StorageError
from weir.lineage.datasets import Dataset, file_dataset
from weir.sinks.base import Commit, SinkContext
from weir.sinks.files.merging import FilesMerger, Move, Plans, epochs_among, epochs_in
from weir.sinks.merging import KEPT_S, MERGED, Added, Merging, ReplacedFiles
from weir.sinks.parquet import read_footer
from weir.sinks.staging import (
    STAGED_BY,
    FileSink,
    StagedPath,
    StagedPayload,
    SureSync,
    check_flushed,
    check_partition_names,
    check_staged,
    damage_in,
    dead_attempts,
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

Format = Literal["parquet", "json", "csv"]

#: Ledger entries kept; only the newest one is needed.
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
    ("linesep", "encoding", "charset", "quote", "escape", "escapequotes", "sep", "delimiter")
)
#: A quoted value as Spark writes it: only there may a line break be, and does a backslash escape.
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class _File(msgspec.Struct):
    path: StagedPath
    size: Count | None = None
    #: Set once flushed.
    rows: Count | None = None


class _Payload(StagedPayload, kw_only=True):
    directory: Annotated[str, msgspec.Meta(pattern=rf"\A{STAGED_BY}\Z")]
    files: list[_File]
    #: Of the files; None if the epoch has no plan.
    schema: str | None = None

    def __post_init__(self) -> None:
        if self.flushed and any(file.rows is None for file in self.files):
            raise ValueError("a flushed file has no row count")


class Files(FileSink):
    """Adds files to a directory, exactly once.

    ``path``: the directory; relative paths are made absolute at once. ``format``: what Spark
    writes. ``partition_by``: columns that become directories. ``options``: Spark's options of the
    format. ``target_file_size``: in bytes, such as ``128 << 20``, for Parquet: before a commit,
    smaller files of one partition are merged up to about this size, in a Spark job beside the
    batches. None: files stay as the batches wrote them.
    """

    _payload_type = _Payload
    _staging_below = "_weir/staged"

    def __init__(
        self,
        path: str,
        *,
        format: Format = "parquet",
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        target_file_size: int | None = None,
    ) -> None:
        self._format = format
        self._options = {key.lower(): str(value) for key, value in (options or {}).items()}
        super().__init__(path, partition_by)
        self._target_sync = SureSync()
        self._merges = target_file_size is not None
        self._merging: Merging[Added] = Merging(target_file_size, place=self.describe())
        self._replaced = ReplacedFiles()
        if format not in get_args(Format):
            raise SinkError(
                f"{self.describe()} has the unknown format {format!r}: use one of"
                f" {get_args(Format)}."
            )
        if self._merges and format != "parquet":
            raise SinkError(
                f"{self.describe()} has target_file_size, and only Parquet files are merged: remove"
                " it, or use format='parquet'."
            )
        check_partition_names(self._partition_by, "._", place=self.describe())
        self._check_text_options()

    def describe(self) -> str:
        """What and where, for messages."""
        return f"Files({self._shown_path!r}, format={self._format!r})"

    def landmark(self) -> str:
        """Where the ledgers of all jobs are."""
        return join(self._root, "_weir", "committed")

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
        self._opened = context
        self._target.check(self._file_system)
        self._file_system.make_directory(self._ledger)
        self._target.is_known_by(self._ledger)
        self._merging.forget()
        if self._merges:
            self._plans.check()

    def staged_files(self, payload: Payload) -> list[str]:
        """Where the payload's files are: those that a commit has moved, under their final names."""
        check_staged([payload], _Payload, self.describe())
        return [path for path, _ in self._look(self._moves(payload))]

    def damaged(self, payload: Payload) -> str | None:
        """The first file that is neither staged nor under its final name, or has another size."""
        check_staged([payload], _Payload, self.describe())
        return self._damaged_move(self._moves(payload))

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Mark the epoch, give its files their final names, then enter it in the ledger.

        Returns the rows of the files that this call renamed. Raises ``LostRowsError`` if a file is
        neither staged nor committed: its rows are lost.
        """
        check_flushed(payloads, _Payload, self.describe())
        moves = [move for payload in payloads for move in self._moves(payload)]
        if len({move.target for move in moves}) < len(moves):
            raise SinkMismatchError(
                f"Checkpoint {epoch} lists a file of {self.describe()} twice: use another"
                " checkpoint or savepoint."
            )
        self._target.check(self._file_system)
        self._replaced.delete(KEPT_S, self._context.file_system)
        newest = self.newest_committed()
        planned = [one for one in payloads if one.get("schema") is not None and one["files"]]
        rows = 0
        if planned and (newest is None or newest < epoch):
            rows = self._commit_planned(epoch, payloads, moves)
        elif moves and (newest is None or newest < epoch):
            if (damage := next(filter(None, map(self.damaged, payloads)), None)) is not None:
                self._target.check(self._file_system)
                raise lost_rows(self.describe(), epoch, damage)
            self._begin(epoch, len(moves))
            rows = self._commit_moves(epoch, moves)
        elif moves and self._target_sync.in_doubt:
            self._enter(epoch, len(moves))
        for payload in payloads:
            if payload not in planned:
                self._delete_batch(payload)
        self._replaced.add(self._staged_in(planned), [], self._context)
        return rows

    def close(self) -> None:
        """Delete the staged files whose rows were committed in others."""
        self._replaced.delete(0.0, self._context.file_system)

    def newest_committed(self) -> int | None:
        """The newest epoch in the ledger (PROTOCOL P21)."""
        return max(self._ledger_epochs(), default=None)

    def newest_begun(self) -> int | None:
        """The newest epoch that has a plan or a mark, or is in the ledger: files may be shown."""
        names = [entry.name for entry in self._file_system.list(self._ledger)]
        known = [epoch for suffix in ("", _BEGUN) for epoch in epochs_among(names, suffix)]
        return max([*self._plans.epochs(), *known], default=None)

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

    def clean(self, attempt: int) -> None:
        """Delete the staging directories of dead attempts (PROTOCOL P22)."""
        base = join(self._root, self._staging_below)
        for directory in dead_attempts(self._file_system, base, self._attempts_prefix, attempt):
            self._file_system.delete(join(base, directory))

    def _commit_planned(self, epoch: int, payloads: Sequence[Payload], moves: list[Move]) -> int:
        """Commit what the epoch's plan has, which is made of the payloads if there is none."""
        plan = self._plans.read(epoch)
        if plan is None:
            if (damage := next(filter(None, map(self.damaged, payloads)), None)) is not None:
                self._target.check(self._file_system)
                raise lost_rows(self.describe(), epoch, damage)
            plan = self._plans.settled(epoch, self._merged(epoch, payloads, moves))
            if (newest := self.newest_committed()) is not None and newest >= epoch:
                # Another driver has committed the epoch meanwhile, and deleted its plan.
                self._plans.forget(epoch)
                return 0
        if (damage := self._damaged_move(plan)) is not None:
            self._target.check(self._file_system)
            raise lost_rows(self.describe(), epoch, damage)
        rows = self._commit_moves(epoch, plan)
        self._plans.forget(epoch)
        # Those of batches are deleted with what else they have.
        for merged in dict.fromkeys(filter(None, (_merged_in(move.source) for move in plan))):
            self._file_system.delete(join(self._root, merged))
        return rows

    def _merged(self, epoch: int, payloads: Sequence[Payload], moves: list[Move]) -> list[Move]:
        """The moves of the epoch, with merged files in place of small ones."""
        staged = self._staged_in(payloads)
        files = self._merging.files(
            epoch,
            staged,
            FilesMerger(self._context.file_system, self._options),
            self._context,
            root=join(self._root, self._staging_below),
            attempts=self._attempts_prefix,
        )
        paths, before = {one.path for one in files}, {one.path for one in staged}
        gone = {f"{self._staging_below}/{path}" for path in before - paths}
        new = [one for one in files if one.path not in before]
        found = [move for move in moves if move.source not in gone]
        for number, file in enumerate(new):
            # <attempt>/m<epoch>-<random>/..
            prefix = "-".join(file.path.split("/", 2)[:2])
            target = _final_name(str(file.partition), file.path, prefix, number, self._format)
            found.append(
                Move(
                    source=f"{self._staging_below}/{file.path}",
                    target=target,
                    size=file.file["size"],
                    rows=file.file["rows"],
                )
            )
        return found

    def _staged_in(self, payloads: Sequence[Payload]) -> list[Added]:
        """The files that may be merged."""
        return [
            Added(
                root=join(self._root, self._staging_below),
                path=f"{payload['directory']}/{payload['position']}/{file['path']}",
                file=file,
                layout=payload["schema"],
                partition=file["path"].rpartition("/")[0],
            )
            for payload in payloads
            if payload.get("schema") is not None
            for file in payload["files"]
        ]

    def _damaged_move(self, moves: Sequence[Move]) -> str | None:
        """The first file that has neither name, or another size."""
        looks = zip(self._look(moves), moves, strict=True)
        return damage_in((path, move.size, found) for (path, found), move in looks)

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

        A mark that exists is replaced: whoever made it may have died before it was durable.
        """
        data = msgspec.json.encode(self._entry(epoch, count))
        self._file_system.write(join(self._ledger, f"{epoch}{_BEGUN}"), data)

    def _enter(self, epoch: int, count: int) -> None:
        """Enter the epoch in the ledger, durably: its mark becomes the entry."""
        mark, entry = (join(self._ledger, f"{epoch}{suffix}") for suffix in (_BEGUN, ""))
        try:
            self._file_system.rename(mark, entry)
        except StorageError:
            # There is none: the epoch has a plan, or another driver has entered it. Or the entry's
            # name may not last, and is made anew.
            data = msgspec.json.encode(self._entry(epoch, count))
            self._target_sync.write(self._file_system, entry, data)
        names = [one.name for one in self._file_system.list(self._ledger)]
        for old in epochs_among(names)[:-_LEDGER_ENTRIES_KEPT]:
            self._file_system.delete(join(self._ledger, str(old)))
        for old in epochs_among(names, _BEGUN):
            if old <= epoch:
                self._file_system.delete(join(self._ledger, f"{old}{_BEGUN}"))

    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> None:
        write_frame(
            frame,
            self._file_system,
            path,
            format_name=self._format,
            partition_by=self._partition_by,
            options=self._options,
            written=written,
        )

    def _check_rows(self, frame: DataFrame) -> dict[str, Any]:
        if not self._merges:
            return {}
        schema = json.loads(frame.schema.json())
        names = [one["name"] for one in schema["fields"]]
        partitions = {_found_as(name, names) for name in self._partition_by}
        fields = [one for one in schema["fields"] if one["name"] not in partitions]
        return {"schema": json.dumps({**schema, "fields": fields})}

    @property
    def _ledger_name(self) -> str:
        # The whole job id: two jobs that shared a ledger would lose rows.
        return f"{self._context.job_id}-{slug(self._context.sink)}"

    @property
    def _ledger(self) -> str:
        return join(self.landmark(), self._ledger_name)

    @property
    def _plans(self) -> Plans:
        return Plans(self._file_system, self._root, self._ledger_name, place=self.describe())

    def _ledger_epochs(self) -> list[int]:
        """All epochs in the ledger, oldest first."""
        return epochs_in(self._file_system, self._ledger)

    def _entry(self, epoch: int, files: int) -> _LedgerEntry:
        context = self._context
        commit = Commit(
            timestamp_ms=time.time_ns() // 1_000_000,
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
        entry, mark = (max(epochs_among(names, one), default=0) for one in ("", _BEGUN))
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

    def _moves(self, payload: Payload) -> list[Move]:
        """From where each file is staged to its final name."""
        # Named after the attempt that staged it, not after the epoch: the file has one final name,
        # whichever commit moves it.
        prefix = f"{payload['directory']}-{payload['position']}"
        moves = []
        for number, file in enumerate(payload["files"]):
            path = file["path"]
            partition = path.rpartition("/")[0]
            target = _final_name(partition, path, prefix, number, self._format)
            source, size, rows = self._staged(payload, file), file.get("size"), file.get("rows", 0)
            moves.append(Move(source=source, target=target, size=size, rows=rows))
        return moves

    def _look(self, moves: Sequence[Move]) -> list[tuple[str, FileStatus | None]]:
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

    def _completed(self, payload: Payload) -> Payload:
        """The payload with the row count of each file, and without files without rows."""
        counted = [
            {**file, "rows": self._rows(join(self._root, self._staged(payload, file)))}
            for file in payload["files"]
        ]
        return {**payload, "files": [file for file in counted if file["rows"]], "flushed": True}

    def _rows(self, path: str) -> int:
        if self._format == "parquet":
            return read_footer(self._file_system, path).rows
        import pyarrow as pa

        raw = pa.BufferReader(self._file_system.read(path))
        compression = _TEXT_COMPRESSIONS[self._compression]
        stream = raw if compression is None else pa.CompressedInputStream(raw, compression)
        text = stream.read()
        if self._format == "json":
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
        if self._format == "parquet":
            return
        if refused := sorted(_TEXT_OPTIONS_REFUSED & self._options.keys()):
            raise SinkError(
                f"{self.describe()} does not support the option {refused[0]!r}: remove it."
            )
        if self._compression not in _TEXT_COMPRESSIONS:
            raise SinkError(
                f"{self.describe()} does not support the compression {self._compression!r}: use"
                f" one of {sorted(_TEXT_COMPRESSIONS)}."
            )


def _merged_in(source: str) -> str | None:
    """The directory of merged files in which a source lies; None if a batch has staged it."""
    # _weir/staged/<attempt>/m<epoch>-<random>/..
    parts = source.split("/")
    return "/".join(parts[:4]) if len(parts) > 4 and MERGED.fullmatch(parts[3]) else None


def _found_as(name: str, columns: Sequence[str]) -> str:
    """The column that Spark takes for this one: by its case, or else whatever its case."""
    if name in columns:
        return name
    return next((one for one in columns if one.lower() == name.lower()), name)


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
