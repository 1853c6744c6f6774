"""Weir: Flink's fault tolerance for data pipelines that run on Spark through PySpark.

``Job`` is where a pipeline begins, ``weir.sinks`` has the sinks, ``weir.sources`` the sources that Weir reads itself.
Importing this package starts no JVM, and loads next to nothing: Spark's Python workers import it too, so the public names
are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir import coordinators, errors, operators, sinks, sources
    from weir.consistent import ConsistentCut, read_consistent
    from weir.durable.hooks import MasterHook
    from weir.durable.listeners import CheckpointListener
    from weir.job import Job, Stream
    from weir.saved_operator_state import SavedOperatorState
    from weir.saved_state import SavedOperator, Savepoint, read_savepoint

__all__ = [
    "CheckpointListener",
    "ConsistentCut",
    "Job",
    "MasterHook",
    "SavedOperator",
    "SavedOperatorState",
    "Savepoint",
    "Stream",
    "coordinators",
    "errors",
    "operators",
    "read_consistent",
    "read_savepoint",
    "sinks",
    "sources",
]
__version__ = "0.1.0"


#: Where each public name is; modules stand for themselves.
_PLACES = {
    "CheckpointListener": "weir.durable.listeners",
    "ConsistentCut": "weir.consistent",
    "Job": "weir.job",
    "MasterHook": "weir.durable.hooks",
    "SavedOperator": "weir.saved_state",
    "SavedOperatorState": "weir.saved_operator_state",
    "Savepoint": "weir.saved_state",
    "Stream": "weir.job",
    "read_consistent": "weir.consistent",
    "read_savepoint": "weir.saved_state",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in __all__:
        return importlib.import_module(f"weir.{name}")
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
