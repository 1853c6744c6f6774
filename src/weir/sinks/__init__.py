"""Two-phase-commit sinks, which write the rows of a stream exactly once (MISSION G4).

``base`` has the contract, for Weir's own sinks and for users'. Importing this package starts no JVM
and loads none of the clients that they need.
"""

from weir.sinks.base import Batch, Sink, SinkContext
from weir.sinks.delta.sink import DeltaTable
from weir.sinks.files.sink import Files
from weir.sinks.foreach.batch import ForeachBatch
from weir.sinks.foreach.epoch import ForeachEpoch
from weir.sinks.foreach.sink import BatchInfo, CommitInfo, Foreach, SinkInfo
from weir.sinks.iceberg.sink import IcebergTable
from weir.sinks.kafka.sink import KafkaTopic
from weir.sinks.postgres.sink import PostgresTable

__all__ = [
    "Batch",
    "BatchInfo",
    "CommitInfo",
    "DeltaTable",
    "Files",
    "Foreach",
    "ForeachBatch",
    "ForeachEpoch",
    "IcebergTable",
    "KafkaTopic",
    "PostgresTable",
    "Sink",
    "SinkContext",
    "SinkInfo",
]
