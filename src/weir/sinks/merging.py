"""Merges small staged Parquet files before their commit, so that readers open few large ones.

Nobody sees staged files, so merging conflicts with nothing, unlike compaction afterwards. Spark
does it, in one job beside the batches: each group of files is one Spark task, on any executor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from weir.sinks.staging import StagedFile, visible_files, write_frame
from weir.storage.filesystem import FileSystem
from weir.storage.paths import NO_PATTERNS, as_spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


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
