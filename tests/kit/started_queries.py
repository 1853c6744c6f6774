"""Started queries of scripts, for tests of single parts of adoption."""

from __future__ import annotations

from typing import Any

from weir.spark.adopt.query import Place, StartedQuery, Trigger, TriggerKind


def started(frame: Any, **changes: Any) -> StartedQuery:
    """What ``frame.writeStream...start()`` in line 12 asks for, but for changes.

    Without changes that is nothing but the default format and mode.
    """
    asked: dict[str, Any] = {
        "frame": frame,
        "place": Place("script.py", 12),
        "name": "totals",
        "format": None,
        "output_mode": "append",
        "trigger": Trigger(kind=TriggerKind.DEFAULT),
        "partition_by": (),
        "cluster_by": (),
        "options": {},
        "table": None,
        "each_batch": None,
        "each_row": None,
    }
    return StartedQuery(**asked | changes)
