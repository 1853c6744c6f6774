"""The auditor catches broken variants of operator events and gateways; see ``test_mutants.py``."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.sim.coordinator_mutants import COORDINATOR_MUTANTS
from tests.sim.mutants import Mutant
from tests.sim.test_mutants import first_catch

from weir.sim.world import run_seed


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence what the product logs under faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mutant", COORDINATOR_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_variant_of_operator_events_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """The variant is caught within 2,000 seeds, at a seed where the product breaks no law."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert run_seed(caught.seed).violation is None
