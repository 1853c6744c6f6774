"""Weir: Flink's fault tolerance for data pipelines that run on Spark through PySpark.

A pipeline starts with ``Job``; ``weir.sinks`` has the sinks, ``weir.sources`` the sources that Weir
reads itself, and ``weir.connect`` talks to a running job. Importing this package starts no JVM and
loads almost nothing, because Spark's Python workers import it too: each public name is loaded on
first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir import coordinators, errors, operators, sinks, sources
    from weir.durable.hooks import CheckpointListener, MasterHook
    from weir.expectations import expect
    from weir.handle.job_handle import JobHandle
    from weir.handle.job_progress import JobProgress, QueryProgress
    from weir.job import Job, Stream
    from weir.launch.options import JobResult, RunOptions
    from weir.readers.consistent import ConsistentCut, read_consistent
    from weir.readers.savepoint import SavedOperator, SavedOperatorState, Savepoint, read_savepoint
    from weir.rest.client import JobClient, connect

__all__ = [
    "CheckpointListener",
    "ConsistentCut",
    "Job",
    "JobClient",
    "JobHandle",
    "JobProgress",
    "JobResult",
    "MasterHook",
    "QueryProgress",
    "RunOptions",
    "SavedOperator",
    "SavedOperatorState",
    "Savepoint",
    "Stream",
    "connect",
    "coordinators",
    "errors",
    "expect",
    "operators",
    "read_consistent",
    "read_savepoint",
    "sinks",
    "sources",
]
__version__ = "0.1.0"


#: The module that defines each public name; public modules are not listed.
_PLACES = {
    "CheckpointListener": "weir.durable.hooks",
    "ConsistentCut": "weir.readers.consistent",
    "Job": "weir.job",
    "JobClient": "weir.rest.client",
    "JobHandle": "weir.handle.job_handle",
    "JobProgress": "weir.handle.job_progress",
    "JobResult": "weir.launch.options",
    "MasterHook": "weir.durable.hooks",
    "QueryProgress": "weir.handle.job_progress",
    "RunOptions": "weir.launch.options",
    "SavedOperator": "weir.readers.savepoint",
    "SavedOperatorState": "weir.readers.savepoint",
    "Savepoint": "weir.readers.savepoint",
    "Stream": "weir.job",
    "connect": "weir.rest.client",
    "expect": "weir.expectations",
    "read_consistent": "weir.readers.consistent",
    "read_savepoint": "weir.readers.savepoint",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in __all__:
        return importlib.import_module(f"weir.{name}")
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
