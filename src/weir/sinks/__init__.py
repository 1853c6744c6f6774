"""Two-phase-commit sinks: what a step's rows are written to, exactly once (MISSION G4).

``base`` has the contract, for Weir's own sinks and for users'. Importing this package starts no JVM
and loads no delta-rs.
"""

from weir.sinks.base import Sink, SinkContext, Step
from weir.sinks.delta import DeltaTable
from weir.sinks.files import Files
from weir.sinks.foreach import CommitInfo, Foreach, SinkInfo, StepInfo

__all__ = [
    "CommitInfo",
    "DeltaTable",
    "Files",
    "Foreach",
    "Sink",
    "SinkContext",
    "SinkInfo",
    "Step",
    "StepInfo",
]
