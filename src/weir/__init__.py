"""Weir: Flink's fault tolerance for data pipelines that run on Spark through PySpark.

``Job`` is where a pipeline begins, ``weir.sinks`` has the sinks, ``weir.sources`` the sources that Weir reads itself.
Importing this package starts no JVM, and loads next to nothing: every query's reader process imports it, so the public
names are loaded when they are first used.
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
    from weir.saved_state import SavedOperator, Savepoint, read_savepoint

__all__ = [
    "CheckpointListener",
    "ConsistentCut",
    "Job",
    "MasterHook",
    "SavedOperator",
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


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name in ("coordinators", "errors", "operators", "sinks", "sources"):
        return importlib.import_module(f"weir.{name}")
    if name == "MasterHook":
        return importlib.import_module("weir.durable.hooks").MasterHook
    if name == "CheckpointListener":
        return importlib.import_module("weir.durable.listeners").CheckpointListener
    if name in ("ConsistentCut", "read_consistent"):
        return getattr(importlib.import_module("weir.consistent"), name)
    if name in ("SavedOperator", "Savepoint", "read_savepoint"):
        return getattr(importlib.import_module("weir.saved_state"), name)
    if name in ("Job", "Stream"):
        return getattr(importlib.import_module("weir.job"), name)
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
