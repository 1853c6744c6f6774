"""Staging for sinks: names, paths, and how Spark writes for a sink.

A staged file must be identifiable by its path alone, because the process that cleans up may know
nothing else (PROTOCOL P22). So each batch gets its own directory, named after job, sink, attempt
and position::

    <somewhere>/<job id[:8]>-<sink's slug>-<attempt>/<position>/[country=US/]part-....parquet

Spark writes it with version 1 of Hadoop's file output committer, which moves a file there only when
its Spark task has succeeded. Once the write has returned, the files in the directory therefore hold
exactly the rows of the batch, and no second Spark job is needed to learn what was written. If the
task has already written the same rows for downstream tasks, those files are linked into the
directory and Spark writes nothing.

This module imports no pyspark: it only calls methods of the frame that it is given.

A savepoint carries the staged files that the sink names (``Sink.staged_files``). The snapshot links
or copies them. A restore writes them again before it commits under the origin's transaction ids,
since a file that is already there may be a file whose sync failed. A checkpoint carries no staged
files, since they outlive it. A checkpoint restored at other targets is refused: its files are not
there.
"""

from __future__ import annotations

import abc
import hashlib
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from weir.core.types import Count, Payload, Position
from weir.errors import (
    InvariantError,
    LostRowsError,
    LostWriteError,
    SinkError,
    SinkMismatchError,
    StorageError,
)
from weir.sinks.base import Batch, Sink, SinkContext, gone_back
from weir.sinks.ddl import check_names
from weir.storage.filesystem import FileStatus, FileSystem
from weir.storage.paths import (
    as_delta_path,
    as_spark_path,
    is_local,
    is_object_store,
    join,
    name_of,
    normalize,
    real,
)
from weir.storage.records import converted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The name of the partition directory in which Spark, like Hive, puts nulls (and empty strings).
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    # A batch that Spark runs again replaces what its first run staged, in every partition.
    "partitionOverwriteMode": "static",
}
_SLUG_MAX_CHARACTERS = 40
#: Longest name of a file or directory on common file systems, in bytes.
_NAME_BYTES = 255
#: How many files of a remote file system are looked up in parallel.
_LOOKS_MAX = 16
#: How often a commit that meets conflicts is tried before it raises; it is then repeated later.
_COMMIT_TRIES = 5

S = TypeVar("S", bound="StagedPayload")
P = TypeVar("P", bound="FilePayload")
T = TypeVar("T")
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\x00]+"
#: A staged file's path below its batch's directory. Partition values may contain any character that
#: rows do.
STAGED_PATH = re.compile(rf"\A{_PART}(?:/{_PART})*\Z")
StagedPath: TypeAlias = Annotated[str, Meta(pattern=STAGED_PATH.pattern)]
#: The end of an attempt's directory name (``staging_prefix`` and the attempt).
STAGED_BY = r"[0-9a-zA-Z]{1,8}-[A-Za-z0-9_-]+-[0-9]+"


