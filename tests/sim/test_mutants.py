"""The auditor is itself tested: each broken variant of the product is caught, by a law that it
breaks.

The seed that is known to catch a variant is tried first. When the simulator has changed so much
that it does not any more, the first 2,000 seeds are tried. ``pytest -rP`` shows at which seed each
variant was caught, and what was said.
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
    """What the product logs under faults is of no interest here, and much."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_catch(mutant: Mutant) -> RunResult | None:
    """The first run of the variant with a violation that names one of its laws; None in all of the
    seeds."""
    for seed in chain([mutant.known_seed], range(SEEDS)):
        with mutant.variant():
            result = run_seed(seed)
        if result.violation is not None and any(words in result.violation for words in mutant.says):
            return result
    return None


@pytest.mark.usefixtures("no_coordinators")
@pytest.mark.parametrize("mutant", parameters(MUTANTS))
def test_a_broken_variant_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """Within 2,000 seeds the auditor names a law that the variant breaks, and has no word against
    the product there."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through {SEEDS} seeds"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert run_seed(caught.seed).violation is None


def test_every_variant_says_which_rule_it_breaks() -> None:
    """The docstring of each variant cites a rule of the protocol or of the mission."""
    for mutant in MUTANTS:
        said = mutant.variant.__doc__ or ""
        assert re.search(r"\((MISSION A|A|P)\d+\)\.", said), mutant.name
