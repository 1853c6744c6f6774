"""One run in a process and JVM of its own: ``python -m benchmarks.child SPEC.json RESULT.json``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from benchmarks.runs import RunSpec, Side


def main(spec_path: str, result_path: str) -> None:
    """Run what the first file says and write what was measured to the second."""
    spec = msgspec.json.decode(Path(spec_path).read_bytes(), type=RunSpec)
    if spec.side is Side.WEIR:
        from benchmarks.weir_side import run_weir as run
    else:
        from benchmarks.plain_side import run_plain as run
    Path(result_path).write_bytes(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main(*sys.argv[1:])
