"""Tests of the auditor: it catches each broken variant of the product by a law that it breaks.

The seed that is known to catch a variant is tried first. If the simulator has changed so that this
seed no longer catches it, the first 2,000 seeds are tried. ``pytest -rP`` shows the seed at which
each variant was caught, and the violation.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import chain

import pytest
from tests.sim.mutants import MUTANTS, Mutant, parameters

from weir.sim.world import RunResult, run_seed

SEEDS = 2_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence what the product logs under faults, which is a lot."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_catch(mutant: Mutant) -> RunResult | None:
    """The variant's first run with a violation of one of its laws; None if no seed has one."""
    for seed in chain([mutant.known_seed], range(SEEDS)):
        with mutant.variant():
            result = run_seed(seed)
        if result.violation is not None and any(words in result.violation for words in mutant.says):
            return result
    return None


@pytest.mark.usefixtures("no_coordinators")
@pytest.mark.parametrize("mutant", parameters(MUTANTS))
def test_a_broken_variant_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """Within 2,000 seeds the auditor names a law that the variant breaks, at a seed where the
    product breaks none."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through {SEEDS} seeds"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert run_seed(caught.seed).violation is None


def test_every_variant_says_which_rule_it_breaks() -> None:
    """The docstring of each variant cites a rule of the protocol or of the mission."""
    for mutant in MUTANTS:
        said = mutant.variant.__doc__ or ""
        assert re.search(r"\((MISSION A|A|P)\d+\)\.", said), mutant.name
