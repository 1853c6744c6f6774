"""The settings of a session: required settings, defaults, and those of a cheap working directory.

- *Required*: the state store whose files are immutable and uniquely named (incremental checkpoints
  are exact only with it), values in files that other readers understand, and the offset-log format
  that Weir reads.
- *Defaults*: settings that suit a pipeline and that the user may change.
- *Cheap working directory* (``weir.fast-working-directory``): without Weir, Spark's log and state
  files are its only durable copy, so it writes them with care; under Weir they are disposable. Nor
  does it need a process for each file (``local_files.py``).
"""

from __future__ import annotations

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: A different value breaks a guarantee, so it is refused.
REQUIRED = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Other readers know nothing of the calendar in which LEGACY counts days before 1582.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Nor do they know Hive's own layout of decimals and lists, or a null from an empty text.
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.legacy.nullValueWrittenAsQuotedEmptyStringCsv": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}

#: A Python worker that dies of a signal says where it was, and what it was reading.
CRASHES = "spark.sql.execution.pyspark.udf.faulthandler.enabled"

RETAINED = "spark.sql.streaming.minBatchesToRetain"
#: A snapshot is copied while further batches run, whose clean-up must leave its files (P4).
RETAINED_MIN = 10

DEFAULTS = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # An idle query polls 100 times a second by default; 50 ms is soon enough for a new file.
    "spark.sql.streaming.pollingDelay": "50ms",
    # State files must outlive the checkpoint that links them (PROTOCOL P4).
    RETAINED: "100",
    # The more often Spark takes snapshots of the state, the shorter the chains of changelogs.
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    # Weir reads its counters from these, at least each time that counters are shown.
    "spark.sql.streaming.numRecentProgressUpdates": "200",
    CRASHES: "true",
}

#: How Spark writes the files of a working directory.
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
#: For ``s3a:``, in a jar that PySpark lacks (``spark-hadoop-cloud``): a file appears when it is
#: closed. The others rename a temporary file, and in S3 to rename is to copy and to delete.
MANAGER_WITHOUT_RENAMES = (
    "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
)

CHEAP_SETTINGS = {
    FILE_MANAGER: (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
