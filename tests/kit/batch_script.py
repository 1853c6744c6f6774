"""Executes a streaming script as a batch: ``python -m tests.kit.batch_script FILE ARGS``.

The same file has two meanings. Here ``readStream`` reads what is there, and ``start()`` writes
once: whatever the script writes under Weir, through kills and restarts, must be what it writes
here. It knows nothing of Weir.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQueryManager

#: As many rows as a console of these tests shows.
_ALL = 100_000


class _Query:
    """A query that has already ended."""

    id = runId = "batch"
    status: dict[str, Any] = {}
    isActive = False
    lastProgress: dict[str, Any] = {"numInputRows": 0, "batchId": 0}
    recentProgress: list[Any] = []

    def __init__(self, name: str | None) -> None:
        self.name = name

    def awaitTermination(self, timeout: float | None = None) -> bool:
        return True

    def processAllAvailable(self) -> None: ...

    def stop(self) -> None: ...

    def exception(self) -> None: ...


class _Reader:
    """``spark.readStream``, which reads what is there."""

    def __init__(self, spark: SparkSession) -> None:
        self._reader = spark.read

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            made = getattr(self._reader, name)(*given, **options)
            if made is not self._reader:
                return made
            return self

        return call


class _Writer:
    """``frame.writeStream``, which writes once."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._format = "parquet"
        self._function: Any = None
        self._partition_by: tuple[str, ...] = ()
        self._name: str | None = None
        self._options: dict[str, Any] = {}

    def format(self, name: str) -> _Writer:
        self._format = name
        return self

    def foreachBatch(self, function: Any) -> _Writer:
        self._function = function
        return self

    def foreach(self, function: Any) -> _Writer:
        self._function = lambda frame, _: [function(row) for row in frame.collect()]
        return self

    def option(self, key: str, value: Any) -> _Writer:
        self._options[key] = value
        return self

    def options(self, **options: Any) -> _Writer:
        self._options |= options
        return self

    def partitionBy(self, *columns: str) -> _Writer:
        self._partition_by = columns
        return self

    def queryName(self, name: str) -> _Writer:
        self._name = name
        return self

    def outputMode(self, _: str) -> _Writer:
        return self

    def trigger(self, **_: Any) -> _Writer:
        return self

    def start(self, path: str | None = None, **options: Any) -> _Query:
        frame = self._frame
        if self._function is not None:
            self._function(frame, 0)
        elif self._format == "console":
            frame.show(_ALL, truncate=False)
        elif self._format == "memory":
            frame.createOrReplaceTempView(str(self._name))
        else:
            writer = frame.write.mode("append").format(self._format)
            if self._partition_by:
                writer = writer.partitionBy(*self._partition_by)
            writer.save(path or self._options["path"])
        return _Query(self._name)

    def toTable(self, name: str, **options: Any) -> _Query:
        self._frame.write.mode("append").format(self._format).saveAsTable(name)
        return _Query(self._name)


class _State:
    """The state of a key that has its rows once, all of them."""

    exists = hasTimedOut = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def _with_state(groups: Any, function: Any, output: str, *_: Any) -> DataFrame:
    """``applyInPandasWithState``, which Spark does not have for batches."""

    def call(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return pd.concat(function(key, iter([frame]), _State()))

    return groups.applyInPandas(call, output)


def main() -> None:
    """Execute the file that the command line names, with its arguments."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", os.environ["WAREHOUSE"])
        .getOrCreate()
    )
    SparkSession.readStream = property(_Reader)  # type: ignore[assignment,method-assign]
    ClassicDataFrame.writeStream = property(_Writer)  # type: ignore[assignment,method-assign]
    ClassicDataFrame.isStreaming = property(lambda _: True)  # type: ignore[assignment,method-assign]
    StreamingQueryManager.awaitAnyTermination = lambda *_: True  # type: ignore[assignment,method-assign]
    SparkSession.stop = lambda _: None  # type: ignore[assignment,method-assign]
    ClassicDataFrame.dropDuplicatesWithinWatermark = ClassicDataFrame.dropDuplicates  # type: ignore[method-assign]
    GroupedData.applyInPandasWithState = _with_state  # type: ignore[assignment,method-assign]
    time.sleep = lambda _: None
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], init_globals={"spark": spark}, run_name="__main__")


if __name__ == "__main__":
    main()
