"""Runs many seeds on all cores, and adds up their results."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from weir.sim.engine.faults import Fault, Mishap
from weir.sim.world import RunResult, run_seed

#: Seeds that a worker takes at a time.
_CHUNK = 8


@dataclass
class Totals:
    """Sums over all runs so far."""

    seeds: int = 0
    events: int = 0
    checkpoints: int = 0
    virtual_s: float = 0.0
    struck: Counter[tuple[Fault | Mishap, str]] = field(default_factory=Counter)

    def add(self, result: RunResult) -> None:
        """Count one run."""
        self.seeds += 1
        self.events += result.events
        self.checkpoints += result.checkpoints
        self.virtual_s += result.virtual_s
        self.struck.update(result.struck)


def run_seeds(
    first: int,
    *,
    seeds: int | None,
    seconds: float | None = None,
    run: Callable[[int], RunResult] = run_seed,
) -> Iterator[RunResult]:
    """Results in the order of the seeds, starting with ``first``.

    ``run`` runs one seed; it is pickled. Stops after ``seeds`` seeds, or once ``seconds`` have
    passed.
    """
    until = None if seconds is None else time.monotonic() + seconds
    numbers = iter(count(first)) if seeds is None else iter(range(first, first + seeds))
    if seeds == 1:
        yield run(first)
        return
    workers = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_quiet) as pool:
        # In chunks, since a pool would try to consume an endless series of seeds at once.
        while chunk := list(islice(numbers, workers * _CHUNK * 8)):
            yield from pool.imap(run, chunk, chunksize=_CHUNK)
            if until is not None and time.monotonic() >= until:
                return


def _quiet() -> None:
    """Silence logging and ignore Ctrl-C in a worker.

    Failures in a run are intended, and its story has them. Ctrl-C is for the parent, which ends the
    workers.
    """
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
