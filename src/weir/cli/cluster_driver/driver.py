"""The driver in YARN's application master: ``weir run`` with the options that were sent along."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from weir import __version__
from weir.cli.cluster_mode.submit import OPTIONS, PLACE, Submitted
from weir.cli.run import run_pipeline
from weir.config.options import REST_BIND_ADDRESS
from weir.errors import UnsupportedEnvironmentError, WeirError

#: Wider than any line.
_WIDTH = 100_000


def run_submitted() -> int:
    """Run the job that was sent; return the exit code. The REST server listens on this node."""
    submitted = msgspec.json.decode(Path(PLACE, OPTIONS).read_bytes(), type=Submitted)
    conf = {REST_BIND_ADDRESS.key: os.environ["NM_HOST"], **submitted.options.conf}
    try:
        if submitted.version != __version__:
            raise UnsupportedEnvironmentError(
                f"The packages of {sys.executable} have Weir {__version__}, but Weir"
                f" {submitted.version} sent the job: give nodes the same."
            )
        return run_pipeline(
            f"{PLACE}/{submitted.spec}",
            replace(submitted.options, conf=conf),
            Console(file=sys.stderr, width=_WIDTH),
        )
    except WeirError as error:
        print(f"weir: error: {error}", file=sys.stderr)
        return 1
