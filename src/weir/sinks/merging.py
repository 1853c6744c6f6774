"""Merges small staged files before their commit, so that readers open few large ones.

Nobody sees staged files, so merging conflicts with nothing, unlike compaction afterwards. Spark
does it, in one job beside the batches: each group of files is one Spark task, on any executor.

A sink says by ``Merger`` how its files are read, written and described. Merged files lie in
``<attempt's directory>/m<epoch>-<random>/``, whose name says for which epoch they were made. The
originals stay until no snapshot can need them any more (``ReplacedFiles``).
"""

from __future__ import annotations

import abc
import logging
import re
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Generic, TypeVar

from weir.errors import InvariantError, SinkError, StorageError
from weir.sinks.base import SinkContext
from weir.sinks.staging import (
    PayloadFile,
    StagedFile,
    damaged_file,
    sync_below,
    write_frame,
)
from weir.storage.filesystem import FileSystem
from weir.storage.paths import READ_EACH, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: For how long the originals of merged files are kept, in seconds, since a snapshot that was taken
#: before the commit may still need them: the time-out of a checkpoint.
KEPT_S = 600.0
#: A directory of merged files.
MERGED = re.compile(r"m([1-9][0-9]{0,17})-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class Added:
    """A file that a commit adds."""

    #: The directory below which it lies, and the path below that.
    root: str
    path: str
    #: What is known of it.
    file: PayloadFile
    #: What decides how it is read and written: its columns, in the sink's words.
    layout: str
    #: Of files with different partitions, no rows may be in one file.
    partition: Hashable

    @property
    def full_path(self) -> str:
        """Where it is."""
        return join(self.root, self.path)

    @property
    def batch(self) -> str:
        """Where the files of its batch are, or those that were merged for its epoch."""
        # <attempt>/<position>
        return join(self.root, *self.path.split("/", 2)[:2])


A = TypeVar("A", bound=Added)


@dataclass(frozen=True, kw_only=True)
class Merged(Generic[A]):
    """The files of an epoch once small ones are merged."""

    epoch: int
    files: list[A]
    #: The staged files that nobody needs once the others are committed; also some of ``files``.
    originals: list[A]


class Merger(abc.ABC, Generic[A]):
    """How the files of a sink are read, written and described."""

    @abc.abstractmethod
    def columns(self, layout: str) -> str:
        """The columns of files of a layout, as Spark's DDL."""

    @abc.abstractmethod
    def added(self, like: A, root: str, path: str, size: int) -> A:
        """A new file, whose rows are those of ``like`` and others of its layout and partition."""

    def replaceable(self, staged: list[A]) -> list[A]:
        """The staged files that may be deleted once others with their rows are committed."""
        return staged

    def shaped(self, frame: DataFrame, layout: str, column: str) -> DataFrame:
        """The rows as they are written; ``column`` is not in the layout, and stays."""
        del layout, column
        return frame


class Merging(Generic[A]):
    """Merges the files of a sink's epochs, each once."""

    def __init__(self, target_size: int | None, *, place: str) -> None:
        """``target_size`` in bytes; None: nothing is merged. ``place`` is the sink, for messages.

        Raises ``SinkError`` for a size that is not above 0.
        """
        if target_size is not None and target_size <= 0:
            raise SinkError(
                f"target_file_size of {place} is {target_size}: give a number of bytes above 0,"
                " such as 128 << 20."
            )
        self._target_size = target_size
        self._place = place
        #: The newest epoch's, whose commit may be repeated.
        self._newest: Merged[A] | None = None

    def forget(self) -> None:
        """Begin a new attempt."""
        self._newest = None

    def files(
        self,
        epoch: int,
        staged: list[A],
        merger: Merger[A],
        context: SinkContext,
        *,
        root: str,
        attempts: str,
    ) -> Merged[A]:
        """The epoch's files, small files merged into durable files below ``root``.

        If that fails, they are the staged ones. ``attempts``: how the names of the attempts'
        directories begin. Raises ``StorageError`` if a file is not intact, since merging may have
        taken minutes. The commit is then repeated, which merges the originals once more, or finds
        that they are lost.
        """
        if self._target_size is None or context.session is None:
            return Merged(epoch=epoch, files=staged, originals=[])
        known = self._newest
        if known is not None and known.epoch == epoch and _damage(known.files, context) is None:
            return known
        originals = merger.replaceable(staged)
        # A directory that was never there: a commit that seemed to fail may name its files.
        below = f"{attempts}-{context.attempt}/m{epoch}-{context.kernel.new_name()[:8]}"
        try:
            files = _merge_small(
                staged, merger, context, root=root, below=below, target_size=self._target_size
            )
        except Exception:
            with suppress(StorageError):
                # Nobody will name what is there.
                context.file_system(root).delete(join(root, below))
            _log.warning(
                "Small files of checkpoint %d could not be merged for %s: they are committed as"
                " they are.",
                epoch,
                self._place,
                exc_info=True,
            )
            files = staged
        self._newest = Merged(epoch=epoch, files=files, originals=originals)
        if (damage := _damage(files, context)) is not None:
            raise StorageError(
                f"{self._place} was not committed to, since {damage}: it went while small files"
                " were merged. The commit is repeated; make sure that nothing else deletes"
                " files there."
            )
        return self._newest


def _damage(files: Sequence[Added], context: SinkContext) -> str | None:
    """The first of the files that is not intact, in words."""
    roots: dict[str, dict[str, int | None]] = {}
    for file in files:
        roots.setdefault(file.root, {})[file.full_path] = file.file.size
    looks = (damaged_file(context.file_system(root), sizes) for root, sizes in roots.items())
    return next(filter(None, looks), None)


def _merge_small(
    staged: list[A],
    merger: Merger[A],
    context: SinkContext,
    *,
    root: str,
    below: str,
    target_size: int,
) -> list[A]:
    """Raises ``SinkError`` if rows are missing afterwards, and whatever Spark does."""
    file_system = context.file_system(root)
    groups = groups_to_merge(
        staged,
        key=lambda file: (file.layout, file.partition),
        size=lambda file: file.file.size or 0,
        target_size=target_size,
    )
    new: list[A] = []
    for number, layout in enumerate(dict.fromkeys(group[0].layout for group in groups)):
        ours = [group for group in groups if group[0].layout == layout]
        found = _merge(context, file_system, join(root, below, f"{number}"), ours, merger)
        for group, files in zip(ours, found, strict=True):
            added = [
                merger.added(group[0], root, f"{below}/{number}/{file.path}", file.size)
                for file in files
            ]
            rows, expected = (
                sum(file.file.rows or 0 for file in files) for files in (added, group)
            )
            if rows != expected:
                raise SinkError(f"{expected} rows were merged into {rows}.")
            new += added
    sync_below(file_system, root, [file.path for file in new])
    gone = {file.full_path for group in groups for file in group}
    return [*(file for file in staged if file.full_path not in gone), *new]


def _merge(
    context: SinkContext,
    file_system: FileSystem,
    directory: str,
    groups: Sequence[Sequence[A]],
    merger: Merger[A],
) -> list[list[StagedFile]]:
    """Write the rows of each group of Parquet files into files of its own, below ``directory``.

    The groups have one layout. Usually a group becomes one file. Paths are relative to
    ``directory``, whose previous content is deleted.
    """
    if context.session is None:
        raise InvariantError("files are merged without a session")
    layout = groups[0][0].layout
    session = _copied(context.session())
    reader = session.read.schema(merger.columns(layout)).options(recursiveFileLookup="true")
    reader = reader.options(**READ_EACH)
    frames = [
        reader.parquet(*(as_spark_path(file.full_path) for file in group)).coalesce(1)
        for group in groups
    ]
    # A name that no column has.
    column = "group" + "_" * max(len(name) for name in frames[0].columns)
    numbered = [
        frame.selectExpr("*", f"{number} AS {column}") for number, frame in enumerate(frames)
    ]
    together = reduce(lambda frame, other: frame.unionAll(other), numbered)
    written = write_frame(
        merger.shaped(together, layout, column),
        file_system,
        directory,
        format_name="parquet",
        partition_by=[column],
    )
    found: list[list[StagedFile]] = [[] for _ in groups]
    for file in written:
        number = int(file.path.partition("/")[0].partition("=")[2])
        found[number].append(file)
    return found


def _copied(session: SparkSession) -> SparkSession:
    """A session with the settings that the given session has now, for settings of its own.

    pyspark's ``newSession`` has none of them, and its constructor makes ``RDD.toDF`` use the new
    session in the whole process.
    """
    copied = object.__new__(type(session))
    # Without what it has cached of the other session under public names, such as ``conf``.
    vars(copied).update({key: value for key, value in vars(session).items() if key.startswith("_")})
    copied._jsparkSession = session._jsparkSession.cloneSession()
    return copied


class ReplacedFiles:
    """Staged files whose rows were committed in others, until nobody can need them any more."""

    def __init__(self) -> None:
        #: When, in monotonic milliseconds, and the files, by their batch's directory. A batch of
        #: which no file was added has only these, and what has no rows.
        self._files: deque[tuple[int, dict[str, list[Added]]]] = deque()
        self._kept: set[str] = set()

    def add(self, staged: Sequence[Added], added: Sequence[Added], context: SinkContext) -> None:
        """Note the staged files that a commit has not added.

        But not those of another job, from whose snapshot this job has started: they are that
        job's, which may still have to commit them.
        """
        if context.is_in_other_name:
            return
        paths = {file.full_path for file in added}
        batches: dict[str, list[Added]] = {}
        for file in staged:
            if file.full_path not in paths:
                batches.setdefault(file.batch, []).append(file)
        self._kept |= batches.keys() & {file.batch for file in staged if file.full_path in paths}
        if batches:
            self._files.append((context.kernel.now_ms(), batches))

    def are_due(self, context: SinkContext, kept_s: float) -> bool:
        """Whether some were replaced that long ago."""
        now_ms = context.kernel.now_ms()
        return bool(self._files) and now_ms - self._files[0][0] >= kept_s * 1000

    def delete(
        self, context: SinkContext, kept_s: float, *, named: frozenset[str] = frozenset()
    ) -> None:
        """Delete those, and the directories of batches of which nothing was added.

        Not those whose paths are in ``named``: a table has them, from another snapshot of the same
        rows. What cannot be deleted is left to the table's own clean-up.
        """
        while self.are_due(context, kept_s):
            for batch, files in self._files.popleft()[1].items():
                free = [file.full_path for file in files if file.path not in named]
                whole = batch not in self._kept and len(free) == len(files)
                self._kept.discard(batch)
                with suppress(StorageError):
                    for path in [batch] if whole else free:
                        context.file_system(files[0].root).delete(path)


def groups_to_merge(
    files: Sequence[T],
    *,
    key: Callable[[T], Hashable],
    size: Callable[[T], int],
    target_size: int,
) -> list[list[T]]:
    """Groups of two or more files with equal keys, each of about ``target_size`` bytes.

    Files keep their order. A file that alone has that size is in no group.
    """
    groups: list[list[T]] = []
    open_groups: dict[Hashable, list[T]] = {}
    for file in files:
        if size(file) >= target_size:
            continue
        group = open_groups.get(key(file))
        if group is None or sum(map(size, group)) + size(file) > target_size:
            group = open_groups[key(file)] = []
            groups.append(group)
        group.append(file)
    return [group for group in groups if len(group) > 1]
