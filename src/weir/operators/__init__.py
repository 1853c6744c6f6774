"""Python operators in the stream: ``Stream.process`` takes them (MISSION B7, C)."""

from weir.operators.base import (
    ListCheckpointed,
    Operator,
    OperatorContext,
    PandasOperator,
    SnapshotContext,
    TimeDomain,
    TtlUpdate,
)
from weir.operators.connected import CoOperator
from weir.operators.rules import RulesOperator

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
