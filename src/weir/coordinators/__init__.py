"""Operator coordinators: parts of operators that run in the driver (MISSION C)."""

from weir.coordinators.base import CoordinatorContext, OperatorCoordinator, SubtaskGateway
from weir.coordinators.broadcast_rules import BroadcastRules

__all__ = ["BroadcastRules", "CoordinatorContext", "OperatorCoordinator", "SubtaskGateway"]
