"""Merges small staged Parquet files before their commit, so that readers open few large ones.

Nobody sees staged files, so merging conflicts with nothing, unlike compaction afterwards. Spark
does it, in one job beside the batches: each group of files is one Spark task, on any executor.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from weir.errors import SinkError, StorageError
from weir.sinks.delta_schema import columns_ddl
from weir.sinks.parquet import read_footer
from weir.sinks.staging import StagedFile, sync_below, visible_files, write_frame
from weir.storage.filesystem import FileSystem
from weir.storage.paths import NO_PATTERNS, as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Added:
    """A file that a commit adds."""

    #: Below the table's root.
    path: str
    #: Its ``size``, ``partition``, ``rows``, ``statistics`` and ``modified_ms``.
    file: dict[str, Any]
    #: Delta's, as JSON text.
    schema: str


def described(file_system: FileSystem, path: str) -> dict[str, Any]:
    """The ``rows``, ``statistics`` and ``modified_ms`` of a file."""
    footer = read_footer(file_system, path)
    return {
        "rows": footer.rows,
        "statistics": footer.statistics,
        "modified_ms": time.time_ns() // 1_000_000,
    }


def left_out(added: Sequence[Added], staged: Sequence[Added]) -> list[str]:
    """Paths of the staged files that are not added themselves."""
    paths = {one.path for one in added}
    return [one.path for one in staged if one.path not in paths]


def merge_small(
    staged: Sequence[Added],
    session: SparkSession,
    file_system: FileSystem,
    root: str,
    below: str,
    *,
    target_size: int,
    partition_by: Sequence[str],
) -> list[Added]:
    """The staged files, small ones merged into durable files below ``root/below``.

    Raises ``SinkError`` if rows are missing afterwards, and whatever Spark does.
    """
    groups = groups_to_merge(
        staged,
        key=lambda one: (one.schema, tuple(sorted(one.file["partition"].items()))),
        size=lambda one: int(one.file["size"]),
        target_size=target_size,
    )
    merged: list[Added] = []
    for number, schema in enumerate({group[0].schema for group in groups}):
        ours = [group for group in groups if group[0].schema == schema]
        fields = json.loads(schema)["fields"]
        found = merge(
            session,
            file_system,
            join(root, below, f"{number}"),
            [[join(root, one.path) for one in group] for group in ours],
            schema=columns_ddl(one for one in fields if one["name"] not in partition_by),
        )
        for group, files in zip(ours, found, strict=True):
            own = [f"{below}/{number}/{file.path}" for file in files]
            added = [
                Added(
                    path=path,
                    file={
                        **described(file_system, join(root, path)),
                        "size": file.size,
                        "partition": group[0].file["partition"],
                    },
                    schema=schema,
                )
                for path, file in zip(own, files, strict=True)
            ]
            rows, expected = (sum(one.file["rows"] for one in each) for each in (added, group))
            if rows != expected:
                raise SinkError(f"{expected} rows were merged into {rows}.")
            merged += added
    sync_below(file_system, root, [one.path for one in merged])
    gone = {one.path for group in groups for one in group}
    return [*(one for one in staged if one.path not in gone), *merged]


class ReplacedFiles:
    """Staged files whose rows were committed in others, until nobody can need them any more."""

    def __init__(self) -> None:
        #: When, in monotonic seconds, and the paths below the table's root.
        self._files: deque[tuple[float, list[str]]] = deque()

    def add(self, paths: list[str]) -> None:
        """Note files that a commit has replaced."""
        if paths:
            self._files.append((time.monotonic(), paths))

    def are_due(self, kept_s: float) -> bool:
        """Whether some were replaced that long ago."""
        return bool(self._files) and time.monotonic() - self._files[0][0] >= kept_s

    def delete(
        self, kept_s: float, file_system: FileSystem, root: str, named: frozenset[str]
    ) -> None:
        """Delete those, and the directories of batches that this empties.

        Not those in ``named``, the files in the table's log: it may have had the same rows before,
        from another snapshot. What cannot be deleted is left to VACUUM.
        """
        while self.are_due(kept_s):
            paths = [path for path in self._files.popleft()[1] if path not in named]
            with suppress(StorageError):
                for path in paths:
                    file_system.delete(join(root, path))
                # <attempt>/<position>
                for batch in {"/".join(path.split("/", 2)[:2]) for path in paths}:
                    if not visible_files(file_system, join(root, batch)):
                        file_system.delete(join(root, batch))


def groups_to_merge(
    files: Sequence[T],
    *,
    key: Callable[[T], Hashable],
    size: Callable[[T], int],
    target_size: int,
) -> list[list[T]]:
    """Groups of two or more files with equal keys, each of about ``target_size`` bytes.

    Files keep their order. One that alone has that size is in no group.
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


def merge(
    session: SparkSession,
    file_system: FileSystem,
    directory: str,
    groups: Sequence[Sequence[str]],
    *,
    schema: str,
) -> list[list[StagedFile]]:
    """Write the rows of each group of Parquet files into files of its own, below ``directory``.

    ``schema``: of all files, as Spark's DDL. Usually a group becomes one file. Paths are relative
    to ``directory``, whose previous content is deleted.
    """
    reader = session.read.schema(schema).options(recursiveFileLookup="true")
    reader = reader.option(*NO_PATTERNS)
    frames = [reader.parquet(*map(as_spark_path, group)).coalesce(1) for group in groups]
    # A name that no column has.
    column = "group" + "_" * max(len(name) for name in frames[0].columns)
    numbered = [
        frame.selectExpr("*", f"{number} AS {column}") for number, frame in enumerate(frames)
    ]
    write_frame(
        reduce(lambda one, other: one.unionAll(other), numbered),
        file_system,
        directory,
        format_name="parquet",
        partition_by=[column],
    )
    merged: list[list[StagedFile]] = [[] for _ in groups]
    for file in visible_files(file_system, directory):
        number = int(file.path.partition("/")[0].partition("=")[2])
        merged[number].append(file)
    return merged
