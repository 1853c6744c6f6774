"""Python operators in the stream: ``Stream.process`` takes them (MISSION B7, C)."""

from weir.operators.base import (
    ListCheckpointed,
    Operator,
    OperatorContext,
    PandasOperator,
    SnapshotContext,
)
from weir.operators.rules import RulesOperator

__all__ = [
    "ListCheckpointed",
    "Operator",
    "OperatorContext",
    "PandasOperator",
    "RulesOperator",
    "SnapshotContext",
]
