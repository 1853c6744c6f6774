"""What ``spark-submit`` runs in YARN's application master: this very file, sent there alone.

Weir is among the packages of the container's Python, if that was given the right ones.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the job; return the exit code, by which YARN knows whether to try again."""
    try:
        from weir.cli.cluster_driver.driver import run_submitted
    except ImportError as error:
        version = ".".join(map(str, sys.version_info[:3]))
        print(
            f"weir: error: Python {version} ({sys.executable}) of node {os.environ.get('NM_HOST')}"
            f" cannot import {error.name} ({error}): leave out spark.pyspark.python, and weir run"
            " sends its own packages, or give a packed environment with weir-spark[hdfs].",
            file=sys.stderr,
        )
        return 1
    return run_submitted()


if __name__ == "__main__":
    sys.exit(main())
