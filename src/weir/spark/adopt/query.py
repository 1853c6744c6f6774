"""What a script asks of its streaming queries: the words that all parts of adoption share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Place:
    """A line of the user's script."""

    #: As given on the command line.
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class TriggerKind(enum.Enum):
    """The triggers that Spark has."""

    DEFAULT = "default"
    PROCESSING_TIME = "processingTime"
    AVAILABLE_NOW = "availableNow"
    ONCE = "once"
    CONTINUOUS = "continuous"
    REAL_TIME = "realTime"


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """When a query runs, as ``trigger(...)`` has it."""

    kind: TriggerKind
    #: As in ``trigger(processingTime="10 seconds")``.
    interval: str | None = None


@dataclass(frozen=True, kw_only=True)
class StartedQuery:
    """What a script asked of one streaming query by ``start()`` or ``toTable()``."""

    frame: DataFrame
    #: Where the script calls ``start()``.
    place: Place
    #: The ``queryName``.
    name: str | None
    #: In lower case. None is the session's default, which is Parquet.
    format: str | None
    #: One of "append", "update", "complete".
    output_mode: str
    trigger: Trigger
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]
    #: Keys in lower case, values as text; "path" and "checkpointlocation" are among them if given.
    options: Mapping[str, str]
    #: The name given to ``toTable()``.
    table: str | None
    #: The function given to ``foreachBatch()``.
    each_batch: Callable[[DataFrame, int], object] | None
    #: What was given to ``foreach()``: a function, or an object with open, process, close.
    each_row: object | None
