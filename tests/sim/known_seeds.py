"""Searches the known seeds of broken variants again, once runs have changed, and writes them down.

``python -m tests.sim.known_seeds [NAME ...]`` tries the known seed of each variant, or of those
that are named, and then the first 2,000. It may take an hour for all.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from unittest.mock import patch

from tests.sim.mutants import Mutant, _with
from tests.sim.store_mutants import STORE_MUTANTS, StoreMutant
from tests.sim.test_mutants import OF_EVENTS, WITHOUT_COORDINATORS

from weir.sim.engine import job as job_module
from weir.sim.stores import placing
from weir.sim.world import run_seed

SEEDS = 2_000


def _groups() -> Iterator[tuple[AbstractContextManager[object], Iterable[Mutant | StoreMutant]]]:
    """The variants, with what holds for their runs (``conftest.py``)."""
    no_stores = patch.object(placing, "_SHARE", 0.0)
    no_coordinators = patch.object(job_module, "_coordinated", lambda vertices, _: list(vertices))
    yield nullcontext(), STORE_MUTANTS
    yield no_stores, OF_EVENTS
    yield _with(no_stores, no_coordinators), WITHOUT_COORDINATORS


def _first_catch(mutant: Mutant | StoreMutant) -> tuple[int, str] | None:
    """The first seed at which the variant breaks one of its laws, and how."""
    store = mutant.kind if isinstance(mutant, StoreMutant) else None
    for seed in chain([mutant.known_seed], range(SEEDS)):
        with mutant.variant():
            said = run_seed(seed, store=store).violation
        if said is None or not any(words in said for words in mutant.says):
            continue
        if run_seed(seed, store=store).violation is None:
            return seed, said
        print(f"  seed {seed} breaks a law without the variant, too")
    return None


def _write_down(mutant: Mutant | StoreMutant, seed: int) -> bool:
    """Replace the known seed in the module that has the variant; whether it was there."""
    name, old = mutant.name, mutant.known_seed
    patterns = (
        rf"(\({name}, ){old}(,)",
        rf"(_mutant\({name}, .*, ){old}(\))",
        rf"(variant={name},[^()]*(?:\([^()]*\)[^()]*)?known_seed=){old}(,)",
    )
    for path in Path(__file__).parent.glob("*mutants.py"):
        text = path.read_text()
        for pattern in patterns:
            text, count = re.subn(pattern, rf"\g<1>{seed}\g<2>", text)
            if count:
                path.write_text(text)
                return True
    return False


def main(names: list[str]) -> None:
    """Search, and print what has changed."""
    logging.disable(logging.CRITICAL)
    for context, mutants in _groups():
        with context:
            for mutant in [one for one in mutants if one.name in names or not names]:
                began = time.monotonic()
                found = _first_catch(mutant)
                took_s = time.monotonic() - began
                if found is None:
                    print(f"{mutant.name}: goes through {SEEDS} seeds ({took_s:.0f} s)", flush=True)
                    continue
                seed, said = found
                if seed != mutant.known_seed:
                    done = "" if _write_down(mutant, seed) else ", TO BE WRITTEN DOWN"
                    print(f"{mutant.name}: seed {seed}{done} ({took_s:.0f} s): {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
