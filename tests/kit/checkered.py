"""Combinations of parameters of a test: some run with each change, the others are slow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from _pytest.mark import ParameterSet


def checkered(*axes: Iterable[object], colours: int = 2) -> list[ParameterSet]:
    """All combinations, as on a board of so many colours: those of one run with each change.

    With two axes, each value of one meets every second value of the other, or with three colours
    every third; of an axis of two, some then meet none.
    """
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=[pytest.mark.slow] if sum(place for place, _ in combination) % colours else [],
        )
        for combination in product(*map(list, map(enumerate, axes)))
    ]
