"""Tests of the auditor: it catches each broken variant of the product by a law that it breaks.

The seed that is known to catch a variant is tried first. If the simulator has changed so that this
seed no longer catches it, the first 2,000 seeds are tried. ``pytest -rP`` shows the seed at which
each variant was caught, and the violation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from itertools import chain

import pytest
from tests.sim.channel_mutants import CHANNEL_MUTANTS
from tests.sim.coordinator_mutants import COORDINATOR_MUTANTS
from tests.sim.ending_mutants import ENDING_MUTANTS
from tests.sim.induced_mutants import INDUCED_MUTANTS
from tests.sim.liveness_mutants import LIVENESS_MUTANTS
from tests.sim.mishap_mutants import MISHAP_MUTANTS
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.sibling_mutants import SIBLING_MUTANTS
from tests.sim.unaligned_mutants import UNALIGNED_MUTANTS

from weir.sim.world import RunResult, run_seed

SEEDS = 2_000
#: They take seconds, since their jobs do not end.
LONG = {
    "a_task_that_finishes_though_one_channel_did_not",
    "a_finished_task_recorded_without_its_channels",
    "idleness_that_nobody_hears_of",
    "idleness_that_only_the_next_task_hears_of",
    "an_idle_channel_that_holds_the_others_back",
    "an_ended_channel_not_counted",
}

#: Tried in jobs without coordinators, and with them.
WITHOUT_COORDINATORS = (
    *MUTANTS,
    *CHANNEL_MUTANTS,
    *UNALIGNED_MUTANTS,
    *ENDING_MUTANTS,
    *MISHAP_MUTANTS,
    *LIVENESS_MUTANTS,
    *SIBLING_MUTANTS,
)
OF_EVENTS = (*COORDINATOR_MUTANTS, *INDUCED_MUTANTS)

pytestmark = pytest.mark.usefixtures("quiet", "no_stores")


def first_catch(mutant: Mutant) -> RunResult | None:
    """The variant's first run with a violation of one of its laws; None if no seed has one."""
    for seed in chain([mutant.known_seed], range(SEEDS)):
        with mutant.variant():
            result = run_seed(seed)
        if result.violation is not None and any(words in result.violation for words in mutant.says):
            return result
    return None


def _violation(seed: int) -> str | None:
    return run_seed(seed).violation


#: The law that the product breaks at a seed. Several variants are caught at one.
violation_with_coordinators = functools.cache(_violation)
violation_without_coordinators = functools.cache(_violation)


def check_caught(mutant: Mutant, violation: Callable[[int], str | None]) -> None:
    """Assert that the variant is caught at a seed at which the product breaks no law."""
    caught = first_catch(mutant)
    assert caught is not None, f"{mutant.name} went through {SEEDS} seeds"
    print(f"{mutant.name}: seed {caught.seed}: {caught.violation}")
    assert violation(caught.seed) is None


@pytest.mark.usefixtures("no_coordinators")
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, marks=[pytest.mark.slow] if one.name in LONG else [], id=one.name)
        for one in WITHOUT_COORDINATORS
    ],
)
def test_a_broken_variant_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """Within 2,000 seeds the auditor names a law that the variant breaks."""
    check_caught(mutant, violation_without_coordinators)


@pytest.mark.parametrize("mutant", OF_EVENTS, ids=lambda mutant: mutant.name)
def test_a_broken_variant_of_operator_events_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    """The same, in jobs whose operators have coordinators."""
    check_caught(mutant, violation_with_coordinators)


def test_every_variant_says_which_rule_it_breaks() -> None:
    """The docstring of each variant cites a rule of the protocol or of the mission."""
    for mutant in MUTANTS:
        said = mutant.variant.__doc__ or ""
        assert re.search(r"\((MISSION A|A|P)\d+\)\.", said), mutant.name
