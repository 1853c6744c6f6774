"""Seeds of ``weir sim``: whole jobs, and in some seeds also a sink over a simulated store."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from weir.sim.world import RunResult, run_seed

#: One seed in so many has a run over a store, which takes half as long as a job.
_ONE_IN = 8


def run_whole_seed(seed: int) -> RunResult:
    """Run one seed to its end.

    Without the extras ``objectstore``, ``postgres`` and ``iceberg`` no seed has a store.
    """
    result = run_seed(seed)
    if result.violation is not None or seed % _ONE_IN or not _has_clients():
        return result
    # Not at the top: the stores' clients take a while to load.
    from weir.sim.stores.world import run_stores

    over = run_stores(seed)
    checkpoints = result.checkpoints + over.checkpoints
    if over.violation is None:
        return replace(result, checkpoints=checkpoints)
    return replace(
        result,
        checkpoints=checkpoints,
        violation=over.violation,
        plan=over.plan,
        digest=over.digest,
        story=over.story,
    )


@cache
def _has_clients() -> bool:
    """Whether the client libraries of the stores are installed."""
    return all(find_spec(name) for name in ("obstore", "psycopg", "pyiceberg", "sqlalchemy"))