class StagedPayload(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a sink stores in checkpoints of a batch that it has staged."""

    position: Position
    flushed: bool


class PayloadFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file in a payload."""

    #: Relative to the batch's directory.
    path: StagedPath
    #: Bytes; None if an earlier version did not record it.
    size: Count | None = None
    #: Set once flushed.
    rows: Count | None = None


class FilePayload(StagedPayload, kw_only=True):
    """The payload of a sink that stages files; a subclass says more of them."""

    #: Of the attempt.
    directory: Annotated[str, Meta(pattern=rf"\A(?:weir-)?{STAGED_BY}\Z")]
    files: Sequence[PayloadFile]
    #: The newest epoch with rows that was committed when the payload was flushed; 0 if there was
    #: none, or if an earlier version did not record it.
    after: Count = 0


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """One file below a batch's directory."""

    #: Relative to the batch's directory, as the file system spells it.
    path: str
    #: Bytes.
    size: int


def staging_prefix(context: SinkContext) -> str:
    """``<job id[:8]>-<slug>``: the prefix of all staging directories of one sink of one job."""
    return f"{context.job_id[:8]}-{slug(context.sink)}"


def slug(sink: str) -> str:
    """A sink's name as part of a file name; if it had to change, with a digest of the full name."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", sink)[:_SLUG_MAX_CHARACTERS]
    if plain == sink:
        return plain
    return f"{plain}-{hashlib.sha256(sink.encode()).hexdigest()[:8]}"


def encoded(payload: StagedPayload) -> Payload:
    """A payload as JSON values."""
    fields: Payload = msgspec.json.decode(msgspec.json.encode(payload))
    return fields


def decode_staged(payloads: Iterable[Payload], kind: type[S], place: str) -> list[S]:
    """Decode payloads, which may come from a checkpoint that somebody else wrote.

    Raises ``SinkMismatchError`` for a payload that is not of this kind.
    """
    try:
        return [converted(payload, kind) for payload in payloads]
    except ValueError as error:
        raise SinkMismatchError(
            f"{place} cannot commit what the checkpoint records as staged ({error}); no file"
            " was changed. Restore from another checkpoint or savepoint."
        ) from error


def decode_flushed(payloads: Iterable[Payload], kind: type[S], place: str) -> list[S]:
    """Like ``decode_staged``, for payloads to be committed: they must also be flushed."""
    decoded = decode_staged(payloads, kind, place)
    if not all(payload.flushed for payload in decoded):
        raise SinkMismatchError(
            f"{place} cannot commit what was never flushed: use another checkpoint or savepoint."
        )
    return decoded


def check_evolution(given: str | None, place: str) -> None:
    """Raise ``SinkError`` for an unknown ``schema_evolution``."""
    if given not in (None, "add"):
        raise SinkError(f"{place} has schema_evolution={given!r}: use 'add', or None.")


def dead_attempts(file_system: FileSystem, base: str, prefix: str, attempt: int) -> list[str]:
    """Names of the directories ``<prefix>-<number>`` in ``base``, number below ``attempt``."""
    pattern = re.compile(re.escape(prefix) + r"-(\d+)")
    return [
        entry.name
        for entry in file_system.list(base)
        if entry.is_directory
        and (match := pattern.fullmatch(entry.name))
        and int(match[1]) < attempt
    ]


def write_frame(
    frame: DataFrame,
    file_system: FileSystem,
    directory: str,
    *,
    format_name: str,
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    written: Sequence[str] = (),
) -> list[StagedFile]:
    """Write all rows of the frame into a directory, in one Spark job (see the module's docstring).

    Return the files there. ``written`` are Parquet files that already hold exactly these rows, if
    there are any: if plain local Parquet is asked for, they are linked or copied and no job runs.
    The directory's previous content is deleted: a repeated batch replaces what it staged. Raises
    ``LostWriteError`` if executors have written, and no file is there.
    """
    file_system.delete(directory)
    plain = format_name == "parquet" and not partition_by and not options
    if written and plain and all(map(is_local, (directory, *written))):
        file_system.make_directory(directory)
        for file in written:
            file_system.link_or_copy(file, join(directory, name_of(file)))
        return visible_files(file_system, directory)
    writer = (
        frame.write.format(format_name)
        .mode("append")
        .options(**{**(options or {}), **_WRITE_OPTIONS})
    )
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        writer.save(as_spark_path(directory))
    except Exception as error:
        long = next(filter(is_long_name, re.findall(r"/([^/=\s]+=[^/\s]*)", str(error))), None)
        if long is None:
            raise
        column, _, value = long.partition("=")
        raise long_value(column, value) from error
    files = visible_files(file_system, directory)
    # Spark writes a frame without rows as a file, too.
    if not files and format_name == "parquet" and not partition_by:
        raise LostWriteError(
            f"Executors have written to {directory}, but the driver sees no file there: it is"
            " another disk where they run, or somebody has deleted the files. The driver and all"
            " executors must share the directory: use a mount that all have, or hdfs: or s3a:."
        )
    return files


def is_long_name(name: str) -> bool:
    """Whether a name is too long for a file or directory on common file systems."""
    return len(name.encode()) > _NAME_BYTES


def long_value(column: str, value: str) -> SinkError:
    """The refusal of a partition column's value that makes too long a name."""
    return SinkError(
        f"A value of the partition column {column!r} starts with {value[:40]!r} and is too long for"
        " the name of a directory: shorten it before the sink, or do not partition by it."
    )


def visible_files(file_system: FileSystem, directory: str) -> list[StagedFile]:
    """All files below a directory, in path order, without the hidden files of Spark and Hadoop."""
    return [
        StagedFile(path=path, size=status.size)
        for path, status in _walk(file_system, directory, "")
        if not any(is_hidden(name) for name in path.split("/"))
    ]


def is_hidden(name: str) -> bool:
    """Whether readers ignore a file or directory of this name (they read a partition ``_a=1``)."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def check_partition_names(columns: Sequence[str], hidden: str, *, place: str) -> None:
    """Raise ``SinkError`` for a partition column that starts with a character in ``hidden``.

    Readers skip such directories, and with them the rows.
    """
    for column in columns:
        if column.startswith(tuple(hidden)):
            raise SinkError(
                f"{place} is partitioned by {column!r}, and readers skip directories whose name"
                f" starts with {column[0]!r}, so its rows would be lost: rename the column."
            )


def partition_values(path: str) -> dict[str, str | None]:
    """The values in the ``column=value`` directories of a path; None for a null."""
    values: dict[str, str | None] = {}
    for name in path.split("/")[:-1]:
        column, equals, value = name.partition("=")
        if equals:
            values[unquote(column)] = None if value == NULL_PARTITION else unquote(value)
    return values


def sync_below(file_system: FileSystem, root: str, paths: Iterable[str]) -> None:
    """Sync files, given relative to ``root``, and every directory up to ``root`` (PROTOCOL P23).

    A machine crash loses a file whose entry in its directory, or whose directory's own entry, is
    not on disk.
    """
    entries: set[str] = set()
    for path in paths:
        names = path.split("/")
        entries.update("/".join(names[: count + 1]) for count in range(len(names)))
    if entries:
        # Deepest paths first: an entry is made durable after the file or directory that it names.
        ordered = sorted(entries, key=lambda entry: (-entry.count("/"), entry))
        file_system.sync([*(join(root, entry) for entry in ordered), root])


class SureSync:
    """Syncs what a commit wrote at a sink's target, and remembers files whose sync failed.

    The system reports a lost write once, and the next sync succeeds without the data
    (PROTOCOL P23). But a commit is repeated over the same names and finds its work done. So files
    whose sync failed are rewritten with the content that they have.
    """

    def __init__(self) -> None:
        self._doubtful: set[str] = set()

    @property
    def in_doubt(self) -> bool:
        """Whether a crash may lose something that exists."""
        return bool(self._doubtful)

    def doubt(self, path: str) -> None:
        """Record that a sync of this file, or of its name, failed."""
        self._doubtful.add(path)

    def sync_below(self, file_system: FileSystem, root: str, paths: Sequence[str]) -> None:
        """Like the function ``sync_below``, after rewriting files in doubt.

        Raises ``LostWriteError``; the next call with these paths rewrites them.
        """
        full = [join(root, path) for path in paths]
        for path in self._doubtful.intersection(full):
            with suppress(FileNotFoundError):  # the target's owner may have deleted it since
                file_system.write(path, file_system.read(path))
            self._doubtful.discard(path)
        try:
            sync_below(file_system, root, paths)
        except LostWriteError:
            self._doubtful.update(full)
            raise

    def write(self, file_system: FileSystem, path: str, data: bytes) -> None:
        """Write a file; it is in doubt until that has succeeded."""
        self._doubtful.add(path)
        file_system.write(path, data)
        self._doubtful.discard(path)


def statuses(file_system: FileSystem, paths: Sequence[str]) -> list[FileStatus | None]:
    """What is at each path. Remote paths are looked up in parallel."""
    if not paths or is_local(paths[0]):
        return [file_system.status(path) for path in paths]
    looks: list[Future[list[FileStatus | None]]] = []
    for first in range(min(_LOOKS_MAX, len(paths))):
        looks.append(Future())
        # Daemon threads: a look-up that hangs does not keep the process from exiting.
        look = partial(_look, file_system, paths[first::_LOOKS_MAX], looks[-1])
        threading.Thread(target=look, name="weir-look", daemon=True).start()
    found: list[FileStatus | None] = [None] * len(paths)
    for first, result in enumerate(looks):
        found[first::_LOOKS_MAX] = result.result()
    return found


def _look(
    file_system: FileSystem, paths: Sequence[str], seen: Future[list[FileStatus | None]]
) -> None:
    try:
        seen.set_result([file_system.status(path) for path in paths])
    except BaseException as error:
        seen.set_exception(error)


def damaged_file(file_system: FileSystem, sizes: Mapping[str, int | None]) -> str | None:
    """The first file that is gone or has another size, in words; None if all are intact.

    A size of None matches any.
    """
    found = statuses(file_system, list(sizes))
    return damage_in(zip(sizes, sizes.values(), found, strict=True))


def damage_in(looks: Iterable[tuple[str, int | None, FileStatus | None]]) -> str | None:
    """Like ``damaged_file``, of paths with the sizes that they should have and what is there."""
    for path, size, found in looks:
        if found is None:
            return f"{path} is gone"
        if size is not None and found.size != size:
            return f"{path} has {found.size} bytes instead of {size}"
    return None


class Target:
    """Where a sink writes. Once this process has found it, it is never made again.

    While its volume is not mounted, rows would be written, and committed, where no reader finds
    them.
    """

    def __init__(self, place: str) -> None:
        """``place`` is the sink, for messages."""
        self._place = place
        self._known: str | None = None

    def is_known_by(self, directory: str) -> None:
        """Record a directory of the target that exists and is never removed."""
        self._known = directory

    def check(self, file_system: FileSystem) -> None:
        """Raise ``StorageError`` if the known directory is gone.

        On a local file system only: a remote store itself raises when it is away.
        """
        if (
            self._known is not None
            and is_local(self._known)
            and file_system.status(self._known) is None
        ):
            raise StorageError(
                f"{self._place} is gone: {self._known} no longer exists. Check that its volume is"
                " mounted; the job continues once it is back."
            )


def lost_rows(place: str, epoch: int, damage: str) -> LostRowsError:
    """The error of a sink whose commit cannot be completed."""
    return LostRowsError(
        f"Checkpoint {epoch} cannot be committed to {place}, since {damage}: none of its rows are"
        " visible there, and the job cannot continue without them. Restore the file and run the"
        " job again, or start from a savepoint, which has a copy of such files, or from an older"
        " snapshot with --from-savepoint PATH --accept-duplicates."
    )


def _walk(file_system: FileSystem, directory: str, prefix: str) -> Iterator[tuple[str, FileStatus]]:
    for entry in file_system.list(directory):
        if entry.is_directory:
            yield from _walk(file_system, join(directory, entry.name), f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


class ConflictError(Exception):
    """A commit met another commit, or may have landed: look at the target again."""


class FileSink(Sink, Generic[P, T]):
    """A sink that stages files below its root; a subclass says how they are committed.

    A batch's payload is ``{"directory": <of the attempt>, "position": 7, "flushed": true,
    "after": 12, "files": [{"path": ..., "size": ...}]}``, with what the subclass adds. ``T`` is the
    target as a commit finds it.
    """

    compares = True

    #: What payloads, and the files in them, are.
    _payload_type: type[P]
    _file_type: ClassVar[type[PayloadFile]] = PayloadFile
    #: Where the attempts' directories are, relative to the root, and how their names begin.
    _staging_below: ClassVar[str] = ""
    _staging_prefix: ClassVar[str] = ""
    #: Whether committed files stay where they were staged.
    _files_stay: ClassVar[bool] = True

    def __init__(self, path: str | None, partition_by: Sequence[str]) -> None:
        """``path``: the root; None if the subclass sets ``_root`` before anything is staged."""
        self._shown_path = path or ""
        self._root = "" if path is None else normalize(path)
        self._partition_by = tuple(partition_by)
        check_names(self._partition_by, place=self.describe())
        self._opened: SinkContext | None = None
        self._target = Target(self.describe())
        #: The newest epoch with rows that is known to be committed at the target; 0 if none is.
        self._newest = 0

    def files_at(self) -> str | None:
        """The root, as Spark gets it: rows are staged there, wherever they go then."""
        return self._root or None

    def _real_root(self) -> str:
        """The root in the words of readers, whatever links lead to it."""
        return real(as_delta_path(self._root))

    def stage(self, frame: DataFrame, batch: Batch) -> Payload | None:
        """Write the batch's rows below the root, in one Spark job.

        None if there are no rows. Raises ``SinkError`` before any row is written if the columns
        do not fit.
        """
        fs = self._file_system
        self._target.check(fs)
        directory = f"{self._attempts_prefix}-{self._context.attempt}"
        payload = self._new_payload(frame, directory, batch.batch_id)
        if batch.files == ():
            return None
        path = join(self._root, self._batch(payload))
        try:
            found = self._write(frame, path, batch.files or ())
        finally:
            # Raises if the volume went away meanwhile: some of the files may be elsewhere.
            self._target.check(fs)
        self._check_written(payload, [file.path for file in found])
        payload.files = [self._file_type(path=file.path, size=file.size) for file in found]
        if not payload.files:
            # Without a payload nobody would delete the directory.
            fs.delete(path)
            return None
        return encoded(payload)

    def flush(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Sync the staged files and read what a commit needs, once per payload (PROTOCOL P23)."""
        staged = decode_staged(payloads, self._payload_type, self.describe())
        self._target.check(self._file_system)
        self._sync([payload for payload in staged if not payload.flushed])
        return [
            given if payload.flushed else encoded(self._completed(payload))
            for given, payload in zip(payloads, staged, strict=True)
        ]

    def commit(self, epoch: int, payloads: Sequence[Payload]) -> int:
        """Make the epoch's files visible, once; return the rows made visible by this call.

        That is 0 if the epoch was committed before or has no rows. Raises ``LostRowsError`` if a
        file or the target's newer state is gone, ``SinkMismatchError`` if the target takes the
        rows no longer, and ``SinkError`` if it refuses them; calling again is safe.
        """
        flushed = self._decode_flushed(payloads)
        filled = [payload for payload in flushed if payload.files]
        rows = self._commit_filled(epoch, filled) if filled else 0
        for payload in flushed:
            if self._root and not (payload.files and self._files_stay):
                self._delete_batch(payload)
        return rows

    def _commit_filled(self, epoch: int, payloads: Sequence[P]) -> int:
        """The order of the steps of every commit."""
        conflict: ConflictError | None = None
        for _ in range(_COMMIT_TRIES):
            if self._root:
                self._target.check(self._file_system)
            target, committed = self._look(payloads)
            self._compare(target, committed, payloads)
            if committed >= epoch:
                self._secure(target, epoch, payloads)
                # Not ``committed``: a crash may undo what is not made durable here, and payloads
                # carry the epoch to later attempts.
                self._newest = max(self._newest, epoch)
                return 0
            if (damage := next(filter(None, map(self._damage, payloads)), None)) is not None:
                self._target.check(self._file_system)
                if not self._is_committed(epoch, payloads):
                    raise lost_rows(self.describe(), epoch, damage)
                # Another driver has committed the epoch meanwhile, and cleaned up.
                continue
            try:
                rows = self._add(target, epoch, payloads)
                self._newest = max(self._newest, epoch)
                return rows
            except ConflictError as error:
                # Another driver may have committed the epoch, or created the table: look again.
                conflict = error
        raise SinkError(
            f"Checkpoint {epoch} could not be committed to {self.describe()} ({conflict}): its rows"
            " stay staged, and the commit is repeated. Check the target, the access to it, and what"
            " else writes to it."
        ) from conflict

    def clean(self, attempt: int) -> None:
        """Delete what dead attempts staged and nobody committed (PROTOCOL P22)."""
        if not self._root:
            return
        below = join(self._root, self._staging_below)
        dead = dead_attempts(self._file_system, below, self._attempts_prefix, attempt)
        # Otherwise the target is not even looked at.
        for directory, is_left_over in self._left_over(dead) if dead else ():
            self._clean_attempt(join(below, directory), is_left_over)

    def staged_files(self, payload: Payload) -> list[str]:
        """Where the payload's files are, before and after their commit."""
        (flushed,) = self._decode_flushed([payload])
        return self._paths(flushed)

    def damaged(self, payload: Payload) -> str | None:
        """The first file that is gone or has another size."""
        (staged,) = decode_staged([payload], self._payload_type, self.describe())
        return self._damage(staged)

    def _names_found(self, context: SinkContext) -> list[str]:
        """Begin a run: the names in the target's directory; none if it does not exist.

        Raises ``SinkError`` if it is a file, or in a store that Spark does not write to.
        """
        if is_object_store(self._root):
            raise SinkError(
                f"{self.describe()} is written by Spark, which reaches S3 through Hadoop's client"
                " only: use s3a://BUCKET/PATH."
            )
        self._begin_run()
        file_system = context.file_system(self._root)
        status = file_system.status(self._root)
        if status is not None and not status.is_directory:
            raise SinkError(f"{self.describe()} is a file: choose a directory.")
        return [entry.name for entry in file_system.list(self._root)]

    def _begin_run(self) -> None:
        """Forget what a previous run in the same process knew, which may have been deleted."""
        self._target = Target(self.describe())
        self._opened, self._newest = None, 0

    def _begin_attempt(self, context: SinkContext) -> None:
        """What an earlier attempt has committed must still be there when this attempt commits."""
        if self._opened is not None and self._opened.job_id != context.job_id:
            self._newest = 0
        self._opened, self._newest = context, max(self._newest, context.newest)

    def _compare(self, target: T, committed: int, payloads: Sequence[P]) -> None:
        """Raise ``LostRowsError`` if the target has gone back."""
        known = self._newest
        if not self._context.may_have_gone_back:
            staged = [each.after for each in payloads if self._is_for(target, committed, each)]
            known = max([known, *staged])
        if committed < known:
            raise gone_back(self.describe(), known, committed)

    def _is_for(self, target: T, committed: int, payload: P) -> bool:
        """Whether a payload was staged for this target, and not for one that had other commits.

        A savepoint may be restored into another directory, which has none.
        """
        del target, payload
        return committed > 0 or self._newest > 0

    def _decode_flushed(self, payloads: Sequence[Payload]) -> list[P]:
        """Raises ``SinkMismatchError`` unless all payloads can be committed."""
        return decode_flushed(payloads, self._payload_type, self.describe())

    def _sync(self, payloads: Sequence[P]) -> None:
        """Make the files of staged payloads durable, where they are."""
        files: defaultdict[str, list[str]] = defaultdict(list)
        for payload in payloads:
            names = [self._staged(payload, file) for file in payload.files]
            files[self._root_of(payload)] += names
        for root, below in files.items():
            sync_below(self._context.file_system(root), root, below)

    def _completed(self, payload: P) -> P:
        """The payload, flushed, without files that have no rows."""
        files = [file for file in self._described(payload) if file.rows]
        return msgspec.structs.replace(payload, files=files, flushed=True, after=self._newest)

    def _root_of(self, payload: P) -> str:
        """The directory below which the payload's files are staged."""
        del payload
        return self._root

    def _paths(self, payload: P) -> list[str]:
        """Where the payload's files are."""
        root = self._root_of(payload)
        return [join(root, self._staged(payload, file)) for file in payload.files]

    def _damage(self, payload: P) -> str | None:
        """The first file that is gone or has another size, in words; None if all are intact."""
        file_system = self._context.file_system(self._root_of(payload))
        sizes = [file.size for file in payload.files]
        return damaged_file(file_system, dict(zip(self._paths(payload), sizes, strict=True)))

    def _is_committed(self, epoch: int, payloads: Sequence[P]) -> bool:
        _, committed = self._look(payloads)
        return committed >= epoch

    def _clean_attempt(self, directory: str, is_left_over: Callable[[str], bool]) -> None:
        """Delete what a dead attempt has left over, and its directory if that empties it.

        In what stays, only Spark's hidden files are deleted.
        """
        file_system, stays = self._file_system, False
        for batch in file_system.list(directory):
            path = join(directory, batch.name)
            if is_left_over(batch.name):
                file_system.delete(path)
                continue
            stays = True
            for entry in file_system.list(path) if batch.is_directory else ():
                if is_hidden(entry.name):
                    file_system.delete(join(path, entry.name))
        if not stays:
            file_system.delete(directory)

    @abc.abstractmethod
    def _new_payload(self, frame: DataFrame, directory: str, position: Position) -> P:
        """A payload without files. Raises ``SinkError`` if the rows do not fit."""

    @abc.abstractmethod
    def _look(self, payloads: Sequence[P]) -> tuple[T, int]:
        """The target as it is now, and the newest epoch committed there; 0 if there is none."""

    def _secure(self, target: T, epoch: int, payloads: Sequence[P]) -> None:
        """Make a committed epoch durable: the driver that committed it may have died too soon."""

    @abc.abstractmethod
    def _add(self, target: T, epoch: int, payloads: Sequence[P]) -> int:
        """Make all rows of the payloads visible, durably; return their number.

        Raises ``ConflictError`` if the target is to be looked at again.
        """

    @abc.abstractmethod
    def _left_over(self, dead: Sequence[str]) -> Iterator[tuple[str, Callable[[str], bool]]]:
        """The dead attempts' directories, and what decides whether a batch there may be deleted.

        That is so if nobody has committed it, or ever will.
        """

    def _check_written(self, payload: P, paths: Sequence[str]) -> None:
        """Raise ``SinkError`` for values in a batch's files that the target could not show."""
        del payload, paths

    @abc.abstractmethod
    def _write(self, frame: DataFrame, path: str, written: Sequence[str]) -> list[StagedFile]:
        """Call ``write_frame``."""

    @abc.abstractmethod
    def _described(self, payload: P) -> Sequence[PayloadFile]:
        """The payload's files with what a commit needs to know of them."""

    @property
    def _context(self) -> SinkContext:
        if self._opened is None:
            raise InvariantError(f"{self.describe()} was used before it was opened")
        return self._opened

    @property
    def _file_system(self) -> FileSystem:
        return self._context.file_system(self._root)

    @property
    def _attempts_prefix(self) -> str:
        """How the names of all attempts' directories of this sink and job begin."""
        return self._staging_prefix + staging_prefix(self._context)

    def _batch(self, payload: P) -> str:
        """A batch's directory relative to the root."""
        below = f"{self._staging_below}/" if self._staging_below else ""
        return f"{below}{payload.directory}/{payload.position}"

    def _staged(self, payload: P, file: PayloadFile) -> str:
        """A staged file's path relative to the root."""
        return f"{self._batch(payload)}/{file.path}"

    def _delete_batch(self, payload: P) -> None:
        self._file_system.delete(join(self._root, self._batch(payload)))
