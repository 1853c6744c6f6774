"""Combinations of parameters of a test: half run with each change, half with the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from _pytest.mark import ParameterSet


def checkered(*axes: Iterable[object]) -> list[ParameterSet]:
    """All combinations, as on a chessboard: the black squares run with the slow tests.

    So each value of an axis still meets every second value of each other one.
    """
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=[pytest.mark.slow] if sum(place for place, _ in combination) % 2 else [],
        )
        for combination in product(*map(list, map(enumerate, axes)))
    ]
