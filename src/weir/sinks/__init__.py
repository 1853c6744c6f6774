"""Two-phase-commit sinks, which write the rows of a stream exactly once (MISSION G4).

``base`` has the contract, for Weir's own sinks and for users'. Importing this package starts no JVM
and loads neither delta-rs nor pyiceberg.
"""

from weir.sinks.base import Batch, Sink, SinkContext
from weir.sinks.delta import DeltaTable
from weir.sinks.files import Files
from weir.sinks.foreach import BatchInfo, CommitInfo, Foreach, SinkInfo
from weir.sinks.foreach_epoch import ForeachEpoch
from weir.sinks.iceberg import IcebergTable
from weir.sinks.postgres import PostgresTable

__all__ = [
    "Batch",
    "BatchInfo",
    "CommitInfo",
    "DeltaTable",
    "Files",
    "Foreach",
    "ForeachEpoch",
    "IcebergTable",
    "PostgresTable",
    "Sink",
    "SinkContext",
    "SinkInfo",
]
