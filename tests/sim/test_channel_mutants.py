"""The auditor catches broken variants of channels and ends; see ``test_mutants.py``.

Variants of unaligned checkpoints are among them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.sim.channel_mutants import CHANNEL_MUTANTS
from tests.sim.ending_mutants import ENDING_MUTANTS
from tests.sim.mishap_mutants import MISHAP_MUTANTS
from tests.sim.mutants import Mutant, parameters
from tests.sim.test_mutants import first_catch
from tests.sim.unaligned_mutants import UNALIGNED_MUTANTS

from weir.sim.world import run_seed


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence what the product logs under faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_coordinators")
@pytest.mark.parametrize(
    "mutant", parameters([*CHANNEL_MUTANTS, *UNALIGNED_MUTANTS, *ENDING_MUTANTS, *MISHAP_MUTANTS])
)
def test_a_broken_variant_of_channels_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """The variant is caught within 2,000 seeds, at a seed where the product breaks no law."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert run_seed(caught.seed).violation is None
