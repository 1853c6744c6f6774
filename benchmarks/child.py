"""One run in a process and JVM of its own: ``python -m benchmarks.child SPEC.json RESULT.json``."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.processes import run_as_child
from benchmarks.runs import RunResult, RunSpec, Side


def run(spec: RunSpec) -> RunResult:
    """Measure one side."""
    if spec.side is Side.WEIR:
        from benchmarks.weir_side import run_weir as side
    else:
        from benchmarks.plain_side import run_plain as side
    return side(spec)


if __name__ == "__main__":
    run_as_child([Path(path) for path in sys.argv[1:]], RunSpec, run)
