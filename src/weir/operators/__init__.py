"""Python operators in the stream: ``Stream.process`` takes them (MISSION B7, C)."""

from weir.operators.base import (
    ListCheckpointed,
    Operator,
    OperatorContext,
    PandasOperator,
    SnapshotContext,
)
from weir.operators.connected import CoOperator
from weir.operators.rules import RulesOperator
from weir.operators.state.types import TimeDomain, TtlUpdate

__all__ = [
    "CoOperator",
    "ListCheckpointed",
    "Operator",
    "OperatorContext",
    "PandasOperator",
    "RulesOperator",
    "SnapshotContext",
    "TimeDomain",
    "TtlUpdate",
]
