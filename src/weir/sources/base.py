"""``SplitSource``: the contract of sources that Weir reads itself, its own and users'.

A split enumerator finds what there is to read and assigns it to readers that ask (MISSION C;
Flink's ``SplitEnumerator`` and ``SourceReader``). The enumerator is an operator coordinator, a
reader is an operator, and they exchange operator events, which are delivered exactly once.
"""

from __future__ import annotations

import abc

from weir.coordinators.base import OperatorCoordinator
from weir.operators.base import Operator


class SplitSource(abc.ABC):
    """A source read by one reader in each subtask, which an enumerator gives splits.

    ``bounded``: its input has an end; when all of it is read, the job finishes.
    """

    bounded: bool = False

    @abc.abstractmethod
    def enumerator(self) -> OperatorCoordinator:
        """A new coordinator of the step: it finds splits and assigns them."""

    @abc.abstractmethod
    def reader(self) -> Operator:
        """A new operator of the step: it reads the splits that are assigned to its subtask."""
