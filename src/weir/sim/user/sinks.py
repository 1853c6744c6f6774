"""The stand-in for sinks that need Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.core.types import Payload
from weir.sim.engine.table import SimTable
from weir.sim.stores.frame import Frame
from weir.sinks.base import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StandIn(SimTable):
    """The simulator's table in place of a sink for which Spark writes files."""

    def stage(self, frame: DataFrame | list[Any], batch: Batch) -> Payload | None:
        """Stage the rows as JSON."""
        rows: Any = frame
        if isinstance(rows, Frame):
            rows = [{name: _json(value) for name, value in row.items()} for row in rows.rows()]
        return super().stage(rows, batch)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    return value if isinstance(value, bool | int | float | None) else str(value)
